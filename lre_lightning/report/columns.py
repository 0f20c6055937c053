"""The section on a column of the user's, such as frequencies in a corpus, beside the scores of LREs."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.records import analysis
from lre_lightning.records.analysis import SCORES, Means, ModelResults
from lre_lightning.records.facts import Fact, facts_of
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.formats import open_rows
from lre_lightning.report import plotting
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Row, Table
from lre_lightning.statistics.correlation import clustered, of_sums, sums_by_cluster
from lre_lightning.statistics.estimates import Estimate, estimate
from lre_lightning.statistics.intervals import ratio_of_sums

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = ("relation", "subject", "object")

OF_FACTS: Mapping[str, Callable[[Fact], float | None]] = {
    "known": lambda fact: fact.known,
    "LM's probability": lambda fact: fact.probability if fact.known else None,
    "faithful": lambda fact: fact.faithful,
    "edit succeeds": lambda fact: fact.success,
}
"""What numbers by fact are set beside; None where it does not count."""
LEAST_FACTS = 3
"""Number of facts of a relation below which it says nothing of how two numbers vary within it."""


@dataclass(frozen=True)
class Column:
    """A column of numbers: those of `KEYS` that its file has, and the numbers by the keys' values."""

    name: str
    keys: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]

    def by_relation(self, records: Sequence[TrialRecord]) -> Means:
        """Return the number of each relation that has one.

        By subject or object, it is the mean over the training samples of a trial, and its mean and deviation over
        trials: all records name those.
        """
        return analysis.spreads((record.relation, self._of(record)) for record in analysis.counted(records))

    def _of(self, record: TrialRecord) -> float:
        samples = [{"relation": record.relation, "subject": s, "object": o} for s, o in record.train]
        places = {self._place(sample) for sample in samples or [{"relation": record.relation}]}
        values = [self.values[place] for place in places if place in self.values]
        return math.fsum(values) / len(values) if values else math.nan

    def by_fact(self, facts: Sequence[Fact]) -> dict[Fact, float]:
        """Return the number of each fact that has one."""
        return {fact: self.values[place] for fact in facts if (place := self._place(fact.place)) in self.values}

    def _place(self, sample: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(sample.get(key, "") for key in self.keys)


def read_columns(path: Path) -> list[Column]:
    """Read every column of numbers of a table that has a column ``relation``, ``subject`` or ``object``, or several.

    Empty cells are left out.
    """
    rows = open_rows(path)
    keys = tuple(key for key in KEYS if key in rows.names)
    names = [name for name in rows.names if name not in KEYS]
    if not keys or not names:
        raise LREError(
            f"{path} must have a column 'relation', 'subject' or 'object', and one of numbers: "
            f"it has {', '.join(rows.names)}"
        )
    values_of: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in names}
    for number, cells in rows.read(rows.names):
        place = tuple(str(cells[key]) for key in keys)
        for name in names:
            if place in values_of[name]:
                raise LREError(f"{path}, {rows.unit} {number} has {', '.join(place)!r} a second time")
            if cells.get(name) not in (None, ""):
                values_of[name][place] = _number(cells[name], f"{path}, {rows.unit} {number}, column {name!r}")
    return [Column(name, keys, values) for name, values in values_of.items()]


def _number(cell: Any, where: str) -> float:
    try:
        value = float(cell)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise LREError(f"{where} is {cell!r}, not a number")
    return value


def columns(models: Sequence[ModelResults], given: Sequence[Column]) -> tuple[Section, ...]:
    """Return a section per column of the user's: its numbers beside the scores of LREs."""
    return tuple(_section(models, column, f"column_{place}") for place, column in enumerate(given, 1))


def _section(models: Sequence[ModelResults], column: Column, stem: str) -> Section:
    by_model = [column.by_relation(model.main) for model in models]
    apart = any(key != "relation" for key in column.keys)
    facts = [column.by_fact(facts_of(model.main)) if apart else {} for model in models]
    if not any(by_model) and not any(facts):
        relations = ", ".join(sorted({record.relation for model in models for record in model.main})[:3])
        raise LREError(
            f"the column {column.name!r} has no number for a scored relation of the results: its {column.keys[-1]} "
            f"must be one of theirs, such as {relations if column.keys[-1] == 'relation' else 'a training sample'}"
        )
    joined = "the mean over the training samples of its trials" if apart else "that of a relation"
    rows: list[Row] = []
    for name, model, values in zip(analysis.names_of(models), models, by_model, strict=True):
        for metric, score in SCORES.items():
            scores = analysis.per_relation(model.main, score)
            both = (analysis.correlation(values, scores, ranks=ranks) for ranks in (False, True))
            rows.append((name, metric, len(values.keys() & scores.keys()), *both))
    table = Table(
        stem,
        f"Correlations of {column.name} with the scores of LREs over relations; its value is {joined}.",
        ("LM", "score", "relations", "Pearson's R", "Spearman's R"),
        tuple(rows),
    )
    pictures, tables = [picture_of(plot_column, models, column, name=stem)], [table]
    if any(facts):
        pictures.append(picture_of(plot_facts, names_and(models, facts), column.name, name=f"{stem}_facts"))
        tables.append(_of_facts(names_and(models, facts), column.name, f"{stem}_facts"))
    return Section(f"By {column.name}", tuple(pictures), tuple(tables))


def names_and(models: Sequence[ModelResults], facts: Sequence[dict[Fact, float]]) -> dict[str, dict[Fact, float]]:
    """Return the facts of LMs that have some, with their numbers, by the LM's name."""
    return {name: found for name, found in zip(analysis.names_of(models), facts, strict=True) if found}


