"""The text of tokens, which may be anything: white space, bytes, any script, or the syntax of HTML or TeX."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SIGNS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}
INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp", "Zs"})
"""Unicode categories: control, format (such as direction), surrogate and private-use characters, and separators."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and symbols without ink."""

_PRINTED_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(256) if byte not in _PRINTED_BYTES]
_BYTES = {chr(byte): byte for byte in _PRINTED_BYTES} | {chr(256 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""The byte that each character of a byte-level vocabulary stands for."""


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return the text that one token stands for, with its spaces.

    Bytes that are not a character by themselves, which byte-level tokens may be, are written as ``<0xE4><0xB8>``, and
    an id that the tokenizer does not have, as in padded vocabularies, as ``<50300>``.
    """
    piece: Any = tokenizer.convert_ids_to_tokens(token)
    if piece is None:
        return f"<{token}>"
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if "\ufffd" in text:
        if not all(character in _BYTES for character in piece):
            return str(piece)
        data = [_BYTES[character] for character in piece]
        return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in data)
    spaces = len(piece) - len(piece.lstrip("\u2581"))  # SentencePiece drops one at the beginning of a text
    return " " * spaces + text.lstrip(" ") if spaces else text


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
