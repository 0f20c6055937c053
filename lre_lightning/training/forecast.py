"""What a fit will compute and how long that takes, from a few prompts that are measured before.

The time of a trial is the sum over kinds of work, each counted in a unit whose time hardly depends on the relation: a
token in one decoder block, a hidden state that is unembedded, a factorization. The machine's time for a unit is
measured on prompts of one trial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from lre_lightning.grid import Layer, place_of
from lre_lightning.lre.operators import Dense, wide_dtype
from lre_lightning.models.memory import free_memory
from lre_lightning.models.points import predict_points
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import start_text
from lre_lightning.prompts.trials import test_prompts, train_prompts
from lre_lightning.runs.times import duration
from lre_lightning.training.method import Method, Products, choose_method
from lre_lightning.training.trial import FitTrial, Run

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.models.patching import PromptBatch
    from lre_lightning.prompts.prompt import Prompt
    from lre_lightning.training.options import Choice

ASKED = 24
"""Test prompts of a trial that are run at most, to see how many the LM knows."""

LONG = 0.25
"""Seconds after which work is measured once and not twice."""

GIBIBYTE = 2**30

T = TypeVar("T")


@dataclass(frozen=True)
class Work:
    """What a trial computes, in units of each kind; or the seconds that a unit of each takes.

    Attributes:
        asked: Test prompts as they are: tokens times decoder blocks.
        swept: Rows of Jacobians: rows times tokens from the subject's last one on, times blocks.
        patched: Test prompts with s replaced: runs times such tokens, times blocks, over all layers.
        decoded: Hidden states that are unembedded one by one, after patched runs.
        scored: LRE(s) that are unembedded at all betas.
        factorized: Factorizations of W.
    """

    asked: float = 0.0
    swept: float = 0.0
    patched: float = 0.0
    decoded: float = 0.0
    scored: float = 0.0
    factorized: float = 0.0

    def seconds(self, pace: Work) -> float:
        """Return the time of this work, where `pace` has the seconds of a unit of each kind."""
        total: float = sum(count * each for count, each in zip(astuple(self), astuple(pace), strict=True))
        return total


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


@dataclass(frozen=True)
class Forecast:
    """What a fit will do and how long that takes; as text, what ``lre fit --dry_run`` prints.

    Attributes:
        relations: One entry per relation.
        weights: Bytes of the LM's weights.
        jacobians: Bytes of the Jacobians of a trial, at all layers together.
        free: Bytes of memory that the LM's device has left; None if unknown.
        start: What prompts start with.
        more: Measures that add work which is not counted.
    """

    relations: tuple[RelationForecast, ...]
    weights: int
    jacobians: int
    free: int | None
    start: str
    more: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The time of all trials."""
        return sum(relation.trials * relation.seconds for relation in self.relations)

    def __str__(self) -> str:
        """Return one line per relation, then the sums."""
        lines = []
        for relation in self.relations:
            known = f"known {'' if relation.counted else 'about '}{relation.known:.0f}"
            took = f"{relation.method.replace('_', '-')}, {duration(relation.trials * relation.seconds)}"
            lines.append(
                f"{relation.relation!r}: trials {relation.trials}, test samples {relation.tested}, {known}, {took}"
            )
        lines.append(self.start)
        lines += dict.fromkeys(f"W is {r.method.replace('_', '-')}: {r.why}" for r in self.relations if r.why)
        free = "" if self.free is None else f", free {self.free / GIBIBYTE:.1f} GiB"
        lines.append(
            f"memory: the LM {self.weights / GIBIBYTE:.1f} GiB, Jacobians {self.jacobians / GIBIBYTE:.1f} GiB{free}"
        )
        trials = sum(relation.trials for relation in self.relations)
        more = f", and what these add: {', '.join(self.more)}" if self.more else ""
        lines.append(f"expected: {duration(self.seconds)} for relations {len(self.relations)}, trials {trials}{more}")
        return "\n".join(lines)


