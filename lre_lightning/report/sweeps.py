"""Sections on the scores over layers, ranks, betas and numbers of examples."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lre_lightning.grid import place_of
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import spread
from lre_lightning.report import analysis, plotting
from lre_lightning.report.analysis import SCORES, BetaScores, ModelResults, Sweep
from lre_lightning.report.plotting import LOOKS, MEAN, STYLES, Style
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.tables import Row, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ScoreAt = Callable[..., float]
"""A score of a trial at a point of an axis, given by the axis's name."""


def sweep_rows(
    records: Sequence[TrialRecord], axis: str, points: Sequence[Any], scores: Collection[ScoreAt]
) -> tuple[Row, ...]:
    """Return a row per point of an axis, with the means over relations of every score."""

    def row(point: Any) -> Row:
        return (point, *(analysis.over_relations(records, partial(score, **{axis: point})) for score in scores))

    return tuple(map(row, points))


def over_relations_of(records: Iterable[TrialRecord]) -> str:
    """Return the end of a caption with the number of relations."""
    return f"Means and standard deviations over {plotting.number_of(len(analysis.categories(records)))}."


def _sweep(records: Sequence[TrialRecord], score: ScoreAt) -> Sweep:
    """Return a score by the place of the layer and by relation."""
    layers = analysis.layers_of(records)
    return {place_of(layer): analysis.per_relation(records, partial(score, layer=layer)) for layer in layers}


def plot_layer_grid(
    series: Mapping[str, tuple[Sequence[TrialRecord], ScoreAt]], names: Sequence[str], ylabel: str
) -> Figure:
    """Plot a score of records by layer for each label: a panel for the mean over relations, and one per relation."""
    layers = analysis.layers_of([record for records, _ in series.values() for record in records])
    figure, panels = plotting.layer_grid([MEAN, *names], layers, ylabel)
    for look, (label, (records, score)) in zip(STYLES, series.items(), strict=False):
        plotting.mean_curve(panels[0], _sweep(analysis.on_most(records, "layers"), score), look, label)
        by_layer = _sweep(records, score)
        for axes, name in zip(panels[1:], names, strict=True):
            plotting.relation_curve(axes, by_layer, name, look, label)
    plotting.legend(figure, panels)
    return figure


