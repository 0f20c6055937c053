"""Relations from anywhere: one option, the source, says where they come from.

A source is one of these, or a list of several:

| source | what it is |
|---|---|
| ``"demo"`` | the bundled relations |
| ``"paper"`` | the 47 relations of Hernandez et al. (ICLR 2024), fetched once: `lre_lightning.relations.paper` |
| a ``.json`` file, or a folder of them | relations in the schema of `lre_lightning.relations.schema` |
| a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file | a table, a sample a row: `lre_lightning.relations.tables` |
| a folder of `datasets.Dataset.save_to_disk` | the same |
| ``"hf://datasets/ORG/NAME"`` or ``"ORG/NAME"`` | the same, from the Hugging Face Hub |
| a `datasets.Dataset` or a `datasets.DatasetDict` | the same, from memory |
| `Relation` | itself |

By default it is what the environment variable ``LRE_RELATIONS_DIR`` names, else the bundled relations.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from lre_lightning.demo import DEMO, RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations.relation import Relation

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]

RELATIONS_DIR_VARIABLE = "LRE_RELATIONS_DIR"
PAPER = "paper"
"""The name of the paper's relations."""

Source: TypeAlias = Union[str, Path, Relation, "Dataset", "DatasetDict", Sequence[Any]]
Entry: TypeAlias = tuple[str, Relation]
"""Where a relation was found, and the relation."""


def load_relations(
    selection: str | Sequence[str] | None = None,
    source: Source | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Relation, ...]:
    """Load relations by name, category or path.

    Args:
        selection: One item or several. An item is a relation's name (``"country capital city"``; case,
            spaces and underscores don't matter, and the file's name will do too), a category
            (``"factual"``), or the path of a file or folder, which is read instead of the source. None means every
            relation of the source.
        source: Where names and categories are looked up; see this module.
        columns: The names of a table's columns by what they hold, as in ``{"subject": "head", "object": "tail"}``.
        options: More arguments of `datasets.load_dataset` for a data set of the hub, such as ``{"split": "train"}``.

    Returns:
        The relations in the order of `selection`, those of one source or category in its order, files in the order of
        their paths; each once.

    Raises:
        LREError: Nothing has such a name, the source is missing or has no relation, a file is broken, or two
            different relations share a name.
    """
    library = _Library(source, columns, options)
    if selection is None:
        return _distinct(library.entries())
    items = [selection] if isinstance(selection, str) else list(selection)
    if not items:
        raise LREError(
            "the selection of relations is empty: name a relation, a category or a path, or give None for all"
        )
    return _distinct(entry for item in items for entry in library.find(item))


