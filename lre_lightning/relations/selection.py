"""The choice of relations, and of their samples."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.options import option
from lre_lightning.relations.quality import repair
from lre_lightning.relations.relation import FunctionType, Relation, Sample, sha256
from lre_lightning.relations.sources import is_path

SIZES = ("min_size", "max_size", "min_range_size", "max_range_size")


@dataclass(frozen=True)
class Selection:
    """Options of reading a source of relations, and of what is used of them.

    Attributes:
        exclude: Names of relations to leave out.
        category: Categories to keep, such as ``"factual"``.
        domain: Kinds of subjects to keep, such as ``"country"``.
        range: Kinds of objects to keep, such as ``["city", "language"]``.
        function: Function types to keep: ``"one-to-one"``, ``"many-to-one"``, ``"one-to-many"``, ``"many-to-many"``.
        symmetric: Keep only the relations in which subject and object may be swapped, or only the others.
        min_size: The least number of samples of a relation that is kept.
        max_size: The largest number of samples of a relation that is kept.
        min_range_size: The least number of distinct objects of a relation that is kept.
        max_range_size: The largest number of distinct objects of a relation that is kept.
        max_samples: The number of samples to which larger relations are reduced, by a seeded choice.
        repair: Whether to correct what is certainly a mistake in the data: see `lre_lightning.relations.quality`.
        part: One of several parts of the relations that are kept, for independent jobs: ``"2/8"`` is the second of
            eight, to which every eighth relation is dealt. `lre report` joins the jobs' results.
        first_trial: The number of the first trial, so that several jobs can split the trials.
        columns: The names of a table's columns by their meaning, as in ``{"subject": "head", "object": "tail"}``.
        options: Options of `datasets.load_dataset` for a data set, as in ``{"split": "train"}``.

    >>> Selection(domain="country", function=["one-to-one", "many-to-one"]).function
    ['one-to-one', 'many-to-one']
    """

    exclude: list[str] = option(list)
    category: str | list[str] | None = option(None)
    domain: str | list[str] | None = option(None)
    range: str | list[str] | None = option(None)
    function: FunctionType | list[FunctionType] | None = option(None)
    symmetric: bool | None = option(None)
    min_size: int | None = option(None)
    max_size: int | None = option(None)
    min_range_size: int | None = option(None)
    max_range_size: int | None = option(None)
    max_samples: int | None = option(None)
    repair: bool = option(False)
    part: str | None = option(None)
    first_trial: int = option(0)
    columns: dict[str, str] | None = option(None)
    options: dict[str, Any] | None = option(None)

    def __post_init__(self) -> None:
        for function in _several(self.function):
            check_choice("function", function, get_args(FunctionType))
        for name in (*SIZES, "first_trial"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0)
        if self.max_samples is not None:
            check_number("max_samples", self.max_samples, 1)
        index, count = self._part
        if not 1 <= index <= count:
            raise LREError(f"part must be one of several, such as '2/8', the second of eight, got {self.part!r}")

    @property
    def _part(self) -> tuple[int, int]:
        found = re.fullmatch(r"(\d+)/(\d+)", "1/1" if self.part is None else self.part)
        return (int(found[1]), int(found[2])) if found else (0, 0)

    def choose(self, relations: Sequence[Relation], seed: int) -> tuple[Relation, ...]:
        """Return the relations that are kept, repaired and reduced to `max_samples`; none is an `LREError`."""
        if self.repair:
            relations = [repair(relation) for relation in relations]
        chosen = [relation for relation in relations if self._keeps(relation)]
        if not chosen:
            names = ("category", "domain", "range", "function", "symmetric")
            given = {name: getattr(self, name) for name in (*names, *SIZES)}
            wanted = ", ".join(f"{name} {value!r}" for name, value in given.items() if value is not None)
            raise LREError(f"no relation has {wanted}: `lre data` lists the properties of all")
        index, count = self._part
        if index > len(chosen):
            raise LREError(f"part {self.part!r} has no relation: there are {len(chosen)}")
        chosen = chosen[index - 1 :: count]
        if self.max_samples is not None:
            chosen = [cap(relation, self.max_samples, seed) for relation in chosen]
        return tuple(chosen)

    def _keeps(self, relation: Relation) -> bool:
        names = (
            (relation.category, self.category),
            (relation.domain_name, self.domain),
            (relation.range_name, self.range),
            (relation.function, self.function),
        )
        sizes = (
            (len(relation.samples), self.min_size, self.max_size),
            (len(relation.objects), self.min_range_size, self.max_range_size),
        )
        return (
            all(not wanted or name.casefold() in map(str.casefold, _several(wanted)) for name, wanted in names)
            and self.symmetric in (None, relation.symmetric)
            and all((least or 0) <= size and (most is None or size <= most) for size, least, most in sizes)
        )


def cap(relation: Relation, most: int, seed: int) -> Relation:
    """Reduce a relation to at most `most` samples, chosen by a hash of seed, relation, subject and object.

    The order of the samples stays and has no influence on the choice, nor has any library's random number generator. A
    smaller choice is part of a larger one.
    """
    if len(relation.samples) <= most:
        return relation

    def key(sample: Sample) -> bytes:
        return sha256(["cap", seed, relation.name, sample.subject, sample.object]).digest()

    chosen = set(sorted(range(len(relation.samples)), key=lambda i: (key(relation.samples[i]), i))[:most])
    return replace(relation, samples=tuple(s for i, s in enumerate(relation.samples) if i in chosen))


def plain_names(relations: str | list[str] | None) -> list[str] | None:
    """Return the names of relations as a list of strings in which paths are absolute."""
    if relations is None:
        return None
    names = [relations] if isinstance(relations, str) else relations
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise LREError(f"relations must be None, a string or a list of strings, got {relations!r}")
    paths = [os.path.expanduser(name) if is_path(name) else "" for name in names]
    return [os.path.abspath(path) if os.path.exists(path) else name for name, path in zip(names, paths, strict=True)]


def _several(wanted: str | Sequence[str] | None) -> Sequence[str]:
    return [wanted] if isinstance(wanted, str) else wanted or []
