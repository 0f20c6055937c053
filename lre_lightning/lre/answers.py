"""What an LM or an LRE answers to a prompt, and an edit of the LM's answer, as they are shown to a reader."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.html import html_table
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text


class Answers(tuple[tuple[str, float], ...]):
    """The most likely next tokens with their probabilities, most likely first.

    Args:
        pairs: Texts of tokens and probabilities.

    >>> Answers([("Ottawa", 0.931), ("Toronto", 0.02)])
    Ottawa 0.93, Toronto 0.02
    """

    def __new__(cls, pairs: Iterable[tuple[str, float]]) -> Self:
        """Keep the pairs in their order."""
        return super().__new__(cls, pairs)

    @classmethod
    def of(cls, lm: LanguageModel, hidden: Tensor, top_k: int) -> Self:
        """Decode one hidden state, `(hidden,)`: the output of the last block, or of an LRE.

        Raises:
            LREError: If `top_k` is out of range.
        """
        if not 1 <= top_k <= lm.vocab_size:
            raise LREError(f"top_k {top_k} is out of range: it must be 1 to {lm.vocab_size}, the LM's vocabulary size")
        best = lm.decode(hidden).float().softmax(-1).topk(top_k)
        texts = [token_text(lm.tokenizer, token).strip() for token in best.indices.tolist()]
        return cls(zip(texts, best.values.tolist(), strict=True))

    def __repr__(self) -> str:
        return ", ".join(f"{text} {probability:.2f}" for text, probability in self)

    def _repr_html_(self) -> str:
        return html_table(self, ["answer", "probability"])


@dataclass(frozen=True)
class PromptEdit:
    """An edit of s in a prompt, and the LM's answers without and with it.

    Attributes:
        prompt: The text of the prompt.
        subject: The subject whose hidden state was edited.
        target: The subject that the edit imitates.
        before: The LM's answers to the prompt.
        after: The LM's answers with s + W^+ (o' - o) in place of s.
    """

    prompt: str
    subject: str
    target: str
    before: Answers
    after: Answers

    def __repr__(self) -> str:
        return f"{self.prompt}\n  {self.subject}: {self.before}\n  {self.subject} -> {self.target}: {self.after}"

    def _repr_html_(self) -> str:
        rows = [[*before, *after] for before, after in zip(self.before, self.after, strict=True)]
        edited = f"{self.subject} \u2192 {self.target}"
        return html_table(rows, [self.subject, "probability", edited, "probability"], self.prompt)
