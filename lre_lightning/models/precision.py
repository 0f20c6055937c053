"""What an LM's dtype does to its results: whether two are equal up to rounding, and whether one has overflowed.

No fixed tolerance can tell what is rounding: in 16 bits a broken LM may be as near as 2%, and a right one no nearer.
The yardsticks are measured on the LM itself: what other roundings change, and what another input changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError
from lre_lightning.models.hooks import replace

LEAST = 1e-4
"""Relative error that counts as rounding in any dtype: many models compute parts in float32, some GPUs in 19 bits."""
TIMES = 2
"""How much larger an error may be than the change by other roundings; right LMs stay below 1.6, broken ones above."""


def neighbour(states: Tensor) -> Tensor:
    """Return hidden states that are rounded otherwise: each number, up or down, is moved by one unit of precision."""
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, states.shape, generator=generator).to(states) * 2 - 1
    return states * (1 + torch.finfo(states.dtype).eps * signs)


@contextmanager
def rounded_otherwise(modules: Iterable[nn.Module], first: int = 0) -> Iterator[None]:
    """Let modules return a `neighbour` of their hidden states within the context, from one prompt of a batch on."""

    def changed(states: Tensor) -> Tensor:
        return torch.cat([states[:first], neighbour(states[first:])])

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(replace(module, changed))
        yield


def agrees(found: Tensor, right: Tensor, roundings: tuple[Tensor, Tensor], wrong: Tensor) -> bool:
    """Return True if a result is right up to rounding, and nearer to the right one than the wrong one is.

    Args:
        found: The result that is checked.
        right: What it should be.
        roundings: A result twice, computed alike and rounded otherwise.
        wrong: A result that must not be taken for the right one, such as that of another input.
    """
    error = _distance(found, right)
    allowed = max(TIMES * _distance(*roundings), LEAST * _distance(right, torch.zeros_like(right)))
    return error <= min(allowed, 0.5 * _distance(wrong, right))  # False for NaN


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the norm of a difference; minus infinity, by which models exclude tokens, counts as zero."""
    one, other = (tensor.detach().cpu().double() for tensor in (one, other))
    one, other = (tensor.masked_fill(tensor == -torch.inf, 0) for tensor in (one, other))
    return float((one - other).norm())


def check_finite(numbers: Tensor, what: str) -> None:
    """Check numbers that an LM has computed; `what` begins the error, such as "the Jacobian of gpt2 is".

    Raises:
        LREError: If one of them is not finite.
    """
    if numbers.numel() and not torch.isfinite(torch.stack(torch.aminmax(numbers))).all():  # 30 times faster on CPUs
        if numbers.dtype == torch.float16:
            raise LREError(
                f"{what} not finite in float16, which overflows at 65504: load the LM in bfloat16 or float32"
            )
        raise LREError(f"{what} not finite in {str(numbers.dtype).removeprefix('torch.')}: its weights may be damaged")


def check_logits(logits: Tensor, name: str) -> None:
    """Check logits `(..., vocab)` of an LM of that name; it may exclude tokens, but not all, by minus infinity."""
    check_finite(logits.amax(-1), f"the logits of {name} are")
