"""Faithfulness and causality against the plain-Python reference, and their own promises."""

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
from lre_lightning.metrics.functional import _success_compute, _success_update
from tests.metrics import harness
from tests.metrics.harness import Case

PAIRS = [(Faithfulness, faithfulness), (Causality, causality)]
GRIDS: list[tuple[int, ...]] = [(), (1,), (2, 3)]
CASES = [
    Case(metric_class, function, average, grid, masked=masked)
    for metric_class, function in PAIRS
    for average in ("micro", "macro", "none")
    for grid in GRIDS
    for masked in (True, False)
]
CASES += [Case(*PAIRS[0], "none", (1, 1), num_relations=1), Case(*PAIRS[1], "macro", (3, 1, 2), num_relations=2)]
CHECKS = [
    harness.check_forward,
    harness.check_accumulation,
    harness.check_function,
    harness.check_copies,
    harness.check_reset,
    harness.check_state_dict,
    harness.check_dtypes,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_reference(case, check):
    check(case)


def test_two_processes(tmp_path: Path):
    ranks = harness.two_process_results(CASES, tmp_path)
    for case, *results in zip(CASES, *ranks, strict=True):
        harness.check_two_processes(case, results)


def test_two_processes_fail_when_one_dies(tmp_path: Path):
    with pytest.raises(torch.multiprocessing.ProcessExitedException, match="exit code 3"):
        harness.run_two_processes(harness.die_on_rank_one, tmp_path)


@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
class TestByHand:
    """Numbers small enough to be read off, so that the reference is held to something too."""

    predictions = tensor([[1, 1], [2, 0], [3, 3], [4, 0]])
    targets = tensor([1, 2, 0, 4])
    relations = tensor([0, 0, 0, 2])
    shares = tensor([[2 / 3, 1 / 3], [math.nan, math.nan], [1, 0]])

    @pytest.mark.parametrize(
        ("average", "expected"),
        [("none", shares), ("macro", tensor([5 / 6, 1 / 6])), ("micro", tensor([3 / 4, 1 / 4]))],
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

    def test_masked_samples_do_not_exist(self, metric_class, function):
        known = tensor([True, True, False, False])
        metric = metric_class(3, (2,), "none")
        metric.update(self.predictions, self.targets, self.relations, known)
        assert metric.total.tolist() == [2, 0, 0]
        assert metric.compute()[0].tolist() == [1.0, 0.5]
        assert metric.compute()[1:].isnan().all()


@pytest.mark.parametrize("metric_class", [Faithfulness, Causality])
class TestPromises:
    @pytest.mark.parametrize("average", ["micro", "macro", "none"])
    @pytest.mark.parametrize("grid", GRIDS)
    def test_nothing_counted_is_nan_after_a_warning(self, metric_class, average, grid):
        metric = metric_class(2, grid, average)
        with pytest.warns(UserWarning, match=f"{metric_class.__name__} was called before the ``update``"):
            value = metric.compute()
        assert value.shape == ((2, *grid) if average == "none" else grid)
        assert value.isnan().all()
        empty = torch.zeros(0, *grid, dtype=torch.int64)
        metric.update(empty, empty.new_zeros(0), empty.new_zeros(0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert metric.compute().isnan().all()

    @pytest.mark.parametrize("average", ["micro", "macro", "none"])
    def test_counts_out_of_the_reach_of_float32(self, metric_class, average):
        metric = metric_class(1, (), average)
        metric.update(tensor([0]), tensor([0]), tensor([0]))
        setattr(metric, metric._successes, tensor([2**24 + 1]))
        metric.total = tensor([2**24 + 3])
        exact = tensor((2**24 + 1) / (2**24 + 3), dtype=torch.float64).float()
        assert torch.equal(metric.compute().squeeze(), exact)
        assert not torch.equal(metric.correct.float()[0] / metric.total.float()[0], exact), "float32 would do as well"

    def test_inference_mode(self, metric_class):
        metric = metric_class(1)
        one = tensor([1])
        with torch.inference_mode():
            metric.reset()
            metric.update(one, one, one * 0)
        metric.update(one, one + 1, one * 0)
        assert metric.compute() == 0.5

    @pytest.mark.parametrize("grid", [(2,), (1, 3)])
    def test_counts_of_another_grid_are_refused(self, metric_class, grid):
        saved = metric_class(3, (1,))
        saved.persistent(True)
        with pytest.raises(RuntimeError, match=rf"size mismatch for {saved._successes}: \(3, 1\) in the checkpoint"):
            metric_class(3, grid).load_state_dict(saved.state_dict())

    def test_loaded_counts_move_to_the_metric_s_device(self, metric_class):
        saved = metric_class(3)
        saved.persistent(True)
        metric = metric_class(3).to("meta")
        metric.load_state_dict(saved.state_dict())
        assert {state.device.type for state in metric.metric_state.values()} == {"meta"}

    def test_class_attributes(self, metric_class):
        assert metric_class.is_differentiable is False
        assert metric_class.higher_is_better is True
        assert metric_class.full_state_update is False

    @pytest.mark.parametrize("grid", [(), (3,)])
    def test_plot(self, metric_class, grid):
        metric = metric_class(2, grid)
        batch = torch.arange(4)
        right = torch.ones(4, *grid, dtype=torch.int64) * batch.reshape(4, *(1 for _ in grid))
        right[0] += 1
        metric.update(right, batch, batch % 2)
        figure, axis = metric.plot()
        drawn = [float(height) for line in axis.get_lines() for height in line.get_ydata()]
        assert drawn == metric.compute().flatten().tolist() == [0.75] * math.prod(grid)
        assert axis.get_ylabel() == metric_class.__name__
        assert metric.plot([metric.compute(), metric.compute()], ax=axis)[1] is axis
        plt.close(figure)

    def test_plot_refuses_tables(self, metric_class):
        with pytest.raises(LREError, match=r"shape \(2, 3\)"):
            metric_class(2, (2, 3)).plot(torch.zeros(2, 3))
        with pytest.raises(LREError, match=r"shape \(2, 3\)"):
            metric_class(2, (2, 3)).plot([torch.zeros(2, 3)])

    @pytest.mark.parametrize("names", [["capital"], ["capital", "language"]])
    def test_names_of_relations(self, metric_class, names):
        metric = ClasswiseWrapper(metric_class(len(names), average="none"), labels=names, prefix="val/")
        metric.update(tensor([1, 1]), tensor([1, 2]), tensor([0, 0]))
        values = metric.compute()
        assert list(values) == [f"val/{name}" for name in names]
        assert values["val/capital"] == 0.5


@pytest.mark.parametrize("compute_groups", [True, False])
def test_collection_keeps_the_two_apart(compute_groups: bool):
    metrics = MetricCollection([Faithfulness(1), Causality(1)], compute_groups=compute_groups)
    faithful, causal = metrics["Faithfulness"], metrics["Causality"]
    one, row = tensor([1]), tensor([0])
    metrics.update(one, one, row)  # here the two agree, and groups are formed
    faithful.update(one, one + 1, row)
    causal.update(one, one, row)
    values = metrics.compute()
    assert (values["Faithfulness"], values["Causality"]) == (0.5, 1.0)


def test_collection_shares_counts_between_averages():
    metrics = MetricCollection({average: Faithfulness(2, (), average) for average in ("micro", "macro", "none")})
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
        (IDS, IDS[:1], IDS, None, r"targets must have shape \(2,\), one for each of the predictions, got \(1,\)"),
        (IDS, IDS[:, None], IDS, None, r"targets must have shape \(2,\).* got \(2, 1\)"),
        (IDS, IDS, IDS[:1], None, r"relations must have shape \(2,\).* got \(1,\)"),
        (IDS, IDS, IDS, IDS[:1].bool(), r"mask must have shape \(2,\).* got \(1,\)"),
        (IDS, IDS, IDS, IDS, r"mask must be bool, got torch\.int64"),
        (IDS, IDS, IDS + 3, None, r"relations must lie in \[0, 3\), got 3"),
        (IDS, IDS, IDS - 1, None, r"relations must lie in \[0, 3\), got -1"),
        (IDS[0], IDS, IDS, None, "got a single number"),
    ],
)
@pytest.mark.parametrize(("metric_class", "function"), PAIRS)
def test_samples_that_do_not_fit(metric_class, function, predictions, targets, relations, mask, message):
    with pytest.raises(LREError, match=message):
        function(predictions, targets, relations, num_relations=3, mask=mask)
    metric = metric_class(3)
    with pytest.raises(LREError, match=message):
        metric.update(predictions, targets, relations, mask)
    assert not metric.total.any()


@pytest.mark.parametrize("metric_class", [Faithfulness, Causality])
@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_predictions_of_another_grid(metric_class, shape):
    with pytest.raises(
        LREError, match=rf"predictions must have shape \(batch, 3\), got \({', '.join(map(str, shape))}"
    ):
        metric_class(1, (3,)).update(torch.zeros(shape, dtype=torch.int64), IDS, IDS)


@pytest.mark.parametrize("metric_class", [Faithfulness, Causality])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_relations": 0}, "num_relations must be an integer of at least 1, got 0"),
        ({"num_relations": 2.0}, r"num_relations must be .* got 2\.0"),
        ({"num_relations": True}, "num_relations must be .* got True"),
        ({"num_relations": 2, "grid_shape": (3, 0)}, "grid_shape must be an integer of at least 1, got 0"),
        ({"num_relations": 2, "grid_shape": (1.5,)}, r"grid_shape must be an integer of at least 1, got 1\.5"),
        (
            {"num_relations": 2, "average": "weighted"},
            "one of 'micro', 'macro', 'none', got 'weighted'",
        ),
        ({"num_relations": 2, "average": None}, "average must be one of .* got None"),
    ],
)
def test_arguments_that_do_not_fit(metric_class, arguments, message):
    with pytest.raises(LREError, match=message):
        metric_class(**arguments)


def test_functional_arguments_that_do_not_fit():
    with pytest.raises(LREError, match="num_relations must be an integer of at least 1, got -1"):
        _success_update(IDS, IDS, IDS, num_relations=-1)
    with pytest.raises(LREError, match="got 'mean'"):
        _success_compute(IDS, IDS, average="mean")
    with pytest.raises(LREError, match=r"relations must lie in \[0, 1\), got -2"):
        faithfulness(IDS, IDS, IDS - 2)
    with pytest.raises(LREError, match=r"relations must be of an integer dtype, got torch\.float32"):
        causality(IDS, IDS, IDS.float())
    with pytest.raises(LREError, match=r"relations must have shape \(2,\).* got \(2, 1\)"):
        causality(IDS, IDS, IDS[:, None])
