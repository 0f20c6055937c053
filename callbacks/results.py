"""The results of a fit: the table and the files, figures, and curves for every logger."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lre_lightning.callbacks.beta_tuning import BetaTuning
from lre_lightning.callbacks.loggers import CARD_WIDTH, log_final, log_image, log_scalars, log_table
from lre_lightning.callbacks.needs import require, require_trials
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.grid import Layer, place_of
from lre_lightning.records.analysis import SCORES, counted, layers_of, over_relations, per_category
from lre_lightning.records.files import write_records, write_tables
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import csv_columns, summarize, write_csv
from lre_lightning.relations.subjects import subjects_of, write_subjects
from lre_lightning.report.console import print_results
from lre_lightning.report.plotting import narrowed
from lre_lightning.report.relations import plot_relations
from lre_lightning.report.sweeps import plot_layers
from lre_lightning.runs.processes import on_rank_zero
from lre_lightning.storage.files import written_whole


class ResultsTable(Callback):
    """Print and log the table of results at the end of fit and validate, and keep all results in two files.

    ``<default_root_dir>/fit_results.jsonl`` (or ``validate_results``) has every count, for `read_records` and for
    reports; ``fit_results.csv`` has the scores of each relation and trial at the chosen layer, beta and rank, with the
    columns `COLUMNS`. Both grow with every trial of a fit; a resumed fit starts them with what its checkpoint holds.
    ``subjects.json`` has the subjects of a `RelationDataModule`'s relations, which lenses look for in texts.
    Rows of measures that have columns are written at the end, such as ``fit_facts.csv`` and ``fit_facts.parquet``.
    Works with any LightningModule that has `records`, a mapping whose values are `TrialRecord`.

    Args:
        dirpath: Folder for the files; the trainer's `default_root_dir` if None.

    Raises:
        LREError: In setup, if the module lacks `records`; during fit and validate, on every process, if a file cannot
            be written; what was there before stays.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self._written, self._columns = 0, list[str]()

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage in ("fit", "validate"):
            require(self, "module", pl_module, "records")

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._write(trainer, pl_module))
        data = getattr(trainer, "datamodule", None)
        if isinstance(data, RelationDataModule):
            folder, subjects = self._path(trainer, "csv").parent, subjects_of(data.relations)
            on_rank_zero(trainer, lambda: write_subjects(subjects, folder))

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
        columns = csv_columns(records)
        same = append and columns == self._columns
        write_csv(new if same else records, self._path(trainer, "csv"), append=same)
        self._written, self._columns = len(records), columns

    def _finish(self, trainer: L.Trainer, module: Any) -> None:
        self._write(trainer, module)
        write_tables(module.records.values(), self._path(trainer, "csv").parent, _stage(trainer))
        columns = print_results(summarize(list(module.records.values()))).columns
        rows = zip(*(map(str, column.cells) for column in columns), strict=True)
        log_table(trainer, "results", [str(column.header) for column in columns], list(rows))
        print(f"By relation and trial: {self._path(trainer, 'csv')}. Every count: {self._path(trainer, 'jsonl')}.")

    def _path(self, trainer: L.Trainer, ending: str) -> Path:
        return Path(self.dirpath or trainer.default_root_dir) / f"{_stage(trainer)}_results.{ending}"


def _stage(trainer: L.Trainer) -> str:
    return "validate" if trainer.state.fn == "validate" else "fit"


class ResultsFigures(Callback):
    """Plot the results at the end of a fit: per relation, and per layer.

    They go to ``<dirpath>/relations.png`` and ``layers.png``, and to the loggers that take images.
    Works with any LightningModule that has `records`, a mapping whose values are `TrialRecord`.

    Args:
        dirpath: Folder for the files; ``<default_root_dir>/figures`` if None.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            require(self, "module", pl_module, "records")

    @override
    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module: Any = pl_module
        records = list(module.records.values())
        if not counted(records):
            return
        folder = Path(self.dirpath) if self.dirpath else Path(trainer.default_root_dir) / "figures"
        figures = {"relations": plot_relations(records), "layers": plot_layers(records)}
        for name, figure in figures.items():
            with written_whole(folder / f"{name}.png") as part:
                figure.savefig(part, dpi=120, format="png")
            log_image(trainer, f"results/{name}", narrowed(figure, CARD_WIDTH))


class ResultsScalars(Callback):
    """Log the scores of a fit to the Trainer's loggers, each time that a relation has had its last trial.

    - ``faithfulness/<category>`` and ``faithfulness/all relations``, and the same of causality: the mean over the
      relations that are finished; the step is their number.
    - ``faithfulness by layer/<relation>`` and ``causality by layer/<relation>``, at the relation's beta and rank: the
      step is the layer, -1 for the embedding.
    - at the end, ``final/faithfulness``, ``final/causality``, the same of every column that a measure gives tables and,
      from `BetaTuning`, ``final/best beta``. They are the
      run's row under HParams in TensorBoard, provided that its logger was made with ``default_hp_metric=False``.

    A resumed fit logs the relations that it finds finished again, at the same steps. Works with the modules and
    datamodules that `RelationLog` works with.
    """

    def __init__(self) -> None:
        self._logged = 0

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            require_trials(self, trainer, pl_module)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._logged = 0

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._log(trainer, pl_module, trainer.current_epoch + 1))

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._finish(trainer, pl_module))

    def _log(self, trainer: Any, module: Any, trials: int) -> None:
        """Log the relations that are finished after some trials and have not been logged."""
        last = {relation: index for index, (relation, _) in enumerate(trainer.datamodule.schedule)}
        ended = [relation for relation in sorted(last, key=last.__getitem__) if last[relation] < trials]
        names = [trainer.datamodule.relations[relation].name for relation in ended]
        for count in range(self._logged + 1, len(names) + 1):
            records = [record for record in module.records.values() if record.relation in names[:count]]
            means = {
                f"{score}/{category}": mean
                for score, function in SCORES.items()
                for category, (mean, _) in per_category(records, function).items()
            }
            log_scalars(trainer, means, count)
            own = [record for record in records if record.relation == names[count - 1]]
            for layer in layers_of(own):
                log_scalars(trainer, _means(own, "", f" by layer/{names[count - 1]}", layer=layer), place_of(layer))
        self._logged = len(names)

    def _finish(self, trainer: Any, module: Any) -> None:
        self._log(trainer, module, trainer.current_epoch)
        records = list(module.records.values())
        final = _means(records, "final/")
        for name in dict.fromkeys(name for record in records for name in record.columns):
            mean = over_relations(records, partial(_column, name=name))
            if mean is not None:
                final[f"final/{name}"] = mean[0]
        for callback in trainer.callbacks:
            if isinstance(callback, BetaTuning) and callback.beta is not None:
                final["final/best beta"] = callback.beta
        if final:
            log_final(trainer, final, self._logged, {**module.hparams, **getattr(trainer.datamodule, "hparams", {})})


def _column(record: TrialRecord, name: str) -> float:
    return record.columns.get(name, math.nan)


def _means(records: Iterable[TrialRecord], before: str, after: str = "", **point: Layer) -> dict[str, float]:
    """Return the mean scores over relations, at a point of the grid, by their names with something around them."""
    means = {name: over_relations(records, partial(score, **point)) for name, score in SCORES.items()}
    return {f"{before}{name}{after}": mean[0] for name, mean in means.items() if mean is not None}
