"""Intervals against independent computations, and how often they cover the truth, by simulation."""

import pickle
import tracemalloc
from functools import partial
from math import nan

import numpy as np
import pytest

from lre_lightning.statistics import intervals
from lre_lightning.statistics.correlation import pearson, pearson_difference, spearman
from lre_lightning.statistics.estimates import Estimate, Share, as_good, estimate, mean_over, over_trials
from lre_lightning.statistics.intervals import (
    Interval,
    bootstrap,
    expanded,
    mean,
    mean_difference,
    median,
    paired_difference,
    ratio_of_sums,
    wilson,
)

stats = pytest.importorskip("scipy.stats")


def random(seed=0):
    return np.random.default_rng(seed)


def ends(interval):
    return interval.low, interval.high


@pytest.mark.parametrize(("count", "total"), [(0, 11), (1, 3), (7, 11), (48, 48), (300, 1000)])
@pytest.mark.parametrize("level", [0.9, 0.95])
def test_wilsons_interval_is_that_of_scipy(count, total, level):
    expected = stats.binomtest(count, total).proportion_ci(level, "wilson")
    assert ends(wilson(count, total, level)) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_wilsons_interval_ends_at_0_and_1_and_holds_the_fraction():
    assert wilson(0, 7).low == 0
    assert wilson(7, 7).high == 1
    assert wilson(0, 0) == Interval(0, 1)
    assert all(count / 49 in wilson(count, 49) for count in range(50))


@pytest.mark.parametrize("count", [5, 6, 10, 47])
def test_intervals_are_expanded_by_students_quantile(count):
    exact = stats.t.ppf(0.975, count - 1) * (count / (count - 1)) ** 0.5
    assert expanded(count) == pytest.approx(exact)


def of_scipy(values, statistic, count):
    """scipy's BCa interval at the level that has the expanded ends."""
    level = 1 - 2 * stats.norm.cdf(-expanded(count))
    options = {"confidence_level": level, "n_resamples": 20_000, "method": "BCa"}
    found = stats.bootstrap(values, statistic, paired=len(values) > 1, rng=random(1), **options)
    return tuple(found.confidence_interval)


def test_the_bootstrap_is_that_of_scipy():
    values = random().beta(1.5, 0.8, 20)
    assert ends(bootstrap(values, mean, draws=20_000)) == pytest.approx(of_scipy((values,), np.mean, 20), abs=0.006)
    assert ends(bootstrap(values, median, draws=20_000)) == pytest.approx(of_scipy((values,), np.median, 20), abs=0.01)
    pairs = random(3).multivariate_normal([0, 0], [[1, 0.7], [0.7, 1]], 20)
    expected = of_scipy(tuple(pairs.T), lambda x, y, axis: stats.pearsonr(x, y, axis=axis).statistic, 20)
    assert ends(bootstrap(pairs, pearson, draws=20_000)) == pytest.approx(expected, abs=0.03)
    difference = bootstrap(pairs, mean_difference)
    assert ends(difference) == pytest.approx(ends(bootstrap(pairs[:, 0] - pairs[:, 1], mean)))  # paired: by relation


def test_correlations_are_those_of_scipy():
    samples = random().integers(0, 5, (6, 9, 4)).astype(float)  # with ties
    for sample, r, rank, apart in zip(
        samples, pearson(samples[..., :2]), spearman(samples[..., :2]), pearson_difference(samples), strict=True
    ):
        assert r == pytest.approx(stats.pearsonr(*sample.T[:2]).statistic)
        assert rank == pytest.approx(stats.spearmanr(*sample.T[:2]).statistic)
        assert apart == pytest.approx(r - stats.pearsonr(*sample.T[2:]).statistic)
    assert estimate([(1, 2), (2, 2), (3, 2)], pearson) is None
    assert estimate([(1, 2), (2, 3)], pearson) is None
    assert estimate([(0.1 + 0.2, 1), (0.3, 2), (0.3, 3)], pearson) is None  # equal as fractions


