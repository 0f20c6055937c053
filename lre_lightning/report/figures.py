"""The paper's figures, drawn by pure functions from records: they can be redrawn without the LM.

Where nothing is left to draw, a function raises `LREError`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import Spread, spread
from lre_lightning.report import analysis
from lre_lightning.report.analysis import ModelResults, Score
from lre_lightning.report.drawing import (
    CAUSALITY,
    FAITHFULNESS,
    GREY,
    STYLES,
    Style,
    Sweep,
    bars,
    category_marks,
    curve,
    deviations,
    dots,
    guess_marks,
    label_points,
    layer_axis,
    layer_grid,
    layer_place,
    legend,
    mean_curve,
    new_figure,
    not_scored,
    number_of,
    relation_curve,
    rows,
    share_axis,
    short_names,
    style,
    styles_of,
    text,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")

ALL = "all relations"
METHODS = {
    "oracle": r"oracle $\mathbf{s}'$",
    "unembedding": r"unembedding row of $\mathit{o}'$",
    "object": r"object $\mathbf{o}'$",
}
MANY_KNOWN = 30  # known test samples, from which the paper draws a relation as a bold dot


def plot_relations(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by relation, most faithful first, beside the random guess (fig:faithfulness-by-rel).

    Bars are means over trials with their deviations; relations that were not scored are left out and counted.
    """
    scored = analysis.counted(records)
    if not scored:
        raise LREError("no relation was scored, so there are no scores to draw by relation")
    faithful, causal, guesses = (
        analysis.per_relation(scored, score)
        for score in (analysis.faithfulness, analysis.causality, analysis.random_guess)
    )
    names = _best_first(analysis.categories(scored), faithful)
    layers = {record.relation: record.layer for record in scored}
    without = len(analysis.categories(records)) - len(names)
    label = "mean over trials" + (f" ({number_of(without)} not scored)" if without else "")
    labels = [f"{name}  (layer {layers[name]})" for name in names]
    figure, (axes,) = rows(labels, [""], label, 0.3)
    for shift, look, name, scores in (
        (-0.2, FAITHFULNESS, "faithfulness", faithful),
        (0.2, CAUSALITY, "causality", causal),
    ):
        bars(axes, [row + shift for row in range(len(names))], [scores.get(n) for n in names], 0.38, look, name)
    guess_marks(axes, _means(guesses, names))
    category_marks(axes, names, analysis.categories(records))
    share_axis(axes)
    legend(figure, [axes])
    return figure


