"""Parts that the figures share: styles, rows with bars or points, grids of panels, curves and labels.

Colours are the Okabe-Ito palette's, which colour-blind readers can tell apart; two series that could be confused also
differ in marker, line or hatch.
"""

from __future__ import annotations

import math
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lre_lightning.grid import Layer
from lre_lightning.records.summary import Spread

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Sweep = Mapping[float, Mapping[str, Spread]]
"""Scores by relation, by their place on the axis of layers or ranks."""

NOT_IN_XML = re.compile("[^\t-\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

GREY, PALE = "#555555", "#E8E8E8"
GUESS = "random guess"


@dataclass(frozen=True)
class Style:
    """How one of several series is drawn."""

    colour: str
    marker: str
    line: str
    hatch: str


STYLES = (
    Style("#0072B2", "o", "-", ""),
    Style("#D55E00", "s", "--", "////"),
    Style("#009E73", "^", "-.", "...."),
    Style("#E69F00", "D", ":", "xxxx"),
    Style("#CC79A7", "v", "-", "\\\\\\\\"),
    Style("#56B4E9", "P", "--", "++++"),
    Style("#F0E442", "X", "-.", "oo"),
    Style("#000000", "*", ":", "----"),
)
FAITHFULNESS, CAUSALITY = STYLES[0], STYLES[1]


def style(index: int) -> Style:
    """The style of the series of this number; they repeat after eight."""
    return STYLES[index % len(STYLES)]


def styles_of(categories: Mapping[str, str]) -> dict[str, Style]:
    """A style for every category, in the order in which they first occur; not those of faithfulness and causality."""
    return {category: style(2 + index) for index, category in enumerate(dict.fromkeys(categories.values()))}


def text(name: str, width: int = 34) -> str:
    """A name as it is to be drawn: in lines of at most `width` characters, and never as mathematics.

    Characters that cannot be in an SVG file are written as in Python source.
    """
    legal = NOT_IN_XML.sub(lambda found: repr(found[0])[1:-1], name)
    return textwrap.fill(legal, width).replace("$", r"\$")


def cut(name: str, length: int = 48) -> str:
    """A name as it is to be drawn in one line, cut off after `length` characters."""
    return text(name if len(name) <= length else name[: length - 1] + "…", length)


def number_of(count: int, noun: str = "relation") -> str:
    """A count with its noun, such as ``"1 relation"`` or ``"47 relations"``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of a size in inches, whose contents keep clear of each other."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06))


def legend(figure: Figure, panels: Sequence[Axes], columns: int = 5) -> None:
    """Name the series of the panels above all of them, each once, the random guess last."""
    named: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(label, handle)
    labels = sorted(named, key=lambda label: label == GUESS)
    handles = [named[label] for label in labels]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, frameon=False)


def share_axis(axes: Axes, axis: str = "x") -> None:
    """Let an axis run over the shares 0 to 1."""
    limits = {"xlim": (0, 1.05)} if axis == "x" else {"ylim": (-0.03, 1.05)}
    axes.set(**limits)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    (axes.set_xticks if axis == "x" else axes.set_yticks)(ticks, ["0", "", "0.5", "", "1"])
    axes.grid(axis="x" if axis == "x" else "both", alpha=0.3)
    axes.set_axisbelow(True)


def rows(names: Sequence[str], titles: Sequence[str], xlabel: str, row_height: float) -> tuple[Figure, list[Axes]]:
    """Panels side by side that share their rows, the first name on top.

    Args:
        names: What the rows are called, on the left.
        titles: A title for each panel, or "".
        xlabel: What all panels measure.
        row_height: Height of a row in inches.
    """
    figure = new_figure(9 if len(titles) == 1 else 11, 1.6 + row_height * len(names))
    panels: list[Axes] = list(figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(text(title, 24), fontsize=10)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(names)), [cut(name) for name in names], fontsize=9)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    figure.supxlabel(xlabel, fontsize=10)
    return figure, panels


def bars(
    axes: Axes, places: Sequence[float], scores: Sequence[Spread | None], size: float, look: Style, label: str
) -> None:
    """Horizontal bars, one for each score that there is, with its deviation where there is one."""
    kept = [(place, score[0]) for place, score in zip(places, scores, strict=True) if score is not None]
    if not kept:
        return
    axes.barh(
        [place for place, _ in kept],
        [mean for _, mean in kept],
        size,
        color=look.colour,
        hatch=look.hatch,
        edgecolor="white",
        linewidth=0,
        label=label,
    )
    deviations(axes, places, scores)


def dots(axes: Axes, places: Sequence[float], scores: Sequence[Spread | None], look: Style, label: str) -> None:
    """One dot in each row for each score that there is."""
    kept = [(place, score[0]) for place, score in zip(places, scores, strict=True) if score is not None]
    axes.plot(
        [mean for _, mean in kept],
        [place for place, _ in kept],
        marker=look.marker,
        color=look.colour,
        markersize=5,
        linestyle="none",
        label=label,
        clip_on=False,
    )


def deviations(axes: Axes, places: Sequence[float], scores: Sequence[Spread | None]) -> None:
    """Horizontal error bars of a deviation to both sides, for the scores that have one."""
    kept = [(at, *score) for at, score in zip(places, scores, strict=True) if score is not None]
    known = [(at, mean, deviation) for at, mean, deviation in kept if deviation is not None]
    if known:
        at, means, widths = zip(*known, strict=True)
        axes.errorbar(means, at, xerr=widths, fmt="none", ecolor="#222222", elinewidth=0.9, capsize=1.8)


def guess_marks(axes: Axes, guesses: Sequence[float | None]) -> None:
    """A mark in each row at the share that a random guess reaches."""
    kept = [(guess, row) for row, guess in enumerate(guesses) if guess is not None]
    axes.plot(
        [guess for guess, _ in kept],
        [row for _, row in kept],
        marker="|",
        markersize=12,
        markeredgewidth=1.6,
        color="black",
        linestyle="none",
        label=GUESS,
        clip_on=False,
    )


def category_marks(axes: Axes, relations: Sequence[str], categories: Mapping[str, str], marks: bool = True) -> None:
    """Each row's category to the right of it: its mark, unless the rows hold marks of their own, and its name."""
    from matplotlib.transforms import ScaledTranslation

    looks = styles_of(categories)
    side = axes.get_yaxis_transform()
    beside = side + ScaledTranslation(9 / 72, 0, axes.figure.dpi_scale_trans)
    for row, relation in enumerate(relations):
        look, name = looks[categories[relation]], text(categories[relation], 20)
        if marks:
            axes.plot(1, row, look.marker, color=look.colour, markersize=6, transform=beside, clip_on=False)
        place = (18 if marks else 6, 0)
        axes.annotate(name, (1, row), place, xycoords=side, textcoords="offset points", fontsize=8, va="center")


def not_scored(axes: Axes, row: int) -> None:
    """Grey out a row."""
    axes.axhspan(row - 0.45, row + 0.45, color=PALE, linewidth=0, zorder=0.5)
    axes.text(0.03, row, "not scored", fontsize=7, color=GREY, style="italic", va="center")


def layer_grid(titles: Sequence[str], layers: Sequence[Layer], ylabel: str) -> tuple[Figure, list[Axes]]:
    """Small panels of one size, a title over each, with the layers across and shares upwards."""
    columns = min(len(titles), 4)
    count = math.ceil(len(titles) / columns)
    figure = new_figure(10, 1.2 + (1.65 if columns > 2 else 3) * count)
    cells = figure.subplots(count, columns, sharex=True, sharey=True, squeeze=False).flatten().tolist()
    panels: list[Axes] = cells[: len(titles)]
    for axes in cells[len(titles) :]:
        axes.remove()
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)  # also above an empty place in the last row
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(text(title, 30), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    layer_axis(panels[0], layers, 6)  # the panels share it
    share_axis(panels[0], "y")
    figure.supxlabel("layer", fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    return figure, panels


def layer_place(layer: Layer) -> int:
    """Where a layer lies on the axis of layers: the embedding comes before layer 0."""
    return -1 if layer == "emb" else int(layer)


def layer_axis(axes: Axes, layers: Sequence[Layer], most: int) -> None:
    """Name the layers, of many as many as have room: about `most`, evenly spaced."""
    first, last = layer_place(layers[0]), layer_place(layers[-1])
    gap = (last - first) / most
    named: list[Layer] = []
    for layer in layers:
        if not named or layer_place(layer) - layer_place(named[-1]) >= gap:
            named.append(layer)
    axes.set_xticks([layer_place(layer) for layer in named], [str(layer) for layer in named])
    axes.set_xlim(first - 0.5, last + 0.5)


def curve(axes: Axes, points: Mapping[float, float], look: Style, label: str) -> None:
    """A line through points, if there are any, with a mark on each, or on some of many."""
    if not points:
        return
    axes.plot(
        list(points),
        list(points.values()),
        look.line,
        color=look.colour,
        marker=look.marker,
        markersize=4,
        markevery=math.ceil(len(points) / 16),
        linewidth=1.5,
        label=label,
    )


def mean_curve(axes: Axes, sweep: Sweep, look: Style, label: str, with_count: bool = False) -> None:
    """The mean over the relations that have a score at every place, the middle half of them shaded.

    Args:
        axes: Where to draw; nothing is drawn if no relation has all the scores.
        sweep: What to draw.
        look: How to draw it.
        label: Its name in the legend.
        with_count: Whether to add the number of relations to the name.
    """
    by_place = list(sweep.values())
    relations = [name for name in (by_place[0] if by_place else ()) if all(name in scores for scores in by_place)]
    if not relations:
        return
    means = [[scores[name][0] for name in relations] for scores in by_place]
    name = f"{label} ({number_of(len(relations))})" if with_count else label
    curve(axes, {place: statistics.fmean(at) for place, at in zip(sweep, means, strict=True)}, look, name)
    if len(relations) > 1:
        quartiles = [statistics.quantiles(at, n=4, method="inclusive") for at in means]
        low, high = [at[0] for at in quartiles], [at[2] for at in quartiles]
        axes.fill_between(list(sweep), low, high, color=look.colour, alpha=0.15, linewidth=0)


def relation_curve(axes: Axes, sweep: Sweep, relation: str, look: Style, label: str, shaded: bool = False) -> None:
    """One relation's curve where it has the score, with its deviation shaded if asked for."""
    found = [(place, *scores[relation]) for place, scores in sweep.items() if relation in scores]
    curve(axes, {place: mean for place, mean, _ in found}, look, label)
    if shaded:
        low = [mean - (deviation or 0) for _, mean, deviation in found]
        high = [mean + (deviation or 0) for _, mean, deviation in found]
        axes.fill_between([place for place, _, _ in found], low, high, color=look.colour, alpha=0.2, linewidth=0)


def label_points(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]], names: Sequence[str]) -> None:
    """Write the names of some points beside them, where there is room; a name without room is left out.

    Args:
        figure: The figure, otherwise finished.
        axes: Where the points are.
        points: All points.
        names: Those to label, the most important first.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()
    radius = 4 * figure.dpi / 72
    inner = axes.bbox.padded(-radius)

    def around(x: float, y: float) -> Bbox:
        return Bbox.from_bounds(x - radius, y - radius, 2 * radius, 2 * radius)

    taken = [around(*axes.transData.transform(point)) for point in points.values()]
    written: list[Bbox] = []
    for name in names:
        start = axes.transData.transform(points[name])
        for distance, (right, up) in _around():
            label = axes.annotate(
                text(name),
                points[name],
                (distance * right, distance * up),
                textcoords="offset points",
                fontsize=8,
                ha=("right", "center", "left")[right + 1],
                va=("top", "center", "bottom")[up + 1],
                arrowprops={"arrowstyle": "-", "color": GREY, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3},
                in_layout=False,
            )
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer)  # without the line to its point
            inside = inner.x0 < box.x0 and inner.y0 < box.y0 and box.x1 < inner.x1 and box.y1 < inner.y1
            end = start + np.array([right, up]) * distance * figure.dpi / 72
            line = [around(*(start + (end - start) * part)) for part in np.linspace(0, 1, distance // 4)]
            crossed = any(part.overlaps(other) for part in line for other in written)
            if inside and not crossed and not any(box.overlaps(other) for other in taken):
                taken += [box, *line]
                written.append(box)
                break
            label.remove()


def _around() -> list[tuple[int, tuple[int, int]]]:
    """Where a label may stand, by distance from its point in points of type and direction, the best first."""
    directions = [(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1)]
    return [(distance, direction) for distance in (6, 14, 24, 36, 50, 70, 90) for direction in directions]


def short_names(models: Sequence[str]) -> list[str]:
    """The last part of each LM's name or folder; the whole where two would be called alike."""
    last = [model.rstrip("/").rsplit("/", 1)[-1] or "LM" for model in models]
    return [name if last.count(name) == 1 else model or name for name, model in zip(last, models, strict=True)]
