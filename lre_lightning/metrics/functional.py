"""Success rates of linear relational embeddings: pure functions of token ids.

Faithfulness and causality (Hernandez et al., ICLR 2024, section 3.2) are the same arithmetic on different
predictions: the fraction of samples, per relation and per point of a grid of hyperparameters, whose predicted token is
the wanted one. `_success_update` counts, `_success_compute` divides.
"""

from typing import Literal, get_args

import torch
from torch import Tensor

from lre_lightning.errors import LREError, check_number

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
    return _success_rate(predictions, targets, relations, average, num_relations, mask)


def causality(
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor | None = None,
    average: Average = "macro",
    num_relations: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Compute the fraction of edits after which the patched LM predicts the first token of the target object.

    Equation "causal-efficacy" of the paper (section 3.2): argmax D(F(s, c | s := s + delta)) = o'. The caller chooses
    the target o', an object of the same relation other than the sample's own.

    Arguments, result and errors are those of `faithfulness`, but `predictions` are the patched LM's token ids at each
    point of the grid (for example layers x ranks), and `targets` the first tokens of the target objects o'.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics.functional import causality
        >>> target_objects = tensor([4, 5, 6, 4])
        >>> causality(tensor([4, 5, 0, 0]), target_objects)
        tensor(0.5000)
        >>> causality(tensor([4, 5, 0, 0]), target_objects, mask=tensor([True, True, True, False]))
        tensor(0.6667)
    """
    return _success_rate(predictions, targets, relations, average, num_relations, mask)


def _success_rate(
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor | None,
    average: Average,
    num_relations: int | None,
    mask: Tensor | None,
) -> Tensor:
    """Fill in the defaults of the public functions, count and divide."""
    if relations is None:
        relations = torch.zeros_like(targets)
    if num_relations is None:
        num_relations = 1 + int(max([0, *relations.flatten().tolist()]))
    correct, total = _success_update(predictions, targets, relations, num_relations, mask)
    return _success_compute(correct, total, average)


def _success_update(
    predictions: Tensor, targets: Tensor, relations: Tensor, num_relations: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count the successes `(num_relations, *grid)` and samples `(num_relations,)` of one batch, both int64."""
    counted = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    check_integers(predictions=predictions, targets=targets, relations=relations)
    if counted.dtype != torch.bool:
        raise LREError(f"mask must be bool, got {counted.dtype}")
    for name, row in (("targets", targets), ("relations", relations), ("mask", counted)):
        if row.shape != predictions.shape[:1]:
            raise LREError(
                f"{name} must have shape {tuple(predictions.shape[:1])}, one entry per prediction, "
                f"got {tuple(row.shape)}"
            )
    check_number("num_relations", num_relations, 1)
    check_range("relations", relations, num_relations)
    grid, index = predictions.shape[1:], relations.long()
    success = (predictions == broadcastable(targets, len(grid))) & broadcastable(counted, len(grid))
    correct = torch.zeros(num_relations, *grid, dtype=torch.int64, device=predictions.device)
    total = torch.zeros(num_relations, dtype=torch.int64, device=predictions.device)
    return correct.index_add_(0, index, success.long()), total.index_add_(0, index, counted.long())


def _success_compute(correct: Tensor, total: Tensor, average: Average) -> Tensor:
    """Turn the counts of `_success_update` into fractions.

    The few numbers are divided on the CPU in float64, which not every accelerator has, and rounded once.
    """
    check_average(average)
    device, correct, total = correct.device, correct.cpu(), total.cpu()
    if average == "micro":
        rate = correct.sum(0).double() / total.sum().double()
    else:
        rate = correct.double() / broadcastable(total, correct.ndim - 1).double()
    return (rate.nanmean(0) if average == "macro" else rate).float().to(device)


def broadcastable(per_row: Tensor, dimensions: int) -> Tensor:
    """Append dimensions of size 1 to `(rows,)`, so that it broadcasts against `(rows, *grid)`."""
    return per_row.reshape(*per_row.shape, *[1] * dimensions)


def check_integers(**tensors: Tensor) -> None:
    """Check that tensors hold integers; bool is not one."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() or tensor.dtype == torch.bool:
            raise LREError(f"{name} must be of an integer dtype, got {tensor.dtype}")


def check_range(name: str, indices: Tensor, size: int) -> None:
    """Check indices before they are used: an accelerator would abort on an invalid one."""
    outside = indices[(indices < 0) | (indices >= size)]
    if outside.numel():
        raise LREError(f"{name} must lie in [0, {size}), got {int(outside[0])}")


def check_average(average: str) -> None:
    """Check the name of an average."""
    if average not in get_args(Average):
        raise LREError(f"average must be one of {', '.join(map(repr, get_args(Average)))}, got {average!r}")
