"""The answers of an LM or an LRE to a prompt, as a reader wants to see them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.html import html_table
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text


class Answers(tuple[tuple[str, float], ...]):
    """The most likely next tokens with their probabilities, most likely first: pairs of a text and a probability.

    >>> Answers([("Ottawa", 0.931), ("Toronto", 0.02)])
    Ottawa 0.93, Toronto 0.02
    """

    def __new__(cls, pairs: Iterable[tuple[str, float]] = ()) -> Self:
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
