"""All metrics against a reference in plain Python, without tensor arithmetic, and the promises that they share."""

import itertools
import math
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import matplotlib.pyplot as plt
import pytest
import torch
from torch import Tensor, tensor
from torchmetrics import Metric, MetricCollection
from torchmetrics.wrappers import ClasswiseWrapper

from lre_lightning.errors import LREError
from lre_lightning.metrics import Causality, Faithfulness, faithfulness, token_ranks
from lre_lightning.metrics.functional import distribution_scores, success_compute

AVERAGES = ["micro", "macro", "none"]
TARGETS = 3  # few, so that chance alone makes about a third of the predictions right
BATCH_SIZES = (5, 1, 8, 0, 3)  # uneven, one of them empty


class Batch(NamedTuple):
    """The arguments of one update."""

    predictions: Tensor
    targets: Tensor
    relations: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Case:
    """A metric class and its arguments."""

    metric_class: type[Metric]
    average: str = "macro"
    grid_shape: tuple[int, ...] = ()
    num_relations: int = 4
    masked: bool = True

    @property
    def options(self):
        return {"average": self.average, "num_relations": self.num_relations}

    def metric(self):
        return self.metric_class(grid_shape=self.grid_shape, **self.options)

    def batches(self, seed, sizes=BATCH_SIZES):
        """Draw random samples; the last relation has none at all, as long as there is another."""
        generator = torch.Generator().manual_seed(seed)

        def draw(high, *shape):
            return torch.randint(high, shape, generator=generator)

        return [
            Batch(
                draw(TARGETS, size, *self.grid_shape),
                draw(TARGETS, size),
                draw(max(1, self.num_relations - 1), size),
                draw(4, size) > 0 if self.masked else None,
            )
            for size in sizes
        ]

    def expected(self, batches):
        """The result of each sample at each grid point in turn; NaN where nothing was counted."""
        points, size = list(itertools.product(*map(range, self.grid_shape))), math.prod(self.grid_shape)
        outcomes = [[] for _ in range(self.num_relations)]
        for predictions, targets, relations, mask in batches:
            for row, target in enumerate(targets.tolist()):
                if mask is None or mask[row]:
                    outcomes[relations[row]].append([predictions[row][point].item() == target for point in points])

        def rates(rows):
            return list(map(fmean, zip(*rows, strict=True))) if rows else [math.nan] * size

        values = {
            "micro": rates([row for rows in outcomes for row in rows]),
            "macro": rates([rates(rows) for rows in outcomes if rows]),
            "none": [rates(rows) for rows in outcomes],
        }[self.average]
        return tensor(values).reshape([*[self.num_relations] * (self.average == "none"), *self.grid_shape])


def ranked(scores):
    """Tokens from the most to the least likely; among equals the lower id first."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


CASES = [
    *(Case(Faithfulness, average, grid) for average in AVERAGES for grid in ((), (1,), (2, 3))),
    *(Case(Causality, average, (2,), masked=False) for average in AVERAGES),
    Case(Faithfulness, "none", (1, 1), num_relations=1),
    Case(Causality, "macro", (3, 1, 2), num_relations=2),
]


def assert_equal(actual, expected):
    """Same float32 numbers (to the last rounding), same shape, NaN in the same places."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1.2e-7, atol=0, equal_nan=True)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.metric_class.__name__}-{case.average}")
def test_metric_agrees_with_the_reference(case):
    """Batches add up, copies carry the counts on and are independent, and `reset` leaves nothing."""
    metric, batches, more = case.metric(), case.batches(seed=1), case.batches(seed=4)[0]
    for seen, batch in enumerate(batches, start=1):
        assert_equal(metric(*batch), case.expected([batch]))
        assert_equal(metric.compute(), case.expected(batches[:seen]))
        assert_equal(faithfulness(*batch[:3], mask=batch.mask, **case.options), case.expected([batch]))
    for copy in (pickle.loads(pickle.dumps(metric)), metric.clone(), torch.nn.Sequential(metric.clone()).half()[0]):
        copy.update(*more)
        assert_equal(copy.compute(), case.expected([*batches, more]))
        assert {state.dtype for state in copy.metric_state.values()} == {torch.int64}
    assert_equal(metric.compute(), case.expected(batches))
    metric.reset()
    metric.update(*batches[0])
    assert_equal(metric.compute(), case.expected(batches[:1]))


def samples_of(case, index):
    """Samples of a process for two metrics. The first one has five batches; the second has two others, or none."""
    return (case.batches(9),) * 2 if index == 0 else (case.batches(10, sizes=(4, 2)), [])


