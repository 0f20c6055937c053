"""The section on linear relational concepts: classification of unseen subjects and steering, beside probes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lre_lightning.concepts.record import CONCEPT_SCORES, METHODS, STANDARDIZED, ConceptRecord
from lre_lightning.records import analysis
from lre_lightning.report import plotting
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Table, by_relation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lre_lightning.records.analysis import Means

CAPTIONS = {
    "accuracy": "Fraction of unseen subjects that are classified as their object",
    "macro F1": "Macro F1 of the classification of unseen subjects",
    "causality": "Fraction of edits, which replace one object's direction by another's, after which the LM answers the "
    "other object",
}


LEAST_TESTED = 5
"""Number of test samples from which a relation counts in means over relations."""


def concepts(records: Sequence[ConceptRecord]) -> Section:
    """Return concepts compared with probes by relation (Chanin et al., 2024, Tables 1 and 2)."""
    return Section("Concepts", (picture_of(plot_concepts, records),), concept_tables(records), unscored(records))


def _scores(records: Sequence[ConceptRecord], name: str, method: str) -> Means:
    return analysis.spreads((record.relation, record.score(name, method)) for record in records)


def _methods(records: Sequence[ConceptRecord]) -> list[str]:
    """Return the methods that were measured; of probes on raw and standardized states one if all scores are the same.

    That is the one on standardized states.
    """
    measured = [name for name in METHODS if any(name in record.correct for record in records)]
    scores = {name: [dict(_scores(records, score, name)) for score in CONCEPT_SCORES] for name in measured}
    return [name for name in measured if scores[name] != scores.get(STANDARDIZED.get(name, ""))]


def _scored(records: Sequence[ConceptRecord]) -> dict[str, str]:
    """Return the category of every relation that was scored."""
    return {record.relation: record.origin["category"] for record in records if not record.reason}


def concept_tables(records: Sequence[ConceptRecord]) -> tuple[Table, ...]:
    """Return a table for every score, with a row per relation and a column per method."""
    relations = _scored(records)
    counts: dict[str, dict[str, int]] = {}
    for label in ("objects", "trained", "tested"):
        spreads = analysis.spreads((record.relation, getattr(record, label)) for record in records if not record.reason)
        counts[label] = {relation: round(mean) for relation, (mean, _) in spreads.items()}

    scored = plotting.number_of(len(relations))
    enough = [relation for relation, count in counts["tested"].items() if count >= LEAST_TESTED]

    def table(score: str) -> Table:
        by_method = {method: _scores(records, score, method) for method in _methods(records)}
        means = ({name: mean for name, mean in scores.items() if name in enough} for scores in by_method.values())
        return by_relation(
            f"concepts_{score.replace(' ', '_').lower()}",
            f"{CAPTIONS[score]}, by concepts and by probes trained on the same samples, on "
            f"{analysis.short_name(records[0].model)}. Means and standard deviations over trials, in the last row "
            f"over the {len(enough)} of {scored} with at least {LEAST_TESTED} test samples.",
            relations,
            {**counts, **by_method},
            ("all", None, None, None, *map(analysis.overall, means)) if relations else (),
        )

    return tuple(map(table, CONCEPT_SCORES))


def unscored(records: Sequence[ConceptRecord]) -> str:
    """Return which relations were not scored, and why; an empty text if all were."""
    reasons = {record.relation: record.reason for record in records if record.relation not in _scored(records)}
    return "Not scored: " + "; ".join(f"{name}, {reason}" for name, reason in reasons.items()) + "." if reasons else ""


def plot_concepts(records: Sequence[ConceptRecord]) -> Figure:
    """Accuracy and causality of concepts and of probes by relation (Chanin et al., 2024).

    Accuracy is that of classifying unseen subjects, causality that of edits which replace one object's direction by
    another's. The mark is a random guess. Means over trials, with 95% intervals over samples and trials.
    """
    kinds = _scored(records)
    names = plotting.best_first(kinds, _scores(records, "accuracy", METHODS[0]))
    metrics = ("accuracy", "causality")
    methods = _methods(records)
    figure, panels = plotting.rows(names, metrics, "mean over trials", 0.12 * len(methods))
    for axes, metric in zip(panels, metrics, strict=True):
        plotting.bars(axes, names, {name: _scores(records, metric, name) for name in methods})
    guesses = analysis.spreads((record.relation, 1 / record.objects) for record in records if not record.reason)
    plotting.guess_marks(panels[0], names, guesses)
    plotting.category_marks(panels[-1], names, kinds)
    plotting.legend(figure)
    return figure
