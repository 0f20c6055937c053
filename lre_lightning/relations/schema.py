"""The schema of relations, and checks that report everything wrong with data that do not follow it.

The schema is that of the relations published by Hernandez et al. (ICLR 2024, section 4)::

    {"name": "country capital city",
     "prompt_templates": ["The capital city of {} is"],
     "prompt_templates_zs": ["What is the capital of {}? It is the city of"],
     "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": false},
     "samples": [{"subject": "Canada", "object": "Ottawa"}]}

`prompt_templates_zs` and `properties` are optional, and other keys are ignored. Templates may have the marks of other
data sets, such as ``[X]`` and ``[Y]``: see `lre_lightning.relations.relation.read_template`.
"""

from __future__ import annotations

from types import TracebackType
from typing import Annotated

from annotated_types import Len
from typing_extensions import NotRequired, TypedDict

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import LONGEST, SLOT, Relation, Sample, read_template
from lre_lightning.storage.plain import LONGEST_NAME, printable, shown, text
from lre_lightning.storage.typed import Checked, Invalid, Name, Truth, typed

MOST_SAMPLES = 10_000_000
"""Largest number of samples of a relation or a table."""
MOST_SHOWN = 20
"""Largest number of problems that one message lists."""


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
    checked = text(value, what, longest)
    if not checked.strip():
        raise LREError(f"{what} is {shown(value)}; it must not be empty")
    return checked


Filled = Annotated[str, Checked(filled)]
Template = Annotated[str, Checked(read_template)]


class _Sample(TypedDict):
    subject: Filled
    object: Filled


class _Properties(TypedDict, total=False):
    relation_type: Name
    domain_name: Name
    range_name: Name
    symmetric: Truth


class _Relation(TypedDict):
    name: Annotated[str, Checked(filled, longest=LONGEST_NAME)]
    properties: NotRequired[_Properties]
    prompt_templates: Annotated[list[Template], Len(1, MOST_SAMPLES)]
    prompt_templates_zs: NotRequired[list[Template]]
    samples: Annotated[list[_Sample], Len(1, MOST_SAMPLES)]


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
    without = not templates_required and not data.get("prompt_templates", ())
    try:
        fields = typed(_Relation, data | {"prompt_templates": [SLOT]} if without else data, at)
    except Invalid as error:
        for problem in error.problems:
            with problems:
                raise LREError(problem) from error
        return None
    properties = fields.get("properties", {})
    return Relation(
        fields["name"],
        properties.get("relation_type", category),
        () if without else tuple(fields["prompt_templates"]),
        tuple(fields.get("prompt_templates_zs", ())),
        properties.get("domain_name", ""),
        properties.get("range_name", ""),
        properties.get("symmetric", False),
        tuple(Sample(**sample) for sample in fields["samples"]),
    )
