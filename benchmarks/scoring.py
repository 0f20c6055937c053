"""Scoring of one trial at all layers, 40 ranks and 21 betas, against the published way.

The published way runs the whole prompt once per subject, layer and rank, and decodes once per subject, layer and beta.
Run with `python -m benchmarks.scoring`. On the demo model every answer of both ways is compared. On GPT-2 small's shape
with 200 test subjects, the engine scores 30 of them and the published way a random sample of the grid, whose answers
are compared; times are extrapolated. With `--all` the engine scores all 200.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

from benchmarks.common import CONTEXT, DEMO_RELATION, demo_prompts, gpt2_small, random_prompts, table, timed
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.grid import Layer
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.batch import collate
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import Trial
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions, with_grid
from lre_lightning.scoring.states import TrialStates

BETAS = tuple(step / 4 for step in range(21))
SUBJECTS, DEMO_SUBJECTS = 200, 16


class Published:
    """One forward pass per subject, layer and rank; one decoding per subject, layer and beta."""

    def __init__(self, lm: LanguageModel, states: TrialStates, lres: dict[Layer, LRE]) -> None:
        self.lm, self.states, self.lres, self.targets = lm, states, lres, states.targets.tolist()
        for lre in lres.values():
            lre.operator.triplets(lm.hidden_size)

    @torch.no_grad()
    def edited(self, row: int, layer: Layer, rank: int) -> int:
        """Return the LM's answer after an edit of s."""
        prompt, outputs = self.states.prompts[row], self.states.object
        difference = outputs[self.targets[row]] - outputs[row]
        delta = self.lres[layer].operator.edits(difference, [rank])[0]

        def put(hidden: Tensor) -> Tensor:
            hidden = hidden.clone()
            hidden[0, prompt.subject_position] += delta
            return hidden

        with replace(self.lm.module_at(layer), put):
            return int(self.lm.model(torch.tensor([prompt.input_ids])).logits[0, -1].argmax())

    @torch.no_grad()
    def decoded(self, row: int, layer: Layer, beta: float) -> int:
        """Return the LRE's answer."""
        subject = self.states.subject[row, list(self.lres).index(layer)]
        return int(self.lm.decode(self.lres[layer](subject, beta)).argmax())


def trial(
    lm: LanguageModel, train: list[tuple[Tensor, int]], prompts: list[Prompt]
) -> tuple[TrialStates, dict[Layer, LRE]]:
    """Return the test prompts, all of which count as known, and LREs at all layers."""
    estimator = LREEstimator(lm.layers)
    for ids, position in train:
        estimator.update(prompt_jacobian(lm, ids, position))
    lres = {
        layer: LRE(estimator.weight(layer), estimator.bias(layer), layer, Origin(lm.name, "", ""))
        for layer in lm.layers
    }
    batch = collate(prompts, relation=0, trial=0, samples=range(len(prompts)))
    samples = tuple(Sample(prompt.subject, prompt.object) for prompt in prompts)
    relation = Relation("", "", ("{}",), (), "", "", False, samples)
    states = TrialStates.run(lm, [batch], Trial(relation, 0, (), samples), lm.layers)
    return states.answered(states.predicted, torch.ones_like(states.known)), lres


def compare(
    lm: LanguageModel,
    states: TrialStates,
    lres: dict[Layer, LRE],
    ranks: Sequence[int],
    subjects: int,
    sample: int | None,
) -> list[list[str]]:
    """Return rows of the table; the published way runs on `sample` cells of either grid, all if None."""
    count = len(states.prompts)
    assert states.edited.tolist() == list(range(count))
    operators = list(lres.values())
    difference = states.target_objects - states.object
    runs = PromptBatch.join([states.runs])  # has not run the prompts yet
    decoding, said = timed(faithfulness_predictions, lm, operators, states.subject, BETAS)
    editing, edited = timed(causality_predictions, runs, operators, states.subject, difference, ranks)
    if sample is None:  # the counts of the public function are those of these answers
        blank = TrialRecord("", "", 0, samples=count, range_size=count, tested=count, known=count)
        record, *_ = with_grid(blank, states, lres, BETAS, ranks)
        assert (edited == states.wanted[:, None, None]).sum(0).tolist() == list(map(list, record.causal))
        assert (said == states.predicted[:, None, None]).sum(0).tolist() == list(map(list, record.faithful))
    published = Published(lm, states, lres)
    total, cells = 0.0, 0
    for answers, values, answer in ((said, BETAS, published.decoded), (edited, ranks, published.edited)):
        grid = list(itertools.product(range(count), enumerate(lm.layers), enumerate(values)))
        drawn = grid if sample is None else random.Random(0).sample(grid, sample)
        seconds, found = timed(lambda: [answer(row, layer, value) for row, (_, layer), (_, value) in drawn])  # noqa: B023
        assert found == [int(answers[row, i, j]) for row, (i, _), (j, _) in drawn]
        total += seconds * len(grid) / len(drawn)
        cells += len(drawn)
    scale = subjects / count
    engine = (decoding + editing) * scale
    shape = f"{lm.name}: {subjects} subjects, {lm.num_layers + 1} layers, {len(ranks)} ranks, {len(BETAS)} betas"
    split = f" ({editing * scale:.1f} of them in patched runs)"
    slow = total * scale
    return [
        [shape, "engine" + ("*" if scale > 1 else ""), f"{engine:.1f}{split}", "1", ""],
        ["", "published" + ("*" if sample else ""), f"{slow:.0f}", f"{slow / engine:.0f}", f"{cells:,}"],
    ]


def demo() -> list[list[str]]:
    """Compare on subjects of a bundled relation."""
    lm = LanguageModel.from_pretrained("demo")
    data = RelationDataModule("demo", DEMO_RELATION, "demo")
    prompts = [prompt for batch in data.val_dataloader() for prompt in batch.prompts][:DEMO_SUBJECTS]
    states, lres = trial(lm, demo_prompts(), prompts)
    return compare(lm, states, lres, range(3, 123, 3), len(prompts), None)


def gpt2(subjects: int) -> list[list[str]]:
    """Compare on random prompts: a common context, subjects of 1 to 3 tokens, a template of 3."""
    lm = gpt2_small()
    context = random_prompts(lm, 1)[0][:CONTEXT].tolist()
    generator = random.Random(0)
    prompts = []
    for number in range(subjects):
        name = [generator.randrange(lm.vocab_size) for _ in range(1 + number % 3)]
        ids = (*context, *name, *random_prompts(lm, 1)[0][-3:].tolist())
        prompts.append(Prompt("", f"s{number}", "", ids, (CONTEXT, CONTEXT + len(name)), (0,)))
    train = [(ids, CONTEXT) for ids in random_prompts(lm, 1)]
    states, lres = trial(lm, train, prompts)
    return compare(lm, states, lres, range(8, 328, 8), SUBJECTS, 120)


def main() -> None:
    """Print the table."""
    rows = demo() + gpt2(SUBJECTS if "--all" in sys.argv[1:] else 30)
    notes = [
        "Every answer of the published way equals the engine's: the whole grid on the demo model, where the counts are "
        "compared too.",
        "\\* measured on 30 subjects, or on a random sample of the grid, and extrapolated.",
    ]
    print(table("Scoring", ["LM", "way", "seconds", "engine = 1", "answers compared"], rows, notes))


if __name__ == "__main__":
    main()
