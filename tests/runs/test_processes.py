"""The processes of a run: errors that they share, strategies, and runs of two that are stopped."""

import os
import shlex
import sys
import time

import lightning as L
import psutil
import pytest
import torch
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from lre_lightning.errors import LREError
from lre_lightning.records.files import read_records
from lre_lightning.runs.checkpoints import finished_trials
from lre_lightning.runs.processes import Processes, check_strategy, without_wrapper
from lre_lightning.storage.locks import FolderLock
from tests.helpers.launcher import CLI

TWO = """
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from lre_lightning.runs.checkpoints import LRETrainer, WholeCheckpointIO
from lre_lightning.runs.processes import on_rank_zero


class Writes(Callback):
    def on_train_start(self, trainer, module):
        for write in (lambda: trainer.save_checkpoint("folder"), lambda: on_rank_zero(trainer, lambda: 1 / 0)):
            try:
                write()
            except Exception as error:
                with Path(f"process{trainer.global_rank}.txt").open("a") as file:
                    file.write(f"{type(error).__name__}: {error}\\n")


Path("folder").mkdir()
options = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
LRETrainer(
    accelerator="cpu", devices=2, strategy="ddp_fork", callbacks=[Writes()], plugins=[WholeCheckpointIO()], max_steps=2,
    limit_val_batches=0, **options
).fit(BoringModel())
"""


def test_an_error_of_the_first_process_is_raised_in_all(launch, tmp_path):
    ended = launch(tmp_path, code=TWO)
    assert ended.status == 0, ended.error
    message = "'folder' cannot be written: Is a directory; a folder is where the file should be"
    written, divided = (tmp_path / "process0.txt").read_text().splitlines()
    assert written.startswith(f"NotWritten: {message}")
    assert divided == "ZeroDivisionError: division by zero"
    written, divided = (tmp_path / "process1.txt").read_text().splitlines()
    assert written.startswith(f"RankZeroError: {message}")
    assert divided == "RankZeroError: division by zero"


def test_an_error_of_processes_that_lightning_forks_is_one_line(launch, tmp_path):
    lock = FolderLock(tmp_path / "run")
    lock.acquire()
    devices = ["--trainer.devices=2", "--trainer.strategy=ddp_fork"]
    ended = launch(tmp_path, *devices, environment={"OMPI_COMM_WORLD_RANK": "0"})  # so that only the fit finds it
    lock.release()
    assert ended.status == 2, ended.error
    assert "Traceback" not in ended.error
    (line,) = (line for line in ended.error.splitlines() if line.startswith("error: "))
    assert f"is in use by process {os.getpid()} on" in line


@pytest.mark.slow
def test_two_processes_are_stopped_and_resumed(launch, whole, tmp_path):
    """Lightning starts the second process with the command; one process finishes the fit."""
    options = ["--trainer.devices=2", "--trainer.strategy=ddp", "--data.loader.batch_size=1"]
    records = tmp_path / "run" / "fit_results.jsonl"
    pid = launch.start(tmp_path, *options, script=CLI)
    process = psutil.Process(pid)
    while not records.is_file() or not records.read_text():
        assert process.status() != psutil.STATUS_ZOMBIE, (tmp_path / "error.txt").read_text()
        time.sleep(0.02)
    others = process.children()
    assert len(others) == 1
    process.terminate()
    ended = launch.wait(pid)
    psutil.wait_procs(others, timeout=100)
    assert not any(other.is_running() for other in others)
    assert ended.status == 143
    finished = finished_trials(tmp_path / "run" / "checkpoints" / "last.ckpt")[0]
    typed = [sys.executable, CLI, *launch.fit(tmp_path, *options), "--ckpt_path", "last"]
    (line,) = (line for line in ended.error.splitlines() if line.startswith("stopped; resume with: "))
    assert shlex.split(line.partition(": ")[2]) == typed
    assert "Traceback" not in ended.error
    ended = launch(tmp_path, "--ckpt_path=last")
    assert ended.status == 0, ended.error
    assert ended.trials[0] == finished
    assert read_records([tmp_path]) == whole.records


@pytest.mark.parametrize("strategy", [FSDPStrategy(), ModelParallelStrategy()])
def test_strategies_that_shard_the_lm_are_refused(strategy):
    with pytest.raises(LREError, match=f"{type(strategy).__name__} splits the weights of an LM that is trained"):
        check_strategy(strategy)
    check_strategy(DDPStrategy())
    check_strategy(SingleDeviceStrategy("cpu"))


def test_a_strategy_wraps_other_modules_as_before():
    wrapped = []

    class Wrapping(DDPStrategy):
        def configure_ddp(self):
            wrapped.append(self.lightning_module)

    ours, theirs = L.LightningModule(), L.LightningModule()
    strategy = Wrapping()
    without_wrapper(strategy, ours)
    strategy.connect(ours)
    strategy.configure_ddp()
    assert wrapped == []
    strategy.connect(theirs)
    strategy.configure_ddp()
    without_wrapper(strategy, ours)  # whose setup fails
    strategy.configure_ddp()
    assert wrapped == [theirs, theirs]


def test_one_process_has_all_rows():
    rows = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(Processes().rows(rows, [0, 1, 2], 3), rows)
    assert Processes().rows(rows, [2, 0, 4], 5).tolist() == [[2, 3], [0, 0], [0, 1], [0, 0], [4, 5]]
