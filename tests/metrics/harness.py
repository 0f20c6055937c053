"""One harness for success-rate metrics: a metric class against an independent reference, in every way it is used.

The reference is plain Python: loops, dicts and exact fractions, no tensor arithmetic. A `Case` fixes a metric's
arguments; the `check_...` functions each raise an `AssertionError` where class, function and reference disagree.
"""

import functools
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

from lre_lightning.metrics import RecallAtK, recall_at_k

TARGETS = 3  # few, so that chance alone makes about a third of the predictions right
VOCABULARY = 6
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
                draw(TARGETS, size, *self.grid_shape),
                draw(TARGETS, size),
                draw(max(1, self.num_relations - 1), size),
                draw(4, size) > 0 if self.masked else None,
            )
            for size in sizes
        ]

    def expected(self, batches: Sequence[Batch]) -> Tensor:
        return reference(batches, self.average, self.grid_shape, self.num_relations)


@dataclass(frozen=True)
class RecallCase(Case):
    """Scores in place of predicted tokens, with few distinct values, so that there are ties."""

    ks: tuple[int, ...] = (1, 2, 3)

    def metric(self, **kwargs: Any) -> Metric:
        return super().metric(ks=self.ks, **kwargs)

    def batches(self, seed: int, sizes: Sequence[int] = BATCH_SIZES) -> list[Batch]:
        generator = torch.Generator().manual_seed(seed + 100)
        drawn = super().batches(seed, sizes)
        shapes = [(len(batch.targets), *self.grid_shape, VOCABULARY) for batch in drawn]
        scores = [torch.randint(4, shape, generator=generator).float() for shape in shapes]
        return [Batch(s, b.targets * 2, b.relations, b.mask) for s, b in zip(scores, drawn, strict=True)]

    def expected(self, batches: Sequence[Batch]) -> Tensor:
        """The reference of success rates for each k, on predictions that are right where the best k have the target."""
        columns = []
        for k in self.ks:
            hits = [torch.full(batch.predictions.shape[:-1], -1) for batch in batches]
            for found, batch in zip(hits, batches, strict=True):
                for place in itertools.product(*map(range, found.shape)):
                    target = int(batch.targets[place[0]])
                    if target in ranked(batch.predictions[place].tolist())[:k]:
                        found[place] = target
            plain = [Batch(h, b.targets, b.relations, b.mask) for h, b in zip(hits, batches, strict=True)]
            columns.append(reference(plain, self.average, self.grid_shape, self.num_relations))
        return torch.stack(columns, -1)


def recall_case(average: str, grid: tuple[int, ...], ks: tuple[int, ...], masked: bool) -> RecallCase:
    return RecallCase(RecallAtK, functools.partial(recall_at_k, ks=ks), average, grid, masked=masked, ks=ks)


