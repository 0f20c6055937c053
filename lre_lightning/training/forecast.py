"""What a fit will compute and how long that takes, from the clock of a few prompts.

The time of a trial is the sum over kinds of work, each counted in a unit whose time hardly depends on the relation, at
the pace of some prompts of one trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum
from operator import mul
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from lre_lightning.grid import Layer, place_of
from lre_lightning.lre.operators import Dense, wide_dtype
from lre_lightning.models.memory import free_memory
from lre_lightning.models.points import predict_points
from lre_lightning.prompts.batch import collate
from lre_lightning.prompts.prompt import start_text
from lre_lightning.prompts.trials import test_prompts
from lre_lightning.runs.times import duration
from lre_lightning.scoring.measure import Cost
from lre_lightning.training.method import Method, Products
from lre_lightning.training.trial import FitTrial, Run

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.prompts.prompt import Prompt

ASKED = 24
"""Test prompts of a trial that are run at most, to see how many the LM knows and how long they take."""

LONG = 0.25
"""Seconds after which work is timed once and not twice."""

GIBIBYTE = 2**30

T = TypeVar("T")


class Work(NamedTuple):
    """What a trial computes, in units of each kind; or the seconds that a unit of each takes."""

    run: float = 0.0
    """Tokens of test prompts that run through a decoder block, from s on where it is replaced."""
    swept: float = 0.0
    """Rows of Jacobians, times tokens from s on, times blocks."""
    decoded: float = 0.0
    """Hidden states that are unembedded one by one."""
    scored: float = 0.0
    """LRE(s) that are unembedded at all betas."""
    factorized: float = 0.0
    """Factorizations of W."""


@dataclass(frozen=True)
class RelationForecast:
    """What is expected of the trials of a relation.

    Attributes:
        relation: Its name.
        trials: Their number.
        tested: Test samples of each.
        known: How many of them the LM knows, about.
        counted: Whether that is an exact count, in the first of these trials.
        method: The form of W.
        why: The reason for it, if there was a choice.
        seconds: The time of each trial, in the mean.
    """

    relation: str
    trials: int
    tested: int
    known: float
    counted: bool
    method: Method
    why: str
    seconds: float

    def __str__(self) -> str:
        """Return what is expected as one line."""
        known = f"known {'' if self.counted else 'about '}{self.known:.0f}"
        took = f"{self.method.replace('_', '-')}, {duration(self.trials * self.seconds)}"
        return f"{self.relation!r}: trials {self.trials}, test samples {self.tested}, {known}, {took}"


@dataclass(frozen=True)
class Forecast:
    """What a fit will do and how long that takes; as text, what ``lre fit --dry_run`` prints.

    Attributes:
        relations: One entry per relation.
        weights: Bytes of the LM's weights.
        jacobians: Bytes of the Jacobians of a trial, at all layers together.
        free: Bytes of memory that the LM's device has left; None if unknown.
        start: What prompts start with.
    """

    relations: tuple[RelationForecast, ...]
    weights: int
    jacobians: int
    free: int | None
    start: str

    @property
    def seconds(self) -> float:
        """The time of all trials."""
        return sum(relation.trials * relation.seconds for relation in self.relations)

    def __str__(self) -> str:
        """Return one line per relation, then the sums."""
        why = dict.fromkeys(f"W is {r.method.replace('_', '-')}: {r.why}" for r in self.relations if r.why)
        sizes = {"the LM": self.weights, "Jacobians": self.jacobians, "free": self.free}
        memory = ", ".join(f"{name} {size / GIBIBYTE:.1f} GiB" for name, size in sizes.items() if size is not None)
        trials = sum(relation.trials for relation in self.relations)
        total = f"expected: {duration(self.seconds)} for relations {len(self.relations)}, trials {trials}"
        return "\n".join([*map(str, self.relations), self.start, *why, f"memory: {memory}", total])


def forecast(
    run: Run, devices: int, first: int = 0, stop: int | None = None, begun: FitTrial | None = None
) -> Forecast:
    """Forecast a fit on some devices, of the trials from index `first` in the schedule on to before `stop`.

    How many samples the LM knows is found from up to `ASKED` test prompts of each relation's first trial. If the first
    trial of all has `begun`, its prompts alone say that of every relation.
    """
    relations: list[RelationForecast] = []
    pace: Work | None = None
    schedule = run.data.schedule[first:stop]
    for relation in dict.fromkeys(index for index, _ in schedule):
        own = [first + place for place, (index, _) in enumerate(schedule) if index == relation]
        trial = begun if begun is not None and pace is None else FitTrial(run, run.data.trial(own[0]))
        tested = len(trial.trial.test_asked)
        chosen = range(0, tested, -(-tested // ASKED))
        prompts = test_prompts(trial.trial, run.data.tokenizer, chosen, run.data.prompts)
        if begun is None:
            trial.ask([collate(prompts, relation, trial.trial.number, chosen)])
        if trial.record is not None:
            share = trial.record.known / trial.record.tested
        pace = pace or measure(trial)
        counted, (method, why) = begun is None and len(prompts) == tested, trial.method()
        seconds = _seconds(trial, prompts, share * tested, pace, len(own)) / devices
        relations.append(
            RelationForecast(trial.trial.relation.name, len(own), tested, share * tested, counted, method, why, seconds)
        )
    lm, dense = run.lm, any(relation.method == "dense" for relation in relations)
    together = run.data.together * lm.dtype.itemsize + wide_dtype(lm.dtype, lm.device).itemsize
    return Forecast(
        tuple(relations),
        weights=sum(parameter.nbytes for parameter in lm.parameters()),
        jacobians=len(run.layers) * lm.hidden_size**2 * together if dense else 0,
        free=free_memory(lm.device),
        start=start_text(run.data),
    )


def _seconds(trial: FitTrial, prompts: Sequence[Prompt], known: float, pace: Work, trials: int) -> float:
    """Return the mean time of a trial and those after it, `trials` in all; other arguments are those of `work_of`."""
    fitting, whole = trial.run.fitting, fsum(map(mul, work_of(trial, prompts, known), pace))
    if fitting.grid == "whole" or trial.choice is not None:
        return whole
    later = FitTrial(trial.run, trial.trial, choice={"layer": _middle(trial), "rank": trial.ranks()[-1]})
    first = min(max(1, fitting.selection_trials), trials)
    return (first * whole + (trials - first) * fsum(map(mul, work_of(later, prompts, known), pace))) / trials


def work_of(trial: FitTrial, prompts: Sequence[Prompt], known: float) -> Work:
    """Count the work of a trial of whose test samples the LM knows so many; `prompts` are some of its test prompts."""
    run, lm, ranks, examples = trial.run, trial.run.lm, trial.ranks(), trial.train_prompts
    depths = [_blocks_above(lm, layer) for layer in trial.layers]
    tested, tokens = len(trial.trial.test_asked), _tokens(lm, prompts)
    asked = Work(run=(prompts[0].subject_position + tested * tokens) * lm.num_layers, decoded=tested)
    if known < len(trial.trial.train):
        return asked
    known = min(known, run.fitting.max_known or known)
    costs = [measure.cost(known, len(run.betas), len(ranks)) for measure in run.measures]
    edits, decoded, at_choice = map(sum, zip(Cost(edits=known * len(ranks)), *costs, strict=True))
    method, _ = trial.method()
    products = Products.of(lm, trial.trial, trial.layers, ranks[-1], run.measures)
    return Work(
        run=asked.run + tokens * (edits * sum(depths) + at_choice * fmean(depths)),
        swept=len(examples) * getattr(products, method) * _tokens(lm, examples) * max(depths),
        decoded=tested + (edits + decoded) * len(depths) + at_choice,
        scored=known * len(depths),
        factorized=len(depths) if method == "dense" else 0,
    )


def measure(trial: FitTrial) -> Work:
    """Time some prompts of a trial whose test prompts have been run, and return the seconds per unit of each kind.

    Where W is matrix-free, a product in units of a sweep's is taken to last as long as a token of a test prompt.
    """
    run, lm, ranks, layer = trial.run, trial.run.lm, trial.ranks(), _middle(trial)
    prompts = trial.states.prompts[:ASKED]
    runs = trial.states.runs.select(torch.arange(len(prompts)))
    subject = trial.states.subject[: len(prompts), trial.layers.index(layer), None]
    betas = torch.tensor(run.betas, dtype=subject.dtype, device=subject.device)[:, None]
    running, output = _timed(lm, lambda: runs.patched(layer, subject.expand(-1, len(ranks), -1)))
    decoding, _ = _timed(lm, lambda: lm.predict(output))
    scoring, _ = _timed(lm, lambda: predict_points(lm, subject * betas + output[:, :1]))
    edits = len(prompts) * len(ranks)
    each = running / (edits * _tokens(lm, prompts) * max(1, _blocks_above(lm, layer)))
    pace = Work(run=each, swept=each, decoded=decoding / edits, scored=scoring / len(prompts))
    if trial.method()[0] == "matrix_free":
        return pace
    sweeping, examples = _timed(lm, trial.sweep_first)
    weight = examples[0].jacobian[layer].to(wide_dtype(lm.dtype, lm.device))
    factorizing, _ = _timed(lm, lambda: Dense(weight).triplets(ranks[-1]))
    rows = len(examples) * lm.hidden_size * _tokens(lm, trial.train_prompts[:1])
    depth = max(1, _blocks_above(lm, trial.layers[0]))
    return pace._replace(swept=sweeping / (rows * depth), factorized=factorizing)


def _timed(lm: LanguageModel, work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of some work and its result; short work is done twice, as the first time has more to do."""
    best = float("inf")
    for _ in range(2):
        start = perf_counter()
        result = work()
        if lm.device.type == "cuda":
            torch.cuda.synchronize(lm.device)
        best = min(best, perf_counter() - start)
        if (lm.shards.least(best) if lm.shards else best) > LONG:
            break
    return best, result


def _middle(trial: FitTrial) -> Layer:
    return trial.layers[len(trial.layers) // 2]


def _blocks_above(lm: LanguageModel, layer: Layer) -> int:
    return lm.num_layers - 1 - place_of(layer)


def _tokens(lm: LanguageModel, prompts: Sequence[Prompt]) -> float:
    """Return the tokens that are run for each row or edit, in the mean: those from the subject's last one on."""
    return fmean(len(prompt.input_ids) - (prompt.subject_position if lm.shares_prefix else 0) for prompt in prompts)