def run_process(index, folder):
    """Join a gloo group of two processes and save the results of each case."""
    rendezvous = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=index, world_size=2)
    results = []
    for case in CASES:
        metrics = case.metric(), case.metric()
        for metric, samples in zip(metrics, samples_of(case, index), strict=True):
            for batch in samples:
                metric.update(*batch)
        results.append([metric.compute() for metric in metrics])
    torch.save(results, Path(folder) / f"{index}.pt")
    torch.distributed.destroy_process_group()


def test_metrics_add_up_over_two_processes(launch, tmp_path):
    code = f"from {__name__} import run_process; run_process({{}}, {str(tmp_path)!r})"
    started = [launch.start(tmp_path / f"cwd{index}", code=code.format(index)) for index in range(2)]
    for ended in map(launch.wait, started):
        assert ended.status == 0, ended.error
    for index, place in itertools.product(range(2), range(2)):
        for case, found in zip(CASES, torch.load(tmp_path / f"{index}.pt"), strict=True):
            samples = [*samples_of(case, 0)[place], *samples_of(case, 1)[place]]
            assert_equal(found[place], case.expected(samples))


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        ("none", tensor([[2 / 3, 1 / 3], [math.nan, math.nan], [1, 0]])),
        ("macro", tensor([5 / 6, 1 / 6])),
        ("micro", tensor([3 / 4, 1 / 4])),
    ],
)
def test_numbers_small_enough_to_be_read_off(average, expected):
    """The reference is held to something too."""
    batch = Batch(tensor([[1, 1], [2, 0], [3, 3], [4, 0]]), tensor([1, 2, 0, 4]), tensor([0, 0, 0, 2]))
    metric = Faithfulness(3, (2,), average)
    metric.update(*batch)
    metric.update(*batch)
    by_reference = Case(Faithfulness, average, (2,), num_relations=3).expected([batch])
    for value in (metric.compute(), by_reference, faithfulness(*batch[:3], average, num_relations=3)):
        torch.testing.assert_close(value, expected, equal_nan=True)
    assert (metric.correct.tolist(), metric.total.tolist()) == ([[4, 2], [0, 0], [2, 0]], [6, 0, 2])
    assert faithfulness(*batch[:2]).tolist() == [0.75, 0.25]
    assert faithfulness(*batch[:3], "none").shape == (3, 2)
    assert faithfulness(*batch[:2], average="none").shape == (1, 2)


@pytest.mark.parametrize("average", AVERAGES)
def test_nothing_counted_is_nan_after_a_warning_and_counts_beyond_float32_are_exact(average):
    for grid in ((), (1,), (2, 3)):
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
    metrics, one, row = MetricCollection([Faithfulness(1), Causality(1)]), tensor([1]), tensor([0])
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_ranks_are_places_in_a_sorted_list(dtype):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(7, 2, 2, 40, generator=generator).mul(4).round().to(dtype)
    targets = torch.randint(40, (7,), generator=generator)
    ranks = token_ranks(scores, targets)
    assert ranks.dtype == torch.int64
    assert torch.equal(token_ranks(scores[:, 0, 0], targets), ranks[:, 0, 0])
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
    with pytest.raises(LREError, match=message):
        token_ranks(scores, targets)


@pytest.mark.parametrize("shape", [(2,), (2, 4), (2, 3, 1)])
def test_predictions_of_another_grid(shape):
    with pytest.raises(LREError, match=r"predictions must have shape \(batch, 3\), got \(2,"):
        Faithfulness(1, (3,)).update(torch.zeros(shape, dtype=torch.int64), IDS, IDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_relations": 0}, "num_relations must be a whole number of at least 1, got 0"),
        ({"num_relations": True}, "num_relations must be .* got True"),
        ({"grid_shape": (3, 0)}, "grid_shape must be a whole number of at least 1, got 0"),
        ({"average": "weighted"}, "average must be 'micro' or 'macro' or 'none', got 'weighted'"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(LREError, match=message):
        Faithfulness(**{"num_relations": 2, **arguments})
    if "grid_shape" not in arguments:
        with pytest.raises(LREError, match=message):
            faithfulness(IDS, IDS, **arguments)


def test_tokens_that_an_lm_excludes_have_no_part_in_a_distribution():
    generator = torch.Generator().manual_seed(0)
    predictions, reference = (torch.randn(*shape, generator=generator) for shape in ((4, 3, 9), (4, 9)))
    targets = torch.tensor([0, 5, 2, 1])
    expected = distribution_scores(predictions[..., :6], targets, reference[:, :6])
    predictions[..., 6:] = reference[:, 6:] = -torch.inf
    torch.testing.assert_close(distribution_scores(predictions, targets, reference), expected)
