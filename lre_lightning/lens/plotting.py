"""Attribute lenses as figures: grids of layers by tokens, in fonts that have the tokens' characters."""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from matplotlib import font_manager, ft2font
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from lre_lightning.errors import LREError
from lre_lightning.lens.grid import COLOURS, inks_of, step_of, title_of
from lre_lightning.lens.reading import NOTHING, LensGrid
from lre_lightning.lens.tokens import escape, sentence, visible
from lre_lightning.pictures import Picture

PLAIN_FONT = "DejaVu Sans"  # comes with matplotlib
UNFIT_FONTS = re.compile(r"Last ?Resort|cm[a-z]+\d+$|STIX(NonUnicode|Size)")  # with boxes, or with other characters
SELECTORS = re.compile("[\ufe00-\ufe0f]")  # variation selectors, which choose between looks of the character before

DPI = 144
LONGEST_SIDE = 2**16 - 1  # limit of matplotlib, in pixels
# Sizes in points, 72 to the inch.
SIZE = 7.0
SIZES = (SIZE, 6.25, 5.5)  # of tokens in cells, which shrink before they are cut off
ROW, NARROWEST, WIDEST, PADDING = 12.0, 22.0, 38.0, 3.0  # of cells
TITLE, TITLE_SIZE, WIDEST_TITLE, NARROWEST_GRID = 18.0, 9.0, 240.0, 100.0
FRAME = "#0096d6"
LABELS, MARGIN, HEAD, FOOT = 24.0, 12.0, 24.0, 34.0


def plot_lenses(lenses: Sequence[LensGrid]) -> Figure:
    """Plot the grids of one text: layers upwards, tokens across, in each cell the most likely token.

    Cells are shaded by the probability of that token, on one scale from 0 to 1; the layer of the LRE and the last token
    of each subject are framed. Tokens that are too long for a cell are smaller, and cut off if need be. Characters that
    no installed font has are written as escapes, and so are those of right-to-left scripts before matplotlib 3.11,
    which draws them in the wrong order.
    """
    texts = list(dict.fromkeys(lens.text for lens in lenses))
    if len(texts) != 1:
        raise LREError(f"a picture of lenses is of one text, and {len(texts)} are given: {texts}")
    heading, titles = sentence(texts[0]), [title_of(lens) for lens in lenses]
    tokens = {visible(cell[0]) for lens in lenses for row in lens.top for cell in row}
    tokens |= {visible(token) for lens in lenses for token in lens.tokens}
    pen = _Pen([heading, *titles, *tokens, f"probability emb .0123456789{NOTHING}"])

    cell = min(max(NARROWEST, *(pen.width(token, SIZE) for token in tokens)), WIDEST) + PADDING
    widest_title = min(max(pen.width(title, TITLE_SIZE) for title in titles), WIDEST_TITLE)
    wide = max(cell * max(len(lens.tokens) for lens in lenses), widest_title, NARROWEST_GRID)
    high = TITLE + ROW * (1 + max(len(lens.layers) for lens in lenses)) + MARGIN
    width = LABELS + wide + MARGIN
    height = HEAD + len(lenses) * high + FOOT
    figure = Picture(figsize=(width / 72, height / 72), dpi=min(DPI, LONGEST_SIDE * 72 / max(width, height)))

    def axes_at(left: float, top: float, wide: float, high: float) -> Axes:
        return figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))

    pen.write(figure, MARGIN / width, 1 - 16 / height, heading, width - 2 * MARGIN, [TITLE_SIZE])
    for number, lens in enumerate(lenses):
        axes = axes_at(LABELS, HEAD + number * high + TITLE, cell * len(lens.tokens), ROW * len(lens.layers))
        _plot_grid(axes, lens, pen, cell, wide)
    _plot_scale(axes_at(LABELS, height - FOOT + 2, 100, 8), pen)
    return figure


