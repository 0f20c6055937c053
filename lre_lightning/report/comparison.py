"""Sections that compare several LMs, and the dataset's relations with what LMs know of them."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.records import analysis, pairs
from lre_lightning.records.analysis import SCORES, Means, ModelResults
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import LOOKS, Style
from lre_lightning.report.relations import plot_categories
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Row, Table, alphabetical, rows_of
from lre_lightning.statistics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


SIDE_BY_SIDE = 6
"""The largest number of LMs that figures show side by side."""


def paired(models: Sequence[ModelResults]) -> Section:
    """Return the differences of LMs in pairs: over the relations that both have, and the samples that both know."""
    combined = list(itertools.combinations(analysis.named(models).items(), 2))
    rows = [(lm, other_lm, *row) for (lm, x), (other_lm, y) in combined for row in _differences(x.main, y.main)]
    by_relation = [
        (relation, lm, other_lm, *cells)
        for (lm, x), (other_lm, y) in combined
        for relation, *cells in _differences_by_relation(x.main, y.main)
    ]
    summary = Table(
        "paired",
        "LMs compared in pairs, in the trials that both have, without those that chose layer and rank for one of them "
        "if there are others: the first's score less the other's. By relation: the mean over the relations that both "
        "have a score of, and in how many of them it is higher and lower. By sample: over the test samples that both "
        "know, in the same trials, each of the same weight (means over trials); missing in results of earlier "
        "versions. Intervals (95%, bootstrap over relations) with 0 in them can't tell the LMs apart.",
        ("LM", "other LM", "score", "relations", "difference", "higher", "lower", "samples", "difference by sample"),
        tuple(rows),
        digits=2,
    )
    each = Table(
        "paired_by_relation",
        "LMs compared in pairs on the samples of each relation that both know, and for causality on the edits that "
        "both have, in the same trials: the first's score less the other's, with Newcombe's paired interval over "
        "samples. Numbers are means over trials.",
        (
            "relation",
            "LM",
            "other LM",
            *(head for name in SCORES for head in (f"{name}: samples", f"{name}: difference")),
        ),
        tuple(by_relation) if len(models) <= SIDE_BY_SIDE else (),
    )
    return Section("LMs in pairs", tables=(summary, each))


def _differences(own: Sequence[TrialRecord], others: Sequence[TrialRecord]) -> Iterator[Row]:
    """Yield for each score its difference over relations, and over the samples that both LMs know."""
    own, others = analysis.same_trials({0: own, 1: others}).values()
    for name, score in SCORES.items():
        first, second = (analysis.per_relation(records, score) for records in (own, others))
        relations, difference = pairs.difference_by_relation(first, second)
        apart = [first[relation].value - second[relation].value for relation in relations]
        signs = (sum(value * sign > 1e-12 for value in apart) for sign in (1, -1))
        shared = list(pairs.shared_samples(own, others, name).values())
        known = sum(pair.total for pair in shared) or None
        yield (name, len(relations), difference, *signs, known, pairs.difference_by_sample(shared))


def _differences_by_relation(own: Sequence[TrialRecord], others: Sequence[TrialRecord]) -> Iterator[Row]:
    """Yield each relation that has shared samples, with their number and the difference on them by score."""
    own, others = analysis.same_trials({0: own, 1: others}).values()
    by_score = [pairs.shared_samples(own, others, name) for name in SCORES]
    for relation in alphabetical({name for shared in by_score for name in shared}):
        cells = [shared.get(relation) for shared in by_score]
        scores = ((pair.total, pair.difference) if pair else (None, None) for pair in cells)
        yield (relation, *itertools.chain.from_iterable(scores))


def comparison(models: Sequence[ModelResults]) -> tuple[Section, ...]:
    """Return the main scores of several LMs, and their agreement (appendix "models"); of many LMs, tables alone."""
    means = _faithful(models)
    overview = Table(
        "models",
        "LRE performance on different LMs, and the correlation (Pearson's R) of faithfulness and causality. Means and "
        "standard deviations over the relations that were scored.",
        ("LM", "n", "relations scored", *SCORES, "R"),
        tuple(
            (name, lm.main[0].n_shot, len(means[name]), *analysis.both_scores(lm.main), analysis.agreement(lm.main))
            for name, lm in analysis.named(models).items()
        ),
    )
    agreement = Table(
        "model_agreement",
        "Spearman's rank correlation of faithfulness over relations between LMs, over the relations that both have.",
        ("LM", "other LM", "Spearman's R", "relations"),
        tuple(
            (lm, other_lm, analysis.correlation(x, y, ranks=True), len(x.keys() & y))
            for (lm, x), (other_lm, y) in itertools.combinations(means.items(), 2)
        ),
    )
    if len(models) > SIDE_BY_SIDE:
        return (Section("LMs", tables=(overview,)), Section("Agreement of LMs", tables=(agreement,)))
    by_category = picture_of(plot_categories, models, name="models_by_category")
    return (
        Section("LMs by category", (by_category,), (overview,)),
        Section("LMs by relation", (picture_of(plot_models_by_relation, models),)),
        Section("Agreement of LMs", (picture_of(plot_model_agreement, models),), (agreement,)),
    )


def _faithful(models: Sequence[ModelResults]) -> dict[str, Means]:
    """Return the faithfulness of each LM by relation."""
    by_name = analysis.named(models).items()
    return {name: analysis.per_relation(model.main, analysis.faithfulness) for name, model in by_name}


def _rows(
    models: Sequence[ModelResults], first: Mapping[str, Estimate], xlabel: str
) -> tuple[Figure, list[Axes], list[str]]:
    """Return a figure with a panel per LM and a row per relation of any LM, by falling scores of the first LM."""
    kinds = analysis.categories(record for model in models for record in model.main)
    names = plotting.best_first(kinds, first)
    figure, panels = plotting.rows(names, analysis.names_of(models), xlabel, 0.24)
    plotting.category_marks(panels[-1], names, kinds)
    return figure, panels, names


def plot_models_by_relation(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness on several LMs by relation, in the order of the first LM (fig:faith_other).

    Means over trials, with 95% intervals over samples and trials. The mark is a random guess;
    relations that were not scored are grey.
    """
    faithfulness = list(_faithful(models).values())
    figure, panels, names = _rows(models, faithfulness[0], "faithfulness, mean over trials")
    for axes, model, scores in zip(panels, models, faithfulness, strict=True):
        plotting.bars(axes, names, {"": scores})
        plotting.guess_marks(axes, names, analysis.per_relation(model.main, analysis.random_guess))
        for row in (row for row, name in enumerate(names) if name not in scores):
            axes.axhspan(row - 0.45, row + 0.45, color=plotting.GREY, alpha=0.2, linewidth=0, zorder=0.5)
            axes.text(0.03, row, "not scored", fontsize=7, color=plotting.GREY, style="italic", va="center")
    plotting.legend(figure)
    return figure


