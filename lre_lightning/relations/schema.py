"""The schema of relations, and checks that report everything wrong with data that do not follow it.

The schema is that of the relations published by Hernandez et al. (ICLR 2024, section 4)::

    {"name": "country capital city",
     "prompt_templates": ["The capital city of {} is"],
     "prompt_templates_zs": ["What is the capital of {}? It is the city of"],
     "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": false},
     "samples": [{"subject": "Canada", "object": "Ottawa"}]}

`prompt_templates_zs` and `properties` are optional, and other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, TypeVar

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import LONGEST, Relation, Sample, check_template
from lre_lightning.storage.plain import LONGEST_NAME, listing, mapping, printable, shown, text, truth

MOST_SAMPLES = 10_000_000
"""Largest number of samples of a relation or a table."""
MOST_SHOWN = 20
"""Largest number of problems that one message lists."""

_T = TypeVar("_T")


class Problems:
    """Collects the errors of several checks, each in a ``with`` block of its own, and raises them as one.

    >>> problems = Problems()
    >>> for line, value in enumerate([3, "Ottawa", " "], 1):
    ...     with problems:
    ...         checked = filled(value, f"capitals.csv, line {line}: object")
    >>> problems.raise_all()
    Traceback (most recent call last):
    lre_lightning.errors.LREError: the relations have 2 problems:
      capitals.csv, line 1: object must be a string, not 3
      capitals.csv, line 3: object is ' '; it must not be empty
    """

    def __init__(self) -> None:
        self.count = 0
        self.found: list[str] = []

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, LREError):
            return False
        self.count += 1
        if self.count <= MOST_SHOWN:
            self.found.append(printable(str(error)))
        return True

    def raise_all(self) -> None:
        """Raise one `LREError` that lists the problems, if there are any."""
        if self.count == 1:
            raise LREError(self.found[0])
        if self.count:
            more = [f"and {self.count - MOST_SHOWN} more"] if self.count > MOST_SHOWN else []
            raise LREError("\n  ".join([f"the relations have {self.count} problems:", *self.found, *more]))


def filled(value: object, what: str, longest: int = LONGEST) -> str:
    """Check a text that is not blank."""
    found = text(value, what, longest)
    if not found.strip():
        raise LREError(f"{what} is {shown(value)}; it must not be empty")
    return found


def check_relation(
    data: object, at: str, problems: Problems, *, category: str = "", templates_required: bool = True
) -> Relation | None:
    """Make a relation of parsed JSON that follows the schema of this module, or return None and add to the problems.

    `at` says where the data are from, such as ``"capitals.json"``; `category` is the relation's category if the data
    have no ``properties.relation_type``.
    """
    if not isinstance(data, dict):
        with problems:
            raise LREError(f"{at} must hold an object with name, prompt_templates and samples, not {shown(data)}")
        return None
    before = problems.count
    with problems:
        name = filled(_entry(data, "name", at), f"{at}: name", LONGEST_NAME)
    with problems:
        properties = {"relation_type": category} | mapping(data.get("properties", {}), f"{at}: properties")
        texts = ("relation_type", "domain_name", "range_name")
        labels = [text(properties.get(key, ""), f"{at}: properties.{key}", LONGEST_NAME) for key in texts]
        symmetric = truth(properties.get("symmetric", False), f"{at}: properties.symmetric")
    few_shot = _entries(data, "prompt_templates", at, templates_required, check_template, problems)
    zero_shot = _entries(data, "prompt_templates_zs", at, False, check_template, problems)
    samples = _entries(data, "samples", at, True, _check_sample, problems)
    if problems.count > before:
        return None
    category, domain, range_ = labels
    return Relation(name, category, few_shot, zero_shot, domain, range_, symmetric, samples)


def _entry(data: Mapping[str, Any], key: str, at: str) -> Any:
    if key not in data:
        raise LREError(f"{at} lacks the key {key!r}")
    return data[key]


def _entries(
    data: Mapping[str, Any], key: str, at: str, required: bool, check: Callable[[Any, str], _T], problems: Problems
) -> tuple[_T, ...]:
    entries: list[Any] | tuple[Any, ...] = ()
    with problems:
        entries = listing(_entry(data, key, at) if required else data.get(key, []), f"{at}: {key}", MOST_SAMPLES)
        if required and not entries:
            raise LREError(f"{at}: {key} is empty; it must hold at least one entry")
    found = []
    for number, entry in enumerate(entries):
        with problems:
            found.append(check(entry, f"{at}: {key}[{number}]"))
    return tuple(found)


def _check_sample(data: object, at: str) -> Sample:
    if not isinstance(data, dict):
        raise LREError(f"{at} must be an object with subject and object, not {shown(data)}")
    return Sample(*(filled(_entry(data, key, at), f"{at}.{key}") for key in ("subject", "object")))
