"""The exception for a user's mistake, two checks that many make, and the text of other libraries' exceptions."""

from collections.abc import Sequence


class LREError(ValueError):
    """A mistake of the user: the message names the bad value and says what would be valid.

    The command line prints the message alone and exits with status 2.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if there is no message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_number(name: str, value: int, least: int) -> None:
    """Check that a value is a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise LREError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Check one of several names."""
    if value not in known:
        raise LREError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")
