"""The table of results, one row per relation and trial, and summaries of relations over their trials."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.records.analysis import SCORES
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.statistics.estimates import Estimate, over_trials, short_text
from lre_lightning.storage.files import written_whole

ALIKE = "all of its objects begin with the same token"

ESSENTIAL = ("relation", "known", "layer", *SCORES)
"""The columns of every table of results, however narrow."""
B_ALONE = "b alone"
"""The faithfulness of b without W, an answer that is the same for all subjects."""
CSV_COLUMNS = [
    *("model", "relation", "category", "trial", "n_shot", "template", "samples", "tested", "known", "range_size"),
    *("random_guess", B_ALONE, "reported", "chose", "layer", "beta", "rank", "edited", *SCORES),
]

NOT_KEPT = "no LRE of it was kept: fit it to the end, or choose other relations with --data.relations"
"""Why a relation of which the LM knows enough is not scored."""


def too_few(samples: int, n: int, tested: float, known: float | None = None) -> str:
    """Return why a relation is not scored, from its counts; `known` is None before the LM has been asked.

    >>> too_few(12, 8, 4)
    '12 samples, 8 of them examples, 4 left to test: 8 that the LM knows are needed; lower --data.n_shot'
    """
    counts = f"{samples} samples, {n} of them examples, {_short(tested)} left to test"
    counts += "" if known is None else f", {_short(known)} known"
    return f"{counts}: {n} that the LM knows are needed; lower --data.n_shot"


def _short(count: float) -> str:
    return f"{count:.1f}".removesuffix(".0")


def csv_columns(records: Iterable[TrialRecord]) -> list[str]:
    """Return the columns of a CSV file of records: `CSV_COLUMNS`, and what measures give tables."""
    return [*CSV_COLUMNS, *dict.fromkeys(name for record in records for name in record.columns)]


def write_csv(records: Iterable[TrialRecord], path: Path, append: bool = False) -> None:
    """Write one row per relation and trial to a CSV file with the columns `CSV_COLUMNS`, atomically.

    Scores are those at the chosen layer, beta and rank. A trial that was not scored has a row without them. What
    measures give tables, `TrialRecord.columns`, are columns too. With `append` the rows are added to those that the
    file has, all or none, with its columns.
    """
    records = list(records)
    columns = csv_columns(records)
    with written_whole(path, append) as part, part.open("a+", newline="", encoding="utf-8") as file:
        if append:
            file.seek(0)
            columns = next(csv.reader(file), columns)
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        if not append:
            writer.writeheader()
        for record in records:
            row = {name: getattr(record, name) for name in CSV_COLUMNS if name not in (*SCORES, B_ALONE)}
            measured = {B_ALONE: record.faithfulness(record.layer, 0.0), **record.columns}
            row |= {name: score for name, score in measured.items() if not math.isnan(score)}
            row["beta"] = record.beta if record.scored else None
            writer.writerow(row | dict(zip(SCORES, record.chosen_scores or (None, None), strict=True)))


@dataclass(frozen=True)
class RelationSummary:
    """A line of the table of results: means over trials of a relation, with deviations and intervals.

    The trials are those of `headline`; `chose` says that they are those that chose the layer and rank themselves.
    `known` and `tested` are means over all trials, `columns` what measures give tables, with the faithfulness of b
    alone, and `identity_layers` are those at which W is the identity. The chosen layer, rank
    and beta, and the scores, are None if no trial was scored, which `unscored` gives the reason of; causality is None
    also if no trial had an edit.
    """

    relation: str
    category: str
    samples: int
    known: float
    tested: float
    trials: int
    random_guess: float
    range_size: int
    layer: Layer | None = None
    rank: int | None = None
    beta: float | None = None
    faithfulness: Estimate | None = None
    causality: Estimate | None = None
    columns: Mapping[str, Estimate] = field(default_factory=dict)
    unscored: str = ""
    identity_layers: tuple[Layer, ...] = ()
    chose: bool = False

    @property
    def known_of(self) -> str:
        """How many of the test prompts the LM knows, such as ``"48 of 48"``."""
        return " of ".join(f"{count:.1f}".removesuffix(".0") for count in (self.known, self.tested))

    @property
    def layer_text(self) -> str:
        """The layer, marked if W is the identity there, and by a star if the trials themselves chose it."""
        identity = " (W = I)" if self.layer in self.identity_layers else ""
        return "-" if self.layer is None else f"{self.layer}{identity}{'*' if self.chose else ''}"

    @property
    def essential(self) -> tuple[str, ...]:
        """The cells of `ESSENTIAL`."""
        scores = ("-" if one is None else short_text(one) for one in (self.faithfulness, self.causality))
        return self.relation, self.known_of, self.layer_text, *(scores if self.trials else ["not scored"] * 2)


class Results(tuple[RelationSummary, ...]):
    """Summaries of relations that show themselves as a table, in notebooks and in a terminal."""

    def __repr__(self) -> str:
        rows = [ESSENTIAL, *(summary.essential for summary in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        return html_table([summary.essential for summary in self], ESSENTIAL)


def summarize(records: Iterable[TrialRecord]) -> list[RelationSummary]:
    """Summarize records by relation, in the order in which the relations first occur.

    Trials that took part in the choice of layer and rank contribute to `known`, and to nothing else unless there are
    no others.
    """
    by_relation: dict[str, list[TrialRecord]] = {}
    for record in records:
        by_relation.setdefault(record.relation, []).append(record)
    return [_summary(group) for group in by_relation.values()]


def _summary(group: Sequence[TrialRecord]) -> RelationSummary:
    first = group[0]
    known = statistics.fmean(record.known for record in group)
    tested = statistics.fmean(record.tested for record in group)
    reported = headline(record for record in group if record.reported and record.scored)
    scores = [record.chosen_scores for record in reported if record.chosen_scores is not None]
    found: dict[str, list[float]] = {B_ALONE: [record.faithfulness(record.layer, 0.0) for record in reported]}
    for record in reported:
        for name, score in record.columns.items():
            found.setdefault(name, []).append(score)
    columns = {name: mean for name, values in found.items() if (mean := _mean(values)) is not None}
    summary = RelationSummary(
        relation=first.relation,
        category=first.category,
        samples=first.samples,
        known=known,
        tested=tested,
        trials=len(scores),
        random_guess=first.random_guess,
        range_size=first.range_size,
        columns=columns,
    )
    if not scores:
        unscored = too_few(first.samples, first.n_shot, tested, known) if first.told_apart else ALIKE
        asked = [record for record in group if record.reported] or group  # a stopped fit may only have chosen
        if first.told_apart and any(record.known >= record.n_shot for record in asked):
            unscored = NOT_KEPT
        return replace(summary, unscored=unscored)
    chosen = reported[0]
    faithfulness, causality = map(_mean, zip(*scores, strict=True))
    return replace(
        summary,
        layer=chosen.layer,
        rank=chosen.rank,
        beta=chosen.beta,
        faithfulness=faithfulness,
        causality=causality,
        chose=chosen.chose,
        identity_layers=tuple(dict.fromkeys(layer for record in reported for layer in record.identity_layers)),
    )


def _mean(values: Iterable[float]) -> Estimate | None:
    counted = [value for value in values if not math.isnan(value)]
    return over_trials(counted) if counted else None
