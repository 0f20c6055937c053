"""Pointwise activations on a batch of prompts in equal lanes, with one slope for all lanes of a prompt.

An activation such as GPT-2's, a polynomial within a tanh, takes ten passes over memory in a backward pass, as much time
as the model's matrix products. If the lanes of a prompt are equal, its slope is computed once, on one lane, and a
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


def one_slope_for_all_lanes(model: nn.Module, lanes: int, batch: int, positions: int) -> AbstractContextManager[None]:
    """Compute activations of `(batch, positions, width)` on the first of every `lanes` rows within the context.

    Those rows must be equal. Activations are found by their classes, those of transformers and torch.
    """

    def shared(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def run(inputs: Tensor) -> Tensor:
            if inputs.shape[:-1] != (batch, positions):  # not one row per token: perhaps the tokens of one expert
                return forward(inputs)
            output: Tensor = _SharedSlope.apply(inputs, forward, lanes)  # type: ignore[no-untyped-call]
            return output

        return run

    modules = [module for module in model.modules() if isinstance(module, _pointwise())]
    return overridden({module: shared(module.forward) for module in modules})


class _SharedSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, function: Callable[[Tensor], Tensor], lanes: int) -> Tensor:
        with torch.enable_grad():
            first = inputs[::lanes].detach().requires_grad_(True)
            output = function(first)
            (slope,) = torch.autograd.grad(output.sum(), first)
        ctx.lanes = lanes
        ctx.save_for_backward(slope)
        return output.detach().repeat_interleave(lanes, 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return (gradients[0].unflatten(0, (-1, ctx.lanes)) * slope[:, None]).flatten(0, 1), None, None


@cache
def _pointwise() -> tuple[type[nn.Module], ...]:
    """Return the classes of activations that treat every element alike."""
    from transformers.activations import ACT2CLS

    named: list[Any] = [found[0] if isinstance(found, tuple) else found for found in ACT2CLS.values()]
    return (*named, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid)
