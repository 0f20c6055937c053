"""The table of results, one row per relation and trial, and summaries of relations over their trials."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lre_lightning.grid import Layer
from lre_lightning.records.record import MAJORITIES, WHOLE_OBJECTS, TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.statistics.estimates import Estimate, over_trials
from lre_lightning.storage.files import written_whole

ALIKE = "all of its objects begin with the same token"

SCORES = ("faithfulness", "causality")
BLIND = {"b_alone": "b alone", "majority_of_training": "majority of training", "majority_of_data": "majority of data"}
"""Columns of the file, and of the table, for the faithfulness of answers that are the same for all subjects."""
CSV_COLUMNS = [
    *("model", "relation", "category", "trial", "n_shot", "template", "samples", "tested", "known", "range_size"),
    *("random_guess", *BLIND, "reported", "chose", "layer", "beta", "rank", "edited", *SCORES),
]

NOT_KEPT = "no LRE of it was kept: fit it, or choose other relations with --data.relations"
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


def write_csv(records: Iterable[TrialRecord], path: Path, append: bool = False) -> None:
    """Write one row per relation and trial to a CSV file with the columns `CSV_COLUMNS`, atomically.

    Scores are those at the chosen layer, beta and rank. A trial that was not scored has a row without them. Where
    whole objects were scored, `WHOLE_OBJECTS` are columns too. With `append` the rows are added to those that the file
    has, all or none, with its columns.
    """
    records = list(records)
    columns = [*CSV_COLUMNS, *(WHOLE_OBJECTS if any(record.whole_objects for record in records) else ())]
    with written_whole(path, append) as part, part.open("a+", newline="", encoding="utf-8") as file:
        if append:
            file.seek(0)
            columns = next(csv.reader(file), columns)
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        if not append:
            writer.writeheader()
        for record in records:
            row = {name: getattr(record, name) for name in CSV_COLUMNS if name not in (*SCORES, *BLIND)}
            row |= {name: score for name, score in zip(BLIND, _blind(record), strict=True) if not math.isnan(score)}
            row["beta"] = record.beta if record.scored else None
            row |= {name: record.on_whole_objects(name) for name in WHOLE_OBJECTS if name in record.whole_objects}
            writer.writerow(row | dict(zip(SCORES, record.chosen_scores or (None, None), strict=True)))


@dataclass(frozen=True)
class RelationSummary:
    """A line of the table of results: means over trials of a relation, with deviations and intervals.

    The trials are those of `headline`; `chose` says that they are those that chose the layer and rank themselves.
    `known` and `tested` are means over all trials, `whole_objects` the scores of `WHOLE_OBJECTS` where they were
    measured, `blind` those of `BLIND`, and `identity_layers` those at which W is the identity. The chosen layer, rank
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
    whole_objects: Mapping[str, Estimate] = field(default_factory=dict)
    unscored: str = ""
    blind: Mapping[str, Estimate] = field(default_factory=dict)
    identity_layers: tuple[Layer, ...] = ()
    chose: bool = False

    @property
    def known_of(self) -> str:
        """How many of the test prompts the LM knows, such as ``"48 of 48"``."""
        return " of ".join(f"{count:.1f}".removesuffix(".0") for count in (self.known, self.tested))


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
    measured = [record for record in reported if record.whole_objects]
    fractions = {name: _mean([record.on_whole_objects(name) for record in measured]) for name in WHOLE_OBJECTS}
    whole_objects = {name: value for name, value in fractions.items() if value is not None}
    summary = RelationSummary(
        relation=first.relation,
        category=first.category,
        samples=first.samples,
        known=known,
        tested=tested,
        trials=len(scores),
        random_guess=first.random_guess,
        range_size=first.range_size,
        whole_objects=whole_objects,
    )
    if not scores:
        unscored = too_few(first.samples, first.n_shot, tested, known) if first.told_apart else ALIKE
        if first.told_apart and any(record.known >= record.n_shot for record in group if record.reported):
            unscored = NOT_KEPT
        return replace(summary, unscored=unscored)
    chosen = reported[0]
    faithfulness, causality = map(_mean, zip(*scores, strict=True))
    means = zip(BLIND.values(), map(_mean, zip(*map(_blind, reported), strict=True)), strict=True)
    blind = {name: score for name, score in means if score is not None}
    return replace(
        summary,
        layer=chosen.layer,
        rank=chosen.rank,
        beta=chosen.beta,
        faithfulness=faithfulness,
        causality=causality,
        blind=blind,
        chose=chosen.chose,
        identity_layers=tuple(dict.fromkeys(layer for record in reported for layer in record.identity_layers or ())),
    )


def _blind(record: TrialRecord) -> list[float]:
    """Return the scores of answers that are the same for all subjects, NaN where not measured."""
    alone = record.score("faithful", record.layer, 0.0)
    return [alone, *map(record.of_majority, MAJORITIES)]


def _mean(values: Iterable[float]) -> Estimate | None:
    counted = [value for value in values if not math.isnan(value)]
    return over_trials(counted) if counted else None
