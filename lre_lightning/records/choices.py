"""What the data say of a choice among betas or layers: which is best, and which others are as good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from lre_lightning.grid import Layer
from lre_lightning.records.analysis import (
    at_identity,
    by_layer,
    causality,
    correlation,
    counted,
    faithfulness,
    joint,
    on_most,
    overall,
    per_relation,
    sweep,
)
from lre_lightning.records.record import TrialRecord
from lre_lightning.statistics.correlation import pearson_difference
from lre_lightning.statistics.estimates import Estimate, as_good
from lre_lightning.statistics.intervals import bootstrap, mean_difference

BetaCriterion = Literal["correlation", "faithfulness"]


def as_good_layers(records: Iterable[TrialRecord]) -> dict[str, list[Layer]]:
    """Return by relation the layers whose causality the data can't tell from that of the best layer, at its rank.

    By `as_good`. Relations on other grids than most are left out, and layers that a choice leaves out, as W is the
    identity there.
    """
    kept = on_most(records, "layers")
    identity = at_identity(kept)
    scores: dict[str, dict[Layer, Estimate]] = {}
    for layer, means in by_layer(kept, causality).items():
        for relation, mean in means.items():
            if mean.interval is not None and relation not in identity.get(layer, ()):
                scores.setdefault(relation, {})[layer] = mean
    best = {relation: max(layers.values(), key=lambda score: score.value) for relation, layers in scores.items()}
    return {
        relation: [layer for layer, score in layers.items() if as_good(score, best[relation])]
        for relation, layers in scores.items()
    }


@dataclass(frozen=True)
class BetaScores:
    """Mean and deviation of the scores over relations at one beta, and Pearson's correlation of them (table "beta").

    Causality is always at beta 1, hence the same for every beta.
    """

    beta: float
    faithfulness: Estimate
    causality: Estimate | None
    correlation: Estimate | None


def beta_scores(records: Iterable[TrialRecord]) -> list[BetaScores]:
    """Return the scores at every beta that all relations have on their grids, at the chosen layers and ranks."""
    records = counted(records)
    shared = set.intersection(*(set(record.betas) for record in records)) if records else set()
    causal = per_relation(records, causality)
    scores = []
    for beta, means in sweep(records, faithfulness, "beta", sorted(shared)).items():
        faithful = overall(means)
        if faithful is not None:
            scores.append(BetaScores(beta, faithful, overall(causal), correlation(means, causal)))
    return scores


def best_beta(scores: Iterable[BetaScores]) -> float | None:
    """Return the beta of the best correlation, the paper's criterion; None where no correlation is defined."""
    correlations = {line.beta: line.correlation.value for line in scores if line.correlation is not None}
    return max(correlations, key=lambda beta: correlations[beta]) if correlations else None


def most_faithful_beta(scores: Sequence[BetaScores]) -> float | None:
    """Return the beta of the highest mean faithfulness; None without scores."""
    return max(scores, key=lambda line: line.faithfulness[0]).beta if scores else None


def as_good_betas(records: Sequence[TrialRecord], best: float, criterion: BetaCriterion) -> list[float]:
    """Return the betas, rising, that the data cannot tell from the best one: their interval of differences has 0 in it.

    Differences are of correlations with causality, or of mean faithfulness, over the same relations at both betas. With
    fewer relations than an interval takes, all betas that have the score are as good.
    """
    causal, at_best = per_relation(records, causality), per_relation(records, partial(faithfulness, beta=best))
    good = []
    for line in beta_scores(records):
        at = per_relation(records, partial(faithfulness, beta=line.beta))
        if criterion == "correlation":
            values, statistic = joint(at_best, causal, at, causal)[1], pearson_difference
            if line.correlation is None:
                continue
        else:
            values, statistic = joint(at_best, at)[1], mean_difference
        interval = bootstrap(values, statistic)
        if line.beta == best or interval is None or 0 in interval:
            good.append(line.beta)
    return good
