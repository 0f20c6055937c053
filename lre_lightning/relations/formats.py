"""File formats of tables: CSV, JSON Lines and Parquet, read row by row.

A new format is a function from a path to `Rows`, with an entry in `FORMATS`.

Text is not interpreted: no cell of a CSV file becomes a number, a date or a missing value. CSV is read by the standard
library rather than by pyarrow, which takes the rest of the file for one cell, without an error, if a quotation mark is
left open, and does not know the numbers of lines.
"""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.json_files import check_file, distinct_keys
from lre_lightning.relations.schema import InvalidRelation, Problem
from lre_lightning.storage.plain import printable, shown

LARGEST_TABLE = 2**31
"""Bytes that a table may have, or all tables of a data set together."""

Row: TypeAlias = tuple[int, Sequence[Any] | str]
"""The number of a row, and its cells of the requested columns or what is wrong with it."""


@dataclass(frozen=True)
class Rows:
    """The rows of a file or of a split of a data set.

    Attributes:
        place: The name of the file or split, for errors.
        unit: ``"line"``, ``"row"`` or ``"item"``: what the numbers of rows count.
        names: The names of the columns.
        read: Iterates over the cells of some columns, row by row.
    """

    place: str
    unit: str
    names: Sequence[str]
    read: Callable[[Sequence[str]], Iterator[Row]]


Opened: TypeAlias = tuple[str, str, list[Rows]]
"""The name of a source for errors, the name of its relation if it has no column of relations, and its rows."""


def has_table_suffix(name: str | Path) -> bool:
    """Return whether a file's name has the suffix of a table."""
    return _suffix(name) in FORMATS


def _suffix(name: str | Path) -> str:
    return Path(str(name).lower().removesuffix(".gz")).suffix


def open_file(path: Path) -> Opened:
    """Open a file by its suffix.

    Raises:
        LREError: The file cannot be read.
    """
    stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
    return str(path), printable(stem), [open_rows(path, str(path))]


def open_rows(path: Path, place: str, delimiter: str | None = None) -> Rows:
    """Open a file by its suffix.

    Args:
        path: The file, which is in one of the `FORMATS` or JSON.
        place: Its name for errors.
        delimiter: The delimiter of a ``.csv`` file, ``","`` by default.

    Raises:
        LREError: The file cannot be read.
    """
    check_file(path, place, LARGEST_TABLE)
    suffix = _suffix(path)
    with readable(place):
        if suffix == ".csv" and delimiter:
            return _csv(path, place, delimiter)
        if suffix not in (*FORMATS, ".json"):
            raise ValueError(f"its name must end in {', '.join(FORMATS)}")
        return _json(path, place) if suffix == ".json" else FORMATS[suffix](path, place)


@contextmanager
def readable(place: str) -> Iterator[None]:
    """Turn the exceptions that readers raise for invalid files into one that names the file.

    Raises:
        LREError: Reading failed.
    """
    try:
        yield
    except LREError:
        raise
    except (EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError, zlib.error) as error:
        raise LREError(f"{place!r} cannot be read: {printable(first_line(error))}") from error


def _lines(path: Path, place: str) -> Iterator[str]:
    """Iterate over the lines, with their ends, of a file in UTF-8."""
    with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                wrong = f"line {number} is not in UTF-8 (the byte 0x{error.object[error.start]:02x})"
                raise LREError(f"{place!r} cannot be read: {wrong}; save the file as UTF-8") from error


_CSV_ERRORS = {
    "unexpected end of data": 'opens a cell with a quotation mark " and never closes it',
    "field larger than field limit": 'has a cell that is too long; is a quotation mark " left open?',
    "expected after": 'has text after a quotation mark " that closes a cell; write "" for a mark in a cell',
}


def _csv(path: Path, place: str, delimiter: str = ",") -> Rows:
    def records() -> Iterator[tuple[int, list[str] | str]]:
        reader = csv.reader(_lines(path, place), delimiter=delimiter, strict=True)
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            yield line, next((text for key, text in _CSV_ERRORS.items() if key in str(error)), f"is not CSV: {error}")

    def rows(names: Sequence[str]) -> Iterator[Row]:
        indices = [header.index(name) for name in names]
        for line, cells in records():
            if isinstance(cells, str):
                yield line, cells
            elif len(cells) != len(header):
                yield line, f"must have {len(header)} cells, as the header has, not {len(cells)}"
            elif line != header_line:
                yield line, [cells[index] for index in indices]

    header_line, header = next(records(), (0, []))
    if isinstance(header, str):
        raise InvalidRelation(place, [Problem(header, place=f"line {header_line}")])
    return Rows(place, "line", header, rows)


def _json_lines(path: Path, place: str) -> Rows:
    def items() -> Iterator[tuple[int, Any]]:
        for number, line in enumerate(_lines(path, place), start=1):
            if line.strip():
                try:
                    yield number, json.loads(line, object_pairs_hook=distinct_keys)
                except json.JSONDecodeError as error:
                    yield number, LREError(f"is not JSON: {error.msg} at column {error.colno}")
                except (ValueError, RecursionError) as error:
                    yield number, LREError(f"is not JSON: {first_line(error)}")

    return _items_as_rows(items, place, "line")


def _json(path: Path, place: str) -> Rows:
    """Open a file of an object, of a list of them, or of JSON Lines, as data sets of the Hub have them."""
    try:
        data = json.loads("".join(_lines(path, place)), object_pairs_hook=distinct_keys)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _json_lines(path, place)
        raise
    items = data if isinstance(data, list) else [data]
    return _items_as_rows(lambda: enumerate(items, start=1), place, "item")


def _items_as_rows(items: Callable[[], Iterator[tuple[int, Any]]], place: str, unit: str) -> Rows:
    def rows(names: Sequence[str]) -> Iterator[Row]:
        for number, item in items():
            if isinstance(item, dict):
                yield number, [item.get(name) for name in names]
            elif isinstance(item, LREError):
                yield number, str(item)
            else:
                yield number, f"must be an object with a sample or a relation, not {shown(item)}"

    names = dict.fromkeys(key for _, item in items() if isinstance(item, dict) for key in item)
    return Rows(place, unit, list(names), rows)


def _parquet(path: Path, place: str) -> Rows:
    import pyarrow.parquet  # type: ignore[import-untyped]

    def rows(names: Sequence[str]) -> Iterator[Row]:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from rows_of_batches(file.iter_batches(batch_size=10_000, columns=list(names)), names)

    with pyarrow.parquet.ParquetFile(path) as file:
        return Rows(place, "row", file.schema_arrow.names, rows)


def rows_of_batches(batches: Iterator[Any], names: Sequence[str]) -> Iterator[Row]:
    """Iterate over the rows of Arrow tables or record batches."""
    rows = (row for batch in batches for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True))
    yield from enumerate(rows, start=1)


FORMATS: dict[str, Callable[[Path, str], Rows]] = {
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
"""The formats of tables by suffix; files of text may also be compressed, with ``.gz`` after the suffix."""
