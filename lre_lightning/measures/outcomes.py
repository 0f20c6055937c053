"""What was right, sample by sample: what two LMs are compared by."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lre_lightning.records.measurement import Measurement
from lre_lightning.scoring.measure import Measure, ScoredTrial


@dataclass(frozen=True)
class Outcomes(Measure):
    """What was right of each known sample at the chosen layer, beta and rank.

    A row is its index among the trial's test prompts, 1 if the LRE is faithful, else 0, and 1 if its edit succeeds, 0
    if not, -1 if there is none.
    """

    name = "outcomes"

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Gather the outcomes of all processes."""
        states, record = trial.states, trial.record
        assert record.rank is not None
        beta, rank = record.betas.index(record.beta), record.ranks.index(record.rank)
        outcomes = torch.zeros(len(states.prompts), 2, dtype=torch.long, device=states.known.device)  # 0: not asked
        said = trial.said[:, trial.index, beta] == states.predicted[states.known]
        edited = trial.edited[:, trial.index, rank] == states.wanted
        outcomes[states.known, 0], outcomes[states.edited, 1] = 1 + said.long(), 1 + edited.long()
        every = states.processes.rows(outcomes, states.samples, len(states.trial.test_asked)).tolist()
        rows = ((sample, faithful - 1, causal - 1) for sample, (faithful, causal) in enumerate(every) if faithful)
        return Measurement(rows=tuple(rows), chosen=("layer", "beta", "rank"))
