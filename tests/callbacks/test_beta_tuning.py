"""Beta tuning: what is chosen from counts, and where the choice goes."""

import pickle
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from lre_lightning.callbacks import BetaTuning, RelationLog, ResultsTable
from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.records.files import read_records
from lre_lightning.training.module import LREModule
from tests.callbacks.test_loggers import events_of
from tests.callbacks.test_progress import Other, lines_of
from tests.helpers.records import small_record, unscored_record
from tests.helpers.toy import write_toy_model, write_toy_relations
from tests.training.test_module import data_of, trainer_of


def record(relation, faithful, causal, trial=0):
    """A record on one layer and rank, out of 100."""
    grid = {"layers": (0,), "betas": (0.0, 1.0, 2.0), "ranks": (4,), "layer": 0, "beta": 1.0, "rank": 4}
    counts = {"faithful": (tuple(faithful),), "causal": ((causal,),), "tested": 100, "known": 100, "edited": 100}
    return small_record(trial, relation, **grid, **counts)


def relations():
    """At beta 1 the two scores agree best, at beta 2 faithfulness is highest, and relation d is best at 0."""
    rows = {"a": ((5, 20, 95), 25), "b": ((50, 50, 60), 52), "c": ((10, 80, 90), 84), "d": ((90, 10, 30), 12)}
    return [record(name, *counts, trial=trial) for name, counts in rows.items() for trial in (0, 1)]


FEW = [r for r in relations() if r.relation in "ab"]


def agreeing(count=24, noise=0):
    """As many relations whose scores agree best at beta 1 of 0, 1 and 2, or with `noise` at none."""
    random = np.random.default_rng(0)
    found = []
    for i in range(count):
        causal = int(random.integers(10, 90))
        near = int(np.clip(causal + random.integers(-3, 4), 0, 100)) if not noise else int(random.integers(10, 90))
        found.append(record(f"r{i}", (int(random.integers(5, 95)), near, int(random.integers(70, 100))), causal))
    return found


def test_a_beta_is_chosen_by_correlation_if_the_relations_can_tell():
    records = agreeing()
    beta, why = BetaTuning().choose(records)
    assert beta == 1
    assert why.startswith("beta 1 has the best correlation of faithfulness and causality over 24 relations, R = 1.00 [")
    assert why.endswith("; no other is as good")


@pytest.mark.parametrize(
    ("records", "count", "doubt"),
    [
        (relations(), 4, "fewer than 10 relations, or scores that do not vary"),
        (FEW, 2, "fewer than 10 relations, or scores that do not vary"),
        (agreeing(noise=1), 24, "no beta's correlation differs from the best one's, at "),
    ],
)
def test_where_they_cannot_tell_the_most_faithful_beta_is_named_with_those_as_good(records, count, doubt):
    beta, why = BetaTuning().choose(records)
    assert beta == 2
    assert why.startswith(f"beta 2 has the best mean faithfulness over {count} relations, 0.")
    assert f"the relations cannot tell which beta agrees best with causality: {doubt}" in why
    assert ("as good: 0 to 2" in why) == (count < 5)
    assert BetaTuning("faithfulness").choose(records)[1] == why.partition("; the relations cannot")[0]


def test_there_is_nothing_to_choose_without_scores_or_with_one_beta_or_one_relation():
    assert BetaTuning().choose([record("a", (7, 8, 9), 1)]) == (None, "")
    assert BetaTuning().choose([unscored_record()]) == (None, "")
    assert BetaTuning().choose([replace(record("a", (7,), 1), betas=(1.0,))]) == (None, "")
    with pytest.raises(LREError, match="criterion must be 'correlation' or 'faithfulness', got 'luck'"):
        BetaTuning("luck")


# A fit of the toy, whose LREs are faithful at beta 1 and not at 0.

GRID = {"betas": [0.0, 1.0], "ranks": [16], "beta": 0.0}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("toy")
    return str(write_toy_model(root / "model")), str(write_toy_relations(root / "relations"))


