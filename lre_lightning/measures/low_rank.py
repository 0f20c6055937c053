"""Faithfulness of the chosen LRE by rank of W (figure "rank-sweep")."""

from __future__ import annotations

from dataclasses import dataclass

from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.scoring.measure import Measure, ScoredTrial


@dataclass(frozen=True)
class LowRank(Measure):
    """Faithfulness at the chosen layer and beta with W reduced to each rank of the grid."""

    name = "low rank"

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count the faithful predictions at each rank."""
        states, record, lre = trial.states, trial.record, trial.lre
        subject = states.subject[states.known, trial.index].to(lre.bias)
        low_rank = lre.operator.low_rank(subject, record.ranks)
        counts = states.count_faithful(trial.lm.predict(record.beta * low_rank + lre.bias))
        tally = Tally(tuple(counts.tolist()), record.known, ("rank",))
        return Measurement({"faithfulness": tally}, chosen=("layer", "beta"))
