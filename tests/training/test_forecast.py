"""The time that a fit takes, said before: its work is counted as a fit does it, and measured on a few prompts."""

from dataclasses import dataclass

import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.lre.operators import Operator
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.runs.processes import ONE_PROCESS
from lre_lightning.scoring import scores
from lre_lightning.scoring.measure import Cost, Measure
from lre_lightning.training import forecast as forecasts
from lre_lightning.training import trial as trial_module
from lre_lightning.training.forecast import Work, measure, work_of
from lre_lightning.training.module import LREModule
from lre_lightning.training.trial import FitTrial
from tests.helpers import toy
from tests.helpers.toy import LAYERS, WIDTH
from tests.training.test_choices import GRID, NAMES, RANKS, fit  # noqa: F401

N = 4


@pytest.fixture
def data(toy_relations):
    return RelationDataModule(toy.toy_tokenizer(), None, toy_relations, n_shot=N, trials=3)


def trial_of(module, data, index):
    """A trial whose first test prompts have been run, and these."""
    data.setup()
    trial = FitTrial(module._run_of(data, ONE_PROCESS), data.trial(index))
    trial.ask([next(iter(data.val_dataloader([index])))])
    return trial, trial.states.prompts


def test_work_is_what_a_fit_computes(fit, monkeypatch):  # noqa: F811
    found = {"swept": 0, "run": 0, "scored": 0, "factorized": 0}
    sweep, run_from, points = trial_module.sweep, LanguageModel.run_from, scores.predict_points
    edits = Operator.edits

    def swept(lm, ids, sources, targets, layers):
        found["swept"] += len(ids) * WIDTH * (ids.shape[1] - sources.start) * lm.num_layers
        return sweep(lm, ids, sources, targets, layers)

    def patched(lm, layer, hidden, *rest):
        found["run"] += hidden.shape[0] * hidden.shape[1] * (LAYERS if layer == "emb" else LAYERS - 1 - layer)
        return run_from(lm, layer, hidden, *rest)

    def scored(lm, output):
        found["scored"] += len(output)
        return points(lm, output)

    def factorized(self, *arguments):
        found["factorized"] += 1
        return edits(self, *arguments)

    monkeypatch.setattr(trial_module, "sweep", swept)
    monkeypatch.setattr(LanguageModel, "run_from", patched)
    monkeypatch.setattr(scores, "predict_points", scored)
    monkeypatch.setattr(Operator, "edits", factorized)
    module, _, data = fit({})
    (record,) = module.records.values()
    patched = found["run"]
    trial, prompts = trial_of(module, data, 0)
    asked = work_of(trial, prompts, N - 1)  # too few to be scored
    context, tokens = prompts[0].subject_position, len(prompts[0].input_ids) - prompts[0].subject_position
    assert asked == Work(run=(context + record.tested * tokens) * LAYERS, decoded=record.tested)
    work = work_of(trial, prompts, record.known)
    found["run"] = patched + asked.run
    assert {name: getattr(work, name) for name in found} == pytest.approx(found)
    assert work.decoded == record.known * (LAYERS + 1) * len(RANKS) + record.tested


def test_options_change_the_work(random_toy, data):
    works = []
    for fitting in (
        {},
        {"max_known": 4},
        {"method": "matrix_free"},
        {"choices": {"thing colour": {"layer": 0, "rank": 2}}},
    ):
        trial, prompts = trial_of(LREModule(random_toy, **GRID, fitting=fitting), data, 3)
        works.append(work_of(trial, prompts, 8))
    asked = work_of(trial, prompts, N - 1)
    plain, fewer, free, chosen = (work._replace(run=work.run - asked.run) for work in works)
    assert (fewer.run, fewer.scored, fewer.swept) == (plain.run / 2, plain.scored / 2, plain.swept)
    assert (free.factorized, free.run) == (0, plain.run)
    assert free.swept != plain.swept
    # One layer of three, with the block above it; above the others are 2, 1 and 0.
    assert (chosen.run, chosen.swept, chosen.factorized) == (plain.run / 3, plain.swept / 2, 1)


def test_measures_say_what_they_add(random_toy, data):
    @dataclass(frozen=True)
    class Costly(Measure):
        name = "costly"

        def measure(self, trial):
            raise NotImplementedError

        def cost(self, known, betas, ranks):
            assert (known, betas, ranks) == (8, len(GRID["betas"]), len(RANKS))
            return Cost(edits=5, decoded=7, at_choice=11)

    def work(*measures):
        trial, prompts = trial_of(LREModule(random_toy, **GRID, measures=list(measures)), data, 3)
        return work_of(trial, prompts, 8), len(prompts[0].input_ids) - prompts[0].subject_position

    (plain, tokens), (more, _) = work(), work(Costly())
    assert more.run == plain.run + tokens * (5 * (2 + 1 + 0) + 11 * 1)
    assert more.decoded == plain.decoded + (5 + 7) * 3 + 11
    assert (more.swept, more.scored, more.factorized) == (plain.swept, plain.scored, plain.factorized)


