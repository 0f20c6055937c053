"""The schema of relations, and all that is wrong with data that do not have it.

It is the one of the relations that Hernandez et al. (ICLR 2024, section 4) published::

    {"name": "country capital city",
     "prompt_templates": ["The capital city of {} is"],
     "prompt_templates_zs": ["What is the capital of {}? It is the city of"],
     "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": false},
     "samples": [{"subject": "Canada", "object": "Ottawa"}]}

`prompt_templates_zs` and `properties` may be left out, and other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, FailFast, Field, Strict, StringConstraints, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import LONGEST, SLOT, Relation, Sample
from lre_lightning.storage.plain import CONTROLS, LONGEST_NAME, printable, shown, text

MOST_SHOWN = 20
"""Problems that a message shows."""
MOST = 1000
"""Problems after which the rest of a relation is not looked at."""

# The patterns are for pydantic's own engine, which takes no surrogates: they are never part of a string there.
_CONTROLS = CONTROLS.pattern.strip("[]").removesuffix("\ud800-\udfff")
_WITH_LETTERS = rf"[^{_CONTROLS}]*[^\s{_CONTROLS}][^{_CONTROLS}]*"
_AROUND_SLOT = rf"[^{{}}{_CONTROLS}]*"

Text: TypeAlias = Annotated[str, Strict(), StringConstraints(max_length=LONGEST, pattern=rf"\A{_WITH_LETTERS}\z")]
Name: TypeAlias = Annotated[str, Strict(), StringConstraints(max_length=LONGEST_NAME, pattern=rf"\A{_WITH_LETTERS}\z")]
TextOrNone: TypeAlias = Annotated[
    str, Strict(), StringConstraints(max_length=LONGEST, pattern=rf"\A({_WITH_LETTERS})?\z")
]
NameOrNone: TypeAlias = Annotated[
    str, Strict(), StringConstraints(max_length=LONGEST_NAME, pattern=rf"\A({_WITH_LETTERS})?\z")
]
Template: TypeAlias = Annotated[
    str, Strict(), StringConstraints(max_length=LONGEST, pattern=rf"\A{_AROUND_SLOT}\{{\}}{_AROUND_SLOT}\z")
]


class SampleData(TypedDict):
    """A sample in a file."""

    subject: Text
    object: Text


class PropertiesData(BaseModel):
    """What a file tells of its relation."""

    relation_type: NameOrNone = ""
    domain_name: TextOrNone = ""
    range_name: TextOrNone = ""
    symmetric: Annotated[bool, Strict()] = False


class TableData(BaseModel):
    """A relation that may have no template. Each list is looked at up to its first error."""

    name: Name
    prompt_templates: Annotated[list[Template], Strict(), FailFast()] = []
    prompt_templates_zs: Annotated[list[Template], Strict(), FailFast()] = []
    properties: PropertiesData = PropertiesData()
    samples: Annotated[list[SampleData], Strict(), FailFast(), Field(min_length=1)]


class RelationData(TableData):
    """A relation in a file."""

    prompt_templates: Annotated[list[Template], Strict(), FailFast(), Field(min_length=1)]


class InvalidRelation(LREError):
    """Data that are no relation.

    Args:
        place: Where they are from, as in ``"capitals.json"``.
        problems: What is wrong, a sentence each that begins with the key or, of the whole, with a verb.

    Attributes:
        place: As given.
        problems: As given; at most `MOST` of a relation.
        lines: The message's lines. Each is printable.

    >>> print(InvalidRelation("capitals.json", ["name must be a string, not 3", "samples is empty"]))
    'capitals.json' has 2 problems:
      name must be a string, not 3
      samples is empty
    """

    def __init__(self, place: str, problems: Sequence[str]) -> None:
        self.place = place
        self.problems = tuple(problems)
        super().__init__("\n".join(self.lines))

    def __reduce__(self) -> tuple[Any, ...]:
        """Of what processes send each other to make it again."""
        return type(self), (self.place, self.problems)

    @property
    def lines(self) -> tuple[str, ...]:
        """The message's lines."""
        count = len(self.problems)
        if count == 1:
            return (sentence(printable(self.place), printable(self.problems[0])),)
        at_least = "at least " if count >= MOST else ""
        rest = [f"and {at_least}{count - MOST_SHOWN} more"] if count > MOST_SHOWN else []
        listed = [printable(problem) for problem in self.problems[:MOST_SHOWN]]
        return (f"{self.place!r} has {at_least}{count} problems:", *(f"  {line}" for line in listed + rest))


def sentence(place: str, problem: str) -> str:
    """A problem with its place before it: it begins with a key, or with a verb whose subject the place is."""
    return f"{place} {problem}" if problem.startswith(("lacks ", "must ", "is ")) else f"{place}: {problem}"


