"""The one exception for a user's mistake."""


class LREError(ValueError):
    """A user's mistake: the message names the bad value and what would be right.

    The command line prints the message alone and exits with status 2; in Python it is an ordinary
    `ValueError`.
    """
