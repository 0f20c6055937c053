"""Loading relations from anywhere: the option `source` says where they come from.

A source is one of these, or a list of several:

| source | content |
|---|---|
| ``"demo"`` | the bundled relations |
| ``"paper"``, ``"christ"``, ``"bats"``, ``"klar"`` | downloaded once: `lre_lightning.relations.published` |
| a ``.json`` file, or a folder of them | relations in the schema of `lre_lightning.relations.schema` |
| a ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet`` file | one sample per row: `lre_lightning.relations.tables` |
| a folder written by `datasets.Dataset.save_to_disk` | the same |
| ``"hf://datasets/ORG/NAME"`` or ``"ORG/NAME"`` | the same, from the Hugging Face Hub |
| a `datasets.Dataset` or a `datasets.DatasetDict` | the same, from memory |
| a `Relation` | itself |

The default is the value of the environment variable ``LRE_RELATIONS_DIR`` if it is set, else the bundled relations.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeGuard, Union

from lre_lightning.demo import DEMO, RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations.published import PUBLISHED, fetch_published, read_published
from lre_lightning.relations.relation import Relation

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict  # type: ignore[import-untyped]

    from lre_lightning.relations.formats import Opened

Source: TypeAlias = Union[str, Path, Relation, "Dataset", "DatasetDict", Sequence[Any]]
PlacedRelation: TypeAlias = tuple[str, Relation]
"""The place where a relation was found, and the relation."""


def load_relations(
    selection: str | Sequence[str] | None = None,
    source: Source | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    exclude: Sequence[str] = (),
) -> tuple[Relation, ...]:
    """Load relations by name, category or path.

    Args:
        selection: One item or several. An item is a relation's name (``"country capital city"``; case, spaces and
            underscores are ignored, and the name of its file works too), a category (``"factual"``), or the path of a
            file or folder, which is read instead of the source. None selects all relations of the source.
        source: Where names and categories are looked up; see this module.
        columns: The names of a table's columns by field, as in ``{"subject": "head", "object": "tail"}``.
        options: Arguments of `datasets.load_dataset` for a data set, such as ``{"split": "train"}``.
        exclude: Names of relations to leave out, of those selected or at least in the source.

    Returns:
        The distinct relations in the order of `selection`; those of a source or a category in the order of the source.

    Raises:
        LREError: A name is unknown, the source is missing or has no relation, a file is invalid, two different
            relations have the same name, or all are excluded.
    """
    source, items = resolve(source), [selection] if isinstance(selection, str) else selection
    read = cache(lambda: read_source(source, columns, options))
    if items is not None and not items:
        raise LREError(
            "the selection of relations is empty: name a relation, a category or a path, or give None for all"
        )

    def find(item: str) -> list[PlacedRelation]:
        if not isinstance(item, str):
            raise LREError(f"relations must be selected by strings, got {item!r}")
        if is_path(item) and os.path.exists(_path(item)):
            return read_source(item, columns, options)
        key, entries = _normalise(item), read()
        named = [(place, r) for place, r in entries if key in (_normalise(r.name), _normalise(Path(place).stem))]
        matches = named or [(place, r) for place, r in entries if key == _normalise(r.category)]
        if not matches and item and (is_path(item) or os.path.exists(item)):
            return read_source(item, columns, options)
        return matches or _unknown(item, source, [relation for _, relation in entries])

    entries = read() if items is None else [entry for item in items for entry in find(item)]
    chosen: dict[str, PlacedRelation] = {}
    for place, relation in entries:
        first_place, first = chosen.setdefault(_normalise(relation.name), (place, relation))
        if first != relation:
            raise LREError(
                f"two different relations are named {relation.name!r}: {first_place} and {place}; rename one of them"
            )
    for name in exclude:
        if _normalise(name) not in chosen:
            find(name)
    left = tuple(relation for key, (_, relation) in chosen.items() if key not in map(_normalise, exclude))
    if not left:
        raise LREError("all selected relations are excluded: exclude fewer")
    return left


def _unknown(item: str, source: Source, relations: Sequence[Relation]) -> NoReturn:
    categories = sorted({relation.category for relation in relations} - {""})
    names = {_normalise(name): name for name in [*(relation.name for relation in relations), *categories]}
    nearest = [repr(names[key]) for key in difflib.get_close_matches(_normalise(item), names, 3, 0.5)]
    hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
    parts = [part.strip() for part in item.split(",")]
    if len(parts) > 1 and any(_normalise(part) in names for part in parts):
        hint = f'several are written in brackets, "[{", ".join(parts)}]". '
    place = RELATIONS_DIR if source == DEMO else source if isinstance(source, str | Path) else "the source"
    has = f"the categories {', '.join(categories)}" if categories else "no categories"
    raise LREError(f"no relation, category or path {item!r}: {hint}{place} has {has}")


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def read_source(
    source: Source, columns: Mapping[str, str] | None = None, options: Mapping[str, Any] | None = None
) -> list[PlacedRelation]:
    """Read all relations of a source; the arguments are those of `load_relations`."""
    if isinstance(source, Relation):
        return [(f"the relation {source.name!r}", source)]
    if isinstance(source, list | tuple):
        return [entry for part in source for entry in read_source(part, columns, options)]
    from lre_lightning.relations import json_files, tables

    opened = open_source(source, options or {})
    if not isinstance(opened, Path):
        return [(opened[0], relation) for relation in tables.read_rows(*opened, columns or {})]
    if columns:
        raise LREError(
            f"--data.selection.columns is for tables and data sets, and {str(opened)!r} is neither: leave it out"
        )
    if is_published(source):
        relations = read_published(source)
    else:
        relations = (json_files.read_json if os.path.isfile(opened) else json_files.read_folder)(opened)
    return [(str(path), relation) for path, relation in relations]


def open_source(source: Any, options: Mapping[str, Any]) -> Opened | Path:
    """Open a table or a data set, or return the path of another file or folder; wrong `options` are an `LREError`."""
    from lre_lightning.relations import data_sets, formats

    path = _path(source) if isinstance(source, str | Path) else None
    on_hub = path is not None and _is_on_hub(source, path)
    saved = path is not None and data_sets.is_saved(path)
    allowed = data_sets.HUB_OPTIONS if on_hub else ("split",) if saved or path is None else ()
    for key in options.keys() - allowed:
        place = "a data set in memory" if path is None else repr(str(source))
        right = f"it may have {', '.join(allowed)}" if allowed else "leave it out"
        raise LREError(f"{place} takes no option {key!r}: {right}")
    if path is None:
        return data_sets.open_loaded(source, **options)
    if on_hub:
        return data_sets.open_hub(str(source), options)
    if saved:
        return data_sets.open_saved(path, **options)
    return formats.open_file(path) if formats.has_table_suffix(path) and not os.path.isdir(path) else path


def prepare(source: Source | None, options: Mapping[str, Any] | None = None) -> None:
    """Download what a source needs, in one process per machine; an `LREError` if that fails."""
    source = resolve(source)
    if isinstance(source, list | tuple):
        for part in source:
            prepare(part, options)
    elif is_published(source):
        fetch_published(source)
    elif isinstance(source, str) and _is_on_hub(source, _path(source)):
        from lre_lightning.relations.data_sets import fetch_hub

        fetch_hub(source, options or {})


def resolve(source: Source | None = None) -> Source:
    """Return the source, or for None the value of ``LRE_RELATIONS_DIR``, else the bundled relations."""
    return (os.environ.get("LRE_RELATIONS_DIR") or DEMO) if source is None else source


def plain_source(source: Source | None) -> Any:
    """Return a source as strings that are valid in any working directory, or None if it is in memory."""
    source = resolve(source)
    if source in ("", [], ()):
        raise LREError(f"source is {source!r}; give a file, a folder or a name, or leave it out")
    if isinstance(source, list | tuple):
        parts = [plain_source(part) for part in source]
        return None if None in parts else parts
    if not isinstance(source, str | Path):
        return None
    if source == DEMO or is_published(source):
        return source
    path = _path(source)
    if path == RELATIONS_DIR:
        return DEMO
    return str(source) if _is_on_hub(source, path) else os.path.abspath(path)


def is_published(source: Source) -> TypeGuard[str]:
    """Return whether a source is the name of published relations."""
    return isinstance(source, str) and source in PUBLISHED


def is_path(item: str) -> bool:
    """Return whether an item of a selection is written as a path, not as a name or a category."""
    from lre_lightning.relations.formats import has_table_suffix

    is_file_name = item.endswith(".json") or has_table_suffix(item)
    return is_file_name or item.startswith((".", "~")) or "/" in item or os.sep in item


def _is_on_hub(source: str | Path, path: Path) -> bool:
    """Return whether a source is a data set of the Hub, and not a file or a folder, which may be missing."""
    from lre_lightning.relations import data_sets

    return not os.path.exists(path) and data_sets.is_hub_name(str(source))


def _path(source: str | Path) -> Path:
    """Return the path of a source."""
    return RELATIONS_DIR if source == DEMO else Path(os.path.expanduser(source))
