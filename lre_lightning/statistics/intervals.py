"""Intervals of fractions, of scores over trials, and of any statistic over relations; the influence of one relation.

All are 95% intervals unless another level is given. See "Intervals" in docs/method.md for definitions and sources.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, variance
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

Statistic = Callable[[Array], Array]
"""A statistic of samples, `(draws, relations)` or `(draws, relations, scores)`, for each draw: `(draws,)`."""

LEVEL = 0.95
LEAST = 5
"""Number of relations below which the bootstrap says too little to be shown."""
DRAWS = 2000
_NORMAL = NormalDist()
_variance = lru_cache(maxsize=4096)(variance)  # exact, so slow; a report asks for many several times


@dataclass(frozen=True)
class Interval:
    """An interval of values that the data are compatible with."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


def wilson(count: float, total: float, level: float = LEVEL) -> Interval:
    """Return Wilson's score interval of a fraction, `count` of `total`; from 0 to 1 if there is nothing to count.

    Neither needs to be a whole number: `total` may be an effective number of samples (`over_trials`).
    """
    if not total:
        return Interval(0.0, 1.0)
    z, p = _NORMAL.inv_cdf((1 + level) / 2), count / total
    centre = p + z**2 / (2 * total)
    width = z * math.sqrt(max(p * (1 - p), 0) / total + (z / (2 * total)) ** 2)
    scale = 1 + z**2 / total
    # Exactly 0 of none, and 1 of all: rounding must not put the fraction outside.
    return Interval(min(max((centre - width) / scale, 0.0), p), max(min((centre + width) / scale, 1.0), p))


def paired_difference(
    both: float, first: float, second: float, neither: float, level: float = LEVEL
) -> Interval | None:
    """Return Newcombe's interval of the difference of two fractions of the same samples (1998, paired data, method 10).

    It squares and adds Wilson's intervals of both, less what their correlation phi takes away, with a correction for
    continuity. The numbers of samples on which both succeed, one alone, or neither need not be whole; None if all are
    zero.
    """
    total = both + first + second + neither
    if not total:
        return None
    ones, others = both + first, both + second
    p, q = ones / total, others / total
    of_p, of_q = wilson(ones, total, level), wilson(others, total, level)
    product = ones * (total - ones) * others * (total - others)
    excess = both * neither - first * second
    if excess > 0:
        excess = max(excess - total / 2, 0.0)
    phi = excess / math.sqrt(product) if product > 0 else 0.0

    def width(own: float, its: float) -> float:
        return math.sqrt(max(own**2 - 2 * phi * own * its + its**2, 0.0))

    return Interval(p - q - width(p - of_p.low, of_q.high - q), p - q + width(of_p.high - p, q - of_q.low))


def over_trials(fractions: Sequence[float], totals: Sequence[int], level: float = LEVEL) -> Interval | None:
    """Return the interval of the mean of one relation's scores over trials, for other samples and other trials.

    It is Wilson's interval with the number of samples that would have the variance of the mean, m samples' own and that
    over K trials: p (1 - p) / m + s^2 / K. Trials test the same samples but for the few that they train on, hence the
    first part does not shrink with K; m is the harmonic mean of the totals. None without samples.

    Args:
        fractions: The score of each trial, a fraction of its total; at least one.
        totals: What each fraction is out of.
        level: The interval's level.
    """
    if not all(totals):
        return None
    mean, samples = fmean(fractions), len(totals) / sum(1 / total for total in totals)
    own = mean * (1 - mean)
    between = _variance(tuple(fractions)) / len(fractions) if len(fractions) > 1 else 0.0
    if own > 1e-12:  # at 0 and 1 trials do not differ, up to rounding
        samples = 1 / (1 / samples + between / own)
    return wilson(mean * samples, samples, level)


