"""Attribute lenses as one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError
from lre_lightning.lens.grid import grid_of, script, style
from lre_lightning.lens.tokens import sentence
from lre_lightning.storage.templates import load_template

if TYPE_CHECKING:
    from lre_lightning.lens.reading import LensGrid


def lens_page(lenses: Sequence[LensGrid], title: str = "Attribute lens") -> str:
    """Render grids as an HTML page that shows the most likely tokens of a cell on hover or focus.

    A token of a cell can be pinned, and is then found among the most likely ones of every cell. The page needs nothing
    from outside, and the same grids give the same page. Consecutive grids of one text form a section.
    """
    if not lenses:
        raise LREError("a page of lenses needs at least one")
    sections = [(text, list(group)) for text, group in groupby(lenses, lambda lens: lens.text)]
    template = load_template("lre_lightning.lens", "lens.html.j2", sentence=sentence, data=grid_json)
    return template.render(title=title, sections=sections, script=script(), style=style())


def grid_json(lens: LensGrid) -> str:
    """Return a grid as JSON for a script element."""
    text = json.dumps(grid_of(lens), separators=(",", ":"))
    return text.replace("<", "\\u003c")
