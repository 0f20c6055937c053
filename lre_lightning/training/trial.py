"""One trial of one relation: an object that is given batches and gives back a record."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, check_ranks, default_ranks
from lre_lightning.lre.estimator import IDENTITY, LREEstimator, identity_layers
from lre_lightning.lre.jacobian import PromptJacobian, sweep
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.matrix_free import MatrixFree, forward_product
from lre_lightning.lre.operators import Operator
from lre_lightning.lre.origin import Origin
from lre_lightning.models.backward import backward_rule
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import RelationBatch, prompts_to_run
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.prompts.trials import train_prompts
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import asks_others, choice_of_earlier, choose_after, takes_part
from lre_lightning.records.summary import CSV_COLUMNS
from lre_lightning.runs.processes import Processes
from lre_lightning.scoring.measure import Measure, ScoredTrial, layers_for
from lre_lightning.scoring.scores import GridMetrics, grid_metrics, new_record, with_grid
from lre_lightning.scoring.states import TrialStates
from lre_lightning.training.method import Method, choose_method

if TYPE_CHECKING:
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.training.options import Choice, Fitting

LOGGER = logging.getLogger("lre_lightning")

_NOT_SWEPT: tuple[Tensor, list[PromptJacobian]] = torch.zeros(0, dtype=torch.long), []


@dataclass(frozen=True)
class Run:
    """Common parts of all trials of a fit or a validation.

    Attributes:
        lm: The LM.
        data: The datamodule.
        processes: The processes of the run.
        layers: The layers to try.
        betas: The betas to try.
        ranks: The ranks to try; None for the default ones.
        beta: The beta of the records and LREs.
        fitting: How layers and ranks are chosen.
        measures: What is measured beside faithfulness and causality.
    """

    lm: LanguageModel
    data: PromptSource
    processes: Processes
    layers: tuple[Layer, ...]
    betas: tuple[float, ...]
    ranks: tuple[int, ...] | None
    beta: float
    fitting: Fitting
    measures: tuple[Measure, ...] = ()


class AskedTrial:
    """A trial whose test prompts are run. Every process calls the methods in the same order.

    Args:
        run: What the trial has in common with others.
        trial: Its relation and samples.
        layers: The layers at which s is read.

    Attributes:
        states: The test prompts once they have been run.
        record: The record, not yet scored; None if no process had a test prompt.
    """

    states: TrialStates

    def __init__(self, run: Run, trial: Trial, layers: Sequence[Layer]) -> None:
        self.run, self.trial, self.layers = run, trial, tuple(layers)
        self.record: TrialRecord | None = None

    def ask(self, batches: Sequence[RelationBatch]) -> None:
        """Run this process's test prompts, and begin the record."""
        run = self.run
        (served,) = run.processes.sum(torch.tensor([sum(len(batch.own()) for batch in batches)]))
        if not served:
            return
        needed = any(measure.alone for measure in run.measures)
        alone = [run.data.subjects_alone(batch) for batch in batches] if needed else None
        most = run.fitting.max_known
        self.states = TrialStates.run(run.lm, batches, self.trial, self.layers, run.processes, alone, most)
        (tested,) = run.processes.sum(torch.tensor([len(self.states.samples)]))
        self.record = replace(
            new_record(self.trial, run.data, int(tested), self.states.all_known),
            model=run.lm.label,
            backward=run.fitting.backward,
            beta=run.beta,
            reported=self.trial.number >= run.fitting.selection_trials,
        )

    @property
    def knows_enough(self) -> bool:
        """Whether the LM knows as many test samples as the trial has examples; else it is not scored."""
        return self.record is not None and self.record.known >= len(self.trial.train)

    def _on_grid(
        self, lres: Mapping[Layer, LRE], betas: Sequence[float], ranks: Sequence[int], metrics: GridMetrics
    ) -> tuple[TrialRecord, Tensor, Tensor]:
        """Score LREs; see `with_grid`."""
        assert self.record is not None
        record, said, edited = with_grid(self.record, self.states, lres, betas, ranks, metrics)
        identity = identity_layers(self.run.lm, self.train_prompts, self.layers)
        return replace(record, identity_layers=identity), said, edited

    @cached_property
    def train_prompts(self) -> list[Prompt]:
        """All training prompts, not only those that this process is served."""
        return train_prompts(self.trial, self.run.data.tokenizer, options=self.run.data.prompts)

    def _measured(
        self,
        record: TrialRecord,
        lres: Mapping[Layer, LRE],
        said: Tensor,
        edited: Tensor,
        measures: Iterable[Measure],
    ) -> TrialRecord:
        """Return the record with what measures have found too."""
        tokens = self.run.data.coverage(self.trial.relation).tokens
        scored = ScoredTrial(record, self.states, lres, said, edited, self.train_prompts, tokens, self.run.data)
        record = replace(record, measures={**record.measures, **{one.name: one.measure(scored) for one in measures}})
        columns = Counter(
            name for found in record.measures.values() for name, tally in found.tallies.items() if tally.column
        )
        for name, count in columns.items():
            if count > 1 or name in CSV_COLUMNS:
                raise LREError(f"two columns of the results are called {name!r}: give the tally another name")
        return record


