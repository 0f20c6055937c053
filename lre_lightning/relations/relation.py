"""Relations: facts of one kind, and the templates that ask for them.

A relation is a list of (subject, object) pairs and prompt templates. Where relations come from is told by
`lre_lightning.relations.sources`.
"""

import hashlib
import json
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from lre_lightning.errors import LREError

SLOT = "{}"
LONGEST = 10_000
"""Characters that a subject, an object or a template may have."""

FunctionType: TypeAlias = Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"]
"""How many subjects share an object, and how many objects a subject has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One fact: a subject and the object that the relation maps it to.

    Both are kept exactly as the file has them; a subject may occur in several samples of a relation.

    >>> Sample("Canada", "Ottawa").object
    'Ottawa'
    """

    subject: str
    object: str

    @property
    def name(self) -> str:
        """The subject without white space around it and in NFC: samples of one name are about the same subject."""
        return unicodedata.normalize("NFC", self.subject.strip())


@dataclass(frozen=True)
class Relation:
    """A relation's facts and the templates that ask for them.

    Attributes:
        name: The relation's name, as in ``"country capital city"``.
        category: The kind of knowledge, as in ``"factual"``.
        prompt_templates: Few-shot templates; ``{}`` stands for the subject. None where a table has none.
        zero_shot_templates: Templates that also say in words what is asked for. May be empty.
        domain_name: What the subjects are, as in ``"country"``.
        range_name: What the objects are, as in ``"city"``.
        symmetric: Whether subject and object may change places.
        samples: The facts, in the file's order.

    >>> capitals = Relation("capital", "factual", ("The capital of {} is",), (), "country", "city", False,
    ...                     (Sample("Canada", "Ottawa"), Sample("France", "Paris"), Sample("Kanada", "Ottawa")))
    >>> capitals.template, capitals.objects, capitals.function
    ('The capital of {} is', ('Ottawa', 'Paris'), 'many-to-one')
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
        """The template that prompts are made with: the first.

        Raises:
            LREError: There is none.
        """
        if not self.templates:
            raise LREError(
                f"the relation {self.name!r} has no template: give one, such as 'The capital of {{}} is', as "
                "template, or in a column of templates"
            )
        return self.templates[0]

    @property
    def templates(self) -> tuple[str, ...]:
        """All distinct templates, few-shot ones first."""
        return tuple(dict.fromkeys((*self.prompt_templates, *self.zero_shot_templates)))

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """The relation's range: its distinct objects, in the order in which they first occur."""
        return tuple(dict.fromkeys(sample.object for sample in self.samples))

    @cached_property
    def function(self) -> FunctionType:
        """Whether subjects have one object each, and objects one subject."""
        objects: dict[str, set[str]] = defaultdict(set)
        subjects: dict[str, set[str]] = defaultdict(set)
        for sample in self.samples:
            objects[sample.name].add(sample.object)
            subjects[sample.object].add(sample.name)
        one_object = all(len(found) == 1 for found in objects.values())
        one_subject = all(len(found) == 1 for found in subjects.values())
        if one_object:
            return "one-to-one" if one_subject else "many-to-one"
        return "one-to-many" if one_subject else "many-to-many"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the name and the samples in their order: tells whether these are the same facts."""
        return sha256([self.name, [[sample.subject, sample.object] for sample in self.samples]]).hexdigest()


def sha256(parts: Sequence[object]) -> "hashlib._Hash":
    """The SHA-256 of plain data, written as JSON: the same on every machine and for ever."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii"))


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
