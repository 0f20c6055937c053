"""One harness for success-rate metrics: a metric class against an independent reference, in every way it is used.

The reference is plain Python: loops, dicts and exact fractions, no tensor arithmetic. A `Case` fixes a metric's
arguments; the `check_...` functions each raise an `AssertionError` where class, function and reference disagree.
"""

import itertools
import math
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor
from torchmetrics import Metric

VOCABULARY = 3  # small, so that chance alone makes about a third of the predictions right
BATCH_SIZES = (5, 1, 8, 0, 3)  # uneven, one of them empty


@dataclass(frozen=True)
class Batch:
    """The arguments of one update."""

    predictions: Tensor
    targets: Tensor
    relations: Tensor
    mask: Tensor | None = None

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        three = (self.predictions, self.targets, self.relations)
        return three if self.mask is None else (*three, self.mask)


@dataclass(frozen=True)
class Case:
    """A metric class, its functional form, and the arguments of both."""

    metric_class: type[Metric]
    function: Callable[..., Tensor]
    average: str = "macro"
    grid_shape: tuple[int, ...] = ()
    num_relations: int = 4
    masked: bool = True

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid_shape)) or "point"
        return f"{self.metric_class.__name__}-{self.average}-{grid}-{'masked' if self.masked else 'unmasked'}"

    def metric(self, **kwargs: Any) -> Metric:
        return self.metric_class(self.num_relations, self.grid_shape, self.average, **kwargs)

    def batches(self, seed: int, sizes: Sequence[int] = BATCH_SIZES) -> list[Batch]:
        """Draw random samples; the last relation has none at all, as long as there is another."""
        generator = torch.Generator().manual_seed(seed)

        def draw(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator)

        return [
            Batch(
                draw(VOCABULARY, size, *self.grid_shape),
                draw(VOCABULARY, size),
                draw(max(1, self.num_relations - 1), size),
                draw(4, size) > 0 if self.masked else None,
            )
            for size in sizes
        ]

    def expected(self, batches: Sequence[Batch]) -> Tensor:
        return reference(batches, self.average, self.grid_shape, self.num_relations)


def reference(batches: Sequence[Batch], average: str, grid_shape: tuple[int, ...], num_relations: int) -> Tensor:
    """Each sample at each grid point in turn, then exact fractions; `nan` where nothing was counted."""
    points = list(itertools.product(*(range(size) for size in grid_shape)))
    outcomes: dict[tuple[int, tuple[int, ...]], list[bool]] = {}
    for batch in batches:
        predictions, targets, relations = (tensor.tolist() for tensor in batch.arguments[:3])
        mask = [True] * len(targets) if batch.mask is None else batch.mask.tolist()
        for sample, point in itertools.product(range(len(targets)), points):
            if mask[sample]:
                predicted = predictions[sample]
                for index in point:
                    predicted = predicted[index]
                outcomes.setdefault((relations[sample], point), []).append(predicted == targets[sample])
    if average == "none":
        values = [_share(outcomes.get((row, point), [])) for row in range(num_relations) for point in points]
        return torch.tensor(values).reshape(num_relations, *grid_shape)
    average_at = {"micro": _over_samples, "macro": _over_relations}[average]
    at_points = [[seen for (_, where), seen in outcomes.items() if where == point] for point in points]
    return torch.tensor([average_at(per_relation) for per_relation in at_points]).reshape(grid_shape)


def _share(outcomes: Sequence[bool]) -> float:
    return float(Fraction(sum(outcomes), len(outcomes))) if outcomes else math.nan


def _over_samples(per_relation: list[list[bool]]) -> float:
    return _share([outcome for outcomes in per_relation for outcome in outcomes])


