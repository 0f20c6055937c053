"""The low-rank inverse at width 4096, up to rank 256, against the full SVD and the time of the Jacobians.

Run with `python -m benchmarks.inverse`. W has a few large singular values and a flat rest, as it does when most of s
passes through unchanged, or singular values that fall slowly.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.common import CONTEXT, SUFFIX, table, timed
from lre_lightning.lre.jacobian import _fitting_lanes, _suffix_graph
from lre_lightning.lre.triplets import leading_singular_triplets
from lre_lightning.models.language_model import LanguageModel

WIDTH, RANKS, PROMPTS = 4096, (64, 256), 8


def flat() -> Tensor:
    """Return the sum of 0.3 times the identity, noise, and 200 directions of falling size."""
    generator = torch.Generator().manual_seed(0)
    noise, left, right = (torch.randn(WIDTH, n, generator=generator) for n in (WIDTH, 200, 200))
    return 0.3 * torch.eye(WIDTH) + 0.6 * noise / WIDTH**0.5 + (left * torch.logspace(1, -1, 200)) @ right.T / WIDTH


def falling() -> Tensor:
    """Return a matrix of random singular vectors whose singular value i is 1 / sqrt(i)."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator)).Q for _ in range(2))
    return (left / torch.arange(1, WIDTH + 1).sqrt()) @ right.T


def jacobian_seconds() -> float:
    """Estimate the seconds for the Jacobians of a trial through one block of GPT-J's shape from one chunk of rows."""
    from transformers import AutoModelForCausalLM, GPTJConfig

    torch.manual_seed(0)
    config = GPTJConfig(n_layer=1, vocab_size=1000, bos_token_id=0, eos_token_id=0)
    lm = LanguageModel(AutoModelForCausalLM.from_config(config), name="a block of GPT-J's shape")
    ids, layers = torch.randint(1000, (CONTEXT + SUFFIX,)), ("emb",)
    prefix, suffix = lm.prefix(ids[None, :CONTEXT]), ids[None, CONTEXT:]
    lanes = _fitting_lanes(lm, suffix, prefix, layers)
    nodes, output = _suffix_graph(lm, suffix, lanes, prefix, layers, lm.layers[-1])
    wanted = [nodes[layer] for layer in layers]

    def chunk() -> None:
        torch.autograd.grad(output[:, -1], wanted, torch.ones_like(output[:, -1]), retain_graph=True)

    return min(timed(chunk)[0] for _ in range(3)) * WIDTH / lanes * PROMPTS


def main() -> None:
    """Print the table."""
    rows: list[list[str]] = []
    for name, weight in (("flat", flat()), ("1 / sqrt(i)", falling())):
        full, (left, values, right_t) = timed(torch.linalg.svd, weight)
        rows.append([name, "full SVD", f"{full:.2f}", "1", ""])
        for rank in RANKS:
            seconds, (u, s, v) = timed(leading_singular_triplets, weight, rank)
            expected = (right_t[:rank].T / values[:rank]) @ left[:, :rank].T
            error = float(((v / s) @ u.T - expected).norm() / expected.norm())
            assert error < 1e-3, error
            torch.testing.assert_close(s, values[:rank], rtol=1e-4, atol=1e-5)
            rows.append([name, f"to rank {rank}", f"{seconds:.2f}", f"{full / seconds:.1f}", f"{error:.0e}"])
    trial = f"Jacobians of {PROMPTS} prompts through one block of GPT-J's shape"
    rows.append(["", trial, f"{jacobian_seconds():.0f}", "", ""])
    notes = [
        "The last column is the relative difference of the inverses (Frobenius norm). The time of the Jacobians is "
        "extrapolated from one chunk of rows.",
    ]
    header = ["singular values", "way", "seconds", "times faster", "difference"]
    print(table(f"Low-rank inverse, width {WIDTH}", header, rows, notes))


if __name__ == "__main__":
    main()
