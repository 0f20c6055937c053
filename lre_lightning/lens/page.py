"""Attribute lenses as one HTML page, and the colours that it shares with pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import TYPE_CHECKING, Any

from matplotlib import colormaps
from matplotlib.colors import to_hex

from lre_lightning.errors import LREError
from lre_lightning.lens.tokens import sentence, visible

if TYPE_CHECKING:
    from jinja2 import Template

    from lre_lightning.lens.lens import Lens

COLOURS, DARK_COLOURS = "magma_r", "magma"
"""Perceptually uniform: more likely is darker on a white page, and lighter on a black one."""


def lens_page(lenses: Sequence[Lens], title: str = "Attribute lens") -> str:
    """Render grids as an HTML page that shows the most likely tokens of a cell on hover or focus.

    The page needs nothing from outside, and the same grids give the same page. Consecutive grids of one text form a
    section.
    """
    if not lenses:
        raise LREError("a page of lenses needs at least one")
    sections = [(text, list(group)) for text, group in groupby(lenses, lambda lens: lens.text)]
    functions: dict[str, Any] = {"visible": visible, "sentence": sentence, "title_of": title_of, "step": step_of}
    template = load_template("lre_lightning.lens", "lens.html.j2", **functions, data=_data)
    return template.render(title=title, sections=sections, inks=inks_of(COLOURS), dark_inks=inks_of(DARK_COLOURS))


def load_template(package: str, name: str, html: bool = True, **functions: Any) -> Template:
    """Load a template of a package, which escapes values if it is HTML.

    It can call `functions`, and use them as filters. Undefined names are errors.
    """
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(functions)
    environment.filters.update(functions)
    return environment.from_string(resources.files(package).joinpath(name).read_text(encoding="utf-8"))


def title_of(lens: Lens) -> str:
    """Return a grid's name, with the layer that its LRE was estimated at."""
    return sentence(lens.name) if lens.layer is None else f"{sentence(lens.name)} (LRE of layer {lens.layer})"


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


def _data(lens: Lens) -> str:
    """Return what hovering shows as JSON for a script element: rows as in `Lens`, and each distinct token once."""
    tokens: dict[str, int] = {}
    top = [[[tokens.setdefault(visible(token), len(tokens)) for token in cell] for cell in row] for row in lens.top]
    probabilities = [[[float(f"{value:.3g}") for value in cell] for cell in row] for row in lens.probabilities]
    text = json.dumps({"tokens": list(tokens), "top": top, "probabilities": probabilities}, separators=(",", ":"))
    return text.replace("<", "\\u003c")
