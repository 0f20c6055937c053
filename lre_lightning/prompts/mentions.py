"""Mentions of subjects in texts: where a text names a subject as a whole word, and the tokens that hold it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lre_lightning.errors import LREError
from lre_lightning.prompts.tokenization import Span

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Myanmar, Khmer
    "\u2e80-\u2fdf\u3005-\u309f\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Han and hiragana
    "\uac00-\ud7af]"  # Hangul, whose particles follow a noun without a space
)
"""Characters of scripts in which a word may end where another begins, with nothing between them."""


@dataclass(frozen=True)
class Mention:
    """A mention of a subject in a text, without white space around it.

    Attributes:
        text: The text.
        span: The mention's first character and one past its last.

    >>> [mention.span for mention in mentions("Peru, Peruvians and Peru's rivers", ["Peru"])]
    [(0, 4), (20, 24)]
    """

    text: str
    span: Span

    @property
    def subject(self) -> str:
        """The subject, as it stands in the text."""
        return self.text[slice(*self.span)]

    def tokens(self, spans: Sequence[Span]) -> Span:
        """Return the first token that holds a character of the mention, and one past the last.

        Args:
            spans: The characters of the text that each of its tokens stands for, as `tokenize` returns them.

        Raises:
            LREError: If no token holds one.
        """
        first, end = self.span
        inside = [token for token, (start, stop) in enumerate(spans) if start < end and stop > first]
        if not inside:
            raise LREError(f"the tokenizer leaves nothing of the subject {self.subject!r} in {self.text!r}")
        return inside[0], inside[-1] + 1


def mentions(text: str, subjects: Iterable[str], start: int = 0) -> list[Mention]:
    """Return the mentions of some subjects in a text from a character on, in the order of the text.

    A subject is mentioned by whole words: "Peru" in "Peru's", but not in "Peruvian". Of mentions that overlap the
    longest counts: "Guinea-Bissau" where both that and "Guinea" are subjects.
    """
    there = {name for subject in subjects if (name := subject.strip()) and name in text}  # few of thousands
    found = [span for name in there for span in _places(text, name, start)]
    kept: list[Span] = []
    for first, end in sorted(found, key=lambda span: (span[0] - span[1], span)):
        if all(end <= other or first >= last for other, last in kept):
            kept.append((first, end))
    return [Mention(text, span) for span in sorted(kept)]


def _places(text: str, subject: str, start: int) -> Iterator[Span]:
    """Yield where a text has a subject as whole words."""
    first = text.find(subject, start)
    while first >= 0:
        end = first + len(subject)
        whole = not (_joined(text, first) or _joined(text, end))
        if whole:
            yield first, end
        first = text.find(subject, end if whole else first + 1)


def _joined(text: str, place: int) -> bool:
    """Return whether the characters before and after a place are of one word."""
    before, after = text[place - 1 : place] if place else "", text[place : place + 1]
    if not (before and after):
        return False
    if unicodedata.category(after).startswith("M"):  # a mark belongs to the letter before it
        return True
    return all(_in_word(one) and not UNSPACED.match(one) for one in (before, after))


def _in_word(character: str) -> bool:
    return character == "_" or character.isalnum() or unicodedata.category(character).startswith("M")
