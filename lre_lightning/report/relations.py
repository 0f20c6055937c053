"""Sections on an LM's relations: scores by relation, category and template, and how the scores agree."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.grid import spans
from lre_lightning.records import analysis, choices
from lre_lightning.records.analysis import ALL, SCORES, ModelResults
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import Criterion, headline, nested, reselect
from lre_lightning.report import plotting
from lre_lightning.report.sections import Picture, Section, missing, picture_of
from lre_lightning.report.tables import Cell, Row, Table, alphabetical, by_relation, rows_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONSTANT_TEXT = (
    "Answers that are the same for all subjects: b alone is the LRE without W, the majority the most frequent first "
    "token of the objects of the training samples, or of all samples."
)
NESTED = (
    "Nested: each trial at the layer and rank that the relation's other trials choose by causality, so that chance in "
    "its own scores is not part of the choice. "
)
MANY_KNOWN = 30
"""Number of known test samples from which the paper plots a relation as a filled dot."""


def choice_text(records: Sequence[TrialRecord]) -> str:
    """Return which trials' scores are shown at the layers and ranks that were chosen: see `selection.headline`."""
    scored = headline(analysis.counted(records))
    names, own = analysis.categories(scored), analysis.categories(record for record in scored if record.chose)
    if not own:
        return "Scores are those of trials that took no part in the choice of layer and rank."
    if len(own) == len(names):
        return "Scores are those of the trials that chose layer and rank, which look better there than those of others."
    return (
        "Scores are those of trials that took no part in the choice of layer and rank, and where there is none "
        f"({plotting.number_of(len(own))}) those of the trials that chose, which look better there."
    )


def relations(records: Sequence[TrialRecord]) -> Section:
    """Return the scores and hyperparameters by relation (table "hparams-gptj")."""
    scored = {record.relation: record for record in analysis.counted(records)}
    axes = {"layer": "layer", "β": "beta", "rank": "rank"}
    constant = analysis.constant(records)
    choosing = {
        f"{name} where chosen": means
        for name, means in analysis.both_by_relation([record for record in records if record.chose]).items()
        if means
    }
    columns: dict[str, Mapping[str, Cell]] = {
        "|range|": {record.relation: record.range_size for record in records},
        **{label: {name: getattr(record, axis) for name, record in scored.items()} for label, axis in axes.items()},
        **analysis.both_by_relation(records),
        **choosing,
        "random guess": {record.relation: record.random_guess for record in records},
        **constant,
    }
    guess, _ = analysis.over_relations(records, analysis.random_guess) or (None, None)
    scores = (*analysis.both_scores(records), *map(analysis.overall, choosing.values()))
    means = ("mean of the scored", None, None, None, None, *scores, guess)
    alike = {record.relation: None for record in records if not record.told_apart}
    table = by_relation(
        "hyperparameters",
        f"LRE performance and hyperparameters by relation on {analysis.lm_of(records)}. Means and standard deviations "
        f"over trials, in the last row over relations. {choice_text(records)} Where chosen: those of the trials "
        "that chose. Where scores are missing, the LM knows too few facts."
        + (" " + CONSTANT_TEXT if constant else "")
        + "".join(f" Those of {name} are missing, as all objects begin with the same token." for name in alike),
        analysis.categories(records),
        columns,
        (*means, *map(analysis.overall, constant.values())),
        exact=("β",),
    )
    if not scored:
        note = "No relation was scored: the LM knows fewer than n test samples of each."
        return Section("Relations", tables=(table,), note=note)
    return Section("Relations", (picture_of(plot_relations, records),), (table, *chosen_layers(records)))


