"""Answers at many points near one another, such as beta W s + b for many betas, from few unembeddings.

D is a norm and an unembedding. The norm turns a line of outputs into states that lie in a space of two dimensions, or
three with a shift: only their lengths differ from a line's. So the unembedding of a basis of that space gives the
logits of all points as sums, for as many products as the basis has vectors. Nothing of this is assumed: the space is
found from the states, and an answer that rounding could change, or a D of another kind, is computed as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lre_lightning.models.hooks import overridden
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.placement import is_offloaded

MOST_DIRECTIONS = 3
"""Largest number of dimensions of the space of states that is used."""

WORTHWHILE = 2**22
"""Least number of weights of an unembedding for which this pays."""

TOLERANCE = 32
"""Rounding errors that sums of logits may have beside plain ones, in units of the precision times the norms."""


@torch.no_grad()
def predict_points(lm: LanguageModel, output: Tensor) -> Tensor:
    """Return the answers, argmax D(output), as `lm.predict` does.

    Args:
        lm: The language model.
        output: Outputs of the last decoder block, or of LREs, `(rows, points, hidden)`, in any floating dtype. It is
            fast where the points of each row lie on a line.

    Returns:
        Token ids `(rows, points)`, int64, on the device of `output`.
    """
    rows, points = output.shape[:2]
    small = output.device.type == "mps" or lm.vocab_size * lm.hidden_size < WORTHWHILE
    if small or points <= MOST_DIRECTIONS or not rows or not reads_linearly(lm):
        return lm.predict(output)
    linear = unembedding_of(lm)
    states = states_before(lm, output)
    basis = _basis(states)
    if basis is None:
        return lm.predict(output)
    coordinates = states @ basis.mT
    precision = TOLERANCE * torch.finfo(states.dtype).eps
    lengths = states.norm(dim=-1)
    close = (states - coordinates @ basis).norm(dim=-1) <= precision * lengths
    longest = linear.weight.norm(dim=1).max()
    answers = torch.empty(rows, points, dtype=torch.long, device=states.device)
    buffer = states.new_empty(points, len(linear.weight))
    some = lm.logit_rows(rows * basis.shape[1]) // basis.shape[1] or 1
    for start in range(0, rows, some):
        for row, logits in enumerate(basis[start : start + some] @ linear.weight.T, start):
            each = torch.mm(coordinates[row], logits, out=buffer)
            if linear.bias is not None:
                each += linear.bias
            best = each.amax(-1)
            answers[row] = _where(each, best)
            each.scatter_(-1, answers[row, :, None], -torch.inf)
            close[row] &= best - each.amax(-1) > precision * lengths[row] * longest
    answers, unsure = answers.to(output.device), (~close).to(output.device)
    answers[unsure] = lm.predict(output[unsure])
    return answers


def _where(logits: Tensor, best: Tensor) -> Tensor:
    """Return where each row of `logits` has its largest value, `best`, with one search for all rows that agree."""
    answers, rest = torch.zeros_like(best, dtype=torch.long), torch.ones_like(best, dtype=torch.bool)
    while rest.any():
        first = rest.long().argmax()
        answer = logits[first].argmax()
        agreeing = rest & (logits[:, answer] == best)
        agreeing[first] = True  # also where it is not a number
        answers[agreeing] = answer
        rest &= ~agreeing
    return answers


def _basis(states: Tensor) -> Tensor | None:
    """Return an orthonormal basis of each row's states, `(rows, directions, width)`; None if it would be too large.

    The states are `(rows, points, width)`.
    """
    wide = states.double()
    products = wide @ wide.mT
    if not torch.isfinite(products).all():
        return None
    values, vectors = torch.linalg.eigh(products)
    rounding = max((states.shape[1] * torch.finfo(states.dtype).eps) ** 2, 64 * torch.finfo(wide.dtype).eps)
    directions = int((values > rounding * values[:, -1:]).sum(1).max())
    if directions > MOST_DIRECTIONS:
        return None
    chosen = vectors[..., -directions:].mT @ wide
    basis: Tensor = torch.linalg.qr(chosen.mT).Q.mT.to(states.dtype)
    return basis


def unembedding_of(lm: LanguageModel) -> nn.Linear:
    """Return the LM's unembedding, which is a linear layer if `reads_linearly`."""
    linear: nn.Linear = lm.parts.unembedding  # type: ignore[assignment]
    return linear


@torch.no_grad()
def states_before(lm: LanguageModel, output: Tensor) -> Tensor:
    """Return what D gives to the unembedding for outputs `(..., hidden)`: `(..., width)`."""
    seen: list[Tensor] = []

    def keep(states: Tensor) -> Tensor:
        seen.append(states)
        return states[..., :1]

    with overridden({lm.parts.unembedding: keep}):
        lm.decode(output)
    return seen[0].reshape(*output.shape[:-1], -1)


def reads_linearly(lm: LanguageModel) -> bool:
    """Return True if the order of an LM's logits is that of the products with its unembedding; found by trying."""
    if lm.linear_head is None:
        lm.linear_head = _reads_linearly(lm)
    return lm.linear_head


@torch.no_grad()
def _reads_linearly(lm: LanguageModel) -> bool:
    linear = lm.parts.unembedding
    if type(linear) is not nn.Linear or is_offloaded(linear) or not linear.weight.is_floating_point():
        return False
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([[0.1], [1.0], [10.0], [100.0]])
    output = (scales * torch.randn(4, lm.hidden_size, generator=generator)).to(lm.device, lm.dtype)
    try:
        plain, products = lm.decode(output), linear(states_before(lm, output))
    except Exception:  # what comes after the unembedding may need all of its outputs
        return False
    if plain.shape != products.shape:
        return False
    in_order = plain.gather(-1, products.argsort(-1))
    slack = TOLERANCE * torch.finfo(plain.dtype).eps * plain.abs().amax(-1, keepdim=True)
    return bool((in_order.diff(dim=-1) >= -slack).all())
