"""Answers that know nothing of the subject: the most frequent objects."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.scoring.measure import Measure, ScoredTrial


@dataclass(frozen=True)
class Majorities(Measure):
    """How many known samples have the most frequent first token of the objects of the training samples, and of all.

    Of tokens as frequent, the first.
    """

    name = "majorities"

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count the known samples with each of the two answers."""
        drawn = trial.states.trial
        tallies = {}
        for name, samples in (("training", drawn.train), ("data", drawn.relation.samples)):
            ((token, _),) = Counter(trial.tokens[sample.object][0] for sample in samples).most_common(1)
            count = int((trial.states.tokens == token).sum())
            tallies[f"majority of {name}"] = Tally(count, trial.record.known, column=True)
        return Measurement(tallies)
