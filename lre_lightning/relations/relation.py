"""Relations: facts of one kind, and the templates that ask for them.

A relation is a list of (subject, object) samples and a list of prompt templates. `lre_lightning.relations.sources`
loads them.
"""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from lre_lightning.errors import LREError
from lre_lightning.storage.plain import shown, text

SLOT = "{}"
SUBJECT_MARK = re.compile(r"\[X\]|<subject>|\{subject\}")
OBJECT_MARK = re.compile(r"\s*(\[Y\]|<mask>|<MASK>|\[MASK\]|\{object\}).*", re.DOTALL)
LONGEST = 10_000
"""Maximum length of a subject, an object or a template in characters."""

FunctionType: TypeAlias = Literal["one-to-one", "many-to-one", "one-to-many", "many-to-many"]
"""The first word counts the subjects of an object, the last one the objects of a subject."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One fact: a subject and the object that the relation maps it to.

    Both are kept exactly as in the file; a subject may occur in several samples of a relation.

    >>> Sample("Canada", "Ottawa").object
    'Ottawa'
    """

    subject: str
    object: str

    @property
    def name(self) -> str:
        """The stripped subject in NFC: samples with the same name are about the same subject."""
        return unicodedata.normalize("NFC", self.subject.strip())


@dataclass(frozen=True)
class Relation:
    """A relation's facts and the templates that ask for them.

    Attributes:
        name: The relation's name, such as ``"country capital city"``.
        category: The kind of knowledge, such as ``"factual"``.
        prompt_templates: Few-shot templates; ``{}`` stands for the subject. Empty for a table without templates.
        zero_shot_templates: Templates that also say in words what is asked for. May be empty.
        domain_name: The kind of the subjects, such as ``"country"``.
        range_name: The kind of the objects, such as ``"city"``.
        symmetric: Whether subject and object may be swapped.
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
        """The first template, which prompts are made with; an `LREError` if there is none."""
        if not self.templates:
            raise LREError(
                f"the relation {self.name!r} has no template: give one, such as 'The capital of {{}} is', as "
                "--data.prompts.template or in a column of templates"
            )
        return self.templates[0]

    @property
    def templates(self) -> tuple[str, ...]:
        """All distinct templates, few-shot ones first."""
        return tuple(dict.fromkeys((*self.prompt_templates, *self.zero_shot_templates)))

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """The relation's range: its distinct objects, in the order of their first occurrence."""
        return tuple(dict.fromkeys(sample.object for sample in self.samples))

    @cached_property
    def function(self) -> FunctionType:
        """The relation's function type."""
        objects: dict[str, set[str]] = defaultdict(set)
        subjects: dict[str, set[str]] = defaultdict(set)
        for sample in self.samples:
            objects[sample.name].add(sample.object)
            subjects[sample.object].add(sample.name)
        one_object = all(len(group) == 1 for group in objects.values())
        one_subject = all(len(group) == 1 for group in subjects.values())
        if one_object:
            return "one-to-one" if one_subject else "many-to-one"
        return "one-to-many" if one_subject else "many-to-many"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the name and the samples in their order, which identifies the facts."""
        return sha256([self.name, [[sample.subject, sample.object] for sample in self.samples]]).hexdigest()


def sha256(parts: Sequence[object]) -> "hashlib._Hash":
    """Return the SHA-256 of plain data written as JSON, which does not depend on the machine or on versions."""
    return hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode("ascii"))


def draw_order(*parts: object) -> bytes:
    """Return what orders a draw: a digest of the texts of what it depends on, which nothing else changes."""
    return hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()


def read_template(value: object, what: str = "template") -> str:
    """Read a template of a file, called `what` in errors, in which other marks may stand for subject and object.

    Those are ``[X]``, ``<subject>`` or ``{subject}``, and ``[Y]``, ``<mask>``, ``[MASK]`` or ``{object}``. A prompt
    stops before the object, so that what follows its mark is left out.

    >>> read_template("[X] was born in [Y] .")
    '{} was born in'
    """
    if isinstance(value, str):
        value = SUBJECT_MARK.sub(SLOT, OBJECT_MARK.sub("", value))
    return check_template(value, what)


def check_template(template: object, what: str = "template") -> str:
    """Check that a template, called `what` in errors, has exactly one slot for the subject and no other brace.

    Templates are filled in by replacing ``{}``: a field such as ``{subject}`` would stay in the prompt, and
    ``str.format`` would let a data file reach into Python objects.
    """
    checked = text(template, what, LONGEST)
    rest = checked.replace(SLOT, "", 1)
    if rest == checked or "{" in rest or "}" in rest:
        right = f"exactly one {SLOT} for the subject, and no other brace"
        raise LREError(f"{what} is {shown(template)}; it must have {right}")
    return checked