def chosen_layers(records: Sequence[TrialRecord]) -> tuple[Table, ...]:
    """Return what the choice of layers rests on; nothing where a relation had one layer, and one trial."""
    scored = {record.relation: record for record in analysis.counted(records)}
    good, others = choices.as_good_layers(records), nested(analysis.counted(records))
    scores = analysis.both_by_relation(records)
    scores |= {f"{name}, nested": means for name, means in analysis.both_by_relation(others).items() if means}
    columns: dict[str, Mapping[str, Cell]] = {
        "layer": {name: str(record.layer) for name, record in scored.items()},
        "layers as good": {name: spans(layers, analysis.layers_of(records)) for name, layers in good.items()},
        **scores,
    }
    if not others and len(analysis.layers_of(records)) < 2:
        return ()
    return (
        by_relation(
            "choices",
            f"What the choice of layers rests on, on {analysis.lm_of(records)}. Layers as good: those whose causality "
            "at the relation's rank the data can't tell from that of the best (95% interval of the difference). "
            + (NESTED if others else "")
            + f"{choice_text(records)} Means and standard deviations over trials, in the last row over relations.",
            scored,
            columns,
            ("mean", None, None, *map(analysis.overall, scores.values())),
        ),
    )


def plot_relations(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality of the LRE by relation, most faithful first (fig:faithfulness-by-rel).

    Means over trials, with 95% intervals over samples and trials. The marks are answers without the subject: a random
    guess, b without W, and the most frequent objects. Relations that were not scored are left out.
    """
    scored = {record.relation: record for record in analysis.counted(records)}
    series = analysis.both_by_relation(records)
    kinds = analysis.categories(records)
    names = plotting.best_first(scored, series["faithfulness"])
    without = len(kinds) - len(names)
    label = "mean over trials" + (f" ({plotting.number_of(without)} not scored)" if without else "")
    shown = [f"{name}  (layer {scored[name].layer})" for name in names]
    figure, (axes,) = plotting.rows(shown, [""], label, 0.3)
    plotting.bars(axes, names, series)
    plotting.guess_marks(axes, names, analysis.per_relation(records, analysis.random_guess))
    plotting.constant_marks(axes, names, analysis.constant(records))
    plotting.category_marks(axes, names, kinds)
    plotting.legend(figure)
    return figure


def categories(model: ModelResults) -> Section:
    """Return the scores by category of relations (figure "lre_other_models")."""
    counts = Counter(analysis.categories(analysis.counted(model.main)).values())
    names = dict.fromkeys(analysis.categories(model.main).values())
    counted = {name: counts[name] for name in names} | {ALL: counts.total()}
    scores = [analysis.per_category(model.main, score) for score in SCORES.values()]
    *rows, (_, *last) = rows_of(counted, counted, *scores)
    table = Table(
        "categories",
        f"LRE performance by category of relations on {analysis.lm_of(model.main)}. Means and standard deviations over "
        "the relations that were scored.",
        ("category", "relations scored", *SCORES),
        (*rows, ("all", *last)),
        totals=1,
    )
    return Section("Categories", (picture_of(plot_categories, [model]),), (table,))


def plot_categories(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness and causality by category of relations (fig:lre_other_models).

    Means over relations, with 95% intervals where there are five or more.
    """
    rows = [*dict.fromkeys(record.category for model in models for record in analysis.counted(model.main)), ALL]
    by_name = analysis.named(models)
    figure, panels = plotting.rows(rows, list(SCORES), plotting.MEAN, 0.25 + 0.2 * len(models))
    for axes, score in zip(panels, SCORES.values(), strict=True):
        scores = {plotting.text(name): analysis.per_category(model.main, score) for name, model in by_name.items()}
        plotting.bars(axes, rows, scores)
    plotting.legend(figure, columns=4 if all(len(name) < 24 for name in by_name) else 2)
    return figure


def agreement(records: Sequence[TrialRecord]) -> Section:
    """Return the agreement of both scores by what chose layer and rank (figures "faith_vs_edit", "scatter_faith")."""
    chosen = {"the fit": analysis.counted(records)}
    criteria: tuple[Criterion, ...] = ("faithfulness", "causality")
    chosen |= {criterion: reselect(records, criterion) for criterion in criteria}

    def row(chooser: str) -> Row:
        names, pairs = analysis.joint(*reversed(analysis.both_by_relation(chosen[chooser]).values()))
        signs = Counter((causal > faithful) - (causal < faithful) for causal, faithful in pairs.tolist())
        scores = analysis.both_scores(chosen[chooser])
        return (chooser, analysis.agreement(chosen[chooser]), len(names), *scores, signs[1], signs[0], signs[-1])

    def picture(chooser: str) -> Picture:
        own = chooser == "the fit"
        note = f"Layer and rank are chosen by {'the fit' if own else f'{chooser}, after the last trial'}."
        name = "scatter" if own else f"scatter_by_{chooser}"
        return picture_of(plot_scatter, chosen[chooser], f"Chosen by {chooser}", name=name, note=note)

    table = Table(
        "correlations",
        f"Correlation (Pearson's R) of faithfulness and causality over relations on {analysis.lm_of(records)}, and the "
        "number of relations whose causality is above, equal to and below their faithfulness, by what chose layer and "
        "rank: the fit, as in the rest of the report, or one of the scores, after the last trial, in the trials that "
        f"were scored on the whole grid. By the fit: {choice_text(records)} Means and standard deviations over "
        "relations.",
        ("chosen by", "R", "relations", *SCORES, "above", "equal", "below"),
        tuple(map(row, chosen)),
    )
    return Section("Agreement of faithfulness and causality", tuple(map(picture, chosen)), (table,))


def plot_scatter(records: Sequence[TrialRecord], title: str = "") -> Figure:
    """Faithfulness against causality, a dot per relation (fig:faith_vs_edit).

    Dots are filled where the LM knows 30 or more test samples, on average over trials. The relations farthest from the
    diagonal are named.
    """
    faithful, causal = analysis.both_by_relation(records).values()
    points = {name: (faithful[name][0], causal[name][0]) for name in faithful if name in causal}
    figure = plotting.new_figure(8.5, 6)
    axes = figure.subplots()
    known = analysis.spreads((record.relation, record.known) for record in analysis.counted(records))
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


def templates(model: ModelResults) -> Section:
    """Return the scores by prompt template, of the relations with several (table "prompt_template")."""
    rows_of_relation: dict[str, list[Row]] = {}
    for _, records in sorted(analysis.same_trials(model.by_template).items()):
        texts = {record.relation: record.template for record in records}
        for row in rows_of(texts, texts, *analysis.both_by_relation(records).values()):
            rows_of_relation.setdefault(str(row[0]), []).append(row)
    several = [name for name in alphabetical(rows_of_relation) if len(rows_of_relation[name]) > 1]
    if not several:
        return missing("Prompt templates", "Other templates were", "--data.prompts.template 1")
    table = Table(
        "templates",
        f"LRE performance by prompt template on {analysis.lm_of(model.main)}, with {{}} in place of the subject. Means "
        "and standard deviations over trials, the same ones for all templates of a relation.",
        ("relation", "prompt template", *SCORES),
        tuple(row for name in several for row in rows_of_relation[name]),
    )
    return Section("Prompt templates", (picture_of(plot_templates, model.by_template),), (table,))


def plot_templates(by_template: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by relation and prompt template (compare table prompt_template).

    Means over trials, for the relations with several templates.
    """
    groups = dict(sorted(analysis.same_trials(by_template).items()))
    scores = {f"template {index}": analysis.both_by_relation(records) for index, records in groups.items()}
    by_metric = {metric: {name: both[metric] for name, both in scores.items()} for metric in SCORES}
    first, *others = by_metric["faithfulness"].values()
    counts = Counter(itertools.chain(first, *others))
    kinds = analysis.categories(analysis.counted(itertools.chain(*groups.values())))
    several = {name: kind for name, kind in kinds.items() if counts[name] > 1}
    return plotting.dotted_rows(by_metric, plotting.best_first(several, first), several)
