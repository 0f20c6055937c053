"""Scoring LREs of one relation on its test prompts: faithfulness by layer and beta, causality by layer and rank.

Definitions are those of Section 3.2 of the paper. Only known facts count: samples whose object's first token the LM
itself predicts under the same context.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lre_lightning.inverse import LowRankInverse
from lre_lightning.language_model import LanguageModel, Layer
from lre_lightning.lre import LRE
from lre_lightning.metrics import Causality, Faithfulness
from lre_lightning.patching import PromptBatch
from lre_lightning.prompts import Prompt


@dataclass(frozen=True, eq=False)
class Encoded:
    """Test prompts as the LM sees them.

    Attributes:
        runs: The prompts, ready to be run again with s replaced.
        prompts: Their texts and first tokens.
        subject: s, `(batch, layers, hidden)`.
        object: o, `(batch, hidden)`.
        predicted: The LM's own answer, argmax D(o), `(batch,)`, int64.
        known: Whether that is the object's first token, `(batch,)`, bool.
        zero_shot: s in prompts that hold the subject alone, `(batch, layers, hidden)`, where it is wanted.
    """

    runs: PromptBatch
    prompts: tuple[Prompt, ...]
    subject: Tensor
    object: Tensor
    predicted: Tensor
    known: Tensor
    zero_shot: Tensor | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedTrial(Encoded):
    """All test prompts of one relation and trial as one batch, with the targets of their edits.

    Attributes:
        edited: The known samples for which there is a target with another object, int64 `(edits,)`.
        targets: Those targets, (s', o'), int64 `(edits,)`.
    """

    edited: Tensor
    targets: Tensor

    @classmethod
    def join(cls, batches: Sequence[Encoded], key: str) -> EncodedTrial:
        """Put batches together, at least one, and draw targets.

        Args:
            batches: The test prompts.
            key: Seeds the targets: seed, relation and trial.
        """
        prompts = tuple(prompt for batch in batches for prompt in batch.prompts)
        subject, output, predicted, known = (
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("subject", "object", "predicted", "known")
        )
        zero_shot = [batch.zero_shot for batch in batches if batch.zero_shot is not None]
        pairs = [pair for pair in enumerate(draw_targets(prompts, known.tolist(), key)) if pair[1] is not None]
        edited, targets = torch.tensor(pairs, dtype=torch.long, device=known.device).reshape(-1, 2).T
        runs = PromptBatch.join([batch.runs for batch in batches])
        alone = torch.cat(zero_shot) if zero_shot else None
        return cls(runs, prompts, subject, output, predicted, known, alone, edited=edited, targets=targets)

    @cached_property
    def edited_runs(self) -> PromptBatch:
        """The prompts that are edited."""
        return self.runs.select(self.edited)

    @cached_property
    def wanted(self) -> Tensor:
        """First tokens of the objects that edits should lead to, int64 `(edits,)`."""
        tokens = [self.prompts[target].object_token for target in self.targets.tolist()]
        return torch.tensor(tokens, dtype=torch.long, device=self.known.device)

    def count_faithful(self, answers: Tensor) -> Tensor:
        """How often answers for the known samples, int64 `(known, ...)`, are the LM's: int64 `(...)`."""
        metric = Faithfulness(1, tuple(answers.shape[1:]), average="none").to(answers.device)
        wanted = self.predicted[self.known]
        metric.update(answers, wanted, torch.zeros_like(wanted))
        return metric.correct[0].cpu()

    def count_causal(self, answers: Tensor) -> Tensor:
        """How often answers after an edit `(edits, ...)`, int64, are the wanted ones: int64 `(...)`."""
        metric = Causality(1, tuple(answers.shape[1:]), average="none").to(answers.device)
        metric.update(answers, self.wanted, torch.zeros_like(self.wanted))
        return metric.correct[0].cpu()


@dataclass(frozen=True, eq=False)
class Counts:
    """Successes of one relation's LREs in one trial.

    Attributes:
        tested: Number of test samples.
        known: How many of them the LM knows.
        faithful: Faithful predictions, int64 `(layers, betas)`, out of `known`.
        causal: Successful edits, int64 `(layers, ranks)`, out of `edited`.
        edited: Number of known samples for which there is a target with another object.
    """

    tested: int
    known: int
    faithful: Tensor
    causal: Tensor
    edited: int


