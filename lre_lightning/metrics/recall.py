"""Recall at k: how often the wanted token is among the k most likely, as a function and as a metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.metrics.functional import Average, _beside, _check_count, _success_rate
from lre_lightning.metrics.success import _SuccessRate

KS = (1, 2, 3)
"""The k of table "attribute-lens"."""


def token_ranks(predictions: Tensor, targets: Tensor) -> Tensor:
    """Count for each sample the tokens that come before the wanted one when all are sorted, the most likely first.

    Among equally likely tokens the one of the lower id comes first, as with `torch.argmax`, so that rank 0 is its
    answer. Where the wanted token's score is NaN, every token comes before it; a NaN elsewhere comes before any number.

    Args:
        predictions: scores of all tokens, logits or probabilities, at each point of the grid;
            `(batch, *grid, vocab)`, floating.
        targets: the wanted token ids; `(batch,)`, integer.

    Returns:
        Ranks from 0 on; `(batch, *grid)`, int64.

    Raises:
        LREError: if shapes or dtypes do not fit, or a token is not in the vocabulary.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import token_ranks
        >>> token_ranks(tensor([[0.1, 0.7, 0.2], [0.4, 0.2, 0.4]]), targets=tensor([2, 2]))
        tensor([1, 1])
    """
    _check_scores(predictions, targets)
    grid, vocabulary = predictions.shape[1:-1], predictions.shape[-1]
    index = _beside(targets.long(), (*grid, 1)).expand(*predictions.shape[:-1], 1)
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
    """Share of samples whose wanted token is among the k most likely, for several k.

    Columns "R@1", "R@2" and "R@3" of table "attribute-lens" of the paper (section "Application: The Attribute Lens").
    At k = 1 it is the share of samples whose argmax is right.

    Args:
        predictions: scores of all tokens, logits or probabilities, at each point of the grid (for example layers);
            `(batch, *grid, vocab)`, floating. Ties are settled as in `token_ranks`.
        targets: the wanted token ids; `(batch,)`, integer.
        relations: each sample's relation, from 0 to `num_relations` - 1; `(batch,)`, integer. None: one relation.
        average: `"micro"` weighs each sample alike, `"macro"` each relation that has a sample, `"none"` keeps the
            relations apart.
        num_relations: how many relations there are. None: the largest index in `relations` plus one.
        mask: True where the sample counts; `(batch,)`, bool. None: all count.
        ks: the k, each from 1 to the size of the vocabulary.

    Returns:
        Shares in [0, 1]; `(*grid, ks)` or, for `"none"`, `(num_relations, *grid, ks)`, float32. NaN where no sample
        counts.

    Raises:
        LREError: if shapes or dtypes do not fit, a token or a relation is out of range, a k or `num_relations` is not a
            number of at least 1, a k is larger than the vocabulary, or `average` is unknown.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import recall_at_k
        >>> logits = tensor([[5.0, 3.0, 1.0], [1.0, 3.0, 2.0]])
        >>> recall_at_k(logits, targets=tensor([0, 0]))
        tensor([0.5000, 0.5000, 1.0000])
    """
    hits = _hits(predictions, targets, _check_ks(ks))
    return _success_rate(hits, torch.ones_like(targets), relations, average, num_relations, mask)


class RecallAtK(_SuccessRate):
    """Share of samples whose wanted token is among the k most likely, for several k.

    Columns "R@1", "R@2" and "R@3" of table "attribute-lens" of Hernandez et al. (ICLR 2024), section "Application: The
    Attribute Lens". `update(predictions, targets, relations, mask=None)` takes the scores of the whole vocabulary; if
    these are too many for memory, give it a few samples at a time. Ties are settled as in `token_ranks`. Counts add up
    until `reset`.

    Args:
        num_relations: how many relations there are, at least 1.
        grid_shape: sizes of the grid on which there are predictions; `()` for a single one.
        average: `"macro"` averages over the relations that have a sample, `"micro"` over all samples, `"none"` keeps
            the relations apart (see `torchmetrics.wrappers.ClasswiseWrapper` for names).
        ks: the k, each at least 1. The result's last dimension, and that of `correct`, is theirs.
        kwargs: what every `torchmetrics.Metric` takes.

    Raises:
        LREError: if `num_relations`, a size in `grid_shape` or a k is below 1, there is no k, or `average` is unknown.

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
        self.ks = _check_ks(ks)
        super().__init__(num_relations, (*grid_shape, len(self.ks)), average, **kwargs)

    @property
    def _successes(self) -> str:  # type: ignore[override]
        """Name of the state; the compute groups of a `MetricCollection` must not merge metrics with different k."""
        return "recalled_at_" + "_".join(map(str, self.ks))

    def update(self, predictions: Tensor, targets: Tensor, relations: Tensor, mask: Tensor | None = None) -> None:
        """Count one batch.

        Args:
            predictions: scores of all tokens; `(batch, *grid_shape, vocab)`, floating.
            targets: wanted token ids; `(batch,)`, integer.
            relations: indices in [0, `num_relations`); `(batch,)`, integer.
            mask: True where the sample counts (the LM knows the fact); `(batch,)`, bool. None: all count.

        Raises:
            LREError: if a shape or dtype does not fit, a token or a relation is out of range, or a k is larger than the
                vocabulary.
        """
        grid = self.grid_shape[:-1]
        if predictions.shape[1:-1] != grid:
            wanted = ", ".join(map(str, ("batch", *grid, "vocab")))
            raise LREError(f"predictions must have shape ({wanted}), got {tuple(predictions.shape)}")
        super().update(_hits(predictions, targets, self.ks), torch.ones_like(targets), relations, mask)


def _hits(predictions: Tensor, targets: Tensor, ks: tuple[int, ...]) -> Tensor:
    """1 where the wanted token is among the k most likely, else 0; `(batch, *grid, ks)`, int64."""
    ranks = token_ranks(predictions, targets)
    if max(ks) > predictions.shape[-1]:
        raise LREError(f"k {max(ks)} is larger than the vocabulary, which has {predictions.shape[-1]} tokens")
    return (ranks[..., None] < torch.tensor(ks, device=ranks.device)).long()


def _check_scores(predictions: Tensor, targets: Tensor) -> None:
    if not predictions.is_floating_point():
        raise LREError(f"predictions must be scores of a floating dtype, got {predictions.dtype}")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise LREError(f"targets must be of an integer dtype, got {targets.dtype}")
    if predictions.ndim < 2 or targets.shape != predictions.shape[:1]:
        raise LREError(
            "predictions must have shape (batch, *grid, vocab) and targets (batch,), "
            f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
        )
    outside = targets[(targets < 0) | (targets >= predictions.shape[-1])]
    if outside.numel():
        raise LREError(f"targets must lie in [0, {predictions.shape[-1]}), got {int(outside[0])}")


def _check_ks(ks: Sequence[int]) -> tuple[int, ...]:
    if not ks:
        raise LREError("ks is empty: give at least one k, such as 1")
    return tuple(_check_count("a k in ks", k) for k in ks)
