"""Tables in files: CSV, JSON Lines and Parquet, row by row.

Text is taken as it is: no cell of a CSV file is turned into a number, a date or a missing value.
"""

from __future__ import annotations

import csv
import gzip
import json
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, TypeAlias

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.json_files import distinct_keys
from lre_lightning.relations.schema import MOST, InvalidRelation
from lre_lightning.storage.plain import printable, shown

LARGEST_TABLE = 2**31
"""Bytes that a table may have, or all tables of a data set together; of a compressed one, when it is unpacked."""
LONGEST_LINE = 2**26
"""Bytes that a line of a CSV or JSON Lines file may have."""
MOST_ROWS = 10_000_000
"""Rows that a table may have, or all tables of a data set together."""

_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
SUFFIXES = (*_TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in _TEXT_SUFFIXES), ".parquet")
"""How the names of tables end."""
ABSENT = object()
"""A cell that is not there."""
EMPTY = "is empty; it must hold at least one row with subject and object"

_BROKEN = (EOFError, LookupError, MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError, zlib.error)
"""What readers raise of broken files."""

Row: TypeAlias = tuple[int, list[Any] | str]
"""The number of a row, and the cells of the columns asked for, or what is wrong with it."""
Splits: TypeAlias = dict[str, Callable[[], list["Table"]]]
"""What opens the tables of each split."""


def has_table_suffix(name: str | Path) -> bool:
    """Say whether a file's name ends as one of a table does."""
    return str(name).lower().endswith(SUFFIXES)


@dataclass(frozen=True)
class Table:
    """One file, or one split of a data set.

    Attributes:
        place: Its name beside others, for errors.
        unit: What its rows are called.
        names: Its columns.
        rows: The cells of some columns, row by row. A cell that is not there is `ABSENT`.
    """

    place: str
    unit: str
    names: Sequence[str]
    rows: Callable[[Sequence[str]], Iterator[Row]]


