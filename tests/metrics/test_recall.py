"""Token ranks and recall at k by hand; the harness in `test_metrics.py` compares them with a reference."""

import itertools
import math

import matplotlib.pyplot as plt
import pytest
import torch
from torch import tensor
from torchmetrics import MetricCollection

from lre_lightning.errors import LREError
from lre_lightning.metrics import RecallAtK, recall_at_k, token_ranks
from tests.metrics.harness import ranked

SCORES = tensor([[0.1, 0.4, 0.3, 0.2], [9.0, 8.0, 7.0, 6.0], [1.0, 2.0, 3.0, 4.0]])
TARGETS = tensor([1, 1, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("grid", [(), (2, 2)])
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
    assert recall_at_k(flat, targets, ks=[1]) == (flat.argmax(-1) == targets).float().mean()


def test_infinite_scores_and_nan():
    infinite = tensor([[-math.inf, 0.0, math.inf]]).expand(3, -1)
    assert token_ranks(infinite, tensor([0, 1, 2])).tolist() == [2, 1, 0]
    one_nan = tensor([[math.nan, 1.0, 0.0]]).expand(3, -1)
    assert token_ranks(one_nan, tensor([0, 1, 2])).tolist() == [3, 1, 2]
    assert recall_at_k(torch.full((4, 5), math.nan), torch.arange(4), ks=[1, 5]).tolist() == [0, 0]


def test_fractions_by_hand():
    relations = tensor([0, 0, 2])
    assert recall_at_k(SCORES, TARGETS, relations).tolist() == pytest.approx([0.25, 0.5, 1])
    assert recall_at_k(SCORES, TARGETS, relations, "micro").tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    apart = recall_at_k(SCORES, TARGETS, relations, "none", num_relations=4, ks=(2, 4))
    assert apart[[0, 2]].tolist() == [[1, 1], [0, 1]]
    assert apart[[1, 3]].isnan().all()
    metric = RecallAtK(3, ks=(3, 1))
    for _ in range(2):
        metric.update(SCORES, TARGETS, relations, tensor([True, True, False]))
    assert metric.correct.tolist() == [[4, 2], [0, 0], [0, 0]]
    assert metric.total.tolist() == [4, 0, 0]
    figure, axis = metric.plot()
    assert [float(y) for line in axis.get_lines() for y in line.get_ydata()] == pytest.approx([1, 0.5])
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


@pytest.mark.parametrize(
    ("scores", "targets", "message"),
    [
        (SCORES.long(), TARGETS, r"predictions must be scores of a floating dtype, got torch\.int64"),
        (SCORES, TARGETS.float(), r"targets must be of an integer dtype, got torch\.float32"),
        (SCORES, TARGETS[:2], r"got \(3, 4\) and \(2,\)"),
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


@pytest.mark.parametrize("shape", [(3, 4), (3, 3, 4), (3, 2, 1, 4)])
def test_predictions_of_another_grid(shape):
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, 2, vocab\), got"):
        RecallAtK(1, (2,)).update(torch.zeros(shape), TARGETS, TARGETS * 0)


@pytest.mark.parametrize(
    ("ks", "message"),
    [((), "ks is empty: give at least one k"), ((1, 0), "a k in ks must be a whole number of at least 1, got 0")],
)
def test_ks_that_do_not_fit(ks, message):
    with pytest.raises(LREError, match=message):
        RecallAtK(1, ks=ks)
    with pytest.raises(LREError, match=message):
        recall_at_k(SCORES, TARGETS, ks=ks)
    with pytest.raises(LREError, match="k 5 is larger than the vocabulary, which has 4 tokens"):
        recall_at_k(SCORES, TARGETS, ks=(1, 5))
