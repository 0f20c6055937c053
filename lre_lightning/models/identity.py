"""What an LM computes, in a few numbers: by them lenses know their LM, however and wherever it was loaded.

The numbers are fixed projections of the hidden states after the middle and the last block, and of logits, on prompts of
fixed token ids. They change with whatever those depend on: weights, an adapter, positions, masks, norms, how a version
of a library reads a config. Rounding changes them too, by 0.4 to 0.9 eps sqrt(blocks) in LMs of 6 to 30 blocks, with
eps of the dtype: every block rounds its output.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError, check_choice
from lre_lightning.models.parts import context_length, weight_of
from lre_lightning.models.precision import check_finite, check_logits
from lre_lightning.storage.plain import text, whole
from lre_lightning.storage.typed import Checked, Name

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel

PROMPTS, POSITIONS, OWN_POSITIONS = 2, 128, 24
"""Number and length of the prompts; the last for a model without a config, whose context length is not known."""

TOKENS = 2**14
"""Token ids are below this, and below a power of two that the vocabulary has, so that a token may be added to it."""

NUMBERS = 24
"""How many numbers each of the two layers and the logits have."""

EXACT = 1e-3
"""The largest difference between equal LMs in float32; other orders of sums make less than 1e-5."""


def _check_numbers(value: object, what: str) -> str:
    try:
        numbers = _decoded(text(value, what, longest=1000))
    except (ValueError, RuntimeError):
        numbers = torch.full((1,), torch.nan)
    if len(numbers) != 3 * NUMBERS or not numbers.isfinite().all():
        raise LREError(f"{what} must be {3 * NUMBERS} finite numbers in float32, as base64")
    return str(value)


def _check_dtype(value: object, what: str) -> str:
    check_choice(what, value, ("float64", "float32", "bfloat16", "float16"))
    return str(value)


def _decoded(numbers: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(numbers, validate=True)), dtype=torch.float32).double()


@dataclass(frozen=True)
class Identity:
    """What an LM computes, and under what it did so.

    Attributes:
        numbers: `NUMBERS` numbers in float32 for each of two layers and the logits, as base64. The first one of a layer
            is the mean logarithm of the norms of its hidden states; the others project them, normalized.
        blocks: Number of decoder blocks.
        dtype: Dtype of the hidden states.
        transformers: Version of transformers.
        torch: Version of torch.
    """

    numbers: Annotated[str, Checked(_check_numbers)] = field(repr=False)
    blocks: Annotated[int, Checked(whole, least=1)]
    dtype: Annotated[str, Checked(_check_dtype)]
    transformers: Name
    torch: Name

    @classmethod
    def of(cls, lm: LanguageModel) -> Identity:
        """Run an LM on the fixed prompts.

        Raises:
            LREError: If its hidden states or logits are not finite.
        """
        import transformers

        numbers = _numbers(lm)
        dtype = str(lm.dtype).removeprefix("torch.")
        encoded = base64.b64encode(numbers.numpy().astype("float32").tobytes()).decode()
        return cls(encoded, lm.num_layers, dtype, transformers.__version__, str(torch.__version__))

    def difference(self, other: Identity) -> float:
        """Return the relative difference of what two LMs compute, the largest over both layers and the logits."""
        mine, others = (_decoded(identity.numbers).view(3, NUMBERS) for identity in (self, other))
        norms = [float(abs(first[0] - second[0])) for first, second in zip(mine[:2], others[:2], strict=True)]
        parts = zip((*mine[:2, 1:], mine[2]), (*others[:2, 1:], others[2]), strict=True)
        return max(*norms, *(2 * float((a - b).norm() / (a.norm() + b.norm()).clamp_min(1e-30)) for a, b in parts))

    def tolerance(self, other: Identity) -> float:
        """Return how much of a difference rounding explains: in 16 bits about twice the largest that was measured."""
        eps = max(torch.finfo(getattr(torch, identity.dtype)).eps for identity in (self, other))
        return max(EXACT, 2 * eps * math.sqrt(self.blocks))

    def fits(self, other: Identity) -> bool:
        """Return whether two LMs compute the same up to rounding."""
        return self.blocks == other.blocks and self.difference(other) <= self.tolerance(other)

    def comparison(self, other: Identity) -> str:
        """Say how two LMs that do not fit differ, and the versions of libraries if those do."""
        said = f"one has {self.blocks} blocks and the other {other.blocks}"
        if self.blocks == other.blocks:
            dtypes = " and ".join(dict.fromkeys((self.dtype, other.dtype)))
            said = f"their hidden states or logits on fixed tokens differ by {self.difference(other):.2g}, where "
            said += f"rounding in {dtypes} explains {self.tolerance(other):.2g}"
        versions = [f"transformers {i.transformers} and torch {i.torch}" for i in (self, other)]
        return said if versions[0] == versions[1] else f"{said} (then under {versions[0]}, now under {versions[1]})"


@torch.no_grad()
def _numbers(lm: LanguageModel) -> Tensor:
    count = min(TOKENS, lm.vocab_size, len(weight_of(lm.parts.embedding)))
    tokens = 2 ** (count.bit_length() - 1)
    known: Any = context_length(lm.model) or (POSITIONS if hasattr(lm.model, "config") else OWN_POSITIONS)
    ids = _hash(PROMPTS * min(POSITIONS, known), NUMBERS).view(PROMPTS, -1) % tokens
    layers = ((lm.num_layers - 1) // 2, lm.num_layers - 1)
    with _exact_products(), torch.autocast(lm.device.type, enabled=False):
        states = lm.hidden_states(ids.to(lm.device), layers)
        logits = lm.decode(states[layers[1]][:, -1])
    check_logits(logits, lm.name)
    logits = logits[:, :tokens].to("cpu", torch.float64)
    logits = logits.masked_fill(logits == -torch.inf, 0)  # of tokens that the LM excludes
    parts = []
    for layer in layers:
        check_finite(states[layer], f"the hidden states at layer {layer} of {lm.name} are")
        hidden = states[layer].to("cpu", torch.float64)
        norms = hidden.norm(dim=-1, keepdim=True).clamp_min(1e-30)
        parts += [norms.log().mean()[None], _projected(hidden / norms / ids.numel() ** 0.5, NUMBERS - 1)]
    return torch.cat([*parts, _projected(logits - logits.mean(-1, keepdim=True), NUMBERS)])


def _projected(values: Tensor, count: int) -> Tensor:
    """Project all values onto `count` fixed vectors of signs, which keeps distances up to about 1 / sqrt(2 count)."""
    flat = values.flatten()
    return torch.stack([flat @ ((_hash(len(flat), seed) & 1).double() * 2 - 1) for seed in range(count)])


def _hash(count: int, seed: int) -> Tensor:
    """Return whole numbers of 32 bits that look random, the same on every machine, int64 `(count,)`."""
    bits = torch.arange(count) * 2654435761 + seed * 40503 + 12345 & 0xFFFFFFFF
    for _ in range(2):
        bits = (bits ^ bits >> 16) * 0x45D9F3B & 0xFFFFFFFF
    return bits ^ bits >> 16


@contextmanager
def _exact_products() -> Iterator[None]:
    """Multiply float32 as such on GPUs, where Lightning advises its users to let products round to 10 bits."""
    matmul: Any = torch.backends.cuda.matmul
    name, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, name)
    setattr(matmul, name, exact)
    try:
        yield
    finally:
        setattr(matmul, name, before)
