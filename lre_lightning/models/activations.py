"""Pointwise activations on a batch of equal lanes, with one slope for all lanes.

An activation such as GPT-2's, a polynomial within a tanh, takes ten passes over memory in a backward pass, as much time
as the model's matrix products. If the lanes of a batch are equal, its slope is computed once, on one lane, and a
backward pass is one product with it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lre_lightning.models.hooks import overridden


def one_slope_for_all_lanes(model: nn.Module, lanes: int, positions: int) -> AbstractContextManager[None]:
    """Compute activations of `(lanes, positions, width)` on the first lane alone within the context.

    The lanes must be equal. Activations are found by their classes, those of transformers and torch.
    """

    def shared(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(inputs: Tensor) -> Tensor:
            if inputs.shape[:-1] != (lanes, positions):  # not one row per token: perhaps the tokens of one expert
                return forward(inputs)
            output: Tensor = _SharedSlope.apply(inputs, forward)  # type: ignore[no-untyped-call]
            return output

        return run

    modules = [module for module in model.modules() if isinstance(module, _pointwise())]
    return overridden({module: shared(module.forward) for module in modules})


class _SharedSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            lane = inputs[:1].detach().requires_grad_(True)
            output = function(lane)
            (slope,) = torch.autograd.grad(output.sum(), lane)
        ctx.save_for_backward(slope)
        return output.detach().expand_as(inputs).contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return gradients[0] * slope, None


@cache
def _pointwise() -> tuple[type[nn.Module], ...]:
    """Return the classes of activations that treat every element alike."""
    from transformers.activations import ACT2CLS

    named: list[Any] = [found[0] if isinstance(found, tuple) else found for found in ACT2CLS.values()]
    return (*named, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid)
