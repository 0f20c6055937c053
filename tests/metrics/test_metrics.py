"""All metrics against the plain-Python reference, and the promises that they share."""

import itertools
import math
import warnings

import matplotlib.pyplot as plt
import pytest
import torch
from torch import tensor
from torchmetrics import MetricCollection
from torchmetrics.wrappers import ClasswiseWrapper

from lre_lightning.errors import LREError
from lre_lightning.metrics import Causality, Faithfulness, RecallAtK, causality, faithfulness, recall_at_k, token_ranks
from lre_lightning.metrics.functional import success_compute
from tests.metrics import harness
from tests.metrics.harness import Batch, Case, ranked

PAIRS = [(Faithfulness, faithfulness), (Causality, causality)]
RECALL = (RecallAtK, recall_at_k)
AVERAGES = ["micro", "macro", "none"]
CASES = [
    *(Case(*PAIRS[0], average, grid) for average in AVERAGES for grid in ((), (1,), (2, 3))),
    *(Case(*PAIRS[1], average, (2,), masked=False) for average in AVERAGES),
    Case(*PAIRS[0], "none", (1, 1), num_relations=1),
    Case(*PAIRS[1], "macro", (3, 1, 2), num_relations=2),
    *(Case(*RECALL, average, ks=(1, 2, 3)) for average in AVERAGES),
    Case(*RECALL, "none", (2, 3), masked=False, ks=(2,)),
    Case(*RECALL, "macro", (2,), ks=(6, 1)),
]


