"""Why beta is above 1: how much F really changes between two subjects, and how much W says (Appendix on beta).

With u the direction of F(s2) - F(s1) and v that of s2 - s1, the integral of u^T F'(s) v along the line from s1 to s2 is
||F(s2) - F(s1)||, and the LRE at beta = 1 estimates it as u^T W v ||s2 - s1||. Their ratio is above 1 where W, the
slope at the subjects themselves, underestimates what lies between them.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from lre_lightning.lre.lre import LRE
from lre_lightning.models.patching import PromptBatch
from lre_lightning.scoring.scores import EncodedTrial

NODES = 32
"""Points of the Gauss-Legendre rule along a line."""


def line_integrals(
    runs: PromptBatch,
    lre: LRE,
    start: Tensor,
    end: Tensor,
    nodes: int = NODES,
) -> tuple[Tensor, Tensor]:
    """The change of F between pairs of subject states, and the LRE's estimate of it.

    F is the LM's computation in the prompt of s1, with everything but s held fixed.

    Args:
        runs: The prompts of s1.
        lre: The LRE, whose layer is where s is read; its W is used, at beta = 1.
        start: s1, `(pairs, hidden)`.
        end: s2, `(pairs, hidden)`.
        nodes: Points of the quadrature (Gauss-Legendre) along each line.

    Returns:
        The integral of u^T F'(s) v from s1 to s2 and u^T W v ||s2 - s1||, `(pairs,)` each, in the dtype of W.
    """
    wide = lre.weight.dtype
    start, end = start.to(wide), end.to(wide)
    points, weights = (torch.from_numpy(array).to(start) for array in np.polynomial.legendre.leggauss(nodes))
    ends = runs.patched(lre.layer, torch.stack([start, end], 1)).to(wide)
    u = torch.nn.functional.normalize(ends[:, 1] - ends[:, 0], dim=-1)
    way = end - start
    line = start[:, None] + (points[:, None] + 1) / 2 * way[:, None]
    slopes = (runs.pullback(lre.layer, line, u) * way[:, None]).sum(-1)
    estimate = (u * (way @ lre.weight.to(way.device).T)).sum(-1)
    return slopes @ weights / 2, estimate


def trial_integrals(trial: EncodedTrial, index: int, lre: LRE, count: int, key: str) -> tuple[tuple[float, float], ...]:
    """Line integrals between pairs (s, s') of known test subjects of a trial with different objects.

    Args:
        trial: The test prompts.
        index: The place of the LRE's layer among those of `EncodedTrial.subject`.
        lre: The LRE.
        count: How many pairs, if there are as many.
        key: Seeds the draw of pairs.

    Returns:
        For each pair the integral and its estimate.
    """

    def digest(sample: int) -> bytes:
        return hashlib.sha256(f"{key}\x1f{trial.shared.samples[sample].subject}".encode()).digest()

    drawn = sorted(trial.all_edited, key=digest)[:count]
    ends = trial.target_subjects(index)
    found = torch.zeros(len(drawn), 2, dtype=torch.float64)
    own = {trial.shared.mine[prompt]: edit for edit, prompt in enumerate(trial.edited.tolist())}
    mine = [place for place, sample in enumerate(drawn) if sample in own]
    if mine:
        edits = torch.tensor([own[drawn[place]] for place in mine], device=ends.device)
        first = trial.edited[edits]
        runs = trial.runs.select(first)
        pair = line_integrals(runs, lre, trial.subject[first, index], ends[edits])
        found[mine] = torch.stack(pair, 1).cpu().double()
    (found,) = trial.shared.processes.sum(found)
    return tuple((exact, estimate) for exact, estimate in found.tolist())
