"""Sections on the scores over layers, ranks, betas and numbers of examples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lre_lightning.grid import place_of
from lre_lightning.records import analysis, choices
from lre_lightning.records.analysis import SCORES, ModelResults, Score, Sweep
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import LOOKS, MEAN, STYLES, Style
from lre_lightning.report.relations import CONSTANT_TEXT, choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CONSTANT_LOOKS = {
    "b alone": Style(plotting.GREY, "", "-"),
    "majority of training": Style(plotting.GREY, "", "--"),
    "majority of data": Style(plotting.GREY, "", ":"),
}
"""The looks of answers that are the same for all subjects."""


def sweep_table(name: str, caption: str, axis: str, sweeps: Mapping[str, Sweep]) -> Table:
    """Return a table of means over relations, with a row per point of an axis and a column per sweep along it.

    A column is over the relations that have a score at every point.
    """
    sweeps = {label: analysis.throughout(sweep) for label, sweep in sweeps.items()}
    points = next(iter(sweeps.values()))
    count = max(len(means) for sweep in sweeps.values() for means in sweep.values())
    rows = tuple((point, *(analysis.overall(sweep[point]) for sweep in sweeps.values())) for point in points)
    over = f"Means and standard deviations over {plotting.number_of(count)}."
    return Table(name, f"{caption} {over}", (axis, *sweeps), rows)


def identity_text(records: Sequence[TrialRecord]) -> str:
    """Return what is to be said of layers at which W is the identity, after a space; nothing if there is none."""
    layers = ", ".join(map(str, sorted(analysis.at_identity(records), key=place_of)))
    why = "prompts end with their subjects, so that s is o and W the identity: choices leave it out."
    return f" At layer {layers} {why}" if layers else ""


def plot_layer_grid(
    series: Mapping[str, tuple[Sequence[TrialRecord], Score]], names: Sequence[str], ylabel: str
) -> Figure:
    """Plot a score of records by layer for each label: a panel for the mean over relations, and one per relation.

    The mean is over the relations that have the score at every layer.
    """
    layers = analysis.layers_of([record for records, _ in series.values() for record in records])
    figure, panels = plotting.layer_grid([MEAN, *names], layers, ylabel)
    for look, (label, (records, score)) in zip(STYLES, series.items(), strict=False):
        means = analysis.by_layer(analysis.on_most(records, "layers"), score)
        plotting.mean_curve(panels[0], analysis.throughout(means), look, label)
        by_layer = analysis.by_layer(records, score)
        for axes, name in zip(panels[1:], names, strict=True):
            plotting.relation_curve(axes, by_layer, name, look, label)
    plotting.legend(figure)
    return figure


def layers(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by layer (figure "sweep")."""
    kept = analysis.on_most(records, "layers")
    if len(analysis.layers_of(kept)) < 2:
        return missing("Layers", "Other layers were", "several --model.layers")
    caption = f"LRE performance by layer of {analysis.lm_of(records)}, with the relations' ranks."
    caption += f" {choice_text(kept)}{identity_text(kept)}"
    table = sweep_table("layers", caption, "layer", _by_layer(records) | analysis.constant_by_layer(kept))
    said = [analysis.says_more(kept, layer) for layer in analysis.layers_of(kept)]
    if any(said):
        rows = zip(table.rows, said, strict=True)
        table = replace(
            table,
            caption=f"{table.caption} {CONSTANT_TEXT} Says more: relations whose interval of faithfulness is above all "
            "of these. At a layer without such a relation, a constant answer may do as well as the LRE.",
            columns=(*table.columns, "says more"),
            rows=tuple((*row, count and f"{count[0]} of {count[1]}") for row, count in rows),
        )
    note = f"{choice_text(kept)}{identity_text(kept)}"
    several = len({record.relation for record in kept}) > 1  # the mean over one relation is its own curve
    plots = (plot_layers, plot_layers_by_relation) if several else (plot_layers_by_relation,)
    pictures = tuple(picture_of(plot, records, note=note) for plot in plots)
    return Section("Layers", pictures, (table,))


def _by_layer(records: Sequence[TrialRecord]) -> dict[str, Sweep]:
    kept = analysis.on_most(records, "layers")
    return {name: analysis.by_layer(kept, score) for name, score in SCORES.items()}


def _mean_curves(
    sweeps: Mapping[str, Sweep], xlabel: str, without_s: Mapping[str, Sweep] | None = None
) -> tuple[Figure, Axes]:
    """Plot faithfulness and causality, with the number of relations, and answers that are the same for all subjects."""
    figure = plotting.new_figure(8, 4.2)
    axes = figure.subplots()
    for label, sweep in sweeps.items():
        plotting.mean_curve(axes, analysis.throughout(sweep), LOOKS[label], label, with_count=True)
    for label, sweep in (without_s or {}).items():
        means = analysis.throughout(sweep)
        points = {point: score for point in means if (score := analysis.overall(means[point]))}
        plotting.curve(axes, points, CONSTANT_LOOKS[label], label)
    plotting.fraction_axis(axes, "y")
    axes.set(xlabel=xlabel, ylabel=MEAN)
    plotting.legend(figure)
    return figure, axes


