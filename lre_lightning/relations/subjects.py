"""The subjects of relations as a file, which tells what texts mention without the data that LREs were made from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.relation import Relation
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import listing, mapping, text

SUBJECTS = "subjects.json"
"""Name of the file, in the folder of a run or of a collection."""
LARGEST, MOST = 2**26, 1_000_000


def subjects_of(relations: Iterable[Relation]) -> dict[str, list[str]]:
    """Return the distinct subjects of relations, by the relation's name."""
    return {one.name: [*dict.fromkeys(sample.subject for sample in one.samples)] for one in relations}


def write_subjects(subjects: Mapping[str, Iterable[str]], folder: Path) -> None:
    """Write subjects by relation into a folder, atomically, with a line for each relation."""
    lines = [f"{json.dumps(name, ensure_ascii=False)}: {_line(subjects[name])}" for name in sorted(subjects)]
    write_whole(folder / SUBJECTS, "{\n" + ",\n".join(lines) + "\n}\n")


def _line(subjects: Iterable[str]) -> str:
    return json.dumps([*subjects], ensure_ascii=False)


def read_subjects(path: Path) -> dict[str, list[str]]:
    """Read a file that `write_subjects` wrote, checked as one from others; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > LARGEST:
            raise LREError("it is too large")
        plain = mapping(json.loads(path.read_bytes()), "it")
        return {
            name: [text(subject, f"a subject of {name!r}") for subject in listing(subjects, name, MOST)]
            for name, subjects in plain.items()
        }
    except (OSError, ValueError, RecursionError) as error:
        raise LREError(f"{str(path)!r} is not a file of subjects: {first_line(error)}") from error
