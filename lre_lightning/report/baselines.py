"""Sections on the LRE compared with its baselines, and with a Jacobian lens: what does knowing the relation add?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from lre_lightning.grid import Layer
from lre_lightning.records import analysis
from lre_lightning.records.analysis import ALL, GENERIC_METHODS, METHODS, K, Means, Score
from lre_lightning.records.record import GENERIC, TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import LOOKS, STYLES, Style
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Picture, Section, missing, picture_of
from lre_lightning.report.sweeps import plot_layer_grid, sweep_table
from lre_lightning.report.tables import Row, Table, by_relation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {"oracle": "oracle s'", "unembedding": "unembedding row of o'", "object": "object o'"}
EVERY = {metric: METHODS[metric] | GENERIC_METHODS[metric] for metric in METHODS}
"""Scores of the LRE, of the paper's baselines and of the Jacobian lens by metric and method."""
ZERO_SHOT = analysis.faithfulness_methods(zero_shot=True)
LIKENESS = ("cosine of W and J", "directions read", "directions written")


def baselines(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return the LRE and its baselines by category, by layer and by relation."""
    measured = [record for record in records if record.faithful_baselines or record.generic_faithful]
    if not measured:
        return (missing("Baselines", "Baselines were", "--model.fitting.baselines true"),)
    return _faithfulness(measured), _causality(measured), _by_relation(measured)


def _compared(records: Sequence[TrialRecord], methods: Mapping[K, Score]) -> dict[K, Means]:
    """Return methods by category and over all relations, all of the same trials and relations.

    Those that were not measured for all relations that the first of them has are left out.
    """
    kinds, means = analysis.categories(analysis.counted(records)), analysis.side_by_side(records, methods)
    most = next(iter(means.values()))
    return {name: analysis.by_category(kinds, own) for name, own in means.items() if own and own.keys() >= most.keys()}


def _methods(metric: str) -> dict[tuple[str, ...], Score]:
    """Return the methods that tables and figures compare by metric, as rows begin."""
    if metric == "causality":
        return {(name,): score for name, score in EVERY[metric].items()}
    few: dict[tuple[str, ...], Score] = {(name, "few-shot"): score for name, score in EVERY[metric].items()}
    return few | {(name, "zero-shot"): score for name, score in ZERO_SHOT.items()}


def _rows(records: Sequence[TrialRecord], metric: str) -> tuple[Row, ...]:
    """Return a row for every method that was measured, with its means by category and over all relations."""
    columns = [*dict.fromkeys(analysis.categories(analysis.counted(records)).values()), ALL]
    return tuple((*name, *map(own.get, columns)) for name, own in _compared(records, _methods(metric)).items())


def _faithfulness(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "faith-baselines-prompting"."""
    table = Table(
        "faithfulness_baselines",
        f"Faithfulness of linear approximations of LM decoding by category of relations on {analysis.lm_of(records)}, "
        "with s from few-shot prompts, and from zero-shot prompts that consist of the subject alone. Means and "
        f"standard deviations over relations. {choice_text(records)}",
        ("method", "prompts of s", *dict.fromkeys(analysis.categories(analysis.counted(records)).values()), "all"),
        _rows(records, "faithfulness"),
    )
    note = "Light bars: s from zero-shot prompts that consist of the subject alone."
    name = "faithfulness_baselines_zero_shot"
    own = choice_text(records)
    pictures = (
        picture_of(plot_faithfulness_baselines, records, note=own),
        picture_of(plot_faithfulness_baselines, records, zero_shot=True, name=name, note=f"{note} {own}"),
    )
    return Section("Faithfulness baselines", pictures, (table,))


def _causality(records: Sequence[TrialRecord]) -> Section:
    """Figures "causality-baselines" and "causality-baselines-layerwise"."""
    by_category = Table(
        "causality_baselines",
        f"LRE causality compared with baselines on {analysis.lm_of(records)}: s is replaced by s' of the target "
        "subject (oracle), the row of the decoder head for o' (unembedding), and o' itself (object). Means and "
        f"standard deviations over relations. {choice_text(records)}",
        ("method", *dict.fromkeys(analysis.categories(analysis.counted(records)).values()), "all"),
        _rows(records, "causality"),
    )

    def best_rank(record: TrialRecord, layer: Layer) -> float:
        return max(analysis.causality(record, layer, rank) for rank in record.ranks)

    pictures: tuple[Picture, ...] = (picture_of(plot_causality_baselines, records, note=choice_text(records)),)
    kept = analysis.whole_grids(records, "layers")
    if not kept:
        return Section("Causality baselines", pictures, (by_category,))
    columns = {"LRE": analysis.causality, "LRE, best rank": best_rank, **METHODS["causality"]}
    by_layer = sweep_table(
        "causality_by_layer",
        f"LRE causality by layer of {analysis.lm_of(records)}, at the relations' ranks and at the best rank of each "
        "layer and trial, compared with baselines.",
        "layer",
        {name: analysis.by_layer(kept, score) for name, score in columns.items()},
    )
    pictures = (*pictures, picture_of(plot_causality_by_layer, records))
    return Section("Causality baselines", pictures, (by_category, by_layer))


def _by_relation(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "causality-baselines", by relation."""
    measured = {
        f"{metric}: {name}": scores
        for metric, methods in METHODS.items()
        for name, scores in analysis.side_by_side(records, methods).items()
        if scores
    }
    table = by_relation(
        "baselines_by_relation",
        f"LRE faithfulness and causality compared with baselines by relation on {analysis.lm_of(records)}. Means and "
        f"standard deviations over trials. {choice_text(records)}",
        analysis.categories(analysis.counted(records)),
        measured,
    )
    return Section("Baselines by relation", (picture_of(plot_baselines_by_relation, records),), (table,))


def plot_faithfulness_baselines(records: Sequence[TrialRecord], zero_shot: bool = False) -> Figure:
    """Faithfulness of linear approximations of LM decoding by category of relations (fig:faithfulness-baselines).

    The LRE at its layer and at the embedding, linear regression, translation and identity (the logit lens). Means over
    relations, with 95% intervals where there are five or more.
    """
    kinds = {"few-shot": "few-shot s", "zero-shot": "zero-shot s"} if zero_shot else {"few-shot": ""}
    return _plot_by_category(records, "faithfulness", kinds, [LOOKS["faithfulness"], Style("#56B4E9", hatch="////")])


def plot_causality_baselines(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by category of relations (fig:causality-baselines).

    The baselines replace s by s' of the target subject (the oracle), the row of the decoder head for o', and o' itself.
    Means over relations, with 95% intervals where there are five or more.
    """
    return _plot_by_category(records, "causality", {"": ""}, [LOOKS["causality"]])


def _plot_by_category(
    records: Sequence[TrialRecord], metric: str, kinds: Mapping[str, str], looks: Sequence[Style]
) -> Figure:
    """Plot a panel for all relations and per category, a row per method, and in it a bar per kind of prompts."""
    compared = _compared(records, _methods(metric))
    by_kind = {
        label: {name: scores for (name, *own), scores in compared.items() if "".join(own) == kind}
        for kind, label in kinds.items()
    }
    methods = list(next(iter(by_kind.values())))
    counts = Counter(analysis.categories(analysis.counted(records)).values())
    titles = {ALL: counts.total(), **counts}
    height = 0.7 + (0.2 + 0.14 * len(kinds)) * len(methods)
    figure, panels = plotting.panel_grid(len(titles), min(len(titles), 5), 10, height)
    for axes, (title, count) in zip(panels, titles.items(), strict=True):
        series = {
            label: {name: scores[name][title] for name in methods if title in scores.get(name, {})}
            for label, scores in by_kind.items()
        }
        plotting.bars(axes, methods, series, looks)
        axes.set_title(f"{plotting.text(title, 20)}\n({count})", fontsize=10)
    plotting.name_rows(panels, [LABELS.get(method, method) for method in methods])
    figure.supxlabel(f"{metric}, {plotting.MEAN}", fontsize=10)
    if len(kinds) > 1:
        plotting.legend(figure)
    return figure


def plot_baselines_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality of the LRE and of baselines by relation. Means over the trials that have them."""
    means = {
        metric: {LABELS.get(name, name): own for name, own in analysis.side_by_side(records, methods).items()}
        for metric, methods in METHODS.items()
    }
    kinds = analysis.categories(analysis.counted(records))
    return plotting.dotted_rows(means, plotting.best_first(kinds, means["faithfulness"]["LRE"]), kinds)


def plot_causality_by_layer(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by layer, per relation (fig:causality-baselines-layerwise).

    Means over the trials that were scored at all layers, at the relations' ranks. The first panel is the mean over
    relations, with the middle half shaded.
    """
    scores = analysis.per_relation(records, analysis.causality)
    names = plotting.best_first(analysis.categories(analysis.counted(records)), scores)
    series = {LABELS.get(name, name): (records, score) for name, score in METHODS["causality"].items()}
    return plot_layer_grid(series, names, "causality")


def generic(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return the section on LREs beside a Jacobian lens, if a fit has compared them."""
    compared = analysis.on_most((record for record in records if record.generic_faithful), "layers")
    if not compared:
        return ()
    *panels, (_, likeness) = _panels().items()
    columns = {f"{metric}: {name}": score for metric, scores in panels for name, score in scores.items()} | likeness
    layers = compared[0].generic_layers
    table = sweep_table(
        "generic",
        f"LREs of {analysis.lm_of(compared)} and its Jacobian lens J by layer: J in place of W, without b and with it, "
        "and both mixed, (n W + J) / (n + 1). The cosine of W and J, and how much of the leading directions that W "
        "reads from s, and writes to o, J shares (mean squared cosine of principal angles); a W of zeros has none. "
        + choice_text(compared),
        "layer",
        {name: analysis.sweep(compared, score, "layer", layers) for name, score in columns.items()},
    )
    return (Section("LREs and the Jacobian lens", (picture_of(plot_generic, compared),), (table,)),)


def _panels() -> dict[str, dict[str, Score]]:
    """Return what is measured at a layer, by panel and label."""

    def likeness(record: TrialRecord, layer: Layer, index: int) -> float:
        cosines = record.likeness[record.generic_layers.index(layer)]
        return cosines[index] if cosines[0] else math.nan  # the cosine is 0 for a W of zeros, which has no directions

    return {
        **{metric: {name: EVERY[metric][name] for name in ("LRE", *GENERIC_METHODS[metric])} for metric in EVERY},
        "likeness of W and J": {name: partial(likeness, index=index) for index, name in enumerate(LIKENESS)},
    }


def plot_generic(records: Sequence[TrialRecord]) -> Figure:
    """LREs, the Jacobian lens in place of W, and both mixed, by layer; and how alike W and J are.

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    layers = records[0].generic_layers
    figure = plotting.new_figure(11, 4)
    looks = dict(zip(("LRE", *GENERIC, *LIKENESS), STYLES, strict=False))
    for axes, (title, scores) in zip(figure.subplots(1, 3, sharey=True), _panels().items(), strict=True):
        for name, score in scores.items():
            sweep = analysis.sweep(records, score, "layer", layers)
            steady = analysis.throughout(sweep)
            plotting.mean_curve(axes, {layer: means for layer, means in steady.items() if means}, looks[name], name)
        plotting.layer_axis(axes, layers, 8)
        axes.set(title=title, xlabel="layer")
        plotting.fraction_axis(axes, "y")
    plotting.legend(figure)
    return figure
