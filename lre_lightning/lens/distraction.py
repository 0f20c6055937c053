"""Latent knowledge under distraction (Section 5 of the paper, table "attribute-lens").

An LM that is baited into a falsehood about a subject may still represent the fact: the attribute lens, D(LRE(h)) with h
the hidden state at the subject's last mention, shows what the LM's next-token distribution does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.lens import Lens
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics import token_ranks
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.progress import progress
from lre_lightning.prompts.source import PromptSource
from lre_lightning.prompts.trials import Trial
from lre_lightning.relations.relation import draw_order
from lre_lightning.scoring.states import knows

LM, LENS, OTHER_LENS, GENERIC_LENS = "LM", "attribute lens", "lens of another relation", "Jacobian lens"
"""The readers whose answers are counted: the LM itself, the lens of the relation, and controls."""

KS = (1, 2, 3)
"""The k of recall at k, of table "attribute-lens"."""


class DistractedPrompts(PromptSource, Protocol):
    """A datamodule of distracted prompts, such as `DistractionDataModule`; its batches are `DistractionBatch`."""

    @property
    def distraction(self) -> Literal["repetition", "instruction"]:
        """The kind of distraction."""


@dataclass(frozen=True)
class LatentKnowledge:
    """Counts of the known facts of one relation and trial that are found in distracted prompts.

    Attributes:
        distraction: ``"repetition"`` or ``"instruction"``.
        range_size: Number of the relation's distinct objects.
        tested: Number of test samples.
        known: Those whose object the LM answers undistracted; the counts below are out of these.
        layer: The layer of h.
        other_relation: The relation of the control's lens; None if there is no other.
        ks: The k of recall at k.
        found: Number of true objects whose first token is among the k most likely, `[k]`, by reader.
        false_found: The same for the false objects.
        most_frequent: Number of facts that the k most frequent true first tokens would find, `[k]`: the most that
            an answer which ignores the subject can find.

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
        """Number of facts that k different random guesses among the relation's objects find on average, `[k]`."""
        return tuple(self.known * min(1.0, k / self.range_size) for k in self.ks)


def latent_knowledge(
    lm: LanguageModel,
    data: DistractedPrompts,
    lres: Mapping[tuple[str, int], LRE],
    beta: float | None = None,
    ks: Sequence[int] = KS,
    jacobian_lens: Lens | None = None,
) -> list[LatentKnowledge]:
    """Count how often the LM and the attribute lens find what the LM knows, in prompts that distract it.

    The LM's answer is its next-token distribution at the end of the distracted prompt. The lens is D(LRE(h)) with h the
    hidden state at the LRE's layer and the last token of the subject's last mention. The control reads the subject with
    the LRE of another relation of the same trial, at that LRE's own layer; a hash of the datamodule's seed, the
    relation and the trial chooses it.

    Args:
        lm: The LM, on the device where it is to run.
        data: The distracted prompts, of the trials that the LREs were estimated in.
        lres: LREs by relation and trial, such as `LREModule.lres`.
        beta: Overrides the LREs' own beta.
        ks: The k of recall at k.
        jacobian_lens: A Jacobian lens, D(J h), which reads the subject at the LRE's layer as a further control.

    Returns:
        The counts of each trial of `data` that has an LRE, in its order.
    """
    data.use(lm)
    keys = [(data.relations[relation].name, trial) for relation, trial in data.schedule]
    scored = [index for index, key in enumerate(keys) if key in lres]
    if not scored:
        raise LREError(
            f"no LRE has the relation and trial of a prompt: the prompts are of {keys[0]} to {keys[-1]}, and the "
            f"{len(lres)} LREs of {', '.join(map(str, [*lres][:3])) or 'nothing'}"
        )
    title = f"Latent knowledge, {data.distraction}"
    return [_count_trial(lm, data, index, lres, beta, tuple(ks), jacobian_lens) for index in progress(scored, title)]