def encode(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    input_ids: Tensor,
    subject_position: Tensor,
    last_position: Tensor,
    layers: Sequence[Layer],
    zero_shot: PromptBatch | None = None,
) -> Encoded:
    """Run test prompts once and keep what scoring needs.

    Args:
        lm: The language model.
        prompts: The prompts.
        input_ids: Their token ids `(batch, positions)`, int64, padded on the right.
        subject_position: Index of each subject's last token, `(batch,)`, int64.
        last_position: Index of each prompt's last token, `(batch,)`, int64.
        layers: Where s is wanted; at least one.
        zero_shot: Prompts that hold the same subjects alone, where s is wanted from them too.
    """
    runs = PromptBatch(lm, input_ids, subject_position, last_position)
    subject, output = runs.hidden_states(layers)
    predicted = lm.predict(output)
    objects = torch.tensor([prompt.object_token for prompt in prompts], device=predicted.device)
    alone = None if zero_shot is None else zero_shot.hidden_states(layers)[0]
    return Encoded(runs, tuple(prompts), subject, output, predicted, predicted == objects, alone)


def faithfulness_predictions(lm: LanguageModel, lres: Sequence[LRE], subject: Tensor, betas: Sequence[float]) -> Tensor:
    """What each LRE answers: argmax D(beta W s + b).

    Args:
        lm: The language model.
        lres: One LRE a layer.
        subject: s at those layers, `(batch, layers, hidden)`.
        betas: The betas.

    Returns:
        Token ids `(batch, layers, betas)`, int64.
    """
    columns = []
    for index, lre in enumerate(lres):
        slopes = torch.tensor(betas, dtype=lre.weight.dtype, device=subject.device)[:, None]
        columns.append(lm.predict(lre(subject[:, index, None], slopes)))
    return torch.stack(columns, dim=1)


def causality_predictions(
    runs: PromptBatch,
    lres: Sequence[LRE],
    subject: Tensor,
    difference: Tensor,
    ranks: Sequence[int],
    chunk_size: int | None = None,
) -> Tensor:
    """What the LM answers after s := s + W^+ (o' - o), for every layer and rank, at beta = 1.

    Args:
        runs: The test prompts.
        lres: One LRE a layer.
        subject: s at those layers, `(batch, layers, hidden)`.
        difference: o' - o for each prompt, `(batch, hidden)`.
        ranks: Ranks of the pseudo-inverse.
        chunk_size: How many patched prompts run at a time; chosen for the device if None.

    Returns:
        Token ids `(batch, layers, ranks)`, int64.
    """
    columns = []
    for index, lre in enumerate(lres):
        delta = LowRankInverse(lre.weight, max(ranks)).apply(difference.to(lre.weight), ranks)
        edited = subject[:, index, None].to(delta) + delta
        columns.append(runs.lm.predict(runs.patched(lre.layer, edited, chunk_size)))
    return torch.stack(columns, dim=1)


def draw_targets(prompts: Sequence[Prompt], known: Sequence[bool], key: str) -> list[int | None]:
    """Draw for each known sample another known sample (s', o') whose object has another first token.

    The draw depends on the key and the two samples alone: not on their order, nor on how they are batched.

    Args:
        prompts: The relation's test prompts.
        known: Which of them the LM answers.
        key: Seed, relation and trial.

    Returns:
        For each prompt the index of its target; None where it is unknown or nothing else is known.
    """
    candidates = [index for index, is_known in enumerate(known) if is_known]

    def digest(source: int, target: int) -> bytes:
        parts = (key, prompts[source].subject, prompts[target].subject, prompts[target].object)
        return hashlib.sha256("\x1f".join(parts).encode()).digest()

    def draw(source: int) -> int | None:
        others = [i for i in candidates if prompts[i].object_token != prompts[source].object_token]
        return min(others, key=lambda target: digest(source, target), default=None)

    return [draw(index) if is_known else None for index, is_known in enumerate(known)]


def score(
    trial: EncodedTrial,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
    chunk_size: int | None = None,
) -> Counts:
    """Count faithful predictions and successful edits over all test prompts of one relation and trial.

    Args:
        trial: The test prompts, with s at the layers of `lres`.
        lres: The LRE at each layer.
        betas: Where faithfulness is counted.
        ranks: Where causality is counted.
        chunk_size: How many patched prompts run at a time; chosen for the device if None.
    """
    operators = list(lres.values())
    known = trial.subject[trial.known]
    faithful = trial.count_faithful(faithfulness_predictions(trial.runs.lm, operators, known, betas))
    causal = torch.zeros(len(operators), len(ranks), dtype=torch.long)
    if len(trial.edited):
        difference = trial.object[trial.targets] - trial.object[trial.edited]
        subject = trial.subject[trial.edited]
        answers = causality_predictions(trial.edited_runs, operators, subject, difference, ranks, chunk_size)
        causal = trial.count_causal(answers)
    return Counts(len(trial.prompts), int(trial.known.sum()), faithful, causal, len(trial.edited))
