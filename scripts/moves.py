"""Moves along lenses beside the inverse's edit: docs/results/moves.csv.

Run with ``python -m scripts.moves [SOURCE]``, where SOURCE has the paper's relations; it takes the bundled LREs of both
LMs, and relations whose objects are known without examples.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import torch

from lre_lightning import JacobianLens, LanguageModel, LRECollection, estimate_concepts, estimate_jacobian_lens
from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.lre.editing import PromptEdit, hidden_at
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.moving import Coordinates, move_prompt, put, swap
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.sources import load_relations

OUT = Path(__file__).parents[1] / "docs" / "results" / "moves.csv"
NAMES = {
    "demo": ["country capital city", "country language", "object superclass", "person sport", "company headquarters"],
    "smollm2": ["country capital city", "country largest city"],
}
EDITS, NEW_TOKENS, OTHERS, UNEDITED = 8, 8, 4, "no edit"

Make = Callable[[Prompt], PromptEdit]
"""Makes the edit of a prompt that has the subject."""


def methods(
    lre: LRE, concepts: object, lens: JacobianLens | None, asked: Prompt, wanted: Prompt, pair: tuple[Sample, Sample]
) -> Iterator[tuple[str, Callable[[], Make]]]:
    """Yield every method by name, and how it is made of a prompt, one that asks for the target, and their samples."""
    lm, layer, last = lre.bound, lre.layer, lre.bound.num_layers - 1
    several: list[Layer] = [layer, layer + 1]  # type: ignore[operator]

    def inverse() -> Make:
        delta = lre.edit(hidden_at(lm, asked, last, -1), hidden_at(lm, wanted, last, -1))
        return lambda prompt: PromptEdit(prompt, "", (layer,), delta, lm)

    def moved(make: Callable[[], Coordinates], live: bool = False) -> Callable[[], Make]:
        def method() -> Make:
            found = make()
            change = swap(found, *found.names)
            return lambda prompt: move_prompt(lm, prompt, found, change, live=live)

        return method

    def subspace() -> Make:
        found = Coordinates.of_lre(lre)
        change = put(found(hidden_at(lm, wanted, layer, wanted.subject_position), layer))
        return lambda prompt: move_prompt(lm, prompt, found, change)

    def tokens(layers: list[Layer]) -> Coordinates:
        assert lens is not None
        return lens.coordinates(lm, *(f" {sample.object}" for sample in pair), layers=layers)

    objects = [sample.object for sample in pair]
    yield UNEDITED, lambda: lambda prompt: PromptEdit(prompt, "", (layer,), torch.zeros(lm.hidden_size), lm)
    yield "edit by the inverse, W^+ (o' - o)", inverse
    yield "LRE: s' in the leading directions of W", subspace
    yield "concepts: swap", moved(lambda: concepts.coordinates(*objects))  # type: ignore[attr-defined]
    for how, live in (("clamped", False), ("live", True)):
        yield (
            f"concepts: swap at two layers, {how}",
            moved(
                lambda: concepts.coordinates(*objects, layers=several),  # type: ignore[attr-defined]
                live,
            ),
        )
    if lens is not None:
        yield "Jacobian lens: swap", moved(lambda: tokens([layer]))
        for how, live in (("clamped", False), ("live", True)):
            yield f"Jacobian lens: swap at two layers, {how}", moved(lambda: tokens(several), live)


@torch.no_grad()
def measured(lm: LanguageModel, make: Make, asked: Prompt, answer: int, others: list[Prompt]) -> tuple[float, ...]:
    """Return success, KL(unedited || edited) of other prompts in nats, and the mean log probability of what follows."""

    def logits(prompt: Prompt) -> torch.Tensor:
        return lm.decode(hidden_at(lm, prompt, lm.num_layers - 1, -1)).log_softmax(-1)

    edit = make(asked)
    with edit.active():
        said = int(logits(asked).argmax())
        ids = torch.tensor([asked.input_ids])
        written = lm.model.generate(  # type: ignore[operator]
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0
        )
    scores = lm.decode(lm(written[:, :-1]))[0].log_softmax(-1)[ids.shape[1] - 1 :]
    fluency = float(scores.gather(1, written[0, ids.shape[1] :, None]).mean())
    divergences = []
    for other in others:
        before = logits(other)
        with make(other).active():
            divergences.append(float((before.exp() * (before - logits(other))).sum()))
    return float(said == answer), fmean(divergences), fluency


def main(source: str | None = None) -> None:
    """Measure both LMs, and write the table after each."""
    rows: list[tuple[object, ...]] = []
    for name, relations in NAMES.items():
        lm, collection = LanguageModel.from_pretrained(name), LRECollection.from_pretrained(name)
        data = {one.name: one for one in load_relations(None, "demo" if name == "demo" else source)}
        found: dict[str, list[tuple[float, ...]]] = {}
        for relation in relations:
            lre = collection[relation, min(trial for key, trial in collection if key == relation)].bind(lm)
            prompts = Prompts(start_token=lre.origin.form["start_token"])
            concepts = estimate_concepts(lm, data[relation], lre.layer, prompts=prompts)
            lens = None if name != "demo" else estimate_lens(lm, collection)
            for pair, (asked, wanted) in known_pairs(lm, lre, data[relation].samples, concepts.objects):
                answer = int(lm.predict(hidden_at(lm, wanted, lm.num_layers - 1, -1)))
                templates = [data[other].prompt_templates[0] for other in relations if other != relation][:OTHERS]
                others = [lre.origin.asked(lm, template, pair[0].subject)[0] for template in templates]
                for method, how in methods(lre, concepts, lens, asked, wanted, pair):
                    try:
                        make = how()
                    except LREError:  # an object without a concept, or of several tokens
                        continue
                    found.setdefault(method, []).append(measured(lm, make, asked, answer, others))
            print(name, relation, len(found[UNEDITED]), flush=True)
        rows += [(name, method, len(lines), *map(fmean, zip(*lines, strict=True))) for method, lines in found.items()]
        with OUT.open("w", newline="", encoding="utf-8") as file:
            header = ("LM", "move", "edits", "success", "KL on other prompts", "log probability of the continuation")
            csv.writer(file).writerows([header, *((*row[:3], *(f"{value:.4f}" for value in row[3:])) for row in rows)])


def known_pairs(
    lm: LanguageModel, lre: LRE, samples: tuple[Sample, ...], objects: tuple[str, ...]
) -> list[tuple[tuple[Sample, Sample], list[Prompt]]]:
    """Return the first samples that the LM knows without examples, each with the next one as its target."""
    template = lre.origin.template.split("\n")[0]
    known = []
    for sample in samples:
        (asked,) = lre.origin.asked(lm, template, sample.subject)
        said = str(lm.tokenizer.decode([int(lm.predict(hidden_at(lm, asked, lm.num_layers - 1, -1)))])).strip()
        if said and sample.object.startswith(said) and sample.object in objects:
            known.append(sample)
        if len(known) > EDITS:
            break
    pairs = [(one, other) for one, other in pairwise(known) if one.object != other.object]
    return [(pair, lre.origin.asked(lm, template, *(sample.subject for sample in pair))) for pair in pairs]


def estimate_lens(lm: LanguageModel, collection: LRECollection) -> JacobianLens:
    """Estimate a Jacobian lens of the demo LM from the examples of its relations."""
    lres = [collection[key] for key in sorted(collection)[::9]]
    texts = [lre.origin.prompt(lm, lre.origin.train[0][0]).input_ids for lre in lres]
    return estimate_jacobian_lens(lm, texts, averaging=Averaging(skip=4))


if __name__ == "__main__":
    main(*sys.argv[1:])
