"""The test prompts of a trial as the LM sees them: s, o, the LM's own answers, and the targets of edits."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lre_lightning import paper
from lre_lightning.grid import Layer
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.relations.relation import draw_order
from lre_lightning.runs.processes import ONE_PROCESS, Processes

if TYPE_CHECKING:
    from lre_lightning.prompts.batch import RelationBatch
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.relations.relation import Sample


def knows(lm: LanguageModel, batch: RelationBatch) -> Tensor:
    """Run a batch of prompts; return where the LM's answer is the object's first token, `(prompts,)`, bool.

    Copies that only pad the batch (weight 0) are left out.
    """
    batch = batch.own()
    _, output = _runs(lm, [batch]).hidden_states([lm.num_layers - 1])
    return lm.predict(output) == batch.object_token.to(output.device)


def _runs(lm: LanguageModel, batches: Sequence[RelationBatch]) -> PromptBatch:
    none = torch.zeros(0, dtype=torch.long)
    runs = [PromptBatch(lm, none[:, None], none, none)]
    for batch in batches:
        batch = batch.padded("right")
        runs.append(PromptBatch(lm, batch.input_ids, batch.subject_position, batch.last_position))
    return PromptBatch.join(runs)


@dataclass(frozen=True, eq=False)
class TrialStates:
    """All test prompts of one trial with their hidden states and the LM's answers, and the targets of their edits.

    On several processes each holds a part of the prompts, and every method and function that counts over a
    `TrialStates` is a collective call that returns the total over all processes.

    Attributes:
        runs: The prompts, ready to be run again with s replaced.
        prompts: Their texts and tokens.
        samples: Their indices in `Trial.test_asked`.
        subject: s, `(prompts, layers, hidden)`.
        object: o, `(prompts, hidden)`.
        predicted: The LM's answers, argmax D(o), `(prompts,)`, int64.
        known: True where the answer is the object's first token, `(prompts,)`, bool.
        zero_shot: s in prompts that consist of the subject alone, `(prompts, layers, hidden)`; None where not computed.
        trial: The trial.
        processes: The processes over which its prompts are split.
        tokens: First tokens of the objects of all known samples, int64 `(samples,)`; -1 for the others.
        edited: This process's known prompts for which there is a target with another object, int64 `(edits,)`.
        targets: The samples (s', o') that are their targets, among those of all processes, int64 `(edits,)`.
        target_objects: o' of the targets, `(edits, hidden)`.
    """

    runs: PromptBatch
    prompts: tuple[Prompt, ...]
    samples: tuple[int, ...]
    subject: Tensor
    object: Tensor
    predicted: Tensor
    known: Tensor
    zero_shot: Tensor | None
    trial: Trial
    processes: Processes
    tokens: Tensor
    edited: Tensor
    targets: Tensor
    target_objects: Tensor

    @classmethod
    def run(
        cls,
        lm: LanguageModel,
        batches: Sequence[RelationBatch],
        trial: Trial,
        layers: Sequence[Layer],
        processes: Processes = ONE_PROCESS,
        alone: Sequence[RelationBatch] | None = None,
        max_known: int | None = None,
    ) -> TrialStates:
        """Run this process's test prompts of a trial, and draw the targets of their edits; a collective call.

        Args:
            lm: The language model.
            batches: The prompts; a process may have none. Copies that only pad a batch (weight 0) are left out.
            trial: The trial.
            layers: The layers of s, at least one.
            processes: The processes over which the prompts are split.
            alone: For each batch, prompts that consist of the same subjects alone; None if s is not needed from them.
            max_known: The number of known samples at which a draw of the samples ends; all are kept if None.
        """
        batches = [batch.own() for batch in batches]
        runs = _runs(lm, batches)
        subject, output = runs.hidden_states(layers, keep=True)
        predicted = lm.predict(output)
        objects = [batch.object_token.to(predicted.device) for batch in batches]
        none = predicted[:0]
        states = cls(
            runs=runs,
            prompts=tuple(prompt for batch in batches for prompt in batch.prompts),
            samples=tuple(sample for batch in batches for sample in batch.sample.tolist()),
            subject=subject,
            object=output,
            predicted=predicted,
            known=predicted == torch.cat([none, *objects]),
            zero_shot=None if alone is None else _runs(lm, [batch.own() for batch in alone]).hidden_states(layers)[0],
            trial=trial,
            processes=processes,
            tokens=none,
            edited=none,
            targets=none,
            target_objects=output[:0],
        )
        states = states.answered(predicted, states.known)  # the answer to a known prompt is its object's first token
        return states if max_known is None or states.all_known <= max_known else states._until_known(max_known)

    def _until_known(self, count: int) -> TrialStates:
        """Keep the samples, in a drawn order, up to the one with which `count` are known; a collective call."""
        kept = set[int]()
        for sample in self.in_drawn_order(range(len(self.trial.test_asked))):
            kept.add(sample)
            count -= int(self.tokens[sample] >= 0)
            if not count:
                break
        return self.keep(kept)

    def keep(self, samples: Collection[int]) -> TrialStates:
        """Return the states of some samples, whose targets are drawn among them; a collective call."""
        chosen = [row for row, sample in enumerate(self.samples) if sample in samples]
        rows = torch.tensor(chosen, dtype=torch.long, device=self.known.device)
        states = replace(
            self,
            runs=self.runs.select(rows),
            prompts=tuple(self.prompts[row] for row in chosen),
            samples=tuple(self.samples[row] for row in chosen),
            subject=self.subject[rows],
            object=self.object[rows],
            zero_shot=None if self.zero_shot is None else self.zero_shot[rows],
        )
        return states.answered(self.predicted[rows], self.known[rows])

    def answered(self, answers: Tensor, known: Tensor) -> TrialStates:
        """Return the states with other answers than the LM's next tokens, and draw the targets; a collective call.

        Args:
            answers: A number for the answer to each prompt, such as the place of a whole object, int64 `(prompts,)`.
            known: True where it is right, `(prompts,)`, bool.
        """
        trial, asked = self.trial, self.trial.test_asked
        tokens = self.processes.rows(torch.where(known, answers + 1, 0), self.samples, len(asked)) - 1
        drawn = draw_targets(asked, tokens.tolist(), draw_key(trial), self.samples, len(trial.asked_with))
        edits = [(prompt, target) for prompt, target in enumerate(drawn) if target is not None]
        edited, targets = torch.tensor(edits, dtype=torch.long, device=known.device).reshape(-1, 2).T
        return replace(
            self,
            predicted=answers,
            known=known,
            tokens=tokens,
            edited=edited,
            targets=targets,
            target_objects=self.processes.rows(self.object, self.samples, len(asked))[targets],
        )

    @property
    def all_known(self) -> int:
        """Number of samples that the LM knows, over all processes."""
        return int((self.tokens >= 0).sum())

    @property
    def all_edited(self) -> list[int]:
        """Samples that are edited, over all processes: the known ones if their objects have several first tokens."""
        known = (self.tokens >= 0).nonzero().flatten()
        return known.tolist() if len(self.tokens[known].unique()) > 1 else []

    @property
    def wanted(self) -> Tensor:
        """First tokens of the objects o' that this process's edits aim at, int64 `(edits,)`."""
        return self.tokens[self.targets]

    @property
    def change(self) -> Tensor:
        """O' - o of the prompts that are edited, `(edits, hidden)`."""
        return paper.change(self.object[self.edited], self.target_objects)

    @cached_property
    def edited_runs(self) -> PromptBatch:
        """The prompts that are edited."""
        return self.runs.select(self.edited)

    def draw_edits(self, count: int) -> list[int]:
        """Draw at most `count` of the samples that are edited, over all processes."""
        return self.in_drawn_order(self.all_edited)[:count]

    def in_drawn_order(self, samples: Iterable[int]) -> list[int]:
        """Return samples in an order that the trial draws, and that does not depend on the other samples."""
        asked, key = self.trial.test_asked, draw_key(self.trial)
        return sorted(samples, key=lambda sample: draw_order(key, asked[sample].subject))

    def target_subjects(self, index: int) -> Tensor:
        """Return s' at the layer of that index in `subject`, `(edits, hidden)`; a collective call."""
        return self.processes.rows(self.subject[:, index], self.samples, len(self.trial.test_asked))[self.targets]

    def count_faithful(self, answers: Tensor) -> Tensor:
        """Count how often answers for known prompts, int64 `(known, ...)`, are the LM's, over all processes."""
        return self._right(answers, self.predicted[self.known])

    def count_causal(self, answers: Tensor) -> Tensor:
        """Count how often answers after edits, int64 `(edits, ...)`, are the first tokens of o', over all processes."""
        return self._right(answers, self.wanted)

    def _right(self, answers: Tensor, wanted: Tensor) -> Tensor:
        right = paper.succeeds(answers, wanted.reshape(-1, *[1] * (answers.ndim - 1)))
        (total,) = self.processes.sum(right.sum(0).cpu())
        return total


