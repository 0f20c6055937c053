"""Line integrals of F' between subjects, which explain why beta is above 1 (Appendix on beta).

With u the direction of F(s2) - F(s1) and v that of s2 - s1, the integral of u^T F'(s) v along the line from s1 to s2 is
||F(s2) - F(s1)||, and the LRE at beta = 1 estimates it as u^T W v ||s2 - s1||. Their ratio is above 1 where W, the
slope at the subjects themselves, underestimates the slope between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lre_lightning.errors import check_number
from lre_lightning.lre.lre import LRE
from lre_lightning.models.patching import PromptBatch
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.tables import by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "line integrals"
NODES = 32
"""Number of points of the Gauss-Legendre rule along a line."""


def line_integrals(
    runs: PromptBatch, lre: LRE, start: Tensor, end: Tensor, nodes: int = NODES
) -> tuple[Tensor, Tensor]:
    """Integrate the change of F between pairs of subject states, and estimate it by the LRE.

    F is the LM's computation in the prompt of s1, with everything but s held fixed.

    Args:
        runs: The prompts of s1.
        lre: The LRE, whose layer is where s is read; its W is used, at beta = 1.
        start: s1, `(pairs, hidden)`.
        end: s2, `(pairs, hidden)`.
        nodes: Number of points of the Gauss-Legendre rule along each line.

    Returns:
        The integral of u^T F'(s) v from s1 to s2 and u^T W v ||s2 - s1||, `(pairs,)` each, in the dtype of W.
    """
    wide = lre.bias.dtype
    start, end = start.to(wide), end.to(wide)
    points, weights = (torch.from_numpy(array).to(start) for array in np.polynomial.legendre.leggauss(nodes))
    ends = runs.patched(lre.layer, torch.stack([start, end], 1)).to(wide)
    u = torch.nn.functional.normalize(ends[:, 1] - ends[:, 0], dim=-1)
    way = end - start
    line = start[:, None] + (points[:, None] + 1) / 2 * way[:, None]
    slopes = (runs.pullback(lre.layer, line, u) * way[:, None]).sum(-1)
    estimate = (u * lre.operator.to(way.device).apply(way)).sum(-1)
    return slopes @ weights / 2, estimate


@dataclass(frozen=True)
class LineIntegrals(Measure):
    """Line integrals between test subjects s and s' at the chosen layer (table "line_int").

    A row is the integral of u^T F'(s) v from s to s' and its estimate u^T W v ||s' - s||.

    Attributes:
        pairs: The number of pairs per trial: those of as many edits, drawn by the trial; of all if there are fewer.
    """

    name = NAME
    pairs: int = 10

    def __post_init__(self) -> None:
        check_number("pairs", self.pairs, 1)

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of a run and a gradient at each point of the lines."""
        return Cost(at_choice=2 * NODES * self.pairs)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Integrate along the line of each pair."""
        states, index, drawn = trial.states, trial.index, trial.states.draw_edits(self.pairs)
        ends = states.target_subjects(index)
        integrals = torch.zeros(len(drawn), 2, dtype=torch.float64)
        own = {states.samples[prompt]: edit for edit, prompt in enumerate(states.edited.tolist())}
        mine = [place for place, sample in enumerate(drawn) if sample in own]
        if mine:
            edits = torch.tensor([own[drawn[place]] for place in mine], device=ends.device)
            prompts = states.edited[edits]
            start = states.subject[prompts, index]
            pairs = line_integrals(states.runs.select(prompts), trial.lre, start, ends[edits])
            integrals[mine] = torch.stack(pairs, 1).cpu().double()
        (integrals,) = states.processes.sum(integrals)
        return Measurement(rows=tuple(map(tuple, integrals.tolist())), chosen=("layer",))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return how much W underestimates changes of F."""
        return (underestimation(records),)


def underestimation(records: Sequence[TrialRecord]) -> Section:
    """Return the extent to which W underestimates the change of F between subjects (table "line_int")."""
    title = "Changes between subjects, and what W estimates of them"
    measured = [record for record in analysis.counted(records) if record.rows_of(NAME, float, float)]
    if not measured:
        return missing(title, "How much W underestimates changes of F was", "--model.measures+=LineIntegrals")
    used, left_out = Counter[str](), Counter[str]()
    for record in measured:
        used[record.relation] += len(analysis.change_ratios(record))
        left_out[record.relation] += len(record.measures[NAME].rows) - len(analysis.change_ratios(record))
    table = by_relation(
        "underestimation",
        "Ratio between the actual change of F from one subject to another and the change that W estimates on "
        f"{analysis.lm_of(records)}. Medians over pairs of subjects, which a few estimates near zero do not move, with "
        "95% intervals; pairs whose estimate is not positive are left out, which makes ratios look "
        "larger the more there are.",
        used,
        {"pairs": used, "left out": left_out, "underestimation ratio": analysis.underestimation(records)},
        digits=3,
    )
    return Section(title, (picture_of(plot_underestimation, records),), (table,))


def plot_underestimation(records: Sequence[TrialRecord]) -> Figure:
    """Ratio of the actual change of F from one subject to another to the change that W estimates (table "line_int").

    Medians over pairs of subjects, with 95% intervals; at 1 nothing is underestimated.
    """
    ratios = analysis.underestimation(records)
    names = plotting.best_first(ratios, ratios)
    figure, (axes,) = plotting.rows(names, [""], "underestimation ratio, median over pairs of subjects", 0.24)
    plotting.dots(axes, names, {"": ratios})
    plotting.intervals(axes, [(row, ratios[name]) for row, name in enumerate(names)])
    axes.axvline(1, color="black", linestyle="--", linewidth=1)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    plotting.category_marks(axes, names, analysis.categories(records))
    return figure
