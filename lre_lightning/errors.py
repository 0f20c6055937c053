"""The one exception for a user's mistake, a check that many make, and what to say of other libraries' exceptions."""


class LREError(ValueError):
    """A user's mistake: the message names the bad value and what would be right.

    The command line prints the message alone and exits with status 2; in Python it is an ordinary
    `ValueError`.
    """


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type's name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def check_number(name: str, value: int, least: int) -> None:
    """Check a whole number.

    Raises:
        LREError: It is not an int, or below the least value allowed.
    """
    if type(value) is not int or value < least:
        raise LREError(f"{name} must be a whole number of at least {least}, got {value!r}")
