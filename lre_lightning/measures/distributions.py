"""Scores beyond the argmax: how likely, how far, and against the truth, on the whole grid of a fit.

They are computed from outputs like those that faithfulness and causality are counted from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics.functional import distribution_scores, token_ranks
from lre_lightning.models.precision import check_logits
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.report.tables import by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.scores import edited_outputs, grid_of, outputs, slopes
from lre_lightning.scoring.states import TrialStates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "distributions"
DISTRIBUTION_SCORES = {
    "probability": ("beta", "known"),
    "token rank": ("beta", "known"),
    "KL": ("beta", "known"),
    "cosine": ("beta", "known"),
    "probability moved": ("rank", "edited"),
    "log-odds": ("rank", "edited"),
    "KL after edits": ("rank", "edited"),
    "cosine of differences": ("", "edited"),
    "agreement on the unknown": ("beta", "unknown"),
    "truth on the unknown": ("beta", "unknown"),
    "probability of the truth on the unknown": ("beta", "unknown"),
    "token rank of the truth on the unknown": ("beta", "unknown"),
    "LM's probability of the truth on the unknown": ("", "unknown"),
    "LM's token rank of the truth on the unknown": ("", "unknown"),
    "truth": ("beta", "tested"),
    "probability of the truth": ("beta", "tested"),
    "token rank of the truth": ("beta", "tested"),
    "LM's probability of the truth": ("", "tested"),
    "LM's token rank of the truth": ("", "tested"),
}
"""The scores, by the axis of their grid beside layers and the samples that they are sums over.