def check_relation(
    data: object,
    place: str,
    *,
    category: str = "",
    lines: Sequence[int] | None = None,
    templates_required: bool = True,
) -> Relation:
    """Make a relation of data in the schema of this module.

    Args:
        data: Dictionaries, lists, strings and truth values, as of JSON.
        place: Where they are from, for the error.
        category: The relation's category where the data have no ``properties.relation_type``. There, ``""`` means
            that it has none.
        lines: The line of each sample in a table, by which the error names samples.
        templates_required: Whether there must be a template.

    Raises:
        InvalidRelation: The data lack a key, or have values of the wrong kind, empty or too long texts, texts with
            control characters, or templates without exactly one ``{}``; the message has all problems.
    """
    try:
        found = (RelationData if templates_required else TableData).model_validate(data)
    except ValidationError as error:
        raise InvalidRelation(place, _Problems(data, lines).of(error)) from None
    properties = found.properties
    if "relation_type" not in properties.model_fields_set:
        wrong = _wrong_text(category, "properties.relation_type", LONGEST_NAME)
        if wrong:
            raise InvalidRelation(place, [wrong])
        properties.relation_type = category
    return Relation(
        name=found.name,
        category=properties.relation_type,
        prompt_templates=tuple(found.prompt_templates),
        zero_shot_templates=tuple(found.prompt_templates_zs),
        domain_name=properties.domain_name,
        range_name=properties.range_name,
        symmetric=properties.symmetric,
        samples=tuple(Sample(sample["subject"], sample["object"]) for sample in found.samples),
    )


# The words for what is wrong.

_LISTS: dict[str, TypeAdapter[Any]] = {
    "prompt_templates": TypeAdapter(Template),
    "prompt_templates_zs": TypeAdapter(Template),
    "samples": TypeAdapter(SampleData),
}
_EMPTY = {
    "prompt_templates": "it must hold at least one template such as 'The capital of {} is'",
    "samples": "it must hold at least one subject and object",
}
_KINDS: dict[type, str] = {dict: "an object", list: "a list", str: "a string"}

_Path: TypeAlias = tuple[int | str, ...]


class _Problems:
    """What is wrong with the data of one relation, in words."""

    def __init__(self, data: Any, lines: Sequence[int] | None) -> None:
        self.data, self.lines = data, lines

    def of(self, error: ValidationError) -> list[str]:
        found: list[str] = []
        lists: set[int | str] = set()
        for details in error.errors(include_url=False, include_context=False):
            key = details["loc"][0] if len(details["loc"]) > 1 else None
            if key not in _LISTS:
                found.append(self._word(details["loc"], details))
            elif key not in lists:
                lists.add(key)
                found += self._in_list(str(key), MOST - len(found))
        return found[:MOST]

    def _in_list(self, key: str, most: int) -> list[str]:
        found: list[str] = []
        for number, item in enumerate(self.data[key]):
            try:
                _LISTS[key].validate_python(item)
            except ValidationError as error:
                found += [self._word((key, number, *details["loc"]), details) for details in error.errors()]
            if len(found) >= most:
                break
        return found

    def _word(self, path: _Path, details: Any) -> str:
        kind, value, where = details["type"], details["input"], self._where(path)
        if kind == "missing":
            line, _, key = where.rpartition(": ")
            return (f"{line} " if line else "") + f"lacks the key {key!r}, which must be {self._right(path)}"
        if kind == "too_short":
            return f"{where} is empty; {_EMPTY[str(path[0])]}"
        if kind.startswith("string_") and isinstance(value, str):
            longest = LONGEST_NAME if path[-1] in ("name", "relation_type") else LONGEST
            return _wrong_text(value, where, longest) or _wrong_content(value, where)
        if not path:
            return f"must hold a JSON object with name, prompt_templates and samples, not {_kind(value)}"
        return f"{where} must be {self._right(path)}, not {_kind(value)}"

    def _right(self, path: _Path) -> str:
        """What a value must be."""
        if path[0] == "samples" and len(path) == 2:
            return "an object with subject and object"
        if len(path) == 1 and path[0] in _LISTS:
            return "a list"
        return {"properties": "an object", "symmetric": "true or false"}.get(str(path[-1]), "a string")

    def _where(self, path: _Path) -> str:
        if path[:1] == ("samples",) and len(path) > 1 and self.lines is not None:
            return ": ".join([f"line {self.lines[int(path[1])]}", *map(str, path[2:])])
        return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def _wrong_text(value: str, where: str, longest: int) -> str | None:
    try:
        text(value, where, longest)
    except LREError as error:
        return str(error)
    return None


def _wrong_content(value: str, where: str) -> str:
    if not value.strip():
        return f"{where} is {shown(value)}; it must not be empty"
    return f"{where}: template {shown(value)} must have exactly one {SLOT} for the subject, and no other brace"


def _kind(value: object) -> str:
    """What a value of JSON is, for an error."""
    return _KINDS[type(value)] if type(value) in _KINDS else shown(value)
