"""LREs as files of their own, for use without a Trainer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override


class LREFiles(Callback):
    """Writes every LRE that a fit keeps to ``<dirpath>/<relation>/trial<k>.safetensors``.

    Read one back with `lre_lightning.LRE.load`. Works with any LightningModule that has `bank`, an
    `lre_lightning.bank.LREBank`.

    Args:
        dirpath: Folder for the files; ``<default_root_dir>/lres`` if None.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self._saved: set[tuple[str, int]] = set()

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._saved = set()

    @override
    @rank_zero_only
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module: Any = pl_module
        folder = Path(self.dirpath) if self.dirpath else Path(trainer.default_root_dir) / "lres"
        for relation, trial in module.bank.lres.keys() - self._saved:
            module.bank.lres[relation, trial].save(folder / file_name(relation) / f"trial{trial}.safetensors")
            self._saved.add((relation, trial))


def file_name(relation: str) -> str:
    """A relation's name as a file name: letters, digits, ``-`` and ``_`` stay, runs of anything else become ``_``."""
    return re.sub(r"[^\w-]+", "_", relation).strip("_") or "relation"
