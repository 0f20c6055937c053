"""Relations in tables: CSV, JSON Lines, Parquet, and data sets of Hugging Face. A row is a sample, or a relation.

The columns of a table with a sample a row, of which `subject` and `object` are required:

| field | what it holds | other name |
|---|---|---|
| `subject`, `object` | the sample | |
| `relation` | the name of the sample's relation; without it, all rows are of one, named after the file or data set | |
| `template` | a template of the relation, or a list of them | `prompt_templates` |
| `zero_shot_template` | a zero-shot template, or a list of them | `prompt_templates_zs` |
| `category` | the relation's category | `relation_type` |
| `domain`, `range` | what subjects and objects are | `domain_name`, `range_name` |
| `symmetric` | true or false | |

The distinct templates of a relation's rows are its templates; it may have none. Of what else a relation has, its rows
must agree, and a row may leave it empty. Other columns are not read.

A table that has no `subject` and `object` but `samples` has a relation a row, with the columns of
`lre_lightning.sources.schema`, as `datasets.load_dataset("json", ...)` makes them of JSON files.

Text is taken as it is: no cell of a CSV file is turned into a number, a date or a missing value.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import json
import os
import re
import stat
import sys
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from lre_lightning.checkpoints import printable, shown
from lre_lightning.errors import LREError, first_line
from lre_lightning.relations import Relation
from lre_lightning.sources.schema import MOST, InvalidRelation, check_relation, sentence

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]

FIELDS: dict[str, tuple[str, ...]] = {
    "subject": ("subject",),
    "object": ("object",),
    "relation": ("relation",),
    "category": ("category", "relation_type"),
    "domain": ("domain", "domain_name"),
    "range": ("range", "range_name"),
    "template": ("template", "prompt_templates"),
    "zero_shot_template": ("zero_shot_template", "prompt_templates_zs"),
    "symmetric": ("symmetric",),
}
"""What a table may hold, and the names of the columns where it is looked for."""

LARGEST_TABLE = 2**31
"""Bytes that a table may have, or all tables of a data set together; of a compressed one, when it is unpacked."""
LONGEST_LINE = 2**26
"""Bytes that a line of a CSV or JSON Lines file may have."""
MOST_ROWS = 10_000_000
"""Rows that a table may have, or all tables of a data set together."""
HUB_OPTIONS = ("name", "split", "revision", "data_files", "data_dir", "token")
"""The options of `datasets.load_dataset` that a data set of the hub may be given."""
TIMEOUT = 10.0
"""Seconds that the hub may take to say whether it has a data set."""

_TEXT_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson")
_SUFFIXES = (*_TEXT_SUFFIXES, *(f"{suffix}.gz" for suffix in _TEXT_SUFFIXES), ".parquet")
_HUB_NAME = re.compile(r"(hf://datasets/)?([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([^\s@]+))?", re.ASCII)
_SAVED = ({"dataset_info.json", "state.json"}, {"dataset_dict.json"})
_USUAL = {
    "subject": ("head", "sub_label", "sub", "subj", "entity", "source", "question", "input", "s", "h"),
    "object": ("tail", "obj_label", "obj", "target", "answer", "value", "output", "label", "o", "t"),
}
_PROPERTIES = {"category": "relation_type", "domain": "domain_name", "range": "range_name", "symmetric": "symmetric"}
_TEMPLATES = {"template": "prompt_templates", "zero_shot_template": "prompt_templates_zs"}
_SCHEMA = {"relation": "name"} | {key: f"properties.{name}" for key, name in _PROPERTIES.items()}
_NESTED = ("name", "prompt_templates", "prompt_templates_zs", "properties", "samples")
_ABSENT = object()
_EMPTY = "is empty; it must hold at least one row with subject and object"

_BROKEN = (EOFError, LookupError, MemoryError, OSError, OverflowError, RuntimeError, TypeError, ValueError, zlib.error)
"""What readers raise of broken files."""

_Row: TypeAlias = tuple[int, list[Any] | str]
"""The number of a row, and the cells of the columns asked for, or what is wrong with it."""
_Splits: TypeAlias = dict[str, Callable[[], list["_Table"]]]
"""What opens the tables of each split."""


def read_table(
    source: str | Path | Dataset | DatasetDict,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> list[Relation]:
    """Read the relations of a table or a data set.

    Args:
        source: A file ``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``, each also with ``.gz``, or ``.parquet``; a folder of
            `datasets.Dataset.save_to_disk`; ``hf://datasets/ORG/NAME[@REVISION]`` or ``ORG/NAME``; a data set.
        columns: The names of columns by what they hold, as in ``{"subject": "head", "object": "tail"}``. What is not
            in it is found under the names of this module's docstring.
        options: ``split``, such as ``"train"`` or ``"train+test"``, and for a data set of the hub the others of
            `HUB_OPTIONS`, which mean what they do in `datasets.load_dataset`. It has to have files of the kinds above,
            or ``.json``; no code is run.

    Returns:
        The relations, in the order of their first rows; their samples in the order of the rows.

    Raises:
        LREError: There is no such table, column, field, option or split, it is too large, or values are no text, are
            empty or contradict each other; the message has all problems with their lines, or rows.

    >>> from datasets import Dataset
    >>> table = Dataset.from_dict({"head": ["Canada", "France"], "tail": ["Ottawa", "Paris"]})
    >>> [relation] = read_table(table, columns={"subject": "head", "object": "tail"})
    >>> relation.name, relation.samples[0]
    ('dataset', Sample(subject='Canada', object='Ottawa'))
    """
    columns, options = dict(columns or {}), dict(options or {})
    _check_columns(columns)
    place, name, splits = _open(source, options)
    tables = _choose(place, splits, options.get("split"))
    return _Reader(place, name, columns).read(tables)


def has_table_suffix(name: str | Path) -> bool:
    """Say whether a file's name ends as one of a table does."""
    return str(name).lower().endswith(_SUFFIXES)


