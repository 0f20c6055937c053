"""Prompts for instruction-tuned LMs: conversations in a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError, first_line
from lre_lightning.prompts.tokenization import Encoding, encode_after

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\ue000\ue001"
"""A message of private characters, which shows where a chat template puts messages."""


@dataclass(frozen=True)
class Question:
    """A question at the end of a conversation.

    Attributes:
        text: The conversation up to where the assistant begins to answer.
        start: The character of `text` at which the user's last message begins, with white space of its own that the
            chat template may have left out.
        end: One past the message's last character.
        answered: The conversation up to the end of the answer.
        object_start: The character of `answered` at which the answer begins.
    """

    text: str
    start: int
    end: int
    answered: str
    object_start: int


class ChatPrompts:
    """Conversations that begin alike: examples as questions and answers, then one more question.

    Args:
        tokenizer: A fast tokenizer with a chat template.
        turns: The examples: what the user says and what the assistant answers.
        system: What the conversation begins with.

    Raises:
        LREError: The tokenizer has no chat template, or it takes no such messages.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, turns: Sequence[tuple[str, str]], system: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise LREError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: leave chat out")
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        for said, answer in turns:
            self.messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        added = tokenizer.added_tokens_decoder
        self._controls = {id_: str(token) for id_, token in added.items() if token.special}
        for message in self.messages:
            self._check(message["content"])
        marked = self._render([*self.messages, {"role": "user", "content": MARK}], ask=True)
        if MARK not in marked:
            raise LREError("the chat template does not show what the user says: leave chat out")
        self._before = marked[: marked.rindex(MARK)]
        self._check_shown()

    def ask(self, said: str, answer: str) -> Question:
        """Ask at the end of the conversation.

        Args:
            said: What the user says.
            answer: What would be the right answer.

        Raises:
            LREError: The chat template changes what the user says, or there is a control token in it.
        """
        for content in (said, answer):
            self._check(content)
        messages = [*self.messages, {"role": "user", "content": said}]
        text = self._render(messages, ask=True)
        shown = next((form for form in (said, said.strip()) if text.startswith(self._before + form)), None)
        if not shown:
            raise _changed(said)
        begins = len(self._before)
        left_out = len(said) - len(said.lstrip()) if shown != said else 0
        answered, object_start = self._answered(messages, text, answer)
        return Question(text, begins - left_out, begins + len(shown), answered, object_start)

    def encode(self, texts: Sequence[str]) -> list[Encoding]:
        """Tokenize conversations, with nothing added: token ids and the characters that each stands for.

        Args:
            texts: Beginnings of this conversation, which go on in a `Question`.
        """
        tails = [text.removeprefix(self._before) for text in texts]
        return encode_after(self.tokenizer, self._before, tails, controls=True)

    def begins(self, text: str, encoding: Encoding) -> bool:
        """Say whether a conversation begins with a control token, so that it needs no other one to start with."""
        first = self._controls.get(encoding[0][0]) if encoding[0] else None
        return first is not None and text.lstrip().startswith(first)  # an unknown word's token may be one too

    def _answered(self, messages: list[dict[str, str]], text: str, answer: str) -> tuple[str, int]:
        """The conversation up to the end of the answer, and where that begins: as the chat template shows answers."""
        whole = self._render([*messages, {"role": "assistant", "content": answer}], ask=False)
        rest = whole.removeprefix(text)
        name = answer.strip()
        place = rest.find(name)
        if rest == whole or place < 0 or rest[:place].strip():
            return text + answer, len(text)
        return text + rest[: place + len(name)], len(text) + place - (len(answer) - len(answer.lstrip()))

    def _render(self, messages: list[dict[str, str]], ask: bool) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))
        except Exception as error:  # a template raises what it likes
            raise LREError(f"the chat template takes no such conversation: {first_line(error)}") from error

    def _check_shown(self) -> None:
        """Check that the examples are shown one after another, and what the system says somewhere."""
        place = 0
        for message in self.messages:
            shown = message["content"].strip()
            found = self._before.find(shown, place)
            if found < 0:
                raise _changed(message["content"])
            if message["role"] != "system":
                place = found + len(shown)

    def _check(self, content: str) -> None:
        for token in self._controls.values():
            if token in content:
                raise LREError(f"a message has {token!r} in it, which is a control token: leave it out")


def _changed(content: str) -> LREError:
    return LREError(f"the chat template changes the message {content!r}, or leaves it out: leave chat out")
