"""Attribute lenses as files: a picture per text, a page, and data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image
from pydantic import TypeAdapter, ValidationError

from lre_lightning.errors import LREError, first_line
from lre_lightning.lens.page import lens_page
from lre_lightning.lens.plotting import plot_lenses, to_pixels
from lre_lightning.lens.reading import LensGrid
from lre_lightning.storage.files import write_whole, written_whole

LENSES = "lenses.json"
"""Name of the file of data."""


def read_lenses_file(path: Path) -> list[LensGrid]:
    """Read a file ``lenses.json``; an `LREError` if it is not one."""
    try:
        lenses = TypeAdapter(list[LensGrid]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise LREError(f"{str(path)!r} is not a file of lenses: {first_line(error)}") from error
    if not all(map(_is_grid, lenses)):
        raise LREError(f"{str(path)!r} is not a file of lenses: a grid is not of layers by tokens")
    return lenses


def _is_grid(lens: LensGrid) -> bool:
    extra = [lens.pinned.probabilities, lens.pinned.ranks] if lens.pinned else []
    extra += [] if lens.silent is None else [lens.silent]
    try:
        shape = np.shape(lens.probabilities)
        places = [shape[:2], *map(np.shape, extra)]
        fits = np.shape(lens.top) == shape and set(places) == {(len(lens.layers), len(lens.tokens))}
        return fits and 0 not in shape and all(0 <= place < len(lens.tokens) for place in lens.places)
    except ValueError:  # rows of different lengths
        return False


def write_lenses(grids: Sequence[Sequence[LensGrid]], folder: Path) -> list[Figure]:
    """Write ``text<number>.png`` for each text, ``lenses.html``, and ``lenses.json``, the fields of each `LensGrid`.

    `grids` are the lenses of each text. Pictures of other texts that the folder has from before are removed. Returns
    the pictures.
    """
    pictures = [plot_lenses(text) for text in grids]
    for number, picture in enumerate(pictures):
        with written_whole(folder / f"text{number}.png") as part:
            Image.fromarray(to_pixels(picture)).save(part, format="PNG")
    for path in folder.glob("text*.png"):
        text_number = path.stem.removeprefix("text")
        if text_number.isdecimal() and int(text_number) >= len(pictures):
            path.unlink()
    lenses = [lens for text in grids for lens in text]
    write_whole(folder / "lenses.html", lens_page(lenses))
    data = json.dumps([asdict(lens) for lens in lenses], ensure_ascii=False, indent=1)
    write_whole(folder / LENSES, data)
    return pictures
