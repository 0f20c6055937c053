"""Where the lens of a relation says nothing: at hidden states that are not like those of its subjects.

An LRE answers at every token, at subjects and at commas alike, and its answers hardly tell one from the other. How like
those of the training subjects a hidden state is does tell (see `docs/results.md`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

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
from lre_lightning.scoring.states import example_states
from lre_lightning.storage.tensors import check_tensor, opened, write_tensors

FALSE_ALARMS = 0.05
"""How often a lens may speak where the text is not about one of its subjects: a share of tokens."""
SENTENCES = 4
"""Number of sentences of each other relation."""
LIKENESSES = "likenesses.safetensors"
"""Name of the file that carries likenesses at the layers of LREs."""
PARTS = ("train", "centre", "values")


@dataclass(frozen=True, eq=False)
class Likeness:
    """How like those of an LRE's training subjects hidden states are: the highest cosine, both less `centre`.

    Attributes:
        train: s of the training samples, `(layers, samples, hidden)`, float32 or wider.
        centre: The mean hidden state of tokens about something else, `(layers, 1, hidden)`.
        values: The likeness of these tokens, the highest first, `(layers, tokens)`.
        false_alarms: The share of further such tokens that exceed the limit, at most and on average (conformal).
    """

    train: Tensor
    centre: Tensor
    values: Tensor
    false_alarms: float = FALSE_ALARMS

    @classmethod
    @torch.no_grad()
    def of(
        cls, lm: LanguageModel, origin: Origin, others: Tensor, layers: Sequence[Layer], false_alarms: float
    ) -> Self:
        """Run the prompts that an LRE was estimated from, which sets a limit for each layer.

        Args:
            lm: The LM.
            origin: The origin of the LRE.
            others: Hidden states of tokens about something else, `(layers, tokens, hidden)`.
            layers: The layers.
            false_alarms: The share of further such tokens that exceed the limit.

        Raises:
            LREError: If the origin does not say which prompts these were.
        """
        if not origin.train:
            raise LREError(f"the LRE of {origin.relation!r} does not say which prompts it was estimated from")
        prompts = [origin.prompt(lm, subject) for subject, _ in origin.train]
        train, centre = example_states(lm, prompts, layers)[:-1], others.mean(1, keepdim=True)
        return cls(train, centre, likeness(others, train, centre).sort(descending=True)[0], false_alarms)

    @property
    def limits(self) -> Tensor:
        """The likeness that few tokens about something else exceed, `(layers,)`."""
        return torch.stack([threshold(values, self.false_alarms) for values in self.values])

    def __call__(self, states: Tensor) -> Tensor:
        """Return the likeness of hidden states `(layers, tokens, hidden)`: cosines, `(layers, tokens)`."""
        return likeness(states.to(self.centre), self.train, self.centre)

    def silent(self, states: Tensor) -> Tensor:
        """Return where hidden states `(layers, tokens, hidden)` are too little like them, `(layers, tokens)`, bool."""
        return self(states) <= self.limits[:, None]

    def to(self, device: torch.device) -> Self:
        """Return it on another device."""
        return replace(self, **{part: getattr(self, part).to(device) for part in PARTS})

    def at(self, row: int) -> Self:
        """Return that of one layer, by its place among the layers."""
        return replace(self, train=self.train[row, None], centre=self.centre[row, None], values=self.values[row, None])


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
    that shares no subject and no object with the LRE, the first four. They are run when they are first needed. At the
    layers of the LREs themselves nothing is run where a collection carries what follows from it, its `likenesses`.

    Args:
        lm: The LM that the LREs were estimated from, with its tokenizer.
        lres: LREs by relation and trial; of several trials of a relation the first is used.
        layers: The layers; all if None.
        false_alarms: How often a lens may speak where the text is not about one of its subjects: a share of tokens.

    Raises:
        LREError: If `false_alarms` is not between 0 and 1, or an LRE does not say what it was estimated from.
    """

    def __init__(
        self,
        lm: LanguageModel,
        lres: Mapping[tuple[str, int], LRE],
        layers: Sequence[Layer] | None = None,
        false_alarms: float = FALSE_ALARMS,
    ) -> None:
        check_false_alarms(false_alarms)
        self.lm, self.layers, self.false_alarms = lm, lm.check_layers(layers), false_alarms
        self.origins = origins_of(lres)
        self._made: dict[str, Likeness] = {}
        self._carried: Mapping[str, Likeness] = getattr(lres, "likenesses", {})

    @cached_property
    @torch.no_grad()
    def _sentences(self) -> dict[str, list[Tensor]]:
        """The hidden states of sentences of each relation, `(layers, tokens, hidden)` each."""
        lm, found = self.lm, {name: list[Tensor]() for name in self.origins}
        dtype = torch.promote_types(lm.dtype, torch.float32)
        by_length: dict[tuple[int, int], list[tuple[str, tuple[int, ...]]]] = {}
        for name, origin in self.origins.items():
            for subject, answer in origin.train[:SENTENCES]:
                text, start = f"{fill(origin.first_template, subject)} {answer}", origin.form["start_token"]
                ids, first = tokenize_text(lm.tokenizer, text, start)
                by_length.setdefault((len(ids), first), []).append((name, ids))
        for (_, first), sentences in by_length.items():
            run = lm.hidden_states(torch.tensor([ids for _, ids in sentences], device=lm.device), self.layers)
            hidden = torch.stack([run[layer].to(lm.device, dtype) for layer in self.layers], 1)
            for (name, _), states in zip(sentences, hidden, strict=True):
                found[name].append(states[:, first + 1 :])  # those before saw nothing of the text
        return found

    def __getitem__(self, relation: str) -> Likeness:
        """Return that of a relation.

        Raises:
            LREError: If no other relation is about something else.
        """
        self.check(relation)
        if relation not in self._made:
            others, origin = torch.cat(self._far(relation), 1), self.origins[relation]
            self._made[relation] = Likeness.of(self.lm, origin, others, self.layers, self.false_alarms)
        return self._made[relation]

    def get(self, relation: str) -> Likeness | None:
        """Return that of a relation; None if its LRE does not say how it was estimated, or too few others can tell."""
        tokens = sum(states.shape[1] for states in self._far(relation))
        return self[relation] if self.origins[relation].train and self._can_tell(tokens) else None

    def own(self, relation: str, layer: Layer) -> Likeness | None:
        """Return that of a relation at the layer of its LRE, which is carried or one of `layers`; see `get`."""
        if relation in self._carried:
            carried = replace(self._carried[relation], false_alarms=self.false_alarms).to(self.lm.device)
            return carried if self._can_tell(carried.values.shape[1]) else None
        made = self.get(relation)
        return made and made.at(self.layers.index(layer))

    def check(self, relation: str) -> None:
        """Raise an `LREError` if no other relation is about something else."""
        if not self._others(relation):
            raise LREError(
                f"where the lens of {relation!r} says nothing is found by relations that share no subject or object "
                "with it, and there is no LRE of such a one: let it speak everywhere, or add LREs"
            )

    def _can_tell(self, tokens: int) -> bool:
        return int((tokens + 1) * self.false_alarms) > 0

    def _others(self, relation: str) -> list[str]:
        own = words_of(self.origins[relation])
        return [name for name, origin in self.origins.items() if origin.train and not own & words_of(origin)]

    def _far(self, relation: str) -> list[Tensor]:
        return [states for name in self._others(relation) for states in self._sentences[name]]


