"""Building blocks of the figures: rows with bars or dots, panels with curves, scatter plots, and labels.

The colours are the Okabe-Ito palette, which is safe for colour-blind readers; series that could be confused also differ
in marker, line or hatch.
"""

from __future__ import annotations

import math
import re
import statistics
import textwrap
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from lre_lightning.grid import Layer, place_of
from lre_lightning.records.analysis import Means, Sweep
from lre_lightning.report.tables import cell_text
from lre_lightning.statistics.estimates import Estimate, spread
from lre_lightning.statistics.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_IN_XML = re.compile("[^\t-\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
GREY = "#767676"
GUESS = "random guess"
MEAN = "mean over relations"
CONSTANT_MARKS = {"b alone": "x", "majority of training": "^", "majority of data": "o"}


@dataclass(frozen=True)
class Style:
    """The look of one of several series."""

    colour: str
    marker: str = ""
    line: str = ""
    hatch: str = ""


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
LOOKS = {"faithfulness": STYLES[0], "causality": STYLES[1]}
CATEGORIES = dict(zip(("bias", "commonsense", "factual", "linguistic"), STYLES[2:6], strict=True))
"""Styles of the paper's categories."""
OTHERS = [Style(look.colour, marker) for marker in "X*<>hpd8" for look in STYLES[:6]]
"""Styles of other categories."""


def styles_of(categories: Mapping[str, str]) -> dict[str, Style]:
    """Return a style for every category, given by relation: that of its name, the same in every figure and run.

    If two names have the same style, the later one in the alphabet gets the next.
    """
    styles: dict[str, Style] = {}
    for name in sorted(set(categories.values())):
        place = zlib.crc32(name.encode())
        free = (look for i in range(len(OTHERS)) if (look := OTHERS[(place + i) % len(OTHERS)]) not in styles.values())
        styles[name] = CATEGORIES.get(name) or next(free, OTHERS[place % len(OTHERS)])
    return styles


def text(name: str, width: int = 34) -> str:
    """Return a name for a figure, wrapped at `width` characters and never read as mathematics.

    Characters that an SVG file cannot hold are escaped as in Python source.
    """
    legal = NOT_IN_XML.sub(lambda match: repr(match[0])[1:-1], name)
    return textwrap.fill(legal, width).replace("$", r"\$")


def number_of(count: int) -> str:
    """Return a number of relations in words, such as ``"1 relation"`` or ``"47 relations"``."""
    return f"{count} relation{'' if count == 1 else 's'}"


def best_first(relations: Iterable[str], scores: Means) -> list[str]:
    """Return relations by falling score, followed by those without the score."""
    return sorted(relations, key=lambda name: -scores[name][0] if name in scores else math.inf)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, whose parts are kept from overlapping."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from lre_lightning.pictures import Picture

    return Picture(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06))


