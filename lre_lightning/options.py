"""Options as nested frozen dataclasses: what a field declares about itself, and what is read off the declarations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_type_hints

from lre_lightning.errors import LREError

T = TypeVar("T")


def option(default: Any = None, *, harmless: bool = False, explicit: bool = False, recorded: bool = False) -> Any:
    """Declare a field of an options dataclass.

    Args:
        default: The field's default; a callable such as `dict` makes a new one each time.
        harmless: Neither the trials nor what is measured depends on it: a resumed fit may have another value.
        explicit: It lets code run or says where to write: a checkpoint's value is never used, only one that is given.
        recorded: It is part of how a trial's prompts are made: `TrialRecord.prompts` keeps it.
    """
    metadata = {"harmless": harmless, "explicit": explicit, "recorded": recorded}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type[T], given: T | Mapping[str, Any] | None, what: str) -> T:
    """Return options as their dataclass, also where a checkpoint or a user gives them as a mapping.

    Args:
        kind: The dataclass.
        given: A value of it, a mapping of its field names, or None for the defaults.
        what: The name of the argument, for the error.

    Raises:
        LREError: If it is something else, or a key is no field.
    """
    if given is None:
        return kind()
    if isinstance(given, kind):
        return given
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    if not isinstance(given, Mapping):
        raise LREError(f"{what} must be {kind.__name__}(...) or a mapping of {', '.join(names)}, not {given!r}")
    for name in given:
        if name not in names:
            raise LREError(f"{what} has no option {name!r}: it has {', '.join(names)}")
    return kind(**given)


def plain(options: Any) -> dict[str, Any]:
    """Return options as a dictionary of strings, numbers, lists and dictionaries, as checkpoints keep them."""
    return dataclasses.asdict(options)


def declared(kind: type, name: str) -> Iterator[str]:
    """Yield the dotted names of the fields that declare `name`: ``"harmless"``, ``"explicit"`` or ``"recorded"``.

    Args:
        kind: A dataclass, or a class whose constructor takes dataclasses.
        name: What the fields declare.
    """
    if dataclasses.is_dataclass(kind):
        yield from (field.name for field in dataclasses.fields(kind) if field.metadata.get(name))
        return
    for argument, hint in get_type_hints(vars(kind)["__init__"]).items():
        if dataclasses.is_dataclass(hint):
            yield from (f"{argument}.{inner}" for inner in declared(hint, name))  # type: ignore[arg-type]
