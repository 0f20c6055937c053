"""The scores of records as rows for a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from lre_lightning.records.record import GRIDS, MAJORITIES, MEASURES, WHOLE_OBJECTS, TrialRecord, fraction

_NUMBERS = ("samples", "range_size", "first_tokens", "tested", "known", "edited")
_TRIAL = ("relation", "category", "trial", "n_shot", "template", "template_index", "reported", "chose")
COMMON = ("model", "backward", *_TRIAL, *_NUMBERS)
PLACE = ("layer", "identity", "beta", "rank", "chosen")
COLUMNS = (*COMMON, "metric", "method", "prompt", *PLACE, "count", "total", "score")
MAJORITY = {f"majority of {name}": name for name in MAJORITIES}
"""The methods of the rows of the most frequent objects."""

_SCORES = {
    name: ("faithfulness" if total == "known" else "causality", "zero-shot" if "zero_shot" in name else "few-shot")
    for name, (total, _, _) in GRIDS.items()
    if name != "faithful_low_rank"
}
"""Metric and prompt of the fields of counts that have rows."""


def rows(records: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return every score as a row for a data frame, with the keys of `COLUMNS`.

    A row is faithfulness at a layer and beta, causality at a layer and rank, a baseline at a layer, that of the most
    frequent objects, a score on whole objects, or a measure beyond the argmax, which is a mean and has no count.
    `chosen` is true at the layer, beta and rank that the fit has chosen, `identity` at a layer where W is the identity,
    which choices leave out. Values that a score does not depend on, or that are not known, are None; so is the count at
    a point of the grid that was left out. A trial that was not scored has no row.
    """
    return [row for record in records if record.scored for row in _rows(record)]


def _rows(record: TrialRecord) -> Iterator[dict[str, Any]]:
    common = {name: getattr(record, name) for name in COMMON}
    for metric, method, prompt, layer, axis, point, count, total, score in _scores(record):
        identity = None if None in (layer, record.identity_layers) else layer in (record.identity_layers or ())
        place = {"layer": layer, "identity": identity, "beta": None, "rank": None} | ({axis: point} if axis else {})
        chosen = layer == record.layer and (not axis or point == getattr(record, axis))
        labels = {"metric": metric, "method": method, "prompt": prompt, **place, "chosen": chosen}
        yield common | labels | {"count": count, "total": total, "score": score}


def _scores(record: TrialRecord) -> Iterator[tuple[Any, ...]]:
    """Yield metric, method, prompt, layer, axis and point, count, total and score of everything that was measured."""
    for name, (metric, prompt) in _SCORES.items():
        of, (layers, *axes), methods = GRIDS[name]
        total, measured = getattr(record, of), getattr(record, name)
        for method, counts in measured.items() if methods else [("LRE", measured)]:
            for layer, at in zip(getattr(record, layers), counts, strict=bool(counts)):
                points = zip(getattr(record, axes[0]), at, strict=True) if axes else [(None, at)]
                for point, count in points:
                    axis = axes[0][:-1] if axes else None
                    score = fraction(count, total) if count is not None else float("nan")
                    yield metric, method, prompt, layer, axis, point, count, total, score
    for method, name in MAJORITY.items():
        if name in record.majority:
            counts = record.majority[name], record.known, record.of_majority(name)
            yield "faithfulness", method, "few-shot", None, None, None, *counts
    for metric in (name for name in WHOLE_OBJECTS if name in record.whole_objects):
        axis, total = "beta" if "faithfulness" in metric else "rank", record.whole_objects[WHOLE_OBJECTS[metric]]
        point, count = getattr(record, axis), record.whole_objects[metric]
        yield metric, "LRE", "few-shot", record.layer, axis, point, count, total, fraction(count, total)
    for name in record.measures:
        axis, total = MEASURES[name][0][:-1], getattr(record, MEASURES[name][1])
        for layer in record.layers:
            for point in getattr(record, f"{axis}s") if axis else (None,):
                score = record.measure(name, layer, point)
                yield name, "LRE", "few-shot", layer, axis or None, point, None, total, score