def is_saved(folder: str | Path) -> bool:
    """Say whether a folder is one of `datasets.Dataset.save_to_disk` or `datasets.DatasetDict.save_to_disk`."""
    return any(all((Path(folder) / name).is_file() for name in names) for names in _SAVED)


def is_hub_name(name: str) -> bool:
    """Say whether a string can be the name of a data set of the hub, and not of a file of relations here."""
    if name.startswith("hf://"):
        return True
    return bool(_HUB_NAME.fullmatch(name)) and "/" in name and not name.endswith((".json", *_SUFFIXES))


def is_table(source: str | Path) -> bool:
    """Say whether a path or a name is one that `read_table` reads, if there is such a thing.

    >>> is_table("capitals.csv"), is_table("ORG/NAME"), is_table("hf://datasets/ORG/NAME"), is_table("capitals.json")
    (True, True, True, False)
    """
    if os.path.isdir(source):
        return is_saved(source)
    return has_table_suffix(source) or (isinstance(source, str) and not os.path.exists(source) and is_hub_name(source))


# Rows to relations.


@dataclass(frozen=True)
class _Table:
    """One file, or one split of a data set.

    Attributes:
        place: Its name beside others, for errors.
        unit: What its rows are called.
        names: Its columns.
        rows: The cells of some columns, row by row. A cell that is not there is `_ABSENT`.
    """

    place: str
    unit: str
    names: Sequence[str]
    rows: Callable[[Sequence[str]], Iterator[_Row]]


@dataclass(slots=True)
class _Group:
    """The rows of one relation. Rows are known by their position among all of the data set."""

    subjects: list[Any] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    values: dict[str, tuple[Any, int]] = field(default_factory=dict)
    templates: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in _TEMPLATES})