def layers(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by layer (figure "sweep")."""
    kept = analysis.on_most(records, "layers")
    table = Table(
        "layers",
        f"LRE performance by layer of {analysis.lm_of(records)}, with the relations' ranks. {over_relations_of(kept)}",
        ("layer", *SCORES),
        sweep_rows(kept, "layer", analysis.layers_of(kept), SCORES.values()),
    )
    if len(table.rows) < 2:
        return missing("Layers", "Other layers were", "several --model.layers")
    pictures = (picture_of(plot_layers, records), picture_of(plot_layers_by_relation, records))
    return Section("Layers", pictures, (table,))


def _mean_curves(sweeps: Mapping[str, Sweep]) -> tuple[Figure, Axes]:
    """Plot faithfulness and causality by label, with the number of relations."""
    figure = plotting.new_figure(8, 4.2)
    axes = figure.subplots()
    for (label, sweep), look in zip(sweeps.items(), LOOKS.values(), strict=True):
        plotting.mean_curve(axes, sweep, look, label, with_count=True)
    plotting.fraction_axis(axes, "y")
    axes.set_ylabel(MEAN)
    plotting.legend(figure, [axes])
    return figure, axes


def plot_layers(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer (compare fig:sweep).

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    kept = analysis.on_most(records, "layers")
    figure, axes = _mean_curves({name: _sweep(kept, score) for name, score in SCORES.items()})
    plotting.layer_axis(axes, kept[0].layers, 16)
    axes.set_xlabel("layer")
    return figure


def plot_layers_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer for each relation, most faithful first (fig:sweep).

    Means over trials, with their deviations shaded; the lines are the chosen layer and the random guess.
    """
    scored = {record.relation: record for record in analysis.counted(records)}
    names = plotting.best_first(scored, analysis.per_relation(records, analysis.faithfulness))
    sweeps = {name: _sweep(records, score) for name, score in SCORES.items()}
    figure, panels = plotting.layer_grid(names, analysis.layers_of(records), "mean over trials")
    for axes, name in zip(panels, names, strict=True):
        for label, sweep in sweeps.items():
            plotting.relation_curve(axes, sweep, name, LOOKS[label], label, alpha=0.2)
        record = scored[name]
        assert record.layer is not None  # it was scored
        axes.axvline(place_of(record.layer), color=plotting.GREY, linewidth=1, zorder=1, label="chosen layer")
        axes.axhline(record.random_guess, color="black", linewidth=1.2, linestyle=":", label=plotting.GUESS)
    plotting.legend(figure, panels)
    return figure


def mode_switch(model: ModelResults) -> Section:
    """Return faithfulness by layer with and without relation-specific text (figure "mode-switch")."""
    title = "With and without relation-specific text"
    series = _both(model.main, model.bare)
    kept = [analysis.on_most(records, "layers") for records in series.values()]
    if not all(kept):
        return missing(title, "Prompts without relation-specific text were", "--data.prompts.template '{}'")
    rows = [
        sweep_rows(group, "layer", analysis.layers_of([*kept[0], *kept[1]]), [analysis.faithfulness]) for group in kept
    ]
    table = Table(
        "mode_switch",
        f"LRE faithfulness by layer of {analysis.lm_of(model.main)} with and without relation-specific text in the "
        f"prompt. {over_relations_of(kept[0])}",
        ("layer", *series),
        tuple((*one, other[1]) for one, other in zip(*rows, strict=True)),
    )
    return Section(title, (picture_of(plot_mode_switch, model.main, model.bare),), (table,))


def _both(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    """Return the counted records of the relations that were scored with and without relation-specific text."""
    names = set(analysis.categories(analysis.counted(main))) & set(analysis.categories(analysis.counted(bare)))
    kinds = {"with relation-specific text": main, "without": bare}
    return {
        label: [record for record in analysis.counted(records) if record.relation in names]
        for label, records in kinds.items()
    }


def plot_mode_switch(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> Figure:
    """Faithfulness by layer with and without relation-specific text in the prompt (fig:mode-switch).

    Later layers switch from enriching s to predicting the next token. Where the prompt ends with the subject, s at the
    last layer is o itself.
    """
    series = _both(main, bare)
    kinds = analysis.categories(series["without"])
    names = plotting.best_first(kinds, analysis.per_relation(main, analysis.faithfulness))
    return plot_layer_grid(
        {label: (records, analysis.faithfulness) for label, records in series.items()}, names, "faithfulness"
    )


def ranks(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by rank (figure "rank-sweep")."""
    kept = analysis.on_most(records, "ranks")
    table = Table(
        "ranks",
        f"LRE performance by rank on {analysis.lm_of(records)}, at the relations' layers: causality with W inverted at "
        f"the rank, faithfulness with W truncated to it. {over_relations_of(kept)}",
        ("rank", *SCORES),
        sweep_rows(kept, "rank", kept[0].ranks, (analysis.low_rank_faithfulness, analysis.causality)),
    )
    if len(table.rows) < 2:
        return missing("Ranks", "Other ranks were", "several --model.ranks")
    return Section("Ranks", (picture_of(plot_ranks, records),), (table,))


def plot_ranks(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness with W truncated to a rank, and causality with W inverted at it (fig:rank-sweep).

    Means over relations at the chosen layers, with the middle half of the relations shaded.
    """
    kept = analysis.on_most(records, "ranks")
    points = kept[0].ranks
    methods: dict[str, ScoreAt] = {
        "faithfulness, W truncated to the rank": analysis.low_rank_faithfulness,
        "causality": analysis.causality,
    }
    figure, axes = _mean_curves(
        {
            label: {float(rank): analysis.per_relation(kept, partial(score, rank=rank)) for rank in points}
            for label, score in methods.items()
        }
    )
    axes.set_xscale("log", base=2)
    axes.set_xlim(points[0] / 1.2, points[-1] * 1.2)
    axes.set_xlabel("rank")
    return figure


def betas(records: Sequence[TrialRecord]) -> Section:
    """Return the scores by beta (table "beta")."""
    scores = analysis.beta_scores(records)
    if len(scores) < 2:
        return missing("Choosing β", "Other values of β were", "several --model.betas")
    best = {"correlation": analysis.best_beta(scores), "mean faithfulness": analysis.most_faithful_beta(scores)}

    def row(line: BetaScores) -> Row:
        marks = ", ".join(name for name, beta in best.items() if beta == line.beta)
        return (line.beta, line.faithfulness, line.causality, line.correlation, marks or None)

    table = Table(
        "betas",
        f"LRE performance by β on {analysis.lm_of(records)}, and the correlation of faithfulness and causality over "
        "relations. Means and standard deviations over relations; causality is always computed with β set to 1.",
        ("β", *SCORES, "correlation", "best"),
        tuple(map(row, scores)),
        exact=("β",),
    )
    return Section("Choosing β", (picture_of(plot_beta, records, name="betas"),), (table,))


def plot_beta(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness, causality and their correlation over relations by β (compare table "beta").

    The deviation of faithfulness over relations is shaded; stars mark the best correlation and the best faithfulness.
    """
    scores = analysis.beta_scores(records)
    figure = plotting.new_figure(8, 4.6)
    axes = figure.subplots()
    faithful = {line.beta: line.faithfulness for line in scores}
    causal = {line.beta: line.causality[0] for line in scores if line.causality is not None}
    linked = {line.beta: line.correlation for line in scores if line.correlation is not None}
    plotting.spread_curve(axes, faithful, STYLES[0], "faithfulness, mean over relations", alpha=0.12)
    plotting.curve(axes, causal, STYLES[1], "causality, mean over relations")
    plotting.curve(axes, linked, STYLES[2], "correlation R of the two over relations")
    most, best = analysis.most_faithful_beta(scores), analysis.best_beta(scores)
    if most is not None:
        _star(axes, most, faithful[most][0], STYLES[0], "best mean faithfulness")
    if best is not None:
        _star(axes, best, linked[best], STYLES[2], "best correlation")
    plotting.fraction_axis(axes, "y")
    axes.set_ylim(min([-0.03, *(value - 0.05 for value in linked.values())]), 1.05)
    if len(scores) < 10:
        axes.set_xticks(list(faithful), [f"{beta:g}" for beta in faithful])
    axes.set_xlabel("β")
    plotting.legend(figure, [axes], columns=2)
    return figure


def _star(axes: Axes, beta: float, value: float, look: Style, label: str) -> None:
    """Mark a beta by a star on the curve and a line down to the axis."""
    axes.axvline(beta, color=look.colour, linestyle=look.line, linewidth=0.9, alpha=0.7)
    name = f"{label}: {value:.2f} at β = {beta:g}"
    axes.plot([beta], [value], "*", color=look.colour, markersize=14, markeredgecolor="black", label=name)


def n_shots(model: ModelResults) -> Section:
    """Return the scores by the number n of training examples (figure "varying_n")."""
    by_n = {n: records for n, records in model.by_n.items() if analysis.counted(records)}
    if len(by_n) < 2:
        return missing("Number of examples", "Other n were", "another --data.n_shot")
    shared = set.intersection(*({record.relation for record in analysis.counted(group)} for group in by_n.values()))
    kept = {n: [record for record in records if record.relation in shared] for n, records in sorted(by_n.items())}
    table = Table(
        "n_shots",
        f"LRE performance on {analysis.lm_of(model.main)} by n. Means and standard deviations over the "
        f"{plotting.number_of(len(shared))} scored at every n.",
        ("n", *SCORES),
        tuple((n, *analysis.both_scores(records)) for n, records in kept.items()),
    )
    return Section("Number of examples", (picture_of(plot_n, by_n, name="n_shots"),), (table,))


def plot_n(by_n: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by the number n of training examples (fig:varying_n).

    Thin lines are relations, the thick line is their mean with its standard deviation.
    """
    counts = sorted(by_n)
    figure = plotting.new_figure(10, 4.4)
    for axes, (label, score) in zip(figure.subplots(1, 2, sharey=True), SCORES.items(), strict=True):
        found = [analysis.per_relation(by_n[n], score) for n in counts]
        names = [name for name in found[0] if all(name in at for at in found)]
        plotting.need(names, "no relation was scored at every n")
        look = LOOKS[label]
        for relation in names:
            axes.plot(counts, [at[relation][0] for at in found], color=look.colour, linewidth=0.7, alpha=0.35)
        overall = [spread([at[relation][0] for relation in names]) for at in found]
        plotting.curve(axes, {n: mean for n, (mean, _) in zip(counts, overall, strict=True)}, look, "mean")
        axes.lines[-1].set(linewidth=2.5, markersize=7, zorder=3)
        if len(names) > 1:
            means, widths = zip(*overall, strict=True)
            axes.errorbar(counts, means, widths, fmt="none", ecolor=look.colour, capsize=4)
        axes.set_title(f"{label}: {plotting.number_of(len(names))} scored at every n", fontsize=10)
        axes.set_xticks(counts)
        axes.set_xlabel("n")
        plotting.fraction_axis(axes, "y")
    return figure
