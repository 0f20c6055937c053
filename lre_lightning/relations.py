"""Relations: read from JSON files, checked, and chosen by name, category or path.

A relation is a list of (subject, object) pairs and the prompt templates that ask for the object.
The files have the schema of the relations that Hernandez et al. (ICLR 2024, section 4) published::

    {"name": "country capital city",
     "prompt_templates": ["The capital city of {} is"],
     "prompt_templates_zs": ["What is the capital of {}? It is the city of"],
     "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": false},
     "samples": [{"subject": "Canada", "object": "Ottawa"}]}

`prompt_templates_zs` and `properties` may be left out.
"""

import difflib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.checkpoints import LONGEST_NAME, shown, text
from lre_lightning.demo import DEMO, RELATIONS_DIR
from lre_lightning.errors import LREError

SLOT = "{}"
RELATIONS_DIR_VARIABLE = "LRE_RELATIONS_DIR"
LONGEST = 10_000
"""Characters that a subject, an object or a template may have."""
LARGEST_FILE = 2**26
"""Bytes that a relation's file may have."""


@dataclass(frozen=True)
class Sample:
    """One fact: a subject and the object that the relation maps it to.

    Both are kept exactly as the file has them; a subject may occur in several samples of a relation.

    >>> Sample("Canada", "Ottawa").object
    'Ottawa'
    """

    subject: str
    object: str


@dataclass(frozen=True)
class Relation:
    """A relation's facts and the templates that ask for them.

    Attributes:
        name: The relation's name, as in ``"country capital city"``.
        category: The kind of knowledge, as in ``"factual"``.
        prompt_templates: Few-shot templates; ``{}`` stands for the subject. At least one.
        zero_shot_templates: Templates that also say in words what is asked for. May be empty.
        domain_name: What the subjects are, as in ``"country"``.
        range_name: What the objects are, as in ``"city"``.
        symmetric: Whether subject and object may change places.
        samples: The facts, in the file's order.

    >>> capitals = Relation("capital", "factual", ("The capital of {} is",), (), "country", "city", False,
    ...                     (Sample("Canada", "Ottawa"), Sample("France", "Paris"), Sample("Kanada", "Ottawa")))
    >>> capitals.template, capitals.objects
    ('The capital of {} is', ('Ottawa', 'Paris'))
    """

    name: str
    category: str
    prompt_templates: tuple[str, ...]
    zero_shot_templates: tuple[str, ...]
    domain_name: str
    range_name: str
    symmetric: bool
    samples: tuple[Sample, ...]

    @property
    def template(self) -> str:
        """The template that prompts are made with: the first."""
        return self.prompt_templates[0]

    @property
    def templates(self) -> tuple[str, ...]:
        """All distinct templates, few-shot ones first."""
        return tuple(dict.fromkeys((*self.prompt_templates, *self.zero_shot_templates)))

    @property
    def objects(self) -> tuple[str, ...]:
        """The relation's range: its distinct objects, in the order in which they first occur."""
        return tuple(dict.fromkeys(sample.object for sample in self.samples))


def check_template(template: str) -> None:
    """Check that a template has exactly one place for the subject and no other format field.

    Templates are filled in by replacing ``{}``; a field such as ``{subject}`` would stay in the prompt
    as it is, and ``str.format`` would let a data file reach into Python objects.

    Raises:
        LREError: The template has no ``{}``, several, or another brace.
    """
    rest = template.replace(SLOT, "", 1)
    if rest == template or "{" in rest or "}" in rest:
        raise LREError(f"template {template!r} must have exactly one {SLOT} for the subject, and no other brace")


def load_relation(path: str | Path) -> Relation:
    """Read one relation from a JSON file.

    Args:
        path: A file in the schema of this module's docstring, UTF-8.

    Returns:
        The relation. Its category is ``properties.relation_type``, else the name of the file's folder.

    Raises:
        LREError: The file can't be read, is not JSON, lacks a key, or holds a value of the wrong kind; the
            message names the file, the value and what would be right.
    """
    path = Path(path)
    fields = _Fields(path, _read_json(path))
    properties = _Fields(path, fields.get("properties", dict, {}), "properties.")
    return Relation(
        name=fields.text("name", longest=LONGEST_NAME),
        category=properties.text("relation_type", _folder_of(path), LONGEST_NAME),
        prompt_templates=_templates(fields, "prompt_templates"),
        zero_shot_templates=_templates(fields, "prompt_templates_zs", []),
        domain_name=properties.text("domain_name", ""),
        range_name=properties.text("range_name", ""),
        symmetric=bool(properties.get("symmetric", bool, False)),
        samples=_samples(fields),
    )


