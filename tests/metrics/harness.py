"""One harness for success-rate metrics: a metric class against an independent reference, in every way it is used.

The reference is plain Python: loops, dicts and exact fractions, no tensor arithmetic. A `Case` fixes a metric's
arguments; the `check_...` functions each raise an `AssertionError` where class, function and reference disagree.
"""

import itertools
import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch import Tensor
from torchmetrics import Metric

from tests.helpers.launcher import Launcher

TARGETS = 3  # few, so that chance alone makes about a third of the predictions right
VOCABULARY = 6
BATCH_SIZES = (5, 1, 8, 0, 3)  # uneven, one of them empty


class Batch(NamedTuple):
    """The arguments of one update."""

    predictions: Tensor
    targets: Tensor
    relations: Tensor
    mask: Tensor | None = None


@dataclass(frozen=True)
class Case:
    """A metric class, its functional form, and the arguments of both; with `ks`, predictions are scores."""

    metric_class: type[Metric]
    function: Callable[..., Tensor]
    average: str = "macro"
    grid_shape: tuple[int, ...] = ()
    num_relations: int = 4
    masked: bool = True
    ks: tuple[int, ...] = ()

    def __str__(self) -> str:
        grid = "x".join(map(str, self.grid_shape)) or "point"
        return f"{self.metric_class.__name__}-{self.average}-{grid}-{'masked' if self.masked else 'unmasked'}"

    @property
    def options(self) -> dict[str, Any]:
        return {"average": self.average, "num_relations": self.num_relations} | ({"ks": self.ks} if self.ks else {})

    def metric(self, **options: Any) -> Metric:
        return self.metric_class(grid_shape=self.grid_shape, **self.options, **options)

    def batches(self, seed: int, sizes: Sequence[int] = BATCH_SIZES) -> list[Batch]:
        """Draw random samples; the last relation has none at all, as long as there is another. Scores have ties."""
        generator = torch.Generator().manual_seed(seed)

        def draw(high: int, *shape: int) -> Tensor:
            return torch.randint(high, shape, generator=generator)

        return [
            Batch(
                draw(4, size, *self.grid_shape, VOCABULARY).float()
                if self.ks
                else draw(TARGETS, size, *self.grid_shape),
                draw(TARGETS, size) * (2 if self.ks else 1),
                draw(max(1, self.num_relations - 1), size),
                draw(4, size) > 0 if self.masked else None,
            )
            for size in sizes
        ]

    def right(self, prediction: Any, target: int) -> tuple[bool, ...]:
        """Is a prediction, a token or the scores of all, right: one answer, or one for each k."""
        return tuple(target in ranked(prediction)[:k] for k in self.ks) if self.ks else (prediction == target,)

    def expected(self, batches: Sequence[Batch]) -> Tensor:
        """Each sample at each grid point in turn, then exact fractions; `nan` where nothing was counted."""
        shape = (*self.grid_shape, len(self.ks)) if self.ks else self.grid_shape
        points = list(itertools.product(*map(range, self.grid_shape)))
        outcomes = [[[] for _ in range(math.prod(shape))] for _ in range(self.num_relations)]
        for predictions, targets, relations, mask in batches:
            for row, target in enumerate(targets.tolist()):
                found = itertools.chain(*(self.right(predictions[row][point].tolist(), target) for point in points))
                for seen, right in zip(outcomes[relations[row]], found, strict=True):
                    seen += [right] if mask is None or mask[row] else []
        if self.average == "none":
            return torch.tensor([list(map(_mean, seen)) for seen in outcomes]).reshape(self.num_relations, *shape)
        if self.average == "micro":
            values = [_mean(list(itertools.chain(*by_relation))) for by_relation in zip(*outcomes, strict=True)]
        else:
            known = [[seen for seen in found if seen] for found in zip(*outcomes, strict=True)]
            means = [[Fraction(sum(seen), len(seen)) for seen in found] for found in known]
            values = list(map(_mean, means))
        return torch.tensor(values).reshape(shape)


def ranked(scores: Sequence[float]) -> list[int]:
    """Tokens from the most to the least likely; among equals the lower id first."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


def _mean(values: Sequence[bool | Fraction]) -> float:
    return float(Fraction(sum(values, Fraction(0))) / len(values)) if values else math.nan


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    """Same float32 numbers (to the last rounding), same shape, `nan` in the same places."""
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=1.2e-7, atol=0, equal_nan=True)


def check_batches(case: Case) -> None:
    """Each batch has its own value, also by the function, and the batches add up: no cached result outlives an update.

    After `reset` nothing is left of them.
    """
    metric, batches = case.metric(), case.batches(seed=1)
    for seen, batch in enumerate(batches, start=1):
        assert_equal(metric(*batch), case.expected([batch]))
        assert_equal(metric.compute(), case.expected(batches[:seen]))
        assert_equal(case.function(*batch[:3], mask=batch.mask, **case.options), case.expected([batch]))
    metric.reset()
    metric.update(*batches[0])
    assert_equal(metric.compute(), case.expected(batches[:1]))


def check_copies(case: Case) -> None:
    """A pickled copy and a clone carry the counts on, and are independent of the original and of each other.

    In half precision counts stay whole numbers.
    """
    metric, batches = case.metric(), case.batches(seed=0)
    for batch in batches:
        metric.update(*batch)
    more = case.batches(seed=4)[0]
    for copy in (pickle.loads(pickle.dumps(metric)), metric.clone(), torch.nn.Sequential(metric.clone()).half()[0]):
        copy.update(*more)
        assert_equal(copy.compute(), case.expected([*batches, more]))
        assert {state.dtype for state in copy.metric_state.values()} == {torch.int64}
    assert_equal(metric.compute(), case.expected(batches))


CHECKS = [check_batches, check_copies]


def results_of(index: int, folder: Path, cases: list[Case]) -> None:
    """Join a gloo group of two processes and save the results of each case, with samples in both and in the first."""
    rendezvous = f"file://{folder / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=index, world_size=2)
    results = []
    for case in cases:
        metrics = case.metric(), case.metric()
        for metric, samples in zip(metrics, _samples(case, index), strict=True):
            for batch in samples:
                metric.update(*batch)
        results.append([metric.compute() for metric in metrics])
    torch.save(results, folder / f"{index}.pt")
    torch.distributed.destroy_process_group()


def _samples(case: Case, index: int) -> tuple[list[Batch], list[Batch]]:
    """The first process has five batches; the second has two others, or none at all."""
    return (case.batches(9),) * 2 if index == 0 else (case.batches(10, sizes=(4, 2)), [])


def check_two_processes(launch: Launcher, cases: Sequence[Case], module: str, folder: Path) -> None:
    """Both processes hold the reference's value of all samples of both; `module` has the same `CASES`."""
    imports = f"from pathlib import Path; from {module} import CASES; from {__name__} import results_of"
    started = [
        launch.start(folder / f"cwd{index}", code=f"{imports}; results_of({index}, Path({str(folder)!r}), CASES)")
        for index in range(2)
    ]
    for ended in map(launch.wait, started):
        assert ended.status == 0, ended.error
    for index in range(2):
        for case, (both, one) in zip(cases, torch.load(folder / f"{index}.pt"), strict=True):
            assert_equal(both, case.expected([*_samples(case, 0)[0], *_samples(case, 1)[0]]))
            assert_equal(one, case.expected(_samples(case, 0)[1]))