def run_trial(
    lm: LanguageModel, data: PromptSource, index: int, layers: Sequence[Layer], max_known: int | None = None
) -> TrialStates:
    """Run the test prompts of the trial of an index in the schedule, in one process, and keep s at `layers`."""
    return TrialStates.run(lm, [*data.val_dataloader([index])], data.trial(index), layers, max_known=max_known)


def example_states(lm: LanguageModel, prompts: Sequence[Prompt], layers: Sequence[Layer]) -> Tensor:
    """Run the training prompts of a trial.

    Returns:
        s at each layer and, last, o, `(layers + 1, prompts, hidden)`, in float32 or the LM's dtype if wider.
    """
    subject, output = prompts_to_run(lm, prompts).hidden_states(layers)
    return torch.stack([*subject.unbind(1), output]).to(torch.promote_types(lm.dtype, torch.float32))


def draw_key(trial: Trial) -> str:
    """Return the text that seeds the draws of targets and pairs in a trial."""
    return "\x1f".join([trial.relation.name, str(trial.number), *(sample.subject for sample in trial.train)])


def draw_targets(
    samples: Sequence[Sample], tokens: Sequence[int], key: str, sources: Sequence[int], templates: int = 1
) -> list[int | None]:
    """Draw for known samples another known sample (s', o') whose object has another first token.

    The draw depends on the key that seeds it and the two samples alone, not on their order or how they are batched. A
    target is asked with the same template as its source if the LM knows it there.

    Args:
        samples: All test samples of the relation.
        tokens: First tokens of the objects of the samples that the LM knows, negative for the others.
        key: The text that seeds the draw.
        sources: Indices of the samples to draw for.
        templates: Number of templates that each sample is asked with, one after another.

    Returns:
        The index of the target for each of `sources`; None where the source is unknown or has no target.
    """
    candidates = [index for index, token in enumerate(tokens) if token >= 0]

    def draw(source: int) -> int | None:
        def order(target: int) -> tuple[bytes, int]:
            parts = (key, samples[source].subject, samples[target].subject, samples[target].object)
            return draw_order(*parts), (target - source) % templates

        return min((i for i in candidates if tokens[i] != tokens[source]), key=order, default=None)

    return [draw(source) if tokens[source] >= 0 else None for source in sources]
