"""Relations and samples chosen by what they are."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from lre_lightning.errors import LREError
from lre_lightning.relations import FunctionType, Relation, Sample


@dataclass(frozen=True)
class Where:
    """What relations are chosen for. What is None or left out chooses all.

    Attributes:
        category: Categories, such as ``"factual"``.
        domain_name: What the subjects are, such as ``"country"``.
        range_name: What the objects are, such as ``["city", "language"]``.
        function: Function types: ``"one-to-one"``, ``"many-to-one"``, ``"one-to-many"``, ``"many-to-many"``.
        symmetric: Whether subject and object may change places.
        min_samples: The least number of samples.
        max_samples: The largest number of samples.
        min_objects: The least number of distinct objects.
        max_objects: The largest number of distinct objects.

    Raises:
        LREError: If a function type is unknown, or a number is none.

    >>> Where(domain_name="country", function=["one-to-one", "many-to-one"]).function
    ('one-to-one', 'many-to-one')
    """

    category: str | Sequence[str] | None = None
    domain_name: str | Sequence[str] | None = None
    range_name: str | Sequence[str] | None = None
    function: FunctionType | Sequence[FunctionType] | None = None
    symmetric: bool | None = None
    min_samples: int | None = None
    max_samples: int | None = None
    min_objects: int | None = None
    max_objects: int | None = None

    def __post_init__(self) -> None:
        """Turn single names into tuples, and check."""
        for name in ("category", "domain_name", "range_name", "function"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, (given,) if isinstance(given, str) else tuple(given))
        for function in self.function or ():
            if function not in get_args(FunctionType):
                raise LREError(f"the function type {function!r} is none of {', '.join(get_args(FunctionType))}")
        for name in ("min_samples", "max_samples", "min_objects", "max_objects"):
            given = getattr(self, name)
            if given is not None and (type(given) is not int or given < 0):
                raise LREError(f"{name} must be a whole number of at least 0, got {given!r}")

    def fits(self, relation: Relation) -> bool:
        """Say whether a relation is chosen."""
        named = (
            _among(relation.category, self.category)
            and _among(relation.domain_name, self.domain_name)
            and _among(relation.range_name, self.range_name)
        )
        return (
            named
            and self.symmetric in (None, relation.symmetric)
            and _within(len(relation.samples), self.min_samples, self.max_samples)
            and _within(len(relation.objects), self.min_objects, self.max_objects)
            and (not self.function or relation.function in self.function)
        )

    def choose(self, relations: Sequence[Relation]) -> tuple[Relation, ...]:
        """The relations that fit.

        Raises:
            LREError: None fits; the message says what there is.
        """
        chosen = tuple(relation for relation in relations if self.fits(relation))
        if not chosen:
            wanted = ", ".join(f"{name} {value!r}" for name, value in vars(self).items() if value is not None)
            raise LREError(f"none of the {len(relations)} relations has {wanted}: {_what_there_is(relations)}")
        return chosen


def cap(relation: Relation, most: int, seed: int) -> Relation:
    """A relation with at most so many of its samples, chosen by a hash of seed, relation, subject and object.

    The choice depends neither on the order of the samples, which stays, nor on any library's random numbers, and of
    two numbers the smaller one's choice is part of the larger one's.

    Raises:
        LREError: `most` is no whole number of at least 1.
    """
    if type(most) is not int or most < 1:
        raise LREError(f"the number of samples of a relation must be at least 1, got {most!r}")
    if len(relation.samples) <= most:
        return relation

    def key(sample: Sample) -> bytes:
        parts = json.dumps(["cap", seed, relation.name, sample.subject, sample.object], separators=(",", ":"))
        return hashlib.sha256(parts.encode("ascii")).digest()

    chosen = set(sorted(range(len(relation.samples)), key=lambda i: (key(relation.samples[i]), i))[:most])
    return replace(relation, samples=tuple(s for i, s in enumerate(relation.samples) if i in chosen))


def _among(name: str, wanted: str | Sequence[str] | None) -> bool:
    return not wanted or name.casefold() in {item.casefold() for item in wanted}


def _within(number: int, least: int | None, most: int | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)


def _what_there_is(relations: Sequence[Relation]) -> str:
    """Domains, ranges, function types and sizes of relations, for an error."""
    parts = []
    for title, name in (("domains", "domain_name"), ("ranges", "range_name"), ("function types", "function")):
        found = sorted({getattr(relation, name) for relation in relations} - {""})
        shown = ", ".join(found[:15]) + (", ..." if len(found) > 15 else "")
        parts.append(f"{title} {shown or 'none'}")
    sizes = [len(relation.samples) for relation in relations]
    return f"{'; '.join(parts)}; {min(sizes)} to {max(sizes)} samples"
