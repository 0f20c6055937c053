"""Estimates: a value with its deviation and its interval, as tables show it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache

import numpy.typing as npt

from lre_lightning.statistics import intervals
from lre_lightning.statistics.intervals import Interval, Statistic, bootstrap, mean, value_of


class Share(float):
    """A fraction that knows what it is out of: `total`, a number of samples."""

    total: int

    def __new__(cls, count: float, total: int) -> Share:  # noqa: D102
        self = super().__new__(cls, count / total if total else float("nan"))
        self.total = total
        return self

    def __getnewargs__(self) -> tuple[float, int]:  # type: ignore[override]
        return self * self.total, self.total


class Estimate(tuple[float, float | None]):
    """A value and its standard deviation (n - 1), None for a single value, as a pair; and its 95% interval, if any.

    The interval is no part of the pair: pairs with equal values are equal.
    """

    interval: Interval | None

    def __new__(cls, value: float, deviation: float | None = None, interval: Interval | None = None) -> Estimate:  # noqa: D102
        self = super().__new__(cls, (value, deviation))
        self.interval = interval
        return self

    def __getnewargs__(self) -> tuple[float, float | None, Interval | None]:
        return (*self, self.interval)

    @property
    def value(self) -> float:
        """The value."""
        return self[0]

    @property
    def deviation(self) -> float | None:
        """The standard deviation of what the value is a mean of."""
        return self[1]


def short_text(estimate: Estimate) -> str:
    """Return an estimate with its interval, or its deviation if it has none, such as ``"0.84 [0.50, 0.97]"``."""
    if estimate.interval is not None:
        return f"{estimate.value:.2f} [{estimate.interval.low:.2f}, {estimate.interval.high:.2f}]"
    return f"{estimate.value:.2f}" + ("" if estimate.deviation is None else f" ± {estimate.deviation:.2f}")


_deviation = lru_cache(maxsize=4096)(statistics.stdev)  # exact, so slow; a report asks for many several times


def spread(values: Sequence[float], interval: Interval | None = None) -> Estimate:
    """Return the mean and standard deviation of at least one value, with the given interval."""
    deviation = _deviation(tuple(values)) if len(values) > 1 else None
    return Estimate(statistics.fmean(values), deviation, interval)


def over_trials(values: Sequence[float]) -> Estimate:
    """Return the mean and deviation of one relation's scores over trials; of shares, with their interval.

    The interval is over samples and trials: see `intervals.over_trials`.
    """
    shares = [value for value in values if isinstance(value, Share)]
    known = len(shares) == len(values)
    interval = intervals.over_trials([*map(float, shares)], [share.total for share in shares]) if known else None
    return spread([*map(float, values)], interval)


def mean_over(values: Sequence[float]) -> Estimate:
    """Return the mean of one value per relation, at least one, with its deviation and bootstrap interval over them."""
    return spread(values, bootstrap(values, mean))


def as_good(score: Estimate, best: Estimate) -> bool:
    """Return whether a fraction is no lower than the best one, or the data cannot tell them apart.

    They cannot if the difference may be 0 by its 95% interval, Newcombe's (1998, method 10), which is for fractions of
    different samples; of the same ones it is wider than it need be. Without intervals they can.
    """
    if score.value >= best.value or score.interval is None or best.interval is None:
        return score.value >= best.value
    width = math.hypot(best.value - best.interval.low, score.interval.high - score.value)
    return best.value - score.value <= width


def estimate(values: npt.ArrayLike, statistic: Statistic) -> Estimate | None:
    """Return a statistic over relations with its bootstrap interval; None where it is not defined.

    `values` are `(relations,)` or `(relations, scores)`, as in `bootstrap`.
    """
    value = value_of(values, statistic)
    return None if value is None else Estimate(value, None, bootstrap(values, statistic))