def _count_trial(
    lm: LanguageModel,
    data: DistractedPrompts,
    index: int,
    lres: Mapping[tuple[str, int], LRE],
    beta: float | None,
    ks: tuple[int, ...],
    jacobian_lens: Lens | None,
) -> LatentKnowledge:
    trial = data.trial(index)
    relation = trial.relation
    others = [name for name, number in lres if number == trial.number and name != relation.name]
    other = min(others, key=partial(draw_order, data.seed, relation.name, trial.number), default=None)
    lenses = {LENS: lres[relation.name, trial.number]} | ({OTHER_LENS: lres[other, trial.number]} if other else {})
    _check_lenses(lm, trial, lenses)
    own = lenses[LENS] if beta is None else replace(lenses[LENS], beta=beta)
    readers: dict[str, tuple[Lens, Layer]] = {
        reader: (replace(lre, beta=lre.beta if beta is None else beta).to(lm.device), lre.layer)
        for reader, lre in lenses.items()
    }
    if jacobian_lens is not None:
        readers[GENERIC_LENS] = jacobian_lens, own.layer

    objects: list[int] = []  # first tokens of the true objects
    ranks = {reader: [torch.empty(0, 2, dtype=torch.long)] for reader in (LM, *readers)}  # of true and false objects
    for batch in data.val_dataloader([index]):
        batch = batch.padded("right")
        known = knows(lm, batch.undistracted).to(batch.input_ids.device)
        if known.any():
            tokens = torch.stack([batch.object_token, batch.false_token], 1)[known]
            objects += tokens[:, 0].tolist()
            runs = PromptBatch(lm, batch.input_ids[known], batch.subject_position[known], batch.last_position[known])
            states, output = runs.hidden_states([layer for _, layer in readers.values()])
            ranks[LM].append(_ranks(lm, output, tokens))
            for i, (reader, (lens, layer)) in enumerate(readers.items()):
                ranks[reader].append(_ranks(lm, lens.read(states[None, :, i], [layer])[0], tokens))
    counts = {reader: [(torch.cat(parts) < k).sum(0).tolist() for k in ks] for reader, parts in ranks.items()}
    return LatentKnowledge(
        model=lm.label,
        relation=relation.name,
        category=relation.category,
        trial=trial.number,
        distraction=data.distraction,
        range_size=len(relation.objects),
        tested=len(trial.test),
        known=len(objects),
        layer=own.layer,
        beta=own.beta,
        other_relation=other,
        ks=ks,
        found={reader: tuple(true for true, _ in rows) for reader, rows in counts.items()},
        false_found={reader: tuple(false for _, false in rows) for reader, rows in counts.items()},
        most_frequent=tuple(sum(count for _, count in Counter(objects).most_common(k)) for k in ks),
    )


def _check_lenses(lm: LanguageModel, trial: Trial, lenses: Mapping[str, LRE]) -> None:
    """Refuse LREs of another LM, or one that may have been estimated from test samples or with another template."""
    for lre in lenses.values():
        lre.check_model(lm)
    origin, train = lenses[LENS].origin, tuple((sample.subject, sample.object) for sample in trial.train)
    if (origin.train, origin.template) != (train, trial.relation.template):
        raise LREError(
            f"the LRE of {origin.relation!r}, trial {origin.trial}, was estimated from other prompts than the "
            "datamodule draws: give it the relations, template, n_shot and seed of the fit"
        )


def _ranks(lm: LanguageModel, hidden: Tensor, tokens: Tensor) -> Tensor:
    """Return the ranks of `tokens`, `(rows, n)`, int64, in D(hidden), on the CPU; few logits exist at a time."""

    def decode(size: int) -> Tensor:
        ranks = []
        for states, wanted in zip(hidden.split(size), tokens.split(size), strict=True):
            logits = lm.decode(states)
            ranks.append(torch.stack([token_ranks(logits, column.to(logits.device)) for column in wanted.unbind(1)], 1))
        return torch.cat(ranks).cpu()

    return lm.chunk_sizes.run("decoded hidden states", lm.logit_rows(len(hidden)), decode)