class _Reader:
    """Reads tables, and collects what is wrong with all of them."""

    def __init__(self, place: str, name: str, columns: Mapping[str, str]) -> None:
        self.place, self.name, self.columns = place, name, columns
        self.tables: list[_Table] = []
        self.starts: list[int] = []
        self.position = 0
        self.rows = 0
        self.problems: list[tuple[int, str]] = []
        self.groups: dict[str, _Group] = {}
        self.known: dict[Any, Any] = {}
        self.found: list[Relation] = []
        self.labels: dict[str, str] = {}

    def read(self, tables: Sequence[_Table]) -> list[Relation]:
        for table in tables:
            self.tables.append(table)
            self.starts.append(self.position)
            if self._is_nested(table):
                self._read_nested(table)
            else:
                self._read_flat(table)
            self.position += 1
        if not self.rows:
            raise InvalidRelation(self.place, [_EMPTY])
        for name in list(self.groups):
            self._check_group(name, self.groups.pop(name))
        if self.problems:
            raise InvalidRelation(self.place, self._messages())
        return self.found

    def _cells(self, table: _Table, names: Sequence[str]) -> Iterator[list[Any]]:
        start = self.position
        for number, cells in table.rows(names):
            self.rows += 1
            if self.rows > MOST_ROWS:
                raise LREError(f"{self.place!r} has too many rows: it may have {MOST_ROWS}")
            self.position = start + number
            if isinstance(cells, str):
                self._problem(cells)
            else:
                yield cells

    def _problem(self, text: str, position: int | None = None) -> None:
        if len(self.problems) < MOST:
            self.problems.append((self.position if position is None else position, text))

    def _messages(self) -> list[str]:
        return [sentence(self._where(position), text) for position, text in sorted(self.problems)]

    def _where(self, position: int) -> str:
        index = bisect_right(self.starts, position) - 1
        table = self.tables[index]
        row = f"{table.unit} {position - self.starts[index]}"
        return row if len(self.tables) == 1 else f"{table.place}, {row}"

    # A relation a row.

    def _is_nested(self, table: _Table) -> bool:
        if "samples" not in table.names or {"subject", "object"} & {*table.names, *self.columns}:
            return False
        if self.columns:
            raise LREError(
                f"{self.place!r} has a relation a row, in the column 'samples', and columns is for a sample a row: "
                "leave it out"
            )
        return True

    def _read_nested(self, table: _Table) -> None:
        names = [name for name in _NESTED if name in table.names]
        for cells in self._cells(table, names):
            data = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not _ABSENT}
            if table.unit == "row":
                data = _without_nulls(data)
            try:
                self.found.append(check_relation(data, self.place, templates_required=False))
            except InvalidRelation as error:
                for problem in error.problems:
                    self._problem(problem)

    # A sample a row.

    def _read_flat(self, table: _Table) -> None:
        places = self._find_columns(table)
        self.labels.update(places)
        names = list(dict.fromkeys(places.values()))
        subject, object_ = names.index(places["subject"]), names.index(places["object"])
        relation = names.index(places["relation"]) if "relation" in places else None
        rest = [(name, names.index(places[name])) for name in (*_PROPERTIES, *_TEMPLATES) if name in places]
        known = self.known
        for cells in self._cells(table, names):
            name = self.name if relation is None else cells[relation]
            if type(name) is not str:
                self._problem(_must_be(places["relation"], "a string", name))
                continue
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = _Group()
            for texts, cell in ((group.subjects, cells[subject]), (group.objects, cells[object_])):
                texts.append(known.setdefault(cell, cell) if type(cell) is str else cell)
            group.positions.append(self.position)
            for key, index in rest:
                cell = cells[index]
                if cell is None or cell is _ABSENT or cell == "":
                    continue
                if key in _TEMPLATES:
                    self._add_templates(group, key, cell)
                else:
                    self._add_value(group, key, cell)

    def _find_columns(self, table: _Table) -> dict[str, str]:
        """The columns of a table by what they hold."""
        if not table.names:
            raise InvalidRelation(self.place, [_EMPTY])
        where = repr(self.place) if len(self.tables) == 1 else f"{self.place!r}: {table.place}"
        there = f"{where} has the columns {', '.join(map(shown, table.names[:50])) or 'none'}"
        found = dict(self.columns)
        for key, column in self.columns.items():
            if column not in table.names:
                nearest = difflib.get_close_matches(column, table.names, 1)
                hint = f" (did you mean {shown(nearest[0])}?)" if nearest else ""
                raise LREError(f"{there}, and no {column!r}, which columns names for {key!r}{hint}")
        for key, names in FIELDS.items():
            candidates = [name for name in names if name in table.names and key not in found]
            if len(candidates) > 1:
                raise LREError(f"{there}: say which of {' and '.join(candidates)} is the {key}, with columns")
            if candidates:
                found[key] = candidates[0]
        missing = [key for key in ("subject", "object") if key not in found]
        if missing:
            likely = {key: _likely(key, table.names) for key in missing}
            hint = ", ".join(f"{key!r}: {name!r}" for key, name in likely.items() if name)
            raise LREError(
                f"{there}, and no {' and no '.join(map(repr, missing))}: "
                + (f"did you mean columns={{{hint}}}?" if hint else "say with columns which they are")
            )
        for column in found.values():
            if list(table.names).count(column) > 1:
                raise LREError(f"{there}, and so {column!r} more than once: rename one of them")
        return found

    def _add_templates(self, group: _Group, key: str, cell: Any) -> None:
        templates = cell if isinstance(cell, list) else [cell]
        for template in templates:
            if type(template) is not str:
                self._problem(_must_be(self.labels[key], "a string or a list of strings", template))
                return
            group.templates[key].setdefault(template, self.position)

    def _add_value(self, group: _Group, key: str, cell: Any) -> None:
        label = self.labels[key]
        if key == "symmetric" and type(cell) is str and cell.lower() in ("true", "false"):
            cell = cell.lower() == "true"
        right = (bool, "true or false") if key == "symmetric" else (str, "a string")
        if type(cell) is not right[0]:
            self._problem(_must_be(label, right[1], cell))
            return
        first, position = group.values.setdefault(key, (cell, self.position))
        if first != cell:
            self._problem(
                f"{label} is {shown(cell)}, and {shown(first)} in {self._where(position)}, of the same relation"
            )

    def _check_group(self, name: str, group: _Group) -> None:
        data = {
            "name": name,
            "properties": {_PROPERTIES[key]: value for key, (value, _) in group.values.items()},
            "samples": [
                {key: cell for key, cell in (("subject", s), ("object", o)) if cell is not _ABSENT}
                for s, o in zip(group.subjects, group.objects, strict=True)
            ],
        }
        data |= {key: list(group.templates[field]) for field, key in _TEMPLATES.items()}
        try:
            relation = check_relation(data, self.place, lines=group.positions, templates_required=False)
        except InvalidRelation as error:
            for problem in error.problems:
                self._add_problem(group, problem)
        else:
            self.found.append(relation)

    def _add_problem(self, group: _Group, problem: str) -> None:
        """Give a problem of a relation the row and the columns that it comes from."""
        row = re.match(r"line (\d+):? ", problem)
        if row:
            self._problem(problem[row.end() :], int(row[1]))
            return
        position, text = group.positions[0], problem
        template = re.match(r"(prompt_templates|prompt_templates_zs)\[(\d+)\]", problem)
        if template:
            key = next(key for key, schema in _TEMPLATES.items() if schema == template[1])
            position = list(group.templates[key].values())[int(template[2])]
            text = problem[template.end() :]
            text = text[2:] if text.startswith(": ") else self.labels[key] + text
        for key, schema in _SCHEMA.items():
            if key in self.labels and problem.startswith(f"{schema} "):
                position = group.values.get(key, (None, position))[1]
                text = self.labels[key] + problem.removeprefix(schema)
        self._problem(text, position)


