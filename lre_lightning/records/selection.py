"""Choice of the layer and rank of a relation (Appendix "Selecting Hyperparameters" of the paper). Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.records.record import Grid, TrialRecord
from lre_lightning.statistics.estimates import as_good, over_trials

Criterion = Literal["middle", "causality", "faithfulness", "both"]
"""What chooses: see `choose`."""

SPECIFICITY, KEPT = "specificity", "other relations kept"
"""The measure, and its count, by which `"both"` chooses."""
MISSING = "was not measured: add --model.measures+=Specificity --model.measures.every_layer=true"


def harmonic_mean(first: NDArray[np.float64] | float, second: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the harmonic mean of shares; 0 where both are.

    >>> harmonic_mean(1.0, 0.5).round(3).item()
    0.667
    """
    one, other = np.asarray(first, np.float64), np.asarray(second, np.float64)
    mean: NDArray[np.float64] = 2 * one * other / np.where(one + other == 0, 1, one + other)
    return mean


def choose(records: Sequence[TrialRecord], criterion: Criterion, beta: float) -> tuple[Layer, int]:
    """Choose the layer and rank at which a relation's mean score over trials is best.

    Args:
        records: Scored trials of one relation; at least one. The points that all of them measured can be chosen, but
            for layers at which W is the identity, unless there are no others: `eligible_layers`.
        criterion: ``"causality"``, the paper's choice, takes the layer and rank of the best causality, and breaks ties
            by faithfulness; ``"faithfulness"`` does the reverse. Remaining ties go to the earlier layer and the lower
            rank. ``"middle"`` takes the middle one of the layers whose scores the data cannot tell from those at the
            paper's choice, and the rank of the best causality there. The embedding is only taken if it is alone.
            ``"both"`` takes the best harmonic mean of causality and of the answers by other relations that edits keep,
            where `measures.Specificity` has counted these. Of a relation without such answers it is ``"causality"``.
        beta: The beta at which faithfulness is compared, one of the grid.

    Raises:
        LREError: If the records have no point in common, lack the beta, or lack the measure that `"both"` needs.
    """
    for record in records:
        if beta not in record.betas:
            raise LREError(f"beta {beta} is not on the grid of {record.relation!r}, whose betas are {record.betas}")
    layers, ranks = (
        [at for at in getattr(records[0], axis) if all(at in getattr(record, axis) for record in records)]
        for axis in ("layers", "ranks")
    )
    layers = eligible_layers(records, layers)
    faithful = np.mean([_counts(r, r.faithful, layers, [beta], r.betas) / max(r.known, 1) for r in records], axis=0)
    causal = np.mean([_counts(r, r.causal, layers, ranks, r.ranks) / max(r.edited, 1) for r in records], axis=0)
    if not causal.size:
        raise LREError(f"the trials of {records[0].relation!r} have no layer and rank in common to choose")
    scores = (faithful, causal) if criterion == "faithfulness" else (causal, faithful)
    if criterion == "both" and asks_others(records):
        scores = (_with_kept(records, causal, layers, ranks), causal)
    # Rounded, so that equal fractions are equal whatever the order of summation.
    merits = [np.broadcast_to(score, causal.shape).round(12) for score in scores]
    best = np.lexsort([-merit.ravel() for merit in reversed(merits)])[0]
    layer, rank = map(int, np.unravel_index(best, causal.shape))
    if criterion != "middle":
        return layers[layer], ranks[rank]
    at_rank = {place: int(causal[place].argmax()) for place in range(len(layers))} | {layer: rank}
    both = [
        (
            over_trials([record.causality(layers[place], ranks[column]) for record in records]),
            over_trials([record.faithfulness(layers[place], beta) for record in records]),
        )
        for place, column in at_rank.items()
    ]
    good = [place for place, scores in enumerate(both) if place == layer or all(map(as_good, scores, both[layer]))]
    good = [place for place in good if layers[place] != "emb"] or good
    middle = good[len(good) // 2]
    return layers[middle], ranks[at_rank[middle]]


def asks_others(records: Sequence[TrialRecord]) -> bool:
    """Return whether edits could lose answers by other relations in some of the records.

    Raises:
        LREError: If that was not measured.
    """
    found = [record.measures[SPECIFICITY].tallies[KEPT] for record in records if SPECIFICITY in record.measures]
    if not found:
        raise LREError(f"a choice by both weighs what edits keep, and that of {records[0].relation!r} {MISSING}")
    return any(tally.total for tally in found)


def _with_kept(
    records: Sequence[TrialRecord], causal: NDArray[np.float64], layers: Sequence[Layer], ranks: Sequence[int]
) -> NDArray[np.float64]:
    """Return the harmonic mean of causality and of answers that are kept, `(layers, ranks)`; -1 where not counted."""
    kept = np.array(
        [
            [[record.measured(SPECIFICITY, KEPT, layer=layer, rank=rank) for rank in ranks] for layer in layers]
            for record in records
        ]
    )
    counted = (~np.isnan(kept)).sum(0)
    mean = np.nansum(kept, axis=0) / np.maximum(counted, 1)
    return np.where(counted > 0, harmonic_mean(causal, mean), -1.0)


def eligible_layers(records: Iterable[TrialRecord], layers: Iterable[Layer]) -> list[Layer]:
    """Return the layers that can be chosen: those at which W is the identity in no trial; all, if it is at each.

    There s is o, so that the LRE says what the LM says and the edit puts o' in place of o, whatever the relation is.
    """
    layers, identity = list(layers), {layer for record in records for layer in record.identity_layers}
    return [layer for layer in layers if layer not in identity] or layers


def _counts(
    record: TrialRecord, counts: Grid, layers: Sequence[Layer], points: Sequence[float], axis: Sequence[float]
) -> NDArray[np.float64]:
    """Return the counts at some layers and points of another axis, `(layers, points)`."""
    table = np.array(counts, dtype=np.float64)
    rows, columns = [record.layers.index(layer) for layer in layers], [axis.index(point) for point in points]
    return table[np.ix_(rows, columns)]


def choice_of_earlier(reported: bool, earlier: Sequence[TrialRecord], criterion: Criterion) -> tuple[Layer, int] | None:
    """Return the layer and rank that earlier trials have chosen for one, by `choose_after`; None if it takes part."""
    for other in earlier:
        if reported and other.reported and other.layer is not None and other.rank is not None:
            return other.layer, other.rank
    choosing = [other for other in earlier if not other.reported]
    return choose(choosing, criterion, choosing[0].beta) if reported and choosing else None


def choose_after(record: TrialRecord, earlier: Sequence[TrialRecord], criterion: Criterion) -> tuple[Layer, int]:
    """Choose the layer and rank of a trial during a fit, before later trials are known.

    A reported trial takes the choice of an earlier reported one; if there is none, the choice of the trials that only
    serve to choose; and if there are none, its own. A trial that only serves to choose takes the choice of those so
    far, including itself. `earlier` are the relation's scored trials before it; errors are those of `choose`.
    """
    earlier_choice = choice_of_earlier(record.reported, earlier, criterion)
    choosing = [record] if record.reported else [*(other for other in earlier if not other.reported), record]
    return earlier_choice or choose(choosing, criterion, record.beta)


def takes_part(record: TrialRecord, earlier: Sequence[TrialRecord], criterion: Criterion) -> bool:
    """Return whether a trial of a fit takes part in the choice of its layer and rank, by `choose_after`.

    It does not if earlier trials have chosen, or if its grid has one point that can be chosen.
    """
    several = len(eligible_layers([record], record.layers)) * len(record.ranks) > 1
    return several and choice_of_earlier(record.reported, earlier, criterion) is None


def headline(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the records that headline scores are of: those of trials that took no part in the choice.

    On the trials that chose a layer and rank, these look better than they are. A relation of which all trials took
    part, such as one with a single trial, has the scores of those.
    """
    records = list(records)
    others = {record.relation for record in records if not record.chose}
    return [record for record in records if not record.chose or record.relation not in others]


def reselect(
    records: Iterable[TrialRecord], criterion: Criterion = "causality", beta: float | None = None
) -> list[TrialRecord]:
    """Choose the layer and rank of every relation again, from counts alone.

    The choice is made on the trials that only serve to choose (`TrialRecord.reported` is False), and for a relation
    without such trials on all of them, as in the paper.

    Args:
        records: Records of one LM and one kind of prompts.
        criterion: What to choose by, over the trials: ``"causality"``, with ties broken by faithfulness, or
            ``"faithfulness"``, the reverse, or ``"both"``, success and what edits keep: see `choose`.
        beta: The beta to report, one of the grid; each record's own if None.

    Returns:
        The scored and reported records, with the new layer, rank and beta. Where trials have different grids, those of
        the widest one choose, and the others are left out: they have no scores elsewhere, so that the scores of two
        choices would be of different trials.

    Raises:
        LREError: The records have no point in common, or beta is not on the grid of one.
    """
    by_relation: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.scored:
            by_relation.setdefault(record.relation, []).append(record)
    chosen = []
    for group in by_relation.values():
        reported = _on_widest_grid([record for record in group if record.reported])
        at = group[0].beta if beta is None else beta
        apart = _on_widest_grid([record for record in group if not record.reported])
        layer, rank = choose(apart or reported, criterion, at)
        chosen += [
            replace(at_point(record, layer, rank, at), chose=not apart and takes_part(record, [], criterion))
            for record in reported
            if layer in record.layers and rank in record.ranks
        ]
    return chosen


def _on_widest_grid(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the records with the most points."""
    points = [len(record.layers) * len(record.ranks) for record in records]
    return [record for record, size in zip(records, points, strict=True) if size == max(points)]


def nested(records: Iterable[TrialRecord], criterion: Criterion = "causality") -> list[TrialRecord]:
    """Choose the layer and rank of every trial on the relation's other trials: none is scored where it was best itself.

    Trials draw other examples, but share most of their test samples; so part of what a choice gains by chance is left.

    Args:
        records: Records of one LM and one kind of prompts.
        criterion: See `choose`.

    Returns:
        The scored and reported records of relations with several of them, all on one grid: a point that was
        measured because another trial had chosen it says nothing of that trial.
    """
    by_relation: dict[str, list[TrialRecord]] = {}
    for record in records:
        if record.scored and record.reported:
            by_relation.setdefault(record.relation, []).append(record)
    rescored = []
    for group in by_relation.values():
        if len(group) == 1 or len({(r.layers, r.ranks) for r in group}) > 1:
            continue
        for record in group:
            layer, rank = choose([other for other in group if other is not record], criterion, record.beta)
            rescored.append(replace(at_point(record, layer, rank, record.beta), chose=False))
    return rescored


def at_point(record: TrialRecord, layer: Layer | None, rank: int | None, beta: float) -> TrialRecord:
    """Return the record at another point of its grid, without the measurements that hold only for its old point."""
    now = {"layer": layer, "rank": rank, "beta": beta}
    moved = {name for name, value in now.items() if value != getattr(record, name)}
    kept = {name: found for name, found in record.measures.items() if not moved & {*found.chosen}}
    return replace(record, layer=layer, rank=rank, beta=beta, measures=kept)
