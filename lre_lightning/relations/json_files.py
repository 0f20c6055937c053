"""Relations in JSON files: read, and written."""

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
from lre_lightning.relations.schema import MOST, InvalidRelation, check_relation, sentence
from lre_lightning.storage.files import safe_name, write_whole
from lre_lightning.storage.plain import printable, shown

LARGEST_FILE = 2**26
"""Bytes that a file may have."""


def read_json(path: str | Path) -> list[Relation]:
    """Read a JSON file with one relation in it, or a list of them.

    Args:
        path: A file in the schema of `lre_lightning.relations.schema`, UTF-8.

    Returns:
        The relations. The category of one is its ``properties.relation_type``, else the name of the file's folder.

    Raises:
        LREError: The file can't be read, is not JSON, or has another schema; the message names the file and all that
            is wrong.
    """
    path = Path(path)
    data = _parsed(path)
    if not isinstance(data, list):
        return [check_relation(data, str(path), category=_folder_of(path))]
    if not data:
        problem = "must hold a JSON object with name, prompt_templates and samples, not a list that is empty"
        raise InvalidRelation(str(path), [problem])
    found, problems = [], []
    for number, item in enumerate(data):
        try:
            found.append(check_relation(item, str(path), category=_folder_of(path)))
        except InvalidRelation as error:
            problems.append([sentence(f"[{number}]", problem) for problem in error.problems])
        if len(problems) >= MOST:
            break
    _raise_if_any(str(path), problems)
    return found


def read_folder(folder: str | Path) -> list[tuple[Path, Relation]]:
    """Read all JSON files of a folder and of those below it.

    Returns:
        The files and their relations, in the order of the files' paths.

    Raises:
        LREError: There is no such folder, it has no JSON file, or some are broken; the message names all that is wrong
            with all of them.
    """
    folder = Path(folder)
    if not os.path.exists(folder):
        raise LREError(f"no such file or folder of relations: {str(folder)!r}")
    if not folder.is_dir():
        raise LREError(f"{str(folder)!r} is not a folder of relations")
    paths = sorted(folder.rglob("*.json"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise LREError(f"the folder {str(folder)!r} has no relation in it: it must hold .json files")
    found: list[tuple[Path, Relation]] = []
    broken: list[tuple[Path, LREError]] = []
    for path in paths:
        try:
            found += [(path, relation) for relation in read_json(path)]
        except LREError as error:
            broken.append((path, error))
        if len(broken) >= MOST:
            break
    if len(broken) == 1:
        raise broken[0][1]
    _raise_if_any(str(folder), [_in_folder(error, path.relative_to(folder)) for path, error in broken])
    return found


def write_relations(relations: Iterable[Relation], folder: str | Path) -> list[Path]:
    """Write relations as JSON files, from which `read_folder` reads the very same.

    Args:
        relations: Relations, each with a template.
        folder: Where to write ``<category>/<name>.json``. Spaces of a name become ``_``; a name that not every system
            takes for a file has a digest in the file's.

    Returns:
        The files, in the order of the relations.

    Raises:
        LREError: A relation could not be read again, two have the same file, or a file cannot be written. Nothing is
            written before all relations are checked.
    """
    files: dict[Path, str] = {}
    for relation in relations:
        path = _file_of(relation, Path(folder))
        if path in files:
            raise LREError(f"two relations of the category {relation.category!r} are named {relation.name!r}")
        files[path] = _content(relation)
    for path, content in files.items():
        write_whole(path, content)
    return list(files)


def _content(relation: Relation) -> str:
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
    place = f"the relation {shown(relation.name)}"
    check_relation(data, place)
    content = json.dumps(data, ensure_ascii=False, indent=4) + "\n"
    if len(content.encode()) > LARGEST_FILE:
        raise LREError(f"{place} takes {len(content.encode())} bytes, and a file may have {LARGEST_FILE}: split it")
    return content


def _file_of(relation: Relation, folder: Path) -> Path:
    if relation.category:
        folder = folder / safe_name(relation.category)
    return folder / f"{safe_name(relation.name)}.json"


def _parsed(path: Path) -> Any:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            what = "a directory" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
            raise LREError(f"can't read the relation {str(path)!r}: it is {what}")
        if found.st_size > LARGEST_FILE:
            raise LREError(
                f"can't read the relation {str(path)!r}: it has {found.st_size} bytes, and may have {LARGEST_FILE}"
            )
        return json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=distinct_keys)
    except OSError as error:
        raise LREError(f"can't read the relation {str(path)!r}: {error.strerror or error}") from error
    except LREError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidRelation(str(path), [f"is not a JSON file in UTF-8: {error}"]) from error


def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, for `json.loads`.

    Raises:
        ValueError: It has a key twice.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        double, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {shown(double)} twice in one object")
    return found


def _folder_of(path: Path) -> str:
    """The name of a file's folder, which may have bytes in it that are no text."""
    return os.fsencode(path.resolve().parent.name).decode(errors="replace")


def _in_folder(error: LREError, path: Path) -> list[str]:
    if isinstance(error, InvalidRelation):
        return [sentence(printable(str(path)), problem) for problem in error.problems]
    return [str(error)]


def _raise_if_any(place: str, problems: list[list[str]]) -> None:
    """Raise the problems of several relations as one error: the first of each before the rest, as not all are shown."""
    if problems:
        firsts = [some[0] for some in problems]
        raise InvalidRelation(place, [*firsts, *(problem for some in problems for problem in some[1:])][:MOST])
