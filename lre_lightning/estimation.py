"""The estimator: running means of Jacobians and biases over the training examples of one relation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.jacobian import PromptJacobian
from lre_lightning.language_model import Layer


class LREEstimator:
    """Accumulates W = E[do/ds] and b = E[o - (do/ds) s] at several layers (Equation 3 of the paper).

    Means are kept in float32, or in float64 where the LM itself runs in it. What is accumulated here is not what is
    applied: `weight` and `bias` of a layer go into a frozen `lre_lightning.LRE`.

    Args:
        layers: The layers to accumulate.

    Example:
        >>> import torch
        >>> from lre_lightning.jacobian import PromptJacobian
        >>> estimator = LREEstimator([0])
        >>> estimator.update(PromptJacobian({0: 2 * torch.eye(2)}, {0: torch.ones(2)}, torch.tensor([3.0, 5.0])))
        >>> estimator.weight(0).diagonal().tolist(), estimator.bias(0).tolist()
        ([2.0, 2.0], [1.0, 3.0])
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = tuple(layers)
        self.count = 0
        self._weights: dict[Layer, Tensor] = {}
        self._biases: dict[Layer, Tensor] = {}

    def update(self, example: PromptJacobian) -> None:
        """Add one example's Jacobian and bias at every layer."""
        self.count += 1
        for layer in self.layers:
            bias = example.bias(layer)
            self._add(self._weights, layer, example.jacobian[layer].to(bias.dtype))
            self._add(self._biases, layer, bias)

    def weight(self, layer: Layer) -> Tensor:
        """W at `layer`, `(hidden, hidden)`: not a copy, so that a later `update` changes it.

        Raises:
            LREError: If nothing has been accumulated, or not at this layer.
        """
        return self._mean(self._weights, layer)

    def bias(self, layer: Layer) -> Tensor:
        """B at `layer`, `(hidden,)`: not a copy, so that a later `update` changes it.

        Raises:
            LREError: If nothing has been accumulated, or not at this layer.
        """
        return self._mean(self._biases, layer)

    def _add(self, means: dict[Layer, Tensor], layer: Layer, value: Tensor) -> None:
        with torch.inference_mode(False):
            if layer in means:
                means[layer].lerp_(value, 1 / self.count)
            else:
                means[layer] = value.clone()

    def _mean(self, means: dict[Layer, Tensor], layer: Layer) -> Tensor:
        if layer not in means:
            raise LREError(f"no example has been accumulated at layer {layer!r}; the layers are {self.layers}")
        return means[layer]