def leave_out(
    relations: Sequence[Relation],
    names: Sequence[str],
    source: Source | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> tuple[Relation, ...]:
    """The relations without those of some names, in which case, spaces and underscores don't matter.

    Args:
        relations: What is to be reduced.
        names: Names of relations, among `relations` or at least in `source`.
        source: As in `load_relations`, and so are the others.
        columns: As in `load_relations`.
        options: As in `load_relations`.

    Raises:
        LREError: There is no relation of a name, or none is left.
    """
    unwanted = {_normalise(name): name for name in names}
    unknown = unwanted.keys() - {_normalise(relation.name) for relation in relations}
    if unknown:
        library = _Library(source, columns, options)
        for key in unknown:
            library.find(unwanted[key])
    left = tuple(relation for relation in relations if _normalise(relation.name) not in unwanted)
    if not left:
        raise LREError(f"all of the {len(relations)} relations are left out: exclude fewer")
    return left


def read_source(
    source: Source, columns: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None
) -> list[Entry]:
    """Read all relations of a source.

    Args:
        source: See this module.
        columns: As in `load_relations`.
        options: As in `load_relations`.

    Returns:
        Where each was found, and the relation.

    Raises:
        LREError: There is no such source, or it is broken.
    """
    if isinstance(source, Relation):
        return [(f"the relation {source.name!r}", source)]
    if isinstance(source, list | tuple):
        return [entry for part in source for entry in read_source(part, columns, options)]
    if not isinstance(source, str | Path):
        return _read_table(source, columns, options)
    if source == DEMO:
        return _read_json(RELATIONS_DIR, columns, options)
    if source == PAPER:
        from lre_lightning.relations.paper import fetch_paper_relations

        return _read_json(fetch_paper_relations(), columns, options)
    path = _expanded(source)
    there = os.path.exists(path)  # unlike Path.exists, for any string
    if is_table(path if there else str(source)):
        return _read_table(path if there else str(source), columns, options)
    return _read_json(path, columns, options)


def is_table(source: str | Path) -> bool:
    """Say whether a file, a folder or a name is that of a table or a data set."""
    from lre_lightning.relations import tables

    return tables.is_table(source)


def prepare(source: Source | None, options: Mapping[str, Any] | None = None) -> None:
    """Fetch what a source needs from elsewhere: in one process for all of a machine.

    Args:
        source: See this module.
        options: As in `load_relations`.

    Raises:
        LREError: It can't be fetched.
    """
    source = resolve(source)
    if isinstance(source, list | tuple):
        for part in source:
            prepare(part, options)
    elif isinstance(source, str) and source == PAPER:
        from lre_lightning.relations.paper import fetch_paper_relations

        fetch_paper_relations()
    elif isinstance(source, str) and is_hub_name(source, _expanded(source)):
        from lre_lightning.relations.data_sets import open_hub

        open_hub(source, options or {})


def resolve(source: Source | None = None) -> Source:
    """The source that a user means: None is what ``LRE_RELATIONS_DIR`` names, else the bundled relations."""
    return (os.environ.get(RELATIONS_DIR_VARIABLE) or DEMO) if source is None else source


def plain_source(source: Source | None) -> Any:
    """A source in strings, with which it is found again from another folder; None where it is in memory.

    Raises:
        LREError: It is empty.
    """
    source = resolve(source)
    if isinstance(source, list | tuple):
        parts = [plain_source(part) for part in source]
        if not parts:
            raise LREError("source is empty; give a file, a folder or a name, or leave it out")
        return None if None in parts else parts
    if not isinstance(source, str | Path):
        return None
    if not str(source):
        raise LREError("source is ''; give a file, a folder or a name, or leave it out")
    if source in (DEMO, PAPER) or str(source).startswith("hf://"):
        return str(source)
    path = _expanded(source)
    if path == RELATIONS_DIR:
        return DEMO
    return str(source) if is_hub_name(str(source), path) else os.path.abspath(path)


def is_hub_name(source: str, path: Path) -> bool:
    """Say whether a source is a data set of the hub, and not a file or a folder that is there, or is missing."""
    from lre_lightning.relations import data_sets

    return not os.path.exists(path) and data_sets.is_hub_name(source)


def is_path(item: str) -> bool:
    """Say whether an item of a selection is written as a path, rather than as a name or a category."""
    return (
        item.startswith((".", "~")) or "/" in item or os.sep in item or bool(Path(item).suffix and is_file_name(item))
    )


def is_file_name(item: str) -> bool:
    """Say whether a name ends as files of relations do."""
    from lre_lightning.relations import table_files

    return item.endswith(".json") or table_files.has_table_suffix(item)


class _Library:
    """A source of relations, read when the first name is looked up in it."""

    def __init__(
        self, source: Source | None, columns: Mapping[str, str] | None, options: Mapping[str, Any] | None
    ) -> None:
        self.source, self.columns, self.options = resolve(source), columns, options
        self._entries: list[Entry] | None = None

    @property
    def name(self) -> str:
        source = RELATIONS_DIR if self.source == DEMO else self.source
        return str(source) if isinstance(source, str | Path) else "the source"

    def entries(self) -> list[Entry]:
        if self._entries is None:
            self._entries = read_source(self.source, self.columns, self.options)
        return self._entries

    def find(self, item: str) -> list[Entry]:
        if not isinstance(item, str):
            raise LREError(f"relations must be selected by strings, got {item!r}")
        written_as_path = is_path(item)
        if written_as_path and os.path.exists(_expanded(item)):
            return read_source(item, self.columns, self.options)
        key = _normalise(item)
        named = [(place, r) for place, r in self.entries() if key in (_normalise(r.name), _normalise(Path(place).stem))]
        found = named or [(place, r) for place, r in self.entries() if key == _normalise(r.category)]
        if not found and item and (written_as_path or os.path.exists(item)):
            found = read_source(item, self.columns, self.options)
        if not found:
            raise LREError(self._unknown(item))
        return found

    def _unknown(self, item: str) -> str:
        names = {_normalise(relation.name): relation.name for _, relation in self.entries()}
        names.update({_normalise(relation.category): relation.category for _, relation in self.entries()})
        nearest = [repr(names[key]) for key in difflib.get_close_matches(_normalise(item), names, 3, 0.5)]
        categories = sorted({relation.category for _, relation in self.entries()} - {""})
        hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
        return f"no relation, category or path {item!r}: {hint}{self.name} has {len(self.entries())} relations" + (
            f" of the categories {', '.join(categories)}" if categories else ""
        )


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _read_json(path: Path, columns: Mapping[str, str] | None, options: Mapping[str, Any] | None) -> list[Entry]:
    from lre_lightning.relations import json_files

    for name, given in (("columns", columns), ("source_options", options)):
        if given:
            raise LREError(f"{name} is for tables and data sets, and {str(path)!r} is none: leave it out")
    if os.path.isfile(path):
        return [(str(path), relation) for relation in json_files.read_json(path)]
    return [(str(place), relation) for place, relation in json_files.read_folder(path)]


def _read_table(source: Any, columns: Mapping[str, str] | None, options: Mapping[str, Any] | None) -> list[Entry]:
    from lre_lightning.relations import tables

    place = str(source) if isinstance(source, str | Path) else "a data set in memory"
    return [(place, relation) for relation in tables.read_table(source, columns, options)]


def _expanded(path: str | Path) -> Path:
    """A path in which ``~`` stands for a home folder.

    Raises:
        LREError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise LREError(f"no such file or folder of relations: {str(path)!r} ({error})") from error


def _distinct(entries: Iterable[Entry]) -> tuple[Relation, ...]:
    chosen: dict[str, Entry] = {}
    for place, relation in entries:
        first_place, first = chosen.setdefault(_normalise(relation.name), (place, relation))
        if first != relation:
            raise LREError(
                f"two different relations are named {relation.name!r}: {first_place} and {place}; rename one of them"
            )
    return tuple(relation for _, relation in chosen.values())
