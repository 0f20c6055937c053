"""Tables and the figure of lenses side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import torch

from lre_lightning.grid import Layer, place_of
from lre_lightning.lens.comparison import FREQUENT, LensRanks
from lre_lightning.lens.prompt_sets import SUBJECT
from lre_lightning.lens.swaps import LensSwaps
from lre_lightning.report import plotting
from lre_lightning.report.tables import Row, Table
from lre_lightning.statistics.estimates import Estimate
from lre_lightning.statistics.intervals import bootstrap, mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

RELATIONS = "relations"
"""What the prompts of all relations are called together."""


@dataclass(frozen=True, eq=False)
class _Reader:
    """One lens on the prompts of one file, or of all relations, at one place."""

    prompts: str
    place: str
    lens: str
    found: Sequence[LensRanks]

    @cached_property
    def layers(self) -> list[Layer]:
        """The layers at which it reads all prompts."""
        return sorted(set.intersection(*({*one.layers} for one in self.found)), key=place_of)

    def hits(self, k: int, layer: Layer | None = None, among: bool = False) -> list[float] | None:
        """Return the share of words among the k likeliest, by relation, or by prompt of a file.

        It is at one layer, or, if None, at any; `among` the relation's objects. None if the lens does not say.
        """
        values: list[float] = []
        for one in self.found:
            ranks = one.among if among else one.ranks
            if ranks is None:
                return None
            values += _shares(ranks.amin(0) if layer is None else ranks[one.layers.index(layer)], k, one.relation)
        return values

    def own(self, k: int, among: bool = False) -> list[float] | None:
        """Return `hits` at subjects, of each lens at the layer that it was estimated at; None if it is of no layer."""
        values: list[float] = []
        for one in self.found:
            ranks = one.among if among else one.ranks
            if ranks is None or one.own is None or one.place != SUBJECT:
                return None
            values += _shares(ranks[one.layers.index(one.own)], k, True)
        return values

    def best_layer(self, k: int) -> Layer | None:
        """Return the layer with the most hits among the k likeliest tokens, or objects if it says no tokens."""
        among = self.found[0].ranks is None
        scores = {layer: sum(self.hits(k, layer, among) or ()) for layer in self.layers}
        return max(scores, key=lambda layer: scores[layer], default=None)


def _shares(ranks: Tensor, k: int, together: bool) -> list[float]:
    """Return the share of hits in each prompt's words, of `(prompts, words)`, or the mean of the shares."""
    ranks = ranks.reshape(len(ranks), -1)
    hits = torch.where(ranks.isnan(), torch.nan, (ranks <= k).double()).nanmean(1)
    return [float(hits.mean())] if together else hits.tolist()


def _cell(values: list[float] | None) -> Estimate | None:
    """Return the mean of values with its interval; None if there is none."""
    return Estimate(fmean(values), None, bootstrap(values, mean)) if values else None


def _readers(found: Iterable[LensRanks]) -> list[_Reader]:
    groups: dict[tuple[str, str, str], list[LensRanks]] = {}
    for one in found:
        groups.setdefault((RELATIONS if one.relation else one.prompts, one.place, one.lens), []).append(one)
    return [_Reader(*key, some) for key, some in groups.items()]


def _places(readers: Sequence[_Reader]) -> dict[tuple[str, str], dict[str, _Reader]]:
    """Return the readers by prompts and place, each in the order in which lenses come first."""
    order = {name: place for place, name in enumerate(dict.fromkeys(one.lens for one in readers))}
    places: dict[tuple[str, str], dict[str, _Reader]] = {}
    for one in sorted(readers, key=lambda one: order[one.lens]):
        places.setdefault((one.prompts, one.place), {})[one.lens] = one
    return {key: places[key] for key in dict.fromkeys((one.prompts, one.place) for one in readers)}


