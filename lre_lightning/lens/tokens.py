"""The text of tokens, which may be anything: white space, bytes, any script, or the syntax of HTML or TeX."""

from __future__ import annotations

import unicodedata

SIGNS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"})
"""Unicode categories: control, format (such as direction), surrogate and private-use characters, and separators."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and symbols without ink."""


def visible(token: str) -> str:
    r"""Return a token with everything in it visible.

    A space becomes "␣", a newline "⏎" and a tab "⇥". Other spaces, control characters, invisible characters, and
    combining marks without a letter before them become Python escapes, and an empty token "∅".

    >>> print(visible(" a\n"), visible("b\u200b"), visible(""))
    ␣a⏎ b\u200b ∅
    """
    shown, after_letter = "", False
    for character in token:
        category = unicodedata.category(character)
        stray_mark = category.startswith("M") and not after_letter
        hidden = category in INVISIBLE or character in BLANK or stray_mark
        shown += SIGNS.get(character) or (escape(character) if hidden else character)
        after_letter = not hidden and character not in SIGNS
    return shown or "∅"


def escape(character: str) -> str:
    r"""Return a character's Python escape, such as ``\u200b`` or ``\U0001f600``."""
    code = ord(character)
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"


def sentence(text: str) -> str:
    """Return a whole text with everything in it visible, except that spaces stay spaces."""
    return visible(text).replace(SIGNS[" "], " ")