def load_relations(
    selection: str | Sequence[str] | None = None, relations_dir: str | Path | None = None
) -> tuple[Relation, ...]:
    """Load relations by name, category or path.

    Args:
        selection: One item or several. An item is a relation's name (``"country capital city"``; case,
            spaces and underscores don't matter, and the file's name will do too), a category
            (``"factual"``), a JSON file's path, or the path of a folder, which is read with its subfolders.
            None means every relation in `relations_dir`.
        relations_dir: The folder in which names and categories are looked up, with its subfolders. By default
            the one that the environment variable ``LRE_RELATIONS_DIR`` names, else the bundled relations, which
            ``"demo"`` means too.

    Returns:
        The relations in the order of `selection`, those of one folder or category in the order of their
        files' paths; each once.

    Raises:
        LREError: Nothing has such a name, a folder is missing or has no JSON file, a file is broken, or two
            different relations share a name.
    """
    library = _Library(resolve_relations_dir(relations_dir))
    if selection is None:
        return _distinct(library.entries())
    items = [selection] if isinstance(selection, str) else list(selection)
    if not items:
        raise LREError(
            "the selection of relations is empty: name a relation, a category or a path, or give None for all"
        )
    return _distinct(entry for item in items for entry in library.find(item))


def leave_out(
    relations: Sequence[Relation], names: Sequence[str], relations_dir: str | Path | None = None
) -> tuple[Relation, ...]:
    """The relations without those of some names, in which case, spaces and underscores don't matter.

    Args:
        relations: What is to be reduced.
        names: Names of relations, among `relations` or at least in `relations_dir`.
        relations_dir: As in `load_relations`.

    Raises:
        LREError: There is no relation of a name, or none is left.
    """
    unwanted = {_normalise(name): name for name in names}
    for key in unwanted.keys() - {_normalise(relation.name) for relation in relations}:
        _Library(resolve_relations_dir(relations_dir)).find(unwanted[key])
    left = tuple(relation for relation in relations if _normalise(relation.name) not in unwanted)
    if not left:
        raise LREError(f"all of the {len(relations)} relations are left out: exclude fewer")
    return left


def resolve_relations_dir(relations_dir: str | Path | None = None) -> Path:
    """Return the folder of relations that a user means.

    None means the one that the environment variable ``LRE_RELATIONS_DIR`` names, else the bundled relations;
    ``"demo"`` means the bundled relations.
    """
    if relations_dir is None:
        relations_dir = os.environ.get(RELATIONS_DIR_VARIABLE) or DEMO
    return RELATIONS_DIR if relations_dir == DEMO else _expanded(relations_dir)


def is_path(item: str) -> bool:
    """Say whether an item of a selection is written as a path, rather than as a name or a category."""
    return item.endswith(".json") or item.startswith((".", "~")) or "/" in item or os.sep in item


_Entry = tuple[Path, Relation]


class _Library:
    """A folder of relations, read when the first name is looked up in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._entries: list[_Entry] | None = None

    def entries(self) -> list[_Entry]:
        if self._entries is None:
            self._entries = _read_folder(self.folder)
        return self._entries

    def find(self, item: str) -> list[_Entry]:
        if not isinstance(item, str):
            raise LREError(f"relations must be selected by strings, got {item!r}")
        if is_path(item):
            return _read_path(_expanded(item))
        key = _normalise(item)
        named = [(path, r) for path, r in self.entries() if key in (_normalise(r.name), _normalise(path.stem))]
        found = named or [(path, r) for path, r in self.entries() if key == _normalise(r.category)]
        if not found and item and os.path.exists(item):
            found = _read_path(Path(item))
        if not found:
            raise LREError(self._unknown(item))
        return found

    def _unknown(self, item: str) -> str:
        names = {_normalise(relation.name): relation.name for _, relation in self.entries()}
        names.update({_normalise(relation.category): relation.category for _, relation in self.entries()})
        nearest = [repr(names[key]) for key in difflib.get_close_matches(_normalise(item), names, 3, 0.5)]
        categories = sorted({relation.category for _, relation in self.entries()})
        hint = f"did you mean {' or '.join(nearest)}? " if nearest else ""
        return (
            f"no relation, category or path {item!r}: {hint}"
            f"{self.folder} has {len(self.entries())} relations of the categories {', '.join(categories)}"
        )


def _normalise(name: str) -> str:
    return " ".join(name.replace("_", " ").casefold().split())


def _read_path(path: Path) -> list[_Entry]:
    return [(path, load_relation(path))] if os.path.isfile(path) else _read_folder(path)


def _expanded(path: str | Path) -> Path:
    """A path in which ``~`` stands for a home folder.

    Raises:
        LREError: There is no such user.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise LREError(f"no such file or folder of relations: {str(path)!r} ({error})") from error


