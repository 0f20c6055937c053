"""Relations in tables: CSV, JSON Lines, Parquet and data sets of Hugging Face, with one sample or relation per row.

The columns of a table with one sample per row, of which `subject` and `object` are required:

| field | content | other name |
|---|---|---|
| `subject`, `object` | the sample | |
| `relation` | the name of the sample's relation; by default that of the file or data set | |
| `template` | a template of the relation, or a list of them | `prompt_templates` |
| `zero_shot_template` | a zero-shot template, or a list of them | `prompt_templates_zs` |
| `category` | the relation's category | `relation_type` |
| `domain`, `range` | the kind of the subjects, and of the objects | `domain_name`, `range_name` |
| `symmetric` | true or false | |

The templates of a relation are the distinct templates of its rows; it may have none. On the other properties of a
relation its rows must agree; a row may leave them empty. Other columns are not read.

A table that has no `subject` and `object` but `samples` has one relation per row, with the columns of
`lre_lightning.relations.schema`, as `datasets.load_dataset("json", ...)` makes them of JSON files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.relations.formats import Rows, readable
from lre_lightning.relations.relation import Relation
from lre_lightning.relations.schema import MOST, InvalidRelation, Problem, check_relation
from lre_lightning.storage.plain import shown

MOST_ROWS = 10_000_000
"""Rows that a table may have, or all tables of a data set together."""
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
"""The fields of a table, and the names of the columns that hold them by default."""

_USUAL = {
    "subject": ("subject", "head", "sub_label", "sub", "subj", "entity", "source", "question", "input", "s", "h"),
    "object": ("object", "tail", "obj_label", "obj", "target", "answer", "value", "output", "label", "o", "t"),
}
_PROPERTIES = {"category": "relation_type", "domain": "domain_name", "range": "range_name", "symmetric": "symmetric"}
_TEMPLATES = {"template": "prompt_templates", "zero_shot_template": "prompt_templates_zs"}
_NESTED = ("name", "prompt_templates", "prompt_templates_zs", "properties", "samples")


def read_rows(place: str, name: str, parts: Sequence[Rows], columns: Mapping[str, str]) -> list[Relation]:
    """Read the relations of a table or a data set.

    Args:
        place: Its name, for errors.
        name: The name of its relation, if it has no column of relations.
        parts: Its rows.
        columns: The names of columns by field, as in ``{"subject": "head", "object": "tail"}``. Other fields are in
            the columns that this module's docstring names.

    Returns:
        The relations in the order of their first rows, with their samples in the order of the rows.

    Raises:
        LREError: There is no such column or field, there are too many rows, or values are not text, are empty or
            contradict each other; the message lists all problems with their lines or rows.

    >>> from datasets import Dataset
    >>> from lre_lightning.relations.data_sets import open_loaded
    >>> table = Dataset.from_dict({"head": ["Canada", "France"], "tail": ["Ottawa", "Paris"]})
    >>> [relation] = read_rows(*open_loaded(table), columns={"subject": "head", "object": "tail"})
    >>> relation.name, relation.samples[0]
    ('dataset', Sample(subject='Canada', object='Ottawa'))
    """
    for key, column in columns.items():
        if key not in FIELDS:
            nearest = difflib.get_close_matches(str(key), FIELDS, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LREError(f"columns has {key!r}, which is not a field: {hint}The fields are {', '.join(FIELDS)}")
        if not isinstance(column, str):
            raise LREError(f"columns must give the name of a column for {key!r}, not {shown(column)}")
    return _Reader(place, name, parts, columns).read()


@dataclass(slots=True)
class _Group:
    """The rows of one relation, with their positions."""

    samples: list[dict[str, Any]] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    properties: dict[str, tuple[Any, int]] = field(default_factory=dict)
    templates: dict[str, dict[str, int]] = field(default_factory=lambda: {name: {} for name in _TEMPLATES})


class _Reader:
    """Reads parts of a data set and collects the problems of all of them.

    A row is identified by its position: the index of its part in the upper bits, and its number in the lower ones.
    """

    def __init__(self, place: str, name: str, parts: Sequence[Rows], columns: Mapping[str, str]) -> None:
        self.place, self.name, self.parts, self.columns = place, name, parts, columns
        self.position = self.rows = 0
        self.problems: list[tuple[int, Problem]] = []
        self.groups: dict[str, _Group] = {}
        self.labels: dict[str, str] = {}
        self.found: list[Relation] = []

    def read(self) -> list[Relation]:
        for index, part in enumerate(self.parts):
            self.position = index << 32
            if "samples" in part.names and not {"subject", "object"} & {*part.names, *self.columns}:
                self._read_relations(part)
            else:
                self._read_samples(part)
        for name in list(self.groups):
            self._check_group(name, self.groups.pop(name))
        if self.problems:
            problems = sorted(self.problems, key=lambda entry: entry[0])
            raise InvalidRelation(self.place, [problem.within(self._where(at)) for at, problem in problems])
        if not self.rows:
            raise LREError(f"{self.place} is empty; it must hold at least one row with subject and object")
        return self.found

    def _cells(self, part: Rows, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        start = self.position
        with readable(self.place):
            for number, cells in part.read(names):
                self.position = start + number
                self.rows += 1
                if self.rows > MOST_ROWS:
                    raise LREError(f"{self.place!r} has too many rows: it may have {MOST_ROWS}")
                if isinstance(cells, str):
                    self._add_problem(cells)
                else:
                    yield cells

    def _add_problem(self, text: str, label: str = "", position: int | None = None) -> None:
        if len(self.problems) < MOST:
            problem = Problem(text, (label,) if label else ())
            self.problems.append((self.position if position is None else position, problem))

    def _where(self, position: int) -> str:
        part = self.parts[position >> 32]
        row = f"{part.unit} {position & (1 << 32) - 1}"
        return row if len(self.parts) == 1 else f"{part.place}, {row}"

    def _read_relations(self, part: Rows) -> None:
        if self.columns:
            raise LREError(
                f"{self.place!r} has one relation per row, in the column 'samples', and columns is for one sample per "
                "row: leave it out"
            )
        names = [name for name in _NESTED if name in part.names]
        for cells in self._cells(part, names):
            # Where all rows have all keys, None stands for a key that is absent.
            data = {name: cell for name, cell in zip(names, cells, strict=True) if cell is not None}
            if isinstance(data.get("properties"), dict):
                data["properties"] = {key: cell for key, cell in data["properties"].items() if cell is not None}
            try:
                self.found.append(check_relation(data, self.place, templates_required=False))
            except InvalidRelation as error:
                self.problems += [(self.position, problem) for problem in error.problems]

    def _read_samples(self, part: Rows) -> None:
        columns = self._find_columns(part) if part.names else {}
        self.labels |= columns
        for cells in self._cells(part, list(columns.values())):
            row = dict(zip(columns, cells, strict=True))
            name = row.get("relation") if "relation" in row else self.name
            if not isinstance(name, str):
                self._add_problem(f"must be a string, not {shown(name)}", columns["relation"])
                continue
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = _Group()
            group.samples.append({"subject": row.pop("subject"), "object": row.pop("object")})
            group.positions.append(self.position)
            for key, cell in row.items():
                if cell in (None, ""):
                    continue
                if key in _TEMPLATES:
                    self._add_templates(group, key, cell)
                elif key in _PROPERTIES:
                    self._add_property(group, key, cell)

    def _find_columns(self, part: Rows) -> dict[str, str]:
        """Return the columns of a part by field."""
        where = repr(self.place) if len(self.parts) == 1 else f"{self.place!r}: {part.place}"
        there = f"{where} has the columns {', '.join(map(shown, part.names[:50]))}"
        found = dict(self.columns)
        for key, column in self.columns.items():
            if column not in part.names:
                nearest = difflib.get_close_matches(column, part.names, 1)
                hint = f" (did you mean {shown(nearest[0])}?)" if nearest else ""
                raise LREError(f"{there}, and no {column!r}, which columns names for {key!r}{hint}")
        for key, names in FIELDS.items():
            candidates = [name for name in names if name in part.names and key not in found]
            if len(candidates) > 1:
                raise LREError(f"{there}: say which of {' and '.join(candidates)} is the {key}, with columns")
            if candidates:
                found[key] = candidates[0]
        missing = [key for key in ("subject", "object") if key not in found]
        if missing:
            by_name = {name.casefold().strip(): name for name in part.names}
            likely = {key: next((by_name[n] for n in _USUAL[key] if n in by_name), None) for key in missing}
            hint = ", ".join(f"{key!r}: {name!r}" for key, name in likely.items() if name)
            raise LREError(
                f"{there}, and no {' and no '.join(map(repr, missing))}: "
                + (f"did you mean columns={{{hint}}}?" if hint else "name them with columns")
            )
        for column in found.values():
            if list(part.names).count(column) > 1:
                raise LREError(f"{there}, and so {column!r} more than once: rename one of them")
        return found

    def _add_templates(self, group: _Group, key: str, cell: Any) -> None:
        for template in cell if isinstance(cell, list) else [cell]:
            if isinstance(template, str):
                group.templates[key].setdefault(template, self.position)
            else:
                self._add_problem(f"must be a string or a list of strings, not {shown(template)}", self.labels[key])

    def _add_property(self, group: _Group, key: str, cell: Any) -> None:
        if key == "symmetric" and isinstance(cell, str):
            cell = {"true": True, "false": False}.get(cell.lower(), cell)
        first, position = group.properties.setdefault(key, (cell, self.position))
        if first != cell:
            text = f"is {shown(cell)}, and {shown(first)} in {self._where(position)}, of the same relation"
            self._add_problem(text, self.labels[key])

    def _check_group(self, name: str, group: _Group) -> None:
        data = {
            "name": name,
            "properties": {_PROPERTIES[key]: value for key, (value, _) in group.properties.items()},
            "samples": group.samples,
            **{name: list(group.templates[key]) for key, name in _TEMPLATES.items()},
        }
        try:
            self.found.append(check_relation(data, self.place, templates_required=False))
        except InvalidRelation as error:
            for problem in error.problems:
                self._add_problem(problem.text, *self._origin(group, problem.path))

    def _origin(self, group: _Group, path: Sequence[Any]) -> tuple[str, int]:
        """Return the column and the position of the row from which a value of the schema comes."""
        match path:
            case ("samples", index, key):
                return self.labels[key], group.positions[index]
            case ("properties", name):
                key = next(key for key, property_ in _PROPERTIES.items() if property_ == name)
                return self.labels[key], group.properties[key][1]
            case ("prompt_templates" | "prompt_templates_zs" as name, index):
                key = next(key for key, templates in _TEMPLATES.items() if templates == name)
                return self.labels[key], list(group.templates[key].values())[index]
        return self.labels.get("relation", "name"), group.positions[0]