def lens_table(found: Sequence[LensRanks], ks: Sequence[int], model: str) -> Table:
    """Return the table of hits of each lens on each set of prompts, at its best layer, its own and any."""
    readers = _readers(found)
    lenses = dict.fromkeys(one.lens for one in readers)
    rows: list[Row] = []
    for (prompts, place), some in _places(readers).items():
        for lens in lenses:
            head = (prompts, place, lens)
            if lens in some:
                rows += _rows(some[lens], ks, head)
            elif lens != FREQUENT:
                rows.append((*head, *[None] * (4 + 2 * len(ks))))
    columns = (
        *("prompts", "read at", "lens", "number", "layer"),
        *(f"@{k}" for k in ks),
        *(f"any layer @{k}" for k in ks),
        f"of the objects @{ks[0]}",
        "seconds",
    )
    caption = (
        f"Lenses of {model} side by side: the share of words that are among the k likeliest tokens of a lens (@k), at "
        f"the layer with the most hits @{ks[-1]}, at the layer that a relation's lens was estimated at (own), and at "
        "any layer; and of objects that are first among the relation's objects. Means over relations, or over the "
        "prompts of a file, with 95% intervals; a dash where a lens says nothing."
    )
    return Table("lenses", caption, columns, tuple(rows))


def _rows(one: _Reader, ks: Sequence[int], head: Row) -> list[Row]:
    sizes = [len((part.among if part.ranks is None else part.ranks)[0]) for part in one.found]  # type: ignore[index]
    over = f" of {plotting.number_of(len(sizes))}" if one.prompts == RELATIONS else ""
    head = (*head, f"{sum(sizes)}{over}")
    best, seconds = one.best_layer(ks[-1]), sum(part.seconds for part in one.found)
    at = [_cell(one.hits(k, best)) for k in ks]
    anywhere = [_cell(one.hits(k)) for k in ks]
    constant = one.lens == FREQUENT
    layer = None if constant or best is None else str(best)
    rows: list[Row] = [
        (*head, layer, *at, *anywhere, _cell(one.hits(ks[0], best, True)), None if constant else seconds)
    ]
    own = [_cell(one.own(k)) for k in ks], _cell(one.own(ks[0], True))
    if any((*own[0], own[1])):
        rows.append((*head, "own", *own[0], *[None] * len(ks), own[1], None))
    return rows


def swap_table(found: Sequence[LensSwaps], model: str) -> Table:
    """Return the table of swaps along lenses, means over relations."""
    by_lens: dict[str, list[LensSwaps]] = {}
    for one in found:
        by_lens.setdefault(one.lens, []).append(one)
    rows = [
        (
            lens,
            f"{sum(one.edits for one in some)} of {plotting.number_of(len(some))}",
            _cell([one.swapped / one.edits for one in some]),
            _cell([one.control / one.edits for one in some]),
            _cell([one.length for one in some]),
            sum(one.seconds for one in some),
        )
        for lens, some in by_lens.items()
    ]
    caption = (
        f"Swaps along lenses of {model} at the subject, at the layer of each relation's LRE: what a lens reads for the "
        "object and for another one is exchanged. The share after which the LM says the other object, and the share "
        "after displacements of equal length in random directions; the length is relative to that of s. Means over "
        "relations, with 95% intervals."
    )
    columns = ("lens", "swaps", "says the other", "control", "length", "seconds")
    return Table("lens_swaps", caption, columns, tuple(rows))


def layer_table(found: Sequence[LensRanks], ks: Sequence[int]) -> Table:
    """Return the table of hits by layer."""
    rows = [
        (*key, lens, str(layer), *(_cell(one.hits(k, layer)) for k in ks), _cell(one.hits(ks[0], layer, True)))
        for key, some in _places(_readers(found)).items()
        for lens, one in some.items()
        for layer in one.layers
    ]
    columns = ("prompts", "read at", "lens", "layer", *(f"@{k}" for k in ks), f"of the objects @{ks[0]}")
    return Table("lenses_by_layer", "Hits of lenses by layer.", columns, tuple(rows))


def plot_lenses_by_layer(found: Sequence[LensRanks], k: int) -> Figure:
    """Plot the hits of each lens by layer, a panel for each set of prompts and place; intervals are shaded."""
    readers = _readers(found)
    lenses = dict.fromkeys(one.lens for one in readers)
    looks = dict(zip(lenses, plotting.STYLES, strict=False))
    places = _places(readers)
    layers = sorted({layer for one in readers for layer in one.layers}, key=place_of)
    titles = [f"{prompts}, {place}" for prompts, place in places]
    figure, panels = plotting.layer_grid(titles, layers, f"among the {k} likeliest")
    for axes, some in zip(panels, places.values(), strict=True):
        for lens, one in some.items():
            cells = {layer: _cell(one.hits(k, layer)) for layer in one.layers}
            points = {layer: cell for layer, cell in cells.items() if cell is not None}
            plotting.curve(axes, points, looks[lens], lens, shade=0.12)
    plotting.legend(figure)
    return figure
