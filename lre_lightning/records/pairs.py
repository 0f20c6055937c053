"""Two LMs compared in pairs: by relation, and by the samples that both know."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from lre_lightning.records.analysis import Means, counted, joint
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.statistics.estimates import Estimate, estimate
from lre_lightning.statistics.intervals import mean_difference, paired_difference, ratio_of_sums


@dataclass(frozen=True)
class Pairs:
    """How often both LMs' LREs are right on one relation's shared samples, one of them alone, or neither.

    Means over the trials that both LMs have, so that they need not be whole numbers: trials test mostly the same
    samples.
    """

    both: float
    first: float
    second: float
    neither: float

    @property
    def total(self) -> float:
        """Number of shared samples, the mean over trials."""
        return self.both + self.first + self.second + self.neither

    @property
    def difference(self) -> Estimate:
        """The difference of the two scores on these samples, with Newcombe's paired interval."""
        counts = self.both, self.first, self.second, self.neither
        return Estimate((self.first - self.second) / self.total, None, paired_difference(*counts))


def shared_samples(records: Iterable[TrialRecord], others: Iterable[TrialRecord], score: str) -> dict[str, Pairs]:
    """Return by relation how two LMs' LREs do on the samples that both know, at the point chosen for each LM.

    Trials are paired if they are the same draw, from the same data, in the same prompts. The score is
    ``"faithfulness"``, or ``"causality"``, for the samples of which both have an edit. Relations without a shared
    sample are left out.
    """
    trials = {_draw(record): record for record in headline(counted(others))}
    tables: dict[str, list[list[int]]] = {}
    for record in headline(counted(records)):
        paired = trials.get(_draw(record))
        if paired is None:
            continue
        place = 1 if score == "faithfulness" else 2
        right, theirs = (
            {line[0]: line[place] > 0 for line in r.rows_of("outcomes", int, int, int) if line[place] >= 0}
            for r in (record, paired)
        )
        counts = [0, 0, 0, 0]
        for sample in right.keys() & theirs.keys():
            counts[3 - 2 * right[sample] - theirs[sample]] += 1
        if any(counts):
            tables.setdefault(record.relation, []).append(counts)
    return {
        name: Pairs(both, first, second, neither)
        for name, (both, first, second, neither) in ((name, np.mean(c, axis=0).tolist()) for name, c in tables.items())
    }


def _draw(record: TrialRecord) -> tuple[object, ...]:
    """Return what the test prompts of a trial are made of; their places then name the same samples."""
    prompts = sorted(record.prompts.items())
    return record.relation, record.trial, record.digest, record.train, record.template, repr(prompts)


def difference_by_relation(first: Means, second: Means) -> tuple[list[str], Estimate | None]:
    """Return the relations that have both scores, and the mean difference of the scores over them."""
    names, pairs = joint(first, second)
    return names, estimate(pairs, mean_difference) if names else None


def difference_by_sample(pairs: Sequence[Pairs]) -> Estimate | None:
    """Return the difference of two scores on all shared samples of some relations, every sample of the same weight.

    Its interval is the bootstrap's over relations, whose samples are drawn together.
    """
    return estimate([(table.first - table.second, table.total) for table in pairs], ratio_of_sums) if pairs else None
