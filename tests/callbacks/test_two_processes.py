"""Callbacks on two processes: one log, one choice of beta, files written once, and errors that both processes get."""

import re
from pathlib import Path
from types import SimpleNamespace

from lightning import LightningDataModule

from lre_lightning.callbacks import AttributeLens
from lre_lightning.errors import LREError
from tests.callbacks.test_attribute_lens import TEXTS, Foreign, check_files, expected, trainer_of  # noqa: F401
from tests.callbacks.test_beta_tuning import record, relations
from tests.callbacks.test_progress import lines_of, stamped

SCRIPT = """
from lre_lightning.callbacks import BetaTuning, RelationLog, ResultsScalars
from lre_lightning.callbacks.log import log_to_console
from tests.callbacks.test_two_processes import TEXTS, Data, Module, PerProcess, trainer_of
log_to_console(True)
lenses = [PerProcess(TEXTS[:1], dirpath=name) for name in ("lenses", "file/deep")]
callbacks = [RelationLog(), BetaTuning(apply=True), ResultsScalars(), *lenses]
trainer = trainer_of(".", callbacks, devices=2, strategy="ddp_fork", max_epochs=4)
trainer.fit(Module(), datamodule=Data())
"""


class PerProcess(AttributeLens):
    """An attribute lens with a folder per process, which writes down its error."""

    def setup(self, trainer, pl_module, stage):
        self.dirpath += str(trainer.global_rank)

    def on_fit_end(self, trainer, pl_module):
        try:
            super().on_fit_end(trainer, pl_module)
        except LREError as error:
            Path(trainer.default_root_dir, f"error{trainer.global_rank}").write_text(str(error))


class Module(Foreign):
    """A module with LREs and records; those of the second process would choose another beta."""

    records = None

    def setup(self, stage):
        rows = relations()[::2]
        if self.global_rank:
            rows = [record(row.relation, (99, 0, 0), 1) for row in rows]
        self.records = {(row.relation, 0): row for row in rows}

    def set_beta(self, beta):
        Path(self.trainer.default_root_dir, f"beta{self.global_rank}").write_text(str(beta))


class Data(LightningDataModule):
    """Data of four relations with one trial each."""

    schedule = ((0, 0), (1, 0), (2, 0), (3, 0))
    relations = [SimpleNamespace(name=name) for name in "abcd"]  # noqa: RUF012

    def train_dataloader(self):
        return Foreign.train_dataloader(self)


def test_two_processes_agree_write_once_and_fail_together(launch, tmp_path):
    (tmp_path / "file").write_text("")
    ended = launch(tmp_path, code=SCRIPT)
    assert ended.status == 0, ended.error
    lines = lines_of(tmp_path)
    assert [line.split(" ")[0] for line in lines] == ["fit", *["relation"] * 4, "beta", "fit"]
    assert "devices 2 x cpu" in lines[0]
    assert stamped(ended.error) == stamped((tmp_path / "fit.log").read_text())
    for process in (0, 1):
        assert (tmp_path / f"beta{process}").read_text() == "2.0"
        message = (tmp_path / f"error{process}").read_text()
        assert re.search("file/deep0.* cannot be written: .*a file is where a folder should be", message)
    check_files(tmp_path / "lenses0", expected(Foreign(), TEXTS[:1]))
    assert not (tmp_path / "lenses1").exists()
