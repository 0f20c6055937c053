"""A line a relation, for people who read files."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lre_lightning.callbacks.progress import FitProgress, duration, printable
from lre_lightning.errors import LREError, first_line
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import Spread, summarize
from lre_lightning.training.protocols import HasRecords

LOGGER = logging.getLogger("lre_lightning")


class RelationLog(Callback):
    """Writes a line when a fit begins, when a relation has had its last trial, and when the fit ends or is stopped.

    The lines go to the Python logger ``lre_lightning`` at level INFO, and with the time of day to
    ``<dirpath>/fit.log``, each in one piece; a fit that is resumed adds to that file. A relation's line says how many
    trials were scored, how many test samples the LM knows, the layer, beta and rank of the table of results with the
    mean faithfulness and causality there, how long the relation took, and how long the rest of the fit takes, as
    `lre_lightning.callbacks.progress.FitProgress` estimates it. On several devices rank zero writes.

    Works with any LightningModule that is a `HasRecords`, and any datamodule that has `schedule`,
    a list of (relation index, trial), and `relations`.

    Args:
        dirpath: Folder for the file; the trainer's `default_root_dir` if None.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self._progress: FitProgress | None = None  # None outside a fit, and on other ranks

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if not isinstance(pl_module, HasRecords):
            name = type(pl_module).__name__
            raise LREError(f"RelationLog needs a module with `records` and `set_beta`, which {name} has not")
        if FitProgress.of(trainer) is None:
            raise LREError(
                "RelationLog needs a datamodule with `schedule` and `relations`, such as a RelationDataModule"
            )

    @override
    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._progress = progress = _progress_of(trainer)
        lm = getattr(getattr(pl_module, "lm", None), "name", type(pl_module).__name__)
        trials = len({trial for _, trial in progress.schedule})
        devices = f"{trainer.world_size} x {trainer.strategy.root_device.type}"
        pairs = len(progress.schedule)
        resumed = f", resumed at pair {progress.first + 1} of {pairs}" if progress.first else ""
        sizes = f"relations {len(progress.relations)}, trials {trials}, pairs {pairs}, devices {devices}"
        self._write(trainer, f"fit of {lm!r}: {sizes}{resumed}")

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._progress is not None:
            relation = self._progress.finish_pair()
            if relation is not None:
                self._write(trainer, relation_line(self._progress, relation, _records(pl_module)))

    @override
    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        progress = self._progress or _progress_of(trainer)  # no epoch was left
        scored = sum(summary.trials > 0 for summary in summarize(_records(pl_module)))
        pairs = f"pairs {progress.done} of {len(progress.schedule)}"
        relations = f"scored {scored} of {len(progress.relations)} relations"
        self._write(trainer, f"fit ended after {duration(progress.elapsed)}: {pairs}, {relations}")
        self._progress = None

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if self._progress is not None:
            why = type(exception).__name__
            why += f": {printable(first_line(exception))}" if str(exception).strip() else ""
            after, place = duration(self._progress.elapsed), self._progress.name
            self._write(trainer, f"fit stopped after {after} at {place}: {why}")
            self._progress = None

    def _write(self, trainer: L.Trainer, line: str) -> None:
        """Write a line to the logger and the file; a file that cannot be written does not end the fit."""
        LOGGER.info("%s", line)
        path = Path(self.dirpath or trainer.default_root_dir) / "fit.log"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                file.write(f"{time_of_day(time.time())} {line}\n".encode())
        except OSError as error:
            LOGGER.warning("a line of the log is lost: %s", first_line(error))


def relation_line(progress: FitProgress, relation: int, records: Sequence[TrialRecord]) -> str:
    """What a fit found of a relation, and how long that took.

    Args:
        progress: The fit, after the relation's last pair.
        relation: Index of the relation.
        records: All records so far.
    """
    name, times = progress.relations[relation], progress.times_of(relation)
    own = [record for record in records if record.relation == name]
    trials = sum(index == relation for index, _ in progress.schedule)
    took = duration(sum(times)) + (f" for {len(times)} of its trials" if len(times) < trials else "")
    left = progress.left()
    found = [f"scored {sum(record.scored for record in own)} of {trials} trials"]
    for summary in summarize(own):
        found.append(f"known {summary.known:.1f}".removesuffix(".0"))
        if summary.beta is not None:
            found += [f"layer {summary.layer}", f"beta {summary.beta:g}", f"rank {summary.rank}"]
            found += [f"faithfulness {_mean(summary.faithfulness)}", f"causality {_mean(summary.causality)}"]
    found += [f"took {took}", f"left {'?' if left is None else duration(left)}"]
    return f"relation {relation + 1} of {len(progress.relations)}, {name!r}: {', '.join(found)}"


def log_to_console(wanted: bool) -> None:
    """Show the log's lines on standard error too, with the time of day, or no longer; once for the whole process."""
    if wanted:
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(CONSOLE)
    else:
        LOGGER.removeHandler(CONSOLE)


class Console(logging.Handler):
    """Writes each line in one piece to standard error, whichever that is at the time."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{time_of_day(record.created)} {record.getMessage()}\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


CONSOLE = Console()


def time_of_day(seconds: float) -> str:
    """A time since the epoch as ISO 8601, local and with its offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")


def _progress_of(trainer: L.Trainer) -> FitProgress:
    progress = FitProgress.of(trainer)
    assert progress is not None
    return progress


def _records(pl_module: Any) -> list[TrialRecord]:
    return list(pl_module.records.values())


def _mean(score: Spread | None) -> str:
    return "-" if score is None else f"{score[0]:.2f}"
