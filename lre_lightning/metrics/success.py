"""Success rates as torchmetrics: counts that are summed over batches and processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import torch
from torch import Tensor
from torchmetrics import Metric

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.metrics.functional import Average, success_compute, success_update


class SuccessRate(Metric):
    """Fraction of samples whose prediction is right, per relation and per grid point.

    A subclass says what "right" means and, in `_successes`, names its state. The names differ between subclasses so
    that the compute groups of a `MetricCollection`, which merge metrics with equal states, never merge two of them.
    """

    is_differentiable: bool = False
    higher_is_better: bool = True
    full_state_update: bool = False
    plot_lower_bound: float = 0.0
    plot_upper_bound: float = 1.0

    _successes: str
    total: Tensor

    def __init__(
        self, num_relations: int, grid_shape: Sequence[int] = (), average: Average = "macro", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_choice("average", average, get_args(Average))
        check_number("num_relations", num_relations, 1)
        for size in grid_shape:
            check_number("a size in grid_shape", size, 1)
        self.num_relations, self.grid_shape, self.average = num_relations, tuple(grid_shape), average
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
            predictions: Predicted token ids; `(batch, *grid_shape)`, integer.
            targets: Wanted token ids; `(batch,)`, integer.
            relations: Indices in [0, `num_relations`); `(batch,)`, integer.
            mask: True for samples that count (the LM knows the fact); `(batch,)`, bool. None: all count.

        Raises:
            LREError: If a shape or dtype does not fit or a relation is out of range.
        """
        if predictions.shape[1:] != self.grid_shape:
            wanted = ", ".join(map(str, ("batch", *self.grid_shape)))
            raise LREError(f"predictions must have shape ({wanted}), got {tuple(predictions.shape)}")
        correct, total = success_update(predictions, targets, relations, self.num_relations, mask)
        # Not in place: states created in inference mode cannot be changed in place outside it.
        setattr(self, self._successes, self.correct + correct)
        self.total = self.total + total

    def compute(self) -> Tensor:
        """Divide the counts of all processes.

        Returns:
            Fractions in [0, 1], NaN where no sample was counted; `grid_shape`, or `(num_relations, *grid_shape)` with
            `average="none"`, float32.
        """
        return success_compute(self.correct, self.total, self.average)

    def plot(self, val: Tensor | Sequence[Tensor] | None = None, ax: Any = None) -> Any:
        """Plot one result of `compute`, or several as a series of steps; each has at most one dimension."""
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


class Faithfulness(SuccessRate):
    """Fraction of known test samples on which the LRE predicts the token that the LM predicts.

    Equation "faithfulness" of Hernandez et al. (ICLR 2024), section 3.2: argmax D(LRE(s)) = argmax D(F(s, c)).
    `update(predictions, targets, relations, mask=None)` takes the LRE's argmax at each grid point, for example layers x
    betas, and the LM's own argmax under the same context. Counts add up until `reset`.

    `MetricCollection` passes the same predictions to all its metrics; `Causality` needs different ones, so update the
    two separately. Their states have different names, which keeps them apart in the collection's compute groups.

    Args:
        num_relations: Number of relations, at least 1.
        grid_shape: Sizes of the grid of hyperparameters; `()` for a single evaluation.
        average: `"macro"` (as in the paper) averages over the relations that have a sample, `"micro"` over all samples;
            `"none"` returns one value per relation (see `torchmetrics.wrappers.ClasswiseWrapper` for names).
        kwargs: Arguments of every `torchmetrics.Metric`.

    Raises:
        LREError: If `num_relations` or a size in `grid_shape` is below 1 or `average` is unknown.

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


class Causality(SuccessRate):
    """Fraction of edits after which the patched LM predicts the first token of the target object.

    Equation "causal-efficacy" of Hernandez et al. (ICLR 2024), section 3.2: argmax D(F(s, c | s := s + delta)) = o'.
    `update(predictions, targets, relations, mask=None)` takes the patched LM's argmax at each grid point, for example
    layers x ranks, and the first token of each target object o', which the caller draws from the same relation and
    unlike the sample's own. Counts add up until `reset`.

    Arguments and errors are those of `Faithfulness`.

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
