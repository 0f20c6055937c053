"""Relations, samples and templates chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, get_args

from lre_lightning.errors import LREError, check_number
from lre_lightning.relations.relation import SLOT, FunctionType, Relation, Sample, check_template, sha256

TEMPLATES = ("few-shot", "zero-shot", "all", "bare")
"""Choices of templates by name: all that a relation has of a kind, or ``"{}"``, without relation-specific text."""


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
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Where:
        """Make one of plain data.

        Raises:
            LREError: It has a name that is no attribute, or a value that is out of range.
        """
        known = [field.name for field in fields(cls)]
        for name in given:
            if name not in known:
                raise LREError(f"where has {name!r}, and relations are chosen for {', '.join(known)}")
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """What `of` makes the same of."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}

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
    check_number("the number of samples of a relation", most, 1)
    if len(relation.samples) <= most:
        return relation

    def key(sample: Sample) -> bytes:
        return sha256(["cap", seed, relation.name, sample.subject, sample.object]).digest()

    chosen = set(sorted(range(len(relation.samples)), key=lambda i: (key(relation.samples[i]), i))[:most])
    return replace(relation, samples=tuple(s for i, s in enumerate(relation.samples) if i in chosen))


def choose_templates(
    relations: Sequence[Relation], template: int | str | Mapping[str, str]
) -> tuple[tuple[Relation, ...], tuple[tuple[str, ...], ...]]:
    """Choose the templates that prompts are made with.

    Args:
        relations: The relations.
        template: An index into each relation's own distinct templates, few-shot ones first; one of `TEMPLATES`; a
            template for all; or templates by relation.

    Returns:
        The relations that have such templates, of which the first is their own first one, and the templates of each.

    Raises:
        LREError: None has, or one is given for a relation that is not there.
    """
    if isinstance(template, Mapping):
        for name in template.keys() - {relation.name for relation in relations}:
            raise LREError(f"a template is given for {name!r}, which is none of the {len(relations)} relations")
    templates = [(relation, _templates_of(relation, template)) for relation in relations]
    chosen = [(relation, found) for relation, found in templates if found]
    if not chosen:
        most = max(len(relation.templates) for relation in relations)
        if isinstance(template, int):
            raise LREError(f"no relation has a template {template}: the most that one has are {most}, from 0 on")
        raise LREError(f"none of the {len(relations)} relations has a template for {template!r}: give one yourself")
    replaced = [replace(r, prompt_templates=found) if r.templates[:1] != found else r for r, found in chosen]
    return tuple(replaced), tuple(found for _, found in chosen)


def _templates_of(relation: Relation, template: int | str | Mapping[str, str]) -> tuple[str, ...]:
    if isinstance(template, Mapping):
        own = template.get(relation.name)
        return (relation.template if own is None else own,)
    if isinstance(template, int):
        if template == 0:
            return (relation.template,)  # a relation without any is a mistake
        return relation.templates[template : template + 1]
    named = {
        "few-shot": relation.prompt_templates,
        "zero-shot": relation.zero_shot_templates,
        "all": relation.templates,
        "bare": (SLOT,),
    }
    return tuple(dict.fromkeys(named[template])) if template in named else (template,)


def check_template_choice(template: int | str | Mapping[str, str]) -> None:
    """Check what `choose_templates` is given.

    Raises:
        LREError: It is no index, name or template.
    """
    if isinstance(template, Mapping):
        for given in template.values():
            check_template(given)
    elif not isinstance(template, str):
        check_number("template", template, 0)
    elif template not in TEMPLATES:
        check_template(template)


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
