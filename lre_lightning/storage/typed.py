"""Data from outside as typed models: a dataclass or a typed dictionary says what is valid, and what is not is one line.

The types of fields carry the checks of `lre_lightning.storage.plain`, and pydantic goes through the structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from lre_lightning.errors import LREError
from lre_lightning.storage.plain import LONGEST_NAME, number, shown, text, truth, whole

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter, ValidationError
    from pydantic_core import CoreSchema

T = TypeVar("T")


class Invalid(LREError):
    """Data that are not valid: the message is the first of the `problems`, one line each."""

    def __init__(self, error: ValidationError, what: str) -> None:
        self.problems = list(_problems(error, what))
        super().__init__(self.problems[0])


class Checked:
    """What a field's value must pass, as part of its type: ``Annotated[int, Checked(whole, most=9)]``.

    Args:
        check: Takes the value and what to call it, and returns what the field gets, or raises an `LREError`.
        **bounds: Its other arguments.
    """

    def __init__(self, check: Callable[..., Any], **bounds: Any) -> None:
        self.check, self.bounds = check, bounds

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return what pydantic runs for the field."""
        from pydantic_core import PydanticCustomError, core_schema

        def run(value: object) -> Any:
            try:
                return self.check(value, "", **self.bounds)
            except LREError as error:
                raise PydanticCustomError("checked", "{problem}", {"problem": str(error).strip()}) from error

        return core_schema.no_info_plain_validator_function(run)


Text = Annotated[str, Checked(text)]
Name = Annotated[str, Checked(text, longest=LONGEST_NAME)]
Count = Annotated[int, Checked(whole)]
Number = Annotated[float, Checked(number)]
Truth = Annotated[bool, Checked(truth)]


def typed(kind: type[T], value: object, what: str = "it") -> T:
    """Return plain data as a dataclass or a typed dictionary; entries that it does not have are dropped.

    Args:
        kind: The type; its fields that are no containers have checked types, such as `Name`.
        value: The data. Lists are accepted for tuples.
        what: What to call the data in errors.

    Raises:
        Invalid: If values are missing or not valid.

    >>> from typing_extensions import TypedDict
    >>> Place = TypedDict("Place", {"city": Name, "capital": Truth})
    >>> typed(Place, {"city": "Ottawa", "capital": "yes"}, "the place")
    Traceback (most recent call last):
    lre_lightning.storage.typed.Invalid: the place: capital must be true or false, not 'yes'
    """
    from pydantic import ValidationError

    try:
        instance: T = _adapter(kind).validate_python(value)  # type: ignore[arg-type]
    except ValidationError as error:
        raise Invalid(error, what) from error
    return instance


def from_json(kind: type[T], line: str) -> T:
    """Return a line of JSON as a dataclass whose fields have plain types, of which none is converted.

    Raises:
        Invalid: If values are missing or not valid.
    """
    from pydantic import ValidationError

    try:
        instance: T = _adapter(kind).validate_json(line, strict=True)  # type: ignore[arg-type]
    except ValidationError as error:
        raise Invalid(error, "it") from error
    return instance


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # takes longer to import than all else that needs no LM

    return TypeAdapter(kind)


_WANTED = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object with names for keys",
    "mapping_type": "an object with names for keys",
    "dataclass_type": "an object with names for keys",
    "model_type": "an object with names for keys",
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
}


def _problems(error: ValidationError, what: str) -> Iterator[str]:
    for detail in error.errors(include_url=False):
        *above, last = detail["loc"] or ("",)
        if detail["type"] == "missing":
            lacks = f"lacks the key {last!r}" if isinstance(last, str) else f"has {last} entries, too few"
            yield f"{_named(above, what)} {lacks}"
            continue
        says = detail["msg"]
        if detail["type"] in _WANTED:
            says = f"must be {_WANTED[detail['type']]}, not {shown(detail['input'])}"
        elif detail["type"] == "literal_error":
            says = f"must be {detail['ctx']['expected']}, not {shown(detail['input'])}"
        elif detail["type"] == "string_too_long":
            says = f"must have at most {detail['ctx']['max_length']} characters"
        elif detail["type"] == "greater_than_equal":
            says = f"must be at least {detail['ctx']['ge']}, not {shown(detail['input'])}"
        elif detail["type"] == "extra_forbidden":
            says = "is not known here"
        elif detail["type"] == "json_invalid":
            says = "is not JSON"
        elif detail["type"] == "too_short":
            says = "is empty; it must hold at least one entry"
        elif detail["type"] == "value_error":
            says = str(detail["ctx"]["error"])
        elif detail["type"] != "checked":
            says = f"is {shown(detail['input'])}: {says}"
        yield f"{_named(detail['loc'], what)} {says}"


def _named(place: Any, what: str) -> str:
    """Return the name of a place in data, such as ``samples[3].object``."""
    name = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    return what if not name else name if what == "it" else f"{what}: {name}"
