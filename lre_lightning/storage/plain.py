"""Checks of plain data read from files: strings, numbers, lists and objects, all of bounded size.

Each check returns the value it is given, or raises an `LREError` that calls it `what`.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any

from lre_lightning.errors import LREError

LONGEST_NAME, LONGEST_TEXT = 1000, 100_000
LARGEST = 2**53
MOST_NODES, DEEPEST = 100_000, 8

CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Control characters other than white space, which a terminal may interpret, and unpaired surrogates."""


def text(value: object, what: str, longest: int = LONGEST_TEXT) -> str:
    """Check a string of at most `longest` characters, without control characters other than white space."""
    if not isinstance(value, str):
        raise LREError(f"{what} must be a string, not {shown(value)}")
    if len(value) > longest:
        raise LREError(
            f"{what} has {len(value)} characters, over the limit of {longest}: it begins with {shown(value)}"
        )
    match = CONTROLS.search(value)
    if match:
        kind = "an unpaired surrogate" if match[0] >= "\ud800" else f"the control character {match[0]!r}"
        raise LREError(f"{what} is {shown(value)}, which contains {kind}")
    return value


def whole(value: object, what: str, least: int = 0, most: int = LARGEST) -> int:
    """Check a whole number of `least` to `most`, both included; true and false are not numbers."""
    if type(value) is not int or not least <= value <= most:
        raise LREError(f"{what} must be a whole number of {least} to {most}, not {shown(value)}")
    return value


def number(value: object, what: str, largest: float = 1e6) -> float:
    """Check a finite number of -`largest` to `largest`; true and false are not numbers."""
    if type(value) not in (int, float) or not -largest <= value <= largest:  # type: ignore[operator]
        raise LREError(f"{what} must be a number of -{largest:g} to {largest:g}, not {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def truth(value: object, what: str) -> bool:
    """Check a truth value."""
    if not isinstance(value, bool):
        raise LREError(f"{what} must be true or false, not {shown(value)}")
    return value


def listing(value: object, what: str, longest: int = MOST_NODES) -> list[Any] | tuple[Any, ...]:
    """Check a list or a tuple of at most `longest` entries."""
    if not isinstance(value, list | tuple):
        raise LREError(f"{what} must be a list, not {shown(value)}")
    if len(value) > longest:
        raise LREError(f"{what} has {len(value)} entries, over the limit of {longest}")
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """Check a dictionary whose keys are strings."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise LREError(f"{what} must be an object with names for keys, not {shown(value)}")
    return value


def check_plain(value: object, what: str, most: int = MOST_NODES) -> None:
    """Check that a value consists of strings, numbers, true, false, None, lists and objects: at most `most` of them."""
    level, nodes = [value], 0
    for _ in range(DEEPEST):
        below: list[object] = []
        for entry in level:
            if type(entry) is dict:
                below += [*entry.keys(), *entry.values()]
            elif isinstance(entry, list | tuple):
                below += entry
            elif isinstance(entry, str):
                text(entry, f"a text in {what}")
            elif type(entry) is int:
                whole(entry, f"a number in {what}", -LARGEST)
            elif entry is not None and not isinstance(entry, bool | float):
                raise LREError(f"{what} must be plain data, and contains {shown(entry)}")
            if nodes + len(below) > most:
                raise LREError(f"{what} has more than {most} entries")
        if not below:
            return
        level, nodes = below, nodes + len(below)
    raise LREError(f"{what} is nested more than {DEEPEST} deep")


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = 100


def shown(value: object) -> str:
    """Return a value as an error message shows it, in about a line at most."""
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return _BRIEF.repr(value)
    return f"a {type(value).__name__}"


def printable(text: str) -> str:
    """Return a text for one line of a terminal: characters that do not print are escaped as in Python source."""
    return text if text.isprintable() else repr(text)[1:-1]
