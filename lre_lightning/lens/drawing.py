"""Attribute lenses for the eye: grids of layers by tokens as a figure, and as a page of their own.

Tokens may be anything: white space, bytes, text of any script, or text that means something to HTML or to matplotlib.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.lens.lens import Lens
from lre_lightning.storage.templates import load_template

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

COLOURS, DARK_COLOURS = "magma_r", "magma"
"""Perceptually uniform: away from the page's colour, likelier is darker on white, and lighter on black."""

SIGNS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"})
"""Categories of Unicode: controls, formats such as those of direction, halves of characters, private use, spaces."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and signs that look like nothing."""
SELECTORS = re.compile("[\ufe00-\ufe0f]")
"""Variation selectors, which only choose between looks of the character before."""
RIGHT_TO_LEFT = ("R", "AL")

PLAIN_FONT = "DejaVu Sans"
"""Comes with matplotlib."""
UNFIT_FONTS = re.compile(r"Last ?Resort|cm[a-z]+\d+$|STIX(NonUnicode|Size)")
"""Fonts that draw a box for every character, or other characters than those they claim."""

# Sizes in points, 72 to the inch.
DPI = 144
LONGEST_SIDE = 2**16 - 1
"""Pixels that matplotlib can draw."""
SIZE = 7.0
SIZES = (SIZE, 6.25, 5.5)
"""Of the tokens in cells, which shrink before they are cut."""
ROW, NARROWEST, WIDEST, PADDING = 12.0, 22.0, 38.0, 3.0
TITLE, TITLE_SIZE, WIDEST_TITLE, NARROWEST_GRID = 18.0, 9.0, 240.0, 100.0
"""Titles are cut only where they are wider than both this and their grid."""
LABELS, MARGIN = 24.0, 12.0
HEAD, FOOT = 24.0, 34.0
PAGE = 14.0 * 72
"""How wide a figure becomes before its grids are put below each other: about the width of a screen in pixels."""


def visible(token: str) -> str:
    r"""How a token is shown, so that nothing of it is invisible.

    A space is "␣", a newline "⏎" and a tab "⇥"; other spaces, controls, invisible characters and marks that have no
    letter before them are escapes as in Python. A token of nothing is "∅".

    >>> print(visible(" a\n"), visible("b\u200b"), visible(""))
    ␣a⏎ b\u200b ∅
    """
    shown, bearing = [], False
    for character in token:
        category = unicodedata.category(character)
        mark = category.startswith("M")
        if character in SIGNS:
            shown.append(SIGNS[character])
        elif category in INVISIBLE or character in BLANK or (mark and not bearing):
            shown.append(escape(character))
        else:
            shown.append(character)
            bearing = True
            continue
        bearing = False
    return "".join(shown) or "∅"


def escape(character: str) -> str:
    r"""A character's escape, such as ``\u200b`` or ``\U0001f600``."""
    code = ord(character)
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


def sentence(text: str) -> str:
    """How a whole text is shown: as `visible` tokens are, but with its spaces."""
    return visible(text).replace(SIGNS[" "], " ")


def title_of(lens: Lens) -> str:
    """A grid's name, and the layer that its LRE was estimated at."""
    return sentence(lens.name) if lens.layer is None else f"{sentence(lens.name)} (LRE of layer {lens.layer})"


# Fonts.

_families: dict[str, str | None] = {" ": PLAIN_FONT}  # a glyph that is rightly empty


def families_of(characters: Iterable[str]) -> dict[str, str | None]:
    """The font family to draw each character with; None where no installed font has it."""
    from matplotlib import font_manager

    missing = set(characters) - _families.keys()
    for family, path in _installed() if missing else ():
        with suppress(OSError, RuntimeError):  # of a font that is broken or gone
            font = font_manager.get_font(path)
            found = {character for character in missing if _draws(font, character)}
            _families.update(dict.fromkeys(found, family))
            missing -= found
        if not missing:
            break
    _families.update(dict.fromkeys(missing))
    return {character: _families[character] for character in characters}


