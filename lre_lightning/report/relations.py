"""Sections on an LM's relations: scores by relation, category and template, and how the scores agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import Criterion, reselect
from lre_lightning.report import analysis, plotting
from lre_lightning.report.analysis import ALL, SCORES, ModelResults
from lre_lightning.report.plotting import LOOKS, Series
from lre_lightning.report.sections import Picture, Section, missing, picture_of
from lre_lightning.report.tables import Row, Table, alphabetical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MANY_KNOWN = 30
"""Number of known test samples from which the paper plots a relation as a filled dot."""


def relations(records: Sequence[TrialRecord]) -> Section:
    """Return the scores and hyperparameters by relation (table "hparams-gptj")."""
    any_of = {record.relation: record for record in records}
    scored = {record.relation: record for record in analysis.counted(records)}
    found = [analysis.per_relation(records, score) for score in SCORES.values()]

    def row(name: str) -> Row:
        record = scored.get(name)
        chosen = (record.layer, record.beta, record.rank) if record else (None, None, None)
        scores = (by_relation.get(name) for by_relation in found)
        return (name, any_of[name].range_size, *chosen, *scores, any_of[name].random_guess)

    guess, _ = analysis.over_relations(records, analysis.random_guess) or (None, None)
    mean = ("mean of the scored", None, None, None, None, *analysis.both_scores(records), guess)
    table = Table(
        "hyperparameters",
        f"LRE performance and hyperparameters by relation on {analysis.lm_of(records)}. Means and standard deviations "
        "over trials, in the last row over relations. Where scores are missing, the LM knows too few facts.",
        ("relation", "|range|", "layer", "β", "rank", *SCORES, "random guess"),
        (*map(row, alphabetical(any_of)), mean),
        totals=1,
        exact=("β",),
    )
    if not scored:
        note = "No relation was scored: the LM knows fewer than n test samples of each."
        return Section("Relations", tables=(table,), note=note)
    return Section("Relations", (picture_of(plot_relations, records),), (table,))


def plot_relations(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality of the LRE by relation, most faithful first (fig:faithfulness-by-rel).

    Means and standard deviations over trials; the mark is a random guess. Relations that were not scored are left out.
    """
    scored = {record.relation: record for record in analysis.counted(records)}
    series = [Series(name, LOOKS[name], analysis.per_relation(records, score)) for name, score in SCORES.items()]
    kinds = analysis.categories(records)
    names = plotting.best_first(scored, series[0].scores)
    without = len(kinds) - len(names)
    label = "mean over trials" + (f" ({plotting.number_of(without)} not scored)" if without else "")
    shown = [f"{name}  (layer {scored[name].layer})" for name in names]
    figure, (axes,) = plotting.rows(shown, [""], label, 0.3)
    plotting.bars(axes, names, series, 0.4, 0.38)
    plotting.guess_marks(axes, names, analysis.per_relation(records, analysis.random_guess))
    plotting.category_marks(axes, names, kinds)
    plotting.legend(figure, [axes])
    return figure


def categories(model: ModelResults) -> Section:
    """Return the scores by category of relations (figure "lre_other_models")."""
    counts = Counter(analysis.categories(analysis.counted(model.main)).values())
    found = [analysis.per_category(model.main, score) for score in SCORES.values()]
    names = dict.fromkeys(analysis.categories(model.main).values())
    table = Table(
        "categories",
        f"LRE performance by category of relations on {analysis.lm_of(model.main)}. Means and standard deviations over "
        "the relations that were scored.",
        ("category", "relations scored", *SCORES),
        (
            *((name, counts[name], *(scores.get(name) for scores in found)) for name in names),
            ("all", counts.total(), *(scores.get(ALL) for scores in found)),
        ),
        totals=1,
    )
    return Section("Categories", (picture_of(plot_categories, [model]),), (table,))


