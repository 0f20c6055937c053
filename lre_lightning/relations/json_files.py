"""Reading and writing relations in JSON files."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import Relation
from lre_lightning.relations.schema import Problems, check_relation
from lre_lightning.storage.files import safe_name, write_whole
from lre_lightning.storage.plain import printable, shown

LARGEST_FILE = 2**26
"""Largest size of a JSON file in bytes."""


def read_folder(folder: str | Path) -> list[tuple[Path, Relation]]:
    """Read all JSON files of a folder and its subfolders, as `read_json` does, in the order of their paths."""
    folder = Path(folder)
    if not os.path.exists(folder):  # unlike Path.exists, for any string
        raise LREError(f"no such file or folder of relations: {str(folder)!r}")
    if not folder.is_dir():
        raise LREError(f"{str(folder)!r} is not a folder of relations")
    paths = sorted(folder.rglob("*.json"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise LREError(f"the folder {str(folder)!r} has no relation in it: it must hold .json files")
    return read_json(*paths)


def read_json(*paths: Path) -> list[tuple[Path, Relation]]:
    """Read JSON files in the schema of `lre_lightning.relations.schema`, each of one relation or a list of them.

    Returns:
        Each relation with its file, whose folder is its category if it has no ``properties.relation_type``.
    """
    problems, relations = Problems(), []
    for path in paths:
        data: Any = []
        with problems:
            data = parse_json(path)
            category = printable(path.resolve().parent.name)
            if data == []:
                raise LREError(f"{path} must hold at least one relation, not an empty list")
        several = isinstance(data, list)
        for number, item in enumerate(data if several else [data]):
            at = f"{path}[{number}]" if several else str(path)
            relation = check_relation(item, at, problems, category=category)
            if relation:
                relations.append((path, relation))
    problems.raise_all()
    return relations


def parse_json(path: Path) -> Any:
    """Parse a JSON file of at most `LARGEST_FILE` bytes, without a key twice in one object."""
    check_file(path, LARGEST_FILE)
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=distinct_keys)
    except OSError as error:
        raise LREError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise LREError(f"{path} is not a JSON file in UTF-8: {error}") from error


def check_file(path: Path, largest: int) -> None:
    """Check that a path is an ordinary file, which reading does not block on, of at most `largest` bytes."""
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise LREError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if not stat.S_ISREG(status.st_mode):
        raise LREError(f"{path} cannot be read: it is not an ordinary file")
    if status.st_size > largest:
        raise LREError(f"{path} cannot be read: it has {status.st_size} bytes, over the limit of {largest}")


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary of a JSON object for `json.loads`; a key that occurs twice is a `ValueError`."""
    distinct = dict(pairs)
    if len(distinct) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {shown(double)} twice in one object")
    return distinct


def write_relations(relations: Iterable[Relation], folder: str | Path) -> list[Path]:
    """Write relations as JSON files, from which `read_folder` reads equal relations.

    Args:
        relations: Relations, each with a template.
        folder: Where ``<category>/<name>.json`` is written. Spaces in a name become ``_``; a name that is not a valid
            file name on every system is followed by a digest.

    Returns:
        The files, in the order of the relations.

    Raises:
        LREError: A relation is invalid, two have the same file, or a file cannot be written. Nothing is written
            before all relations are checked.
    """
    files: dict[Path, str] = {}
    problems = Problems()
    for relation in relations:
        path = Path(folder) / (safe_name(relation.category) if relation.category else "")
        path /= f"{safe_name(relation.name)}.json"
        if path in files:
            raise LREError(f"two relations of the category {relation.category!r} are named {relation.name!r}")
        data = {
            "name": relation.name,
            "prompt_templates": list(relation.prompt_templates),
            "prompt_templates_zs": list(relation.zero_shot_templates),
            "properties": {
                "relation_type": relation.category,
                "domain_name": relation.domain_name,
                "range_name": relation.range_name,
                "symmetric": relation.symmetric,
            },
            "samples": [{"subject": sample.subject, "object": sample.object} for sample in relation.samples],
        }
        check_relation(data, f"the relation {shown(relation.name)}", problems)
        files[path] = json.dumps(data, ensure_ascii=False, indent=4) + "\n"
    problems.raise_all()
    for path, content in files.items():
        write_whole(path, content)
    return list(files)