@pytest.mark.parametrize("statistic", [spearman, pearson_difference])
def test_memory_does_not_grow_by_the_square_of_the_relations(statistic):
    values = random().random((1500, 4 if statistic is pearson_difference else 2))
    tracemalloc.start()
    bootstrap(values, statistic, draws=30)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (
        peak < 25e6
    )  # bytes; the square of the relations is 36e6 for one array of theirs, 270e6 for pairs in 30 draws


def test_intervals_are_seeded_and_few_values_have_none():
    values = random().random(12)
    found = bootstrap(values, mean)
    intervals._bootstrapped.cache_clear()
    assert bootstrap(values, mean) == found != bootstrap(values, mean, seed=1)
    assert bootstrap(values[:4], mean) is None
    assert bootstrap(values[:5], mean) is not None
    assert bootstrap(np.full(9, 0.1 + 0.2), mean) == Interval(0.3, 0.3)
    assert ends(bootstrap([1, 2, 2, 2, 2, 2, 3, 4], median)) == (1.5, 3)  # none alone moves it
    one_point = [(0.9, 0.9)] * 7 + [(0.1, 0.1)]  # a third of the samples have no correlation
    assert estimate(one_point, pearson) == (pytest.approx(1), None)
    assert estimate(one_point, pearson).interval is None


def covered(truth, make, times):
    """How often an interval that is made anew holds the truth."""
    return np.mean([truth in make(seed) for seed in range(times)])


@pytest.mark.parametrize(("count", "least"), [(5, 0.88), (8, 0.92), (27, 0.92)])
def test_the_bootstrap_covers_a_mean_of_skewed_scores(count, least):
    def drawn(seed):
        return bootstrap(random(seed).beta(1.5, 0.8, count), mean, draws=500)

    assert least <= covered(1.5 / 2.3, drawn, 200) <= 0.99


@pytest.mark.parametrize("r", [0, 0.84])
def test_the_bootstrap_covers_a_correlation(r):
    def drawn(seed):
        return bootstrap(random(seed).multivariate_normal([0, 0], [[1, r], [r, 1]], 12), pearson, draws=500)

    assert 0.92 <= covered(r, drawn, 200) <= 0.99


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(("p", "between"), [(0.8, 0), (0.8, 0.08), (0.97, 0.01)])
def test_the_interval_over_trials_covers_the_score_of_other_samples_and_trials(p, between, shared):
    def drawn(seed):
        source = random(seed)
        chances = (p + between * source.standard_normal(3)).clip(0, 1)
        hard = source.random((3, 40)) if not shared else source.random(40)[None]
        shares = [Share(int(count), 40) for count in (hard < chances[:, None]).sum(1)]
        return over_trials(shares).interval

    assert covered(p, drawn, 600) >= 0.9
    if not shared or between:
        return
    # A control: as if the samples of three trials were others each time, the interval would be too narrow.
    naive = covered(p, lambda seed: wilson(3 * (random(seed).random(40) < p).sum(), 120), 600)
    assert naive < 0.85


def test_the_interval_over_trials_is_wilsons_with_fewer_samples():
    shares = [Share(30, 40), Share(36, 40), Share(33, 44)]
    variance = 0.8 * 0.2 / (3 / (2 / 40 + 1 / 44)) + np.var([0.75, 0.9, 0.75], ddof=1) / 3
    samples = 0.8 * 0.2 / variance
    assert ends(over_trials(shares).interval) == pytest.approx(ends(wilson(0.8 * samples, samples)))
    assert over_trials([Share(3, 4)]).interval == wilson(3, 4)
    assert over_trials([Share(48, 48), Share(47, 47)]).interval.high == 1
    assert over_trials([0.5, 0.75]).interval is None  # not known what they are fractions of
    assert intervals.over_trials([0.0], [0]) is None


def test_where_there_is_nothing_to_find_one_in_twenty_says_so():
    def scores(seed):
        return random(seed).beta(2, 2, (15, 2))

    missed = 1 - covered(0, lambda seed: bootstrap(scores(seed), mean_difference, draws=500), 200)
    assert missed <= 0.08
    missed = 1 - covered(0, lambda seed: bootstrap(scores(seed), spearman, draws=500), 200)
    assert missed <= 0.08


