"""Prompts for instruction-tuned LMs: conversations in a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MARK = "\ue000\ue001"
"""A message of private characters, which shows where a chat template puts messages."""


@dataclass(frozen=True)
class Question:
    """The text of a prompt, with and without its answer.

    The last line or message is ``text[start:end]``, and the answer begins at the character `object_start` of
    `answered`. Both starts count the white space in front that a chat template may have left out.
    """

    text: str
    start: int
    end: int
    answered: str
    object_start: int


class Conversation:
    """Examples as questions of the user and answers of the assistant, followed by one more question.

    Attributes:
        head: The conversation up to the next message of the user.
        controls: Control tokens by id.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, turns: Sequence[tuple[str, str]], system: str | None = None
    ) -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise LREError(f"the tokenizer {tokenizer.name_or_path!r} has no chat template: leave chat out")
        self.controls = {id_: str(token) for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.messages = [] if system is None else [{"role": "system", "content": system}]
        for question, answer in turns:
            self.messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        self._check_controls(*(message["content"] for message in self.messages))
        marked = self._render([*self.messages, {"role": "user", "content": MARK}], ask=True)
        if MARK not in marked:
            raise LREError("the chat template does not show the user's messages: leave chat out")
        self.head = marked[: marked.rindex(MARK)]
        place = 0  # the examples are shown one after another, and the system message anywhere
        for message in self.messages:
            shown = message["content"].strip()
            start = self.head.find(shown, place)
            if start < 0:
                raise _changed(message["content"])
            if message["role"] != "system":
                place = start + len(shown)

    def ask(self, message: str, answer: str) -> Question:
        """Ask at the end of the conversation; a chat template that changes the message is an error."""
        self._check_controls(message, answer)
        messages = [*self.messages, {"role": "user", "content": message}]
        text = self._render(messages, ask=True)
        shown = next((form for form in (message, message.strip()) if text.startswith(self.head + form)), None)
        if not shown:
            raise _changed(message)
        start, stripped = len(self.head), len(message) - len(message.lstrip()) if shown != message else 0
        # The answer is where the chat template shows answers, unless it shows something else before.
        name = answer.strip()
        whole = self._render([*messages, {"role": "assistant", "content": answer}], ask=False)
        rest = whole.removeprefix(text)
        place = rest.find(name)
        answered, object_start = text + answer, len(text)
        if rest != whole and place >= 0 and not rest[:place].strip():
            answered = text + rest[: place + len(name)]
            object_start += place - (len(answer) - len(answer.lstrip()))
        return Question(text, start - stripped, start + len(shown), answered, object_start)

    def _render(self, messages: list[dict[str, str]], ask: bool) -> str:
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ask))
        except Exception as error:  # a template may raise anything
            raise LREError(f"the chat template does not accept such a conversation: {first_line(error)}") from error

    def _check_controls(self, *contents: str) -> None:
        for token in self.controls.values():
            if any(token in content for content in contents):
                raise LREError(f"a message has {token!r} in it, which is a control token: leave it out")


def _changed(content: str) -> LREError:
    return LREError(f"the chat template changes the message {content!r}, or leaves it out: leave chat out")
