"""The schema of relations, and errors that list everything wrong with data that do not follow it.

The schema is that of the relations published by Hernandez et al. (ICLR 2024, section 4)::

    {"name": "country capital city",
     "prompt_templates": ["The capital city of {} is"],
     "prompt_templates_zs": ["What is the capital of {}? It is the city of"],
     "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": false},
     "samples": [{"subject": "Canada", "object": "Ottawa"}]}

`prompt_templates_zs` and `properties` are optional, and other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NamedTuple, TypeAlias

from pydantic import AfterValidator, BaseModel, FailFast, Field, Strict, TypeAdapter, ValidationError
from typing_extensions import Self, TypedDict

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import LONGEST, SLOT, Relation, Sample, check_template
from lre_lightning.storage.plain import LONGEST_NAME, printable, shown, text

MOST_SHOWN = 20
"""Problems listed in a message."""
MOST = 1000
"""Problems after which the rest of a relation is not checked."""


def _text(longest: int, blank: bool = False) -> AfterValidator:
    """Return a check of a string's length, of control characters and, unless it may be blank, of its content."""

    def check(value: str) -> str:
        text(value, "", longest)
        if not blank and not value.strip():
            raise LREError(f"is {shown(value)}; it must not be empty")
        return value

    return AfterValidator(check)


def _template(value: str) -> str:
    try:
        check_template(value)
    except LREError:
        right = f"exactly one {SLOT} for the subject, and no other brace"
        raise LREError(f"is {shown(value)}; it must have {right}") from None
    return value


Text: TypeAlias = Annotated[str, Strict(), _text(LONGEST)]
Label: TypeAlias = Annotated[str, Strict(), _text(LONGEST, blank=True)]
Template: TypeAlias = Annotated[Text, AfterValidator(_template)]


class SampleData(TypedDict):
    """A sample in a file."""

    subject: Text
    object: Text


class PropertiesData(BaseModel):
    """The properties of a relation in a file."""

    relation_type: Annotated[str, Strict(), _text(LONGEST_NAME, blank=True)] = ""
    domain_name: Label = ""
    range_name: Label = ""
    symmetric: Annotated[bool, Strict()] = False


class TableData(BaseModel):
    """A relation that may have no template. Each list is checked up to its first error."""

    name: Annotated[str, Strict(), _text(LONGEST_NAME)]
    prompt_templates: Annotated[list[Template], Strict(), FailFast()] = []
    prompt_templates_zs: Annotated[list[Template], Strict(), FailFast()] = []
    properties: PropertiesData = PropertiesData()
    samples: Annotated[list[SampleData], Strict(), FailFast(), Field(min_length=1)]


class RelationData(TableData):
    """A relation in a file."""

    prompt_templates: Annotated[list[Template], Strict(), FailFast(), Field(min_length=1)]


Path: TypeAlias = tuple[int | str, ...]


class Problem(NamedTuple):
    """Something wrong with data.

    Attributes:
        text: The predicate of a sentence whose subject is the value, such as ``"must be a string, not 3"``.
        path: The keys and indices of the value, such as ``("samples", 3, "object")``; empty for the data as a whole.
        place: Where the data are from, such as ``"line 3"``.

    >>> print(Problem("must be a string, not 3", ("samples", 3, "object")).within("capitals.json"))
    capitals.json: samples[3].object must be a string, not 3
    """

    text: str
    path: Path = ()
    place: str = ""

    def within(self, place: str) -> Self:
        """Return the problem with a place put in front of its own."""
        return self._replace(place=f"{place}: {self.place}" if self.place else place)

    def __str__(self) -> str:
        """Return the sentence, on one line."""
        key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path).removeprefix(".")
        return printable(f"{': '.join(filter(None, (self.place, key)))} {self.text}".strip())


class InvalidRelation(LREError):
    """Data that do not follow the schema.

    Args:
        place: Where they are from, such as ``"capitals.json"``.
        problems: What is wrong; at most `MOST` problems.

    >>> problems = [Problem("must be a string, not 3", ("name",)), Problem("is empty", ("samples",))]
    >>> print(InvalidRelation("capitals.json", problems))
    'capitals.json' has 2 problems:
      name must be a string, not 3
      samples is empty
    """

    def __init__(self, place: str, problems: Iterable[Problem]) -> None:
        self.place, self.problems = place, tuple(problems)
        super().__init__(self.place, self.problems)

    def __str__(self) -> str:
        """Return the message: one line per problem, at most `MOST_SHOWN`."""
        count = len(self.problems)
        if count == 1:
            return str(self.problems[0].within(self.place))
        at_least = "at least " if count >= MOST else ""
        lines = [f"{self.place!r} has {at_least}{count} problems:", *map(str, self.problems[:MOST_SHOWN])]
        if count > MOST_SHOWN:
            lines.append(f"and {at_least}{count - MOST_SHOWN} more")
        return "\n  ".join(lines)


