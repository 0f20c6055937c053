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

from lre_lightning.grid import Layer
from lre_lightning.lre.inverse import LowRankInverse
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics import Causality, Faithfulness
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.relations.relation import Sample
from lre_lightning.runs.processes import ONE_PROCESS, Processes


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


@dataclass(frozen=True)
class Shared:
    """How the test samples of a trial are shared out over processes.

    Attributes:
        samples: The subjects and objects of all of them.
        mine: Which of them are this process's prompts, in the order of these.
        processes: The processes.
        templates: With how many templates each sample is asked for, one after another.
    """

    samples: Sequence[Sample | Prompt]
    mine: Sequence[int]
    processes: Processes = ONE_PROCESS
    templates: int = 1

    def everyone(self, rows: Tensor) -> Tensor:
        """The rows of all samples, `(samples, ...)`, of those of this process's prompts; a collective call."""
        return self.processes.rows(rows, self.mine, len(self.samples))

    def total(self, *counts: Tensor) -> list[Tensor]:
        """Sums of counts, int64, over all processes, on the CPU; a collective call."""
        (flat,) = self.processes.sum(torch.cat([count.flatten().cpu() for count in counts]))
        parts = flat.split([count.numel() for count in counts])
        return [part.reshape(count.shape) for part, count in zip(parts, counts, strict=True)]


@dataclass(frozen=True, eq=False, kw_only=True)
class EncodedTrial(Encoded):
    """The test prompts of one relation and trial as one batch, with the targets of their edits.

    On several processes these are the prompts of one of them; what is counted on them is added up over all, so that
    each function that takes a trial is a collective call.

    Attributes:
        shared: How the trial's samples are shared out.
        tokens: First tokens of the objects of all known samples, int64 `(samples,)`; -1 for the others.
        edited: This process's known prompts for which there is a target with another object, int64 `(edits,)`.
        targets: Those targets, (s', o'), among all samples, int64 `(edits,)`.
        target_objects: o' of those, `(edits, hidden)`.
    """

    shared: Shared
    tokens: Tensor
    edited: Tensor
    targets: Tensor
    target_objects: Tensor

    @classmethod
    def join(cls, batches: Sequence[Encoded], key: str, shared: Shared | None = None) -> EncodedTrial:
        """Put batches together, at least one, and draw targets.

        Args:
            batches: The test prompts; those of this process.
            key: Seeds the targets: seed, relation and trial.
            shared: Which samples the prompts are; all of the trial's if None.
        """
        prompts = tuple(prompt for batch in batches for prompt in batch.prompts)
        subject, output, predicted, known = (
            torch.cat([getattr(batch, name) for batch in batches])
            for name in ("subject", "object", "predicted", "known")
        )
        zero_shot = [batch.zero_shot for batch in batches if batch.zero_shot is not None]
        shared = shared or Shared(prompts, range(len(prompts)))
        first = torch.tensor([prompt.object_token for prompt in prompts], dtype=torch.long, device=known.device)
        tokens = shared.everyone(torch.where(known, first + 1, 0)) - 1
        drawn = draw_targets(shared.samples, tokens.tolist(), key, shared.mine, shared.templates)
        pairs = [pair for pair in enumerate(drawn) if pair[1] is not None]
        edited, targets = torch.tensor(pairs, dtype=torch.long, device=known.device).reshape(-1, 2).T
        return cls(
            runs=PromptBatch.join([batch.runs for batch in batches]),
            prompts=prompts,
            subject=subject,
            object=output,
            predicted=predicted,
            known=known,
            zero_shot=torch.cat(zero_shot) if zero_shot else None,
            shared=shared,
            tokens=tokens,
            edited=edited,
            targets=targets,
            target_objects=shared.everyone(output)[targets],
        )

    @cached_property
    def edited_runs(self) -> PromptBatch:
        """The prompts that are edited."""
        return self.runs.select(self.edited)

    @property
    def wanted(self) -> Tensor:
        """First tokens of the objects that edits should lead to, int64 `(edits,)`."""
        return self.tokens[self.targets]

    @property
    def all_known(self) -> int:
        """How many samples the LM knows, over all processes."""
        return int((self.tokens >= 0).sum())

    @property
    def all_edited(self) -> list[int]:
        """Which samples are edited, over all processes: the known ones, where they have more than one first token."""
        known = (self.tokens >= 0).nonzero().flatten()
        return known.tolist() if len(self.tokens[known].unique()) > 1 else []

    def target_subjects(self, layer: int) -> Tensor:
        """S' at the layer of that place in `subject`, `(edits, hidden)`."""
        return self.shared.everyone(self.subject[:, layer])[self.targets]

    def count_faithful(self, answers: Tensor) -> Tensor:
        """How often answers for this process's known samples, int64 `(known, ...)`, are the LM's: int64 `(...)`."""
        metric = Faithfulness(1, tuple(answers.shape[1:]), average="none").to(answers.device)
        wanted = self.predicted[self.known]
        metric.update(answers, wanted, torch.zeros_like(wanted))
        return metric.correct[0].cpu()

    def count_causal(self, answers: Tensor) -> Tensor:
        """How often answers after this process's edits `(edits, ...)`, int64, are the wanted ones: int64 `(...)`."""
        metric = Causality(1, tuple(answers.shape[1:]), average="none").to(answers.device)
        metric.update(answers, self.wanted, torch.zeros_like(self.wanted))
        return metric.correct[0].cpu()