def bootstrap(
    values: npt.ArrayLike, statistic: Statistic, level: float = LEVEL, draws: int = DRAWS, seed: int = 0
) -> Interval | None:
    """Return the bias-corrected and accelerated (BCa) bootstrap interval of a statistic over relations (Efron, 1987).

    It is that of scipy, and the percentile interval where no relation alone changes the statistic. For few relations
    its level is expanded (`expanded`), without which it is too narrow.

    Args:
        values: What is known of each relation, `(relations,)` or `(relations, scores)`: its scores are drawn together.
        statistic: The statistic of samples of them, NaN where a sample does not have it.
        level: The interval's level.
        draws: Number of samples with replacement.
        seed: The seed of these samples.

    Returns:
        The interval. None with fewer than `LEAST` relations, if the statistic is NaN for the values themselves, or for
        more than a tenth of the samples. If it is the same in all samples, the interval is that one value.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < LEAST:
        return None
    return _bootstrapped(array.tobytes(), array.shape, statistic, level, draws, seed)


@lru_cache(maxsize=4096)
def _bootstrapped(
    numbers: bytes, shape: tuple[int, ...], statistic: Statistic, level: float, draws: int, seed: int
) -> Interval | None:
    """Return the interval of `bootstrap`, once: a report shows many means in several of its tables."""
    from scipy import stats

    array = np.frombuffer(numbers).reshape(shape)
    count = len(array)

    def of(places: npt.NDArray[np.int64], axis: int = -1) -> Array:
        """Return the statistic of the relations at some places, `(..., relations)` to `(...)`."""
        samples = array[places.reshape(-1, places.shape[-1])]
        return _statistic_of(samples, statistic).reshape(places.shape[:-1])

    relations = (np.arange(count),)
    options: dict[str, Any] = {"vectorized": True, "confidence_level": 1 - 2 * stats.norm.cdf(-expanded(count, level))}
    with np.errstate(all="ignore"), warnings.catch_warnings():  # a sample that does not vary has no correlation
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        observed = float(of(relations[0]))
        found = stats.bootstrap(relations, of, n_resamples=draws, method="percentile", rng=seed, **options)
        sampled = found.bootstrap_distribution
        found.bootstrap_distribution = sampled = sampled[~np.isnan(sampled)]
        if math.isnan(observed) or len(sampled) < 0.9 * draws:
            return None
        if not np.ptp(sampled):
            return Interval(observed, observed)
        options |= {"n_resamples": 0, "bootstrap_result": found, "batch": 64}
        ends = stats.bootstrap(relations, of, method="BCa", **options).confidence_interval
        if math.isnan(ends.low):  # no relation changes the statistic when it is left out, as with medians of ties
            ends = stats.bootstrap(relations, of, method="percentile", **options).confidence_interval
    return Interval(float(ends.low), float(ends.high))


def expanded(count: int, level: float = LEVEL) -> float:
    """Return the standard normal quantile at which the ends of a bootstrap interval of few values are read off.

    The bootstrap's variance is (n - 1) / n of what it should be, and normal quantiles are too small for few values:
    sqrt(n / (n - 1)) t, with Student's t of n - 1 degrees of freedom, makes up for both (Hesterberg, 2015).
    """
    from scipy.special import stdtrit

    return float(stdtrit(count - 1, (1 + level) / 2)) * math.sqrt(count / (count - 1))


def value_of(values: npt.ArrayLike, statistic: Statistic) -> float | None:
    """Return a statistic over relations, `(relations,)` or `(relations, scores)`; None where it is not defined."""
    with np.errstate(all="ignore"):
        value = float(_statistic_of(np.asarray(values, dtype=np.float64)[None], statistic)[0])
    return None if math.isnan(value) else value


def _statistic_of(samples: Array, statistic: Statistic) -> Array:
    """Apply a statistic to samples; both are rounded, so that what is equal as fractions does not vary."""
    values: Array = np.asarray(statistic(samples.round(12)), dtype=np.float64).round(12)
    return values


def without_each(values: npt.ArrayLike, statistic: Statistic) -> Array:
    """Return a statistic without each relation in turn, `(relations,)`: how much rests on a single one."""
    array = np.asarray(values, dtype=np.float64)
    with np.errstate(all="ignore"):
        others = [_statistic_of(np.delete(array, place, 0)[None], statistic) for place in range(len(array))]
    return np.array(others, dtype=np.float64).reshape(-1)


def mean(samples: Array) -> Array:
    """Return the mean of one score over relations: a `Statistic` of `(draws, relations)`."""
    return np.asarray(samples.mean(1))


def ratio_of_sums(samples: Array) -> Array:
    """Return the sum of one value over that of another: a `Statistic` of `(draws, relations, 2)`."""
    return np.asarray(samples[..., 0].sum(1) / samples[..., 1].sum(1))


def median(samples: Array) -> Array:
    """Return the median of one value: a `Statistic` of `(draws, values)`."""
    return np.asarray(np.median(samples, axis=1))


def mean_difference(samples: Array) -> Array:
    """Return the mean difference of two scores of the same relations: a `Statistic` of `(draws, relations, 2)`."""
    return np.asarray((samples[..., 0] - samples[..., 1]).mean(1))
