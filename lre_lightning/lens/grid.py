"""A grid as data, and the script and style that draw it: on pages, in notebooks, and in the explorer."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from lre_lightning.lens.tokens import sentence, visible

if TYPE_CHECKING:
    from lre_lightning.lens.reading import LensGrid

COLOURS, DARK_COLOURS = "magma_r", "magma"
"""Perceptually uniform: more likely is darker on a white page, and lighter on a black one."""


def grid_of(lens: LensGrid) -> dict[str, Any]:
    """Return a grid as plain data, as ``grid.js`` draws it: with everything in a token visible, and each token once."""
    words: dict[str, int] = {}
    top = [[[words.setdefault(visible(token), len(words)) for token in cell] for cell in row] for row in lens.top]
    ids = {visible(token): number for token, number in lens.ids.items()}
    pinned = lens.pinned and {
        "word": visible(lens.pinned.token),
        "values": [[_brief(value) for value in row] for row in lens.pinned.probabilities],
        "ranks": lens.pinned.ranks,
    }
    return {
        "title": title_of(lens),
        "text": sentence(lens.text),
        "tokens": [*map(visible, lens.tokens)],
        "layers": [*map(str, lens.layers)],
        "layer": None if lens.layer is None else str(lens.layer),
        "marked": sorted({*lens.places}),
        "words": [*words],
        "ids": [ids.get(word) for word in words],
        "top": top,
        "values": [[[_brief(value) for value in cell] for cell in row] for row in lens.probabilities],
        "pinned": pinned,
        "silent": lens.silent,
    }


def _brief(value: float) -> float:
    return float(f"{value:.3g}")


def script() -> str:
    """Return ``grid.js``, an ECMAScript module."""
    return resources.files("lre_lightning.lens").joinpath("grid.js").read_text(encoding="utf-8")


def style() -> str:
    """Return ``grid.css``, with the colours of every whole per cent, in the light and in the dark."""
    plain = resources.files("lre_lightning.lens").joinpath("grid.css").read_text(encoding="utf-8")
    light, dark = map(_rules, (COLOURS, DARK_COLOURS))
    return f"{plain}{light}@media (prefers-color-scheme: dark) {{\n{dark}}}\n"


def _rules(colours: str) -> str:
    inks = inks_of(colours)
    strip = ", ".join(background for background, _ in inks[::5])
    rules = [f".lens .p{step} {{ background: {back}; color: {text}; }}" for step, (back, text) in enumerate(inks)]
    return "\n".join([f".lens .scale {{ background: linear-gradient(to right, {strip}); }}", *rules, ""])


def title_of(lens: LensGrid) -> str:
    """Return a grid's name, with the layer that it was estimated at."""
    return sentence(lens.name) if lens.layer is None else f"{sentence(lens.name)}, estimated at layer {lens.layer}"


def step_of(probability: float) -> int:
    """Return the step of the colour scale for a probability: whole per cent."""
    return round(100 * probability)


@cache
def inks_of(colours: str) -> list[tuple[str, str]]:
    """Return background and text colour for each step of a colour scale.

    The text is black or white, whichever has the higher contrast with the background as WCAG 2 defines it.
    """
    inks = []
    for step in range(101):
        colour = colormaps[colours](step / 100)
        linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour[:3]]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        inks.append((to_hex(colour), "#000000" if luminance > 0.179 else "#ffffff"))
    return inks
