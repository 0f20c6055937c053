"""Success rates of linear relational embeddings: pure functions of token ids and of scores.

Faithfulness and causality (Hernandez et al., ICLR 2024, section 3.2) are the same arithmetic on different predictions:
the fraction of samples, per relation and per point of a grid of hyperparameters, whose predicted token is the wanted
one. `success_update` counts, `success_compute` divides.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.paper import succeeds

Average = Literal["micro", "macro", "none"]
"""Averages over all samples, over relations, or neither."""


def faithfulness(
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor | None = None,
    average: Average = "macro",
    num_relations: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute the fraction of samples on which the LRE predicts the token that the LM predicts.

    Equation "faithfulness" of the paper (section 3.2): argmax D(LRE(s)) = argmax D(F(s, c)). As in the paper only facts
    that the LM knows should count: leave the others out, or mask them.

    Args:
        predictions: The LRE's token ids, argmax D(LRE(s)), at each point of the grid (for example layers x betas);
            `(batch, *grid)`, integer.
        targets: The LM's own token ids, argmax D(F(s, c)); `(batch,)`, integer.
        relations: The relation of each sample, from 0 to `num_relations` - 1; `(batch,)`, integer. None: one relation.
        average: `"micro"` weighs every sample alike, `"macro"` (as in the paper) every relation that has a sample;
            `"none"` returns one value per relation.
        num_relations: Number of relations. None: the largest index in `relations` plus one.
        mask: True for samples that count; `(batch,)`, bool. None: all count.

    Returns:
        Fractions in [0, 1]; `grid` or, for `"none"`, `(num_relations, *grid)`, float32. NaN where no sample counts.

    Raises:
        LREError: If shapes or dtypes do not fit, a relation is out of range, `num_relations` is below 1 or `average` is
            unknown.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics.functional import faithfulness
        >>> lm = tensor([7, 8, 9])
        >>> faithfulness(tensor([7, 8, 5]), lm)
        tensor(0.6667)
        >>> two_layers = tensor([[7, 7], [8, 1], [5, 9]])
        >>> faithfulness(two_layers, lm, relations=tensor([0, 0, 1]), average="none")
        tensor([[1.0000, 0.5000],
                [0.0000, 1.0000]])
    """
    if relations is None:
        relations = torch.zeros_like(targets)
    if num_relations is None:
        num_relations = 1 + int(max([0, *relations.flatten().tolist()]))
    return success_compute(*success_update(predictions, targets, relations, num_relations, mask), average)


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
    _check_integers(targets=targets)
    if predictions.ndim < 2 or targets.shape != predictions.shape[:1]:
        raise LREError(
            "predictions must have shape (batch, *grid, vocab) and targets (batch,), "
            f"got {tuple(predictions.shape)} and {tuple(targets.shape)}"
        )
    vocabulary = predictions.shape[-1]
    _check_indices("targets", targets, vocabulary)
    index = _broadcastable(targets.long(), predictions.ndim - 1)
    wanted = predictions.gather(-1, index.expand(*predictions.shape[:-1], 1))
    before = ~(predictions <= wanted)
    before |= (predictions == wanted) & (torch.arange(vocabulary, device=predictions.device) < index)
    return before.sum(-1, dtype=torch.int32).long()  # int32 is summed several times faster


def distribution_scores(predictions: Tensor, targets: Tensor, reference: Tensor) -> tuple[Tensor, ...]:
    """Compare predicted distributions of the next token with the LM's own.

    Tokens that the LM excludes by a logit of minus infinity have no part in the divergence.

    Args:
        predictions: Logits; `(batch, *grid, vocab)`, floating point.
        targets: Token ids, such as the LM's answers; `(batch,)`, integer.
        reference: The LM's logits; `(batch, vocab)`.

    Returns:
        The probability of the target, its token rank (0 for the most likely token), and the Kullback-Leibler divergence
        of the prediction from the reference, D(reference || prediction), in nats; `(batch, *grid)` each, in the dtype
        of the predictions, or float32 if that is narrower.

    >>> logits = torch.tensor([[2.0, 0.0, 1.0]])
    >>> [round(float(score), 3) for score in distribution_scores(logits, torch.tensor([2]), logits)]
    [0.245, 1.0, 0.0]
    """
    grid = predictions.dim() - 2
    wide = torch.promote_types(predictions.dtype, torch.float32)
    logits, own = predictions.to(wide), reference.to(wide).log_softmax(-1)
    total, weights = logits.logsumexp(-1), own.exp()
    target = logits.gather(-1, _broadcastable(targets, grid + 1).expand(*logits.shape[:-1], 1))[..., 0]
    least = torch.finfo(wide).min  # times zero it is zero, as minus infinity is not
    mean = torch.einsum("bv,b...v->b...", weights, logits.clamp(min=least))
    divergence = _broadcastable((weights * own.clamp(min=least)).sum(-1), grid) - mean + total
    return (target - total).exp(), token_ranks(predictions, targets).to(wide), divergence.clamp(min=0)


def success_update(
    predictions: Tensor, targets: Tensor, relations: Tensor, num_relations: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the successes `(num_relations, *grid)` and samples `(num_relations,)` of one batch, both int64."""
    counted = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    _check_integers(predictions=predictions, targets=targets, relations=relations)
    if counted.dtype != torch.bool:
        raise LREError(f"mask must be bool, got {counted.dtype}")
    for name, row in (("targets", targets), ("relations", relations), ("mask", counted)):
        if row.shape != predictions.shape[:1]:
            raise LREError(
                f"{name} must have shape {tuple(predictions.shape[:1])}, one entry per prediction, "
                f"got {tuple(row.shape)}"
            )
    check_number("num_relations", num_relations, 1)
    _check_indices("relations", relations, num_relations)
    grid, index = predictions.shape[1:], relations.long()
    success = succeeds(predictions, _broadcastable(targets, len(grid))) & _broadcastable(counted, len(grid))
    correct = torch.zeros(num_relations, *grid, dtype=torch.int64, device=predictions.device)
    total = torch.zeros(num_relations, dtype=torch.int64, device=predictions.device)
    return correct.index_add_(0, index, success.long()), total.index_add_(0, index, counted.long())


def success_compute(correct: Tensor, total: Tensor, average: Average) -> Tensor:
    """Turn the counts of `success_update` into fractions.

    The few numbers are divided on the CPU in float64, which not every accelerator has, and rounded once.
    """
    check_choice("average", average, get_args(Average))
    device, correct, total = correct.device, correct.cpu(), total.cpu()
    if average == "micro":
        rate = correct.sum(0).double() / total.sum().double()
    else:
        rate = correct.double() / _broadcastable(total, correct.ndim - 1).double()
    return (rate.nanmean(0) if average == "macro" else rate).float().to(device)


def _broadcastable(per_row: Tensor, dimensions: int) -> Tensor:
    """Append dimensions of size 1 to `(rows,)`, so that it broadcasts against `(rows, *grid)`."""
    return per_row.reshape(*per_row.shape, *[1] * dimensions)


def _check_indices(name: str, indices: Tensor, size: int) -> None:
    """Check integers before they are used as indices: an accelerator would abort on an invalid one."""
    outside = indices[(indices < 0) | (indices >= size)]
    if outside.numel():
        raise LREError(f"{name} must lie in [0, {size}), got {int(outside[0])}")


def _check_integers(**tensors: Tensor) -> None:
    """Check that tensors hold integers; bool is not one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise LREError(f"{name} must be of an integer dtype, got {tensor.dtype}")
