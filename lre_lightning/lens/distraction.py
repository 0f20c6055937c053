"""Latent knowledge under distraction (Section 5 of the paper, table "attribute-lens").

An LM that is baited into a falsehood about a subject may still represent the fact: the attribute lens, D(LRE(h)) with h
the hidden state at the subject's last mention, shows what the LM's next-token distribution does not.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics.recall import KS, token_ranks
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.source import PromptSource
from lre_lightning.scoring.states import PromptStates

if TYPE_CHECKING:
    from lre_lightning.prompts.trials import Trial

LM, LENS, OTHER_LENS = "LM", "attribute lens", "lens of another relation"
READERS = (LM, LENS, OTHER_LENS)
"""Whose answers are counted: the LM's own, the lens of the relation, and the control."""


class DistractedPrompts(PromptSource, Protocol):
    """A datamodule of distracted prompts, such as `DistractionDataModule`; its batches are `DistractionBatch`."""

    @property
    def distraction(self) -> Literal["repetition", "instruction"]:
        """How the prompts distract."""


@dataclass(frozen=True)
class LatentKnowledge:
    """What is found of the known facts of one relation and trial in distracted prompts, in counts.

    Attributes:
        model: Name or folder of the LM.
        relation: Name of the relation.
        category: Its category.
        trial: Number of the trial.
        distraction: ``"repetition"`` or ``"instruction"``.
        range_size: Number of the relation's distinct objects.
        tested: Test samples that were asked for.
        known: Those whose object the LM answers undistracted; the counts below are out of these.
        layer: Where the lens reads h.
        beta: The beta of the lens.
        other_relation: The relation of the lens that is the control; None where there is no other.
        ks: The k of recall at k.
        found: How often the true object's first token is among the k most likely, `[k]`, by one of `READERS`.
        false_found: The same for the false object.
        most_frequent: How often the true object's first token is among the k that are so most often, `[k]`: no answer
            that is the same for all subjects finds more.

    >>> counts = LatentKnowledge("toy", "capital", "factual", trial=0, distraction="repetition", range_size=4, tested=9,
    ...     known=8, layer=2, beta=1.0, other_relation=None, ks=(1, 2), found={LM: (0, 5), LENS: (6, 8)},
    ...     false_found={LM: (8, 8), LENS: (0, 1)}, most_frequent=(3, 5))
    >>> counts.guessed
    (2.0, 4.0)
    """

    model: str
    relation: str
    category: str
    trial: int
    distraction: str
    range_size: int
    tested: int
    known: int
    layer: Layer
    beta: float
    other_relation: str | None
    ks: tuple[int, ...]
    found: Mapping[str, tuple[int, ...]]
    false_found: Mapping[str, tuple[int, ...]]
    most_frequent: tuple[int, ...]

    @property
    def guessed(self) -> tuple[float, ...]:
        """How many of the known facts k different guesses among the relation's objects find on average, `[k]`."""
        return tuple(self.known * min(1.0, k / self.range_size) for k in self.ks)

    def plain(self) -> dict[str, Any]:
        """The counts as plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild the counts from `plain`, also where its tuples have become lists.

        Raises:
            LREError: If a field is missing.
        """
        try:
            given = {entry.name: data[entry.name] for entry in fields(cls)}
            counts = {name: {k: tuple(v) for k, v in given[name].items()} for name in ("found", "false_found")}
            lists = {name: tuple(given[name]) for name in ("ks", "most_frequent")}
        except (KeyError, TypeError, AttributeError) as error:
            raise LREError(f"these are no counts of latent knowledge: {type(error).__name__} {error}") from error
        return cls(**(given | counts | lists))


def latent_knowledge(
    lm: LanguageModel,
    data: DistractedPrompts,
    lres: Mapping[tuple[str, int], LRE],
    beta: float | None = None,
    ks: Sequence[int] = KS,
) -> list[LatentKnowledge]:
    """Count how often the LM and the attribute lens find what the LM knows, in prompts that distract it.

    The LM's answer is its next-token distribution at the end of the distracted prompt. The lens is D(LRE(h)) with h the
    hidden state at the LRE's layer and the last token of the subject's last mention. The control reads the subject with
    the LRE of another relation, at that LRE's own layer; it is drawn among those of the same trial by a hash of the
    datamodule's seed, relation and trial. Pairs without an LRE are left out.

    Args:
        lm: The LM, on the device where it is to run.
        data: The distracted prompts, of the trials that the LREs were estimated in.
        lres: LREs by name of the relation and number of the trial, such as `LREModule.lres`.
        beta: Used in place of the LREs' own.
        ks: The k of recall at k.

    Returns:
        The counts of each pair of `data` that has an LRE, in its order.

    Raises:
        LREError: If no pair has an LRE, or an LRE is of another LM, template or draw than the prompts.
    """
    names = [(data.relations[relation].name, trial) for relation, trial in data.schedule]
    scored = [pair for pair, name in enumerate(names) if name in lres]
    if not scored:
        raise LREError(
            f"there is no LRE of any relation and trial of the prompts: {len(lres)} are given, the first of which is "
            f"{next(iter(lres), None)!r}, and prompts are of {names[0]!r} to {names[-1]!r}"
        )
    console = Console(stderr=True)
    title = f"Latent knowledge, {data.distraction}"
    return [
        _count_pair(lm, data, pair, lres, beta, tuple(ks))
        for pair in track(scored, title, console=console, disable=not console.is_terminal)
    ]