def _over_relations(per_relation: list[list[bool]]) -> float:
    shares = [Fraction(sum(outcomes), len(outcomes)) for outcomes in per_relation]
    return float(sum(shares, Fraction(0)) / len(shares)) if shares else math.nan


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """Same float32 numbers (to the last rounding), same shape, `nan` in the same places."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1.2e-7, atol=0, equal_nan=True)


def filled(case: Case, seed: int = 0) -> tuple[Metric, list[Batch]]:
    """A metric that has seen batches, and the batches."""
    metric, batches = case.metric(), case.batches(seed)
    for batch in batches:
        metric.update(*batch.arguments)
    return metric, batches


def check_forward(case: Case) -> None:
    """The value of each batch is the batch's own, and the batches add up beside it."""
    metric, batches = case.metric(), case.batches(seed=1)
    for batch in batches:
        assert_equal(metric(*batch.arguments), case.expected([batch]))
    assert_equal(metric.compute(), case.expected(batches))


def check_accumulation(case: Case) -> None:
    """After each update the result is that of all batches so far: no cached result outlives an update."""
    metric, batches = case.metric(), case.batches(seed=2)
    for seen, batch in enumerate(batches, start=1):
        metric.update(*batch.arguments)
        assert_equal(metric.compute(), case.expected(batches[:seen]))


def check_function(case: Case) -> None:
    """The function gives the same as the class, batch by batch."""
    for batch in case.batches(seed=3):
        keywords = {"average": case.average, "num_relations": case.num_relations, "mask": batch.mask}
        value = case.function(batch.predictions, batch.targets, batch.relations, **keywords)
        assert_equal(value, case.expected([batch]))


def check_copies(case: Case) -> None:
    """A pickled copy and a clone carry the counts on, and are independent of the original and of each other."""
    metric, batches = filled(case)
    more = case.batches(seed=4)[0]
    for copy in (pickle.loads(pickle.dumps(metric)), metric.clone()):
        copy.update(*more.arguments)
        assert_equal(copy.compute(), case.expected([*batches, more]))
    assert_equal(metric.compute(), case.expected(batches))


def check_reset(case: Case) -> None:
    """After `reset` nothing is left of the batches before."""
    metric, _ = filled(case)
    metric.compute()
    metric.reset()
    assert not metric.update_called
    fresh = case.batches(seed=5)
    metric.update(*fresh[0].arguments)
    assert_equal(metric.compute(), case.expected(fresh[:1]))


def check_state_dict(case: Case) -> None:
    """Persistent counts go through a state dict into a metric that holds other counts and a cached result."""
    metric, batches = filled(case, seed=6)
    assert not metric.state_dict(), "not persistent unless asked for"
    metric.persistent(True)
    other, _ = filled(case, seed=7)
    other.persistent(True)
    other.compute()
    saved = metric.state_dict()
    assert all(tensor.any() for tensor in saved.values()), "a round trip of zeros shows nothing"
    other.load_state_dict(saved)
    assert_equal(other.compute(), case.expected(batches))
    other.update(*batches[0].arguments)
    assert_equal(other.compute(), case.expected([*batches, batches[0]]))
    assert all(torch.equal(saved[name], tensor) for name, tensor in metric.state_dict().items())


def check_dtypes(case: Case) -> None:
    """No cast reaches the counts, which half precision could not hold, nor a result that is cached."""
    casts: list[Callable[[Metric], Any]] = [
        lambda metric: metric.set_dtype(torch.float16),
        lambda metric: metric.set_dtype(torch.bfloat16),
        lambda metric: metric.half(),
        lambda metric: metric.bfloat16(),
        lambda metric: metric.to(torch.bfloat16),
        lambda metric: torch.nn.Sequential(metric).to(torch.float16),
        lambda metric: torch.nn.Sequential(metric).half(),
    ]
    for cast, cached in itertools.product(casts, (True, False)):
        metric, batches = filled(case, seed=8)
        for name in metric.metric_state:
            setattr(metric, name, getattr(metric, name) * 70_001)  # beyond float16, rounded by bfloat16
        before = {name: state.clone() for name, state in metric.metric_state.items()}
        _ = metric.compute() if cached else None
        cast(metric)
        assert_equal(metric.compute(), case.expected(batches))
        for name, state in metric.metric_state.items():
            assert state.dtype == torch.int64
            assert torch.equal(state, before[name])
        metric.reset()
        assert {state.dtype for state in metric.metric_state.values()} == {torch.int64}


