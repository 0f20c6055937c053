"""The counts of records as rows for a data frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lre_lightning.records.record import GENERIC, WHOLE_OBJECTS, ByLayer, Grid, TrialRecord, fraction

_COMMON = ("model", "relation", "category", "trial", "n_shot", "template", "reported")
COLUMNS = (*_COMMON, "metric", "method", "prompt", "layer", "beta", "rank", "count", "total", "score")


def rows(records: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """Return every count as a row for a data frame, with the keys of `COLUMNS`.

    A row is one score: faithfulness by layer and beta, causality by layer and rank, baselines by layer, and whole
    objects. Values that a score does not depend on are None. A trial that was not scored has no row.
    """
    return [row for record in records if record.scored for row in _rows(record)]


def _rows(record: TrialRecord) -> list[dict[str, Any]]:
    common = {name: getattr(record, name) for name in _COMMON}

    whole_totals = {name: record.whole_objects.get(total, 0) for name, total in WHOLE_OBJECTS.items()}
    totals = {"faithfulness": record.known, "causality": record.edited, **whole_totals}

    def row(metric: str, method: str, prompt: str, layer: int, count: int, **point: Any) -> dict[str, Any]:
        score = {"count": count, "total": totals[metric], "score": fraction(count, totals[metric])}
        layers = record.generic_layers if method in GENERIC else record.layers
        place = {"layer": layers[layer], "beta": None, "rank": None} | point
        return common | {"metric": metric, "method": method, "prompt": prompt} | place | score

    def grid(
        metric: str, prompt: str, counts: Grid, axis: str, values: Sequence[float], method: str = "LRE"
    ) -> list[dict[str, Any]]:
        return [
            row(metric, method, prompt, i, count, **{axis: value})
            for i, at in enumerate(counts)
            for value, count in zip(values, at, strict=True)
        ]

    def baselines(metric: str, prompt: str, counts: ByLayer) -> list[dict[str, Any]]:
        return [row(metric, name, prompt, i, count) for name, at in counts.items() for i, count in enumerate(at)]

    def whole_object(metric: str) -> dict[str, Any]:
        assert record.layer is not None
        axis, layer = "beta" if WHOLE_OBJECTS[metric] == "known" else "rank", record.layers.index(record.layer)
        return row(metric, "LRE", "few-shot", layer, record.whole_objects[metric], **{axis: getattr(record, axis)})

    return [
        *grid("faithfulness", "few-shot", record.faithful, "beta", record.betas),
        *grid("faithfulness", "zero-shot", record.faithful_zero_shot, "beta", record.betas),
        *grid("causality", "few-shot", record.causal, "rank", record.ranks),
        *baselines("faithfulness", "few-shot", record.faithful_baselines),
        *baselines("faithfulness", "zero-shot", record.zero_shot_baselines),
        *baselines("causality", "few-shot", record.causal_baselines),
        *(
            one
            for metric, grids, axis, values in (
                ("faithfulness", record.generic_faithful, "beta", record.betas),
                ("causality", record.generic_causal, "rank", record.ranks),
            )
            for name, counts in grids.items()
            for one in grid(metric, "few-shot", counts, axis, values, name)
        ),
        *(whole_object(metric) for metric in WHOLE_OBJECTS if record.whole_objects),
    ]
