"""Beta tuning: what is chosen from counts, and where the choice goes."""

import copy
import pickle
import re
import subprocess
import sys
import textwrap
import warnings
from dataclasses import replace

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.demos.boring_classes import BoringModel
from lightning.pytorch.loggers import TensorBoardLogger

from lre_lightning.callbacks import BetaTuning, ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord, read_records
from lre_lightning.training.module import LREModule
from tests.helpers.toy import write_toy_model, write_toy_relations

BETAS = (0.0, 1.0, 2.0)


def record(relation, faithful, causal, trial=0, **changes):
    """A record on one layer and rank, out of 100."""
    return TrialRecord(
        relation,
        "factual",
        trial,
        samples=110,
        range_size=10,
        tested=100,
        known=100,
        layers=(0,),
        betas=BETAS,
        ranks=(4,),
        faithful=(tuple(faithful),),
        causal=((causal,),),
        edited=100,
        layer=0,
        beta=1.0,
        rank=4,
        n_shot=8,
        **changes,
    )


def relations():
    """At beta 1 the two scores agree best, at beta 2 faithfulness is highest, and relation d is best at 0."""
    rows = {"a": ((5, 20, 95), 25), "b": ((50, 50, 60), 52), "c": ((10, 80, 90), 84), "d": ((90, 10, 30), 12)}
    return [record(name, *counts, trial=trial) for name, counts in rows.items() for trial in (0, 1)]


def test_correlation_is_the_papers_criterion():
    records = relations()
    one_trial = records[::2]
    causal = [r.causal[0][0] for r in one_trial]
    correlations = [np.corrcoef([r.faithful[0][i] for r in one_trial], causal)[0, 1] for i in range(3)]
    assert int(np.argmax(correlations)) == 1
    assert BetaTuning().choose(records) == dict.fromkeys("abcd", 1.0)


def test_mean_faithfulness_and_one_beta_a_relation():
    assert BetaTuning("faithfulness").choose(relations()) == dict.fromkeys("abcd", 2.0)
    assert BetaTuning(per_relation=True).choose(relations()) == {"a": 2.0, "b": 2.0, "c": 2.0, "d": 0.0}


def test_too_few_relations_for_a_correlation_are_said_to_be():
    few = [r for r in relations() if r.relation in "ab"]
    with pytest.warns(UserWarning, match="2 relations are too few for a correlation"):
        assert BetaTuning().choose(few) == {"a": 2.0, "b": 2.0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BetaTuning("faithfulness").choose(few) == {"a": 2.0, "b": 2.0}


def test_nothing_is_chosen_where_nothing_was_scored():
    unscored = TrialRecord("ceo", "factual", 0, samples=20, range_size=20, tested=12, known=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert BetaTuning().choose([unscored]) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"criterion": "luck"}, "criterion 'luck' is unknown: use 'correlation' or 'faithfulness'"),
        ({"per_relation": "yes"}, "per_relation 'yes' must be True or False"),
    ],
)
def test_arguments_are_checked(options, message):
    with pytest.raises(LREError, match=message):
        BetaTuning(**options)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("toy")
    return str(write_toy_model(root / "model")), str(write_toy_relations(root / "relations"))


def trainer_of(root, *callbacks, **options):
    plain = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "devices": 1}
    return L.Trainer(
        default_root_dir=root,
        callbacks=list(callbacks),
        max_epochs=-1,
        num_sanity_val_steps=0,
        inference_mode=False,
        reload_dataloaders_every_n_epochs=1,
        **plain | options,
    )


def data_of(folders):
    return RelationDataModule(folders[0], source=folders[1], n_shot=4, trials=2)


GRID = {"betas": [0.0, 1.0], "ranks": [16], "beta": 0.0}  # the toy's LREs are faithful at beta 1 and not at 0


@pytest.fixture(scope="module")
def tuned(folders, tmp_path_factory):
    root = tmp_path_factory.mktemp("tuned")
    module = LREModule(folders[0], **GRID)
    logger = TensorBoardLogger(root, name="", version="tb")
    checkpoint = ModelCheckpoint(root / "checkpoints", filename="last", enable_version_counter=False)
    trainer = trainer_of(root, BetaTuning("faithfulness"), ResultsTable(), checkpoint, logger=logger)
    trainer.fit(module, datamodule=data_of(folders))
    return module, root


def test_the_choice_goes_into_records_table_and_files(tuned, capsys):
    module, root = tuned
    scored = [record for record in module.records.values() if record.scored]
    assert len(scored) == 4
    assert {record.beta for record in scored} == {1.0}
    assert {record.chosen_scores for record in scored} == {(1.0, 1.0)}
    assert read_records([root]) == list(module.records.values())
    for path in (root / "lres").rglob("*.safetensors"):
        assert LRE.load(path).beta == 1.0


def test_validation_of_the_checkpoint_uses_it_and_an_explicit_beta_wins(tuned, folders, tmp_path):
    _, root = tuned
    for options, beta, faithfulness in (({}, 1.0, 1.0), ({"beta": 0.0}, 1.0, 1.0), ({"beta": -1.0}, -1.0, 0.0)):
        again = LREModule(folders[0], **GRID | options)
        trainer_of(tmp_path).validate(again, data_of(folders), root / "checkpoints" / "last.ckpt", weights_only=True)
        scored = [record for record in again.records.values() if record.scored]
        assert len(scored) == 4
        assert {record.beta for record in scored} == {beta}
        assert {record.chosen_scores[0] for record in scored} == {faithfulness}


