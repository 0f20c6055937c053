"""The leaderboard: LMs by how linear their relations are, and relations by LM."""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.records import analysis
from lre_lightning.records.analysis import SCORES, ModelResults
from lre_lightning.records.files import read_records
from lre_lightning.report import plotting
from lre_lightning.report.page import write_page
from lre_lightning.report.relations import CONSTANT_TEXT
from lre_lightning.report.sections import Chapter, Section, picture_of
from lre_lightning.report.tables import Table
from lre_lightning.storage.files import check_writable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def make_leaderboard(
    results: Sequence[str | Path], out: str | Path, title: str | None = None
) -> tuple[Path, list[Table]]:
    """Write a page that compares LMs, ``index.html``, its tables as CSV and LaTeX next to it, and return both.

    `results` are files of records, or folders of collections or runs, of one LM or several.
    """
    scored = [model for model in analysis.by_model(read_records(results)) if analysis.counted(model.main)]
    if not scored:
        raise LREError("there is no scored relation in the results: give collections, or folders of runs")
    check_writable(Path(out))
    models = ranked(scored)
    tables = [models_table(models), *(relations_table(models, score) for score in SCORES)]
    sections = (
        Section("LMs", tables=(tables[0],)),
        Section("Relations", (picture_of(plot_linearity, models),), tuple(tables[1:])),
    )
    command = shlex.join(["lre", "leaderboard", *map(str, results), *(["--title", title] if title else [])])
    chapter = Chapter("How linear are the relations of language models?", "", sections)
    return write_page(Path(out), title or "Leaderboard", [chapter], results, command), tables


def shared_scores(models: Sequence[ModelResults]) -> list[list[analysis.Means]]:
    """Return the scores of each LM by relation, both of `SCORES`, over the relations that all LMs have scores of."""
    by_lm = [analysis.both_by_relation(model.main).values() for model in models]
    shared = set.intersection(*(set(faithful) for faithful, _ in by_lm))
    return [[{name: mean for name, mean in means.items() if name in shared} for means in scores] for scores in by_lm]


def ranked(models: Sequence[ModelResults]) -> list[ModelResults]:
    """Return LMs by falling faithfulness over the relations that all have, then over all of their own."""

    def merit(place: int) -> list[float]:
        own = analysis.over_relations(models[place].main, analysis.faithfulness)
        return [mean[0] if mean else 0.0 for mean in (analysis.overall(shared[place][0]), own)]

    shared = shared_scores(models)
    return [models[place] for place in sorted(range(len(models)), key=merit, reverse=True)]


def models_table(models: Sequence[ModelResults]) -> Table:
    """Return a row per LM, in the order given."""
    shared, constant = shared_scores(models), [analysis.constant(model.main) for model in models]
    blind = [name for name in analysis.CONSTANT if any(name in answers for answers in constant)]
    rows = tuple(
        (
            place,
            name,
            model.main[0].n_shot,
            len(analysis.per_relation(model.main, analysis.faithfulness)),
            *map(analysis.overall, scores),
            *analysis.both_scores(model.main),
            *(analysis.overall(answers.get(answer, {})) for answer in blind),
        )
        for place, ((name, model), scores, answers) in enumerate(
            zip(analysis.named(models).items(), shared, constant, strict=True), 1
        )
    )
    return Table(
        "leaderboard",
        f"LMs by the faithfulness of their LREs over the {plotting.number_of(len(shared[0][0]))} that all of them were "
        "scored on, and both scores over all relations of each. Means and standard deviations over relations."
        + (f" {CONSTANT_TEXT}" if blind else ""),
        ("place", "LM", "n", "relations scored", *(f"{name}, shared" for name in SCORES), *SCORES, *blind),
        rows,
    )


def relations_table(models: Sequence[ModelResults], score: str) -> Table:
    """Return a row per relation with a score on each LM, the relation that is the most linear on average first."""
    by_lm = [analysis.per_relation(model.main, SCORES[score]) for model in models]
    kinds = analysis.categories(record for model in models for record in analysis.counted(model.main))
    constant = [analysis.constant(model.main) for model in models] if score == "faithfulness" else []
    blind = {name: by_mean([answers.get(name, {}) for answers in constant]) for name in analysis.CONSTANT}
    blind = {name: means for name, means in blind.items() if means}
    return Table(
        f"relations_{score}",
        f"{score.capitalize()} by relation and LM, and its mean over LMs. Means and standard deviations over trials."
        + (f" {CONSTANT_TEXT} They are means over LMs." if blind else ""),
        ("relation", "category", "LMs", "mean", *blind, *analysis.names_of(models)),
        tuple(
            (
                *(name, kinds[name], sum(name in scores for scores in by_lm), mean),
                *(means.get(name) for means in blind.values()),
                *(scores.get(name) for scores in by_lm),
            )
            for name, mean in by_mean(by_lm).items()
        ),
    )


def by_mean(by_lm: Sequence[analysis.Means]) -> dict[str, float]:
    """Return the mean of each relation over the LMs that have a score of it, the highest first."""
    names = {name for scores in by_lm for name in scores}
    means = {name: statistics.fmean(scores[name][0] for scores in by_lm if name in scores) for name in names}
    return dict(sorted(means.items(), key=lambda pair: (-pair[1], pair[0])))


def plot_linearity(models: Sequence[ModelResults]) -> Figure:
    """Faithfulness and causality by relation and LM, means over trials; grey where a relation was not scored.

    LMs are in the order given, and relations by their mean faithfulness over LMs.
    """
    from matplotlib import colormaps

    scores = [[analysis.per_relation(model.main, score) for model in models] for score in SCORES.values()]
    names, labels = list(by_mean(scores[0])), [plotting.text(name, 24) for name in analysis.names_of(models)]
    figure = plotting.new_figure(5 + 0.9 * len(models), 2.2 + 0.24 * len(names))
    panels = figure.subplots(1, 2, sharey=True)
    blues = colormaps["Blues"].with_extremes(bad="#CCCCCC")
    for axes, metric, by_lm in zip(panels, SCORES, scores, strict=True):
        cells = np.array([[means.get(name, (np.nan, None))[0] for means in by_lm] for name in names], dtype=float)
        image = axes.imshow(cells, cmap=blues, vmin=0, vmax=1, aspect="auto")
        axes.set_title(metric, fontsize=10)
        axes.set_xticks(range(len(models)), labels, rotation=45, ha="right", fontsize=8)
        for row, column in zip(*np.nonzero(~np.isnan(cells)), strict=True):
            value = cells[row, column]
            ink = "white" if value > 0.6 else "#111111"  # black would turn light with the page's text in the dark
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)
    plotting.name_rows(list(panels), [plotting.text(name, 48) for name in names], fontsize=8)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    figure.colorbar(image, ax=list(panels), shrink=0.5, pad=0.02)
    return figure