def _count_pair(
    lm: LanguageModel,
    data: DistractedPrompts,
    pair: int,
    lres: Mapping[tuple[str, int], LRE],
    beta: float | None,
    ks: tuple[int, ...],
) -> LatentKnowledge:
    draw = data.trial(pair)
    name = draw.relation.name
    other = _draw_other(lres, name, draw.number, data.seed)
    lenses = {LENS: lres[name, draw.number]} | ({OTHER_LENS: lres[other, draw.number]} if other else {})
    for lre in lenses.values():
        lre.check_model(lm)
    _check_draw(lenses[LENS], draw)
    objects, ranks = _read_pair(lm, data, pair, {reader: lre.to(lm.device) for reader, lre in lenses.items()}, beta)
    return LatentKnowledge(
        model=lm.name,
        relation=name,
        category=draw.relation.category,
        trial=draw.number,
        distraction=data.distraction,
        range_size=len(draw.relation.objects),
        tested=len(draw.test),
        known=len(objects),
        layer=lenses[LENS].layer,
        beta=lenses[LENS].beta if beta is None else beta,
        other_relation=other,
        ks=ks,
        found={reader: _count(columns[:, 0], ks) for reader, columns in ranks.items()},
        false_found={reader: _count(columns[:, 1], ks) for reader, columns in ranks.items()},
        most_frequent=tuple(sum(count for _, count in Counter(objects).most_common(k)) for k in ks),
    )


def _draw_other(lres: Mapping[tuple[str, int], LRE], relation: str, trial: int, seed: int) -> str | None:
    """Draw another relation that has an LRE of the same trial."""
    others = [name for name, number in lres if number == trial and name != relation]
    key = f"{seed}\x1f{relation}\x1f{trial}\x1f"
    return min(others, key=lambda name: hashlib.sha256((key + name).encode()).digest(), default=None)


def _check_draw(lre: LRE, draw: Trial) -> None:
    """Refuse an LRE that may have been estimated from test samples, or with another template."""
    origin, train = lre.origin, tuple((sample.subject, sample.object) for sample in draw.train)
    if (origin.train, origin.template) != (train, draw.relation.template):
        raise LREError(
            f"the LRE of {origin.relation!r}, trial {origin.trial}, was estimated from other prompts than the "
            "datamodule draws: give it the relations, template, n_shot and seed of the fit"
        )


def _read_pair(
    lm: LanguageModel, data: DistractedPrompts, pair: int, lenses: Mapping[str, LRE], beta: float | None
) -> tuple[list[int], dict[str, Tensor]]:
    """First tokens of the objects that the LM knows, and ranks of those and of the false ones, by reader.

    Ranks are `(known, 2)`, int64.
    """
    objects: list[int] = []
    ranks = {reader: [torch.empty(0, 2, dtype=torch.long)] for reader in (LM, *lenses)}
    for batch in data.val_dataloader([pair]):
        batch = batch.padded("right")
        known = PromptStates.run(lm, batch.undistracted, lm.layers[-1:]).known.to(batch.input_ids.device)
        if known.any():
            tokens = torch.stack([batch.object_token, batch.false_token], 1)[known]
            runs = PromptBatch(lm, batch.input_ids[known], batch.subject_position[known], batch.last_position[known])
            objects += tokens[:, 0].tolist()
            for reader, hidden in _predicted(runs, lenses, beta).items():
                ranks[reader].append(_ranks(lm, hidden, tokens.to(lm.device)).cpu())
    return objects, {reader: torch.cat(found) for reader, found in ranks.items()}


def _predicted(runs: PromptBatch, lenses: Mapping[str, LRE], beta: float | None) -> dict[str, Tensor]:
    """What each reader decodes: o itself, or LRE(h), `(batch, hidden)`."""
    states, output = runs.hidden_states([lre.layer for lre in lenses.values()])
    return {LM: output} | {reader: lre(states[:, i], beta) for i, (reader, lre) in enumerate(lenses.items())}


def _ranks(lm: LanguageModel, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Ranks of `tokens`, `(rows, n)`, int64, in D(hidden), `(rows, n)`; few logits exist at a time."""

    def decode(size: int) -> Tensor:
        chunks = zip(hidden.split(size), tokens.split(size), strict=True)
        return torch.cat([_ranks_in(lm.decode(rows), columns) for rows, columns in chunks])

    return lm.chunk_sizes.run("decoded hidden states", lm.logit_rows(len(hidden)), decode)


def _ranks_in(logits: Tensor, tokens: Tensor) -> Tensor:
    columns = tokens.to(logits.device).unbind(1)
    return torch.stack([token_ranks(logits, column) for column in columns], 1)


def _count(ranks: Tensor, ks: Sequence[int]) -> tuple[int, ...]:
    """How many ranks are below each k."""
    return tuple(int((ranks < k).sum()) for k in ks)


_Counts = Callable[[LatentKnowledge], Sequence[float]]
"""What was found, `[k]`; empty where it was not counted."""