def plot_layers(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer (compare fig:sweep).

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank; grey are answers
    that are the same for all subjects.
    """
    kept = analysis.on_most(records, "layers")
    figure, axes = _mean_curves(_by_layer(records), "layer", analysis.constant_by_layer(kept))
    plotting.layer_axis(axes, kept[0].layers, 16)
    return figure


def plot_layers_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer for each relation, most faithful first (fig:sweep).

    Means over the trials that were scored at all layers, with their 95% intervals shaded; the lines are the chosen
    layer and the random guess.
    """
    scored = {record.relation: record for record in analysis.counted(records)}
    sweeps = {name: analysis.by_layer(records, score) for name, score in SCORES.items()}
    sweeps_without_s = analysis.constant_by_layer(records)
    at_choice = {name: sweeps["faithfulness"][record.layer].get(name) for name, record in scored.items()}
    names = plotting.best_first(scored, {name: score for name, score in at_choice.items() if score})
    figure, panels = plotting.layer_grid(names, analysis.layers_of(records), "mean over trials")
    for axes, name in zip(panels, names, strict=True):
        for label, sweep in sweeps.items():
            plotting.relation_curve(axes, sweep, name, LOOKS[label], label, shade=0.2)
        for label, sweep in sweeps_without_s.items():
            plotting.relation_curve(axes, sweep, name, CONSTANT_LOOKS[label], label)
        record = scored[name]
        assert record.layer is not None  # it was scored
        axes.axvline(place_of(record.layer), color=plotting.GREY, linewidth=1, zorder=1, label="chosen layer")
        axes.axhline(record.random_guess, color="black", linewidth=1.2, linestyle=":", label=plotting.GUESS)
    plotting.legend(figure)
    return figure


def mode_switch(model: ModelResults) -> Section:
    """Return faithfulness by layer with and without relation-specific text (figure "mode-switch")."""
    title = "With and without relation-specific text"
    series = _with_and_without(model.main, model.bare)
    kept = {label: analysis.on_most(records, "layers") for label, records in series.items()}
    if not all(kept.values()):
        return missing(title, "Prompts without relation-specific text were", "--data.prompts.template '{}'")
    layers = analysis.layers_of(itertools.chain(*kept.values()))
    table = sweep_table(
        "mode_switch",
        f"LRE faithfulness by layer of {analysis.lm_of(model.main)} with and without relation-specific text in the "
        f"prompt, of the trials that were measured with both. {choice_text(kept['without'])}"
        f"{identity_text(kept['without'])}",
        "layer",
        {label: analysis.sweep(kept[label], analysis.faithfulness, "layer", layers) for label in kept},
    )
    return Section(title, (picture_of(plot_mode_switch, model.main, model.bare),), (table,))


def _with_and_without(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    return analysis.scored_in_all({"with relation-specific text": main, "without": bare})


def plot_mode_switch(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> Figure:
    """Faithfulness by layer with and without relation-specific text in the prompt (fig:mode-switch).

    Where the prompt ends with the subject, s at the last layer is o itself.
    """
    series = _with_and_without(main, bare)
    names = plotting.best_first(
        analysis.categories(series["without"]), analysis.per_relation(main, analysis.faithfulness)
    )
    scores = {label: (records, analysis.faithfulness) for label, records in series.items()}
    return plot_layer_grid(scores, names, "faithfulness")


def ranks(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by rank (figure "rank-sweep")."""
    if len({rank for record in analysis.on_most(records, "ranks") for rank in record.ranks}) < 2:
        return missing("Ranks", "Other ranks were", "several --model.ranks")
    caption = (
        f"LRE performance by rank on {analysis.lm_of(records)}, at the relations' layers: causality with W inverted at "
        "the rank, faithfulness with W truncated to it. " + choice_text(analysis.on_most(records, "ranks"))
    )
    table = sweep_table("ranks", caption, "rank", _by_rank(records))
    return Section("Ranks", (picture_of(plot_ranks, records),), (table,))


def _by_rank(records: Sequence[TrialRecord]) -> dict[str, Sweep]:
    kept = analysis.on_most(records, "ranks")
    scores: dict[str, Score] = {
        "faithfulness": analysis.tally_score("low rank", "faithfulness"),
        "causality": analysis.causality,
    }
    return {name: analysis.sweep(kept, score, "rank", kept[0].ranks) for name, score in scores.items()}


def plot_ranks(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness with W truncated to a rank, and causality with W inverted at it (fig:rank-sweep).

    Means over relations at the chosen layers, with the middle half of the relations shaded.
    """
    sweeps = _by_rank(records)
    figure, axes = _mean_curves(sweeps, "rank")
    points = list(sweeps["causality"])
    ticks = [rank for rank in points if rank & (rank - 1) == 0] or points
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, map(str, ticks))
    axes.set_xticks([], minor=True)
    axes.set_xlim(points[0] / 1.2, points[-1] * 1.2)
    return figure


def betas(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by beta (table "beta")."""
    scores = choices.beta_scores(records)
    if len(scores) < 2:
        return missing("Choosing β", "Other values of β were", "several --model.betas")
    best = {"correlation": choices.best_beta(scores), "mean faithfulness": choices.most_faithful_beta(scores)}

    def row(line: choices.BetaScores) -> Row:
        marks = ", ".join(name for name, beta in best.items() if beta == line.beta)
        return (line.beta, line.faithfulness, line.causality, line.correlation, marks or None)

    table = Table(
        "betas",
        f"LRE performance by β on {analysis.lm_of(records)}, and the correlation of faithfulness and causality over "
        "relations. Means and standard deviations over relations; causality is always computed with β set to 1. "
        + choice_text(records),
        ("β", *SCORES, "correlation", "best"),
        tuple(map(row, scores)),
        exact=("β",),
    )
    return Section("Choosing β", (picture_of(plot_beta, records, name="betas"),), (table,))


def plot_beta(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness, causality and their correlation over relations by β (compare table "beta").

    The 95% intervals of faithfulness and of the correlation are shaded (bootstrap over relations); stars mark the best
    of each.
    """
    scores = choices.beta_scores(records)
    figure = plotting.new_figure(8, 4.6)
    axes = figure.subplots()
    faithful = {line.beta: line.faithfulness for line in scores}
    causal = {line.beta: line.causality for line in scores if line.causality is not None}
    linked = {line.beta: line.correlation for line in scores if line.correlation is not None}
    plotting.curve(axes, faithful, STYLES[0], "faithfulness, mean over relations", shade=0.12)
    plotting.curve(axes, causal, STYLES[1], "causality, mean over relations")
    plotting.curve(axes, linked, STYLES[2], "correlation R of the two over relations", shade=0.12)
    for label, beta, points, look in (
        ("best mean faithfulness", choices.most_faithful_beta(scores), faithful, STYLES[0]),
        ("best correlation", choices.best_beta(scores), linked, STYLES[2]),
    ):
        if beta is not None:
            value = points[beta][0]
            axes.axvline(beta, color=look.colour, linestyle=look.line, linewidth=0.9, alpha=0.7)
            name = f"{label}: {value:.2f} at β = {beta:g}"
            axes.plot([beta], [value], "*", color=look.colour, markersize=14, markeredgecolor="black", label=name)
    plotting.fraction_axis(axes, "y")
    lowest = [estimate.interval.low if estimate.interval else estimate.value for estimate in linked.values()]
    axes.set_ylim(min([-0.03, *(value - 0.05 for value in lowest)]), 1.05)
    if len(scores) < 10:
        axes.set_xticks(list(faithful), [f"{beta:g}" for beta in faithful])
    axes.set_xlabel("β")
    plotting.legend(figure, columns=1)
    return figure


def n_shots(model: ModelResults) -> Section:
    """Return the scores by the number n of training examples (figure "varying_n")."""
    by_n = {n: records for n, records in sorted(model.by_n.items()) if analysis.counted(records)}
    if len(by_n) < 2:
        return missing("Number of examples", "Other n were", "another --data.n_shot")
    same = analysis.scored_in_all(by_n)
    caption = f"LRE performance on {analysis.lm_of(model.main)} by n, of the trials that were scored at every n."
    caption += f" {choice_text(list(itertools.chain(*same.values())))}"
    table = sweep_table("n_shots", caption, "n", _by_n(by_n))
    return Section("Number of examples", (picture_of(plot_n, by_n, name="n_shots"),), (table,))


def _by_n(by_n: Mapping[int, Sequence[TrialRecord]]) -> dict[str, Sweep]:
    scores = {n: analysis.both_by_relation(records) for n, records in analysis.scored_in_all(by_n).items()}
    return {name: {n: both[name] for n, both in scores.items()} for name in SCORES}


def plot_n(by_n: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by the number n of training examples (fig:varying_n).

    Means over the relations scored at every n, in the same trials, with the middle half of the relations shaded.
    """
    figure, axes = _mean_curves(_by_n(by_n), "n")
    axes.set_xticks(list(by_n))
    return figure