def _installed() -> list[tuple[str, str]]:
    """Families of the installed fonts with the file of the upright, regular face of each.

    Matplotlib's own comes first, then those without serifs.
    """
    from matplotlib import font_manager

    files: dict[str, tuple[bool, int, str]] = {}
    for entry in font_manager.fontManager.ttflist:
        weight = font_manager.weight_dict[entry.weight] if isinstance(entry.weight, str) else entry.weight
        found = (entry.style != "normal", abs(weight - 400), entry.fname)
        if not UNFIT_FONTS.match(entry.name):
            files[entry.name] = min(found, files.get(entry.name, found))
    names = sorted(files, key=lambda name: (name != PLAIN_FONT, "Sans" not in name, name))
    return [(name, files[name][2]) for name in names]


def _draws(font: Any, character: str) -> bool:
    """Whether a font has more than an empty glyph for a character."""
    index = font.get_char_index(ord(character))
    if not index:
        return False
    left, bottom, right, top = font.load_glyph(index).bbox
    return bool(left < right and bottom < top)


class _Pen:
    """Writes texts in fonts that have their characters, cut or shrunk to a width.

    Args:
        texts: All that is going to be written, as `visible` gives it.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._family_of = families_of(sorted(set("".join(texts)) | {"…"}))
        others = sorted({family for family in self._family_of.values() if family} - {PLAIN_FONT})
        self._families = [PLAIN_FONT, *others]
        canvas: Any = FigureCanvasAgg(Figure(dpi=DPI))
        self._renderer = canvas.get_renderer()
        self.width = cache(self._width)
        self.fitted = cache(self._fitted)

    def drawable(self, text: str) -> str:
        """A text with escapes for the characters that no font has, in the order in which matplotlib draws it."""
        kept = SELECTORS.sub("", text)
        return _ordered("".join(c if self._family_of[c] else escape(c) for c in kept))

    def _width(self, text: str, size: float) -> float:
        from matplotlib.font_manager import FontProperties

        font = FontProperties(family=self._families, size=size)
        width, _, _ = self._renderer.get_text_width_height_descent(self.drawable(text), font, ismath=False)
        return float(width) * 72 / DPI

    def _fitted(self, text: str, width: float, *sizes: float) -> tuple[str, float]:
        """What is written of a text in a width, in points: whole in the first of the sizes that fits, else cut off."""
        for size in sizes:
            if self.width(text, size) <= width:
                return self.drawable(text), size
        few, many = 0, len(text)  # so many characters fit, and so many do not
        while many - few > 1:
            middle = (few + many) // 2
            few, many = (middle, many) if self.width(f"{text[:middle]}…", size) <= width else (few, middle)
        return self.drawable(f"{text[:few]}…"), size

    def write(self, axes: Axes | Figure, x: float, y: float, text: str, size: float, **options: Any) -> None:
        """Write what `fitted` gave, never as mathematics or TeX."""
        axes.text(x, y, text, size=size, family=self._families, parse_math=False, usetex=False, **options)


def _ordered(text: str) -> str:
    """A text for a matplotlib that draws all of it from left to right, as it did before it had libraqm (3.11)."""
    from matplotlib import ft2font

    if hasattr(ft2font, "__libraqm_version__") or not any(map(_is_right_to_left, text)):
        return text
    runs = []
    for backwards, run in groupby(_clusters(text), lambda cluster: _is_right_to_left(cluster[0])):
        clusters = list(run)
        runs.append("".join(reversed(clusters) if backwards else clusters))
    return "".join(reversed(runs))


def _is_right_to_left(character: str) -> bool:
    return unicodedata.bidirectional(character) in RIGHT_TO_LEFT


def _clusters(text: str) -> list[str]:
    """Characters with the marks that are on them."""
    clusters: list[str] = []
    for character in text:
        if clusters and unicodedata.category(character).startswith("M"):
            clusters[-1] += character
        else:
            clusters.append(character)
    return clusters


# The figure.


@dataclass(frozen=True)
class _Sizes:
    """Of one grid, in points.

    Attributes:
        cell: Width of a cell.
        width: Width of the grid with its labels.
        height: Its height with its labels and title.
    """

    cell: float
    width: float
    height: float


def plot_lenses(lenses: Sequence[Lens]) -> Figure:
    """Draw the grids of one text: layers upwards, tokens across, in each cell the most likely token.

    Cells are shaded by the probability of that token, on one scale from 0 to 1. Grids stand beside each other, and
    below each other where they are wide. Tokens that are too long for a cell are smaller, and cut off if need be;
    characters that no installed font has are written as escapes.

    Raises:
        LREError: If there is no grid, or they are of different texts.
    """
    from matplotlib.figure import Figure

    texts = list(dict.fromkeys(lens.text for lens in lenses))
    if len(texts) != 1:
        raise LREError(f"a picture of lenses is of one text, and {len(texts)} are given: {texts}")
    pen = _Pen(_written(lenses))
    sizes = _sizes(lenses, pen)
    columns = _columns(len(lenses), sizes)
    rows = math.ceil(len(lenses) / columns)
    width = columns * sizes.width + (columns + 1) * MARGIN
    height = HEAD + rows * (sizes.height + MARGIN) + FOOT
    figure = Figure(figsize=(width / 72, height / 72), dpi=min(DPI, LONGEST_SIDE * 72 / max(width, height)))

    def axes_at(left: float, top: float, wide: float, high: float) -> Axes:
        """Axes whose left upper corner is so many points from the figure's."""
        return figure.add_axes((left / width, 1 - (top + high) / height, wide / width, high / height))

    title = pen.fitted(sentence(texts[0]), width - 2 * MARGIN, TITLE_SIZE)
    pen.write(figure, MARGIN / width, 1 - 16 / height, *title)
    for number, lens in enumerate(lenses):
        row, column = divmod(number, columns)
        left = MARGIN + column * (sizes.width + MARGIN)
        top = HEAD + row * (sizes.height + MARGIN)
        cells = sizes.cell * len(lens.tokens), ROW * len(lens.layers)
        _draw_grid(axes_at(left + LABELS, top + TITLE, *cells), lens, pen, sizes)
    _draw_scale(axes_at(MARGIN + LABELS, height - FOOT + 2, 160, 8), pen)
    return figure


