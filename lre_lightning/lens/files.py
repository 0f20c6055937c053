"""Attribute lenses as files: a picture for each text, a page, and data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lre_lightning.lens.drawing import lens_page, plot_lenses, to_pixels
from lre_lightning.lens.lens import Lens, to_json
from lre_lightning.storage.files import write_whole, written_whole

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def write_lenses(grids: Sequence[Sequence[Lens]], folder: Path) -> list[NDArray[np.uint8]]:
    """Write ``text<number>.png`` for each text, ``lenses.html`` and ``lenses.json``.

    Args:
        grids: The lenses of each text.
        folder: The folder to write to.

    Returns:
        The pictures, `(height, width, 3)` each.
    """
    from PIL import Image

    pictures = [to_pixels(plot_lenses(text)) for text in grids]
    for number, pixels in enumerate(pictures):
        with written_whole(folder / f"text{number}.png") as part:
            Image.fromarray(pixels).save(part, format="PNG")
    lenses = [lens for text in grids for lens in text]
    for name, content in (("lenses.html", lens_page(lenses)), ("lenses.json", to_json(lenses))):
        write_whole(folder / name, content)
    return pictures
