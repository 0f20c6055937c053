"""One line per relation, in a log for people."""

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

from lre_lightning.callbacks.needs import require_trials
from lre_lightning.callbacks.progress import FitProgress
from lre_lightning.errors import first_line
from lre_lightning.prompts.prompt import start_text
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import summarize
from lre_lightning.runs.times import duration
from lre_lightning.storage.plain import printable

LOGGER = logging.getLogger("lre_lightning")


class RelationLog(Callback):
    """Write a line when a fit begins, when the time that it takes is known, after each relation, and at the end.

    The lines go to the Python logger ``lre_lightning`` at level INFO, and with the time of day to
    ``<dirpath>/fit.log``, which a resumed fit continues. A relation's line says how many trials were scored, how many
    test samples the LM knows, the layer, beta and rank of the table of results with the mean faithfulness and causality
    there, how long the relation took, and how long the rest of the fit will take, as
    `lre_lightning.callbacks.progress.FitProgress` estimates it. On several devices rank zero writes.

    Works with any LightningModule that has `records`, a mapping whose values are `TrialRecord`, and any datamodule that
    has `schedule`, a list of (relation index, trial), and `relations`.

    Args:
        dirpath: Folder for the file; the trainer's `default_root_dir` if None.
    """

    def __init__(self, dirpath: str | None = None) -> None:
        self.dirpath = dirpath
        self._progress: FitProgress | None = None  # None outside a fit, and in other processes

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            require_trials(self, trainer, pl_module)

    @override
    @rank_zero_only
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._progress = progress = FitProgress.of(trainer)
        assert progress is not None  # since setup
        lm = getattr(getattr(pl_module, "lm", None), "name", type(pl_module).__name__)
        trials, each = len(progress.schedule), len({trial for _, trial in progress.schedule})
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        start = f", {start_text(data)}" if hasattr(data, "prompts") else ""
        sizes = f"relations {len(progress.relations)}, trials {trials} ({each} per relation)"
        devices = f"devices {trainer.world_size} x {trainer.strategy.root_device.type}"
        resumed = f", resumed at trial {progress.first + 1} of {trials}" if progress.first else ""
        self.write(trainer, f"fit of {lm!r}: {sizes}, {devices}{start}{resumed}")

    @override
    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if self._progress and self._progress.expect(pl_module):
            left = self._progress.left()
            assert left is not None
            self.write(trainer, f"expected: {duration(left)} from here on")

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        if self._progress:
            relation = self._progress.finish_trial()
            if relation is not None:
                self.write(trainer, relation_line(self._progress, relation, list(pl_module.records.values())))

    @override
    @rank_zero_only
    def on_fit_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        progress = self._progress or FitProgress.of(trainer)  # the latter if no epoch was left
        assert progress is not None
        scored = sum(summary.trials > 0 for summary in summarize(list(pl_module.records.values())))
        trials = f"trials {progress.done} of {len(progress.schedule)}"
        relations = f"scored {scored} of {len(progress.relations)} relations"
        self.write(trainer, f"fit ended after {duration(progress.elapsed)}: {trials}, {relations}")
        self._progress = None

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if self._progress:
            why = type(exception).__name__
            if str(exception).strip():
                why += f": {printable(first_line(exception))}"
            after, place = duration(self._progress.elapsed), self._progress.name
            self.write(trainer, f"fit stopped after {after} at {place}: {why}")
            self._progress = None

    def write(self, trainer: L.Trainer, line: str) -> None:
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
    """Return the line of a relation, given by its index, after its last trial: its results, and the time it took."""
    name, times, left = progress.relations[relation], progress.times_of(relation), progress.left()
    own = [record for record in records if record.relation == name]
    trials = sum(index == relation for index, _ in progress.schedule)
    parts = [f"scored {sum(record.scored for record in own)} of {trials} trials"]
    for summary in summarize(own):
        parts.append(f"known {summary.known_of}")
        if summary.beta is not None:
            parts += [f"layer {summary.layer}", f"beta {summary.beta:g}", f"rank {summary.rank}"]
            for score, spread in (("faithfulness", summary.faithfulness), ("causality", summary.causality)):
                parts.append(f"{score} {'-' if spread is None else f'{spread[0]:.2f}'}")
    parts.append(f"took {duration(sum(times))}" + (f" for {len(times)} of its trials" if len(times) < trials else ""))
    parts.append(f"left {'?' if left is None else duration(left)}")
    return f"relation {relation + 1} of {len(progress.relations)}, {name!r}: {', '.join(parts)}"


class _Console(logging.Handler):
    """Write lines to standard error, whatever stream that is at the time, each in one piece."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(f"{time_of_day(record.created)} {record.getMessage()}\n")
        except Exception:
            self.handleError(record)


CONSOLE = _Console()


def log_to_console(wanted: bool) -> None:
    """Start or stop showing the log's lines, with the time of day, on standard error."""
    if wanted:
        LOGGER.setLevel(logging.INFO)
        LOGGER.addHandler(CONSOLE)
    else:
        LOGGER.removeHandler(CONSOLE)


def time_of_day(seconds: float) -> str:
    """Return a time since the epoch as ISO 8601, local and with its offset."""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