def batches_of_rank(case: Case, rank: int, uneven: bool) -> list[Batch]:
    """Rank 0 has five batches; rank 1 has two others, or none at all."""
    return case.batches(seed=9) if rank == 0 else case.batches(seed=10, sizes=(4, 2)) if uneven else []


def two_process_results(cases: Sequence[Case], folder: Path) -> list[list[dict[str, Tensor]]]:
    """Run all cases on two real gloo processes and collect, per rank and case, what `_count_on_rank` returns.

    Raises:
        Exception: if the processes cannot start, one of them raises or dies, or they do not end in time.
    """
    run_two_processes(_count_on_rank, folder, list(cases))
    return [torch.load(folder / f"rank-{rank}.pt") for rank in range(2)]


def run_two_processes(function: Callable[..., None], folder: Path, *arguments: Any, seconds: float = 240) -> None:
    """Call `function(rank, folder, *arguments)` in two new processes and wait for both."""
    context = torch.multiprocessing.spawn(function, (folder, *arguments), nprocs=2, join=False)
    give_up = time.monotonic() + seconds
    while not context.join(timeout=1):  # raises as soon as one process fails, and ends the other
        if time.monotonic() > give_up:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"two gloo processes did not end within {seconds} seconds")


def die_on_rank_one(rank: int, folder: Path) -> None:
    """Leave rank 0 waiting for a rank 1 that is gone: the harness must not call that a success."""
    if rank == 1:
        os._exit(3)
    _join_group(rank, folder)


def _join_group(rank: int, folder: Path) -> None:
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)


def _count_on_rank(rank: int, folder: Path, cases: list[Case]) -> None:
    torch.set_num_threads(1)
    _join_group(rank, folder)
    try:
        torch.save([_results_on_rank(case, rank) for case in cases], folder / f"rank-{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()


def _results_on_rank(case: Case, rank: int) -> dict[str, Tensor]:
    """What this rank sees: both ranks with samples, one with none, more samples after `compute`, values per step."""
    metric, results = case.metric(), {}
    for batch in batches_of_rank(case, rank, uneven=True):
        metric.update(*batch.arguments)
    results["both"] = metric.compute()
    results["own"] = metric.total.clone()  # no longer summed over the ranks
    metric.update(*case.batches(seed=11 + rank)[0].arguments)
    results["resumed"] = metric.compute()
    metric.reset()
    for batch in batches_of_rank(case, rank, uneven=False):
        metric.update(*batch.arguments)
    results["one"] = metric.compute()
    on_step = case.metric(dist_sync_on_step=True)
    results["step"] = on_step(*case.batches(seed=13 + rank)[0].arguments)
    return results


def check_two_processes(case: Case, ranks: Sequence[dict[str, Tensor]]) -> None:
    """Both ranks hold the reference's value of all samples of both."""
    both = [batches_of_rank(case, rank, uneven=True) for rank in range(2)]
    resumed = [case.batches(seed=11 + rank)[0] for rank in range(2)]
    for rank, results in enumerate(ranks):
        assert_equal(results["both"], case.expected([*both[0], *both[1]]))
        counts = [sum(_counted(batch).tolist().count(row) for batch in both[rank]) for row in range(case.num_relations)]
        assert results["own"].tolist() == counts
        assert_equal(results["resumed"], case.expected([*both[0], *both[1], *resumed]))
        assert_equal(results["one"], case.expected(both[0]))
        assert_equal(results["step"], case.expected([case.batches(seed=13)[0], case.batches(seed=14)[0]]))


def _counted(batch: Batch) -> Tensor:
    return batch.relations if batch.mask is None else batch.relations[batch.mask]