@pytest.fixture(scope="module")
def tuned(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("tuned")
    module = LREModule(folders[0], **GRID)
    checkpoint = ModelCheckpoint(root / "checkpoints", filename="last", enable_version_counter=False)
    callbacks = [BetaTuning("faithfulness", apply=True), ResultsTable(), RelationLog(), checkpoint]
    logger = TensorBoardLogger(root, name="", version="tb")
    trainer = trainer_of(root, callbacks, logger=logger, enable_checkpointing=True)
    trainer.fit(module, datamodule=data_of(folders))
    return module, root


def test_the_choice_goes_into_records_table_and_files(tuned):
    module, root = tuned
    scored = [record for record in module.records.values() if record.scored]
    assert len(scored) == 4
    assert {(record.beta, record.chosen_scores) for record in scored} == {(1.0, (1.0, 1.0))}
    assert read_records([root]) == list(module.records.values())
    files = list((root / "lres").rglob("*.safetensors"))
    assert [LRE.load(path).beta for path in files] == [1.0] * 4


def test_validation_of_the_checkpoint_uses_it_unless_another_beta_is_given(tuned, folders, tmp_path):
    _, root = tuned
    for options, beta, faithfulness in (({}, 1.0, 1.0), ({"beta": 0.01}, 0.01, 1.0)):
        again = LREModule(folders[0], **GRID | options)
        trainer_of(tmp_path).validate(again, data_of(folders), root / "checkpoints" / "last.ckpt", weights_only=True)
        scored = [record for record in again.records.values() if record.scored]
        assert {(record.beta, record.chosen_scores[0]) for record in scored} == {(beta, faithfulness)}


def test_a_finished_fit_that_is_resumed_keeps_it_or_chooses_if_nothing_was_chosen(tuned, folders, tmp_path):
    module, root = tuned
    path = root / "checkpoints" / "last.ckpt"
    again = LREModule(folders[0], **GRID)
    trainer = trainer_of(tmp_path)
    trainer.fit(again, datamodule=data_of(folders), ckpt_path=path, weights_only=True)
    assert again.records == module.records
    again.set_beta(0.0)
    trainer.save_checkpoint(tmp_path / "killed.ckpt")  # as if the fit had been killed before the choice
    chosen = LREModule(folders[0], **GRID)
    resumed = trainer_of(tmp_path, [BetaTuning("faithfulness", apply=True)])
    resumed.fit(chosen, datamodule=data_of(folders), ckpt_path=tmp_path / "killed.ckpt", weights_only=True)
    assert {record.beta for record in chosen.records.values() if record.scored} == {1.0}
    assert {lre.beta for lre in chosen.lres.values()} == {1.0}


def test_the_choice_is_said_and_the_curve_is_in_tensorboard(tuned):
    module, root = tuned
    said = "beta 1 has the best mean faithfulness over 2 relations, 1.00 ± 0.00; as good: 0 to 1; applied"
    assert lines_of(root)[-2] == said
    events = events_of(root / "tb")
    assert "beta_tuning/curve" in events.Tags()["images"]
    assert events.Tensors("beta_tuning/text_summary")[0].tensor_proto.string_val[0].decode() == said
    scored = [record for record in module.records.values() if record.scored]
    expected = {0: np.mean([record.faithfulness(record.layer, 0.0) for record in scored]), 100: 1.0}
    found = {event.step: event.value for event in events.Scalars("by 100 beta/faithfulness")}
    assert found == pytest.approx(expected)
    assert [event.value for event in events.Scalars("by 100 beta/causality")] == [1.0, 1.0]


def test_a_beta_off_the_grid_is_refused(tuned):
    module, _ = tuned
    with pytest.raises(LREError, match=r"beta 3.0 is not on the grid of 'half colour', which has \(0.0, 1.0\)"):
        module.set_beta(3.0)


# Other modules.


def tune(root, callback, records):
    """Tune beta in someone's own module, which trains and has records, and return the betas that were applied."""
    module, applied = Other(), []
    module.records = {(record.relation, record.trial): record for record in records}
    module.set_beta = applied.append
    trainer_of(root, [callback], max_epochs=1, limit_train_batches=1, limit_val_batches=0).fit(module)
    return applied


def test_the_best_beta_is_named_and_applied_on_demand_alone_and_its_state_is_saved(tmp_path, capsys):
    for apply, said in ((False, "not applied"), (True, "applied")):
        callback = BetaTuning(apply=apply)
        assert tune(tmp_path, callback, agreeing()) == [1.0] * apply
        assert re.search(rf"beta 1 has the best correlation .*, R = 1.00 .*; {said}\n", capsys.readouterr().out)
        again = pickle.loads(pickle.dumps(BetaTuning()))
        again.load_state_dict(callback.state_dict())
        assert again.beta == callback.beta == 1.0


def test_trials_that_only_choose_layer_and_rank_choose_beta_alone(tmp_path):
    given = [record(r.relation, (99, 0, 0), 1, 1) if r.trial else replace(r, reported=False) for r in relations()]
    assert tune(tmp_path, BetaTuning("faithfulness", apply=True), given) == [2.0]


@pytest.mark.parametrize("seen", [True, False])
def test_every_process_saves_the_checkpoint_that_the_first_one_sees(tmp_path, seen):
    """On another node, without a shared disk, the file is not there; saving it waits for all processes."""
    checkpoint, saved = ModelCheckpoint(tmp_path), []
    checkpoint.last_model_path = str(tmp_path / "last.ckpt")
    if not seen:
        (tmp_path / "last.ckpt").touch()  # on this node alone
    answers = iter([None, seen])  # of the first process: no error, and whether it sees the file
    strategy = SimpleNamespace(broadcast=lambda own: next(answers))
    trainer = SimpleNamespace(strategy=strategy, checkpoint_callbacks=[checkpoint], save_checkpoint=saved.append)
    BetaTuning(apply=True)._apply(trainer, SimpleNamespace(set_beta=lambda beta: None), 2.0)
    assert saved == [checkpoint.last_model_path] * seen
