"""Correlations of two scores over relations, and of two numbers over facts that come in relations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lre_lightning.statistics.intervals import Array


def pearson(samples: Array) -> Array:
    """Return Pearson's correlation of two scores for each draw, `(draws, relations, 2)` to `(draws,)`.

    It is NaN where one of the scores does not vary, or with fewer than three relations.
    """
    if samples.shape[1] < 3:
        return np.full(len(samples), np.nan)
    apart = samples - samples.mean(1, keepdims=True)
    spread = np.sqrt((apart**2).sum(1))
    spread = np.where(np.ptp(samples, axis=1) < 1e-12, np.nan, spread)
    return np.asarray((apart[..., 0] * apart[..., 1]).sum(1) / spread.prod(1))


def spearman(samples: Array) -> Array:
    """Return Spearman's rank correlation of two scores likewise; equal scores share the mean of their ranks."""
    from scipy.stats import rankdata

    return pearson(rankdata(samples, axis=1))


def pearson_difference(samples: Array) -> Array:
    """Return how much stronger the first two of four scores are correlated than the last two, for each draw."""
    return pearson(samples[..., :2]) - pearson(samples[..., 2:])


def sums_by_cluster(
    clusters: Sequence[str], first: Sequence[float], second: Sequence[float], within: bool = False
) -> Array:
    """Return by cluster the sums that the rank correlation of two numbers is made of, `(clusters, 6)`.

    They are n, x, y, x^2, y^2 and xy, of the ranks among all values less their mean or, `within`, among those of the
    cluster less the mean there. In a bootstrap over clusters ranks are not taken again.
    """
    from scipy.stats import rankdata

    names, values = np.array(clusters), np.array([first, second], dtype=np.float64)

    def ranked(some: Array) -> Array:
        ranks = rankdata(some, axis=1) / some.shape[1]
        return np.asarray(ranks - ranks.mean(1, keepdims=True))

    everywhere, sums = ranked(values), []
    for name in dict.fromkeys(clusters):
        own = names == name
        x, y = ranked(values[:, own]) if within else everywhere[:, own]
        sums.append([len(x), x.sum(), y.sum(), x @ x, y @ y, x @ y])
    return np.array(sums)


def of_sums(samples: Array) -> Array:
    """Return the correlation over all facts from sums by cluster, `(draws, clusters, 6)` to `(draws,)`."""
    n, x, y, xx, yy, xy = np.moveaxis(samples.sum(1), -1, 0)
    return np.asarray((xy - x * y / n) / _root((xx - x**2 / n) * (yy - y**2 / n)))


def clustered(samples: Array) -> Array:
    """Return the correlation within clusters likewise: of what is left of both when each cluster's mean is taken away.

    Clusters in which one of the two does not vary count in the deviation of the other alone.
    """
    *_, xx, yy, xy = np.moveaxis(samples.sum(1), -1, 0)
    return np.asarray(xy / _root(xx * yy))


def _root(product: Array) -> Array:
    return np.sqrt(np.where(product < 1e-12, np.nan, product))
