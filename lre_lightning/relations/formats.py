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
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.json_files import check_file, distinct_keys
from lre_lightning.storage.plain import printable

LARGEST_TABLE = 2**31
"""Largest size of a table in bytes."""

NumberedRow: TypeAlias = tuple[int, Any]
"""The number of a row, and its cells by column."""


@dataclass(frozen=True)
class Rows:
    """The rows of a file or of a split of a data set.

    Attributes:
        place: The name of the file or split, for errors.
        unit: ``"line"``, ``"row"`` or ``"item"``: what the numbers of rows count.
        names: The names of the columns.
        read: Iterates over the rows; columns other than the given ones may be left out.
    """

    place: str
    unit: str
    names: Sequence[str]
    read: Callable[[Sequence[str]], Iterable[NumberedRow]]

    def placed(self, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
        """Iterate over the rows, each with its place for error messages; the first unreadable one is an `LREError`."""
        with readable(self.place):
            for number, row in self.read(names):
                yield f"{self.place}, {self.unit} {number}", row


Opened: TypeAlias = tuple[str, str, list[Rows]]
"""The name of a source in error messages, the name of its relation if it has no column of relations, and its rows."""


def has_table_suffix(name: str | Path) -> bool:
    """Return whether a file's name has the suffix of a table."""
    return _suffix(name) in FORMATS


def _suffix(name: str | Path) -> str:
    return Path(str(name).lower().removesuffix(".gz")).suffix


def open_file(path: Path) -> Opened:
    """Open a table by its suffix; one that cannot be read is an `LREError`."""
    stem = Path(path.stem).stem if path.suffix.lower() == ".gz" else path.stem
    return str(path), printable(stem), [open_rows(path)]


def open_rows(path: Path) -> Rows:
    """Open a file in one of the `FORMATS` or in JSON; one that cannot be read is an `LREError`."""
    check_file(path, LARGEST_TABLE)
    with readable(path):
        if _suffix(path) == ".json":
            return _json(path)
        if not has_table_suffix(path):
            raise LREError(f"{path} is not a table: its name must end in {', '.join(FORMATS)}")
        return FORMATS[_suffix(path)](path)


@contextmanager
def readable(place: object) -> Iterator[None]:
    """Turn the exceptions that readers raise for invalid files into an `LREError` that names the file."""
    try:
        yield
    except LREError:
        raise
    except (EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError, zlib.error) as error:
        raise LREError(f"{place} cannot be read: {printable(first_line(error))}") from error


def _lines(path: Path) -> Iterator[str]:
    """Iterate over the lines, with their ends, of a file in UTF-8."""
    with gzip.open(path, "rb") if path.name.lower().endswith(".gz") else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                wrong = f"is not in UTF-8 (the byte 0x{error.object[error.start]:02x})"
                raise LREError(f"{path}, line {number} {wrong}; save the file as UTF-8") from error


def _csv(path: Path, delimiter: str = ",") -> Rows:
    def records() -> Iterator[tuple[int, list[str]]]:
        reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
        line = 1
        try:
            for cells in reader:
                if cells:
                    yield line, cells
                line = reader.line_num + 1
        except csv.Error as error:
            hint = 'is a quotation mark " left open, or a mark in a cell not written as ""?'
            raise LREError(f"{path}, line {line} is not CSV: {error}; {hint}") from error

    def rows(names: Sequence[str]) -> Iterator[NumberedRow]:
        for line, cells in records():
            if len(cells) != len(header):
                wrong = f"must have {len(header)} cells, as the header has, not {len(cells)}"
                raise LREError(f"{path}, line {line} {wrong}")
            if line > first:
                yield line, dict(zip(header, cells, strict=True))

    first, header = next(records(), (0, []))
    return Rows(str(path), "line", header, rows)


def text_lines(path: Path, column: str) -> Rows:
    """Open a text file whose lines, without their ends and without blank ones, are the only column."""

    def rows(names: Sequence[str]) -> Iterator[NumberedRow]:
        lines = enumerate(_lines(path), start=1)
        return ((number, {column: line.rstrip("\r\n")}) for number, line in lines if line.strip())

    return Rows(str(path), "line", [column], rows)


def _json_lines(path: Path) -> Rows:
    def items() -> Iterator[NumberedRow]:
        for number, line in enumerate(_lines(path), start=1):
            if line.strip():
                try:
                    yield number, json.loads(line, object_pairs_hook=distinct_keys)
                except (ValueError, RecursionError) as error:
                    reason = getattr(error, "msg", first_line(error))  # without a number of lines
                    raise LREError(f"{path}, line {number} is not JSON: {reason}") from error

    return _rows_of_items(path, "line", items)


def _json(path: Path) -> Rows:
    """Open a file of an object, of a list of them, or of JSON Lines, as data sets of the Hub have them."""
    try:
        data = json.loads("".join(_lines(path)), object_pairs_hook=distinct_keys)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":
            return _json_lines(path)
        raise
    items = data if isinstance(data, list) else [data]
    return _rows_of_items(path, "item", lambda: enumerate(items, start=1))


def _rows_of_items(path: Path, unit: str, items: Callable[[], Iterable[NumberedRow]]) -> Rows:
    names = dict.fromkeys(key for _, item in items() if isinstance(item, dict) for key in item)
    return Rows(str(path), unit, list(names), lambda names: items())


def _parquet(path: Path) -> Rows:
    import pyarrow.parquet  # type: ignore[import-untyped]

    def rows(names: Sequence[str]) -> Iterator[NumberedRow]:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from rows_of_batches(file.iter_batches(batch_size=10_000, columns=list(names)))

    with pyarrow.parquet.ParquetFile(path) as file:
        return Rows(str(path), "row", file.schema_arrow.names, rows)


def rows_of_batches(batches: Iterable[Any]) -> Iterator[NumberedRow]:
    """Iterate over the rows of Arrow tables or record batches."""
    return enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


FORMATS: dict[str, Callable[[Path], Rows]] = {
    ".csv": _csv,
    ".tsv": partial(_csv, delimiter="\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
    ".parquet": _parquet,
}
"""The formats of tables by suffix; files of text may also be compressed, with ``.gz`` after the suffix."""
