"""Choice of the layer and rank of a relation (Appendix "Selecting Hyperparameters" of the paper). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.records.record import TrialRecord

Criterion = Literal["causality", "faithfulness"]


def choose(records: Sequence[TrialRecord], criterion: Criterion, beta: float) -> tuple[Layer, int]:
    """Choose the layer and rank at which a relation's mean score over trials is best.

    Args:
        records: Scored trials of one relation, on one grid; at least one.
        criterion: ``"causality"``, the paper's choice, takes the layer and rank of the best causality, and breaks ties
            by faithfulness; ``"faithfulness"`` does the reverse. Remaining ties go to the earlier layer and the lower
            rank.
        beta: The beta at which faithfulness is compared, one of the grid.

    Raises:
        LREError: The records have different grids, or beta is not in theirs.
    """
    first = records[0]
    grid = (first.layers, first.betas, first.ranks)
    for record in records:
        if (record.layers, record.betas, record.ranks) != grid:
            raise LREError(f"the trials of {record.relation!r} have different grids: choose among those of one fit")
    if beta not in first.betas:
        raise LREError(f"beta {beta} is not on the grid of {first.relation!r}, whose betas are {first.betas}")
    column = first.betas.index(beta)
    faithful = np.mean([np.array(r.faithful)[:, column] / max(r.known, 1) for r in records], axis=0)[:, None]
    causal = np.mean([np.array(r.causal) / max(r.edited, 1) for r in records], axis=0)
    scores = (causal, faithful) if criterion == "causality" else (faithful, causal)
    # Rounded, so that equal fractions are equal whatever the order of summation.
    merits = [np.broadcast_to(score, causal.shape).round(12) for score in scores]
    best = np.lexsort([-merit.ravel() for merit in reversed(merits)])[0]
    layer, rank = np.unravel_index(best, causal.shape)
    return first.layers[layer], first.ranks[rank]


def choose_after(record: TrialRecord, earlier: Sequence[TrialRecord], criterion: Criterion) -> tuple[Layer, int]:
    """Choose the layer and rank of a trial during a fit, before later trials are known.

    A reported trial takes the choice of an earlier reported one; if there is none, the choice of the trials that only
    serve to choose; and if there are none, its own. A trial that only serves to choose takes the choice of those so
    far, including itself. `earlier` are the relation's scored trials before it; errors are those of `choose`.
    """
    for other in earlier:
        if record.reported and other.reported and other.layer is not None and other.rank is not None:
            return other.layer, other.rank
    choosing = [other for other in earlier if not other.reported] + ([] if record.reported else [record])
    return choose(choosing or [record], criterion, record.beta)


def reselect(
    records: Iterable[TrialRecord], criterion: Criterion = "causality", beta: float | None = None
) -> list[TrialRecord]:
    """Choose the layer and rank of every relation again, from counts alone.

    The choice is made on the trials that only serve to choose (`TrialRecord.reported` is False), and for a relation
    without such trials on all of them, as in the paper.

    Args:
        records: Records of one LM and one kind of prompts.
        criterion: See `choose`.
        beta: The beta to report, one of the grid; each record's own if None.

    Returns:
        The scored and reported records, with the new layer, rank and beta.

    Raises:
        LREError: See `choose`.
    """
    by_relation: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.scored:
            by_relation.setdefault(record.relation, []).append(record)
    chosen = []
    for group in by_relation.values():
        reported = [record for record in group if record.reported]
        at = group[0].beta if beta is None else beta
        choosing = [record for record in group if not record.reported] or reported
        layer, rank = choose(choosing, criterion, at)
        chosen += [at_point(record, layer, rank, at) for record in reported]
    return chosen


def at_point(record: TrialRecord, layer: Layer | None, rank: int | None, beta: float) -> TrialRecord:
    """Return the record at another point of its grid, without the counts that exist only for its old point."""
    if layer != record.layer:
        record = replace(record, line_integrals=())
    if (layer, rank) != (record.layer, record.rank):
        record = replace(record, generations=())
    if (layer, beta) != (record.layer, record.beta):
        record = replace(record, faithful_low_rank=())
    if (layer, rank, beta) != (record.layer, record.rank, record.beta):
        record = replace(record, whole_objects={})
    return replace(record, layer=layer, rank=rank, beta=beta)