def open_file(path: Path, place: str, delimiter: str | None = None) -> Table:
    """Open a file by its suffix.

    Args:
        path: The file.
        place: Its name for errors.
        delimiter: What is between the cells of a ``.csv`` file, if no comma is.
    """
    try:
        found = path.stat()
    except (OSError, ValueError) as error:
        raise LREError(f"can't read the table {place!r}: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise LREError(f"can't read the table {place!r}: it is no ordinary file")
    if found.st_size > LARGEST_TABLE:
        raise _too_large(place, found.st_size)
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix == ".parquet":
        return _parquet(path, place)
    if suffix == ".json":
        return _json(path, place)
    if suffix in (".jsonl", ".ndjson"):
        return _json_lines(path, place)
    if suffix in (".csv", ".tsv"):
        return _csv(path, place, "\t" if suffix == ".tsv" else delimiter or ",")
    raise LREError(f"can't read the table {place!r}: its name must end in {', '.join(SUFFIXES)}")


def _too_large(place: str, size: int) -> LREError:
    return LREError(
        f"can't read the table {place!r}: it has {size} bytes or more, and may have {LARGEST_TABLE}: split it"
    )


def guarded(rows: Callable[[Sequence[str]], Iterator[Row]], place: str) -> Callable[[Sequence[str]], Iterator[Row]]:
    """Rows whose reader fails with one sentence."""

    def guarded(names: Sequence[str]) -> Iterator[Row]:
        try:
            yield from rows(names)
        except LREError:
            raise
        except _BROKEN as error:
            raise _unreadable(place, error) from error

    return guarded


def _unreadable(place: str, error: BaseException) -> LREError:
    return LREError(f"can't read the table {place!r}: {printable(first_line(error))}")


def _lines(path: Path, place: str) -> Iterator[str]:
    """The lines of a text file in UTF-8, with their ends."""
    read = number = 0
    with _binary(path) as file:
        while line := file.readline(LONGEST_LINE + 1):
            number, read = number + 1, read + len(line)
            if len(line) > LONGEST_LINE:
                raise LREError(f"can't read the table {place!r}: line {number} has more than {LONGEST_LINE} bytes")
            if read > LARGEST_TABLE:
                raise _too_large(place, read)
            try:
                yield line.decode().removeprefix("\ufeff" if number == 1 else "")
            except UnicodeDecodeError as error:
                raise LREError(
                    f"can't read the table {place!r}: line {number} is not in UTF-8 "
                    f"(the byte 0x{error.object[error.start]:02x}); save the file as UTF-8"
                ) from error


def _binary(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if path.name.lower().endswith(".gz") else open(path, "rb")


def _csv(path: Path, place: str, delimiter: str) -> Table:
    def records() -> Iterator[tuple[int, list[str] | str]]:
        reader = csv.reader(_lines(path, place), delimiter=delimiter, strict=True)
        while True:
            line = reader.line_num + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                yield line, _csv_error(error)
                return
            if cells:
                yield line, cells

    def rows(names: Sequence[str]) -> Iterator[Row]:
        found = records()
        _, header = next(found)
        indices = [header.index(name) for name in names]
        for line, cells in found:
            if isinstance(cells, list) and len(cells) != len(header):
                yield line, f"the number of cells must be {len(header)}, as in the header, not {len(cells)}"
            else:
                yield line, cells if isinstance(cells, str) else [cells[index] for index in indices]

    def header() -> list[str]:
        for line, cells in records():
            if isinstance(cells, str):
                raise InvalidRelation(place, [f"line {line}: {cells}"])
            return cells
        return []

    return Table(place, "line", _attempt(header, place), guarded(rows, place))


def _csv_error(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return 'a quotation mark " opens a cell here, and none closes it'
    if "field larger" in str(error):
        return f'a cell has more than {csv.field_size_limit()} characters; is a quotation mark " left open?'
    if "expected after" in str(error):
        return 'a quotation mark " ends a cell, and text follows; write two of them for one in a cell'
    return str(error)


def _json_lines(path: Path, place: str) -> Table:
    def objects() -> Iterator[tuple[int, dict[str, Any] | str]]:
        for number, line in enumerate(_lines(path, place), start=1):
            if line.strip():
                yield number, _json_object(line)

    return _json_table(objects, place, "line")


def _json(path: Path, place: str) -> Table:
    """A file of JSON Lines, or of one object, or of a list of them: data sets of the hub have all of these."""

    def objects() -> Iterator[tuple[int, dict[str, Any] | str]]:
        lines = _lines(path, place)
        try:
            data = json.loads("".join(lines), object_pairs_hook=distinct_keys)
        except json.JSONDecodeError as error:
            if error.msg != "Extra data":
                raise InvalidRelation(place, [f"is no JSON: {error}"]) from error
            for number, line in enumerate(_lines(path, place), start=1):
                if line.strip():
                    yield number, _json_object(line)
            return
        for number, item in enumerate(data if isinstance(data, list) else [data], start=1):
            yield number, _as_object(item)

    if path.stat().st_size > LONGEST_LINE:
        raise LREError(f"can't read {place!r}: it has {path.stat().st_size} bytes, and may have {LONGEST_LINE}")
    return _json_table(objects, place, "item")


def _json_table(objects: Callable[[], Iterator[tuple[int, dict[str, Any] | str]]], place: str, unit: str) -> Table:
    def rows(names: Sequence[str]) -> Iterator[Row]:
        for number, item in objects():
            yield number, item if isinstance(item, str) else [item.get(name, ABSENT) for name in names]

    def names() -> list[str]:
        found: dict[str, None] = {}
        problems: list[str] = []
        for number, item in objects():
            if not isinstance(item, str):
                found.update(dict.fromkeys(item))
            elif len(problems) < MOST:
                problems.append(f"{unit} {number}: {item}")
        if problems and not found:
            raise InvalidRelation(place, problems)
        return list(found)

    return Table(place, unit, _attempt(names, place), guarded(rows, place))


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        return _as_object(json.loads(line, object_pairs_hook=distinct_keys))
    except json.JSONDecodeError as error:
        return f"it is no JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {first_line(error)}"


def _as_object(item: Any) -> dict[str, Any] | str:
    return item if isinstance(item, dict) else f"it must be an object with a sample or a relation, not {shown(item)}"


def _attempt(read: Callable[[], list[str]], place: str) -> list[str]:
    """Read the names of a table's columns."""
    try:
        return read()
    except LREError:
        raise
    except _BROKEN as error:
        raise _unreadable(place, error) from error


def _parquet(path: Path, place: str) -> Table:
    import pyarrow.parquet  # type: ignore[import-untyped]

    def names() -> list[str]:
        with pyarrow.parquet.ParquetFile(path) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise LREError(f"{place!r} has {file.metadata.num_rows} rows, and may have {MOST_ROWS}")
            return list(file.schema_arrow.names)

    def rows(names: Sequence[str]) -> Iterator[Row]:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=10_000, columns=list(names)):
                for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    number += 1
                    yield number, list(row)

    return Table(place, "row", _attempt(names, place), guarded(rows, place))
