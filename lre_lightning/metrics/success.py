"""Faithfulness and causality as torchmetrics: counts that are summed over batches and processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torchmetrics import Metric

from lre_lightning.errors import LREError
from lre_lightning.metrics.functional import Average, _check_average, _check_count, _success_compute, _success_update


class _SuccessRate(Metric):
    """Share of samples whose prediction is right, per relation and per grid point.

    A subclass says what "right" means and, in `_successes`, names its state. The names differ between subclasses so
    that the compute groups of a `MetricCollection`, which merge metrics with equal states, never merge two of them.
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    _successes: ClassVar[str]
    total: Tensor

    def __init__(
        self, num_relations: int, grid_shape: Sequence[int] = (), average: Average = "macro", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        _check_average(average)
        self.num_relations = _check_count("num_relations", num_relations)
        self.grid_shape = tuple(_check_count("a size in grid_shape", size) for size in grid_shape)
        self.average: Average = average
        zeros = torch.zeros(num_relations, *self.grid_shape, dtype=torch.int64)
        self.add_state(self._successes, zeros, dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(num_relations, dtype=torch.int64), dist_reduce_fx="sum")

    @property
    def correct(self) -> Tensor:
        """This process's successes so far; `(num_relations, *grid_shape)`, int64."""
        successes: Tensor = getattr(self, self._successes)
        return successes

    def update(self, predictions: Tensor, targets: Tensor, relations: Tensor, mask: Tensor | None = None) -> None:
        """Count one batch.

        Args:
            predictions: predicted token ids; `(batch, *grid_shape)`, integer.
            targets: wanted token ids; `(batch,)`, integer.
            relations: indices in [0, `num_relations`); `(batch,)`, integer.
            mask: True where the sample counts (the LM knows the fact); `(batch,)`, bool. None: all count.

        Raises:
            LREError: if a shape or dtype does not fit or a relation is out of range.
        """
        if predictions.shape[1:] != self.grid_shape:
            wanted = ", ".join(map(str, ("batch", *self.grid_shape)))
            raise LREError(f"predictions must have shape ({wanted}), got {tuple(predictions.shape)}")
        correct, total = _success_update(predictions, targets, relations, self.num_relations, mask)
        # Not in place: a state born in inference mode could not be changed outside it.
        setattr(self, self._successes, self.correct + correct)
        self.total = self.total + total

    def compute(self) -> Tensor:
        """Divide what was counted on all processes.

        Returns:
            Shares in [0, 1], NaN where no sample was counted; `grid_shape`, or `(num_relations, *grid_shape)` with
            `average="none"`, float32.
        """
        return _success_compute(self.correct, self.total, self.average)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot one result, or several as a series of steps.

        Args:
            val: a result of `compute` or `forward`, or a list of them; None: what `compute` returns now. A result has
                one value or one row of values.
            ax: the matplotlib axis to draw on. None: a new figure.

        Returns:
            The figure (None where `ax` was given) and the axis.

        Raises:
            LREError: if a result has more than one dimension.
            ModuleNotFoundError: if matplotlib is not installed.
        """
        val = self.compute() if val is None else val
        shape = tuple((val if isinstance(val, Tensor) else val[0]).shape)
        if len(shape) > 1:
            raise LREError(f"plot draws one value or one row of values, got a result of shape {shape}: index it first")
        return self._plot(val, ax)

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        """Undo torchmetrics' squeeze: a result of one element keeps its shape, so a grid of one point is a grid."""
        squeezing = super()._wrap_compute(compute)

        @functools.wraps(compute)
        def shaped(*args: Any, **kwargs: Any) -> Tensor:
            rows = (self.num_relations,) if self.average == "none" else ()
            value: Tensor = squeezing(*args, **kwargs)
            return value.reshape((*rows, *self.grid_shape))

        return shaped

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> "_SuccessRate":
        """Follow a module to another device but not to another dtype: half precision counts exactly to 2048 only."""

        def move(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)

        super()._apply(move, exclude_state)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load counts of the right shape only, onto this metric's device, and forget the cached result."""
        errors: list[str] = args[-1]
        for key, default in self._defaults.items():
            saved = state_dict.get(prefix + key)
            if saved is None or not isinstance(default, Tensor):
                continue
            if saved.shape != default.shape:
                shapes = f"{tuple(saved.shape)} in the checkpoint, {tuple(default.shape)} in the metric"
                errors.append(f"size mismatch for {prefix + key}: {shapes}")
                del state_dict[prefix + key]
            else:
                state_dict[prefix + key] = saved.to(self.device)
        self._computed = None
        super()._load_from_state_dict(state_dict, prefix, *args)


class Faithfulness(_SuccessRate):
    """Share of known test samples on which the LRE predicts the token that the LM predicts.

    Equation "faithfulness" of Hernandez et al. (ICLR 2024), section 3.2: argmax D(LRE(s)) = argmax D(F(s, c)).
    `update(predictions, targets, relations, mask=None)` takes the LRE's argmax at each grid point, for example layers x
    betas, and the LM's own argmax under the same context. Counts add up until `reset`, so one trial is one cycle.

    `MetricCollection` passes the same predictions to all its metrics; the ones of `Causality` are others, so update the
    two apart. Their states have different names, hence the collection's compute groups keep them apart.

    Args:
        num_relations: how many relations there are, at least 1.
        grid_shape: sizes of the grid of hyperparameters; `()` for a single evaluation.
        average: `"macro"` (as in the paper) averages over the relations that have a sample, `"micro"` over all samples,
            `"none"` keeps the relations apart (see `torchmetrics.wrappers.ClasswiseWrapper` for names).
        kwargs: what every `torchmetrics.Metric` takes.

    Raises:
        LREError: if `num_relations` or a size in `grid_shape` is below 1 or `average` is unknown.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import Faithfulness
        >>> metric = Faithfulness(num_relations=3, grid_shape=(2,))
        >>> two_layers = tensor([[7, 7], [8, 1], [5, 9]])
        >>> metric.update(two_layers, targets=tensor([7, 8, 9]), relations=tensor([0, 0, 1]))
        >>> metric.compute()  # relation 2 has no sample and does not enter the mean
        tensor([0.5000, 0.7500])
        >>> metric.total
        tensor([2, 1, 0])
    """

    _successes = "faithful"


class Causality(_SuccessRate):
    """Share of edits after which the patched LM predicts the first token of the target object.

    Equation "causal-efficacy" of Hernandez et al. (ICLR 2024), section 3.2: argmax D(F(s, c | s := s + delta)) = o'.
    `update(predictions, targets, relations, mask=None)` takes the patched LM's argmax at each grid point, for example
    layers x ranks, and the first token of each target object o', which is for the caller to draw from the same relation
    and unlike the sample's own. Counts add up until `reset`, so one trial is one cycle.

    Args:
        num_relations: how many relations there are, at least 1.
        grid_shape: sizes of the grid of hyperparameters; `()` for a single evaluation.
        average: `"macro"` (as in the paper) averages over the relations that have a sample, `"micro"` over all samples,
            `"none"` keeps the relations apart (see `torchmetrics.wrappers.ClasswiseWrapper` for names).
        kwargs: what every `torchmetrics.Metric` takes.

    Raises:
        LREError: if `num_relations` or a size in `grid_shape` is below 1 or `average` is unknown.

    Example:
        >>> from torch import tensor
        >>> from lre_lightning.metrics import Causality
        >>> metric = Causality(num_relations=2, average="none")
        >>> known = tensor([True, True, True, False])
        >>> metric.update(tensor([4, 5, 0, 4]), tensor([4, 5, 6, 4]), relations=tensor([0, 0, 0, 1]), mask=known)
        >>> metric.compute()  # relation 1 has no known sample: not scored, which is not 0
        tensor([0.6667,    nan])
    """

    _successes = "causal"
