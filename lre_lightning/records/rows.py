"""The scores of records as rows for a data frame."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.records.record import TrialRecord
from lre_lightning.statistics.estimates import Share

_NUMBERS = ("samples", "range_size", "first_tokens", "tested", "known", "edited")
_TRIAL = ("relation", "category", "trial", "n_shot", "template", "template_index", "reported", "chose")
COMMON = ("model", "backward", *_TRIAL, *_NUMBERS)
_OF_ROWS = ("relation", "category", "trial", "n_shot", "reported", "chose")
PLACE = ("layer", "identity", "beta", "rank", "chosen")
COLUMNS = (*COMMON, "measure", "metric", "method", *PLACE, "count", "total", "score")


def rows(records: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return every score as a row for a data frame, with the keys of `COLUMNS`.

    A row is faithfulness at a layer and beta, causality at a layer and rank, or a mean of a measure at a point of its
    axes; only where successes are counted it has a count. `chosen` is true at the layer, beta and rank that the fit has
    chosen, `identity` at a layer where W is the identity, which choices leave out. Values that a score does not depend
    on, or that are not known, are None. A trial that was not scored has no row.
    """
    return [row for record in records if record.scored for row in _rows(record)]


def measured_rows(records: Iterable[TrialRecord], measure: str) -> list[dict[str, Any]]:
    """Return the rows of a measure, after what tells apart the trials that they are of and the chosen point.

    Raises:
        LREError: If no record has rows with columns of that measure.
    """
    records = list(records)
    named = {name for record in records for name, found in record.measures.items() if found.columns}
    if measure not in named:
        raise LREError(
            f"there are no rows of {measure!r}: of these results {', '.join(sorted(named)) or 'nothing'} has some"
        )
    return [
        {name: getattr(record, name) for name in ("model", "backward", *_OF_ROWS, "layer", "beta", "rank")}
        | dict(zip(record.measures[measure].columns, row, strict=True))
        for record in records
        if measure in record.measures
        for row in record.measures[measure].rows
    ]


def _rows(record: TrialRecord) -> Iterator[dict[str, Any]]:
    common = {name: getattr(record, name) for name in COMMON}
    for measure, metric, method, point, count, total, score in _scores(record):
        layer = point.get("layer")
        place = {
            "layer": layer,
            "identity": None if layer is None else layer in record.identity_layers,
            "beta": point.get("beta"),
            "rank": point.get("rank"),
            "chosen": all(getattr(record, axis) == value for axis, value in point.items()),
        }
        kind = {"measure": measure, "metric": metric, "method": method}
        yield common | kind | place | {"count": count, "total": total, "score": score}


def _scores(record: TrialRecord) -> Iterator[tuple[Any, ...]]:
    """Yield measure, metric, method, point, count, total and score of everything that was measured."""
    for (at, layer), (column, beta) in product(enumerate(record.layers), enumerate(record.betas)):
        point, count = {"layer": layer, "beta": beta}, record.faithful[at][column]
        yield None, "faithfulness", "LRE", point, count, record.known, Share(count, record.known)
    for (at, layer), (column, rank) in product(enumerate(record.layers), enumerate(record.ranks)):
        edits, score = record.causal[at][column], record.causality(layer, rank)
        yield None, "causality", "LRE", {"layer": layer, "rank": rank}, edits, record.edited, score
    for measure, found in record.measures.items():
        for name, tally in found.tallies.items():
            metric, _, method = name.partition(": ")
            axes = [list(enumerate(record.values_of(found, axis))) for axis in tally.axes]
            for place in product(*axes):
                value = tally.at([index for index, _ in place])
                point = {axis: at for axis, (_, at) in zip(tally.axes, place, strict=True)}
                hits = round(value * tally.total) if tally.counts and not math.isnan(value) else None
                yield measure, metric, method or "LRE", point, hits, tally.total, value
