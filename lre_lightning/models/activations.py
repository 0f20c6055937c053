"""Pointwise activations and linear layers on prompts in equal lanes, computed once for all lanes of a prompt.

An activation such as GPT-2's, a polynomial within a tanh, takes ten passes over memory in a backward pass, as much time
as the model's matrix products. If the lanes of a prompt are equal, its slope is computed once, on one lane, and a
backward pass is one product with it. The outputs of linear layers on all lanes would take as much time as their part in
a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from lre_lightning.models.hooks import overridden


def one_slope_for_all_lanes(
    model: nn.Module, lanes: int, batch: int, positions: int, linear: bool = False
) -> AbstractContextManager[None]:
    """Compute activations of `(batch, positions, width)` on the first of every `lanes` rows within the context.

    Those rows must be equal. Activations are found by their classes, those of transformers and torch. With `linear`
    outputs of linear layers are computed on the first rows as well; their weights must not be offloaded then.
    """

    def shared(module: nn.Module) -> Callable[[Tensor], Tensor]:
        forward: Callable[[Tensor], Tensor] = module.forward
        kind = _SharedSlope if isinstance(module, _pointwise()) else _SharedLinear

        def run(inputs: Tensor) -> Tensor:
            if inputs.shape[:-1] != (batch, positions):  # not one row per token: perhaps the tokens of one expert
                return forward(inputs)
            output: Tensor = kind.apply(inputs, forward, module, lanes)  # type: ignore[no-untyped-call]
            return output

        return run

    def shares(module: nn.Module) -> bool:
        return isinstance(module, _pointwise()) or (linear and type(module) in _linear())

    return overridden({module: shared(module) for module in filter(shares, model.modules())})


def _on_all(states: Tensor, lanes: int) -> Tensor:
    """Copy the states of the first lane of each prompt to all of its lanes; the copy is no view."""
    return states.index_select(0, torch.arange(len(states) * lanes, device=states.device) // lanes)


class _SharedSlope(torch.autograd.Function):
    """A pointwise function, whose derivative from either side is a product with its slope."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, function: Callable[[Tensor], Tensor], _module: nn.Module, lanes: int) -> Any:
        with torch.enable_grad():
            lane = inputs[::lanes].detach().contiguous().requires_grad_(True)
            output = function(lane)
            (slope,) = torch.autograd.grad(output.sum(), lane)
        ctx.save_for_backward(slope)
        ctx.save_for_forward(slope)
        ctx.lanes = lanes
        return _on_all(output.detach(), lanes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _SharedSlope._times_slope(ctx, gradients[0]), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        return _SharedSlope._times_slope(ctx, tangents[0])

    @staticmethod
    def _times_slope(ctx: Any, states: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        product: Tensor = states.unflatten(0, (-1, ctx.lanes)) * slope[:, None]
        return product.flatten(0, 1)


class _SharedLinear(torch.autograd.Function):
    """A linear layer, whose derivative is a product with its weight, from either side."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, function: Callable[[Tensor], Tensor], module: nn.Module, lanes: int) -> Any:
        weight: Any = module.weight
        ctx.weight = weight if isinstance(module, nn.Linear) else weight.T  # (outputs, inputs)
        return _on_all(function(inputs[::lanes].contiguous()), lanes)  # Conv1D takes no view of them

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return gradients[0] @ ctx.weight, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Any:
        return tangents[0] @ ctx.weight.T


@cache
def _pointwise() -> tuple[type[nn.Module], ...]:
    """Return the classes of activations that treat every element alike."""
    from transformers.activations import ACT2CLS

    named: list[Any] = [entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values()]
    return (*named, nn.GELU, nn.SiLU, nn.ReLU, nn.Tanh, nn.Sigmoid)


@cache
def _linear() -> tuple[type[nn.Module], ...]:
    """Return the classes of linear layers with a plain weight; their subclasses may do something else."""
    from transformers.pytorch_utils import Conv1D

    return nn.Linear, Conv1D
