"""Line integrals of F' between subjects, which explain why beta is above 1 (Appendix on beta).

With u the direction of F(s2) - F(s1) and v that of s2 - s1, the integral of u^T F'(s) v along the line from s1 to s2 is
||F(s2) - F(s1)||, and the LRE at beta = 1 estimates it as u^T W v ||s2 - s1||. Their ratio is above 1 where W, the
slope at the subjects themselves, underestimates the slope between them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from lre_lightning.lre.lre import LRE
from lre_lightning.models.patching import PromptBatch
from lre_lightning.records.record import TrialRecord
from lre_lightning.scoring.states import TrialStates

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


def with_line_integrals(record: TrialRecord, states: TrialStates, lre: LRE, count: int) -> TrialRecord:
    """Return the record with line integrals between test subjects s and s' at its chosen layer (table "line_int").

    The pairs are those of `count` edits, drawn by the trial; all edits if there are fewer.
    """
    index, drawn = record.layers.index(lre.layer), states.draw_edits(count)
    ends = states.target_subjects(index)
    integrals = torch.zeros(len(drawn), 2, dtype=torch.float64)
    own = {states.samples[prompt]: edit for edit, prompt in enumerate(states.edited.tolist())}
    mine = [place for place, sample in enumerate(drawn) if sample in own]
    if mine:
        edits = torch.tensor([own[drawn[place]] for place in mine], device=ends.device)
        prompts = states.edited[edits]
        pairs = line_integrals(states.runs.select(prompts), lre, states.subject[prompts, index], ends[edits])
        integrals[mine] = torch.stack(pairs, 1).cpu().double()
    (integrals,) = states.processes.sum(integrals)
    return replace(record, line_integrals=tuple((exact, estimate) for exact, estimate in integrals.tolist()))
