"""What figures show, read from their artists, and where their texts end up."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer, ErrorbarContainer


def labels(axes):
    """The names of the rows, which the panels share."""
    return [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def legend(figure):
    return [label.get_text() for found in figure.legends for label in found.get_texts()]


def named(axes):
    """The lines with a label."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def bars(axes):
    """Value and interval of every bar, by series and the name of the row."""
    ends = {}
    for container in (found for found in axes.containers if isinstance(found, ErrorbarContainer)):
        for (low, at), (high, _) in container[2][0].get_segments():
            ends[round(at, 6)] = low, high
    return {
        container.get_label().replace("_container0", ""): {
            labels(axes)[round(at)]: cell(bar.get_width(), ends.get(round(at, 6)))
            for bar in container
            for at in [bar.get_y() + bar.get_height() / 2]
        }
        for container in axes.containers
        if isinstance(container, BarContainer)
    }


def dots(axes):
    """Mean of every dot, by series and the name of the row."""
    return {
        name: {labels(axes)[round(y)]: pytest.approx(x) for x, y in line.get_xydata().tolist()}
        for name, line in named(axes).items()
    }


def curves(axes):
    """Values along the axis, by series."""
    return {name: pytest.approx(dict(line.get_xydata().tolist())) for name, line in named(axes).items()}


def cell(value, ends):
    return pytest.approx(value), ends and pytest.approx(ends, abs=1e-9)


def drawn(found):
    """What `bars` finds of estimates."""
    return {name: (one.value, one.interval and (one.interval.low, one.interval.high)) for name, one in found.items()}


def points(axes):
    """Position of every point, and whether it is filled."""
    return {
        (round(x, 9), round(y, 9)): bool(face[3])
        for found in axes.collections
        for (x, y), face in zip(found.get_offsets().tolist(), found.get_facecolors(), strict=True)
    }


def texts_of(figure):
    """Plot a figure and return the boxes of all its visible texts."""
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    texts = [*figure.texts, *(text for found in figure.legends for text in found.get_texts())]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            texts += [tick.label1 for tick in ticks if tick.label1.get_visible() and low <= tick.get_loc() <= high]
    return {text: text.get_window_extent(canvas.get_renderer()) for text in texts if text.get_text()}


def check_layout(figure, narrowest=7.9, widest=11.1):
    boxes = texts_of(figure)
    assert len(boxes) > 4
    texts = [text.get_text() for text in boxes]
    x0, y0, x1, y1 = np.array([box.extents for box in boxes.values()]).T
    outside = (x0 < 0) | (y0 < 0) | (x1 > figure.bbox.width) | (y1 > figure.bbox.height)
    assert [texts[one] for one in np.flatnonzero(outside)] == []
    across = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    assert [(texts[one], texts[other]) for one, other in np.argwhere(across) if one < other] == []
    assert narrowest < figure.get_figwidth() < widest