def forecast(run: Run, first: int = 0, stop: int | None = None, begun: FitTrial | None = None) -> Forecast:
    """Forecast a fit from the trial of index `first` in the schedule on, before that of index `stop` or to the end.

    The time per unit is measured on some prompts of that trial. How many samples the LM knows is found from up to
    `ASKED` test prompts of each relation's first trial. If that trial has `begun`, it is asked alone, and does not
    repeat the work that is measured.
    """
    relations: list[RelationForecast] = []
    pace: Work | None = None
    share: float | None = None
    schedule = run.data.schedule[first:stop]
    for relation in dict.fromkeys(index for index, _ in schedule):
        own = [first + place for place, (index, _) in enumerate(schedule) if index == relation]
        trial = begun if begun is not None and pace is None else FitTrial(run, run.data.trial(own[0]))
        tested, prompts = len(trial.trial.test_asked), _test_prompts(trial)
        if share is None or begun is None:
            share = _known(run.lm, prompts) / len(prompts)
        pace = pace or measure(trial, prompts)
        known = share * tested
        method, why = choose_method(
            run.lm, trial.trial, trial.layers, trial.ranks()[-1], run.measures, run.fitting.method
        )
        relations.append(
            RelationForecast(
                relation=trial.trial.relation.name,
                trials=len(own),
                tested=tested,
                known=known,
                counted=begun is None and len(prompts) == tested,
                method=method,
                why=why,
                seconds=_seconds(trial, prompts, known, pace, len(own)) / run.processes.count,
            )
        )
    lm, layers = run.lm, len(run.layers)
    together = run.data.together * lm.dtype.itemsize + wide_dtype(lm.dtype, lm.device).itemsize
    return Forecast(
        relations=tuple(relations),
        weights=sum(parameter.nbytes for parameter in lm.parameters()),
        jacobians=layers * lm.hidden_size**2 * together if any(r.method == "dense" for r in relations) else 0,
        free=free_memory(lm.device),
        start=start_text(run.data),
        more=tuple(measure.name for measure in run.measures if measure.applied or measure.elements),
    )