def _check_columns(columns: Mapping[str, str]) -> None:
    for key, column in columns.items():
        if key not in FIELDS:
            nearest = difflib.get_close_matches(str(key), FIELDS, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LREError(f"columns has {key!r}, which no table holds: {hint}It may have {', '.join(FIELDS)}")
        if not isinstance(column, str):
            raise LREError(f"columns must give the name of a column for {key!r}, not {shown(column)}")


def _likely(key: str, names: Sequence[str]) -> str | None:
    """The column that may be meant by a field."""
    by_name = {name.casefold().strip(): name for name in names}
    usual = [by_name[name] for name in (key, *_USUAL[key]) if name in by_name]
    return next(iter(usual or difflib.get_close_matches(key, names, 1)), None)


def _must_be(label: str, right: str, cell: Any) -> str:
    if cell is _ABSENT:
        return f"lacks the key {label!r}, which must be {right}"
    return f"{label} must be {right}, not {shown(cell)}"


def _without_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """A relation of a table in which all rows have all keys: what has no value was not given."""
    found = {key: value for key, value in data.items() if value is not None}
    if isinstance(found.get("properties"), dict):
        found["properties"] = {key: value for key, value in found["properties"].items() if value is not None}
    samples = found.get("samples")
    if isinstance(samples, dict):  # a list of structures, turned inside out, as earlier versions of `datasets` keep it
        keys, lists = list(samples), list(samples.values())
        if all(isinstance(cells, list) and len(cells) == len(lists[0]) for cells in lists):
            found["samples"] = [dict(zip(keys, cells, strict=True)) for cells in zip(*lists, strict=True)]
    return found


# Where tables come from.


def _open(source: Any, options: Mapping[str, Any]) -> tuple[str, str, _Splits]:
    """Open a source: its name for errors, the name of its relation if it is one, and its tables by split."""
    if not isinstance(source, str | Path):
        _check_options(options, ("split",), "a data set in memory")
        return _open_loaded(source, "the data set", "dataset")
    path = Path(source)
    if os.path.isdir(path):
        _check_options(options, ("split",), "a data set in a folder")
        return _open_saved(path)
    if not str(source).startswith("hf://") and (has_table_suffix(path) or os.path.exists(path)):
        _check_options(options, (), "a file")
        suffix = next((suffix for suffix in _SUFFIXES if path.name.lower().endswith(suffix)), "")
        name = printable(os.fsencode(path.name[: len(path.name) - len(suffix)]).decode(errors="replace"))
        return str(path), name, {"": lambda: [_open_file(path, str(path))]}
    _check_options(options, HUB_OPTIONS, "a data set of the hub")
    return _open_hub(str(source), options)


def _check_options(options: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    for key in options:
        if key not in allowed:
            right = f"it may have {', '.join(allowed)}" if allowed else "leave them out"
            raise LREError(f"{what} takes no option {key!r}: {right}")


def _choose(place: str, splits: _Splits, split: Any) -> list[_Table]:
    """The tables of the splits that are asked for, or of the only one."""
    names = ", ".join(map(repr, splits))
    if split is None:
        if len(splits) != 1:
            first, *others = splits or [""]
            hint = f", or {f'{first}+{others[0]}'!r} for both" if others else ""
            raise LREError(f"{place!r} has the splits {names or 'none'}: give split, such as {first!r}{hint}")
        return next(iter(splits.values()))()
    chosen: list[_Table] = []
    for name in dict.fromkeys(str(split).split("+")):
        if name.strip() not in splits:
            nearest = difflib.get_close_matches(name, splits, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LREError(f"{place!r} has no split {name!r}: {hint}It has {names}; several are joined by '+'")
        chosen += splits[name.strip()]()
    return chosen


def _open_saved(folder: Path) -> tuple[str, str, _Splits]:
    if not is_saved(folder):
        raise LREError(f"the folder {str(folder)!r} is none that save_to_disk of a data set wrote")
    from datasets import load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception as error:  # whatever a broken folder may be wrong with
        raise LREError(f"can't read the data set {str(folder)!r}: {first_line(error)}") from error
    name = printable(os.fsencode(folder.resolve().name).decode(errors="replace"))
    return _open_loaded(loaded, str(folder), name)


def _open_loaded(loaded: Any, place: str, name: str) -> tuple[str, str, _Splits]:
    from datasets import Dataset, DatasetDict

    if isinstance(loaded, Dataset):
        return place, name, {str(loaded.split or "train"): lambda: [_dataset(loaded, place)]}
    if isinstance(loaded, DatasetDict):
        return place, name, {str(split): partial(_open_split, str(split), part) for split, part in loaded.items()}
    raise LREError(
        "relations are read from a path, a name, a datasets.Dataset or a datasets.DatasetDict, "
        f"and not from {shown(loaded)}"
    )


def _open_split(split: str, part: Dataset) -> list[_Table]:
    return [_dataset(part, f"the split {split!r}")]


def _dataset(dataset: Dataset, place: str) -> _Table:
    def rows(names: Sequence[str]) -> Iterator[_Row]:
        labels = [getattr(dataset.features[name], "int2str", None) for name in names]
        number = 0
        for batch in dataset.select_columns(list(names)).with_format("arrow").iter(batch_size=10_000):
            cells = [batch.column(name).to_pylist() for name in names]
            for column, label in enumerate(labels):
                if label is not None:
                    cells[column] = [None if value is None or value < 0 else label(value) for value in cells[column]]
            for row in zip(*cells, strict=True):
                number += 1
                yield number, list(row)

    return _Table(place, "row", dataset.column_names, _guarded(rows, place))


def _open_file(path: Path, place: str, delimiter: str | None = None) -> _Table:
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
    raise LREError(f"can't read the table {place!r}: its name must end in {', '.join(_SUFFIXES)}")


def _too_large(place: str, size: int) -> LREError:
    return LREError(
        f"can't read the table {place!r}: it has {size} bytes or more, and may have {LARGEST_TABLE}: split it"
    )


def _guarded(rows: Callable[[Sequence[str]], Iterator[_Row]], place: str) -> Callable[[Sequence[str]], Iterator[_Row]]:
    """Rows whose reader fails with one sentence."""

    def guarded(names: Sequence[str]) -> Iterator[_Row]:
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


def _csv(path: Path, place: str, delimiter: str) -> _Table:
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

    def rows(names: Sequence[str]) -> Iterator[_Row]:
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

    return _Table(place, "line", _attempt(header, place), _guarded(rows, place))


def _csv_error(error: csv.Error) -> str:
    if "unexpected end" in str(error):
        return 'a quotation mark " opens a cell here, and none closes it'
    if "field larger" in str(error):
        return f'a cell has more than {csv.field_size_limit()} characters; is a quotation mark " left open?'
    if "expected after" in str(error):
        return 'a quotation mark " ends a cell, and text follows; write two of them for one in a cell'
    return str(error)


def _json_lines(path: Path, place: str) -> _Table:
    def objects() -> Iterator[tuple[int, dict[str, Any] | str]]:
        for number, line in enumerate(_lines(path, place), start=1):
            if line.strip():
                yield number, _json_object(line)

    return _json_table(objects, place, "line")


def _json(path: Path, place: str) -> _Table:
    """A file of JSON Lines, or of one object, or of a list of them: data sets of the hub have all of these."""

    def objects() -> Iterator[tuple[int, dict[str, Any] | str]]:
        lines = _lines(path, place)
        try:
            data = json.loads("".join(lines), object_pairs_hook=_distinct)
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


def _json_table(objects: Callable[[], Iterator[tuple[int, dict[str, Any] | str]]], place: str, unit: str) -> _Table:
    def rows(names: Sequence[str]) -> Iterator[_Row]:
        for number, item in objects():
            yield number, item if isinstance(item, str) else [item.get(name, _ABSENT) for name in names]

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

    return _Table(place, unit, _attempt(names, place), _guarded(rows, place))


def _json_object(line: str) -> dict[str, Any] | str:
    try:
        return _as_object(json.loads(line, object_pairs_hook=_distinct))
    except json.JSONDecodeError as error:
        return f"it is no JSON: {error.msg} at column {error.colno}"
    except (ValueError, RecursionError) as error:
        return f"it is no JSON: {first_line(error)}"


def _as_object(item: Any) -> dict[str, Any] | str:
    return item if isinstance(item, dict) else f"it must be an object with a sample or a relation, not {shown(item)}"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {shown(double)} twice in one object")
    return found


def _attempt(read: Callable[[], list[str]], place: str) -> list[str]:
    """Read the names of a table's columns."""
    try:
        return read()
    except LREError:
        raise
    except _BROKEN as error:
        raise _unreadable(place, error) from error


def _parquet(path: Path, place: str) -> _Table:
    import pyarrow.parquet  # type: ignore[import-untyped]

    def names() -> list[str]:
        with pyarrow.parquet.ParquetFile(path) as file:
            if file.metadata.num_rows > MOST_ROWS:
                raise LREError(f"{place!r} has {file.metadata.num_rows} rows, and may have {MOST_ROWS}")
            return list(file.schema_arrow.names)

    def rows(names: Sequence[str]) -> Iterator[_Row]:
        number = 0
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=10_000, columns=list(names)):
                for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
                    number += 1
                    yield number, list(row)

    return _Table(place, "row", _attempt(names, place), _guarded(rows, place))


# The hub.


def _open_hub(source: str, options: Mapping[str, Any]) -> tuple[str, str, _Splits]:
    match = _HUB_NAME.fullmatch(source)
    if not match or not (match[1] or "/" in match[2]):
        missing = "" if source.startswith("hf://") else f"there is no file or folder {source!r} here, and "
        raise LREError(
            f"{missing}{source!r} is no name of a data set of the hub: give hf://datasets/ORG/NAME or "
            "hf://datasets/ORG/NAME@REVISION; some of its files are chosen by the option data_files"
        )
    name, revision = match[2], unquote(match[3]) if match[3] else None
    given = options.get("revision")
    if revision and given and revision != given:
        raise LREError(f"{source!r} names the revision {revision!r}, and the options {given!r}: give one of them")
    folder = _fetch(source, name, revision or given, options)
    if not any(path.name.lower().endswith((".json", *_SUFFIXES)) for path in folder.rglob("*")):
        raise LREError(
            f"the data set {name!r} of the hub has no table that is asked for: it must have files "
            f".json, {', '.join(_SUFFIXES)}"
        )
    from datasets import load_dataset_builder

    chosen = {key: options[key] for key in ("name", "data_files", "data_dir") if options.get(key) is not None}
    try:
        builder = load_dataset_builder(str(folder), **chosen)
    except Exception as error:  # whatever the files of a stranger may be wrong with
        reason = printable(" ".join(str(error).splitlines()[:2]) or type(error).__name__)
        raise LREError(f"the data set {name!r} of the hub can't be read: {reason}") from error
    splits: _Splits = {
        str(split): partial(_open_fetched, [Path(path) for path in paths], folder, name, builder.config)
        for split, paths in (builder.config.data_files or {}).items()
    }
    return source, name.rpartition("/")[2], splits


def _open_fetched(paths: Sequence[Path], folder: Path, name: str, config: Any) -> list[_Table]:
    places = [_inside(path, folder, name) for path in paths]
    return [
        _open_file(path, f"{name}/{place}", getattr(config, "sep", None))
        for path, place in zip(paths, places, strict=True)
    ]


def _inside(path: Path, folder: Path, name: str) -> str:
    """The path of a data set's file in its folder, which it may not leave."""
    relative = os.path.relpath(path, folder.resolve())
    if relative.startswith(os.pardir) or os.path.isabs(relative):
        raise LREError(f"the data set {name!r} of the hub names the file {shown(str(path))}, which is none of its own")
    return relative


def _fetch(source: str, name: str, revision: str | None, options: Mapping[str, Any]) -> Path:
    """Bring the data files of a data set into the cache, or find them there.

    Returns:
        The folder of the files.
    """
    from datasets import config
    from huggingface_hub import HfApi, snapshot_download

    patterns = ["README.md", ".huggingface.yaml", *_patterns(options)]
    token = options.get("token")
    missing = "" if source.startswith("hf://") else f"there is no file or folder {source!r} here, and "
    reason: BaseException | None = None
    if not config.HF_HUB_OFFLINE:
        try:
            info = HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT, files_metadata=True, token=token)
        except Exception as error:  # a hub that says no, or none at all
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if isinstance(error, ValueError) or 400 <= status < 500:
                raise LREError(f"{missing}{_refusal(name, revision, error)}") from error
            reason = error
        else:
            _check_size(name, info.siblings or (), patterns)
    offline = reason is not None or config.HF_HUB_OFFLINE
    try:
        folder = snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns=patterns,
            token=token,
            local_files_only=offline,
        )
    except Exception as error:
        if not offline:
            raise LREError(
                f"the data set {name!r} of the hub can't be fetched: {printable(first_line(error))}; "
                "what has been fetched is kept, so try again"
            ) from error
        why = (
            f"the Hugging Face Hub can't be reached ({printable(first_line(reason))})"
            if reason
            else "HF_HUB_OFFLINE is set"
        )
        raise LREError(
            f"{missing}the data set {name!r} of the hub is not in the cache, and {why}: fetch it once where there is a "
            "network, or save it to a folder and give that"
        ) from error
    if reason is not None:
        print(f"The Hugging Face Hub can't be reached: {name} is read from the cache.", file=sys.stderr)
    return Path(folder)


