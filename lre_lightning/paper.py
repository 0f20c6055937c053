"""The method on one page, in the order of the paper's Section 3. What computes any of it calls these functions.

The paper is Hernandez et al., "Linearity of Relation Decoding in Transformer Language Models" (ICLR 2024).

F(s, c) = o is what the LM makes of a subject in a context c: s is the subject's hidden state at some layer, at its last
token, and o the output of the last block at the last token of the prompt. D decodes o into logits. All vectors have the
LM's width, `hidden`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# 3.1 Finding LREs


def bias(output: Tensor, product: Tensor) -> Tensor:
    """Return b = o - J s at one example, the rest of F's first-order approximation around s (Equation 2).

    `output` is o and `product` J s, with J = dF/ds at s, both `(..., hidden)`.
    """
    return output - product


def mean(total: Tensor, count: int) -> Tensor:
    """Return W = E[J], or b = E[o - J s], from their sums over the examples of a relation (Equation 3)."""
    return total / count


def lre(product: Tensor, bias: Tensor, beta: float | Tensor) -> Tensor:
    """Return LRE(s) = beta W s + b (Equation 4).

    beta makes up for what the layer norms do: they keep the direction in which the output changes, but not the size.

    `product` is W s, `(..., hidden)`, and `bias` b, `(hidden,)`; `beta` broadcasts with them.
    """
    return beta * product + bias


# 3.2 Evaluating LREs


def succeeds(answer: Tensor, wanted: Tensor) -> Tensor:
    """Return where an answer is the wanted token, bool; both are token ids that broadcast. Its mean is a score.

    Faithfulness (Equation 5): the answer is argmax D(LRE(s)), and wanted is the LM's own, argmax D(F(s, c)).
    Causality (Equation 8): the answer is argmax D(F(s, c | s := s + edit)), and wanted is the first token of o'.
    """
    return answer == wanted


def change(output: Tensor, target: Tensor) -> Tensor:
    """Return o' - o, which an edit of s is to cause; o' is the output for another subject (Equation 6)."""
    return target - output


def edits(change: Tensor, left: Tensor, values: Tensor, right: Tensor, ranks: Sequence[int]) -> Tensor:
    """Return the edits of s, W_r^+ (o' - o), so that LRE(s + edit) = o' at beta = 1 (Equation 7).

    W_r^+ is the pseudo-inverse of rank r, the sum over the r largest singular triplets of W of v u^T / sigma: inverses
    of small singular values are mostly noise (Appendix on low rank). Those that are zero to the dtype's precision have
    the inverse zero, as in `torch.linalg.pinv`.

    Args:
        change: o' - o, `(..., hidden)`.
        left: U, `(hidden, triplets)`.
        values: sigma, `(triplets,)`, largest first.
        right: V, `(hidden, triplets)`.
        ranks: Ranks r, each at most the number of triplets.

    Returns:
        An edit for each rank, `(..., ranks, hidden)`.
    """
    coefficients = change @ (left * inverted(values, len(left)))
    return torch.stack([coefficients[..., :rank] @ right[:, :rank].T for rank in ranks], dim=-2)


def inverted(values: Tensor, width: int) -> Tensor:
    """Return the inverses of singular values of W, `(triplets,)`, largest first; zero of those that count as zero."""
    zero = torch.finfo(values.dtype).eps * width * values[:1]
    return torch.where(values > zero, 1 / values, torch.zeros_like(values))


def low_rank(subject: Tensor, left: Tensor, values: Tensor, right: Tensor, ranks: Sequence[int]) -> Tensor:
    """Return W_r s, with W cut down to its r largest singular triplets, for each rank `(..., ranks, hidden)`."""
    coefficients = subject @ (right * values)
    return torch.stack([coefficients[..., :rank] @ left[:, :rank].T for rank in ranks], dim=-2)
