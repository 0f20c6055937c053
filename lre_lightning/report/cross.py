"""Tables and the heat map of LREs on the test samples of every relation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lre_lightning.records import analysis
from lre_lightning.records.analysis import SCORES
from lre_lightning.report import plotting
from lre_lightning.report.tables import Cell, Row, Table, alphabetical
from lre_lightning.scoring.cross import CONTROLS, CrossScore

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN = "its own LRE"
NO_EDITS = ("W without b", "b alone")
"""Controls whose causality is known beforehand: that of the relation's own LRE, and none."""
SAME, OTHER = "LREs of other relations, same category", "LREs of other relations, other categories"


def matrix(scores: Sequence[CrossScore], metric: str) -> tuple[list[str], NDArray[np.float64]]:
    """Return the relations, and a score `[relation of the samples][relation of the LRE]`, its mean over trials.

    It is NaN where it was not measured.
    """
    means = analysis.spreads(((score.relation, score.reader), getattr(score, metric)) for score in scores)
    names = alphabetical({score.relation for score in scores})
    cells = [[means.get((row, column), (np.nan, None))[0] for column in names] for row in names]
    return names, np.array(cells, dtype=np.float64)


def _means(scores: Iterable[CrossScore]) -> list[Cell]:
    """Return mean and deviation of both scores over relations."""
    scores = list(scores)
    by_relation = (analysis.spreads((score.relation, getattr(score, metric)) for score in scores) for metric in SCORES)
    return list(map(analysis.overall, by_relation))


def matrix_table(scores: Sequence[CrossScore], metric: str) -> Table:
    """Return the matrix of a score as a table: a row per relation of test samples, a column per LRE."""
    names, cells = matrix(scores, metric)
    rows = tuple(
        (name, *(None if np.isnan(cell) else float(cell) for cell in row))
        for name, row in zip(names, cells, strict=True)
    )
    caption = f"{metric.capitalize()} of the LRE of each relation (columns) on the test samples of every other (rows)."
    return Table(f"cross_{metric}", caption, ("relation", *names), rows)


def controls_table(scores: Sequence[CrossScore]) -> Table:
    """Return both scores of the relations' own LREs, of their controls, and of the LREs of other relations."""
    category = {score.relation: score.category for score in scores}

    def kind_of(score: CrossScore) -> str:
        if score.reader == score.relation:
            return OWN
        if score.reader in category:
            return SAME if category[score.reader] == score.category else OTHER
        return score.reader

    def row(kind: str) -> Row:
        faithful, causal = _means(score for score in scores if kind_of(score) == kind)
        return (kind, faithful, None if kind in NO_EDITS else causal)

    caption = (
        "What of an LRE is particular to its relation: scores on a relation's test samples. Means and standard "
        "deviations over relations. An edit takes W alone: without b it is the relation's own, and with b alone there "
        "is none. "
        "Shuffled examples have each other's objects; they are left out where prompts show none, one, or one object's."
    )
    kinds = [kind for kind in (OWN, *CONTROLS, SAME, OTHER) if kind != CONTROLS[-1] or any(row(kind)[1:])]
    return Table("controls", caption, ("LRE", *SCORES), tuple(map(row, kinds)))


def similar_first(cells: NDArray[np.float64]) -> list[int]:
    """Return an order of relations in which those whose LREs work for each other are neighbours.

    It is that of the Fiedler vector, the second eigenvector of the Laplacian of the symmetrized matrix.
    """
    alike = np.nan_to_num(cells + cells.T)
    np.fill_diagonal(alike, 0)
    laplacian = np.diag(alike.sum(1)) - alike
    second = np.linalg.eigh(laplacian)[1][:, min(1, len(cells) - 1)]
    return [int(place) for place in np.argsort(second, kind="stable")]


def plot_cross(scores: Sequence[CrossScore]) -> Figure:
    """Faithfulness and causality of the LRE of each relation on the test samples of every relation.

    Means over trials. Relations whose LREs work for each other are neighbours; the diagonal is that of the fit.
    """
    names, faithful = matrix(scores, "faithfulness")
    order = similar_first(faithful)
    figure = plotting.new_figure(11, min(6.7, 3.5 + 0.115 * len(names)))  # cells are square, and the width is given
    panels = figure.subplots(1, 2, sharey=True)
    size = max(4, min(8, 260 / len(names)))
    labels = [plotting.text(names[i], 30) for i in order]
    for axes, metric in zip(panels, SCORES, strict=True):
        cells = matrix(scores, metric)[1][np.ix_(order, order)]
        image = axes.imshow(cells, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(names)), labels, rotation=90, fontsize=size)
        axes.set(title=metric, xlabel="LRE of")
    panels[0].set_yticks(range(len(names)), labels, fontsize=size)
    panels[0].set_ylabel("test samples of")
    figure.suptitle("relations whose LREs work for each other are neighbours", fontsize=9)
    figure.colorbar(image, ax=panels, shrink=0.6, pad=0.02)
    return figure
