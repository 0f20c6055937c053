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
`lre_lightning.relations.schema`, as `datasets.load_dataset("json", ...)` makes them of JSON files.
"""

from __future__ import annotations

import difflib
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError
from lre_lightning.relations.data_sets import HUB_OPTIONS, is_hub_name, is_saved, open_hub, open_loaded, open_saved
from lre_lightning.relations.relation import Relation
from lre_lightning.relations.schema import MOST, InvalidRelation, check_relation, sentence
from lre_lightning.relations.table_files import (
    ABSENT,
    EMPTY,
    MOST_ROWS,
    SUFFIXES,
    Splits,
    Table,
    has_table_suffix,
    open_file,
)
from lre_lightning.storage.plain import printable, shown

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

_USUAL = {
    "subject": ("head", "sub_label", "sub", "subj", "entity", "source", "question", "input", "s", "h"),
    "object": ("tail", "obj_label", "obj", "target", "answer", "value", "output", "label", "o", "t"),
}
_PROPERTIES = {"category": "relation_type", "domain": "domain_name", "range": "range_name", "symmetric": "symmetric"}
_TEMPLATES = {"template": "prompt_templates", "zero_shot_template": "prompt_templates_zs"}
_SCHEMA = {"relation": "name"} | {key: f"properties.{name}" for key, name in _PROPERTIES.items()}
_NESTED = ("name", "prompt_templates", "prompt_templates_zs", "properties", "samples")


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


def is_table(source: str | Path) -> bool:
    """Say whether a path or a name is one that `read_table` reads, if there is such a thing.

    >>> is_table("capitals.csv"), is_table("ORG/NAME"), is_table("hf://datasets/ORG/NAME"), is_table("capitals.json")
    (True, True, True, False)
    """
    if os.path.isdir(source):
        return is_saved(source)
    return has_table_suffix(source) or (isinstance(source, str) and not os.path.exists(source) and is_hub_name(source))


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
        self.tables: list[Table] = []
        self.starts: list[int] = []
        self.position = 0
        self.rows = 0
        self.problems: list[tuple[int, str]] = []
        self.groups: dict[str, _Group] = {}
        self.known: dict[Any, Any] = {}
        self.found: list[Relation] = []
        self.labels: dict[str, str] = {}

    def read(self, tables: Sequence[Table]) -> list[Relation]:
        for table in tables:
            self.tables.append(table)
            self.starts.append(self.position)
            if self._is_nested(table):
                self._read_nested(table)
            else:
                self._read_flat(table)
            self.position += 1
        if not self.rows:
            raise InvalidRelation(self.place, [EMPTY])
        for name in list(self.groups):
            self._check_group(name, self.groups.pop(name))
        if self.problems:
            raise InvalidRelation(self.place, self._messages())
        return self.found

    def _cells(self, table: Table, names: Sequence[str]) -> Iterator[list[Any]]:
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

    def _is_nested(self, table: Table) -> bool:
        if "samples" not in table.names or {"subject", "object"} & {*table.names, *self.columns}:
            return False
        if self.columns:
            raise LREError(
                f"{self.place!r} has a relation a row, in the column 'samples', and columns is for a sample a row: "
                "leave it out"
            )
        return True

    def _read_nested(self, table: Table) -> None:
        names = [name for name in _NESTED if name in table.names]
        for cells in self._cells(table, names):
            data = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not ABSENT}
            if table.unit == "row":
                data = _without_nulls(data)
            try:
                self.found.append(check_relation(data, self.place, templates_required=False))
            except InvalidRelation as error:
                for problem in error.problems:
                    self._problem(problem)

    # A sample a row.

    def _read_flat(self, table: Table) -> None:
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
                if cell is None or cell is ABSENT or cell == "":
                    continue
                if key in _TEMPLATES:
                    self._add_templates(group, key, cell)
                else:
                    self._add_value(group, key, cell)

    def _find_columns(self, table: Table) -> dict[str, str]:
        """The columns of a table by what they hold."""
        if not table.names:
            raise InvalidRelation(self.place, [EMPTY])
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
                {key: cell for key, cell in (("subject", s), ("object", o)) if cell is not ABSENT}
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
    if cell is ABSENT:
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


def _open(source: Any, options: Mapping[str, Any]) -> tuple[str, str, Splits]:
    """Open a source: its name for errors, the name of its relation if it is one, and its tables by split."""
    if not isinstance(source, str | Path):
        _check_options(options, ("split",), "a data set in memory")
        return open_loaded(source, "the data set", "dataset")
    path = Path(source)
    if os.path.isdir(path):
        _check_options(options, ("split",), "a data set in a folder")
        return open_saved(path)
    if not str(source).startswith("hf://") and (has_table_suffix(path) or os.path.exists(path)):
        _check_options(options, (), "a file")
        suffix = next((suffix for suffix in SUFFIXES if path.name.lower().endswith(suffix)), "")
        name = printable(os.fsencode(path.name[: len(path.name) - len(suffix)]).decode(errors="replace"))
        return str(path), name, {"": lambda: [open_file(path, str(path))]}
    _check_options(options, HUB_OPTIONS, "a data set of the hub")
    return open_hub(str(source), options)


def _check_options(options: Mapping[str, Any], allowed: Sequence[str], what: str) -> None:
    for key in options:
        if key not in allowed:
            right = f"it may have {', '.join(allowed)}" if allowed else "leave them out"
            raise LREError(f"{what} takes no option {key!r}: {right}")


def _choose(place: str, splits: Splits, split: Any) -> list[Table]:
    """The tables of the splits that are asked for, or of the only one."""
    names = ", ".join(map(repr, splits))
    if split is None:
        if len(splits) != 1:
            first, *others = splits or [""]
            hint = f", or {f'{first}+{others[0]}'!r} for both" if others else ""
            raise LREError(f"{place!r} has the splits {names or 'none'}: give split, such as {first!r}{hint}")
        return next(iter(splits.values()))()
    chosen: list[Table] = []
    for name in dict.fromkeys(str(split).split("+")):
        if name.strip() not in splits:
            nearest = difflib.get_close_matches(name, splits, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LREError(f"{place!r} has no split {name!r}: {hint}It has {names}; several are joined by '+'")
        chosen += splits[name.strip()]()
    return chosen
