"""Checks of plain data read from files: strings, numbers, lists and objects, of bounded size."""

from __future__ import annotations

import re
import reprlib
from typing import Any

from lre_lightning.errors import LREError

LONGEST_NAME, LONGEST_TEXT = 1000, 100_000
LARGEST = 2**53
MOST_NODES, DEEPEST = 100_000, 8

CONTROLS = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
"""Control characters other than white space, which a terminal may obey, and halves of surrogate pairs."""


def text(value: object, what: str, longest: int = LONGEST_TEXT) -> str:
    """A string that can be shown and written: without control characters other than white space.

    Args:
        value: What a file has.
        what: Its name, for the error.
        longest: How many characters it may have.

    Raises:
        LREError: If it is something else.
    """
    if not isinstance(value, str):
        raise LREError(f"{what} must be a string, not {shown(value)}")
    if len(value) > longest:
        raise LREError(f"{what} has {len(value)} characters, and may have {longest}: it begins with {shown(value)}")
    found = CONTROLS.search(value)
    if found:
        kind = "half a surrogate pair" if found[0] >= "\ud800" else f"the control character {found[0]!r}"
        raise LREError(f"{what} is {shown(value)}, which has {kind} in it")
    return value


def whole(value: object, what: str, least: int = 0, most: int = LARGEST) -> int:
    """A whole number in a range, `most` included; true and false are none.

    Raises:
        LREError: If it is something else.
    """
    if type(value) is not int or not least <= value <= most:
        raise LREError(f"{what} must be a whole number of {least} to {most}, not {shown(value)}")
    return value


def number(value: object, what: str, largest: float = 1e6) -> float:
    """A number between `-largest` and `largest`, and so a finite one; true and false are none.

    Raises:
        LREError: If it is something else.
    """
    if type(value) not in (int, float) or not -largest <= value <= largest:  # type: ignore[operator]
        raise LREError(f"{what} must be a number of -{largest:g} to {largest:g}, not {shown(value)}")
    return float(value)  # type: ignore[arg-type]


def truth(value: object, what: str) -> bool:
    """True or false.

    Raises:
        LREError: If it is something else.
    """
    if not isinstance(value, bool):
        raise LREError(f"{what} must be true or false, not {shown(value)}")
    return value


def listing(value: object, what: str, longest: int = MOST_NODES) -> list[Any] | tuple[Any, ...]:
    """A list or a tuple.

    Raises:
        LREError: If it is something else, or has more than `longest` entries.
    """
    if not isinstance(value, list | tuple):
        raise LREError(f"{what} must be a list, not {shown(value)}")
    if len(value) > longest:
        raise LREError(f"{what} has {len(value)} entries, and may have {longest}")
    return value


def mapping(value: object, what: str) -> dict[str, Any]:
    """A dictionary whose keys are strings.

    Raises:
        LREError: If it is something else.
    """
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in dict.keys(value)):
        raise LREError(f"{what} must be an object with names for keys, not {shown(value)}")
    return _plain(value)


def _plain(value: dict[Any, Any]) -> dict[Any, Any]:
    """A dictionary with its own methods: a pickle may give an `OrderedDict` attributes of their names."""
    return value if type(value) is dict else dict(dict.items(value))


def check_plain(value: object, what: str) -> None:
    """Check that a value consists of strings, numbers, true, false, None, lists and objects, not too many of them.

    Raises:
        LREError: If it does not.
    """
    level, nodes = [value], 0
    for _ in range(DEEPEST):
        below: list[object] = []
        for entry in level:
            if type(entry) is dict:
                below += [*entry.keys(), *entry.values()]
            elif isinstance(entry, list | tuple):
                below += entry
            elif isinstance(entry, str):
                text(entry, f"a text in {what}", LONGEST_TEXT)
            elif type(entry) is int:
                whole(entry, f"a number in {what}", -LARGEST)
            elif type(entry) is float:
                number(entry, f"a number in {what}", 1e30)
            elif entry is not None and not isinstance(entry, bool):
                raise LREError(f"{what} must be plain data, and it has {shown(entry)} in it")
            if nodes + len(below) > MOST_NODES:
                raise LREError(f"{what} has more than {MOST_NODES} entries")
        if not below:
            return
        level, nodes = below, nodes + len(below)
    raise LREError(f"{what} is nested more than {DEEPEST} deep")


def shown(value: object) -> str:
    """A value as an error shows it: at most about a line of it."""
    if type(value) is int and abs(value) > LARGEST:
        return f"a number of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return _BRIEF.repr(value)
    return f"a {type(value).__name__}"


_BRIEF = reprlib.Repr()
_BRIEF.maxstring = 100


def printable(text: str) -> str:
    """A text that stays on its line and that a terminal prints: what does not print is written as in Python source."""
    return text if text.isprintable() else repr(text)[1:-1]