Of the LRE's prediction: probability and token rank of the LM's answer, divergence from the LM's distribution, cosine of
LRE(s) and o. Of the LM after an edit: how much more probable the target's object became, its log-odds to the LM's own
answer, divergence from the distribution for s'. The cosine of W (s' - s) and o' - o. On samples that the LM does not
know: how often the LRE says what the LM says. On those, and on all test samples: how often the LRE says the truth,
which is the object of the data, its probability and token rank, and both for the LM, the same at every layer. On known
samples the truth is the LM's answer.
"""

PANELS = (
    ("predictions", ("probability", "cosine", "cosine of differences")),
    ("edits", ("probability moved",)),
    (
        "the unknown",
        (
            "agreement on the unknown",
            "truth on the unknown",
            "probability of the truth on the unknown",
            "LM's probability of the truth on the unknown",
        ),
    ),
    ("divergence, nats", ("KL", "KL after edits")),
)


class Sums:
    """Sums of the scores of a trial's prompts in this process, layer by layer."""

    def __init__(self, states: TrialStates) -> None:
        self.states, self.lm = states, states.runs.lm
        self._said: list[Tensor] = []  # by layer, (betas, 5): four measures, and how often the LM's answer is said
        self._edited: list[Tensor] = []  # by layer, (ranks, 3)

    def read(self, output: Tensor) -> Tensor:
        """Measure the outputs of the next layer's LRE for known samples, `(known, betas, hidden)`.

        Returns:
            Its answers, argmax D(output), `(known, betas)`, int64.
        """
        own, answers = self.states.object[self.states.known], self.states.predicted[self.states.known]
        said, scores = self._scores(output, own, answers)
        cosine = cosine_similarity(output, own[:, None].to(output), -1)
        each = torch.cat([scores, cosine[..., None].to(scores), (scores[..., 1:2] == 0).to(scores)], -1)
        self._said.append(each.sum(0))
        return said

    def read_edits(self, output: Tensor) -> Tensor:
        """Measure the LM's outputs after the edits by the next layer's LRE, `(edits, ranks, hidden)`.

        Returns:
            The LM's answers, `(edits, ranks)`, int64.
        """
        states = self.states
        said, scores = self._scores(output, states.target_objects, states.wanted, states.predicted[states.edited])
        moved = scores[..., 0] - self._before
        self._edited.append(torch.stack([moved.sum(0), scores[..., 3].sum(0), scores[..., 2].sum(0)], 1))
        return said

    @cached_property
    def _before(self) -> Tensor:
        """The probability of the targets' objects before the edits, `(edits, 1)`, the same for all layers."""
        states = self.states
        return self._scores(states.object[states.edited][:, None], states.target_objects, states.wanted)[1][..., 0]

    def _scores(
        self, output: Tensor, reference: Tensor, answers: Tensor, others: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Decode outputs `(rows, points, hidden)` once, and compare them with the LM's own, `(rows, hidden)`.

        Returns:
            argmax D(output), `(rows, points)`, int64; and the `distribution_scores` of answers `(rows,)`, with their
            log-odds against other ones if there are some, `(rows, points, 3 or 4)`, float64, on the CPU.
        """
        said = [torch.zeros(output.shape[:2], dtype=torch.long, device=output.device)[:0]]
        scores = [torch.zeros(0, output.shape[1], 3 if others is None else 4, dtype=torch.float64)]
        for rows, logits in self._decoded(output):
            tokens = answers[rows].to(logits.device)
            each = distribution_scores(logits, tokens, self.lm.decode(reference[rows]))
            if others is not None:
                lines = torch.arange(len(tokens), device=logits.device)
                each = *each, logits[lines, :, tokens] - logits[lines, :, others[rows].to(logits.device)]
            said.append(logits.argmax(-1).to(output.device))
            scores.append(torch.stack([score.cpu().double() for score in each], -1))
        return torch.cat(said), torch.cat(scores)

    def _decoded(self, output: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield D(output) of some rows at a time for outputs `(rows, points, hidden)`."""
        size = max(1, self.lm.logit_rows(len(output) * output.shape[1]) // output.shape[1]) if len(output) else 1
        for some in range(0, len(output), size):
            rows = slice(some, some + size)
            logits = self.lm.decode(output[rows])
            check_logits(logits, self.lm.name)
            yield rows, logits

    def sums(self, lres: Mapping[Layer, LRE], betas: Sequence[float]) -> dict[str, Tensor]:
        """Return the sums over all processes by `DISTRIBUTION_SCORES`, `(layers, points)`; a collective call."""
        said, edited = torch.stack(self._said), torch.stack(self._edited)
        by_name = [
            *said[..., :4].unbind(-1),
            *edited.unbind(-1),
            self._differences(lres),
            *self._truth(lres, betas),
        ]
        sums = self.states.processes.sum(*(total.contiguous() for total in by_name))
        return dict(zip(DISTRIBUTION_SCORES, sums, strict=True))

    def _differences(self, lres: Mapping[Layer, LRE]) -> Tensor:
        """Return the sums of the cosines of W (s' - s) and o' - o over edits, `(layers, 1)`."""
        states, sums = self.states, []
        wanted = states.change
        for index, lre in enumerate(lres.values()):
            way = states.target_subjects(index) - states.subject[states.edited, index]
            moved = lre.operator.apply(way)
            sums.append(cosine_similarity(moved, wanted.to(moved), -1).double().sum().cpu())
        return torch.stack(sums)[:, None]

    def _truth(self, lres: Mapping[Layer, LRE], betas: Sequence[float]) -> list[Tensor]:
        """Return the sums of the measures on the unknown and on all test samples, `(layers, points)` each."""
        states, known, unknown = self.states, self.states.known, ~self.states.known
        said, subject = torch.stack(self._said), states.subject[unknown]
        outputs = (lre(subject[:, i, None], slopes(betas, lre, subject)) for i, lre in enumerate(lres.values()))
        agreement, *true = torch.stack([self._against_truth(output, unknown) for output in outputs]).unbind(-1)
        lm = [self._against_truth(states.object[rows][:, None], rows)[:, 2:] for rows in (unknown, known)]
        of_unknown, of_all = (sums.T[:, None].expand(-1, len(lres), 1) for sums in (lm[0], lm[0] + lm[1]))
        on_known = said[..., 4], said[..., 0], said[..., 1]
        everywhere = [a + b for a, b in zip(true, on_known, strict=True)]
        return [agreement, *true, *of_unknown, *everywhere, *of_all]

    @cached_property
    def _objects(self) -> Tensor:
        """The first tokens of the data's objects, int64 `(prompts,)`."""
        tokens = [prompt.object_token for prompt in self.states.prompts]
        return torch.tensor(tokens, dtype=torch.long, device=self.states.known.device)

    def _against_truth(self, output: Tensor, chosen: Tensor) -> Tensor:
        """Sum up what D(output) says of the chosen prompts, for outputs `(chosen, points, hidden)`.

        Returns:
            How often it is the LM's answer, and the object of the data, and that object's probability and token rank,
            `(points, 4)`, float64, on the CPU.
        """
        total = torch.zeros(output.shape[1], 4, dtype=torch.float64)
        for rows, logits in self._decoded(output):
            object_, answer = (ids[chosen][rows].to(logits.device) for ids in (self._objects, self.states.predicted))
            places = token_ranks(logits, object_)
            wide = torch.promote_types(logits.dtype, torch.float32)
            probability = logits.softmax(-1, dtype=wide)[torch.arange(len(object_)), :, object_]
            each = logits.argmax(-1) == answer[:, None], places == 0, probability, places
            total += torch.stack([score.cpu().double().sum(0) for score in each], -1)
        return total


@dataclass(frozen=True)
class Distributions(Measure):
    """Scores beyond the argmax on the whole grid: probabilities, token ranks, divergences, cosines, and the unknown.

    Means differ in their last digits between numbers of processes.
    """

    name = NAME
    applied = 1

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of all answers and all edits once more."""
        return Cost(ranks * known, betas * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Sum up `DISTRIBUTION_SCORES`; the LM runs every edit again."""
        states, record, lres = trial.states, trial.record, trial.lres
        sums = Sums(states)
        for output in outputs([*lres.values()], states.subject[states.known], record.betas):
            sums.read(output)
        of_edits = states.subject[states.edited]
        for output in edited_outputs(states.edited_runs, [*lres.values()], of_edits, states.change, record.ranks):
            sums.read_edits(output)
        tallies = {}
        for name, values in sums.sums(lres, record.betas).items():
            axis, over = DISTRIBUTION_SCORES[name]
            found = grid_of(values if axis else values[:, 0])
            axes = ("layer", axis) if axis else ("layer",)
            tallies[name] = Tally(found, int(getattr(record, over)), axes, counts=False)
        return Measurement(tallies)

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return probabilities, divergences, cosines and answers about the unknown, by relation and by layer."""
        return (section(records),)


def section(records: Sequence[TrialRecord]) -> Section:
    """Return probabilities, divergences, cosines and answers about the unknown, by relation and by layer."""
    title, measured = "Beyond the argmax", [record for record in analysis.counted(records) if NAME in record.measures]
    if not measured:
        return missing(title, "Probabilities, divergences and cosines were", "--model.measures+=Distributions")
    lm, kept = analysis.lm_of(measured), analysis.on_most(measured, "layers")
    caption = (
        f"Measures beyond the argmax on {lm}: probability and token rank of the LM's answer by the LRE, divergence "
        "(nats) from the LM's distribution, cosines of LRE(s) and o and of their differences between subjects; after "
        "edits, how much more probable the target's object is, its log-odds to the LM's own answer, and divergence "
        "from the distribution for s'."
    )
    truth_caption = (
        f"The truth, which is the object of the data, on {lm}: how often the LRE says it, its probability and token "
        "rank by the LRE and by the LM, on what the LM does not know and on all test samples; and how often the LRE "
        "agrees with the LM on what it does not know."
    )
    scores = {name: analysis.tally_score(NAME, name) for name in DISTRIBUTION_SCORES}
    by_measure = analysis.side_by_side(measured, scores)
    of_truth = [name for name, (_, over) in DISTRIBUTION_SCORES.items() if over in ("unknown", "tested")]
    truth = {name: by_measure.pop(name) for name in of_truth}
    trials = f"Means and standard deviations over trials. {choice_text(measured)}"
    tables = [
        by_relation(name, f"{text} {trials}", analysis.categories(measured), columns)
        for name, text, columns in (("measures", caption, by_measure), ("truth", truth_caption, truth))
    ]
    sweeps = {name: analysis.by_layer(kept, analysis.tally_score(NAME, name)) for name in DISTRIBUTION_SCORES}
    caption = f"Measures beyond the argmax by layer of {lm}. {choice_text(kept)}"
    by_layer = sweep_table("measures_by_layer", caption, "layer", sweeps)
    return Section(title, (picture_of(plot_measures, kept),), (*tables, by_layer))


def plot_measures(records: Sequence[TrialRecord]) -> Figure:
    """Measures beyond the argmax by layer.

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    figure, layers = plotting.new_figure(11, 4), analysis.layers_of(records)
    sweeps = {
        name: analysis.by_layer(records, analysis.tally_score(NAME, name)) for _, names in PANELS for name in names
    }
    looks = dict(zip(sweeps, cycle(STYLES), strict=False))
    panels = [panel for panel in PANELS if any(any(sweeps[name].values()) for name in panel[1])]
    for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in names:
            plotting.mean_curve(axes, analysis.throughout(sweeps[name]), looks[name], name)
        plotting.layer_axis(axes, layers, 6)
        axes.set(title=title, xlabel="layer")
        axes.grid(alpha=0.3)
    plotting.legend(figure, columns=4)
    return figure
