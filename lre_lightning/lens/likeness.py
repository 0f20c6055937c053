"""Where the lens of a relation says nothing: at hidden states that are not like those of its subjects.

An LRE answers at every token, at subjects and at commas alike, and its answers hardly tell one from the other. How like
those of the training subjects a hidden state is does tell (see `docs/results.md`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE, origins_of
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import fill, tokenize_text
from lre_lightning.scoring.baselines import example_states

FALSE_ALARMS = 0.05
"""The share of tokens about something else at which a lens may speak."""
SENTENCES = 4
"""Number of sentences of each other relation."""


@dataclass(frozen=True, eq=False)
class Likeness:
    """How like those of an LRE's training subjects hidden states are: the highest cosine, both less `centre`.

    Attributes:
        train: s of the training samples, `(layers, samples, hidden)`, float32 or wider.
        centre: The mean hidden state of tokens about something else, `(layers, 1, hidden)`.
        limits: The likeness that few of these tokens exceed, `(layers,)`.
    """

    train: Tensor
    centre: Tensor
    limits: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls, lm: LanguageModel, origin: Origin, others: Tensor, layers: Sequence[Layer], false_alarms: float
    ) -> Self:
        """Run the prompts that an LRE was estimated from, and set a limit for each layer.

        Args:
            lm: The LM.
            origin: The origin of the LRE.
            others: Hidden states of tokens about something else, `(layers, tokens, hidden)`.
            layers: The layers.
            false_alarms: The share of further such tokens that exceed the limit, at most and on average (conformal).

        Raises:
            LREError: If the origin does not say which prompts these were.
        """
        if not origin.train:
            raise LREError(f"the LRE of {origin.relation!r} does not say which prompts it was estimated from")
        prompts = [origin.prompt(lm, subject) for subject, _ in origin.train]
        train, centre = example_states(lm, prompts, layers)[:-1], others.mean(1, keepdim=True)
        limits = [threshold(values, false_alarms) for values in likeness(others, train, centre)]
        return cls(train, centre, torch.stack(limits))

    def __call__(self, states: Tensor) -> Tensor:
        """Return the likeness of hidden states `(layers, tokens, hidden)`: cosines, `(layers, tokens)`."""
        return likeness(states.to(self.centre), self.train, self.centre)

    def silent(self, states: Tensor) -> Tensor:
        """Return where hidden states `(layers, tokens, hidden)` are too little like them, `(layers, tokens)`, bool."""
        return self(states) <= self.limits[:, None]

    def at(self, row: int) -> Self:
        """Return that of one layer, by its place among the layers."""
        return replace(self, train=self.train[row, None], centre=self.centre[row, None], limits=self.limits[row, None])


def likeness(states: Tensor, train: Tensor, centre: Tensor) -> Tensor:
    """Return the highest cosine of states `(..., states, hidden)` with those of training samples, both less `centre`.

    Returns:
        `(..., states)`.
    """
    return (normalize(states - centre, dim=-1) @ normalize(train - centre, dim=-1).mT).amax(-1)


def threshold(values: Tensor, rate: float = FALSE_ALARMS) -> Tensor:
    """Return the value that a share of `rate` of values exceed, conformal: at most that of further ones on average.

    It is infinite with fewer than 1 / rate - 1 values.
    """
    place = int((len(values) + 1) * rate)
    return values.sort(descending=True)[0][place - 1] if place else values.new_tensor(torch.inf)


class Likenesses:
    """The likeness of hidden states to the subjects of each of several LREs, at some layers.

    Tokens about something else are those of the sentences that LREs of other relations were estimated from: of each
    that shares no subject and no object with the LRE, the first four.

    Args:
        lm: The LM that the LREs were estimated from, with its tokenizer.
        lres: LREs by relation and trial; of several trials of a relation the first is used.
        layers: The layers; all if None.
        false_alarms: The share of tokens about something else at which a lens may speak.

    Raises:
        LREError: If `false_alarms` is not between 0 and 1, or an LRE does not say what it was estimated from.
    """

    @torch.no_grad()
    def __init__(
        self,
        lm: LanguageModel,
        lres: Mapping[tuple[str, int], LRE],
        layers: Sequence[Layer] | None = None,
        false_alarms: float = FALSE_ALARMS,
    ) -> None:
        check_false_alarms(false_alarms)
        self.lm, self.layers, self.false_alarms = lm, lm.check_layers(layers), false_alarms
        self._origins = origins_of(lres)
        self._made: dict[str, Likeness] = {}
        self._sentences: dict[str, list[Tensor]] = {name: [] for name in self._origins}
        dtype = torch.promote_types(lm.dtype, torch.float32)
        by_length: dict[tuple[int, int], list[tuple[str, tuple[int, ...]]]] = {}
        for name, origin in self._origins.items():
            for subject, answer in origin.train[:SENTENCES]:
                text, start = f"{fill(origin.first_template, subject)} {answer}", origin.form["start_token"]
                ids, first = tokenize_text(lm.tokenizer, text, start)
                by_length.setdefault((len(ids), first), []).append((name, ids))
        for (_, first), sentences in by_length.items():
            run = lm.hidden_states(torch.tensor([ids for _, ids in sentences], device=lm.device), self.layers)
            hidden = torch.stack([run[layer].to(lm.device, dtype) for layer in self.layers], 1)
            for (name, _), states in zip(sentences, hidden, strict=True):
                self._sentences[name].append(states[:, first + 1 :])  # those before saw nothing of the text

    def __getitem__(self, relation: str) -> Likeness:
        """Return that of a relation.

        Raises:
            LREError: If no other relation is about something else.
        """
        if relation not in self._made:
            sentences = self._far(relation)
            if not sentences:
                raise LREError(
                    f"where the lens of {relation!r} says nothing is found by relations that share no subject or "
                    "object with it, and there is no LRE of such a one: let it speak everywhere, or add LREs"
                )
            others, origin = torch.cat(sentences, 1), self._origins[relation]
            self._made[relation] = Likeness.of(self.lm, origin, others, self.layers, self.false_alarms)
        return self._made[relation]

    def get(self, relation: str) -> Likeness | None:
        """Return that of a relation; None if its LRE does not say how it was estimated, or too few others can tell."""
        tokens = sum(states.shape[1] for states in self._far(relation))
        can_tell = self._origins[relation].train and int((tokens + 1) * self.false_alarms) > 0
        return self[relation] if can_tell else None

    def _far(self, relation: str) -> list[Tensor]:
        own = words_of(self._origins[relation])
        far = [name for name, origin in self._origins.items() if not own & words_of(origin)]
        return [states for name in far for states in self._sentences[name]]


def words_of(origin: Origin) -> set[str]:
    """Return the subjects and objects of an origin's training samples."""
    return {word for sample in origin.train for word in sample}


def check_false_alarms(rate: float | None) -> None:
    """Check a share of false alarms, if there is one.

    Raises:
        LREError: If it is not between 0 and 1.
    """
    if rate is not None and not 0 < rate < 1:
        raise LREError(f"false_alarms must be a share between 0 and 1, such as {FALSE_ALARMS}, got {rate}")