class FitTrial(AskedTrial):
    """A trial of a fit: Jacobians of its training prompts become LREs, which are scored on its test prompts.

    Call `ask` with the test batches and, if the LM `knows_enough`, `train` with each training batch, `estimate`, then
    `finish`.

    Args:
        run: What the trial has in common with others.
        trial: Its relation and samples.
        earlier: The scored records of the relation's other trials, which take part in the choice of layer and rank.
        choice: The layer and rank at which alone it is estimated and scored. If None, they are what the options or
            `earlier` say, or none: it is then scored on a grid.
    """

    def __init__(
        self, run: Run, trial: Trial, earlier: Sequence[TrialRecord] = (), choice: Choice | None = None
    ) -> None:
        fitting = run.fitting
        choice = choice or (fitting.choices or {}).get(trial.relation.name)
        if choice is None and fitting.grid == "choice":
            reported = trial.number >= fitting.selection_trials
            if found := choice_of_earlier(reported, earlier, fitting.select_by):
                choice = {"layer": found[0], "rank": found[1]}
        layers = run.layers if choice is None else layers_for(run.lm, [choice["layer"]], run.measures)
        super().__init__(run, trial, layers)
        self.earlier, self.choice = earlier, choice
        self._estimator = LREEstimator(self.layers)
        self._swept = _NOT_SWEPT
        self._lres: dict[Layer, LRE] = {}

    def train(self, batch: RelationBatch) -> None:
        """Add the Jacobian and bias of each prompt in a batch."""
        if self._operators:
            return
        batch = batch.own().padded("right")
        groups: dict[tuple[int, ...], list[int]] = {}  # rows of one shape that are in one batch on any processes
        for row in range(len(batch)):
            sample, subject, last = (int(at[row]) for at in (batch.sample, batch.subject_position, batch.last_position))
            groups.setdefault((sample // self.run.data.together, subject, last), []).append(row)
        for (_, subject, last), rows in groups.items():
            ids = batch.input_ids[rows, : last + 1]
            (known, swept), self._swept = self._swept, _NOT_SWEPT
            for example in swept if torch.equal(known, ids.cpu()) else self._sweep(ids, subject):
                self._estimator.update(example)

    def sweep_first(self) -> list[PromptJacobian]:
        """Return the Jacobians of the prompts that `train` sweeps first, and keep them for it."""
        first, *others = self.train_prompts[: self.run.data.together]
        shape = first.subject_position, first.last_position
        alike = [prompt for prompt in others if (prompt.subject_position, prompt.last_position) == shape]
        ids = torch.tensor([prompt.input_ids for prompt in (first, *alike)])
        self._swept = ids, self._sweep(ids, first.subject_position)
        return self._swept[1]

    def _sweep(self, ids: Tensor, subject: int) -> list[PromptJacobian]:
        last = ids.shape[1] - 1
        with backward_rule(self.run.fitting.backward):
            return sweep(self.run.lm, ids, range(subject, subject + 1), range(last, last + 1), self.layers)

    def method(self) -> tuple[Method, str]:
        """Return the form of W, and why, if there was a choice."""
        run = self.run
        return choose_method(run.lm, self.trial, self.layers, self.ranks()[-1], run.measures, run.fitting.method)

    @cached_property
    def _operators(self) -> dict[Layer, MatrixFree]:
        """W at each layer if it is matrix-free; nothing if it is dense."""
        lm, fitting = self.run.lm, self.run.fitting
        method, why = self.method()
        operators: dict[Layer, MatrixFree] = {}
        if method == "matrix_free":
            runs, rule = prompts_to_run(lm, self.train_prompts), fitting.backward
            try:
                product = forward_product(runs, rule)
            except LREError as error:
                if fitting.method != "auto":
                    raise
                method, why = "dense", str(error)
            else:
                operators = {
                    layer: MatrixFree(runs, layer, product, self.run.processes, backward=rule) for layer in self.layers
                }
        if why:
            self._log(f"W is {method.replace('_', '-')}: {why}")
        return operators

    def _log(self, text: str) -> None:
        if self.run.processes.first:
            LOGGER.info("%s, trial %d: %s", self.trial.relation.name, self.trial.number, text)

    def estimate(self) -> None:
        """Add up the Jacobians of all processes, unless W is matrix-free, and make an LRE at each layer."""
        means: Iterable[tuple[Layer, Tensor | Operator, Tensor]]
        if self._operators:
            means = ((layer, operator, operator.bias()) for layer, operator in self._operators.items())
        else:
            self._estimator.add_up(self.run.processes, self.run.lm)
            means = self._estimator.means()
        origin = Origin.of(self.run.lm, self.trial, self.run.data.prompts, self.run.fitting.backward)
        self._lres = {layer: LRE(weight, bias, layer, origin, self.run.beta) for layer, weight, bias in means}

    def metrics(self) -> GridMetrics:
        """Return the metrics of its grid."""
        return grid_metrics(self.layers, self.run.betas, self.ranks())

    def finish(self, metrics: GridMetrics) -> tuple[TrialRecord, LRE | None]:
        """Score the LREs by the metrics of its grid, and choose one.

        Returns:
            The record, and the LRE at the chosen layer if the trial is reported.
        """
        record, said, edited = self._on_grid(self._lres, self.run.betas, self.ranks(), metrics)
        chose = self.choice is None and takes_part(record, self.earlier, self.run.fitting.select_by)
        before, after = ([one for one in self.run.measures if one.before_choice == way] for way in (True, False))
        record = self._measured(record, self._lres, said, edited, before)
        layer, rank = self._choose(record)
        record = replace(record, layer=layer, rank=rank, chose=chose)
        record = self._measured(record, self._lres, said, edited, after)
        lre = replace(self._lres[layer], rank=rank)
        return record, replace(self._with_elements(lre).to("cpu"), lm=None) if record.reported else None

    def _with_elements(self, lre: LRE) -> LRE:
        """Return the LRE with W that can be kept: if it is matrix-free, in all factors that were found."""
        operator = self._operators.get(lre.layer)
        if operator is None:
            return lre
        done = f"{operator.products} products with W at layer {lre.layer}"
        if operator.matrix is not None:
            self._log(f"{done}, whose singular values fall so slowly that all elements were needed")
            return replace(lre, weight=operator.matrix.weight)
        assert operator.accuracy is not None
        exact, left_out = operator.accuracy.residual, operator.accuracy.left_out
        self._log(
            f"{done}; its inverse is exact to {exact:.0e}, and the factors that are kept leave out {left_out:.1%}"
        )
        return replace(lre, weight=operator.factors)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks at which edits are scored."""
        given, width = self.run.ranks or (), self.run.lm.hidden_size
        if self.choice is None:
            return given or check_ranks(default_ranks(width), width)
        return check_ranks([*(given if self.run.fitting.grid == "whole" else ()), self.choice["rank"]], width)

    def _choose(self, record: TrialRecord) -> tuple[Layer, int]:
        if self.choice is not None:
            layer, rank = self.choice["layer"], self.choice["rank"]
        else:
            layer, rank = choose_after(record, self.earlier, self.run.fitting.select_by)
        if self.run.processes.first and not self.earlier:
            name = self.trial.relation.name
            if layer in record.identity_layers:
                LOGGER.warning("%s: " + IDENTITY, name, layer)
            elif record.identity_layers:
                LOGGER.info("%s: layer %s is left out of the choice, as W is the identity", name, self.layers[-1])
            if self.choice is None and self.run.fitting.select_by == "both" and not asks_others([record]):
                LOGGER.info("%s: causality alone chooses, as no other relation asks about its subjects", name)
            if layer == "emb" and self.choice is None and len(self.layers) > 1:
                LOGGER.info("%s: layer emb is chosen, as no other scores as well; its lens may misread others", name)
        return layer, rank


class RescoredTrial(AskedTrial):
    """A trial whose saved LRE is scored again, at its own layer and rank.

    Args:
        run: What the trial has in common with others.
        trial: Its relation and samples.
        lre: The saved LRE; None if the LM knew too few samples to score the trial.
    """

    def __init__(self, run: Run, trial: Trial, lre: LRE | None) -> None:
        self.lre = lre
        if lre is not None:
            lre.check_model(run.lm)
        super().__init__(run, trial, run.layers[-1:] if lre is None else [lre.layer])

    def finish(self, metrics: GridMetrics) -> TrialRecord | None:
        """Score the LRE by the metrics of one point and return the record; None if no process had a test prompt."""
        if self.lre is None or self.record is None or not self.knows_enough:
            return self.record
        lre, rank = self.lre.to(self.run.lm.device), self.lre.edit_rank
        lres = {lre.layer: lre}
        record, said, edited = self._on_grid(lres, (self.record.beta,), (rank,), metrics)
        record = replace(record, layer=lre.layer, rank=rank, backward=lre.origin.backward)
        return self._measured(record, lres, said, edited, self.run.measures)


class SavedTrials:
    """All trials of the data, scored with saved LREs one after another while their test batches arrive.

    Every process scores all trials in the same order, whether it has prompts of them or not.

    Args:
        run: What the trials have in common.
        lres: The saved LREs by trial key.
        metrics: The metrics that score each, at one point.
    """

    def __init__(self, run: Run, lres: Mapping[tuple[str, int], LRE], metrics: GridMetrics) -> None:
        self.run, self.lres, self.metrics = run, lres, metrics
        self._batches: list[RelationBatch] = []
        self._next = 0  # the index of the trial that they belong to

    def test(self, batch: RelationBatch) -> Iterator[TrialRecord]:
        """Take a batch of test prompts; yield the records of the trials before the one that it belongs to."""
        yield from self._before(self.run.data.schedule.index((int(batch.relation[0]), int(batch.trial[0]))))
        self._batches.append(batch)

    def finish(self) -> Iterator[TrialRecord]:
        """Yield the records of the trials that are left."""
        yield from self._before(len(self.run.data.schedule))

    def _before(self, index: int) -> Iterator[TrialRecord]:
        """Score the trials that are left before an index in the schedule, and yield their records."""
        for place in range(self._next, index):
            drawn = self.run.data.trial(place)
            trial = RescoredTrial(self.run, drawn, self.lres.get((drawn.relation.name, drawn.number)))
            trial.ask(self._batches)
            self._batches, self._next = [], place + 1
            record = trial.finish(self.metrics)
            if record is not None:
                yield record
