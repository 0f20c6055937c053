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

    Sums are kept in float32, or in float64 where the LM itself runs in it. What is accumulated here is not what is
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
        self._weight_sums: dict[Layer, Tensor] = {}
        self._bias_sums: dict[Layer, Tensor] = {}

    def update(self, example: PromptJacobian) -> None:
        """Add one example's Jacobian and bias at every layer."""
        for layer in self.layers:
            bias = example.bias(layer)
            self._add(self._weight_sums, layer, example.jacobian[layer].to(bias.dtype))
            self._add(self._bias_sums, layer, bias)
        self.count += 1

    def weight(self, layer: Layer) -> Tensor:
        """W at `layer`, `(hidden, hidden)`.

        Raises:
            LREError: If nothing has been accumulated, or not at this layer.
        """
        return self._mean(self._weight_sums, layer)

    def bias(self, layer: Layer) -> Tensor:
        """B at `layer`, `(hidden,)`.

        Raises:
            LREError: If nothing has been accumulated, or not at this layer.
        """
        return self._mean(self._bias_sums, layer)

    @staticmethod
    def _add(sums: dict[Layer, Tensor], layer: Layer, value: Tensor) -> None:
        with torch.inference_mode(False):
            if layer in sums:
                sums[layer] += value
            else:
                sums[layer] = value.clone()

    def _mean(self, sums: dict[Layer, Tensor], layer: Layer) -> Tensor:
        if layer not in sums:
            raise LREError(f"no example has been accumulated at layer {layer!r}; the layers are {self.layers}")
        return sums[layer] / self.count
