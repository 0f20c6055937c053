"""All metrics against the plain-Python reference, and the promises that they share."""

import math
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, tensor
from torchmetrics import MetricCollection
from torchmetrics.wrappers import ClasswiseWrapper

from lre_lightning.errors import LREError
from lre_lightning.metrics import Causality, Faithfulness, causality, faithfulness
from lre_lightning.metrics.functional import _success_compute
from tests.metrics import harness
from tests.metrics.harness import Case

PAIRS = [(Faithfulness, faithfulness), (Causality, causality)]
AVERAGES = ["micro", "macro", "none"]
CASES = [
    *(Case(*PAIRS[0], average, grid) for average in AVERAGES for grid in ((), (1,), (2, 3))),
    *(Case(*PAIRS[1], average, (2,), masked=False) for average in AVERAGES),
    Case(*PAIRS[0], "none", (1, 1), num_relations=1),
    Case(*PAIRS[1], "macro", (3, 1, 2), num_relations=2),
    *(harness.recall_case(average, (), (1, 2, 3), masked=True) for average in AVERAGES),
    harness.recall_case("none", (2, 3), (2,), masked=False),
    harness.recall_case("macro", (2,), (6, 1), masked=True),
]


@pytest.mark.parametrize("check", harness.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_metric_agrees_with_the_reference(case, check):
    check(case)


def test_metrics_add_up_over_two_processes(tmp_path: Path):
    processes = harness.two_process_results(CASES, tmp_path)
    for case, *results in zip(CASES, *processes, strict=True):
        harness.check_two_processes(case, results)


def test_the_harness_fails_when_a_process_dies(tmp_path: Path):
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="exit code 3"):
        harness.run_two_processes(harness.die_second, tmp_path)


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
class TestByHand:
    """Numbers small enough to be read off, so that the reference is held to something too."""

    predictions = tensor([[1, 1], [2, 0], [3, 3], [4, 0]])
    targets = tensor([1, 2, 0, 4])
    relations = tensor([0, 0, 0, 2])
    by_relation = tensor([[2 / 3, 1 / 3], [math.nan, math.nan], [1, 0]])

    @pytest.mark.parametrize(
        ("average", "expected"),
        [("none", by_relation), ("macro", tensor([5 / 6, 1 / 6])), ("micro", tensor([3 / 4, 1 / 4]))],
    )
    def test_averages(self, metric_class, function, average: str, expected: Tensor):
        metric = metric_class(3, (2,), average)
        metric.update(self.predictions, self.targets, self.relations)
        torch.testing.assert_close(metric.compute(), expected, equal_nan=True)
        batch = harness.Batch(self.predictions, self.targets, self.relations)
        torch.testing.assert_close(harness.reference([batch], average, (2,), 3), expected, equal_nan=True)
        value = function(self.predictions, self.targets, self.relations, average, num_relations=3)
        torch.testing.assert_close(value, expected, equal_nan=True)

    def test_counts(self, metric_class, function):
        metric = metric_class(3, (2,))
        for _ in range(2):
            metric.update(self.predictions, self.targets, self.relations)
        assert metric.correct.tolist() == [[4, 2], [0, 0], [2, 0]]
        assert metric.total.tolist() == [6, 0, 2]

    def test_defaults_of_the_function(self, metric_class, function):
        assert function(self.predictions, self.targets).tolist() == [0.75, 0.25]
        assert function(self.predictions, self.targets, self.relations, "none").shape == (3, 2)
        nothing = self.targets[:0]
        assert function(nothing, nothing, nothing).isnan()


class TestPromises:
    @pytest.mark.parametrize("average", AVERAGES)
    @pytest.mark.parametrize("grid", [(), (1,), (2, 3)])
    def test_nothing_counted_is_nan_after_a_warning(self, average, grid):
        metric = Faithfulness(2, grid, average)
        with pytest.warns(UserWarning, match="Faithfulness was called before the ``update``"):
            value = metric.compute()
        assert value.shape == ((2, *grid) if average == "none" else grid)
        assert value.isnan().all()
        empty = torch.zeros(0, *grid, dtype=torch.int64)
        metric.update(empty, empty.new_zeros(0), empty.new_zeros(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert metric.compute().isnan().all()

    @pytest.mark.parametrize("average", AVERAGES)
    def test_counts_beyond_float32_are_exact(self, average):
        correct, total = tensor([2**24 + 1]), tensor([2**24 + 3])
        exact = tensor((2**24 + 1) / (2**24 + 3), dtype=torch.float64).float()
        assert torch.equal(_success_compute(correct, total, average).squeeze(), exact)
        assert not torch.equal(correct.float()[0] / total.float()[0], exact), "float32 would do as well"

    def test_inference_mode(self):
        metric, one = Faithfulness(1), tensor([1])
        with torch.inference_mode():
            metric.reset()
            metric.update(one, one, one * 0)
        metric.update(one, one + 1, one * 0)
        assert metric.compute() == 0.5

    @pytest.mark.parametrize("grid", [(), (3,)])
    def test_plot(self, grid):
        metric = Causality(2, grid)
        batch = torch.arange(4)
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
    def test_names_of_relations(self, names):
        metric = ClasswiseWrapper(Faithfulness(len(names), average="none"), labels=names, prefix="val/")
        metric.update(tensor([1, 1]), tensor([1, 2]), tensor([0, 0]))
        values = metric.compute()
        assert list(values) == [f"val/{name}" for name in names]
        assert values["val/capital"] == 0.5


@pytest.mark.parametrize("compute_groups", [True, False])
def test_a_collection_keeps_the_two_apart(compute_groups: bool):
    metrics = MetricCollection([Faithfulness(1), Causality(1)], compute_groups=compute_groups)
    faithful, causal = metrics["Faithfulness"], metrics["Causality"]
    one, row = tensor([1]), tensor([0])
    metrics.update(one, one, row)  # here the two agree, and groups are formed
    faithful.update(one, one + 1, row)
    causal.update(one, one, row)
    values = metrics.compute()
    assert (values["Faithfulness"], values["Causality"]) == (0.5, 1.0)


def test_a_collection_shares_counts_between_averages():
    metrics = MetricCollection({average: Faithfulness(2, (), average) for average in AVERAGES})
    for _ in range(2):
        metrics.update(tensor([1, 1, 1]), tensor([1, 1, 0]), tensor([0, 0, 1]))
    assert len(metrics.compute_groups) == 1
    values = metrics.compute()
    assert values["micro"] == pytest.approx(2 / 3)
    assert values["macro"] == 0.5
    assert values["none"].tolist() == [1, 0]


IDS = torch.zeros(2, dtype=torch.int64)


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


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_predictions_of_another_grid(shape):
    with pytest.raises(
        LREError, match=rf"predictions must have shape \(batch, 3\), got \({', '.join(map(str, shape))}"
    ):
        Faithfulness(1, (3,)).update(torch.zeros(shape, dtype=torch.int64), IDS, IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_relations": 0}, "num_relations must be a whole number of at least 1, got 0"),
        ({"num_relations": True}, "num_relations must be .* got True"),
        ({"num_relations": 2, "grid_shape": (3, 0)}, "grid_shape must be a whole number of at least 1, got 0"),
        ({"num_relations": 2, "average": "weighted"}, "one of 'micro', 'macro', 'none', got 'weighted'"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(LREError, match=message):
        Faithfulness(**arguments)
    if "grid_shape" not in arguments:
        with pytest.raises(LREError, match=message):
            faithfulness(IDS, IDS, **arguments)
