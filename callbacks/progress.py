"""The progress of a fit: an estimate of the time left, and the progress bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean
from time import monotonic
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from typing_extensions import Self, override

from lre_lightning.runs.times import duration
from lre_lightning.storage.plain import printable


class FitProgress:
    """The place of a fit in its schedule of trials, or of batches, and an estimate of the time left.

    The estimate is the mean time per trial, times the trials left, less the time that the current one has taken so far.
    The mean is over the trials that this process has finished, scored or not, each with all that came with it, such as
    its checkpoint. In the first trial that is scored it is what the module expects, if it does, as
    `lre_lightning.LREModule` does from a few prompts; else there is none before the first one is finished.

    The schedule has the relation, as its index in `relations`, and the number of every trial; there are no relations if
    it is one of batches. The fit begins with trial `first`, which is not 0 if it is resumed, and ends before `stop`, or
    after the last one. `done` counts the finished trials, and `times` are the seconds that those since `first` took.

    >>> progress = FitProgress(["country capital city"], [(0, 0), (0, 1), (0, 2)], first=1)
    >>> progress.name, progress.left()
    ('2/3 country capital city, trial 1', None)
    """

    def __init__(
        self, relations: Sequence[str], schedule: Sequence[tuple[int, int]], first: int = 0, stop: int | None = None
    ) -> None:
        self.relations, self.schedule = list(relations), list(schedule)
        self.first = self.done = min(first, len(self.schedule))
        self.stop = len(self.schedule) if stop is None else min(stop, len(self.schedule))
        self.times: list[float] = []
        self._expected: tuple[int, float] | None = None  # the trial, and the time of the clock when the fit ends
        self._since = monotonic()

    @classmethod
    def of(cls, trainer: L.Trainer) -> Self | None:
        """Return a fit from its current epoch on; None if its datamodule has no `schedule`."""
        data: Any = getattr(trainer, "datamodule", None)
        schedule, relations = getattr(data, "schedule", None), getattr(data, "relations", ())
        if schedule is None:
            return None
        stop = None if trainer.max_epochs in (None, -1) else trainer.max_epochs
        return cls([relation.name for relation in relations], schedule, trainer.current_epoch, stop)

    @property
    def name(self) -> str:
        """The current trial, as its place with its relation and number; after the end the number of finished trials."""
        if self.done >= self.stop or not self.relations:
            return f"{self.done}/{len(self.schedule)} {'trials' if self.relations else 'batches'}"
        relation, trial = self.schedule[self.done]
        return f"{self.done + 1}/{len(self.schedule)} {printable(self.relations[relation])}, trial {trial}"

    def finish_trial(self) -> int | None:
        """Count the current trial as finished; return the index of its relation if this was the relation's last one."""
        if self.done == len(self.schedule):
            return None
        now = monotonic()
        self.times.append(now - self._since)
        self._since = now
        relation, _ = self.schedule[self.done]
        self.done += 1
        return None if any(other == relation for other, _ in self.schedule[self.done :]) else relation

    def expect(self, pl_module: L.LightningModule) -> bool:
        """Ask the module how long the fit takes, if it has `expect`; return whether this is new."""
        ask = getattr(pl_module, "expect", None)
        seconds = ask() if ask is not None and self._expected is None else None
        if seconds is None:
            return False
        self._expected = self.done, monotonic() + seconds
        return True

    @property
    def elapsed(self) -> float:
        """Seconds since the first trial of this process began."""
        return sum(self.times) + monotonic() - self._since

    def times_of(self, relation: int) -> list[float]:
        """Return the seconds that each trial of a relation, given by its index, has taken in this process."""
        finished = zip(self.times, self.schedule[self.first : self.done], strict=True)
        return [seconds for seconds, (other, _) in finished if other == relation]

    def left(self) -> float | None:
        """Return the seconds that the rest of the fit will take; None if that is not known yet."""
        rest = self.stop - self.done
        if self._expected is not None and self._expected[0] == self.done:
            return max(0.0, self._expected[1] - monotonic())
        if not self.times:
            return None
        mean = fmean(self.times)
        return mean * rest - min(mean, monotonic() - self._since) if rest > 0 else 0.0


class RelationProgressBar(TQDMProgressBar):
    """Lightning's progress bar over the trials of a fit, with the relation, the trial and the time left.

    The estimate is that of `FitProgress`. There is a bar in a terminal or a notebook alone, since it would fill a file;
    `RelationLog` is for those. Works with any datamodule that has `schedule`, a list of (relation index, trial), and
    `relations`, or `schedule` alone for batches; with others it is Lightning's own.
    """

    BAR_OF_FIT = "{l_bar}{bar}| [{elapsed}{postfix}]"

    _progress: FitProgress | None = None
    _now = ""

    @property
    @override
    def is_enabled(self) -> bool:
        return super().is_enabled and (sys.stdout.isatty() or "ipykernel" in sys.modules)

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._progress = FitProgress.of(trainer)
        if self._progress:
            self.train_progress_bar.bar_format = self.BAR_OF_FIT
            self.train_progress_bar.reset(total=len(self._progress.schedule))

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._show(trainer, pl_module, "estimating"):
            super().on_train_epoch_start(trainer, pl_module)

    @override
    def on_train_batch_start(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if self._progress and not self.is_disabled:
            self._progress.expect(pl_module)
            self._show(trainer, pl_module, self._now)

    @override
    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if not self._show(trainer, pl_module, self._now):
            super().on_train_batch_end(trainer, pl_module, *args)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._show(trainer, pl_module, "scoring")
        super().on_validation_start(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._progress:
            self._progress.finish_trial()
        if not self._show(trainer, pl_module, ""):
            super().on_train_epoch_end(trainer, pl_module)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """End the bar's line, so that what is printed next starts on its own."""
        for bar in (self._val_progress_bar, self._train_progress_bar):
            if bar is not None:
                bar.close()

    @override
    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        left = self._progress and self._progress.left()
        own = {"left": duration(left) if left else "", "now": self._now}
        return {name: text for name, text in own.items() if text} | metrics

    def _show(self, trainer: L.Trainer, pl_module: L.LightningModule, now: str) -> bool:
        """Show the fit with what it does now; return whether there is one to show."""
        if not self._progress:
            return False
        self._now = now
        self.train_progress_bar.n = self._progress.done
        self.train_progress_bar.set_description(self._progress.name, refresh=False)
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))
        return True
