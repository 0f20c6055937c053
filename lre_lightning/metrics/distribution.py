"""How a predicted distribution of the next token resembles the LM's own, as a torchmetric."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from lre_lightning.metrics.functional import distribution_scores


class DistributionScores(Metric):
    """Mean probability and token rank of the LM's answers, and divergence from the LM's distribution in nats.

    `update(predictions, targets, reference, mask=None)` takes logits `(batch, vocab)`, token ids `(batch,)`, the LM's
    logits `(batch, vocab)`, and which samples count, `(batch,)`, bool. `compute` returns the means by name, NaN where
    no sample was counted.

    >>> metric = DistributionScores()
    >>> metric.update(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), torch.tensor([[2.0, 0.0]]))
    >>> {name: round(float(value), 2) for name, value in metric.compute().items()}
    {'probability': 0.88, 'token rank': 0.0, 'KL': 0.0}
    """

    is_differentiable: bool = False
    full_state_update: bool = False
    sums: Tensor
    total: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, targets: Tensor, reference: Tensor, mask: Tensor | None = None) -> None:
        """Add one batch."""
        rows = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
        scores = distribution_scores(predictions[rows], targets[rows], reference[rows])
        self.sums = self.sums + torch.stack([score.double().sum() for score in scores])
        self.total = self.total + rows.sum()

    def compute(self) -> dict[str, Tensor]:
        """Divide the sums of all processes."""
        means = (self.sums / self.total).float()
        return dict(zip(("probability", "token rank", "KL"), means, strict=True))