def plot_categories(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness and causality by category of relations (fig:lre_other_models).

    Means and standard deviations over relations.
    """
    scored = [record for model in models for record in analysis.counted(model.main)]
    plotting.need(scored, "no relation was scored for any LM")
    rows = [*dict.fromkeys(record.category for record in scored), ALL]
    labels = analysis.names_of(models)
    figure, panels = plotting.rows(rows, list(SCORES), plotting.MEAN, 0.25 + 0.2 * len(models))
    for axes, score in zip(panels, SCORES.values(), strict=True):
        series = [
            Series(plotting.text(label), plotting.style(index), analysis.per_category(model.main, score))
            for index, (label, model) in enumerate(zip(labels, models, strict=True))
        ]
        plotting.bars(axes, rows, series, 0.8 / len(models), 0.8 / len(models))
    plotting.legend(figure, panels, columns=4 if all(len(label) < 24 for label in labels) else 2)
    return figure


def agreement(records: Sequence[TrialRecord]) -> Section:
    """Return the agreement of both scores by what chose layer and rank (figures "faith_vs_edit", "scatter_faith")."""

    def row(criterion: Criterion) -> Row:
        chosen = reselect(records, criterion)
        pairs = analysis.paired(chosen, analysis.causality, analysis.faithfulness)
        signs = Counter((causal > faithful) - (causal < faithful) for causal, faithful in pairs)
        scores = analysis.both_scores(chosen)
        return (criterion, analysis.agreement(chosen), len(pairs), *scores, signs[1], signs[0], signs[-1])

    def picture(criterion: Criterion) -> Picture:
        note = f"Layer and rank are chosen by {criterion}."
        chosen, title = reselect(records, criterion), f"Chosen by {criterion}"
        return picture_of(plot_scatter, chosen, title, name=f"scatter_by_{criterion}", note=note)

    table = Table(
        "correlations",
        f"Correlation (Pearson's R) of faithfulness and causality over relations on {analysis.lm_of(records)} by the "
        "score that chose layer and rank, and the number of relations whose causality is above, equal to and below "
        "their faithfulness. Means and standard deviations over relations.",
        ("chosen by", "R", "relations", *SCORES, "above", "equal", "below"),
        (row("causality"), row("faithfulness")),
    )
    title = "Agreement of faithfulness and causality"
    return Section(title, (picture("causality"), picture("faithfulness")), (table,))


def plot_scatter(records: Sequence[TrialRecord], title: str = "") -> Figure:
    """Faithfulness against causality, a dot per relation (fig:faith_vs_edit).

    Dots are filled where the LM knows 30 or more test samples, on average over trials. The relations farthest from the
    diagonal are named.
    """
    faithful, causal = (analysis.per_relation(records, score) for score in SCORES.values())
    points = {name: (faithful[name][0], causal[name][0]) for name in faithful if name in causal}
    plotting.need(points, "no relation has both faithfulness and causality")
    figure = plotting.new_figure(8.5, 6)
    axes = figure.subplots()
    known = analysis.known_facts(analysis.counted(records))
    filled = {name for name in points if known[name][0] >= MANY_KNOWN}
    plotting.scatter(axes, points, analysis.categories(records), filled)
    axes.set(xlabel="faithfulness", ylabel="causality")
    r = plotting.r_of(analysis.agreement(records))
    axes.set_title(f"{plotting.text(title)}, {r}" if title else r)
    for face, label in ((plotting.GREY, f"{MANY_KNOWN} or more known samples"), ("none", "fewer known samples")):
        axes.plot([], [], "o", color=plotting.GREY, markerfacecolor=face, linestyle="none", label=label)
    figure.legend(loc="outside right upper", frameon=False)
    distance = {name: abs(y - x) for name, (x, y) in points.items() if abs(y - x) > 0.1}
    plotting.label_points(figure, axes, points, sorted(distance, key=lambda name: -distance[name])[:6])
    return figure


def underestimation(records: Sequence[TrialRecord]) -> Section:
    """Return the extent to which W underestimates the change of F between subjects (table "line_int")."""
    title = "Why β is above 1"
    used: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for record in analysis.counted(records):
        used[record.relation] += len(analysis.change_ratios(record))
        pairs[record.relation] += len(record.line_integrals)
    if not pairs.total():
        return missing(title, "How much W underestimates changes of F was", "--model.fitting.line_integrals 10")
    ratios = analysis.underestimation(records)
    table = Table(
        "underestimation",
        "Ratio between the actual change of F from one subject to another and the change that W estimates on "
        f"{analysis.lm_of(records)}. Means and standard deviations over pairs of subjects; pairs whose estimate is not "
        "positive are left out.",
        ("relation", "pairs", "left out", "underestimation ratio"),
        tuple(
            (name, used[name], pairs[name] - used[name], ratios.get(name))
            for name in alphabetical(pairs)
            if pairs[name]
        ),
        digits=3,
    )
    return Section(title, (picture_of(plot_underestimation, records),), (table,))


def plot_underestimation(records: Sequence[TrialRecord]) -> Figure:
    """Ratio of the actual change of F from one subject to another to the change that W estimates (table "line_int").

    Means and standard deviations over pairs of subjects; at 1 nothing is underestimated.
    """
    ratios = analysis.underestimation(records)
    plotting.need(ratios, "the records hold no line integrals")
    kinds = analysis.categories(records)
    names = sorted(ratios, key=lambda name: -ratios[name][0])
    figure, (axes,) = plotting.rows(names, [""], "underestimation ratio, mean over pairs of subjects", 0.24)
    plotting.dots(axes, names, [Series("", LOOKS["faithfulness"], ratios)])
    plotting.deviations(axes, [(row, *ratios[name]) for row, name in enumerate(names)])
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    plotting.category_marks(axes, names, kinds)
    return figure


def templates(model: ModelResults) -> Section:
    """Return the scores by prompt template, of the relations with several (table "prompt_template")."""
    found: dict[str, list[Row]] = {}
    for _, records in sorted(model.by_template.items()):
        scores = [analysis.per_relation(records, score) for score in SCORES.values()]
        texts = {record.relation: record.template for record in analysis.counted(records)}
        for name, template in texts.items():
            found.setdefault(name, []).append((name, template, *(by_relation.get(name) for by_relation in scores)))
    several = [name for name in alphabetical(found) if len(found[name]) > 1]
    if not several:
        return missing("Prompt templates", "Other templates were", "--data.prompts.template 1")
    table = Table(
        "templates",
        f"LRE performance by prompt template on {analysis.lm_of(model.main)}, with {{}} in place of the subject. Means "
        "and standard deviations over trials.",
        ("relation", "prompt template", *SCORES),
        tuple(row for name in several for row in found[name]),
    )
    return Section("Prompt templates", (picture_of(plot_templates, model.by_template),), (table,))


def plot_templates(by_template: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by relation and prompt template (compare table prompt_template).

    Means over trials, for the relations with several templates.
    """
    groups = sorted(by_template.items())
    found = {
        metric: [
            Series(f"template {index}", plotting.style(i), analysis.per_relation(records, score))
            for i, (index, records) in enumerate(groups)
        ]
        for metric, score in SCORES.items()
    }
    kinds = analysis.categories(record for _, records in groups for record in analysis.counted(records))
    counts = Counter(name for series in found["faithfulness"] for name in series.scores)
    several = {name: kind for name, kind in kinds.items() if counts[name] > 1}
    return plotting.dotted_rows(found, plotting.best_first(several, found["faithfulness"][0].scores), several)
