"""Logits of many hidden states that lie in few dimensions, as those of LREs do whose W is kept in factors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

MOST = 64
"""The most dimensions that are looked for: more than the factors of a collection's W."""
LEAST = 2**31
"""Multiplications from which looking for them takes a small part of the time."""
ROUNDING = 16
"""How far states may lie outside of them, in units of precision of their norm."""


def unembed(forward: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """Return what an unembedding's `forward` makes of its inputs `(..., width)`, in few dimensions if they lie in few.

    That is found by trying, and the logits are exact up to rounding: whatever the final norm is, its outputs for W in
    factors have as many dimensions as factors and constants. Only a plain linear layer on a CPU is not run itself.
    """
    flat = states.reshape(-1, states.shape[-1])
    layer: Any = getattr(forward, "__self__", None)
    plain = getattr(forward, "__func__", None) is nn.Linear.forward and not states.requires_grad
    if plain and states.device.type == "cpu" and states.dtype in (torch.float32, torch.float64):
        large = len(flat) >= 4 * MOST and len(flat) * layer.weight.numel() >= LEAST
        if large and (basis := span(flat)) is not None:
            return linear(flat @ basis, layer.weight @ basis, layer.bias).reshape(*states.shape[:-1], -1)
    return forward(states)


def span(states: Tensor) -> Tensor | None:
    """Return an orthonormal basis `(width, dimensions)` of what states `(states, width)` span; None above `MOST`."""
    wide = states.double()
    mixed = torch.randn(MOST, len(wide), generator=torch.Generator().manual_seed(0), dtype=wide.dtype) @ wide
    _, values, basis = torch.linalg.svd(mixed, full_matrices=False)
    precision = torch.finfo(states.dtype).eps
    basis = basis[values > precision * values[0]].T
    outside = (wide - (wide @ basis) @ basis.T).norm(dim=-1)
    if not (outside <= ROUNDING * precision * wide.norm(dim=-1)).all():  # nor if a state is not finite
        return None
    return basis.to(states.dtype)
