"""The choice of layer and rank alone: causality at the points of the grid that can still be the best one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.records.record import PartialGrid, TrialRecord
from lre_lightning.records.selection import Criterion, eligible_layers
from lre_lightning.scoring.scores import faithfulness_predictions, on_grid
from lre_lightning.scoring.states import TrialStates

EDITS = 8
"""Edits after which the points of the grid are compared, over all processes, about."""

Counts: TypeAlias = NDArray[np.int64]


RunEdits: TypeAlias = Callable[[int, Sequence[int], int], tuple[Sequence[int], int]]
"""Runs a block of edits at a layer and some ranks, all by their places; returns how many succeed at each rank, and of
how many. Blocks are asked for in order."""


def with_choice(
    record: TrialRecord,
    states: TrialStates,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
    criterion: Criterion,
) -> tuple[TrialRecord, Tensor, Tensor]:
    """Score LREs as `scores.with_grid` does, but edits only as far as they decide the choice.

    `choose` takes the same layer and rank from it as from the record of `scores.with_grid`. The counts of points that
    were left, as they could no longer be chosen, or not at all, are None; all others are those of the whole grid. A
    collective call. What the LM says at a point that was left out is -1.
    """
    lm, operators = states.runs.lm, list(lres.values())
    said = faithfulness_predictions(lm, operators, states.subject[states.known], betas)
    faithful, total = states.count_faithful(said), len(states.all_edited)
    blocks = torch.arange(len(states.edited), device=states.edited.device).tensor_split(max(1, -(-total // EDITS)))
    change = states.change
    edited = torch.full((len(states.edited), len(lres), len(ranks)), -1, device=said.device)

    places = [list(lres).index(layer) for layer in eligible_layers([record], lres)]

    def run(layer: int, columns: Sequence[int], block: int) -> tuple[list[int], int]:
        place = places[layer]
        rows, lre = blocks[block], operators[place]
        delta = lre.operator.edits(change[rows].to(lre.bias), ranks)[:, columns]
        subject = states.subject[states.edited[rows], place, None].to(delta) + delta
        predicted = lm.predict(states.edited_runs.select(rows).patched(lre.layer, subject))
        edited[rows[:, None], place, torch.tensor(columns, device=rows.device)] = predicted.to(edited.device)
        (ran,) = states.processes.sum(torch.tensor([len(rows)]))
        return states.count_causal(predicted, rows).tolist(), int(ran)

    at_beta = faithful[places, betas.index(record.beta)].tolist()
    causal = dict(zip(places, search(at_beta, len(ranks), total, criterion, run), strict=True))
    whole = tuple(causal.get(place, (None,) * len(ranks)) for place in range(len(lres)))
    return on_grid(record, states, lres, betas, ranks, faithful, whole), said, edited


def search(faithful: Sequence[int], ranks: int, total: int, criterion: Criterion, run: RunEdits) -> PartialGrid:
    """Find the point that `choose` takes, and return the successes of `total` edits, `[layer][rank]`.

    At each step a block of edits is run at the layer of the best point, if all edits that it has left were to succeed,
    and at those of its ranks that are not beaten. A point is beaten by another that is better even if all edits that
    this one has left fail. Points that are left before all their edits were run have None.

    `faithful` are the faithful predictions at each layer.
    """
    shape = len(faithful), ranks
    hits, left = np.zeros(shape, dtype=np.int64), np.full(shape, total)
    at_beta = np.broadcast_to(np.array(faithful)[:, None], shape)
    first_of_equals = -np.arange(hits.size).reshape(shape)

    def merit(causal: Counts) -> Counts:
        """Return numbers that compare as `choose` compares the points."""
        leading, other = (causal, at_beta) if criterion == "causality" else (at_beta, causal)
        merits: Counts = (leading * (1 + other.max() + total) + other) * hits.size + first_of_equals
        return merits

    begun = [0] * len(faithful)
    while True:
        at_most = merit(hits + left)
        layer, rank = map(int, np.unravel_index(at_most.argmax(), shape))
        if not left[layer, rank]:
            break
        columns = np.flatnonzero((left[layer] > 0) & (at_most[layer] >= merit(hits).max()))
        succeeded, ran = run(layer, columns.tolist(), begun[layer])
        hits[layer, columns] += succeeded
        left[layer, columns] -= ran
        begun[layer] += 1
    counts = np.where(left > 0, -1, hits).tolist()
    return tuple(tuple(None if count < 0 else count for count in row) for row in counts)