def panel_grid(count: int, columns: int, width: float, height: float, shared: bool = True) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels, `columns` in a row, which share their axes unless told otherwise.

    The figure is `width` inches wide, and a row of panels `height` inches high.
    """
    rows = math.ceil(count / columns)
    figure = new_figure(width, 1.2 + height * rows)
    cells = figure.subplots(rows, columns, sharex=shared, sharey=shared, squeeze=False).flatten().tolist()
    for axes in cells[count:]:
        axes.remove()
    panels: list[Axes] = cells[:count]
    for axes in panels[-columns:]:
        axes.tick_params(labelbottom=True)  # also above an empty place in the last row
    return figure, panels


def legend(figure: Figure, columns: int = 5) -> None:
    """Add a legend above the panels, which names each series once and the random guess last.

    It has at most so many columns, and no more than fit into the figure.
    """
    shown = [pair for axes in figure.axes for pair in zip(*axes.get_legend_handles_labels(), strict=True)]
    named = {label: handle for handle, label in shown}
    labels = sorted(named, key=GUESS.__eq__)
    inches = 0.55 + 0.072 * max(map(len, labels), default=0)  # of a column
    fitting = max(1, min(columns, int(figure.get_figwidth() / inches)))
    figure.legend([named[label] for label in labels], labels, loc="outside upper center", ncols=fitting, frameon=False)


def narrowed(figure: Figure, width: float) -> Figure:
    """Return a figure made `width` inches wide, with no more columns in its legend than fit then.

    Where that leaves a panel less than an inch beside its labels, the figure is as much wider.
    """
    figure.draw_without_rendering()
    labels = max(axes.get_tightbbox().width - axes.bbox.width for axes in figure.axes) / figure.dpi  # type: ignore[union-attr]
    figure.set_figwidth(max(width, labels + 1.2))
    for wide in list(figure.legends):
        wide.remove()
    legend(figure)
    return figure


def fraction_axis(axes: Axes, axis: str = "x") -> None:
    """Let an axis show the fractions from 0 to 1."""
    axes.set(**{"xlim": (0, 1.05)} if axis == "x" else {"ylim": (-0.03, 1.05)})
    set_ticks = axes.set_xticks if axis == "x" else axes.set_yticks
    set_ticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
    axes.grid(axis="x" if axis == "x" else "both", alpha=0.3)
    axes.set_axisbelow(True)


def rows(names: Sequence[str], titles: Sequence[str], xlabel: str, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels side by side that share their rows, each `height` inches high, the first on top."""
    figure = new_figure(9 if len(titles) == 1 else 11, 1.6 + height * len(names))
    panels: list[Axes] = list(figure.subplots(1, len(titles), sharex=True, sharey=True, squeeze=False)[0])
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(text(title, 24), fontsize=10)
    name_rows(panels, [text(name if len(name) <= 48 else f"{name[:47]}…", 48) for name in names], fontsize=9)
    figure.supxlabel(xlabel, fontsize=10)
    return figure, panels


def name_rows(panels: Sequence[Axes], names: Sequence[str], fontsize: float | None = None) -> None:
    """Name the rows of panels that share them, the first on top."""
    panels[0].set_yticks(range(len(names)), names, fontsize=fontsize)
    panels[0].set_ylim(len(names) - 0.4, -0.6)
    for axes in panels:
        axes.tick_params(axis="y", length=0, pad=8)  # a mark at 0 lies across the axis, but not on the names


Points = list[tuple[float, Estimate]]
"""Places and scores."""


def _placed(
    names: Sequence[str], series: Mapping[str, Means], looks: Iterable[Style], height: float
) -> Iterator[tuple[str, Style, Points]]:
    """Yield label, style and points of each series, with the points of a row side by side in its `height`."""
    for index, ((label, scores), look) in enumerate(zip(series.items(), cycle(looks), strict=False)):
        shift = (index - (len(series) - 1) / 2) * height / len(series)
        yield label, look, [(row + shift, scores[name]) for row, name in enumerate(names) if name in scores]


def bars(axes: Axes, names: Sequence[str], series: Mapping[str, Means], looks: Sequence[Style] = STYLES) -> None:
    """Plot horizontal bars with their intervals, those of a row side by side, for scores by label."""
    for label, look, points in _placed(names, series, looks, 0.8):
        if points:
            places = [place for place, _ in points]
            means = [score.value for _, score in points]
            options: dict[str, Any] = {"color": look.colour, "hatch": look.hatch}
            axes.barh(places, means, 0.76 / len(series), label=label, edgecolor="white", linewidth=0, **options)
            intervals(axes, points)
    fraction_axis(axes)


def dots(
    axes: Axes, names: Sequence[str], series: Mapping[str, Means], looks: Sequence[Style] = STYLES, **options: Any
) -> None:
    """Plot a dot per row and label, those of a row side by side; `options` are those of the markers."""
    for label, look, points in _placed(names, series, looks, 0.64):
        own: dict[str, Any] = {"marker": look.marker, "color": look.colour, "linestyle": "none"}
        own |= {"markersize": 5, "clip_on": False, **options}
        axes.plot([score.value for _, score in points], [place for place, _ in points], label=label, **own)


def intervals(axes: Axes, points: Points) -> None:
    """Plot the intervals of the scores that have one as horizontal error bars."""
    known = [(place, score.value, score.interval) for place, score in points if score.interval]
    if known:
        # Of equal values the interval is their mean but for rounding; no bar may be shorter than nothing.
        ends = [
            [max(value - interval.low, 0) for _, value, interval in known],
            [max(interval.high - value, 0) for _, value, interval in known],
        ]
        places, values = [place for place, *_ in known], [value for _, value, _ in known]
        axes.errorbar(values, places, xerr=ends, fmt="none", ecolor="black", elinewidth=0.9, capsize=1.8)


