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
relation its rows must agree; a row may leave them empty. Other columns are not read. The name
of a column may be a path into it, such as ``requested_rewrite.subject``, and templates may have the marks of other data
sets, such as ``[X]`` and ``[Y]``: see `lre_lightning.relations.relation.read_template`.

A table that has no `subject` and `object` but `samples` has one relation per row, with the columns of
`lre_lightning.relations.schema`, as `datasets.load_dataset("json", ...)` makes them of JSON files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.relations.formats import Rows
from lre_lightning.relations.relation import Relation, Sample, read_template
from lre_lightning.relations.schema import MOST_SAMPLES, Problems, check_relation, filled
from lre_lightning.storage.plain import LONGEST_NAME, mapping, shown, text, truth

FIELDS = {
    "subject": "subject",
    "object": "object",
    "relation": "relation",
    "category": "relation_type",
    "domain": "domain_name",
    "range": "range_name",
    "template": "prompt_templates",
    "zero_shot_template": "prompt_templates_zs",
    "symmetric": "symmetric",
}
"""The fields of a table, each the name of its column, and their names in JSON files, which columns may also have."""

_TEMPLATES = ("template", "zero_shot_template")
_NESTED = ("name", "prompt_templates", "prompt_templates_zs", "properties", "samples")


def read_rows(place: str, name: str, parts: Sequence[Rows], columns: Mapping[str, str]) -> list[Relation]:
    """Read the relations of a table or a data set.

    Args:
        place: Its name, for errors.
        name: The name of its relation, if it has no column of relations.
        parts: Its rows.
        columns: The names of columns by field, where they are not those that this module's docstring names.

    Returns:
        The relations in the order of their first rows, with their samples in the order of the rows.

    >>> from datasets import Dataset
    >>> from lre_lightning.relations.data_sets import open_loaded
    >>> table = Dataset.from_dict({"head": ["Canada", "France"], "tail": ["Ottawa", "Paris"]})
    >>> [relation] = read_rows(*open_loaded(table), columns={"subject": "head", "object": "tail"})
    >>> relation.name, relation.samples[0]
    ('dataset', Sample(subject='Canada', object='Ottawa'))
    """
    for key in columns:
        if key not in FIELDS:
            nearest = difflib.get_close_matches(str(key), FIELDS, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            raise LREError(
                f"--data.selection.columns has {key!r}, which is not a field: {hint}The fields are {', '.join(FIELDS)}"
            )
    problems, relations, groups = Problems(), [], dict[str, _Group]()
    for part in parts:
        if "samples" not in part.names or {"subject", "object"} & {*part.names, *columns}:
            fields = _find_columns(part, columns) if part.names else {}
            roots = {_root(part.names, column) for column in fields.values()}
            for at, row in _rows(part, [name for name in part.names if name in roots]):
                with problems:
                    _add_sample(groups, mapping(row, at), at, fields, name)
        elif columns:
            raise LREError(
                f"{part.place} has one relation per row: leave out --data.selection.columns, which is for samples"
            )
        else:
            for at, row in _rows(part, [key for key in _NESTED if key in part.names]):
                relations.append(check_relation(_present(row), at, problems, templates_required=False))
    problems.raise_all()
    complete = [relation for relation in relations if relation]
    complete += [group.relation(name) for name, group in groups.items()]
    if not complete:
        raise LREError(f"{place} has no row with subject and object")
    return complete


def _rows(part: Rows, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Iterate over the rows, each with its place."""
    for count, row in enumerate(part.placed(names)):
        if count >= MOST_SAMPLES:
            raise LREError(f"{part.place} has too many rows: the limit is {MOST_SAMPLES}")
        yield row


def _present(data: Any) -> Any:
    """Leave out keys without a value: where all rows have all keys, None stands for a key that is absent."""
    if not isinstance(data, dict):
        return data
    return {key: _present(value) for key, value in data.items() if value is not None}


@dataclass(slots=True)
class _Group:
    """The samples, the templates and the properties of a relation, from its rows."""

    samples: list[Sample] = field(default_factory=list)
    templates: dict[str, dict[str, None]] = field(default_factory=lambda: {key: {} for key in _TEMPLATES})
    properties: dict[str, Any] = field(default_factory=dict)

    def relation(self, name: str) -> Relation:
        few_shot, zero_shot = map(tuple, self.templates.values())
        category, domain, range_ = (self.properties.get(key, "") for key in ("category", "domain", "range"))
        symmetric = self.properties.get("symmetric", False)
        return Relation(name, category, few_shot, zero_shot, domain, range_, symmetric, tuple(self.samples))


def _add_sample(
    groups: dict[str, _Group], row: Mapping[str, Any], at: str, fields: Mapping[str, str], name: str
) -> None:
    """Add a row to the group of its relation, by default `name`; `fields` are the columns by field."""
    cells = {key: (_cell(row, column), f"{at}: {column}") for key, column in fields.items()}
    sample = Sample(filled(*cells.pop("subject")), filled(*cells.pop("object")))
    if "relation" in cells:
        name = filled(*cells.pop("relation"), LONGEST_NAME)
    group = groups.setdefault(name, _Group())
    group.samples.append(sample)
    for key, (value, what) in cells.items():
        if value in (None, ""):
            continue
        if key in _TEMPLATES:
            templates = value if isinstance(value, list) else [value]
            group.templates[key] |= {read_template(template, what): None for template in templates}
            continue
        if key == "symmetric":
            value = truth({"true": True, "false": False}.get(str(value).lower(), value), what)
        else:
            text(value, what, LONGEST_NAME)
        first = group.properties.setdefault(key, value)
        if first != value:
            raise LREError(f"{what} is {shown(value)}, but {shown(first)} in an earlier row of {shown(name)}")


def _root(names: Sequence[str], column: str) -> str:
    """Return the name of the column that a path such as ``target.text`` goes into, or that of the column itself."""
    return column if column in names else str(column).partition(".")[0]


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """Return the cell of a column, or what is in it at a path; None if there is nothing."""
    if column in row:
        return row[column]
    cell: Any = row
    for key in column.split("."):
        cell = cell.get(key) if isinstance(cell, Mapping) else None
    return cell


def _find_columns(part: Rows, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of a part by field."""
    there = f"{part.place} has the columns {', '.join(map(shown, part.names[:50]))}"
    by_field = {key: next((n for n in (key, other) if n in part.names), None) for key, other in FIELDS.items()}
    by_field |= columns
    for key in ("subject", "object", *columns):
        column = by_field[key]
        if column is None or _root(part.names, column) not in part.names:
            nearest = difflib.get_close_matches(str(column or key), part.names, 1)
            hint = f"did you mean {nearest[0]!r}? " if nearest else ""
            example = "{'subject': 'head', 'object': 'tail'}"
            raise LREError(
                f"{there}, and no {column or key!r}: {hint}Name it with --data.selection.columns, as in {example}"
            )
    chosen = {key: column for key, column in by_field.items() if column is not None}
    for column in chosen.values():
        if list(part.names).count(_root(part.names, column)) > 1:
            raise LREError(f"{there}, and so {column!r} more than once: rename one of them")
    return chosen