def write_likenesses(likenesses: Likenesses, layers: Mapping[str, Layer], folder: Path) -> None:
    """Write the likeness of each relation at the layer of its LRE into a folder, to be carried with the LREs.

    Args:
        likenesses: The likenesses, at all these layers.
        layers: The layer of each relation's LRE.
        folder: The folder.
    """
    tensors, names = dict[str, Tensor](), list[str]()
    for name, layer in layers.items():
        if one := likenesses.own(name, layer):
            tensors |= {f"{len(names)}.{part}": getattr(one, part)[0] for part in PARTS}
            names.append(name)
    metadata = {"relations": names, "lres": digest_of(likenesses.origins, layers)}
    write_tensors(folder / LIKENESSES, tensors, "likenesses", metadata)


def read_likenesses(path: Path, origins: Mapping[str, Origin], layers: Mapping[str, Layer]) -> dict[str, Likeness]:
    """Read what `write_likenesses` wrote; nothing if there is no such file, or it was written for other LREs.

    Raises:
        LREError: If it is not such a file.
    """
    if not path.is_file():
        return {}
    with opened(path, "a file of likenesses", "likenesses") as (file, metadata):
        if metadata["lres"] != digest_of(origins, layers):
            return {}
        width, found = None, {}
        for number, name in enumerate(metadata["relations"]):
            parts = {part: check_tensor(file.get_tensor(f"{number}.{part}"), part) for part in PARTS}
            width = width or parts["centre"].shape[-1]
            shapes = parts["train"].shape[1:], parts["centre"].shape, parts["values"].shape[1:]
            if shapes != ((width,), (1, width), ()) or not all(part.isfinite().all() for part in parts.values()):
                raise ValueError(f"the likeness of {name!r} has other shapes or values")
            found[str(name)] = Likeness(parts["train"][None], parts["centre"][None], parts["values"][None])
        return found


def digest_of(origins: Mapping[str, Origin], layers: Mapping[str, Layer]) -> str:
    """Return a digest of all that likenesses at the layers of LREs follow from."""
    plain = [[asdict(origins[name]), layers[name]] for name in sorted(origins)]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


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
