"""Recall at k: how often the wanted token is among the k most likely, as a function and as a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError, check_number
from lre_lightning.metrics.functional import Average, _success_rate, broadcastable, check_integers, check_range
from lre_lightning.metrics.success import SuccessRate

KS = (1, 2, 3)
"""The k of table "attribute-lens"."""


def token_ranks(predictions: Tensor, targets: Tensor) -> Tensor:
    """Count for each sample the tokens that come before the wanted one when sorted by falling likelihood.

    Among equally likely tokens the one of the lower id comes first, so that `torch.argmax` returns the token of rank 0.
    Where the wanted token's score is NaN, every token comes before it; a NaN elsewhere comes before any number.

    Args:
        predictions: Scores of all tokens, logits or probabilities, at each point of the grid;
            `(batch, *grid, vocab)`, floating.
        targets: The wanted token ids; `(batch,)`, integer.

    Returns:
        Token ranks from 0; `(batch, *grid)`, int64.

    Raises:
        LREError: If shapes or dtypes do not fit, or a token is not in the vocabulary.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import token_ranks
        >>> token_ranks(tensor([[0.1, 0.7, 0.2], [0.4, 0.2, 0.4]]), targets=tensor([2, 2]))
        tensor([1, 1])
    """
    if not predictions.is_floating_point():
        raise LREError(f"predictions must be scores of a floating dtype, got {predictions.dtype}")
    check_integers(targets=targets)
    if predictions.ndim < 2 or targets.shape != predictions.shape[:1]:
        raise LREError(
            "predictions must have shape (batch, *grid, vocab) and targets (batch,), "
            f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
        )
    vocabulary = predictions.shape[-1]
    check_range("targets", targets, vocabulary)
    index = broadcastable(targets.long(), predictions.ndim - 1).expand(*predictions.shape[:-1], 1)
    wanted = predictions.gather(-1, index)
    before = ~(predictions <= wanted)
    before |= (predictions == wanted) & (torch.arange(vocabulary, device=predictions.device) < index)
    return before.sum(-1)


def recall_at_k(
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor | None = None,
    average: Average = "macro",
    num_relations: int | None = None,
    mask: Tensor | None = None,
    ks: Sequence[int] = KS,
) -> Tensor:
    """Compute the fraction of samples whose wanted token is among the k most likely, for several k.

    Columns "R@1", "R@2" and "R@3" of table "attribute-lens" of the paper (section "Application: The Attribute Lens").
    At k = 1 it is the fraction of samples whose argmax is right.

    Arguments, result and errors are those of `faithfulness`, but `predictions` are scores of all tokens, logits or
    probabilities, `(batch, *grid, vocab)`, floating, and `targets` the wanted token ids. Ties are settled as in
    `token_ranks`. `ks` are values of k, from 1 to the size of the vocabulary, and the last dimension of the result.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import recall_at_k
        >>> logits = tensor([[5.0, 3.0, 1.0], [1.0, 3.0, 2.0]])
        >>> recall_at_k(logits, targets=tensor([0, 0]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    hits = _hits(predictions, targets, _checked(ks))
    return _success_rate(hits, torch.ones_like(targets), relations, average, num_relations, mask)


class RecallAtK(SuccessRate):
    """Fraction of samples whose wanted token is among the k most likely, for several k.

    Columns "R@1", "R@2" and "R@3" of table "attribute-lens" of Hernandez et al. (ICLR 2024), section "Application: The
    Attribute Lens". `update(predictions, targets, relations, mask=None)` takes the scores of the whole vocabulary; if
    they do not fit into memory, pass a few samples at a time. Ties are settled as in `token_ranks`. Counts add up until
    `reset`.

    Arguments and errors are those of `Faithfulness`; `ks` are values of k, each at least 1, the last dimension of the
    result and of `correct`.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import RecallAtK
        >>> metric = RecallAtK(num_relations=2, average="micro", ks=(1, 2))
        >>> logits = tensor([[5.0, 3.0, 1.0], [1.0, 3.0, 2.0]])
        >>> metric.update(logits, targets=tensor([0, 2]), relations=tensor([0, 1]))
        >>> metric.compute()
        tensor([0.5000, 1.0000])
    """

    def __init__(
        self,
        num_relations: int,
        grid_shape: Sequence[int] = (),
        average: Average = "macro",
        ks: Sequence[int] = KS,
        **kwargs: Any,
    ) -> None:
        self.ks = _checked(ks)
        super().__init__(num_relations, (*grid_shape, len(self.ks)), average, **kwargs)

    @property
    def _successes(self) -> str:  # type: ignore[override]
        """Name of the state; the compute groups of a `MetricCollection` must not merge metrics with different k."""
        return "recalled_at_" + "_".join(map(str, self.ks))

    def update(self, predictions: Tensor, targets: Tensor, relations: Tensor, mask: Tensor | None = None) -> None:
        """Count one batch, as `Faithfulness.update` but of scores, `(batch, *grid_shape, vocab)`, floating."""
        grid = self.grid_shape[:-1]
        if predictions.shape[1:-1] != grid:
            wanted = ", ".join(map(str, ("batch", *grid, "vocab")))
            raise LREError(f"predictions must have shape ({wanted}), got {tuple(predictions.shape)}")
        super().update(_hits(predictions, targets, self.ks), torch.ones_like(targets), relations, mask)


def _hits(predictions: Tensor, targets: Tensor, ks: tuple[int, ...]) -> Tensor:
    """Mark by 1 where the wanted token is among the k most likely; `(batch, *grid, ks)`, int64."""
    ranks = token_ranks(predictions, targets)
    if max(ks) > predictions.shape[-1]:
        raise LREError(f"k {max(ks)} is larger than the vocabulary, which has {predictions.shape[-1]} tokens")
    return (ranks[..., None] < torch.tensor(ks, device=ranks.device)).long()


def _checked(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks:
        raise LREError("ks is empty: give at least one k, such as 1")
    for k in ks:
        check_number("a k in ks", k, 1)
    return tuple(ks)