def _written(lenses: Sequence[Lens]) -> Iterable[str]:
    for lens in lenses:
        yield from (sentence(lens.text), title_of(lens), "probability emb .0123456789")
        yield from map(visible, lens.tokens)
        yield from (visible(cell[0]) for row in lens.top for cell in row)


def _sizes(lenses: Sequence[Lens], pen: _Pen) -> _Sizes:
    tokens = {visible(token) for lens in lenses for token in lens.tokens}
    tokens |= {visible(cell[0]) for lens in lenses for row in lens.top for cell in row}
    wanted = max(pen.width(token, SIZE) for token in tokens)
    cell = min(max(wanted, NARROWEST), WIDEST) + PADDING
    most, layers = max(len(lens.tokens) for lens in lenses), max(len(lens.layers) for lens in lenses)
    titles = max(pen.width(title_of(lens), TITLE_SIZE) for lens in lenses)
    return _Sizes(
        cell, LABELS + max(cell * most, min(titles, WIDEST_TITLE), NARROWEST_GRID), TITLE + ROW * (layers + 1)
    )


def _columns(count: int, sizes: _Sizes) -> int:
    """How many grids stand beside each other: what a page takes, or more where the figure would be a long strip."""
    fitting = int(PAGE / (sizes.width + MARGIN))
    square = round(math.sqrt(count * sizes.height / sizes.width))
    return min(count, max(1, fitting, square))


