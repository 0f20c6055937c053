"""The grid of hyperparameters that LREs are scored on: betas and ranks (layers are the LM's to check)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lre_lightning.errors import LREError

DEFAULT_BETAS = tuple(step / 4 for step in range(21))
MAX_DEFAULT_RANK = 256


def default_ranks(hidden_size: int) -> list[int]:
    """Powers of two from 4 to 256 or the width of the hidden states, whichever is less; a narrower LM has its width."""
    largest = min(hidden_size, MAX_DEFAULT_RANK)
    return [2**power for power in range(2, largest.bit_length()) if 2**power <= largest] or [hidden_size]


def check_betas(betas: Sequence[float]) -> tuple[float, ...]:
    """Return `betas` sorted, without repetition.

    Raises:
        LREError: If one is not a finite number.
    """
    for beta in betas:
        if not math.isfinite(beta):
            raise LREError(f"beta {beta} is out of range: it must be a finite number, such as 2.25")
    return tuple(sorted({float(beta) for beta in betas}))


def check_ranks(ranks: Sequence[int], largest: int, what: str = "the width of the hidden states") -> tuple[int, ...]:
    """Return `ranks` sorted, without repetition; the largest that there may be is what `what` says.

    Raises:
        LREError: If there is none, or one is not in 1 to `largest`.
    """
    for rank in ranks:
        if not 1 <= rank <= largest:
            raise LREError(f"rank {rank} is out of range: it must be 1 to {largest}, {what}")
    if not ranks:
        raise LREError("no rank is given: name at least one, such as 8")
    return tuple(sorted(set(ranks)))