def plot_models_by_relation(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness of several LMs by relation, in the order of the first LM's, beside random guesses (fig:faith_other).

    A relation that was not scored for an LM is greyed out.
    """
    found = [analysis.per_relation(model.main, analysis.faithfulness) for model in models]
    if not any(found):
        raise LREError("no relation was scored for any LM, so there is no faithfulness to draw by relation")
    names, kinds = _all_relations(models, found[0])
    figure, panels = rows(names, short_names([model.model for model in models]), "faithfulness, mean over trials", 0.24)
    for axes, model, scores in zip(panels, models, found, strict=True):
        bars(axes, range(len(names)), [scores.get(name) for name in names], 0.7, FAITHFULNESS, "")
        guess_marks(axes, _means(analysis.per_relation(model.main, analysis.random_guess), names))
        for row, name in enumerate(names):
            if name not in scores:
                not_scored(axes, row)
        share_axis(axes)
    category_marks(panels[-1], names, kinds)
    legend(figure, panels)
    return figure


def plot_known(models: Sequence[ModelResults]) -> Figure:
    """Share of each relation's test samples that an LM knows, mean over trials (compare table full-dataset).

    A relation that was not scored for an LM has a grey bar.
    """
    found = [_known_shares(model.main) for model in models]
    if not any(found):
        raise LREError("no relation was tested for any LM, so there are no known facts to draw")
    names, kinds = _all_relations(models, found[0])
    label = "known facts, share of the test samples, mean over trials"
    figure, panels = rows(names, short_names([model.model for model in models]), label, 0.24)
    for axes, model, shares in zip(panels, models, found, strict=True):
        scored = analysis.categories(analysis.counted(model.main))
        in_grey = Style("#BBBBBB", "", "", "////")
        for look, label, kept in ((FAITHFULNESS, "scored", True), (in_grey, "not scored", False)):
            scores = [shares.get(name) if (name in scored) == kept else None for name in names]
            bars(axes, range(len(names)), scores, 0.7, look, label)
        share_axis(axes)
    category_marks(panels[-1], names, kinds)
    legend(figure, panels)
    return figure


def plot_faithfulness_baselines(records: Sequence[TrialRecord], zero_shot: bool = False) -> Figure:
    """Faithfulness of the LRE and of its baselines by category and over all relations (fig:faithfulness-baselines).

    Args:
        records: Records of one LM with baselines.
        zero_shot: Whether to add a light bar to each, with s from prompts that hold the subject alone
            (fig:faith-baselines-prompting).
    """
    methods = analysis.faithfulness_methods()
    light = analysis.faithfulness_methods(zero_shot=True)
    baselines = [score for name, score in (light if zero_shot else methods).items() if name != "LRE"]
    if not any(analysis.per_relation(records, score) for score in baselines):
        kind = "zero-shot baselines" if zero_shot else "baselines"
        raise LREError(f"the records hold no {kind} of faithfulness: there is nothing to compare the LRE with")
    if not zero_shot:
        return _baselines(records, {"": (methods, FAITHFULNESS)}, "faithfulness, mean over relations")
    kinds = {"few-shot s": (methods, FAITHFULNESS), "zero-shot s": (light, Style("#56B4E9", "", "", "////"))}
    return _baselines(records, kinds, "faithfulness, mean over relations")


def plot_causality_baselines(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE's edit and of its baselines by category and over all relations (fig:causality-baselines)."""
    methods = analysis.causality_methods()
    if not any(analysis.per_relation(records, score) for name, score in methods.items() if name != "LRE"):
        raise LREError("the records hold no baselines of causality: there is nothing to compare the LRE with")
    return _baselines(records, {"": (methods, CAUSALITY)}, "causality, mean over relations")


def _baselines(
    records: Sequence[TrialRecord], kinds: Mapping[str, tuple[Mapping[str, Score], Style]], label: str
) -> Figure:
    """A panel for all relations and for each category, with a row for each method and in it a bar for each kind."""
    first, _ = next(iter(kinds.values()))
    methods = [name for name, score in first.items() if analysis.per_relation(records, score)]
    names = [ALL, *dict.fromkeys(analysis.categories(analysis.counted(records)).values())]
    figure = new_figure(10, 1.2 + math.ceil(len(names) / 5) * (0.7 + (0.2 + 0.14 * len(kinds)) * len(methods)))
    columns = min(len(names), 5)
    cells = figure.subplots(math.ceil(len(names) / columns), columns, sharex=True, sharey=True, squeeze=False)
    panels = cells.flatten().tolist()
    height = 0.75 / len(kinds)
    for axes, category in zip(panels, names, strict=False):
        for index, (kind, (scores, look)) in enumerate(kinds.items()):
            found = [_of_category(records, scores[method], category) for method in methods]
            places = [row + (index - (len(kinds) - 1) / 2) * height for row in range(len(methods))]
            bars(axes, places, found, height, look, kind)
        count = len([c for c in analysis.categories(analysis.counted(records)).values() if category in (ALL, c)])
        axes.set_title(f"{text(category, 20)}\n({count})" if category != ALL else f"{ALL}\n({count})", fontsize=10)
        axes.set_yticks(range(len(methods)), [METHODS.get(method, method) for method in methods])
        axes.set_ylim(len(methods) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        share_axis(axes)
    for axes in panels[len(names) :]:
        axes.remove()
    for axes in panels[len(names) - columns : len(names)]:
        axes.tick_params(labelbottom=True)  # also above an empty place in the last row
    figure.supxlabel(label, fontsize=10)
    if len(kinds) > 1:
        legend(figure, panels)
    return figure


def plot_baselines_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by relation, a dot for the LRE and one for each baseline, most faithful LRE first."""
    scored = analysis.counted(records)
    methods = {"faithfulness": analysis.faithfulness_methods(), "causality": analysis.causality_methods()}
    found = {
        metric: {name: analysis.per_relation(scored, score) for name, score in scores.items()}
        for metric, scores in methods.items()
    }
    if not any(scores for by_name in found.values() for name, scores in by_name.items() if name != "LRE"):
        raise LREError("the records hold no baselines: there is nothing to compare the LRE with by relation")
    names = _best_first(analysis.categories(scored), found["faithfulness"]["LRE"])
    return _dotted_rows(found, names, analysis.categories(scored))


def plot_templates(by_template: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by relation with each of its prompt templates (compare table prompt_template).

    Args:
        by_template: Records of one LM by the index of the relations' templates; relations with one alone are left out.
    """
    scored = {index: analysis.counted(records) for index, records in sorted(by_template.items())}
    kinds = analysis.categories(record for records in scored.values() for record in records)
    found = {
        metric: {f"template {index}": analysis.per_relation(records, score) for index, records in scored.items()}
        for metric, score in (("faithfulness", analysis.faithfulness), ("causality", analysis.causality))
    }
    several = {name: kind for name, kind in kinds.items() if sum(name in s for s in found["faithfulness"].values()) > 1}
    if not several:
        raise LREError("no relation was scored with several templates, so there are none to compare")
    return _dotted_rows(found, _best_first(several, next(iter(found["faithfulness"].values()))), several)


def _dotted_rows(
    found: Mapping[str, Mapping[str, Mapping[str, Spread]]], names: Sequence[str], kinds: Mapping[str, str]
) -> Figure:
    """A panel for each metric, a row for each relation, and in it a dot for each series that has the relation."""
    figure, panels = rows(names, list(found), "mean over trials", 0.3)
    for axes, series in zip(panels, found.values(), strict=True):
        shown = {label: scores for label, scores in series.items() if scores}
        for index, (label, scores) in enumerate(shown.items()):
            places = [row + 0.64 * ((index + 0.5) / len(shown) - 0.5) for row in range(len(names))]
            look = style(list(series).index(label))
            dots(axes, places, [scores.get(name) for name in names], look, METHODS.get(label, label))
        for row in range(0, len(names), 2):
            axes.axhspan(row - 0.5, row + 0.5, color="#F2F2F2", linewidth=0, zorder=0.2)
        share_axis(axes)
        axes.set_xlim(-0.03, 1.05)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
        axes.set_title(axes.get_title(), fontsize=10, pad=38)
    category_marks(panels[-1], names, kinds, marks=False)
    return figure


def plot_causality_by_layer(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of its baselines by layer, for each relation (fig:causality-baselines-layerwise).

    The rank is each relation's own. The first panel is the mean over relations, with the middle half shaded.
    """
    found = {"LRE": _by_layer(records, analysis.causality_at)}
    found |= {METHODS[name]: _by_layer(records, partial(analysis.causality_baseline_at, name)) for name in METHODS}
    if not any(any(by_layer.values()) for method, by_layer in found.items() if method != "LRE"):
        raise LREError("the records hold no baselines of causality: there is nothing to compare the LRE with by layer")
    scored = analysis.counted(records)
    names = _best_first(analysis.categories(scored), analysis.per_relation(scored, analysis.causality))
    figure, panels = layer_grid(["mean over relations", *names], analysis.layers_of(scored), "causality")
    for look, (method, by_layer) in zip(STYLES, found.items(), strict=False):
        mean_curve(panels[0], _on_most_layers(scored, by_layer), look, method)
        for axes, name in zip(panels[1:], names, strict=True):
            relation_curve(axes, by_layer, name, look, method)
    legend(figure, panels)
    return figure


def plot_layers(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer, mean over relations with the middle half shaded (compare fig:sweep).

    Faithfulness is at each relation's beta, causality at its rank. The layers are those that most records have, and the
    relations those that have all of them.
    """
    scored = analysis.counted(records)
    if not scored:
        raise LREError("no relation was scored, so there are no scores to draw by layer")
    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    for name, look, score in (
        ("faithfulness", FAITHFULNESS, analysis.faithfulness_at),
        ("causality", CAUSALITY, analysis.causality_at),
    ):
        mean_curve(axes, _on_most_layers(scored, _by_layer(scored, score)), look, name, with_count=True)
    layer_axis(axes, _most_common([record.layers for record in scored]), 16)
    share_axis(axes, "y")
    axes.set_xlabel("layer")
    axes.set_ylabel("mean over relations")
    legend(figure, [axes])
    return figure


def plot_layers_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality by layer for each relation, most faithful first (fig:sweep).

    Means over trials with their deviations shaded; the chosen layer and the random guess are marked.
    """
    scored = analysis.counted(records)
    if not scored:
        raise LREError("no relation was scored, so there are no scores to draw by layer")
    names = _best_first(analysis.categories(scored), analysis.per_relation(scored, analysis.faithfulness))
    guesses = analysis.per_relation(scored, analysis.random_guess)
    faithful, causal = (_by_layer(scored, score) for score in (analysis.faithfulness_at, analysis.causality_at))
    chosen = {record.relation: record.layer for record in scored if record.layer is not None}
    figure, panels = layer_grid(names, analysis.layers_of(scored), "mean over trials")
    for axes, name in zip(panels, names, strict=True):
        relation_curve(axes, faithful, name, FAITHFULNESS, "faithfulness", shaded=True)
        relation_curve(axes, causal, name, CAUSALITY, "causality", shaded=True)
        if name in chosen:
            axes.axvline(layer_place(chosen[name]), color=GREY, linewidth=1, zorder=1, label="chosen layer")
        axes.axhline(guesses[name][0], color="black", linewidth=1.2, linestyle=":", label="random guess")
    legend(figure, panels)
    return figure


def plot_mode_switch(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> Figure:
    """Faithfulness by layer with and without relation-specific text in the prompts (fig:mode-switch).

    A panel for each relation that has both, after one with the mean over those relations, the middle half shaded.

    Args:
        main: Records with the relations' own templates.
        bare: Records with the template ``{}``.
    """
    both = set(analysis.categories(analysis.counted(main))) & set(analysis.categories(analysis.counted(bare)))
    if not both:
        raise LREError("no relation was scored both with and without relation-specific text")
    kinds = {
        "with relation-specific text": [record for record in analysis.counted(main) if record.relation in both],
        "without": [record for record in analysis.counted(bare) if record.relation in both],
    }
    names = _best_first(analysis.categories(kinds["without"]), analysis.per_relation(main, analysis.faithfulness))
    layers = analysis.layers_of([record for records in kinds.values() for record in records])
    figure, panels = layer_grid(["mean over relations", *names], layers, "faithfulness")
    for look, (label, records) in zip(STYLES, kinds.items(), strict=False):
        by_layer = _by_layer(records, analysis.faithfulness_at)
        mean_curve(panels[0], _on_most_layers(records, by_layer), look, label)
        for axes, name in zip(panels[1:], names, strict=True):
            relation_curve(axes, by_layer, name, look, label)
    legend(figure, panels)
    return figure


def plot_ranks(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness, with W cut down to a rank, and causality by rank at the chosen layer (fig:rank-sweep).

    Mean over relations with the middle half shaded. The ranks are those that most records have, and the relations those
    that have all of them.
    """
    scored = analysis.counted(records)
    if not scored:
        raise LREError("no relation was scored, so there are no scores to draw by rank")
    ranks = _most_common([record.ranks for record in scored])
    figure = new_figure(8, 4.2)
    axes = figure.subplots()
    for name, look, score in (
        ("faithfulness, W cut down to the rank", FAITHFULNESS, analysis.faithfulness_at_rank),
        ("causality", CAUSALITY, analysis.causality_at_rank),
    ):
        by_rank = {float(rank): analysis.per_relation(scored, score(rank)) for rank in ranks}
        mean_curve(axes, by_rank, look, name, with_count=True)
    axes.set_xscale("log", base=2)
    axes.set_xlim(ranks[0] / 1.2, ranks[-1] * 1.2)
    share_axis(axes, "y")
    axes.set_xlabel("rank")
    axes.set_ylabel("mean over relations")
    legend(figure, [axes])
    return figure


def plot_n(by_n: Mapping[int, Sequence[TrialRecord]]) -> Figure:
    """Faithfulness and causality by the number n of training examples (fig:varying_n).

    Thin lines are the relations that were scored at every n, the thick one their mean with its deviation.
    """
    counts = sorted(by_n)
    figure = new_figure(10, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, look, score in (
        (panels[0], "faithfulness", FAITHFULNESS, analysis.faithfulness),
        (panels[1], "causality", CAUSALITY, analysis.causality),
    ):
        found = [analysis.per_relation(by_n[n], score) for n in counts]
        names = [name for name in (found[0] if found else ()) if all(name in at for at in found)]
        if not names:
            raise LREError("no relation was scored at every n, so there is nothing to compare over n")
        for relation in names:
            axes.plot(counts, [at[relation][0] for at in found], color=look.colour, linewidth=0.7, alpha=0.35)
        overall = [spread([at[relation][0] for relation in names]) for at in found]
        curve(axes, {n: mean for n, (mean, _) in zip(counts, overall, strict=True)}, look, "mean")
        axes.lines[-1].set(linewidth=2.5, markersize=7, zorder=3)
        if len(names) > 1:
            widths = [deviation or 0 for _, deviation in overall]
            axes.errorbar(counts, [mean for mean, _ in overall], widths, fmt="none", ecolor=look.colour, capsize=4)
        axes.set_title(f"{name}: {number_of(len(names))} scored at every n", fontsize=10)
        axes.set_xticks(counts)
        axes.set_xlabel("n")
        share_axis(axes, "y")
    return figure


def plot_beta(records: Sequence[TrialRecord]) -> Figure:
    """Mean faithfulness, mean causality and their correlation over relations by beta (table "beta" as a picture).

    The middle of the shade is mean faithfulness, its width the deviation over relations; the betas of the best
    correlation and of the best mean faithfulness are marked.
    """
    lines = analysis.beta_scores(records)
    if not lines:
        raise LREError("the records have no beta in common, so there is nothing to draw by beta")
    figure = new_figure(8, 4.6)
    axes = figure.subplots()
    faithful = {line.beta: line.faithfulness for line in lines}
    causal = {line.beta: line.causality[0] for line in lines if line.causality is not None}
    linked = {line.beta: line.correlation for line in lines if line.correlation is not None}
    curve(axes, {beta: mean for beta, (mean, _) in faithful.items()}, FAITHFULNESS, "faithfulness, mean over relations")
    low, high = ([mean + sign * (width or 0) for mean, width in faithful.values()] for sign in (-1, 1))
    axes.fill_between(list(faithful), low, high, color=FAITHFULNESS.colour, alpha=0.12, linewidth=0)
    curve(axes, causal, CAUSALITY, "causality, mean over relations")
    curve(axes, linked, STYLES[2], "correlation R of the two over relations")
    best = max(lines, key=lambda line: line.faithfulness[0])
    _star(axes, best.beta, best.faithfulness[0], FAITHFULNESS, "best mean faithfulness")
    beta = analysis.best_beta(lines)
    if beta is not None:
        _star(axes, beta, linked[beta], STYLES[2], "best correlation")
    share_axis(axes, "y")
    axes.set_ylim(min([-0.03, *(value - 0.05 for value in linked.values())]), 1.05)
    if len(lines) < 10:
        axes.set_xticks(list(faithful), [f"{beta:g}" for beta in faithful])
    axes.set_xlabel("β")
    legend(figure, [axes], columns=2)
    return figure


def plot_scatter(records: Sequence[TrialRecord], title: str = "") -> Figure:
    """Faithfulness against causality, a dot for each relation (fig:faith_vs_edit).

    After `reselect` by faithfulness it is the paper's fig:scatter_faith. Dots are filled where
    the LM knows 30 test samples or more, on average over trials; the relations farthest from the diagonal are named.

    Args:
        records: Records of one LM.
        title: What stands before the correlation in the title.
    """
    faithful, causal = (
        analysis.per_relation(records, analysis.faithfulness),
        analysis.per_relation(records, analysis.causality),
    )
    points = {name: (faithful[name][0], causal[name][0]) for name in faithful if name in causal}
    if not points:
        raise LREError(
            "no relation has both faithfulness and causality, so there is nothing to draw against each other"
        )
    figure = new_figure(8.5, 6)
    axes = figure.subplots()
    kinds = analysis.categories(records)
    known = analysis.known_facts(analysis.counted(records))
    _scatter(axes, points, kinds, {name for name in points if known[name][0] >= MANY_KNOWN})
    axes.set_xlabel("faithfulness")
    axes.set_ylabel("causality")
    axes.set_title(f"{text(title)}, {_r(faithful, causal)}" if title else _r(faithful, causal))
    axes.plot([], [], "o", color=GREY, linestyle="none", label=f"{MANY_KNOWN} or more known samples")
    axes.plot([], [], "o", color=GREY, markerfacecolor="none", linestyle="none", label="fewer known samples")
    figure.legend(loc="outside right upper", frameon=False)
    far = [name for name, (x, y) in points.items() if abs(y - x) > 0.1]
    label_points(figure, axes, points, sorted(far, key=lambda name: -abs(points[name][1] - points[name][0]))[:6])
    return figure


def plot_categories(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness and causality by category and over all relations, a bar for each LM (fig:lre_other_models).

    Bars are means over relations with their deviations.
    """
    found = [analysis.counted(model.main) for model in models]
    names = list(dict.fromkeys(record.category for records in found for record in records))
    if not names:
        raise LREError("no relation was scored for any LM, so there are no scores to draw by category")
    names.append(ALL)
    size = 0.8 / len(models)
    labels = short_names([model.model for model in models])
    figure, panels = rows(names, ["faithfulness", "causality"], "mean over relations", 0.25 + 0.2 * len(models))
    for axes, score in zip(panels, (analysis.faithfulness, analysis.causality), strict=True):
        for index, (name, records) in enumerate(zip(labels, found, strict=True)):
            scores = [_of_category(records, score, category) for category in names]
            places = [row + (index - (len(models) - 1) / 2) * size for row in range(len(names))]
            bars(axes, places, scores, size, style(index), text(name))
        share_axis(axes)
    legend(figure, panels, columns=4 if all(len(name) < 24 for name in labels) else 2)
    return figure


def plot_model_agreement(models: Sequence[ModelResults]) -> Figure:
    """Relation-wise faithfulness of one LM against another's for each pair, with Spearman's R (app:models)."""
    found = {
        name: analysis.per_relation(model.main, analysis.faithfulness)
        for name, model in zip(short_names([m.model for m in models]), models, strict=True)
    }
    pairs = list(itertools.combinations(found, 2))
    columns = min(len(pairs), 3)
    count = math.ceil(len(pairs) / columns)
    figure = new_figure(max(8, 3.4 * columns), (3.35 if columns > 2 else 4) * count + 0.5)
    cells = figure.subplots(count, columns, squeeze=False).flatten().tolist()
    kinds = analysis.categories([record for model in models for record in model.main])
    for axes, (one, other) in zip(cells, pairs, strict=False):
        shared = [name for name in found[one] if name in found[other]]
        points = {name: (found[one][name][0], found[other][name][0]) for name in shared}
        _scatter(axes, points, kinds, set(points))
        axes.set_xlabel(text(f"faithfulness, {one}", 30), fontsize=9)
        axes.set_ylabel(text(f"faithfulness, {other}", 30), fontsize=9)
        axes.set_title(f"{_r(found[one], found[other], ranks=True)} ({number_of(len(shared))})", fontsize=10)
    for axes in cells[len(pairs) :]:
        axes.remove()
    legend(figure, cells[: len(pairs)])
    return figure


def plot_underestimation(records: Sequence[TrialRecord]) -> Figure:
    """Ratio of the change of F between two subjects to what W makes of it, by relation (table "line_int").

    Mean over pairs of subjects with its deviation; at 1 there is no underestimation.
    """
    ratios = analysis.underestimation(records)
    if not ratios:
        raise LREError("the records hold no line integrals, so there is no underestimation to draw")
    names = sorted(ratios, key=lambda name: -ratios[name][0])
    figure, (axes,) = rows(names, [""], "underestimation ratio, mean over pairs of subjects", 0.24)
    scores = [ratios[name] for name in names]
    dots(axes, range(len(names)), scores, FAITHFULNESS, "")
    deviations(axes, range(len(names)), scores)
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    category_marks(axes, names, analysis.categories(records))
    return figure


def _best_first(relations: Mapping[str, str], scores: Mapping[str, Spread]) -> list[str]:
    """Relations by falling score, those without the score last."""
    return sorted(relations, key=lambda name: -scores[name][0] if name in scores else math.inf)


def _means(scores: Mapping[str, Spread], names: Sequence[str]) -> list[float | None]:
    return [scores[name][0] if name in scores else None for name in names]


def _all_relations(models: Sequence[ModelResults], first: Mapping[str, Spread]) -> tuple[list[str], dict[str, str]]:
    """All relations of the LMs in the order of the first one's scores, and their categories."""
    kinds = analysis.categories([record for model in models for record in model.main])
    return _best_first(kinds, first), kinds


def _known_shares(records: Sequence[TrialRecord]) -> dict[str, Spread]:
    """Share of the test samples that the LM knows by relation, mean and deviation over all trials."""
    shares: dict[str, list[float]] = {}
    for record in records:
        if record.tested:
            shares.setdefault(record.relation, []).append(record.known / record.tested)
    return {relation: spread(found) for relation, found in shares.items()}


def _of_category(records: Sequence[TrialRecord], score: Score, category: str) -> Spread | None:
    return (
        analysis.over_relations(records, score)
        if category == ALL
        else analysis.per_category(records, score).get(category)
    )


def _by_layer(records: Sequence[TrialRecord], score: Callable[[Layer], Score]) -> Sweep:
    """Scores by relation, by the place of the layer."""
    layers = analysis.layers_of(records)
    return {layer_place(layer): analysis.per_relation(records, score(layer)) for layer in layers}


def _on_most_layers(records: Sequence[TrialRecord], by_layer: Sweep) -> Sweep:
    """The part of `_by_layer` on the layers that most records have, so that means are of the same relations."""
    layers = _most_common([record.layers for record in records])
    return {layer_place(layer): by_layer[layer_place(layer)] for layer in layers}


def _most_common(grids: Sequence[T]) -> T:
    return Counter(grids).most_common(1)[0][0]


def _star(axes: Axes, beta: float, value: float, look: Style, label: str) -> None:
    """Mark a beta: a star on the curve and a line down to the axis."""
    axes.axvline(beta, color=look.colour, linestyle=look.line, linewidth=0.9, alpha=0.7)
    name = f"{label}: {value:.2f} at β = {beta:g}"
    axes.plot([beta], [value], "*", color=look.colour, markersize=14, markeredgecolor="black", label=name)


def _scatter(axes: Axes, points: Mapping[str, tuple[float, float]], kinds: Mapping[str, str], filled: set[str]) -> None:
    """Dots in the unit square by category, some filled and others open, with the diagonal."""
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    for category, look in styles_of(kinds).items():
        names = [name for name in points if kinds[name] == category]
        if not names:
            continue
        axes.plot([], [], look.marker, color=look.colour, label=text(category, 24))
        axes.scatter(
            [points[name][0] for name in names],
            [points[name][1] for name in names],
            36,
            marker=look.marker,
            facecolors=[look.colour if name in filled else "none" for name in names],
            edgecolors=look.colour,
            zorder=2,
        )
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xticks=ticks, yticks=ticks, aspect="equal")
    axes.grid(alpha=0.3)


def _r(one: Mapping[str, Spread], other: Mapping[str, Spread], ranks: bool = False) -> str:
    """The correlation in words."""
    value = analysis.correlation(one, other, ranks)
    return "R not defined" if value is None else f"R = {value:.2f}"