def test_a_finished_fit_that_is_resumed_keeps_it(tuned, folders, tmp_path):
    module, root = tuned
    again = LREModule(folders[0], **GRID)
    path = root / "checkpoints" / "last.ckpt"
    trainer_of(tmp_path).fit(again, datamodule=data_of(folders), ckpt_path=path, weights_only=True)
    assert again.records == module.records


def test_a_fit_that_is_killed_while_it_writes_the_choice_goes_on(folders, tmp_path):
    module = LREModule(folders[0], **GRID)
    trainer = trainer_of(tmp_path)
    trainer.fit(module, datamodule=data_of(folders))
    trainer.save_checkpoint(tmp_path / "before.ckpt")
    module.set_beta({"thing colour": 1.0})
    again = LREModule(folders[0], **GRID)
    resumed = trainer_of(tmp_path, BetaTuning("faithfulness"))
    resumed.fit(again, datamodule=data_of(folders), ckpt_path=tmp_path / "before.ckpt", weights_only=True)
    assert {record.beta for record in again.records.values() if record.scored} == {1.0}
    assert {lre.beta for lre in again.lres.values()} == {1.0}


def test_the_curve_is_in_tensorboard(tuned):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    module, root = tuned
    events = EventAccumulator(str(root / "tb"))
    events.Reload()
    assert "beta_tuning/curve" in events.Tags()["images"]
    scored = [record for record in module.records.values() if record.scored]
    expected = {0: np.mean([record.faithfulness(record.layer, 0.0) for record in scored]), 100: 1.0}
    found = {event.step: event.value for event in events.Scalars("beta_tuning/faithfulness")}
    assert found == pytest.approx(expected)
    assert [event.value for event in events.Scalars("beta_tuning/causality")] == [1.0, 1.0]


def test_a_beta_off_the_grid_is_refused(tuned):
    module, _ = tuned
    with pytest.raises(LREError, match=r"beta 3.0 is not on the grid of 'half colour', which has \(0.0, 1.0\)"):
        module.set_beta({"half colour": 3.0})


def test_trials_that_choose_layer_and_rank_choose_beta_too(folders, tmp_path):
    module = LREModule(folders[0], **GRID, fitting={"selection_trials": 1})
    seen = []
    callback = BetaTuning("faithfulness")
    choose = callback.choose
    callback.choose = lambda records: seen.extend(records) or choose(records)
    trainer_of(tmp_path, callback).fit(module, datamodule=data_of(folders))
    assert {record.trial for record in seen} == {0}
    assert {record.beta for record in module.records.values() if record.scored} == {1.0}


class Foreign(L.LightningModule):
    """Someone's own module: it trains, and has counts."""

    def __init__(self, records):
        super().__init__()
        self.layer = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
        self.counts = {(record.relation, record.trial): record for record in records}
        self.betas = None

    @property
    def records(self):
        return self.counts

    def set_beta(self, betas):
        self.betas = dict(betas)

    def training_step(self, batch, batch_idx):
        return self.layer(batch[0]).sum()

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(2, 2)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_works_with_a_module_of_ones_own_and_leaves_it_as_found(tmp_path, monkeypatch):
    monkeypatch.setattr(LanguageModel, "forward", lambda *_: pytest.fail("the LM was run"))
    module, callback = Foreign(relations()), BetaTuning()
    trainer = trainer_of(tmp_path, callback, logger=False, enable_checkpointing=False)
    trainer.fit_loop.max_epochs = 1
    trainer.fit(module)
    assert module.betas == dict.fromkeys("abcd", 1.0)
    before = copy.deepcopy(module.state_dict()), torch.get_rng_state(), [m.training for m in module.modules()]
    callback.on_train_end(trainer, module)
    assert torch.equal(torch.get_rng_state(), before[1])
    assert [m.training for m in module.modules()] == before[2]
    assert all(torch.equal(value, before[0][name]) for name, value in module.state_dict().items())
    again = pickle.loads(pickle.dumps(BetaTuning()))
    again.load_state_dict(callback.state_dict())
    assert again.betas == callback.betas == module.betas


def test_a_module_without_records_is_refused(tmp_path):
    with pytest.raises(
        LREError, match=r"BetaTuning needs a module with `records` and `set_beta`, which BoringModel has"
    ):
        trainer_of(tmp_path, BetaTuning(), logger=False).fit(BoringModel())


SCRIPT = """
import sys, torch, lightning as L
from lre_lightning.callbacks import BetaTuning
from tests.callbacks.test_beta_tuning import Foreign, relations, record
torch.set_num_threads(1)
class Ranks(Foreign):
    def setup(self, stage):
        if self.global_rank:  # records that would choose otherwise, as after a rounding of one's own
            self.counts = {(r.relation, r.trial): record(r.relation, (99, 0, 0), 1, r.trial) for r in relations()}
    def on_fit_end(self):
        print(f"rank {self.global_rank}: {sorted(set(self.betas.values()))}", flush=True)
trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_fork", logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[BetaTuning()])
trainer.fit(Ranks(relations()))
"""


@pytest.mark.slow
def test_all_ranks_agree(tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    # Without buffering, two lines that are printed at once may share one.
    assert sorted(re.findall(r"rank \d: \[.*?\]", result.stdout)) == ["rank 0: [1.0]", "rank 1: [1.0]"]


def test_what_is_measured_at_one_beta_is_dropped_with_it():
    from lre_lightning.records.selection import at_point

    measured = replace(relations()[0], faithful_low_rank=(20,), line_integrals=((2.0, 1.0),))
    moved = at_point(measured, 0, 4, 2.0)
    assert (moved.faithful_low_rank, moved.line_integrals) == ((), ((2.0, 1.0),))
    assert at_point(measured, 0, 8, 1.0).faithful_low_rank == (20,)
