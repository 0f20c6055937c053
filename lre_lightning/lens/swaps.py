"""Swaps along lenses: what a lens reads at a subject for its object and for another one is exchanged there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor
from torch.autograd.functional import vjp
from torch.nn.functional import normalize, one_hot
from torch.nn.utils.rnn import pad_sequence

from lre_lightning.grid import Layer
from lre_lightning.lens.prompt_sets import LAST, SUBJECT, Asked, PromptSet
from lre_lightning.lre.lens import Lens
from lre_lightning.lre.moving import exchange
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.relations.relation import draw_order


@dataclass(frozen=True)
class LensSwaps:
    """Counts of swaps along one lens over the facts of one relation.

    Attributes:
        relation: The relation.
        lens: The kind of lens.
        layer: The layer of the swaps.
        edits: Their number.
        swapped: Those after which the LM says the other object.
        control: The same for displacements in random directions, each as long as the swap's.
        length: The mean length of the displacement, relative to that of the hidden state.
        seconds: Time that they took.
    """

    relation: str
    lens: str
    layer: Layer
    edits: int
    swapped: int
    control: int
    length: float
    seconds: float


def lens_swaps(lm: LanguageModel, prompts: PromptSet, lenses: Mapping[str, Lens], layer: Layer) -> Iterator[LensSwaps]:
    """Swap at the subject's last token, at one layer, along each lens that reads it.

    The other object is that of another of the prompts, which a hash draws. A lens that scores objects must score both;
    edits are those that all such lenses can make.

    Raises:
        LREError: If a number is not finite.
    """
    readers = {name: lens for name, lens in lenses.items() if lens.reads(layer)}
    scored = [set(lens.scored) for lens in readers.values() if lens.scored is not None]
    asked = [one for one in prompts.prompts if all(one.object in some for some in scored)]
    targets = [_target(one, asked) for one in asked]
    edits = [(one, target) for one, target in zip(asked, targets, strict=True) if target is not None]
    if not edits:
        return
    asked = [one for one, _ in edits]
    tokens = torch.tensor([[one.words[0][0], target.words[0][0]] for one, target in edits])
    ids = pad_sequence([torch.tensor(one.ids) for one in asked], batch_first=True)
    runs = PromptBatch(lm, ids, *(torch.tensor([one.places[place] for one in asked]) for place in (SUBJECT, LAST)))
    states = runs.hidden_states([layer], keep=True)[0][:, 0].float()
    noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).to(states)
    for name, lens in readers.items():
        began = perf_counter()
        if lens.scored is None:
            rows = lm.unembedding(tokens.flatten().to(lm.device)).detach().to(states)
        else:
            wanted = [lens.scored.index(str(one.object)) for pair in edits for one in pair]
            rows = one_hot(torch.tensor(wanted), len(lens.scored)).to(states)
        pairs = _directions(lens, layer, rows, states).reshape(len(edits), 2, -1)
        moved = exchange(states, pairs)
        lengths = (moved - states).norm(dim=-1, keepdim=True)
        variants = torch.stack([moved, states + lengths * normalize(noise, dim=-1)], 1)
        answers = lm.predict(runs.patched(layer, variants)).cpu()
        swapped, control = (answers == tokens[:, 1:]).sum(0).tolist()
        length = float((lengths[:, 0] / states.norm(dim=-1)).mean())
        yield LensSwaps(prompts.name, name, layer, len(edits), swapped, control, length, perf_counter() - began)


def _target(one: Asked, asked: Sequence[Asked]) -> Asked | None:
    """Draw another prompt whose object has another first token; None if there is none."""
    others = [other for other in asked if other.words != one.words]
    return min(others, key=lambda other: draw_order(one.ids, other.ids), default=None)


def _directions(lens: Lens, layer: Layer, rows: Tensor, states: Tensor) -> Tensor:
    """Return the gradients of a lens's outputs along rows, `(rows, hidden)`: M^T u of a lens M h + b."""
    zeros = states.new_zeros(len(rows), states.shape[-1])
    found: Tensor = vjp(lambda hidden: lens.read(hidden[None], [layer])[0].to(rows), zeros, rows)[1]
    return found
