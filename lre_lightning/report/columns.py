"""The section on a column of the user's, such as frequencies in a corpus, beside the scores of LREs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError
from lre_lightning.records import analysis
from lre_lightning.records.analysis import SCORES, Means, ModelResults
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.formats import open_rows
from lre_lightning.report import plotting
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KEYS = ("relation", "subject")


@dataclass(frozen=True)
class Column:
    """A column of numbers: those of `KEYS` that its file has, and the numbers by the keys' values."""

    name: str
    keys: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]

    def by_relation(self, records: Sequence[TrialRecord]) -> Means:
        """Return the number of each relation that has one.

        By subject, it is the mean over the training samples of a trial, and its mean and deviation over trials: records
        name no other subjects.
        """
        return analysis.spreads((record.relation, self._of(record)) for record in analysis.counted(records))

    def _of(self, record: TrialRecord) -> float:
        relation = (record.relation,) if "relation" in self.keys else ()
        subjects = {(subject,) for subject, _ in record.train} if "subject" in self.keys else {()}
        values = [self.values[place] for subject in subjects if (place := (*relation, *subject)) in self.values]
        return math.fsum(values) / len(values) if values else math.nan


def read_columns(path: Path) -> list[Column]:
    """Read every column of numbers of a table that has a column ``relation`` or ``subject``, or both.

    Empty cells are left out.
    """
    rows = open_rows(path)
    keys = tuple(key for key in KEYS if key in rows.names)
    names = [name for name in rows.names if name not in KEYS]
    if not keys or not names:
        raise LREError(
            f"{path} must have a column 'relation' or 'subject', and one of numbers: it has {', '.join(rows.names)}"
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
    if not any(by_model):
        relations = ", ".join(sorted({record.relation for model in models for record in model.main})[:3])
        raise LREError(
            f"the column {column.name!r} has no number for a scored relation of the results: its {column.keys[-1]} "
            f"must be one of theirs, such as {relations if column.keys[-1] == 'relation' else 'a training sample'}"
        )
    joined = "the mean over the training samples of its trials" if "subject" in column.keys else "that of a relation"
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
    return Section(f"By {column.name}", (picture_of(plot_column, models, column, name=stem),), (table,))


def plot_column(models: Sequence[ModelResults], column: Column) -> Figure:
    """A column of the user's against the scores of LREs, a dot per relation, with Spearman's rank correlation.

    By subject, a relation's value is the mean over the training samples of its trials. The axis is logarithmic where
    the values are positive and span a factor of 100.
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
