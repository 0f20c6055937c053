"""The scores of records as rows for a data frame, and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.grid import place_of
from lre_lightning.records.record import GENERIC, GRIDS, MAJORITIES, MEASURES, WHOLE_OBJECTS, TrialRecord, fraction

_NUMBERS = ("samples", "range_size", "first_tokens", "tested", "known", "edited")
_TRIAL = ("relation", "category", "trial", "n_shot", "template", "template_index", "reported", "chose")
COMMON = ("model", "backward", *_TRIAL, *_NUMBERS)
EARLIER = {"identity": None, "backward": "exact", "chose": False}
"""What rows of earlier versions lack, and what it was then."""
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


def records_of(given: Iterable[Mapping[str, Any]]) -> list[TrialRecord]:
    """Rebuild records from the rows of some trials, which may have other columns too: see `Records.from_pandas`."""
    trials: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in given:
        missing = [name for name in COLUMNS if name not in row and name not in EARLIER]
        if missing:
            raise LREError(f"the rows lack the column {missing[0]!r}: they must have those of `rows`")
        known = EARLIER | {name: value if value == value else None for name, value in row.items()}  # NaN is not itself
        trials.setdefault(tuple(known[name] for name in COMMON), []).append(known)
    return [_record_of(dict(zip(COMMON, key, strict=True)), group) for key, group in trials.items()]


def _record_of(common: dict[str, Any], given: Sequence[Mapping[str, Any]]) -> TrialRecord:
    grids: dict[tuple[Any, ...], dict[tuple[Any, Any], Mapping[str, Any]]] = {}
    for row in given:
        layer = int(row["layer"]) if str(row["layer"]).isdecimal() else row["layer"]
        point = row["beta"] if row["rank"] is None else int(row["rank"])
        grids.setdefault((row["metric"], row["method"], row["prompt"]), {})[layer, point] = row
    known = {name: grids.pop(("faithfulness", method, "few-shot"), {}) for method, name in MAJORITY.items()}
    faithful, causal = (grids.get((metric, "LRE", "few-shot"), {}) for metric in ("faithfulness", "causality"))
    layers = sorted({layer for layer, _ in faithful}, key=place_of)
    betas, ranks = (sorted({point for _, point in grid}) for grid in (faithful, causal))

    def counts(cells: Mapping[Any, Mapping[str, Any]], points: Sequence[Any]) -> list[list[int | None]]:
        if cells and set(cells) != set(product(layers, points)):
            raise LREError(f"the rows of {common['relation']!r}, trial {common['trial']}, do not fill a grid")
        values = [[cells[layer, point]["count"] for point in points] for layer in layers] if cells else []
        return [[None if count is None else int(count) for count in row] for row in values]

    at = [next((place for place, row in grid.items() if row["chosen"]), (None, None)) for grid in (faithful, causal)]
    fields: dict[str, Any] = {
        "layers": layers,
        "betas": betas,
        "ranks": ranks,
        "faithful": counts(faithful, betas),
        "faithful_zero_shot": counts(grids.get(("faithfulness", "LRE", "zero-shot"), {}), betas),
        "causal": counts(causal, ranks),
        "layer": at[0][0],
        "beta": at[0][1],
        "rank": at[1][1],
        "majority": {name: int(cells[None, None]["count"]) for name, cells in known.items() if cells},
    }
    identity = {layer: row.get("identity") for (layer, _), row in faithful.items()}
    if None not in identity.values():
        fields["identity_layers"] = [layer for layer in layers if identity[layer]]
    for name in ("faithful_baselines", "zero_shot_baselines", "causal_baselines"):
        metric, prompt = _SCORES[name]
        own = {method: cells for (m, method, p), cells in grids.items() if (m, p) == (metric, prompt)}
        methods = [method for method in own if method not in ("LRE", *GENERIC)]
        fields[name] = {method: [row for (row,) in counts(own[method], [None])] for method in methods}
    whole = {name: int(value) for name, value in common.items() if isinstance(value, float)}
    return TrialRecord.from_plain(common | whole | fields)
