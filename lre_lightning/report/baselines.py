"""Sections on the LRE compared with its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.grid import Layer
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import analysis, plotting
from lre_lightning.report.analysis import ALL, Score
from lre_lightning.report.plotting import LOOKS, Series, Style
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import over_relations_of, plot_layer_grid, sweep_rows
from lre_lightning.report.tables import Row, Table, alphabetical

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "oracle": r"oracle $\mathbf{s}'$",
    "unembedding": r"unembedding row of $\mathit{o}'$",
    "object": r"object $\mathbf{o}'$",
}


def baselines(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return the LRE and its baselines by category, by layer and by relation."""
    if not any(record.faithful_baselines for record in records):
        return (missing("Baselines", "Baselines were", "--model.fitting.baselines true"),)
    return _faithfulness(records), _causality(records), _by_relation(records)


def _by_category(records: Sequence[TrialRecord], methods: Mapping[str, Score], *labels: str) -> list[Row]:
    """Return a row for every method that was measured, with its means by category and over all relations."""
    columns = [*dict.fromkeys(analysis.categories(analysis.counted(records)).values()), ALL]
    found = {name: analysis.per_category(records, score) for name, score in methods.items()}
    return [(name, *labels, *(scores.get(column) for column in columns)) for name, scores in found.items() if scores]