def plot_model_agreement(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness by relation on one LM against another, with Spearman's rank correlation (app:models)."""
    pairs = list(itertools.combinations(_faithful(models).items(), 2))
    columns = min(len(pairs), 3)
    height = 3.35 if columns > 2 else 4
    figure, panels = plotting.panel_grid(len(pairs), columns, max(8, 3.4 * columns), height, shared=False)
    kinds = analysis.categories(record for model in models for record in model.main)
    for axes, ((lm, x), (other_lm, y)) in zip(panels, pairs, strict=True):
        points = {name: (x[name][0], y[name][0]) for name in x if name in y}
        plotting.scatter(axes, points, kinds, set(points))
        axes.set_xlabel(plotting.text(f"faithfulness, {lm}", 30), fontsize=9)
        axes.set_ylabel(plotting.text(f"faithfulness, {other_lm}", 30), fontsize=9)
        r = plotting.r_of(analysis.correlation(x, y, ranks=True))
        axes.set_title(f"{r} ({plotting.number_of(len(points))})", fontsize=10)
    plotting.legend(figure)
    return figure


def dataset(models: Sequence[ModelResults]) -> Section:
    """Return numbers of samples and known facts (tables "dataset", "full-dataset" and "first_token_filter")."""
    *tables, tokens = dataset_tables(models)
    shown = (*tables, *([tokens] if len(tokens.rows) > 1 else []))
    pictures = (picture_of(plot_known, models),) if len(models) <= SIDE_BY_SIDE else ()
    return Section("Relations and known facts", pictures, shown)


def plot_known(models: Sequence[ModelResults]) -> Figure:
    """Test samples whose object the LM itself predicts, the only ones that count (compare table full-dataset).

    Means over trials, with 95% intervals over samples and trials, grey where a relation was not scored.
    """
    known_by_lm = [analysis.known(model.main) for model in models]
    figure, panels, names = _rows(models, known_by_lm[0], "known facts, fraction of the test samples, mean over trials")
    for axes, model, known in zip(panels, models, known_by_lm, strict=True):
        scored = analysis.categories(analysis.counted(model.main))
        for label, look in (("scored", LOOKS["faithfulness"]), ("not scored", Style("#BBBBBB", hatch="////"))):
            shown = {name: known[name] for name in known if (name in scored) == (label == "scored")}
            plotting.bars(axes, names, {label: shown}, [look])
    plotting.legend(figure)
    return figure


def dataset_tables(models: Sequence[ModelResults]) -> tuple[Table, Table, Table]:
    """Return the tables "dataset", "full-dataset" and "first_token_filter" of records, scored or not."""
    relations = {record.relation: record for model in reversed(models) for record in reversed(model.main)}
    kinds = list(dict.fromkeys(record.category for model in models for record in model.main))
    ordered = sorted(relations.values(), key=lambda r: (kinds.index(r.category), -r.samples, r.relation))
    known = []  # of the relations of which the LM knows at least n test samples
    for model in models:
        facts = analysis.spreads((record.relation, record.known) for record in model.main)
        known.append({name: count for name, count in facts.items() if count[0] >= model.main[0].n_shot})

    def row(name: str, members: Sequence[TrialRecord]) -> Row:
        counts = (sum((facts[r.relation][0] for r in members if r.relation in facts), 0.0) for facts in known)
        return (name, len(members), sum(record.samples for record in members), *counts)

    heads = [f"known by {name}" for name in analysis.names_of(models)]
    by_category = Table(
        "dataset",
        "Relations and samples by category, and test samples that the LM knows, summed over relations after taking the "
        "mean over trials. Relations of which an LM knows fewer than n test samples count as 0.",
        ("category", "relations", "samples", *heads),
        (
            *(row(kind, [record for record in ordered if record.category == kind]) for kind in kinds),
            row("all", ordered),
        ),
        totals=1,
        digits=1,
    )
    by_relation = Table(
        "full_dataset",
        "Samples per relation, and test samples that LMs answer correctly. Means and standard deviations over trials "
        "with different training examples; none where an LM knows fewer than n.",
        ("category", "relation", "samples", *heads),
        tuple((r.category, r.relation, r.samples, *(facts.get(r.relation) for facts in known)) for r in ordered),
        digits=1,
    )
    return by_category, by_relation, _first_tokens(models, {name: r.range_size for name, r in relations.items()})


def _first_tokens(models: Sequence[ModelResults], sizes: Mapping[str, int]) -> Table:
    """Return how many objects their first tokens tell apart, given the number of objects by relation."""
    counts = [{r.relation: r.first_tokens for r in model.main if r.first_tokens is not None} for model in models]
    percent = [{name: 100 * count / sizes[name] for name, count in objects.items()} for objects in counts]
    measured = [relation for relation in alphabetical(sizes) if any(relation in objects for objects in counts)]
    ambiguous = [name for name in measured if any(percentages.get(name, 100) < 100 for percentages in percent)]
    columns = [kind for pair in zip(percent, counts, strict=True) for kind in pair]
    unique = f"relations where all objects are uniquely identified ({len(measured) - len(ambiguous)})"
    means = [statistics.fmean(percentages.values()) if percentages else None for percentages in percent]
    return Table(
        "first_tokens",
        "Range (number of distinct objects) by relation, the percentage of objects that their first token identifies "
        "when tokenized for each LM, and the number of distinct first tokens.",
        ("relation", "|range|", *(f"{name} {unit}" for name in analysis.names_of(models) for unit in ("%", "tokens"))),
        (
            *rows_of(ambiguous, sizes, *columns),
            *([(unique, None, *(100.0, None) * len(models))] if len(ambiguous) < len(measured) else []),
            ("average", None, *(cell for mean in means for cell in (mean, None))),
        ),
        totals=1,
        digits=1,
    )
