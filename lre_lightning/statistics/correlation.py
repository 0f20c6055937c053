"""Correlations of two scores over relations."""

from __future__ import annotations

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
