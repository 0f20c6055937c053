"""Measures beyond the argmax: how likely, how far, and against the truth, on the whole grid of a fit.

They are computed from the outputs that faithfulness and causality are counted from, so the LM runs no prompt for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics.functional import distribution_scores, token_ranks
from lre_lightning.records.record import MEASURES, TrialRecord
from lre_lightning.scoring.scores import slopes
from lre_lightning.scoring.states import TrialStates


class Measured:
    """Sums of the measures of a trial's prompts in this process, layer by layer.

    Args:
        states: The test prompts.
    """

    def __init__(self, states: TrialStates) -> None:
        self.states, self.lm = states, states.runs.lm
        self._said: list[Tensor] = []  # by layer, (betas, 5): four measures, and how often the LM's answer is said
        self._edited: list[Tensor] = []  # by layer, (ranks, 3)

    def look(self, output: Tensor) -> None:
        """Measure the outputs of the next layer's LRE for known samples, `(known, betas, hidden)`."""
        own, answers = self.states.object[self.states.known], self.states.predicted[self.states.known]
        scores = self._scores(output, own, answers)[0, ..., :3]
        cosine = cosine_similarity(output, own[:, None].to(output), -1)
        each = torch.cat([scores, cosine[..., None].to(scores), (scores[..., 1:2] == 0).to(scores)], -1)
        self._said.append(each.sum(0))

    def look_at_edits(self, output: Tensor) -> None:
        """Measure the LM's outputs after the edits by the next layer's LRE, `(edits, ranks, hidden)`."""
        states = self.states
        answers = states.wanted, states.predicted[states.edited]
        after, original = self._scores(output, states.target_objects, *answers)
        moved, odds = after[..., 0] - self._before[..., 0], after[..., 3] - original[..., 3]
        self._edited.append(torch.stack([moved.sum(0), odds.sum(0), after[..., 2].sum(0)], 1))

    @cached_property
    def _before(self) -> Tensor:
        """The scores of the targets' objects before the edits, `(edits, 1, 4)`, the same for all layers."""
        states = self.states
        return self._scores(states.object[states.edited][:, None], states.target_objects, states.wanted)[0]

    def _scores(self, output: Tensor, reference: Tensor, *answers: Tensor) -> Tensor:
        """Return the scores of D(output) for outputs `(rows, points, hidden)` and each of several answers `(rows,)`.

        Every output is decoded once. The scores are `(answers, rows, points, 4)`, float64, on the CPU.
        """
        found = [torch.zeros(len(answers), 0, output.shape[1], 4, dtype=torch.float64)]
        for rows, logits in self._decoded(output):
            wanted = self.lm.decode(reference[rows])
            each = [distribution_scores(logits, tokens[rows].to(logits.device), wanted) for tokens in answers]
            found.append(torch.stack([torch.stack(scores, -1) for scores in each]).double().cpu())
        return torch.cat(found, 1)

    def _decoded(self, output: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield D(output) of some rows at a time for outputs `(rows, points, hidden)`."""
        size = max(1, self.lm.logit_rows(len(output) * output.shape[1]) // output.shape[1]) if len(output) else 1
        for some in range(0, len(output), size):
            rows = slice(some, some + size)
            yield rows, self.lm.decode(output[rows])

    def sums(self, lres: Mapping[Layer, LRE], betas: Sequence[float]) -> dict[str, Tensor]:
        """Return the sums over all processes by the names of `MEASURES`, `(layers, points)`; a collective call."""
        said, edited = torch.stack(self._said), torch.stack(self._edited)
        by_name = [
            *said[..., :4].unbind(-1),
            *edited.unbind(-1),
            self._differences(lres),
            *self._truth(lres, betas),
        ]
        return dict(zip(MEASURES, self.states.processes.sum(*(one.contiguous() for one in by_name)), strict=True))

    def _differences(self, lres: Mapping[Layer, LRE]) -> Tensor:
        """Return the sums of the cosines of W (s' - s) and o' - o over edits, `(layers, 1)`."""
        states, found = self.states, []
        wanted = states.target_objects - states.object[states.edited]
        for index, lre in enumerate(lres.values()):
            way = states.target_subjects(index) - states.subject[states.edited, index]
            moved = lre.operator.apply(way)
            found.append(cosine_similarity(moved, wanted.to(moved), -1).double().sum().cpu())
        return torch.stack(found)[:, None]

    def _truth(self, lres: Mapping[Layer, LRE], betas: Sequence[float]) -> list[Tensor]:
        """Return the sums of the measures on the unknown and on all test samples, `(layers, points)` each."""
        states, known, unknown = self.states, self.states.known, ~self.states.known
        said, subject = torch.stack(self._said), states.subject[unknown]
        outputs = (lre(subject[:, i, None], slopes(betas, lre, subject)) for i, lre in enumerate(lres.values()))
        agreement, *true = torch.stack([self._against_truth(output, unknown) for output in outputs]).unbind(-1)
        lm = [self._against_truth(states.object[rows][:, None], rows)[:, 2:] for rows in (unknown, known)]
        of_unknown, of_all = (one.T[:, None].expand(-1, len(lres), 1) for one in (lm[0], lm[0] + lm[1]))
        everywhere = [one + own for one, own in zip(true, (said[..., 4], said[..., 0], said[..., 1]), strict=True)]
        return [agreement, *true, *of_unknown, *everywhere, *of_all]

    def _against_truth(self, output: Tensor, chosen: Tensor) -> Tensor:
        """Sum up what D(output) says of the chosen prompts, for outputs `(chosen, points, hidden)`.

        Returns:
            How often it is the LM's answer, and the object of the data, and that object's probability and token rank,
            `(points, 4)`, float64, on the CPU.
        """
        truth = [prompt.object_token for prompt in self.states.prompts]
        objects = torch.tensor(truth, dtype=torch.long, device=chosen.device)
        total = torch.zeros(output.shape[1], 4, dtype=torch.float64)
        for rows, logits in self._decoded(output):
            object_, answer = (one[chosen][rows].to(logits.device) for one in (objects, self.states.predicted))
            places = token_ranks(logits, object_)
            probability = logits.float().softmax(-1)[torch.arange(len(object_)), :, object_]
            each = logits.argmax(-1) == answer[:, None], places == 0, probability, places
            total += torch.stack([one.cpu().double().sum(0) for one in each], -1)
        return total


def with_measures(record: TrialRecord, measured: Measured, lres: Mapping[Layer, LRE]) -> TrialRecord:
    """Return the record of a grid with the sums of its measures; a collective call."""
    sums = measured.sums(lres, record.betas)
    return replace(record, measures={name: tuple(map(tuple, one.tolist())) for name, one in sums.items()})