def _faithfulness(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "faith-baselines-prompting"."""
    few, zero = analysis.faithfulness_methods(), analysis.faithfulness_methods(zero_shot=True)
    names = dict.fromkeys(analysis.categories(analysis.counted(records)).values())
    table = Table(
        "faithfulness_baselines",
        f"Faithfulness of linear approximations of LM decoding by category of relations on {analysis.lm_of(records)}, "
        "with s from few-shot prompts, and from zero-shot prompts that consist of the subject alone. Means and "
        "standard deviations over relations.",
        ("method", "prompts of s", *names, "all"),
        (*_by_category(records, few, "few-shot"), *_by_category(records, zero, "zero-shot")),
    )
    few_shot = picture_of(plot_faithfulness_baselines, records)
    note = "Light bars: s from zero-shot prompts that consist of the subject alone."
    name = "faithfulness_baselines_zero_shot"
    zero_shot = picture_of(plot_faithfulness_baselines, records, zero_shot=True, name=name, note=note)
    return Section("Faithfulness baselines", (few_shot, zero_shot), (table,))


def _causality(records: Sequence[TrialRecord]) -> Section:
    """Figures "causality-baselines" and "causality-baselines-layerwise"."""
    methods = analysis.causality_methods()
    names = dict.fromkeys(analysis.categories(analysis.counted(records)).values())
    by_category = Table(
        "causality_baselines",
        f"LRE causality compared with baselines on {analysis.lm_of(records)}: s is replaced by s' of the target "
        "subject (oracle), the row of the decoder head for o' (unembedding), and o' itself (object). Means and "
        "standard deviations over relations.",
        ("method", *names, "all"),
        tuple(_by_category(records, methods)),
    )

    def best_rank(record: TrialRecord, layer: Layer) -> float:
        return max(analysis.causality(record, layer, rank) for rank in record.ranks)

    kept = analysis.on_most(records, "layers")
    columns = {"LRE": methods["LRE"], "LRE, best rank": best_rank, **methods}
    by_layer = Table(
        "causality_by_layer",
        f"LRE causality by layer of {analysis.lm_of(records)}, at the relations' ranks and at the best rank of each "
        f"layer and trial, compared with baselines. {over_relations_of(kept)}",
        ("layer", *columns),
        sweep_rows(kept, "layer", analysis.layers_of(kept), columns.values()),
    )
    bars = picture_of(plot_causality_baselines, records)
    curves = picture_of(plot_causality_by_layer, records)
    return Section("Causality baselines", (bars, curves), (by_category, by_layer))


def _by_relation(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "causality-baselines", by relation."""
    found = {
        f"{metric}: {name}": analysis.per_relation(records, score)
        for metric, methods in analysis.methods().items()
        for name, score in methods.items()
    }
    measured = {name: scores for name, scores in found.items() if scores}
    relations = alphabetical({record.relation for record in analysis.counted(records)})
    table = Table(
        "baselines_by_relation",
        f"LRE faithfulness and causality compared with baselines by relation on {analysis.lm_of(records)}. Means and "
        "standard deviations over trials.",
        ("relation", *measured),
        tuple((relation, *(scores.get(relation) for scores in measured.values())) for relation in relations),
    )
    return Section("Baselines by relation", (picture_of(plot_baselines_by_relation, records),), (table,))


def plot_faithfulness_baselines(records: Sequence[TrialRecord], zero_shot: bool = False) -> Figure:
    """Faithfulness of linear approximations of LM decoding by category of relations (fig:faithfulness-baselines).

    The LRE at its layer and at the embedding, linear regression, translation and identity (the logit lens). Means and
    standard deviations over relations.
    """
    few, zero = analysis.faithfulness_methods(), analysis.faithfulness_methods(zero_shot=True)
    dark, light = LOOKS["faithfulness"], Style("#56B4E9", hatch="////")
    kinds = {"few-shot s": (few, dark), "zero-shot s": (zero, light)} if zero_shot else {"": (few, dark)}
    missing = "zero-shot baselines" if zero_shot else "baselines"
    return _plot_by_category(records, "faithfulness", kinds, f"{missing} of faithfulness")


def plot_causality_baselines(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by category of relations (fig:causality-baselines).

    The baselines replace s by s' of the target subject (the oracle), the row of the decoder head for o', and o' itself.
    Means and standard deviations over relations.
    """
    kinds = {"": (analysis.causality_methods(), LOOKS["causality"])}
    return _plot_by_category(records, "causality", kinds, "baselines of causality")


def _plot_by_category(
    records: Sequence[TrialRecord],
    metric: str,
    kinds: Mapping[str, tuple[Mapping[str, Score], Style]],
    needed: str,
) -> Figure:
    """Plot a panel for all relations and per category, a row per method, and in it a bar per kind of prompts."""
    found = [
        (label, look, {name: analysis.per_category(records, score) for name, score in methods.items()})
        for label, (methods, look) in kinds.items()
    ]
    compared = [scores for name, scores in found[-1][2].items() if name != "LRE"]
    plotting.need(any(compared), f"the records hold no {needed}")
    methods = [name for name, scores in found[0][2].items() if scores]
    relations = list(analysis.categories(analysis.counted(records)).values())
    titles = {ALL: len(relations), **{name: relations.count(name) for name in relations}}
    size, height = 0.75 / len(kinds), 0.7 + (0.2 + 0.14 * len(kinds)) * len(methods)
    figure, panels = plotting.panel_grid(len(titles), min(len(titles), 5), 10, height, 1.2)
    for axes, (title, count) in zip(panels, titles.items(), strict=True):
        series = [
            Series(label, look, {name: scores[name][title] for name in methods if title in scores[name]})
            for label, look, scores in found
        ]
        plotting.bars(axes, methods, series, size, size)
        axes.set_title(f"{plotting.text(title, 20)}\n({count})", fontsize=10)
    plotting.name_rows(panels, [LABELS.get(method, method) for method in methods])
    figure.supxlabel(f"{metric}, {plotting.MEAN}", fontsize=10)
    if len(kinds) > 1:
        plotting.legend(figure, panels)
    return figure


def plot_baselines_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality of the LRE and of baselines by relation. Means over trials."""
    found = {
        metric: [
            Series(LABELS.get(name, name), plotting.style(index), analysis.per_relation(records, score))
            for index, (name, score) in enumerate(methods.items())
        ]
        for metric, methods in analysis.methods().items()
    }
    plotting.need(any(one.scores for series in found.values() for one in series[1:]), "the records hold no baselines")
    kinds = analysis.categories(analysis.counted(records))
    return plotting.dotted_rows(found, plotting.best_first(kinds, found["faithfulness"][0].scores), kinds)


def plot_causality_by_layer(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by layer, per relation (fig:causality-baselines-layerwise).

    Means over trials, at the relations' ranks. The first panel is the mean over relations, with the middle half shaded.
    """
    methods = analysis.causality_methods()
    found = {name: analysis.per_relation(records, score) for name, score in methods.items()}
    plotting.need(any([found[name] for name in LABELS]), "the records hold no baselines of causality")
    names = plotting.best_first(analysis.categories(analysis.counted(records)), found["LRE"])
    series = {LABELS.get(name, name): (records, score) for name, score in methods.items()}
    return plot_layer_grid(series, names, "causality")