@dataclass(frozen=True, eq=False)
class Counts:
    """Successes of one relation's LREs in one trial, over all processes.

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
    objects = torch.tensor([prompt.object_token for prompt in prompts], dtype=torch.long, device=predicted.device)
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
) -> Tensor:
    """What the LM answers after s := s + W^+ (o' - o), for every layer and rank, at beta = 1.

    Args:
        runs: The test prompts.
        lres: One LRE a layer.
        subject: s at those layers, `(batch, layers, hidden)`.
        difference: o' - o for each prompt, `(batch, hidden)`.
        ranks: Ranks of the pseudo-inverse.

    Returns:
        Token ids `(batch, layers, ranks)`, int64.
    """
    columns = []
    for index, lre in enumerate(lres):
        delta = LowRankInverse(lre.weight, max(ranks)).apply(difference.to(lre.weight), ranks)
        edited = subject[:, index, None].to(delta) + delta
        columns.append(runs.lm.predict(runs.patched(lre.layer, edited)))
    return torch.stack(columns, dim=1)


def draw_targets(
    samples: Sequence[Sample | Prompt], tokens: Sequence[int], key: str, sources: Sequence[int], templates: int = 1
) -> list[int | None]:
    """Draw for known samples another known sample (s', o') whose object has another first token.

    The draw depends on the key and the two samples alone: not on their order, nor on how they are batched.

    Args:
        samples: All test samples of the relation.
        tokens: First tokens of the objects of those that the LM knows, negative for the others.
        key: Seed, relation and trial.
        sources: Which samples to draw for.
        templates: With how many templates each sample is asked for: its target is asked for with the same one, if the
            LM knows it there.

    Returns:
        For each of `sources` the place of its target; None where it is unknown or nothing else is known.
    """
    candidates = [index for index, token in enumerate(tokens) if token >= 0]

    def digest(source: int, target: int) -> bytes:
        parts = (key, samples[source].subject, samples[target].subject, samples[target].object)
        return hashlib.sha256("\x1f".join(parts).encode()).digest()

    def draw(source: int) -> int | None:
        others = [i for i in candidates if tokens[i] != tokens[source]]
        return min(others, key=lambda target: (digest(source, target), (target - source) % templates), default=None)

    return [draw(source) if tokens[source] >= 0 else None for source in sources]


def score(
    trial: EncodedTrial,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
) -> Counts:
    """Count faithful predictions and successful edits over all test prompts of one relation and trial.

    Args:
        trial: The test prompts, with s at the layers of `lres`.
        lres: The LRE at each layer.
        betas: Where faithfulness is counted.
        ranks: Where causality is counted.
    """
    operators = list(lres.values())
    known = trial.subject[trial.known]
    faithful = trial.count_faithful(faithfulness_predictions(trial.runs.lm, operators, known, betas))
    causal = torch.zeros(len(operators), len(ranks), dtype=torch.long)
    if len(trial.edited):
        difference = trial.target_objects - trial.object[trial.edited]
        subject = trial.subject[trial.edited]
        answers = causality_predictions(trial.edited_runs, operators, subject, difference, ranks)
        causal = trial.count_causal(answers)
    faithful, causal, tested = trial.shared.total(faithful, causal, torch.tensor(len(trial.prompts)))
    return Counts(int(tested), trial.all_known, faithful, causal, len(trial.all_edited))
