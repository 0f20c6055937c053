"""Products with the Jacobian of a function of states, from either side, for many vectors at the same states."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

Function: TypeAlias = Callable[[Tensor], Tensor]
JacobianProduct: TypeAlias = Callable[[Function, Tensor, Tensor], Tensor]
"""Takes F, states x and as many vectors, of one shape; returns F'(x) v or F'(x)^T v for each."""


def vjp(function: Function, states: Tensor, vectors: Tensor) -> Tensor:
    """Return F'(x)^T v, in reverse mode."""
    with torch.enable_grad():
        given = states.detach().requires_grad_(True)
        output = function(given)
        (product,) = torch.autograd.grad(output, given, vectors.to(output), materialize_grads=True)
    return product


def jvp(function: Function, states: Tensor, vectors: Tensor) -> Tensor:
    """Return F'(x) v, in forward mode.

    Fused attention has no derivative in this mode, so plain products are used where the model does not ask for them.

    Raises:
        RuntimeError: If an operation of the model has no such derivative.
    """
    with torch.no_grad(), forward_ad.dual_level(), sdpa_kernel(SDPBackend.MATH):
        tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(states, vectors))).tangent
    return torch.zeros_like(vectors) if tangent is None else tangent


def double_vjp(function: Function, states: Tensor, vectors: Tensor) -> Tensor:
    """Return F'(x) v as the gradient of v . F'(x)^T u with respect to u, which takes two passes in reverse mode.

    Raises:
        RuntimeError: If the backward pass of an operation of the model has no derivative.
    """
    with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
        given = states.detach().requires_grad_(True)
        output = function(given)
        cotangents = torch.zeros_like(output, requires_grad=True)
        (back,) = torch.autograd.grad(output, given, cotangents, create_graph=True, materialize_grads=True)
        if not back.requires_grad:
            return torch.zeros_like(vectors)
        (product,) = torch.autograd.grad(back, cotangents, vectors, materialize_grads=True)
    return product
