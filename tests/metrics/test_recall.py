"""Recall at k against a plain-Python reference in every way that a metric is used, and by hand."""

import functools
import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from torch import tensor
from torchmetrics import MetricCollection

from lre_lightning.errors import LREError
from lre_lightning.metrics import RecallAtK, recall_at_k, token_ranks
from tests.metrics import harness
from tests.metrics.harness import Batch, Case
from tests.metrics.test_metrics import CHECKS

VOCABULARY = 6


def ranked(scores):
    """Tokens from the most to the least likely; among equals the lower id first."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


@dataclass(frozen=True)
class RecallCase(Case):
    """Scores in place of predicted tokens, few distinct ones, so that many are equal."""

    ks: tuple[int, ...] = (1, 2, 3)

    def metric(self, **kwargs):
        return super().metric(ks=self.ks, **kwargs)

    def batches(self, seed, sizes=harness.BATCH_SIZES):
        generator = torch.Generator().manual_seed(seed + 100)

        def scores(size):
            return torch.randint(4, (size, *self.grid_shape, VOCABULARY), generator=generator).float()

        drawn = super().batches(seed, sizes)
        return [Batch(scores(len(b.targets)), b.targets * 2, b.relations, b.mask) for b in drawn]

    def expected(self, batches):
        """Each k and grid point by itself: there the best k tokens, and "right" is any of them."""
        columns = [self._expected(batches, k) for k in self.ks]
        return torch.stack(columns, -1)

    def _expected(self, batches, k):
        """The reference of success rates, on predictions that are the wanted token where it is among the best k."""
        plain = []
        for batch in batches:
            hits = torch.zeros(batch.predictions.shape[:-1], dtype=torch.int64)
            for place in itertools.product(*map(range, hits.shape)):
                best = ranked(batch.predictions[place].tolist())[:k]
                target = int(batch.targets[place[0]])
                hits[place] = target if target in best else -1
            plain.append(Batch(hits, batch.targets, batch.relations, batch.mask))
        return harness.reference(plain, self.average, self.grid_shape, self.num_relations)


CASES = [
    RecallCase(RecallAtK, functools.partial(recall_at_k, ks=ks), average, grid, masked=masked, ks=ks)
    for average in ("micro", "macro", "none")
    for grid, ks, masked in (((), (1, 2, 3), True), ((2, 3), (2,), False), ((2,), (6, 1), True))
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_reference(case, check):
    check(case)


def test_two_processes(tmp_path: Path):
    ranks = harness.two_process_results(CASES[:3], tmp_path)
    for case, *results in zip(CASES, *ranks, strict=False):
        harness.check_two_processes(case, results)


# By hand

SCORES = tensor([[0.1, 0.4, 0.3, 0.2], [9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]])


def test_ranks_by_hand():
    assert token_ranks(SCORES, tensor([1, 1, 1])).tolist() == [0, 1, 2]
    assert token_ranks(SCORES, tensor([0, 3, 3])).tolist() == [3, 3, 0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grid", [(), (3,), (2, 2)])
def test_ranks_are_places_in_a_sorted_list(dtype, grid):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, *grid, 40, generator=generator).mul(4).round().to(dtype)
    targets = torch.randint(40, (7,), generator=generator)
    ranks = token_ranks(scores, targets)
    assert ranks.dtype == torch.int64
    for place in itertools.product(*map(range, ranks.shape)):
        assert ranks[place] == ranked(scores[place].tolist()).index(int(targets[place[0]]))


def test_among_equals_the_lower_id_comes_first_as_with_argmax():
    scores = tensor([[1.0, 2.0, 2.0, 2.0]]).expand(4, -1)
    assert token_ranks(scores, tensor([0, 1, 2, 3])).tolist() == [3, 0, 1, 2]
    flat = torch.randint(3, (200, 9), generator=torch.Generator().manual_seed(1)).float()
    targets = torch.arange(200) % 9
    at_one = recall_at_k(flat, targets, ks=[1])
    assert at_one == (flat.argmax(-1) == targets).float().mean()


def test_infinite_scores_and_nan():
    infinite = tensor([[-math.inf, 0.0, math.inf]]).expand(3, -1)
    assert token_ranks(infinite, tensor([0, 1, 2])).tolist() == [2, 1, 0]
    one_nan = tensor([[math.nan, 1.0, 0.0]]).expand(3, -1)
    assert token_ranks(one_nan, tensor([0, 1, 2])).tolist() == [3, 1, 2]
    assert recall_at_k(torch.full((4, 5), math.nan), torch.arange(4), ks=[1, 5]).tolist() == [0, 0]


def test_shares_by_hand():
    relations = tensor([0, 0, 2])
    targets = tensor([1, 1, 1])
    assert recall_at_k(SCORES, targets, relations).tolist() == pytest.approx([0.25, 0.5, 1])
    assert recall_at_k(SCORES, targets, relations, "micro").tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    apart = recall_at_k(SCORES, targets, relations, "none", num_relations=4, ks=(2, 4))
    assert apart[[0, 2]].tolist() == [[1, 1], [0, 1]]
    assert apart[[1, 3]].isnan().all()
    metric = RecallAtK(3, ks=(3, 1))
    for _ in range(2):
        metric.update(SCORES, targets, relations, tensor([True, True, False]))
    assert metric.correct.tolist() == [[4, 2], [0, 0], [0, 0]]
    assert metric.total.tolist() == [4, 0, 0]


def test_merged_states_are_those_of_all_samples():
    metrics = [RecallAtK(3, average="none") for _ in range(3)]
    relations = tensor([0, 1, 1])
    metrics[0].update(SCORES[:2], tensor([1, 2]), relations[:2])
    metrics[1].update(SCORES[2:], tensor([0]), relations[2:])
    metrics[2].update(SCORES, tensor([1, 2, 0]), relations)
    metrics[0].merge_state(metrics[1])
    assert torch.equal(metrics[0].correct, metrics[2].correct)
    assert metrics[0].compute()[:2].tolist() == metrics[2].compute()[:2].tolist() == [[1, 1, 1], [0, 0, 0.5]]


@pytest.mark.parametrize("average", ["micro", "macro", "none"])
@pytest.mark.parametrize("grid", [(), (2, 3)])
def test_nothing_counted_is_nan(average, grid):
    metric = RecallAtK(2, grid, average, ks=(1, 4))
    none = torch.zeros(0, dtype=torch.int64)
    metric.update(torch.zeros(0, *grid, 5), none, none)
    assert metric.compute().shape == (((2,) if average == "none" else ()) + (*grid, 2))
    assert metric.compute().isnan().all()
    assert recall_at_k(torch.zeros(0, *grid, 5), none, average=average).isnan().all()


def test_plot():
    metric = RecallAtK(1, average="micro")
    metric.update(SCORES, tensor([1, 1, 1]), tensor([0, 0, 0]))
    figure, axis = metric.plot()
    drawn = [float(height) for line in axis.get_lines() for height in line.get_ydata()]
    assert drawn == pytest.approx([1 / 3, 2 / 3, 1])
    assert axis.get_ylabel() == "RecallAtK"
    plt.close(figure)


def test_a_collection_keeps_different_ks_apart():
    metrics = MetricCollection({"near": RecallAtK(1, ks=(1, 2)), "far": RecallAtK(1, ks=(1, 3))})
    zero = tensor([0])
    metrics.update(SCORES[:1], tensor([1]), zero)  # here the two agree, and groups are formed
    metrics.update(SCORES[:1], tensor([3]), zero)
    metrics.update(SCORES[:1], tensor([0]), zero)
    metrics.update(SCORES[2:], tensor([1]), zero)
    values = metrics.compute()
    assert (values["near"].tolist(), values["far"].tolist()) == ([0.25, 0.25], [0.25, 0.75])


def test_class_attributes():
    assert RecallAtK.higher_is_better is True
    assert RecallAtK.is_differentiable is False
    assert RecallAtK.full_state_update is False


TARGETS = tensor([1, 1, 1])


@pytest.mark.parametrize(
    ("scores", "targets", "message"),
    [
        (SCORES.long(), TARGETS, r"predictions must be scores of a floating dtype, got torch\.int64"),
        (SCORES, TARGETS.float(), r"targets must be of an integer dtype, got torch\.float32"),
        (SCORES, TARGETS.bool(), r"targets must be of an integer dtype, got torch\.bool"),
        (SCORES, TARGETS[:2], r"got \(3, 4\) and \(2,\)"),
        (SCORES, TARGETS[:, None], r"got \(3, 4\) and \(3, 1\)"),
        (SCORES, TARGETS + 3, r"targets must lie in \[0, 4\), got 4"),
        (SCORES, TARGETS - 2, r"targets must lie in \[0, 4\), got -1"),
    ],
)
def test_samples_that_do_not_fit(scores, targets, message):
    metric = RecallAtK(1)
    for call in (token_ranks, recall_at_k, lambda *given: metric.update(*given, torch.zeros(3, dtype=torch.int64))):
        with pytest.raises(LREError, match=message):
            call(scores, targets)
    assert not metric.total.any()


def test_a_vocabulary_without_a_batch():
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, \*grid, vocab\)"):
        token_ranks(SCORES[0], TARGETS)


@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 4), (3, 2, 1, 4), (4,)])
def test_predictions_of_another_grid(shape):
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, 2, vocab\), got"):
        RecallAtK(1, (2,)).update(torch.zeros(shape), TARGETS, TARGETS * 0)


def test_relations_that_do_not_fit():
    with pytest.raises(LREError, match=r"relations must lie in \[0, 1\), got 1"):
        RecallAtK(1).update(SCORES, TARGETS, TARGETS)
    with pytest.raises(LREError, match="mask must be bool"):
        recall_at_k(SCORES, TARGETS, mask=TARGETS)


@pytest.mark.parametrize(
    ("ks", "message"),
    [
        ((), "ks is empty: give at least one k"),
        ((1, 0), "a k in ks must be an integer of at least 1, got 0"),
        ((1.5,), r"a k in ks must be an integer of at least 1, got 1\.5"),
        ((True,), "a k in ks must be .* got True"),
    ],
)
def test_ks_that_do_not_fit(ks, message):
    with pytest.raises(LREError, match=message):
        RecallAtK(1, ks=ks)
    with pytest.raises(LREError, match=message):
        recall_at_k(SCORES, TARGETS, ks=ks)


def test_arguments_that_do_not_fit():
    with pytest.raises(LREError, match="k 5 is larger than the vocabulary, which has 4 tokens"):
        recall_at_k(SCORES, TARGETS, ks=(1, 5))
    with pytest.raises(LREError, match="num_relations must be an integer of at least 1, got 0"):
        RecallAtK(0)
    with pytest.raises(LREError, match="got 'weighted'"):
        RecallAtK(1, average="weighted")