def ranked(scores: Sequence[float]) -> list[int]:
    """Tokens from the most to the least likely; among equals the lower id first."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


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
        values = [_mean(outcomes.get((row, point), [])) for row in range(num_relations) for point in points]
        return torch.tensor(values).reshape(num_relations, *grid_shape)
    at_points = [[seen for (_, where), seen in outcomes.items() if where == point] for point in points]
    if average == "micro":
        values = [_mean([outcome for seen in per_relation for outcome in seen]) for per_relation in at_points]
    else:
        values = [_mean([Fraction(sum(seen), len(seen)) for seen in per_relation]) for per_relation in at_points]
    return torch.tensor(values).reshape(grid_shape)


def _mean(values: Sequence[bool | Fraction]) -> float:
    return float(Fraction(sum(values, Fraction(0))) / len(values)) if values else math.nan


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


def check_batches(case: Case) -> None:
    """Each batch has its own value, also by the function, and the batches add up: no cached result outlives an update.

    After `reset` nothing is left of them.
    """
    metric, batches = case.metric(), case.batches(seed=1)
    for seen, batch in enumerate(batches, start=1):
        assert_equal(metric(*batch.arguments), case.expected([batch]))
        assert_equal(metric.compute(), case.expected(batches[:seen]))
        keywords = {"average": case.average, "num_relations": case.num_relations, "mask": batch.mask}
        value = case.function(batch.predictions, batch.targets, batch.relations, **keywords)
        assert_equal(value, case.expected([batch]))
    metric.reset()
    metric.update(*batches[0].arguments)
    assert_equal(metric.compute(), case.expected(batches[:1]))


def check_copies(case: Case) -> None:
    """A pickled copy and a clone carry the counts on, and are independent of the original and of each other."""
    metric, batches = filled(case)
    more = case.batches(seed=4)[0]
    for copy in (pickle.loads(pickle.dumps(metric)), metric.clone()):
        copy.update(*more.arguments)
        assert_equal(copy.compute(), case.expected([*batches, more]))
    assert_equal(metric.compute(), case.expected(batches))


def check_dtypes(case: Case) -> None:
    """No cast reaches the counts, which half precision could not hold, nor a result that is cached."""
    casts: list[Callable[[Metric], Any]] = [
        lambda metric: metric.set_dtype(torch.float16),
        lambda metric: metric.bfloat16(),
        lambda metric: metric.to(torch.bfloat16),
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


CHECKS = [check_batches, check_copies, check_dtypes]


def two_process_results(cases: Sequence[Case], folder: Path) -> list[list[dict[str, Tensor]]]:
    """Run all cases on two real gloo processes and collect, per process and case, what `_results` returns.

    Raises:
        Exception: If the processes cannot start, one of them raises or dies, or they do not end in time.
    """
    run_two_processes(_count, folder, list(cases))
    return [torch.load(folder / f"{index}.pt") for index in range(2)]


def run_two_processes(function: Callable[..., None], folder: Path, *arguments: Any, seconds: float = 240) -> None:
    """Call `function(index, folder, *arguments)` in two new processes and wait for both."""
    context = torch.multiprocessing.spawn(function, (folder, *arguments), nprocs=2, join=False)
    give_up = time.monotonic() + seconds
    while not context.join(timeout=1):  # raises as soon as one process fails, and ends the other
        if time.monotonic() > give_up:
            for process in context.processes:
                process.kill()
            raise TimeoutError(f"two gloo processes did not end within {seconds} seconds")


def die_second(index: int, folder: Path) -> None:
    """Leave the first process waiting for a second one that is gone: the harness must not call that a success."""
    if index == 1:
        os._exit(3)
    _join_group(index, folder)


def _join_group(index: int, folder: Path) -> None:
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=index, world_size=2)


def _count(index: int, folder: Path, cases: list[Case]) -> None:
    torch.set_num_threads(1)
    _join_group(index, folder)
    try:
        torch.save([_results(case, index) for case in cases], folder / f"{index}.pt")
    finally:
        torch.distributed.destroy_process_group()


def _samples_of(case: Case, index: int, uneven: bool) -> list[Batch]:
    """The first process has five batches; the second has two others, or none at all."""
    return case.batches(seed=9) if index == 0 else case.batches(seed=10, sizes=(4, 2)) if uneven else []


def _results(case: Case, index: int) -> dict[str, Tensor]:
    """Both processes with samples, more samples after `compute`, one process with none, and a value per step."""
    metric, results = case.metric(), {}
    for batch in _samples_of(case, index, uneven=True):
        metric.update(*batch.arguments)
    results["both"] = metric.compute()
    results["own"] = metric.total.clone()  # no longer summed over the processes
    metric.update(*case.batches(seed=11 + index)[0].arguments)
    results["resumed"] = metric.compute()
    metric.reset()
    for batch in _samples_of(case, index, uneven=False):
        metric.update(*batch.arguments)
    results["one"] = metric.compute()
    on_step = case.metric(dist_sync_on_step=True)
    results["step"] = on_step(*case.batches(seed=13 + index)[0].arguments)
    return results


def check_two_processes(case: Case, processes: Sequence[dict[str, Tensor]]) -> None:
    """Both processes hold the reference's value of all samples of both."""
    both = [_samples_of(case, index, uneven=True) for index in range(2)]
    resumed = [case.batches(seed=11 + index)[0] for index in range(2)]
    for index, results in enumerate(processes):
        assert_equal(results["both"], case.expected([*both[0], *both[1]]))
        counted = [b.relations if b.mask is None else b.relations[b.mask] for b in both[index]]
        assert torch.equal(results["own"], torch.cat(counted).bincount(minlength=case.num_relations))
        assert_equal(results["resumed"], case.expected([*both[0], *both[1], *resumed]))
        assert_equal(results["one"], case.expected(both[0]))
        assert_equal(results["step"], case.expected([case.batches(seed=13)[0], case.batches(seed=14)[0]]))
