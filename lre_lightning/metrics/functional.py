"""Success rates of linear relational embeddings: pure functions of token ids.

Faithfulness and causality (Hernandez et al., ICLR 2024, section 3.2) are the same arithmetic on different
predictions: the share of samples, per relation and per point of a grid of hyperparameters, whose predicted token is the
wanted one. `_success_update` counts, `_success_compute` divides.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor

from lre_lightning.errors import LREError

Average = Literal["micro", "macro", "none"]
"""How relations are averaged: over all samples, over relations, or not at all."""


def faithfulness(
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor | None = None,
    average: Average = "macro",
    num_relations: int | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Share of samples on which the LRE predicts the token that the LM predicts.

    Equation "faithfulness" of the paper (section 3.2): argmax D(LRE(s)) = argmax D(F(s, c)). As in the paper only facts
    that the LM knows should count: leave the others out, or mark them in `mask`.

    Args:
        predictions: the LRE's token ids, argmax D(LRE(s)), at each point of the grid (for example layers x betas);
            `(batch, *grid)`, integer.
        targets: the LM's own token ids, argmax D(F(s, c)); `(batch,)`, integer.
        relations: each sample's relation, from 0 to `num_relations` - 1; `(batch,)`, integer. None: one relation.
        average: `"micro"` weighs each sample alike, `"macro"` (as in the paper) each relation that has a sample,
            `"none"` keeps the relations apart.
        num_relations: how many relations there are. None: the largest index in `relations` plus one.
        mask: True where the sample counts; `(batch,)`, bool. None: all count.

    Returns:
        Shares in [0, 1]; `grid` or, for `"none"`, `(num_relations, *grid)`, float32. NaN where no sample counts.

    Raises:
        LREError: if shapes or dtypes do not fit, a relation is out of range, `num_relations` is below 1 or `average` is
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
    """Share of edits after which the patched LM predicts the first token of the target object.

    Equation "causal-efficacy" of the paper (section 3.2): argmax D(F(s, c | s := s + delta)) = o'. The target o' is an
    object of the same relation other than the sample's own; that is for the caller to see to.

    Args:
        predictions: the patched LM's token ids at each point of the grid (for example layers x ranks);
            `(batch, *grid)`, integer.
        targets: the first token of each target object o'; `(batch,)`, integer.
        relations: each sample's relation, from 0 to `num_relations` - 1; `(batch,)`, integer. None: one relation.
        average: `"micro"` weighs each sample alike, `"macro"` (as in the paper) each relation that has a sample,
            `"none"` keeps the relations apart.
        num_relations: how many relations there are. None: the largest index in `relations` plus one.
        mask: True where the sample counts; `(batch,)`, bool. None: all count.

    Returns:
        Shares in [0, 1]; `grid` or, for `"none"`, `(num_relations, *grid)`, float32. NaN where no sample counts.

    Raises:
        LREError: if shapes or dtypes do not fit, a relation is out of range, `num_relations` is below 1 or `average` is
            unknown.

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
    predictions: Tensor,
    targets: Tensor,
    relations: Tensor,
    num_relations: int,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Count one batch's successes and samples, per relation and per grid point.

    Args:
        predictions: token ids; `(batch, *grid)`, integer.
        targets: token ids; `(batch,)`, integer.
        relations: indices in [0, `num_relations`); `(batch,)`, integer.
        num_relations: how many relations there are.
        mask: True where the sample counts; `(batch,)`, bool. None: all count.

    Returns:
        Successes `(num_relations, *grid)` and samples `(num_relations,)`, both int64.

    Raises:
        LREError: if shapes or dtypes do not fit, a relation is out of range or `num_relations` is below 1.
    """
    _check_samples(predictions, targets, relations, mask)
    _check_relations(relations, _check_count("num_relations", num_relations))
    grid, index = predictions.shape[1:], relations.long()
    counted = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
    success = (predictions == _beside(targets, grid)) & _beside(counted, grid)
    correct = torch.zeros(num_relations, *grid, dtype=torch.int64, device=predictions.device)
    total = torch.zeros(num_relations, dtype=torch.int64, device=predictions.device)
    return correct.index_add_(0, index, success.long()), total.index_add_(0, index, counted.long())


def _success_compute(correct: Tensor, total: Tensor, average: Average) -> Tensor:
    """Turn counts into shares.

    The few numbers are divided on the CPU in float64, which not every accelerator has, and rounded once.

    Args:
        correct: successes; `(num_relations, *grid)`, int64.
        total: samples; `(num_relations,)`, int64.
        average: how relations are averaged.

    Returns:
        `grid`, or for `"none"` `(num_relations, *grid)`, float32 on the device of `correct`; NaN where nothing counts.

    Raises:
        LREError: if `average` is unknown.
    """
    _check_average(average)
    device, correct, total = correct.device, correct.cpu(), total.cpu()
    if average == "micro":
        rate = correct.sum(0).double() / total.sum().double()
    else:
        rate = correct.double() / _beside(total, correct.shape[1:]).double()
    return (rate.nanmean(0) if average == "macro" else rate).float().to(device)


def _beside(per_row: Tensor, grid: Sequence[int]) -> Tensor:
    """Give `(rows,)` as many trailing dimensions of size 1 as `grid` has, to broadcast against `(rows, *grid)`."""
    return per_row.reshape((*per_row.shape, *(1 for _ in grid)))


def _check_samples(predictions: Tensor, targets: Tensor, relations: Tensor, mask: Tensor | None) -> None:
    """Check the shapes and dtypes of one batch."""
    for name, ids in (("predictions", predictions), ("targets", targets), ("relations", relations)):
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise LREError(f"{name} must be of an integer dtype, got {ids.dtype}")
    if mask is not None and mask.dtype != torch.bool:
        raise LREError(f"mask must be bool, got {mask.dtype}")
    if predictions.ndim == 0:
        raise LREError("predictions must have shape (batch, *grid), got a single number")
    batch = predictions.shape[:1]
    for name, row in (("targets", targets), ("relations", relations), ("mask", mask)):
        if row is not None and row.shape != batch:
            raise LREError(
                f"{name} must have shape {tuple(batch)}, one for each of the predictions, got {tuple(row.shape)}"
            )


def _check_relations(relations: Tensor, num_relations: int) -> None:
    """Check that every relation has a row; out of range, an accelerator would only abort."""
    outside = relations[(relations < 0) | (relations >= num_relations)]
    if outside.numel():
        raise LREError(f"relations must lie in [0, {num_relations}), got {int(outside[0])}")


def _check_count(name: str, count: object) -> int:
    """Check a number of things and hand it back."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise LREError(f"{name} must be an integer of at least 1, got {count!r}")
    return count


def _check_average(average: str) -> None:
    """Check that `average` is one of the three."""
    if average not in get_args(Average):
        raise LREError(f"average must be one of {', '.join(map(repr, get_args(Average)))}, got {average!r}")