def _plot_grid(axes: Axes, lens: LensGrid, pen: _Pen, cell: float, title: float) -> None:
    """Plot one grid with cells and a title of the given widths."""
    speaks = [[lens.speaks(y, x) for x in range(len(lens.tokens))] for y in range(len(lens.layers))]
    best = np.ma.masked_where(np.logical_not(speaks), [[cell[0] for cell in row] for row in lens.probabilities])
    across, up = len(lens.tokens), len(lens.layers)
    axes.pcolormesh(best, cmap=COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
    axes.set(xlim=(0, across), ylim=(0, up), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    home = [(0, lens.layers.index(lens.layer), across, 1)] if lens.layer in lens.layers else []
    home += [(place, 0, 1, up) for place in {*lens.places}]
    for left, bottom, wide, high in home:
        frame = Rectangle((left, bottom), wide, high, fill=False, edgecolor=FRAME, linewidth=1.2, clip_on=False)
        axes.add_patch(frame)
    inks, room = inks_of(COLOURS), cell - PADDING
    low = 0.5 - 0.26 * SIZE / ROW  # the base line of text in the middle of a row
    for y, row in enumerate(lens.top):
        for x, top in enumerate(row):
            said, colour = NOTHING, "black"
            if speaks[y][x]:
                said, colour = visible(top[0]), inks[step_of(best[y, x])][1]
            pen.write(axes, x + 0.5, y + low, said, room, SIZES, ha="center", color=colour)
    for x, token in enumerate(lens.tokens):
        colour = FRAME if x in lens.places else "black"
        pen.write(axes, x + 0.5, low - 1, visible(token), room, SIZES, ha="center", color=colour)
    for y, layer in enumerate(lens.layers):
        pen.write(axes, -4 / cell, y + low, str(layer), ha="right", color=FRAME if layer == lens.layer else "black")
    pen.write(axes, 0, up + 5 / ROW, title_of(lens), title, [TITLE_SIZE])


def _plot_scale(axes: Axes, pen: _Pen) -> None:
    """Plot the colour bar, with its numbers below and its name to the right."""
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=COLOURS, vmin=0, vmax=1, aspect="auto", extent=(0, 1, 0, 1))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_linewidth(0.5)
    for probability in (0, 0.5, 1):
        pen.write(axes, probability, -1.1, f"{probability:g}", ha="center")
    pen.write(axes, 1.04, 0.1, "probability")


def to_pixels(figure: Figure, width: int | None = None) -> NDArray[np.uint8]:
    """Return a figure as an image, `(height, width, 3)`, at its own resolution unless it is to have another width."""
    dpi = figure.dpi
    if width is not None:
        figure.dpi = width / figure.get_figwidth()
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])
    figure.dpi = dpi
    return pixels


class _Pen:
    """Write texts in fonts that have their characters, shrunk or cut off to a width.

    Args:
        texts: All that will be written.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        self._family_of = families_of({*"".join(texts), "…"})
        others = {family for family in self._family_of.values() if family} - {PLAIN_FONT}
        self._families = [PLAIN_FONT, *sorted(others)]
        canvas: Any = FigureCanvasAgg(Figure(dpi=DPI))
        self._renderer = canvas.get_renderer()
        self.width = cache(self._width)
        self._fitted = cache(self._fit)

    def write(
        self,
        axes: Axes | Figure,
        x: float,
        y: float,
        text: str,
        width: float = math.inf,
        sizes: Sequence[float] = (SIZE,),
        **options: Any,
    ) -> None:
        """Write a text, never as mathematics or TeX, in the first of the sizes in which it fits, or else cut off."""
        fitted, size = self._fitted(text, width, *sizes)
        axes.text(x, y, fitted, size=size, family=self._families, parse_math=False, usetex=False, **options)

    def _fit(self, text: str, width: float, *sizes: float) -> tuple[str, float]:
        for size in sizes:
            if self.width(text, size) <= width:
                return self._drawable(text), size
        length = bisect_right(range(1, len(text)), width, key=lambda end: self.width(f"{text[:end]}…", size))
        return self._drawable(f"{text[:length]}…"), size

    def _width(self, text: str, size: float) -> float:
        """Return the width of a text in points."""
        font = FontProperties(family=self._families, size=size)
        width, _, _ = self._renderer.get_text_width_height_descent(self._drawable(text), font, ismath=False)
        return float(width) * 72 / DPI

    def _drawable(self, text: str) -> str:
        kept = SELECTORS.sub("", text)
        return "".join(character if self._family_of[character] else escape(character) for character in kept)


_families: dict[str, str | None] = {" ": PLAIN_FONT}  # the one glyph that has no ink


def families_of(characters: Iterable[str]) -> dict[str, str | None]:
    """Return the font family to write each character in; None if there is no installed font to draw it."""
    missing = set(characters) - _families.keys()
    if not hasattr(ft2font, "__libraqm_version__"):  # before matplotlib 3.11
        backwards = {character for character in missing if unicodedata.bidirectional(character) in ("R", "AL")}
        _families.update(dict.fromkeys(backwards))
        missing -= backwards
    faces = sorted(font_manager.fontManager.ttflist, key=lambda font: (font.style == "normal", font.weight == 400))
    paths = {font.name: font.fname for font in faces if not UNFIT_FONTS.match(font.name)}  # regular faces, coming last
    for family in sorted(paths, key=lambda name: (name != PLAIN_FONT, "Sans" not in name, name)):
        if not missing:
            break
        with suppress(OSError, RuntimeError):  # the font is broken, or has been removed
            font = font_manager.get_font(paths[family])
            drawn = {character for character in missing if _draws(font, character)}
            _families.update(dict.fromkeys(drawn, family))
            missing -= drawn
    _families.update(dict.fromkeys(missing))
    return {character: _families[character] for character in characters}


def _draws(font: Any, character: str) -> bool:
    """Return whether a font has a glyph with ink for a character."""
    index = font.get_char_index(ord(character))
    left, bottom, right, top = font.load_glyph(index).bbox if index else (0, 0, 0, 0)
    return bool(left < right and bottom < top)
