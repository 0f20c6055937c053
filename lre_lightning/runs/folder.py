"""The folder of a fit: taken by one process, tried before the work starts, and resumable from the first moment on."""

from __future__ import annotations

from collections.abc import Callable
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
    """Keeps a fit's folder in order.

    - While the fit runs, no other can run in the same `default_root_dir`.
    - Every folder that the fit will write to is tried before the LM does any work.
    - Where a `ModelCheckpoint` writes a file that is always called ``last.ckpt``, there is one from the beginning on.
    - A checkpoint that is saved in the middle of a pair resumes at that pair's beginning: what was estimated of it is
      not part of a checkpoint.

    Args:
        begin: What else is to be done on rank zero before the fit; if it fails the fit fails on all ranks.
    """

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self.begin = begin
        self._lock: FolderLock | None = None
        self._between_pairs: dict[str, Any] = {}

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Take the folder.

        Raises:
            LREError: On every rank, if another fit has it.
        """
        if stage == "fit":
            on_rank_zero(trainer, lambda: self._take(trainer))

    def _take(self, trainer: L.Trainer) -> None:
        if self.begin is not None:
            self.begin()
        self._lock = FolderLock(Path(trainer.default_root_dir))
        self._lock.acquire()
        for callback in trainer.checkpoint_callbacks:
            last = _last_of(callback)
            if last is not None:
                remove_part(last)  # a fit that was killed after its last pair writes no other

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Try the folders.

        Raises:
            LREError: On every rank, if one cannot be written to.
        """
        for folder in _folders(trainer, pl_module):
            on_rank_zero(trainer, partial(check_writable, folder))

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the first checkpoint, of no pair or of those that the fit was resumed with."""
        self._between_pairs = trainer.fit_loop.state_dict()
        for callback in trainer.checkpoint_callbacks:
            last = _last_of(callback)
            if last is not None and not _same(trainer.ckpt_path, last):
                trainer.save_checkpoint(last)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._between_pairs = trainer.fit_loop.state_dict()

    @override
    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        pairs = getattr(getattr(trainer, "datamodule", None), "schedule", None)
        if pairs is not None:
            checkpoint[TRIALS_KEY] = len(pairs)
        progress: Any = trainer.fit_loop.epoch_progress.current
        if progress.ready != progress.processed and self._between_pairs:
            checkpoint["loops"]["fit_loop"] = self._between_pairs

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._release()

    @override
    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def _folders(trainer: L.Trainer, pl_module: Any) -> list[Path]:
    """Where a fit will write: the Trainer's folder, the LREs', and those of callbacks."""
    store = getattr(getattr(pl_module, "bank", None), "lres", None)
    given = [trainer.default_root_dir, getattr(store, "folder", None)]
    given += [getattr(callback, "dirpath", None) for callback in trainer.callbacks]  # type: ignore[attr-defined]
    return [Path(folder) for folder in dict.fromkeys(map(str, filter(None, given))) if "://" not in folder]


def _last_of(callback: Any) -> Path | None:
    """The file that a callback writes as ``last.ckpt`` again and again; None if it writes no such file."""
    if not isinstance(callback, ModelCheckpoint) or not callback.dirpath or "://" in str(callback.dirpath):
        return None
    always = callback.filename == ModelCheckpoint.CHECKPOINT_NAME_LAST or callback.save_last is True
    numbered = getattr(callback, "_enable_version_counter", True)
    return Path(callback.dirpath) / "last.ckpt" if always and not numbered else None


def _same(path: Any, other: Path) -> bool:
    return path is not None and Path(path).resolve() == other.resolve()
