"""The table of results in the terminal, and the results as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lre_lightning.callbacks.loggers import log_table
from lre_lightning.records.files import write_records
from lre_lightning.records.summary import summarize, write_csv
from lre_lightning.report.console import print_results, results_table
from lre_lightning.runs.processes import on_rank_zero


class ResultsTable(Callback):
    """Print and log the table of results at the end of fit and validate, and keep all results in two files.

    ``<default_root_dir>/fit_results.jsonl`` (or ``validate_results``) has every count, for `read_records` and for
    reports; ``fit_results.csv`` has the scores of each relation and trial at the chosen layer, beta and rank, with the
    columns `COLUMNS`. Both grow with every trial of a fit; a resumed fit starts them with what its checkpoint holds.
    Works with any LightningModule that has `records`, a mapping whose values are `TrialRecord`.

    Args:
        dirpath: Folder for the files; the trainer's `default_root_dir` if None.

    Raises:
        LREError: During fit and validate, on every process, if a file cannot be written; what was there before stays.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self._written = 0

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._write(trainer, pl_module))

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._write(trainer, pl_module, append=True))

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._finish(trainer, pl_module))  # other callbacks may have tuned beta

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
            on_rank_zero(trainer, lambda: self._finish(trainer, pl_module))

    def _write(self, trainer: L.Trainer, module: Any, append: bool = False) -> None:
        records = list(module.records.values())
        new = records[self._written :] if append else records
        write_records(new, self._path(trainer, "jsonl"), append=append)
        write_csv(new, self._path(trainer, "csv"), append=append)
        self._written = len(records)

    def _finish(self, trainer: L.Trainer, module: Any) -> None:
        self._write(trainer, module)
        summaries = summarize(list(module.records.values()))
        print_results(summaries)
        columns = results_table(summaries).columns
        rows = zip(*(map(str, column.cells) for column in columns), strict=True)
        log_table(trainer, "results", [str(column.header) for column in columns], list(rows))
        print(f"By relation and trial: {self._path(trainer, 'csv')}. Every count: {self._path(trainer, 'jsonl')}.")

    def _path(self, trainer: L.Trainer, ending: str) -> Path:
        name = "validate" if trainer.state.fn == "validate" else "fit"
        return Path(self.dirpath or trainer.default_root_dir) / f"{name}_results.{ending}"
