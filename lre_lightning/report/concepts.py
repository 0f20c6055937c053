"""The section on linear relational concepts: classification of unseen subjects and steering, beside probes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.concepts.record import CONCEPT_SCORES, METHODS, ConceptRecord
from lre_lightning.records import analysis
from lre_lightning.report import plotting
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Cell, Table, by_relation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lre_lightning.records.analysis import Means

CAPTIONS = {
    "accuracy": "Fraction of unseen subjects that are classified as their object",
    "macro F1": "Macro F1 of the classification of unseen subjects",
    "causality": "Fraction of edits, which replace one object's direction by another's, after which the LM answers the "
    "other object",
}


def concepts(records: Sequence[ConceptRecord]) -> Section:
    """Return concepts compared with probes by relation (Chanin et al., 2024, Tables 1 and 2)."""
    return Section("Concepts", (picture_of(plot_concepts, records),), concept_tables(records), unscored(records))


def _scores(records: Sequence[ConceptRecord], name: str, method: str) -> Means:
    return analysis.spreads((record.relation, record.score(name, method)) for record in records)


def _scored(records: Sequence[ConceptRecord]) -> dict[str, str]:
    """Return the category of every relation that was scored."""
    return {record.relation: record.origin["category"] for record in records if not record.reason}


def concept_tables(records: Sequence[ConceptRecord]) -> tuple[Table, ...]:
    """Return a table for every score, with a row per relation and a column per method."""
    relations = _scored(records)
    counts: dict[str, Mapping[str, Cell]] = {}
    for label in ("objects", "trained", "tested"):
        found = analysis.spreads((record.relation, getattr(record, label)) for record in records if not record.reason)
        counts[label] = {relation: round(mean) for relation, (mean, _) in found.items()}

    def table(score: str) -> Table:
        found = {method: _scores(records, score, method) for method in METHODS}
        return by_relation(
            f"concepts_{score.replace(' ', '_').lower()}",
            f"{CAPTIONS[score]}, by concepts and by probes trained on the same samples, on "
            f"{analysis.short_name(records[0].model)}. Means and standard deviations over trials, in the last row "
            "over relations.",
            relations,
            counts | found,
            ("all", None, None, None, *map(analysis.overall, found.values())) if relations else (),
        )

    return tuple(map(table, CONCEPT_SCORES))


def unscored(records: Sequence[ConceptRecord]) -> str:
    """Return which relations were not scored, and why; an empty text if all were."""
    reasons = {record.relation: record.reason for record in records if record.relation not in _scored(records)}
    return "Not scored: " + "; ".join(f"{name}, {reason}" for name, reason in reasons.items()) + "." if reasons else ""


def plot_concepts(records: Sequence[ConceptRecord]) -> Figure:
    """Accuracy and causality of concepts and of probes by relation (Chanin et al., 2024).

    Accuracy is that of classifying unseen subjects, causality that of edits which replace one object's direction by
    another's. The mark is a random guess. Means and standard deviations over trials.
    """
    kinds = _scored(records)
    names = plotting.best_first(kinds, _scores(records, "accuracy", METHODS[0]))
    metrics = ("accuracy", "causality")
    figure, panels = plotting.rows(names, metrics, "mean over trials", 0.5)
    for axes, metric in zip(panels, metrics, strict=True):
        plotting.bars(axes, names, {name: _scores(records, metric, name) for name in METHODS})
    guesses = analysis.spreads((record.relation, 1 / record.objects) for record in records if not record.reason)
    plotting.guess_marks(panels[0], names, guesses)
    plotting.category_marks(panels[-1], names, kinds)
    plotting.legend(figure)
    return figure
