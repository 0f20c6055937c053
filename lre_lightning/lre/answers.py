"""The answers of an LM or an LRE to a prompt, as a reader wants to see them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.html import html_table
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.precision import check_logits
from lre_lightning.models.tokenizer import token_text

ROWS = 64
"""Number of distributions at a time: memory of that size is used again, where more is asked of the system each time."""


class Answers(tuple[tuple[str, float], ...]):
    """The most likely next tokens with their probabilities, most likely first: pairs of a text and a probability.

    >>> Answers([("Ottawa", 0.931), ("Toronto", 0.02)])
    Ottawa 0.93, Toronto 0.02
    """

    @classmethod
    def of(cls, lm: LanguageModel, hidden: Tensor, top_k: int) -> Self:
        """Decode one hidden state, `(hidden,)`: the output of the last block, or of an LRE."""
        check_top_k(lm, top_k)
        best, probabilities = most_likely(lm, hidden, top_k)
        texts = [token_text(lm.tokenizer, token).strip() for token in best.tolist()]
        return cls(zip(texts, probabilities.tolist(), strict=True))

    def __repr__(self) -> str:
        return ", ".join(f"{text} {probability:.2f}" for text, probability in self)

    def _repr_html_(self) -> str:
        return html_table(self, ["answer", "probability"])


def check_top_k(lm: LanguageModel, top_k: int) -> None:
    """Check that a number of most likely tokens is in range."""
    if not 1 <= top_k <= lm.vocab_size:
        raise LREError(f"top_k {top_k} is out of range: it must be 1 to {lm.vocab_size}, the LM's vocabulary size")


def distributions(lm: LanguageModel, hidden: Tensor) -> Iterator[Tensor]:
    """Yield softmax(D(hidden)) for a few rows at a time: `(rows, vocab)`, float32, or the LM's dtype if wider.

    Args:
        lm: The LM.
        hidden: Outputs of the last decoder block, or of an LRE, `(..., hidden)`; its leading axes are flattened.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    for states in flat.split(lm.logit_rows(len(flat))):
        logits = lm.decode(states)
        check_logits(logits, lm.name)
        for rows in logits.split(ROWS):
            yield rows.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))


def most_likely(lm: LanguageModel, hidden: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the most likely tokens of D(hidden), most likely first; see `distributions`.

    Returns:
        Token ids, int64, and their probabilities, float32 or wider, `(..., top_k)` each, on the CPU.
    """
    chunks = [shares.topk(top_k) for shares in distributions(lm, hidden)]
    shape = (*hidden.shape[:-1], top_k)
    probabilities, best = (
        torch.cat([part.cpu() for part in parts]).reshape(shape) for parts in zip(*chunks, strict=True)
    )
    return best, probabilities
