"""The table of results in the terminal, and the results as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lre_lightning.results import summarize, write_csv
from lre_lightning.tables import print_results


class ResultsTable(Callback):
    """Prints the table of results at the end of fit and validate, and writes one row a grid point to a CSV file.

    The file is ``<default_root_dir>/fit_results.csv`` or ``validate_results.csv``; its columns are
    `lre_lightning.results.COLUMNS`. A fit that is interrupted writes what it has. Works with any LightningModule that
    has `records`, a mapping whose values are `lre_lightning.results.PairRecord`.

    Args:
        dirpath: Folder for the file; the trainer's `default_root_dir` if None.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._write(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._report(trainer, pl_module)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._report(trainer, pl_module)

    @rank_zero_only
    def _report(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        path = self._write(trainer, pl_module)
        print_results(summarize(_records(pl_module)))
        print(f"Every grid point: {path}")

    def _write(self, trainer: L.Trainer, pl_module: L.LightningModule) -> Path:
        folder = Path(self.dirpath or trainer.default_root_dir)
        path = folder / f"{trainer.state.fn.value if trainer.state.fn else 'fit'}_results.csv"
        if trainer.is_global_zero:
            write_csv(_records(pl_module), path)
        return path


def _records(pl_module: Any) -> list[Any]:
    return list(pl_module.records.values())