@pytest.mark.parametrize("check", harness.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_metric_agrees_with_the_reference(case, check):
    check(case)


def test_metrics_add_up_over_two_processes(launch, tmp_path):
    harness.check_two_processes(launch, CASES, __name__, tmp_path)


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
@pytest.mark.parametrize(
    ("average", "expected"),
    [
        ("none", tensor([[2 / 3, 1 / 3], [math.nan, math.nan], [1, 0]])),
        ("macro", tensor([5 / 6, 1 / 6])),
        ("micro", tensor([3 / 4, 1 / 4])),
    ],
)
def test_numbers_small_enough_to_be_read_off(metric_class, function, average, expected):
    """The reference is held to something too."""
    batch = Batch(tensor([[1, 1], [2, 0], [3, 3], [4, 0]]), tensor([1, 2, 0, 4]), tensor([0, 0, 0, 2]))
    metric = metric_class(3, (2,), average)
    metric.update(*batch)
    metric.update(*batch)
    by_reference = Case(metric_class, function, average, (2,), num_relations=3).expected([batch])
    by_function = function(*batch[:3], average, num_relations=3)
    for value in (metric.compute(), by_reference, by_function):
        torch.testing.assert_close(value, expected, equal_nan=True)
    assert (metric.correct.tolist(), metric.total.tolist()) == ([[4, 2], [0, 0], [2, 0]], [6, 0, 2])
    assert function(*batch[:2]).tolist() == [0.75, 0.25]
    assert function(*batch[:3], "none").shape == (3, 2)


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("grid", [(), (1,), (2, 3)])
def test_nothing_counted_is_nan_after_a_warning(average, grid):
    metric = Faithfulness(2, grid, average)
    with pytest.warns(UserWarning, match="Faithfulness was called before the ``update``"):
        value = metric.compute()
    assert value.shape == ((2, *grid) if average == "none" else grid)
    assert value.isnan().all()
    empty = torch.zeros(0, *grid, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), torch.zeros(0).long()
    metric.update(*empty)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metric.compute().isnan().all()
    assert faithfulness(*empty, average).isnan().all()


@pytest.mark.parametrize("average", AVERAGES)
def test_counts_beyond_float32_are_exact(average):
    correct, total = tensor([2**24 + 1]), tensor([2**24 + 3])
    exact = tensor((2**24 + 1) / (2**24 + 3), dtype=torch.float64).float()
    assert torch.equal(success_compute(correct, total, average).squeeze(), exact)
    assert not torch.equal(correct.float()[0] / total.float()[0], exact), "float32 would do as well"


def test_inference_mode():
    metric, one = Faithfulness(1), tensor([1])
    with torch.inference_mode():
        metric.reset()
        metric.update(one, one, one * 0)
    metric.update(one, one + 1, one * 0)
    assert metric.compute() == 0.5


@pytest.mark.parametrize("grid", [(), (3,)])
def test_plot(grid):
    metric, batch = Causality(2, grid), torch.arange(4)
    right = torch.ones(4, *grid, dtype=torch.int64) * batch.reshape(4, *(1 for _ in grid))
    right[0] += 1
    metric.update(right, batch, batch % 2)
    figure, axis = metric.plot()
    heights = [float(height) for line in axis.get_lines() for height in line.get_ydata()]
    assert heights == metric.compute().flatten().tolist() == [0.75] * math.prod(grid)
    assert axis.get_ylabel() == "Causality"
    assert metric.plot([metric.compute(), metric.compute()], ax=axis)[1] is axis
    plt.close(figure)


@pytest.mark.parametrize("names", [["capital"], ["capital", "language"]])
def test_names_of_relations(names):
    metric = ClasswiseWrapper(Faithfulness(len(names), average="none"), labels=names, prefix="val/")
    metric.update(tensor([1, 1]), tensor([1, 2]), tensor([0, 0]))
    values = metric.compute()
    assert list(values) == [f"val/{name}" for name in names]
    assert values["val/capital"] == 0.5


def test_a_collection_keeps_metrics_of_different_meaning_apart():
    """On the first samples they agree, and groups are formed."""
    scores, row = tensor([[0.1, 0.4, 0.3, 0.2]]), tensor([0])
    recalls = MetricCollection({"near": RecallAtK(1, ks=(1, 2)), "far": RecallAtK(1, ks=(1, 3))})
    for target in (1, 3, 0, 2):
        recalls.update(scores, tensor([target]), row)
    values = recalls.compute()
    assert (values["near"].tolist(), values["far"].tolist()) == ([0.25, 0.5], [0.25, 0.75])
    metrics, one = MetricCollection([Faithfulness(1), Causality(1)]), tensor([1])
    metrics.update(one, one, row)
    metrics["Faithfulness"].update(one, one + 1, row)
    metrics["Causality"].update(one, one, row)
    assert metrics.compute() == {"Faithfulness": 0.5, "Causality": 1.0}


def test_a_collection_shares_counts_between_averages():
    metrics = MetricCollection({average: Faithfulness(2, (), average) for average in AVERAGES})
    for _ in range(2):
        metrics.update(tensor([1, 1, 1]), tensor([1, 1, 0]), tensor([0, 0, 1]))
    assert len(metrics.compute_groups) == 1
    values = metrics.compute()
    assert (values["micro"], values["macro"], values["none"].tolist()) == (pytest.approx(2 / 3), 0.5, [1, 0])


# Token ranks


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


@pytest.mark.parametrize(
    ("scores", "ranks"),
    [
        ([1.0, 2.0, 2.0, 2.0], [3, 0, 1, 2]),
        ([-math.inf, 0.0, math.inf], [2, 1, 0]),
        ([math.nan, 1.0, 0.0], [3, 1, 2]),
        ([math.nan] * 3, [3, 3, 3]),
    ],
)
def test_ranks_of_ties_infinite_scores_and_nan(scores, ranks):
    count = len(scores)
    assert token_ranks(tensor([scores] * count), torch.arange(count)).tolist() == ranks


# What does not fit

IDS, SCORES = torch.zeros(2, dtype=torch.int64), torch.rand(2, 4)


@pytest.mark.parametrize(
    ("predictions", "targets", "relations", "mask", "message"),
    [
        (IDS.float(), IDS, IDS, None, r"predictions must be of an integer dtype, got torch\.float32"),
        (IDS.bool(), IDS, IDS, None, r"predictions must be of an integer dtype, got torch\.bool"),
        (IDS, IDS.double(), IDS, None, r"targets must be of an integer dtype, got torch\.float64"),
        (IDS, IDS, IDS.half(), None, r"relations must be of an integer dtype, got torch\.float16"),
        (IDS, IDS[:1], IDS, None, r"targets must have shape \(2,\), one entry per prediction, got \(1,\)"),
        (IDS, IDS, IDS[:1], None, r"relations must have shape \(2,\).* got \(1,\)"),
        (IDS, IDS, IDS, IDS[:1].bool(), r"mask must have shape \(2,\).* got \(1,\)"),
        (IDS, IDS, IDS, IDS, r"mask must be bool, got torch\.int64"),
        (IDS, IDS, IDS + 3, None, r"relations must lie in \[0, 3\), got 3"),
        (IDS, IDS, IDS - 1, None, r"relations must lie in \[0, 3\), got -1"),
    ],
)
def test_samples_that_do_not_fit(predictions, targets, relations, mask, message):
    with pytest.raises(LREError, match=message):
        faithfulness(predictions, targets, relations, num_relations=3, mask=mask)
    metric = Faithfulness(3)
    with pytest.raises(LREError, match=message):
        metric.update(predictions, targets, relations, mask)
    assert not metric.total.any()


@pytest.mark.parametrize(
    ("scores", "targets", "message"),
    [
        (SCORES.long(), IDS, r"predictions must be scores of a floating dtype, got torch\.int64"),
        (SCORES, IDS.float(), r"targets must be of an integer dtype, got torch\.float32"),
        (SCORES, IDS[:1], r"got \(2, 4\) and \(1,\)"),
        (SCORES, IDS + 4, r"targets must lie in \[0, 4\), got 4"),
        (SCORES, IDS - 1, r"targets must lie in \[0, 4\), got -1"),
    ],
)
def test_scores_that_do_not_fit(scores, targets, message):
    for call in (token_ranks, recall_at_k, lambda *given: RecallAtK(1).update(*given, IDS)):
        with pytest.raises(LREError, match=message):
            call(scores, targets)


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_predictions_of_another_grid(shape):
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, 3\), got \(2,"):
        Faithfulness(1, (3,)).update(torch.zeros(shape, dtype=torch.int64), IDS, IDS)
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, 3, vocab\), got \(2,"):
        RecallAtK(1, (3,)).update(torch.zeros(*shape, 4), IDS, IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_relations": 0}, "num_relations must be a whole number of at least 1, got 0"),
        ({"num_relations": True}, "num_relations must be .* got True"),
        ({"grid_shape": (3, 0)}, "grid_shape must be a whole number of at least 1, got 0"),
        ({"average": "weighted"}, "average must be 'micro' or 'macro' or 'none', got 'weighted'"),
        ({"ks": ()}, "ks is empty: give at least one k"),
        ({"ks": (1, 0)}, "a k in ks must be a whole number of at least 1, got 0"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(LREError, match=message):
        RecallAtK(**{"num_relations": 2, **arguments})
    if "grid_shape" not in arguments:
        with pytest.raises(LREError, match=message):
            recall_at_k(SCORES, IDS, **arguments)
    with pytest.raises(LREError, match="k 5 is larger than the vocabulary, which has 4 tokens"):
        recall_at_k(SCORES, IDS, ks=(1, 5))