def raise_all(place: str, errors: Sequence[InvalidRelation]) -> None:
    """Raise the errors of several relations as one, the first problem of each before the rest, as not all are shown.

    Raises:
        InvalidRelation: There is an error.
    """
    if errors:
        problems = [[problem.within(error.place) for problem in error.problems] for error in errors]
        firsts, rest = [some[0] for some in problems], [problem for some in problems for problem in some[1:]]
        raise InvalidRelation(place, [*firsts, *rest][:MOST])


def check_relation(data: object, place: str, *, category: str = "", templates_required: bool = True) -> Relation:
    """Make a relation of data that follow the schema of this module.

    Args:
        data: Dictionaries, lists, strings and booleans, as parsed from JSON.
        place: Where they are from, for the error.
        category: The relation's category if the data have no ``properties.relation_type``. If that is ``""``, the
            relation has no category.
        templates_required: Whether there must be a template.

    Raises:
        InvalidRelation: The data lack a key, or have values of the wrong type, empty or too long texts, texts with
            control characters, or templates without exactly one ``{}``; the message lists all problems.
    """
    try:
        found = (RelationData if templates_required else TableData).model_validate(data)
    except ValidationError as error:
        raise InvalidRelation(place, _problems(data, error)) from None
    properties = found.properties
    return Relation(
        name=found.name,
        category=properties.relation_type if "relation_type" in properties.model_fields_set else category,
        prompt_templates=tuple(found.prompt_templates),
        zero_shot_templates=tuple(found.prompt_templates_zs),
        domain_name=properties.domain_name,
        range_name=properties.range_name,
        symmetric=properties.symmetric,
        samples=tuple(Sample(sample["subject"], sample["object"]) for sample in found.samples),
    )


_LISTS: dict[Any, TypeAdapter[Any]] = {
    "prompt_templates": TypeAdapter(list[Template]),
    "prompt_templates_zs": TypeAdapter(list[Template]),
    "samples": TypeAdapter(list[SampleData]),
}
_RIGHT = {
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object with subject and object",
}


def _problems(data: Any, error: ValidationError) -> list[Problem]:
    """Return up to `MOST` problems of a relation, including those after the first one of each list."""
    found: list[Problem] = []
    for details in error.errors(include_url=False):
        path = details["loc"]
        if len(path) < 2 or path[0] not in _LISTS:
            found.append(_problem(details, path))
        elif not any(problem.path[:1] == path[:1] for problem in found):
            found += _in_list(path[0], data[path[0]], int(path[1]))
    return found[:MOST]


def _in_list(key: int | str, items: Sequence[Any], first: int) -> list[Problem]:
    found: list[Problem] = []
    for start in range(first, len(items), MOST):
        try:
            _LISTS[key].validate_python(items[start : start + MOST])
        except ValidationError as error:
            for details in error.errors(include_url=False):
                index, *rest = details["loc"]
                found.append(_problem(details, (key, start + int(index), *rest)))
        if len(found) >= MOST:
            break
    return found


def _problem(details: Any, path: Path) -> Problem:
    kind, value = details["type"], details["input"]
    if kind == "missing":
        right = "a list" if path[-1] in _LISTS else "a string"
        return Problem(f"lacks the key {path[-1]!r}, which must be {right}", path[:-1])
    if kind == "value_error":
        return Problem(str(details["ctx"]["error"]).strip(), path)
    if kind == "too_short":
        item = "subject and object" if path == ("samples",) else "template such as 'The capital of {} is'"
        return Problem(f"is empty; it must hold at least one {item}", path)
    given = "an object" if isinstance(value, dict) else shown(value)
    if not path:
        return Problem(f"must hold a JSON object with name, prompt_templates and samples, not {given}")
    return Problem(f"must be {_RIGHT.get(kind, 'an object')}, not {given}", path)