def _seconds(trial: FitTrial, asked: list[Prompt], known: float, pace: Work, trials: int) -> float:
    """Return the mean time of a trial and those that follow it, `trials` in all; arguments are those of `work_of`."""
    fitting, work = trial.run.fitting, work_of(trial, asked, known)
    if fitting.grid == "whole" or trial.choice is not None:
        return work.seconds(pace)
    first = min(max(1, fitting.selection_trials), trials)
    choice: Choice = {"layer": trial.layers[len(trial.layers) // 2], "rank": trial.ranks()[-1]}
    run = replace(trial.run, fitting=replace(fitting, choices={trial.trial.relation.name: choice}))
    later = work_of(FitTrial(run, trial.trial), asked, known)
    return (first * work.seconds(pace) + (trials - first) * later.seconds(pace)) / trials


def work_of(trial: FitTrial, asked: list[Prompt], known: float) -> Work:
    """Count the work of a trial of whose test samples the LM knows so many; `asked` are some of its test prompts."""
    run, lm, ranks = trial.run, trial.run.lm, trial.ranks()
    depths = [_blocks_above(lm, layer) for layer in trial.layers]
    tested, needed = len(trial.trial.test_asked), run.data.n_shot
    first_asked = tested if known < needed else needed * tested / known  # until the LM has answered enough of them
    work = Work(asked=(2 * _context(asked) + (tested + first_asked) * _own(asked)) * lm.num_layers)
    if known < needed:
        return work
    known = min(known, run.fitting.max_known or known)
    method, _ = trial.method()
    products = Products.of(lm, trial.trial, trial.layers, ranks[-1], run.measures)
    prompts = train_prompts(trial.trial, run.data.tokenizer, options=run.data.prompts)
    return replace(
        work,
        swept=len(prompts) * getattr(products, method) * _tokens(lm, prompts) * max(depths),
        patched=known * len(ranks) * _tokens(lm, asked) * sum(depths),
        decoded=known * len(ranks) * len(depths) + tested,
        scored=known * len(depths),
        factorized=len(depths) if method == "dense" else 0,
    )


def measure(trial: FitTrial, asked: list[Prompt]) -> Work:
    """Measure the seconds per unit of each kind of work on prompts of a trial; `asked` are some of its test prompts.

    Where W is matrix-free, a product in units of a sweep's is taken to last as long as a patched run.
    """
    run, lm, ranks = trial.run, trial.run.lm, trial.ranks()
    layer, beta = trial.layers[len(trial.layers) // 2], torch.tensor(run.betas)[:, None]
    context, variants = _context(asked), len(asked) * len(ranks)

    def ask() -> tuple[PromptBatch, Tensor, Tensor]:
        runs = prompts_to_run(lm, asked)
        return runs, *runs.hidden_states([layer], keep=True)

    asking, (runs, subject, output) = _timed(lm, ask)
    patching, patched = _timed(lm, lambda: runs.patched(layer, subject.expand(-1, len(ranks), -1)))
    decoding, _ = _timed(lm, lambda: lm.predict(patched))
    scoring, _ = _timed(lm, lambda: predict_points(lm, subject * beta.to(subject) + output[:, None]))
    blocks = _tokens(lm, asked) * max(1, _blocks_above(lm, layer))
    pace = Work(
        asked=asking / ((context + len(asked) * _own(asked)) * lm.num_layers),
        swept=patching / (variants * blocks),
        patched=patching / (variants * blocks),
        decoded=decoding / variants,
        scored=scoring / len(asked),
    )
    method, _ = trial.method()
    if method == "matrix_free":
        return pace
    prompts = train_prompts(trial.trial, run.data.tokenizer, options=run.data.prompts)
    subject_at, last = prompts[0].subject_position, prompts[0].last_position
    alike = [prompt for prompt in prompts if (prompt.subject_position, prompt.last_position) == (subject_at, last)]
    ids = torch.tensor([prompt.input_ids for prompt in alike[: run.data.together]])
    sweeping, examples = _timed(lm, lambda: trial.sweep_once(ids, subject_at))
    weight = examples[0].jacobian[layer].to(wide_dtype(lm.dtype, lm.device))
    factorizing, _ = _timed(lm, lambda: Dense(weight).triplets(ranks[-1]))
    blocks = _tokens(lm, prompts[:1]) * max(1, *(_blocks_above(lm, layer) for layer in trial.layers))
    return replace(pace, swept=sweeping / (len(ids) * lm.hidden_size * blocks), factorized=factorizing)


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


def _test_prompts(trial: FitTrial) -> list[Prompt]:
    """Return at most `ASKED` test prompts of a trial, evenly spaced."""
    count, data = len(trial.trial.test_asked), trial.run.data
    return test_prompts(trial.trial, data.tokenizer, range(0, count, -(-count // ASKED)), data.prompts)


def _known(lm: LanguageModel, prompts: list[Prompt]) -> int:
    """Count the prompts to which the LM's answer is the object's first token."""
    _, output = prompts_to_run(lm, prompts).hidden_states([lm.num_layers - 1])
    return int((lm.predict(output).cpu() == torch.tensor([prompt.object_token for prompt in prompts])).sum())


def _blocks_above(lm: LanguageModel, layer: Layer) -> int:
    return lm.num_layers - 1 - place_of(layer)


def _context(prompts: list[Prompt]) -> float:
    """Return the tokens before the subject, in the mean over prompts."""
    return fmean(prompt.subject_span[0] for prompt in prompts)


def _own(prompts: list[Prompt]) -> float:
    """Return the tokens from the subject's first one on, in the mean over prompts."""
    return fmean(len(prompt.input_ids) for prompt in prompts) - _context(prompts)


def _tokens(lm: LanguageModel, prompts: list[Prompt]) -> float:
    """Return the tokens that are run for each row or edit, in the mean: those from the subject's last one on."""
    return fmean(len(prompt.input_ids) - (prompt.subject_position if lm.shares_prefix else 0) for prompt in prompts)