def test_the_time_of_a_unit_is_measured(random_toy, data, monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(forecasts, "perf_counter", lambda: float(next(ticks)))  # all work takes a second
    trial, prompts = trial_of(LREModule(random_toy, **GRID), data, 3)
    pace, tokens = measure(trial), len(prompts[0].input_ids) - prompts[0].subject_position
    units = Work(
        run=len(prompts) * len(RANKS) * tokens,  # at the layer in the middle, with one block above it
        swept=data.together * WIDTH * tokens * LAYERS,
        decoded=len(prompts) * len(RANKS),
        scored=len(prompts),
        factorized=1,
    )
    assert [count * each for count, each in zip(units, pace, strict=True)] == pytest.approx([1.0] * 5)


def test_a_forecast_adds_up_trials(random_toy, data, monkeypatch):
    measured = []
    monkeypatch.setattr(forecasts, "measure", lambda trial: measured.append(trial) or Work(scored=2.0))
    module = LREModule(random_toy, **GRID)
    data.setup()
    found = module.forecast(data)
    assert [one.relation for one in found.relations] == list(NAMES)
    assert [one.trials for one in found.relations] == [3, 3, 3]
    half, thing, wrong = (round(one.known) for one in found.relations)
    assert (wrong, thing) == (0, found.relations[1].tested)
    assert wrong < N <= half < thing
    assert found.seconds == 3 * 2.0 * (LAYERS + 1) * (half + thing)
    assert module.forecast(data, devices=2).seconds == found.seconds / 2
    assert len(measured) == 2
    *_, last = str(found).splitlines()
    assert last.startswith("expected: ")
    assert last.endswith(" for relations 3, trials 9")
    run = module._run_of(data, ONE_PROCESS)
    one_left = forecasts.forecast(run, 1, 3, 4, trial_of(module, data, 3)[0])
    assert [(one.relation, one.trials, one.counted) for one in one_left.relations] == [("thing colour", 1, False)]
    assert one_left.seconds == 2.0 * (LAYERS + 1) * thing


def test_a_fit_that_measures_repeats_no_sweep_and_has_the_same_records(fit, monkeypatch):  # noqa: F811
    counts, sweep = [], trial_module.sweep
    monkeypatch.setattr(trial_module, "sweep", lambda lm, *rest: counts.append(len(rest[0])) or sweep(lm, *rest))
    monkeypatch.setattr(forecasts, "LONG", 0.0)  # measured once
    plain, *_ = fit({})
    alone, counts[:] = list(counts), []
    monkeypatch.setattr(LREModule, "training_step", asking(LREModule.training_step))
    asked, *_ = fit({})
    assert asked._expected > 0
    assert (counts, asked.records) == (alone, plain.records)
    (one,), (other,) = plain.lres.values(), asked.lres.values()
    assert torch.equal(one.weight, other.weight)


def test_each_test_prompt_is_run_once(fit, monkeypatch):  # noqa: F811
    """Also to find out whether the LM knows enough: of two relations it does."""
    run, states = [], PromptBatch.hidden_states

    def counted(self, *arguments, **options):
        run.append(len(self))
        return states(self, *arguments, **options)

    monkeypatch.setattr(PromptBatch, "hidden_states", counted)
    module, *_ = fit({}, names=None)
    assert run == [record.tested for record in module.records.values()]
    assert sorted(record.scored for record in module.records.values()) == [False, True, True]


def asking(step):
    """A training step before which somebody asks how long the fit takes."""

    def asked(module, batch, index):
        assert module.expect() == module.expect()
        step(module, batch, index)

    return asked


def test_trials_at_the_choice_alone_take_less(random_toy, data, monkeypatch):
    """The first of three trials runs all of its edits, and the others have one layer and rank."""
    monkeypatch.setattr(forecasts, "measure", lambda trial: Work(factorized=1.0))

    def seconds(**options):
        found = LREModule(random_toy, **GRID, fitting=options).forecast(data)
        return found.relations[1].seconds

    data.setup()
    monkeypatch.setattr(forecasts, "work_of", lambda trial, *_: Work(factorized=len(trial.layers) * len(trial.ranks())))
    points = (LAYERS + 1) * len(RANKS)
    assert seconds(grid="choice") == pytest.approx(seconds() * (1 + 2 / points) / 3)
    assert seconds(grid="choice", selection_trials=2) == pytest.approx(seconds() * (2 + 1 / points) / 3)