def _patterns(options: Mapping[str, Any]) -> list[str]:
    """The files to fetch, in the patterns of `huggingface_hub`, in which ``*`` stands for ``/`` too."""
    given = options.get("data_files")
    if given is None:
        folder = f"{str(options['data_dir']).strip('/')}/" if options.get("data_dir") else ""
        return [f"{folder}*{suffix}" for suffix in (".json", *_SUFFIXES)]
    parts = given.values() if isinstance(given, Mapping) else [given]
    found = [str(p) for part in parts for p in ([part] if isinstance(part, str) else part)]
    folder = f"{str(options['data_dir']).strip('/')}/" if options.get("data_dir") else ""
    return [folder + pattern for p in found for pattern in dict.fromkeys((p, p.replace("**/", "")))]


def _check_size(name: str, files: Sequence[Any], patterns: Sequence[str]) -> None:
    wanted = [file for file in files if any(fnmatch(file.rfilename, pattern) for pattern in patterns)]
    size = sum(file.size or 0 for file in wanted)
    if size > LARGEST_TABLE:
        raise LREError(
            f"the tables of the data set {name!r} of the hub have {size} bytes, and may have {LARGEST_TABLE}: choose "
            "some by the option data_files"
        )


def _refusal(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    what = f"the data set {name!r}"
    if isinstance(error, GatedRepoError):
        return f"{what} of the hub is gated: ask for access on its page, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        hint = "check the name, or log in with `hf auth login` if it is private"
        return f"the Hugging Face Hub has no data set {name!r}: {hint}"
    if isinstance(error, RevisionNotFoundError):
        return f"{what} of the hub has no revision {revision!r}"
    return f"the Hugging Face Hub refused {what}: {printable(first_line(error))}"