def _folder_of(path: Path) -> str:
    """The name of a file's folder, which may have bytes in it that are no text."""
    return os.fsencode(path.resolve().parent.name).decode(errors="replace")


def _read_folder(folder: Path) -> list[_Entry]:
    if not os.path.exists(folder):
        raise LREError(f"no such file or folder of relations: {str(folder)!r}")
    if not folder.is_dir():
        raise LREError(f"{str(folder)!r} is not a folder of relations")
    paths = sorted(folder.rglob("*.json"), key=lambda path: path.relative_to(folder).parts)
    if not paths:
        raise LREError(f"the folder {str(folder)!r} has no relation in it: it must hold .json files")
    return [(path, load_relation(path)) for path in paths]


def _distinct(entries: Iterable[_Entry]) -> tuple[Relation, ...]:
    chosen: dict[str, _Entry] = {}
    for path, relation in entries:
        first_path, first = chosen.setdefault(_normalise(relation.name), (path, relation))
        if first != relation:
            raise LREError(
                f"two different relations are named {relation.name!r}: {first_path} and {path}; rename one of them"
            )
    return tuple(relation for _, relation in chosen.values())


def _read_json(path: Path) -> Any:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            what = "a directory" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
            raise LREError(f"can't read the relation {str(path)!r}: it is {what}")
        if found.st_size > LARGEST_FILE:
            raise LREError(
                f"can't read the relation {str(path)!r}: it has {found.st_size} bytes, and may have {LARGEST_FILE}"
            )
        data = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_object)
    except OSError as error:
        raise LREError(f"can't read the relation {str(path)!r}: {error.strerror or error}") from error
    except LREError:
        raise
    except (ValueError, RecursionError) as error:
        raise LREError(f"{path} is not a JSON file in UTF-8: {error}") from error
    if not isinstance(data, dict):
        raise LREError(f"{path} must hold a JSON object with name, prompt_templates and samples, not {_kind(data)}")
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"it has the key {shown(key)} twice in one object")
        found[key] = value
    return found


_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}


def _kind(value: object) -> str:
    return _KINDS[type(value)] if type(value) in (dict, list, str) else shown(value)


class _Fields:
    """The keys of one JSON object, with errors that name the file and the key."""

    def __init__(self, path: Path, data: dict[str, Any], prefix: str = "") -> None:
        self.path, self.data, self.prefix = path, data, prefix

    def get(self, key: str, kind: type, default: object = None) -> Any:
        """Return a value of the kind asked for; without a default the key is required."""
        if key not in self.data and default is not None:
            return default
        if key not in self.data:
            raise LREError(f"{self.path} lacks the key {self.prefix + key!r}, which must be {_KINDS[kind]}")
        value = self.data[key]
        if not isinstance(value, kind):
            raise LREError(f"{self.path}: {self.prefix}{key} must be {_KINDS[kind]}, not {_kind(value)}")
        return value

    def text(self, key: str, default: str | None = None, longest: int = LONGEST) -> str:
        """Return a string that is not blank, except where it is the default, and that can be shown and written."""
        value = text(self.get(key, str, default), f"{self.path}: {self.prefix}{key}", longest)
        if value != default and not value.strip():
            raise LREError(f"{self.path}: {self.prefix}{key} is {value!r}; it must not be empty")
        return value


def _templates(fields: _Fields, key: str, default: list[str] | None = None) -> tuple[str, ...]:
    templates = fields.get(key, list, default)
    if not templates and default is None:
        raise LREError(
            f"{fields.path}: {key} is empty; it must hold at least one template such as 'The capital of {{}} is'"
        )
    for number, template in enumerate(templates):
        try:
            check_template(_Fields(fields.path, {f"{key}[{number}]": template}).text(f"{key}[{number}]"))
        except LREError as error:
            raise LREError(f"{fields.path}: {key}[{number}]: {error}") from error
    return tuple(templates)


def _samples(fields: _Fields) -> tuple[Sample, ...]:
    samples = fields.get("samples", list)
    if not samples:
        raise LREError(f"{fields.path}: samples is empty; it must hold at least one subject and object")
    return tuple(_sample(fields.path, f"samples[{number}]", data) for number, data in enumerate(samples))


def _sample(path: Path, where: str, data: object) -> Sample:
    if not isinstance(data, dict):
        raise LREError(f"{path}: {where} must be an object with subject and object, not {_kind(data)}")
    sample = _Fields(path, data, f"{where}.")
    return Sample(sample.text("subject"), sample.text("object"))
