"""The one exception for a user's mistake, and what to say of other libraries' exceptions in it."""


class LREError(ValueError):
    """A user's mistake: the message names the bad value and what would be right.

    The command line prints the message alone and exits with status 2; in Python it is an ordinary
    `ValueError`.
    """


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, or its type's name where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