def fact_pairs(values: Mapping[Fact, float], of: Callable[[Fact], float | None]) -> list[tuple[str, float, float]]:
    """Return relation, number and outcome of the facts that have both, of relations with `LEAST_FACTS` at least."""
    pairs = [(f.relation, number, outcome) for f, number in values.items() if (outcome := of(f)) is not None]
    counts = Counter(relation for relation, *_ in pairs)
    return [pair for pair in pairs if counts[pair[0]] >= LEAST_FACTS]


def fact_correlations(pairs: Sequence[tuple[str, float, float]]) -> tuple[Estimate | None, Estimate | None]:
    """Return the rank correlation over all facts, and the one within relations, with intervals over relations."""
    if not pairs:
        return None, None
    relations, numbers, outcomes = zip(*pairs, strict=True)
    over_all, within = (sums_by_cluster(relations, numbers, outcomes, within=one) for one in (False, True))
    return estimate(over_all, of_sums), estimate(within, clustered)


def _of_facts(models: Mapping[str, Mapping[Fact, float]], name: str, stem: str) -> Table:
    rows: list[Row] = []
    for lm, values in models.items():
        for outcome, of in OF_FACTS.items():
            pairs = fact_pairs(values, of)
            rows.append((lm, outcome, len(pairs), len({pair[0] for pair in pairs}), *fact_correlations(pairs)))
    return Table(
        stem,
        f"{name} by fact, and what is known, faithful and edited: Spearman's correlation over all facts, and within "
        "relations, where what tells relations apart plays no part. Intervals are over relations, whose facts are "
        f"drawn together. Relations with fewer than {LEAST_FACTS} facts are left out; faithfulness and the LM's "
        "probability are of known facts alone.",
        ("LM", "outcome", "facts", "relations", "over all facts", "within relations"),
        tuple(rows),
    )


def plot_facts(models: Mapping[str, Mapping[Fact, float]], name: str) -> Figure:
    """What is known, faithful and edited by a number of the user's, in fifths of the facts.

    The first fifth has the lowest numbers; facts with equal numbers are in one fifth. Intervals are over relations,
    whose facts are drawn together.
    """
    shown = [outcome for outcome in OF_FACTS if outcome != "LM's probability"]
    figure, panels = plotting.panel_grid(len(models), min(2, len(models)), 9, 3, shared=False)
    for axes, (lm, values) in zip(panels, models.items(), strict=True):
        for aside, outcome in enumerate(shown):
            pairs = fact_pairs(values, OF_FACTS[outcome])
            if not pairs:
                continue
            places = fifths([number for _, number, _ in pairs])
            found = {place: _mean_of(pairs, places, place) for place in sorted({*places})}
            # Side by side, so that intervals can be told apart.
            at = [place + 0.12 * (aside - 1) for place in found]
            (line,) = axes.plot(at, [one.value for one in found.values()], marker="o", label=outcome)
            for place, one in zip(at, found.values(), strict=True):
                if one.interval:
                    axes.plot([place] * 2, [one.interval.low, one.interval.high], color=line.get_color(), alpha=0.4)
        plotting.fraction_axis(axes, "y")
        axes.set_xticks(range(5), ["lowest", "2", "3", "4", "highest"])
        axes.set(xlabel=f"{plotting.text(name, 40)}, fifths", title=plotting.text(lm, 30))
    plotting.legend(figure)
    return figure


def fifths(numbers: Sequence[float]) -> list[int]:
    """Return the fifth, 0 to 4, of each number among them; equal ones have the same.

    >>> fifths([1, 2, 3, 4, 5]), fifths([1, 1, 1, 1, 9])
    ([0, 1, 2, 3, 4], [2, 2, 2, 2, 4])
    """
    from scipy.stats import rankdata

    places: list[int] = np.floor((rankdata(numbers) - 0.5) / len(numbers) * 5).astype(int).tolist()
    return places


def _mean_of(pairs: Sequence[tuple[str, float, float]], places: Sequence[int], place: int) -> Estimate:
    """Return the mean outcome of the facts of one fifth, with its interval over relations."""
    sums: dict[str, tuple[float, int]] = {}
    for (relation, _, outcome), own in zip(pairs, places, strict=True):
        if own == place:
            total, count = sums.get(relation, (0.0, 0))
            sums[relation] = total + outcome, count + 1
    found = estimate([*sums.values()], ratio_of_sums)
    assert found is not None  # a fifth that is shown has a fact
    return found


def plot_column(models: Sequence[ModelResults], column: Column) -> Figure:
    """A column of the user's against the scores of LREs, a dot per relation, with Spearman's rank correlation.

    By subject or object, a relation's value is the mean over the training samples of its trials. The axis is
    logarithmic where the values are positive and span a factor of 100.
    """
    figure, panels = plotting.panel_grid(2 * len(models), 2, 9, 3, shared=False)
    kinds = analysis.categories(record for model in models for record in model.main)
    shown = itertools.product(analysis.named(models).items(), SCORES.items())
    for axes, ((name, model), (metric, score)) in zip(panels, shown, strict=True):
        values, scores = column.by_relation(model.main), analysis.per_relation(model.main, score)
        points = {relation: (values[relation][0], scores[relation][0]) for relation in values if relation in scores}
        plotting.category_points(axes, points, kinds, set(points))
        plotting.fraction_axis(axes, "y")
        plotting.wide_axis(axes, [x for x, _ in points.values()])
        axes.set(xlabel=plotting.text(column.name, 40), ylabel=metric)
        r = plotting.r_of(analysis.correlation(values, scores, ranks=True))
        axes.set_title(f"{plotting.text(name, 24)}: {r} ({plotting.number_of(len(points))})", fontsize=10)
    plotting.legend(figure)
    return figure
