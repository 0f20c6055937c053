"""Options as nested frozen dataclasses: what a field declares about itself, and what is read off the declarations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from lre_lightning.errors import LREError

T = TypeVar("T")


def option(
    default: Any = None,
    *,
    harmless: bool = False,
    explicit: bool = False,
    recorded: bool = False,
    linked: str | None = None,
) -> Any:
    """Declare a field of an options dataclass.

    Args:
        default: The field's default; a callable such as `dict` makes a new one each time.
        harmless: Neither the trials nor what is measured depends on it: a resumed fit may have another value.
        explicit: It lets code run or says where to write: a checkpoint's value is never used, only one that is given.
        recorded: It is part of how a trial's prompts are made: `TrialRecord.prompts` keeps it.
        linked: The name of the option from which this one takes its value on the command line.
    """
    metadata = {"harmless": harmless, "explicit": explicit, "recorded": recorded, "linked": linked}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def options_of(kind: type[T], given: T | Mapping[str, Any] | None, what: str) -> T:
    """Return options as their dataclass, also where a checkpoint or a user gives them as a mapping.

    Something else, or a key that is no field, is an `LREError` that calls them `what`; None stands for the defaults.
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


def declared(kind: type, what: str) -> dict[str, Any]:
    """Return what the options of a class, defaults of its constructor, declare as `what`, by their dotted names."""
    return {
        f"{argument}.{field.name}": field.metadata[what]
        for argument, default in _groups(kind).items()
        for field in dataclasses.fields(default)
        if field.metadata.get(what)
    }


def flatten(kind: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class by their dotted names, those of its nested options one by one."""
    flat: dict[str, Any] = {}
    groups = _groups(kind)
    for name, value in arguments.items():
        if name in groups and value is not None:
            if not isinstance(value, Mapping) and not dataclasses.is_dataclass(value):
                raise LREError(f"{name} must be a mapping of options, not {value!r}")
            nested = value if isinstance(value, Mapping) else dataclasses.asdict(value)  # type: ignore[arg-type]
            flat |= {f"{name}.{inner}": one for inner, one in nested.items()}
        else:
            flat[name] = value
    return flat


def vary(arguments: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a class with some changed, which are given by their dotted names."""
    varied = dict(arguments)
    for name, value in changes.items():
        argument, _, inner = name.partition(".")
        group = varied.get(argument)
        if not inner:
            varied[argument] = value
        elif isinstance(group, Mapping):
            varied[argument] = {**group, inner: value}
        else:
            varied[argument] = dataclasses.replace(group, **{inner: value})  # type: ignore[type-var]
    return varied


def _groups(kind: type) -> dict[str, Any]:
    """Return the arguments of a class that are dataclasses of options, with their defaults."""
    parameters = inspect.signature(kind).parameters.values()
    return {p.name: p.default for p in parameters if dataclasses.is_dataclass(p.default)}