def test_the_influence_of_a_relation_is_the_statistic_without_it():
    pairs = np.array([(1.0, 2.0), (2.0, 1.0), (1.5, 1.5), (9.0, 9.0)])
    expected = [pearson(np.delete(pairs, place, 0)[None])[0] for place in range(4)]
    assert intervals.without_each(pairs, pearson) == pytest.approx(expected)
    assert expected[3] == pytest.approx(-1)
    assert pearson(pairs[None]) > 0.9


def test_estimates_are_pairs_with_an_interval():
    found = mean_over([0.5, 0.6, 0.7, 0.9, 0.3])
    assert found == (pytest.approx(0.6), pytest.approx(np.std([0.5, 0.6, 0.7, 0.9, 0.3], ddof=1)))
    assert (found.value, found.deviation) == found
    assert found.interval == bootstrap([0.5, 0.6, 0.7, 0.9, 0.3], mean)
    again = pickle.loads(pickle.dumps([found, Share(3, 4)]))
    assert again == [found, 0.75]
    assert (again[0].interval, again[1].total) == (found.interval, 4)
    assert Estimate(0.5) == (0.5, None)
    assert np.isnan(Share(0, 0))
    assert estimate([0.1, nan], partial(mean)) is None


def test_the_difference_of_fractions_is_newcombes():
    """That of 56 of 70 and 48 of 80 begins at 0.0524 (Newcombe, 1998, table II), of 53 at 0.0067, of 52 at -0.0084."""
    one, other = (over_trials([Share(*pair)]) for pair in ((56, 70), (48, 80)))
    assert not as_good(other, one)
    assert not as_good(other, over_trials([Share(53, 70)]))
    assert as_good(other, over_trials([Share(52, 70)]))
    assert as_good(other, other)
    assert as_good(one, other)  # which is no worse
    assert not as_good(Estimate(0.4), Estimate(0.5))  # without intervals


def test_the_difference_of_fractions_of_the_same_samples_is_newcombes():
    """Of 1, 1, 7 and 12 samples it is -0.507 to -0.026 (Fagerland, Lydersen and Laake, 2014, on Bentur's data)."""
    assert ends(paired_difference(1, 1, 7, 12)) == pytest.approx((-0.507, -0.026), abs=5e-4)
    assert ends(paired_difference(1, 7, 1, 12)) == pytest.approx((0.026, 0.507), abs=5e-4)  # the other way round
    assert paired_difference(0, 0, 0, 0) is None
    alike = paired_difference(20, 0, 0, 20)
    assert alike.low == -alike.high
    p, q = wilson(12, 40), wilson(6, 40)  # without a correlation it is that of other samples
    apart = np.hypot(12 / 40 - p.low, q.high - 6 / 40)
    assert paired_difference(1.8, 10.2, 4.2, 23.8).low == pytest.approx(6 / 40 - apart)


@pytest.mark.parametrize("alike", [0.0, 0.9])
@pytest.mark.parametrize("chances", [(0.8, 0.8), (0.9, 0.6)])
def test_the_paired_interval_covers_the_difference(alike, chances):
    """Samples that are easy or hard for both LMs by some correlation; with none, it must not be too wide either."""

    def made(seed):
        source = random(seed)
        shared, own = source.standard_normal(40), source.standard_normal((2, 40))
        hard = stats.norm.cdf(alike**0.5 * shared + (1 - alike) ** 0.5 * own)
        one, other = hard < np.array(chances)[:, None]
        return paired_difference(*(int(((one == a) & (other == b)).sum()) for a, b in TABLE))

    assert 0.93 <= covered(chances[0] - chances[1], made, 600) <= 0.995


TABLE = ((1, 1), (1, 0), (0, 1), (0, 0))


def test_a_ratio_of_sums_weighs_every_sample_alike():
    values = np.array([(1, 10), (3, 4), (-2, 40), (0, 6), (5, 9)], dtype=float)
    assert estimate(values, ratio_of_sums) == (pytest.approx(7 / 69), None)
    expected = of_scipy(tuple(values.T), lambda x, y, axis: x.sum(axis) / y.sum(axis), 5)
    assert ends(bootstrap(values, ratio_of_sums, draws=20_000)) == pytest.approx(expected, abs=0.03)
