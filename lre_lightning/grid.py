"""The grid that LREs are scored on: layers, betas and ranks, and checks of their values, without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from lre_lightning.errors import LREError
from lre_lightning.storage.plain import whole
from lre_lightning.storage.typed import Checked

Layer: TypeAlias = int | Literal["emb"]
"""``"emb"``, the output of the token embedding, or the index of a decoder block, 0 to layers - 1."""

MOST_LAYERS, WIDEST = 10_000, 2**16
"""Upper bounds on the layers and the width of an LM."""

DEFAULT_BETAS = tuple(step / 4 for step in range(21))


def default_ranks(hidden_size: int) -> list[int]:
    """Return powers of two from 4 to 256 or the width of the hidden states; the width alone if it is below 4."""
    largest = min(hidden_size, 256)
    return [2**power for power in range(2, largest.bit_length()) if 2**power <= largest] or [hidden_size]


def usual_rank(hidden_size: int) -> int:
    """Return an eighth of the width of the hidden states, but at most 128: about the rank of the best edits."""
    return min(max(1, hidden_size // 8), 128)


def check_betas(betas: Sequence[float]) -> tuple[float, ...]:
    """Return `betas` sorted, without repetition; each must be finite and at least 0."""
    for beta in betas:
        if not 0 <= beta < math.inf:
            raise LREError(f"beta {beta} is out of range: it must be a finite number of at least 0, such as 2.25")
    return tuple(sorted({float(beta) for beta in betas}))


def check_ranks(ranks: Sequence[int], largest: int, what: str = "the width of the hidden states") -> tuple[int, ...]:
    """Return `ranks` sorted, without repetition; each must be in 1 to `largest`, which `what` names in the error."""
    for rank in ranks:
        if not 1 <= rank <= largest:
            raise LREError(f"rank {rank} is out of range: it must be 1 to {largest}, {what}")
    if not ranks:
        raise LREError("no rank is given: name at least one, such as 8")
    return tuple(sorted(set(ranks)))


def layer_of(value: object, what: str) -> Layer:
    """Check a layer: ``"emb"`` or the index of a block."""
    return "emb" if value == "emb" and isinstance(value, str) else whole(value, what, most=MOST_LAYERS)


def rank_of(value: object, what: str) -> int:
    """Check a rank."""
    return whole(value, what, 1, WIDEST)


CheckedLayer = Annotated[Layer, Checked(layer_of)]
CheckedRank = Annotated[int, Checked(rank_of)]


def place_of(layer: Layer) -> int:
    """Return the place of a layer in the order of an LM's layers: the embedding, -1, comes before block 0."""
    return -1 if layer == "emb" else layer


def spans(layers: Sequence[Layer], among: Sequence[Layer]) -> str:
    """Return layers as text, neighbours among all that were tried as one span: ``"emb-3, 7"``."""
    parts: list[list[Layer]] = []
    for place, layer in enumerate(among):
        if layer in layers:
            if not parts or among[place - 1] != parts[-1][-1]:
                parts.append([])
            parts[-1].append(layer)
    return ", ".join(f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
