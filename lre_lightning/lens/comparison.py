"""Lenses side by side: the token ranks that each gives, on the same prompts, to the words that it should read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lre_lightning.grid import Layer
from lre_lightning.lens.prompt_sets import Asked, PromptSet, states_at
from lre_lightning.lre.lens import Lens, RelationLens
from lre_lightning.metrics import token_ranks
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.precision import check_logits

FREQUENT = "most frequent objects"
"""The control that says the same at every prompt of a relation."""


@dataclass(frozen=True, eq=False)
class LensRanks:
    """What one lens makes of the prompts of one set at one place.

    Attributes:
        prompts: The name of the set.
        place: Where they are read.
        lens: The kind of lens.
        relation: Whether the set is one of a relation.
        layers: The layers, from the embedding up.
        ranks: Token ranks of the words by layer and prompt, from 1, `(layers, prompts, words)`, float32; NaN where a
            prompt has fewer words. None if the lens says no tokens.
        among: Ranks of the first token of the object among those of the relation's objects, or of the object among
            those that the lens scores, `(layers, prompts)`; infinity if it does not score the object. None if there is
            no relation.
        own: The layer that the lens was estimated at, if it is one of `layers`.
        seconds: Time that reading took.
    """

    prompts: str
    place: str
    lens: str
    relation: bool
    layers: tuple[Layer, ...]
    ranks: Tensor | None
    among: Tensor | None
    own: Layer | None
    seconds: float


def rank_lenses(
    lm: LanguageModel, prompts: PromptSet, lenses: Mapping[str, Lens], layers: Sequence[Layer]
) -> Iterator[LensRanks]:
    """Read prompts through lenses, each at those of the layers that it reads.

    A word's rank is that of its likeliest spelling. The prompts of a relation are also given to a control, which says
    the objects that are most frequent among them, at every layer.

    Raises:
        LREError: If a lens is of another LM, or a number is not finite.
    """
    asked, layers = prompts.prompts, tuple(layers)
    targets = _Targets.of(prompts, lm)
    for place, states in states_at(lm, asked, layers).items():
        for name, lens in lenses.items():
            lens.check_model(lm)
            read = tuple(layer for layer in layers if lens.reads(layer))
            began = perf_counter()
            hidden = states[[layers.index(layer) for layer in read]]
            if lens.scored is None:
                ranks, among = targets.ranks(lm, lens.read(hidden, read))
            else:
                ranks, among = None, _scored(lens.scored, lens.read(normalize(hidden.float(), dim=-1), read), asked)
            own = lens.layer if isinstance(lens, RelationLens) and lens.layer in read else None
            seconds = perf_counter() - began
            relation = prompts.objects is not None
            yield LensRanks(prompts.name, place, name, relation, read, ranks, among, own, seconds)
        if prompts.objects is not None:
            tokens = [one.words[0][0] for one in asked]
            order = [token for token, _ in Counter(tokens).most_common()]
            ranks = torch.tensor([order.index(token) + 1.0 for token in tokens]).expand(len(layers), -1)
            yield LensRanks(prompts.name, place, FREQUENT, True, layers, ranks[..., None], ranks, None, 0.0)


@dataclass(frozen=True, eq=False)
class _Targets:
    """What is looked for: `words` are `(prompts, words, spellings)`, filled up with -1, and `objects` `(objects,)`."""

    words: Tensor
    objects: Tensor | None

    @classmethod
    def of(cls, prompts: PromptSet, lm: LanguageModel) -> _Targets:
        asked = prompts.prompts
        shape = max(len(one.words) for one in asked), max(len(word) for one in asked for word in one.words)
        words = torch.full((len(asked), *shape), -1)
        for row, one in enumerate(asked):
            for column, word in enumerate(one.words):
                words[row, column, : len(word)] = torch.tensor(word)
        objects = None if prompts.objects is None else torch.tensor(sorted({*prompts.objects.values()}))
        return cls(words.to(lm.device), None if objects is None else objects.to(lm.device))

    def ranks(self, lm: LanguageModel, outputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return `LensRanks.ranks` and `among` of outputs of the last block, `(layers, prompts, hidden)`."""
        flat = outputs.flatten(0, 1)
        rows = torch.arange(len(self.words), device=self.words.device).repeat(len(outputs))

        def decode(size: int) -> tuple[Tensor, Tensor]:
            ranks, among = [], []
            for states, some in zip(flat.split(size), rows.split(size), strict=True):
                logits = lm.decode(states)
                check_logits(logits, lm.name)
                words = self.words[some].to(logits.device)
                found = logits[:, None].expand(-1, words.shape[1], -1).gather(2, words.clamp(min=0))
                best = words.gather(2, found.masked_fill(words < 0, -torch.inf).argmax(2, keepdim=True))[..., 0]
                columns = [token_ranks(logits, column.clamp(min=0)) + 1.0 for column in best.unbind(1)]
                ranks.append(torch.stack(columns, 1).masked_fill(best < 0, torch.nan).cpu())
                if self.objects is not None:
                    objects = self.objects.to(logits.device)
                    wanted = (objects == best[:, :1]).int().argmax(1)
                    among.append(token_ranks(logits[:, objects], wanted).cpu() + 1.0)
            return torch.cat(ranks), torch.cat(among) if among else torch.empty(0)

        ranks, among = lm.chunk_sizes.run("decoded hidden states", lm.logit_rows(len(flat)), decode)
        shape = outputs.shape[:2]
        return ranks.reshape(*shape, -1), None if self.objects is None else among.reshape(shape)


def _scored(objects: Sequence[str], scores: Tensor, asked: Sequence[Asked]) -> Tensor:
    """Return the ranks of the objects of prompts among those that a lens scores, by `(layers, prompts, objects)`."""
    wanted = torch.tensor([objects.index(one.object) if one.object in objects else -1 for one in asked])
    ranks = token_ranks(scores.movedim(0, 1), wanted.clamp(min=0).to(scores.device)).cpu() + 1.0
    return ranks.T.masked_fill(wanted < 0, torch.inf)
