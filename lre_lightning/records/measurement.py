"""What a measure has found in a trial, in a form that says itself what its numbers are out of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.statistics.estimates import Share
from lre_lightning.storage.plain import number, shown, whole

AXES = {"layer": "layers", "beta": "betas", "rank": "ranks"}
"""The axes of a record's grid, and the fields with their values."""

Cell: TypeAlias = int | float | str | None
Sum: TypeAlias = int | float | None
Sums: TypeAlias = Sum | tuple[Sum, ...] | tuple[tuple[Sum, ...], ...]


@dataclass(frozen=True)
class Tally:
    """Sums over samples at the points of a grid: counts of successes, or sums of numbers such as probabilities.

    Attributes:
        sums: The sums, nested by `axes`: a number if there is none, `[layer][beta]` for two. None at points where
            nothing was measured.
        total: The number of samples that each is a sum over.
        axes: The axes of the grid, of ``"layer"``, ``"beta"`` and ``"rank"``; their values are the record's.
        counts: Whether they count successes, so that means are shares with intervals.
        column: Whether the mean at the chosen point is a column of the tables of results and logged.

    >>> Tally((3, 4), total=8, axes=("rank",)).at((1,))
    0.5
    """

    sums: Sums
    total: int
    axes: tuple[str, ...] = ()
    counts: bool = True
    column: bool = False

    def at(self, place: Sequence[int] = ()) -> float:
        """Return the mean at the indices of a point: a `Share` of counts; NaN if it is over no sample, or None."""
        found: Any = self.sums
        for index in place:
            found = found[index]
        if found is None:
            return float("nan")
        if self.counts:
            return Share(found, self.total)
        return found / self.total if self.total else float("nan")


@dataclass(frozen=True)
class Measurement:
    """What a measure has found in one trial.

    Attributes:
        tallies: Sums over samples by name. A name such as ``"causality: oracle"`` is that of a score and a method.
        rows: Anything else, as rows of plain values.
        layers: The layers of the tallies, if they are not those of the record.
        chosen: Of ``"layer"``, ``"beta"`` and ``"rank"`` those whose chosen value the numbers depend on: they are
            dropped where another one is chosen later.
        columns: The names of the rows' cells, if they are a table of their own: `Records.to_pandas` has it by the
            measure's name, and a run's folder as CSV and Parquet.
    """

    tallies: Mapping[str, Tally] = field(default_factory=dict)
    rows: tuple[tuple[Cell, ...], ...] = ()
    layers: tuple[Layer, ...] | None = None
    chosen: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the measurement as plain data, without what is at its default."""
        return {**_given(self), "tallies": {name: _given(tally) for name, tally in self.tallies.items()}}

    def check(self, name: str, sizes: Mapping[str, int], tested: int) -> None:
        """Check what no type says, for a record of `tested` prompts whose axes have `sizes` values.

        Raises:
            LREError: If an axis is unknown, sums do not fill their grid, or a count is out of range.
        """
        own = sizes if self.layers is None else {**sizes, "layer": len(self.layers)}
        _check_axes(self.chosen, f"measures.{name} depends on")
        if self.columns and any(len(row) != len(self.columns) for row in self.rows):
            raise LREError(f"measures.{name} has rows that do not have its {len(self.columns)} columns")
        for label, tally in self.tallies.items():
            where = f"measures.{name}.{label}"
            _check_axes(tally.axes, f"{where} has the axis")
            whole(tally.total, f"{where}.total", most=tested)
            for count in _flat(tally.sums, [own[axis] for axis in tally.axes], where):
                if count is None:
                    continue
                if tally.counts:
                    whole(count, where, most=tally.total)
                else:
                    number(count, where, 1e12)


def _check_axes(axes: Sequence[str], what: str) -> None:
    for axis in axes:
        if axis not in AXES:
            raise LREError(f"{what} {shown(axis)}, and the axes are {', '.join(AXES)}")


def _given(data: Tally | Measurement) -> dict[str, Any]:
    """Return the fields that are not at their defaults."""
    return {one.name: value for one in fields(data) if (value := getattr(data, one.name)) != one.default}


def _flat(sums: Any, shape: Sequence[int], where: str) -> Iterator[Any]:
    """Yield the numbers of nested sums, which must have a shape."""
    if not shape:
        if isinstance(sums, tuple):
            raise LREError(f"{where} must have a number for each point of its axes, not {len(sums)} of them")
        yield sums
        return
    if not isinstance(sums, tuple) or len(sums) != shape[0]:
        found = len(sums) if isinstance(sums, tuple) else shown(sums)
        raise LREError(f"{where} must have {shape[0]} entries along an axis, not {found}")
    for inner in sums:
        yield from _flat(inner, shape[1:], where)