def _draw_grid(axes: Axes, lens: Lens, pen: _Pen, sizes: _Sizes) -> None:
    best = np.array([[cell[0] for cell in row] for row in lens.probabilities])
    across, up = len(lens.tokens), len(lens.layers)
    axes.pcolormesh(best, cmap=COLOURS, vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
    axes.set(xlim=(0, across), ylim=(0, up), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    inks = _inks(COLOURS)
    low = 0.5 - 0.26 * SIZE / ROW  # the line that letters stand on, for text in the middle of a row
    for y, row in enumerate(lens.top):
        for x, cell in enumerate(row):
            written = pen.fitted(visible(cell[0]), sizes.cell - PADDING, *SIZES)
            pen.write(axes, x + 0.5, y + low, *written, ha="center", color=inks[_step(best[y, x])][1])
    for x, token in enumerate(lens.tokens):
        written = pen.fitted(visible(token), sizes.cell - PADDING, *SIZES)
        pen.write(axes, x + 0.5, low - 1, *written, ha="center")
    for y, layer in enumerate(lens.layers):
        pen.write(axes, -4 / sizes.cell, y + low, str(layer), SIZE, ha="right")
    title = pen.fitted(title_of(lens), sizes.width - LABELS, TITLE_SIZE)
    pen.write(axes, 0, up + 5 / ROW, *title)


def _draw_scale(axes: Axes, pen: _Pen) -> None:
    """The colour bar, with its name to the right and its numbers below."""
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=COLOURS, vmin=0, vmax=1, aspect="auto", extent=(0, 1, 0, 1))
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_linewidth(0.5)
    for share in (0, 0.5, 1):
        pen.write(axes, share, -1.1, f"{share:g}", SIZE, ha="center")
    pen.write(axes, 1.04, 0.1, "probability", SIZE)


def to_pixels(figure: Figure) -> NDArray[np.uint8]:
    """A figure as an image, `(height, width, 3)`, at its own resolution."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


# Colours.

STEPS = 100


def _step(probability: float) -> int:
    return round(STEPS * probability)


@cache
def _inks(colours: str) -> list[tuple[str, str]]:
    """Background and text for a probability of each per cent: the text is black or white, whichever stands out more."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    backgrounds = [to_hex(colormaps[colours](step / STEPS)) for step in range(STEPS + 1)]
    return [(colour, "#000000" if luminance(colour) > 0.179 else "#ffffff") for colour in backgrounds]


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour, 0 to 1, as WCAG 2 defines it; at 0.179 black and white stand out alike."""
    from matplotlib.colors import to_rgb

    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in to_rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


# The page.


def lens_page(lenses: Sequence[Lens], title: str = "Attribute lens") -> str:
    """One HTML page that holds grids, with the likeliest tokens of every cell on hover or focus.

    It needs nothing from outside, and is the same every time. Grids of the same text that follow each other make a
    section.

    Args:
        lenses: The grids, of one text or several.
        title: The page's title.

    Raises:
        LREError: If there is no grid.
    """
    if not lenses:
        raise LREError("a page of lenses needs at least one")
    functions = {"visible": visible, "sentence": sentence, "title_of": title_of, "step": _step, "data": _data}
    sections = [(text, list(group)) for text, group in groupby(lenses, lambda lens: lens.text)]
    return load_template("lre_lightning.lens", "lens.html.j2", **functions).render(
        title=title, sections=sections, inks=_inks(COLOURS), dark_inks=_inks(DARK_COLOURS)
    )


def _data(lens: Lens) -> str:
    """What hovering shows, as JSON that may stand in a script element; rows as in `Lens`, each token written once."""
    tokens: dict[str, int] = {}
    top = [[[tokens.setdefault(visible(token), len(tokens)) for token in cell] for cell in row] for row in lens.top]
    shares = [[[float(f"{share:.3g}") for share in cell] for cell in row] for row in lens.probabilities]
    text = json.dumps({"tokens": list(tokens), "top": top, "probabilities": shares}, separators=(",", ":"))
    return text.replace("<", "\\u003c")
