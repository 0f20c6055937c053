"""The table of results: a row a relation and trial, and a summary of each relation over its trials. Pure functions."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.grid import Layer
from lre_lightning.records.record import TrialRecord
from lre_lightning.storage.files import grown_whole, written_whole

Spread = tuple[float, float | None]
"""Mean and standard deviation (n - 1), None for the deviation of a single value."""

SCORES = ("faithfulness", "causality")
COLUMNS = [
    "model",
    "relation",
    "category",
    "trial",
    "n_shot",
    "template",
    "samples",
    "tested",
    "known",
    "range_size",
    "random_guess",
    "reported",
    "layer",
    "beta",
    "rank",
    "edited",
    *SCORES,
]


def write_csv(records: Iterable[TrialRecord], path: Path) -> None:
    """Write one row a relation and trial to a CSV file, under its name only once it is whole.

    Its columns are `COLUMNS`; scores are those at the chosen layer, beta and rank. A pair that was not scored has a row
    without them.

    Raises:
        LREError: If the file cannot be written.
    """
    with written_whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(map(_row, records))


def append_csv(records: Iterable[TrialRecord], path: Path) -> None:
    """Add rows at the end of a file that `write_csv` wrote, all of them or none.

    Raises:
        LREError: If the file cannot be written.
    """
    with grown_whole(path) as part, part.open("a", newline="", encoding="utf-8") as file:
        csv.DictWriter(file, COLUMNS).writerows(map(_row, records))


def _row(record: TrialRecord) -> dict[str, Any]:
    scores = record.chosen_scores or (None, None)
    row = {name: getattr(record, name) for name in COLUMNS if hasattr(record, name)}
    return row | {"beta": record.beta if record.scored else None} | dict(zip(SCORES, scores, strict=True))


@dataclass(frozen=True)
class RelationSummary:
    """One line of the table of results: means over the scored trials of a relation, and their standard deviations.

    Attributes:
        relation: Name of the relation.
        category: Its category.
        samples: All its samples.
        known: Mean number of known test samples, over all trials.
        trials: Number of scored trials.
        random_guess: Chance of guessing the object.
        range_size: Number of its distinct objects.
        layer: The chosen layer; None where no trial was scored.
        rank: The chosen rank; None where no trial was scored.
        beta: The chosen beta.
        faithfulness: Mean and standard deviation (n - 1; None with one trial); None where no trial was scored.
        causality: Likewise; None also where no trial had an edit.
    """

    relation: str
    category: str
    samples: int
    known: float
    trials: int
    random_guess: float
    range_size: int
    layer: Layer | None = None
    rank: int | None = None
    beta: float | None = None
    faithfulness: Spread | None = None
    causality: Spread | None = None


def summarize(records: Iterable[TrialRecord]) -> list[RelationSummary]:
    """Summarize records by relation, in the order in which the relations first occur.

    Trials that only served to choose layer and rank count for what the LM knows, and for nothing else.
    """
    by_relation: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_relation.setdefault(record.relation, []).append(record)
    return [_summary(group) for group in by_relation.values()]


def _summary(group: Sequence[TrialRecord]) -> RelationSummary:
    first = group[0]
    known = statistics.fmean(record.known for record in group)
    reported = [record for record in group if record.reported and record.scored]
    scores = [record.chosen_scores for record in reported if record.chosen_scores is not None]
    common = (first.relation, first.category, first.samples, known, len(scores), first.random_guess, first.range_size)
    if not scores:
        return RelationSummary(*common)
    chosen = reported[0]
    faithfulness, causality = (_known_spread(values) for values in zip(*scores, strict=True))
    return RelationSummary(*common, chosen.layer, chosen.rank, chosen.beta, faithfulness, causality)


def _known_spread(values: Sequence[float]) -> Spread | None:
    """Mean and standard deviation of the trials that have the score; None where none has."""
    known = [value for value in values if not math.isnan(value)]
    return spread(known) if known else None


def spread(values: Sequence[float]) -> Spread:
    """Mean and standard deviation of at least one value."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
