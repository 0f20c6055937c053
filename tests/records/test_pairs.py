"""Two LMs compared in pairs, on outcomes whose tables are counted by eye."""

from dataclasses import replace

import numpy as np
import pytest

from lre_lightning.records.analysis import faithfulness, per_relation
from lre_lightning.records.pairs import Pairs, difference_by_relation, difference_by_sample, shared_samples
from lre_lightning.report.comparison import paired
from lre_lightning.statistics.intervals import paired_difference
from tests.helpers.records import outcomes, small_record
from tests.report.examples import by_model

POINT = {"layer": 0, "rank": 4, "digest": "a", "train": (("x", "y"),)}
FIRST = ((0, 1, 1), (1, 1, -1), (2, 0, 0), (4, 1, 0), (5, 0, 1))
SECOND = ((0, 0, 1), (1, 1, 1), (3, 1, 1), (4, 0, 1), (5, 0, 0))


def record(lines, trial=0, **changes):
    return small_record(trial, **{**POINT, "measures": {"outcomes": outcomes(*lines)}, **changes})


def test_only_samples_that_both_know_are_paired():
    """Samples 0, 1, 4 and 5 are known to both, and of 1 the first LM has no edit."""
    one, other = [record(FIRST)], [record(SECOND)]
    assert shared_samples(one, other, "faithfulness") == {"capital": Pairs(1, 2, 0, 1)}
    assert shared_samples(one, other, "causality") == {"capital": Pairs(1, 1, 1, 0)}
    assert shared_samples(other, one, "faithfulness") == {"capital": Pairs(1, 0, 2, 1)}
    found = shared_samples(one, other, "faithfulness")["capital"].difference
    assert (found.value, found.interval) == (0.5, paired_difference(1, 2, 0, 1))


@pytest.mark.parametrize(
    "change",
    [
        *({"trial": 1}, {"digest": "b"}, {"train": (("z", "y"),)}, {"template": "{}"}, {"prompts": {"shots": 1}}),
        *(
            {"measures": {}},
            {"measures": {"outcomes": outcomes((3, 1, 1))}},
            {"reported": False},
            {"relation": "mother"},
        ),
    ],
)
def test_other_draws_data_and_prompts_are_not_paired(change):
    other = replace(record(SECOND), **change)
    assert shared_samples([record(FIRST)], [other], "faithfulness") == {}


def test_trials_test_the_same_samples_and_count_as_one():
    one, other = ([record(some), record(some, 1, train=())] for some in (FIRST, SECOND))
    assert shared_samples(one, other, "faithfulness") == {"capital": Pairs(1, 2, 0, 1)}
    halves = [one[0], record(FIRST[:2], 1, train=())]
    assert shared_samples(halves, other, "faithfulness") == {"capital": Pairs(1, 1.5, 0, 0.5)}


def lm(name, chances, seed, count=12, samples=40):
    """Records of relations whose samples an LRE answers by chance, by relation."""
    source = np.random.default_rng(seed)
    made = []
    for i in range(count):
        right = source.random(samples) < chances[i]
        lines = [(sample, int(yes), int(yes)) for sample, yes in enumerate(right)]
        counts = {"tested": samples, "known": samples, "edited": samples, "samples": 2 * samples, "beta": 1.0}
        counts |= {"layers": (0,), "ranks": (4,), "betas": (1.0,), "faithful": ((int(right.sum()),),)}
        made.append(
            record(lines, relation=f"r{i}", model=name, causal=((int(right.sum()),),), first_tokens=9, **counts)
        )
    return made


def test_differences_over_relations_and_samples_and_the_table_of_them():
    easy = np.linspace(0.2, 0.7, 12)
    one, other = lm("a", easy + 0.2, 0), lm("b", easy, 1)
    names, difference = difference_by_relation(*(per_relation(some, faithfulness) for some in (one, other)))
    exact = np.mean([(x.faithful[0][0] - y.faithful[0][0]) / 40 for x, y in zip(one, other, strict=True)])
    assert (len(names), difference.value) == (12, pytest.approx(exact))
    assert difference.interval.low > 0
    pairs = shared_samples(one, other, "faithfulness")
    assert difference_by_sample(list(pairs.values())).value == pytest.approx(exact)  # as many samples in each
    summary, each = paired(by_model([*one, *other])).tables
    faithful, causal = summary.rows
    assert faithful[:4] == ("a", "b", "faithfulness", 12)
    assert faithful[4:] == (difference, *faithful[5:7], 480, pytest.approx((exact, None)))
    assert (causal[2], causal[4].value) == ("causality", pytest.approx(exact))
    assert faithful[5] == sum(x.faithful > y.faithful for x, y in zip(one, other, strict=True))
    assert [row[0] for row in each.rows][:3] == ["r0", "r1", "r10"]
    assert each.rows[0][3:5] == (40, pairs["r0"].difference)
    unpaired = paired(by_model([replace(r, measures={}) for r in (*one, *other)])).tables
    assert unpaired[0].rows[0] == (*faithful[:7], None, None)
    assert unpaired[1].rows == ()


def test_where_there_is_nothing_to_find_lms_cannot_be_told_apart():
    """And the pairing finds a difference that intervals of the two means by themselves would not show."""
    missed = {"relation": 0, "sample": 0}
    for seed in range(60):
        easy = np.random.default_rng(seed + 1000).uniform(0.2, 0.9, 12)
        one, other = lm("a", easy, 2 * seed), lm("b", easy, 2 * seed + 1)
        scores = [per_relation(some, faithfulness) for some in (one, other)]
        found = (
            difference_by_relation(*scores)[1],
            difference_by_sample(list(shared_samples(one, other, "faithfulness").values())),
        )
        for name, estimate in zip(missed, found, strict=True):
            missed[name] += 0 not in estimate.interval
    assert max(missed.values()) <= 8
    own = [np.std([mean.value for mean in means.values()]) for means in scores]
    width = found[0].interval.high - found[0].interval.low
    assert width < 2 * 1.96 * np.hypot(*own) / 12**0.5 / 2
