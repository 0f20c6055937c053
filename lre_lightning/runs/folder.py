"""The folder of a fit: locked, tested before the work starts, and resumable from the beginning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from typing_extensions import override

from lre_lightning.runs.checkpoints import TRIALS_KEY
from lre_lightning.runs.processes import on_rank_zero
from lre_lightning.storage.files import check_writable, remove_part
from lre_lightning.storage.locks import FolderLock


class RunFolder(Callback):
    """A callback that keeps a fit's folder in order.

    - While the fit runs, no other fit can run in the same `default_root_dir`.
    - Every folder that the fit will write to is tested before the LM does any work.
    - If a `ModelCheckpoint` keeps rewriting a file ``last.ckpt``, the first one is written when training starts.
    - A checkpoint saved in the middle of a trial resumes at that trial's beginning, since checkpoints do not hold sums
      of Jacobians.

    Args:
        begin: Called in the first process before the fit; if it fails, the fit fails in all processes.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self.begin = begin
        self._lock: FolderLock | None = None
        self._between_trials: dict[str, Any] = {}

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Lock the folder; if another fit has locked it, this is an `LREError` in every process."""

        def take() -> None:
            if self.begin is not None:
                self.begin()
            self._lock = FolderLock(Path(trainer.default_root_dir))
            self._lock.acquire()
            for last in _rewritten(trainer):
                remove_part(last)  # a fit that was killed after its last trial writes no other

        if stage == "fit":
            on_rank_zero(trainer, take)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Test the folders that the fit will write to: the Trainer's, the LREs', and those of callbacks."""
        store = getattr(getattr(pl_module, "bank", None), "lres", None)
        given = [trainer.default_root_dir, getattr(store, "folder", None)]
        given += [getattr(callback, "dirpath", None) for callback in trainer.callbacks]  # type: ignore[attr-defined]
        for folder in dict.fromkeys(map(str, filter(None, given))):
            if "://" not in folder:
                on_rank_zero(trainer, partial(check_writable, Path(folder)))

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the first checkpoint, of no trial or of those that the resumed fit has finished."""
        self._between_trials = trainer.fit_loop.state_dict()
        resumed = trainer.ckpt_path and Path(trainer.ckpt_path).resolve()
        for last in _rewritten(trainer):
            if resumed != last.resolve():
                trainer.save_checkpoint(last)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._between_trials = trainer.fit_loop.state_dict()

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        schedule = getattr(getattr(trainer, "datamodule", None), "schedule", None)
        if schedule is not None:
            checkpoint[TRIALS_KEY] = len(schedule)
        progress: Any = trainer.fit_loop.epoch_progress.current
        if progress.ready != progress.processed and self._between_trials:
            checkpoint["loops"]["fit_loop"] = self._between_trials

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.teardown(trainer, pl_module, "fit")


def _rewritten(trainer: L.Trainer) -> Iterator[Path]:
    """Yield the files ``last.ckpt`` that callbacks keep rewriting."""
    for callback in trainer.checkpoint_callbacks:
        if not isinstance(callback, ModelCheckpoint) or not callback.dirpath or "://" in str(callback.dirpath):
            continue
        always = callback.filename == ModelCheckpoint.CHECKPOINT_NAME_LAST or callback.save_last is True
        if always and not getattr(callback, "_enable_version_counter", True):
            yield Path(callback.dirpath) / "last.ckpt"