def guess_marks(axes: Axes, names: Sequence[str], guesses: Means) -> None:
    """Mark the score of a random guess in each row that has one."""
    dots(axes, names, {GUESS: guesses}, [Style("black", "|")], markersize=12, markeredgewidth=1.6)


def constant_marks(axes: Axes, names: Sequence[str], scores: Mapping[str, Means]) -> None:
    """Mark the scores of answers that are the same for all subjects."""
    for name, marker in CONSTANT_MARKS.items():
        if name in scores:
            dots(axes, names, {name: scores[name]}, [Style("black", marker)], markersize=5, markerfacecolor="none")


def category_marks(axes: Axes, relations: Sequence[str], categories: Mapping[str, str]) -> None:
    """Write each row's category, with its mark, to the right of it."""
    from matplotlib.transforms import ScaledTranslation

    looks = styles_of(categories)
    side = axes.get_yaxis_transform()
    beside = side + ScaledTranslation(9 / 72, 0, axes.figure.dpi_scale_trans)
    for row, relation in enumerate(relations):
        look, name = looks[categories[relation]], text(categories[relation], 20)
        axes.plot(1, row, look.marker, color=look.colour, markersize=6, transform=beside, clip_on=False)
        axes.annotate(name, (1, row), (18, 0), xycoords=side, textcoords="offset points", fontsize=8, va="center")


def dotted_rows(by_metric: Mapping[str, Mapping[str, Means]], names: Sequence[str], kinds: Mapping[str, str]) -> Figure:
    """Return a figure with a panel per metric, a row per relation, and a dot per label that has the relation."""
    figure, panels = rows(names, list(by_metric), "mean over trials", 0.3)
    for axes, series in zip(panels, by_metric.values(), strict=True):
        looks = [look for look, scores in zip(cycle(STYLES), series.values(), strict=False) if scores]
        dots(axes, names, {label: scores for label, scores in series.items() if scores}, looks)
        for row in range(0, len(names), 2):
            axes.axhspan(row - 0.5, row + 0.5, color=GREY, alpha=0.1, linewidth=0, zorder=0.2)
        fraction_axis(axes)
        axes.set_xlim(-0.03, 1.05)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=8)
        axes.set_title(axes.get_title(), fontsize=10, pad=38)
    category_marks(panels[-1], names, kinds)
    return figure


def layer_grid(
    titles: Sequence[str], layers: Sequence[Layer], ylabel: str, xlabel: str = "layer"
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a small panel per title, layers (or steps) across and fractions upwards."""
    columns = min(len(titles), 4)
    figure, panels = panel_grid(len(titles), columns, 10, 1.65 if columns > 2 else 3)
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(text(title, 30), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
        axes.set_axisbelow(True)
    layer_axis(panels[0], layers, 6)  # the panels share it
    fraction_axis(panels[0], "y")
    figure.supxlabel(xlabel, fontsize=10)
    figure.supylabel(ylabel, fontsize=10)
    return figure, panels


def layer_axis(axes: Axes, layers: Sequence[Layer], most: int) -> None:
    """Label an axis with the layers, or with about `most` evenly spaced ones of many."""
    first, last = place_of(layers[0]), place_of(layers[-1])
    named: list[Layer] = []
    for layer in layers:
        if not named or place_of(layer) - place_of(named[-1]) >= (last - first) / most:
            named.append(layer)
    axes.set_xticks([place_of(layer) for layer in named], [str(layer) for layer in named])
    axes.set_xlim(first - 0.5, last + 0.5)


def curve(axes: Axes, points: Mapping[Any, Estimate], look: Style, label: str, shade: float = 0) -> None:
    """Plot a line through means, with markers on at most sixteen, and `shade` their intervals."""
    if not points:
        return
    x, y, every = list(map(place_of, points)), [mean for mean, _ in points.values()], math.ceil(len(points) / 16)
    axes.plot(x, y, look.line, color=look.colour, marker=look.marker, markersize=4, markevery=every, label=label)
    if shade:
        limits = [score.interval or Interval(score.value, score.value) for score in points.values()]
        low, high = [interval.low for interval in limits], [interval.high for interval in limits]
        axes.fill_between(x, low, high, color=look.colour, alpha=shade, linewidth=0)


def mean_curve(axes: Axes, sweep: Sweep, look: Style, label: str, with_count: bool = False) -> None:
    """Plot the mean over relations along an axis, with the middle half of the relations shaded.

    The scores are of the same relations at every point; their number follows the label if `with_count`.
    """
    scores = [[mean for mean, _ in means.values()] for means in sweep.values()]
    count = min(map(len, scores), default=0)
    if not count:
        return
    name = f"{label} ({number_of(count)})" if with_count else label
    curve(axes, {place: spread(means) for place, means in zip(sweep, scores, strict=True)}, look, name)
    several = {place: means for place, means in zip(sweep, scores, strict=True) if len(means) > 1}
    if several:
        quartiles = (statistics.quantiles(means, n=4, method="inclusive") for means in several.values())
        low, _, high = zip(*quartiles, strict=True)
        axes.fill_between(list(map(place_of, several)), low, high, color=look.colour, alpha=0.15, linewidth=0)


def relation_curve(axes: Axes, sweep: Sweep, relation: str, look: Style, label: str, shade: float = 0) -> None:
    """Plot one relation's means along an axis, at the points where it has one."""
    curve(axes, {place: means[relation] for place, means in sweep.items() if relation in means}, look, label, shade)


def scatter(axes: Axes, points: Mapping[str, tuple[float, float]], kinds: Mapping[str, str], filled: set[str]) -> None:
    """Plot points in the unit square by category, filled or open, with the diagonal."""
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=0.8, zorder=1)
    category_points(axes, points, kinds, filled)
    ticks = [0, 0.25, 0.5, 0.75, 1]
    axes.set(xlim=(-0.04, 1.04), ylim=(-0.04, 1.04), xticks=ticks, yticks=ticks, aspect="equal")
    axes.grid(alpha=0.3)


