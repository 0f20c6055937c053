"""Lenses as a widget of notebooks, with the grid of the page; importing this needs anywidget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.lens.grid import grid_of, script, style
from lre_lightning.lens.reading import LensGrid

try:
    import anywidget
    import traitlets
except ImportError as error:
    raise LREError('the widget needs anywidget: pip install "lre-lightning[widget]"') from error


class LensWidget(anywidget.AnyWidget):
    """Grids to point at in a notebook, with the most likely tokens of a cell, and one of them pinned in every cell.

    Where there is no kernel, and the notebook has not kept the state of its widgets, it shows the tables of the lenses.

    Args:
        lenses: The grids, such as those of `read_lenses`; they can be replaced later.

    Attributes:
        cell: The cell that was chosen last, by a click or the arrow keys: the indices of lens, layer and token; empty
            at first. `observe` tells when it changes.

    Raises:
        LREError: If there is no grid.
    """

    _esm = script()
    _css = style()
    grids: Any = traitlets.List().tag(sync=True)
    cell: Any = traitlets.List(traitlets.Int()).tag(sync=True)

    def __init__(self, lenses: Sequence[LensGrid]) -> None:
        super().__init__()
        self.lenses = lenses

    @property
    def lenses(self) -> Sequence[LensGrid]:
        """The grids that are shown."""
        return self._lenses

    @lenses.setter
    def lenses(self, lenses: Sequence[LensGrid]) -> None:
        if not lenses:
            raise LREError("a widget of lenses needs at least one")
        self._lenses, self.cell = tuple(lenses), []
        self.grids = [grid_of(lens) for lens in lenses]

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle: Any = super()._repr_mimebundle_(**options)
        return {**bundle[0], "text/html": "".join(lens._repr_html_() for lens in self.lenses)}, *bundle[1:]