def category_points(
    axes: Axes, points: Mapping[str, tuple[float, float]], kinds: Mapping[str, str], filled: set[str]
) -> None:
    """Plot points by category, filled or open."""
    for category, look in styles_of(kinds).items():
        names = [name for name in points if kinds[name] == category]
        if not names:
            continue
        axes.plot([], [], look.marker, color=look.colour, label=text(category, 24))
        x, y = zip(*(points[name] for name in names), strict=True)
        faces = [look.colour if name in filled else "none" for name in names]
        axes.scatter(x, y, 36, marker=look.marker, facecolors=faces, edgecolors=look.colour, zorder=2)


def wide_axis(axes: Axes, values: Sequence[float]) -> None:
    """Make the horizontal axis logarithmic where all values are positive and span a factor of more than 100."""
    if values and 0 < 100 * min(values) < max(values):
        axes.set_xscale("log")


def r_of(correlation: Estimate | None, name: str = "R") -> str:
    """Return a correlation in words, with its interval."""
    return f"{name} not defined" if correlation is None else f"{name} = {cell_text(correlation)}"


def label_points(figure: Figure, axes: Axes, points: Mapping[str, tuple[float, float]], names: Sequence[str]) -> None:
    """Write the names of some points beside them, the most important first; a name without room is left out.

    Names lie neither on points nor on the diagonal, nor on each other.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.path import Path
    from matplotlib.transforms import Bbox

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw_without_rendering()
    radius = 4 * figure.dpi / 72
    inner = axes.bbox.padded(-radius)
    taken = [Bbox([at - radius, at + radius]) for at in map(axes.transData.transform, points.values())]
    diagonal = Path(axes.transData.transform([(0, 0), (1, 1)]))
    places = [(1, 0), (-1, 0), (0, -1), (0, 1), (1, -1), (-1, -1), (1, 1), (-1, 1)]
    for name in names:
        for right, up in places:
            label = axes.annotate(
                text(name),
                points[name],
                (6 * right, 6 * up),
                textcoords="offset points",
                fontsize=8,
                ha=("right", "center", "left")[right + 1],
                va=("top", "center", "bottom")[up + 1],
                in_layout=False,
            )
            box = label.get_window_extent(renderer)
            free = not box.count_overlaps(taken) and not diagonal.intersects_bbox(box)
            if free and inner.contains(*box.min) and inner.contains(*box.max):
                taken.append(box)
                break
            label.remove()
