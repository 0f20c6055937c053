"""How far a fit is and how long the rest of it takes: the estimate, and the progress bar that shows it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from statistics import fmean
from time import monotonic
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from typing_extensions import Self, override

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


class FitProgress:
    """Where a fit is in its (relation, trial) pairs, and how long the rest of it takes.

    The estimate is the mean time of a pair, for each pair that is left, less the time that the present one has already
    taken. The mean is over the pairs that this process has finished, scored or not, each with all that came with it,
    such as its checkpoint. Before the first one is finished there is no estimate.

    Args:
        relations: Names of the relations.
        pairs: (index of the relation, trial) of every pair.
        first: Index of the pair that the fit begins with, which is not 0 where it is resumed.
        stop: Index of the pair before which it ends; it ends after the last one if None.

    Attributes:
        done: Number of finished pairs, those before `first` among them.
        times: Seconds that each pair since `first` took.

    >>> progress = FitProgress(["country capital city"], [(0, 0), (0, 1), (0, 2)], first=1)
    >>> progress.name, progress.left()
    ('2/3 country capital city, trial 1', None)
    """

    def __init__(
        self, relations: Sequence[str], pairs: Sequence[tuple[int, int]], first: int = 0, stop: int | None = None
    ) -> None:
        self.relations, self.schedule = list(relations), list(pairs)
        self.first = self.done = min(first, len(self.schedule))
        self.stop = len(self.schedule) if stop is None else min(stop, len(self.schedule))
        self.times: list[float] = []
        self._since = monotonic()

    @classmethod
    def of(cls, trainer: L.Trainer) -> Self | None:
        """A fit from its current epoch on; None if its datamodule has no `schedule` or no `relations`."""
        datamodule: Any = getattr(trainer, "datamodule", None)
        pairs, relations = (getattr(datamodule, name, None) for name in ("schedule", "relations"))
        if not pairs or not relations:
            return None
        limit = trainer.max_epochs
        stop = None if limit is None or limit < 0 else limit
        return cls([relation.name for relation in relations], pairs, trainer.current_epoch, stop)

    @property
    def name(self) -> str:
        """The pair that the fit is at, of how many, with its relation and trial; after its end how many it has done."""
        if self.done >= self.stop:
            return f"{self.done}/{len(self.schedule)} pairs"
        relation, trial = self.schedule[self.done]
        return f"{self.done + 1}/{len(self.schedule)} {printable(self.relations[relation])}, trial {trial}"

    def finish_pair(self) -> int | None:
        """Count the pair that the fit is at as finished.

        Returns:
            The index of its relation if this was the last pair of that; None otherwise, and after the last pair of all.
        """
        if self.done == len(self.schedule):
            return None
        now = monotonic()
        self.times.append(now - self._since)
        self._since = now
        self.done += 1
        relation, _ = self.schedule[self.done - 1]
        return None if any(other == relation for other, _ in self.schedule[self.done :]) else relation

    @property
    def elapsed(self) -> float:
        """Seconds since the first pair of this process began."""
        return sum(self.times) + monotonic() - self._since

    def times_of(self, relation: int) -> list[float]:
        """Seconds that each pair of a relation, given by its index, has taken in this process."""
        pairs = self.schedule[self.first : self.done]
        return [time for time, pair in zip(self.times, pairs, strict=True) if pair[0] == relation]

    def left(self) -> float | None:
        """Seconds that the rest of the fit will take; None if no pair has been finished."""
        rest = self.stop - self.done
        if not self.times:
            return None
        mean = fmean(self.times)
        return mean * rest - min(mean, monotonic() - self._since) if rest > 0 else 0.0


class RelationProgressBar(TQDMProgressBar):
    """Lightning's progress bar, over the pairs of a fit: relation, trial, and how long the rest of the fit takes.

    The estimate is that of `FitProgress`. Where the output is neither a terminal nor a notebook there is no bar, since
    it would fill a file; `RelationLog` is for those. Works with any datamodule that has `schedule`, a list of (relation
    index, trial), and `relations`; with others it is Lightning's own.
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
        if self._progress:
            self._show(trainer, pl_module, "estimating")
        else:
            super().on_train_epoch_start(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        if self._progress:
            self._show(trainer, pl_module, self._now)
        else:
            super().on_train_batch_end(trainer, pl_module, *args)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._progress:
            self._show(trainer, pl_module, "scoring")
        super().on_validation_start(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._progress:
            self._progress.finish_pair()
            self._show(trainer, pl_module, "")
        else:
            super().on_train_epoch_end(trainer, pl_module)

    @override
    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Leave the line, so that what is printed next has its own."""
        for bar in (self._val_progress_bar, self._train_progress_bar):
            if bar is not None:
                bar.close()

    @override
    def get_metrics(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[str, Any]:
        metrics = super().get_metrics(trainer, pl_module)
        if not self._progress:
            return metrics
        left = self._progress.left()
        own = {"left": duration(left) if left else "", "now": self._now}
        return {name: text for name, text in own.items() if text} | metrics

    def _show(self, trainer: L.Trainer, pl_module: L.LightningModule, now: str) -> None:
        assert self._progress is not None
        self._now = now
        self.train_progress_bar.n = self._progress.done
        self.train_progress_bar.set_description(self._progress.name, refresh=False)
        self.train_progress_bar.set_postfix(self.get_metrics(trainer, pl_module))


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> [duration(seconds) for seconds in (0, 0.26, 9.97, 200, 4805, 100_000)]
    ['0 s', '0.3 s', '10 s', '3 min 20 s', '1 h 20 min', '1 d 3 h']
    """
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    counts, rest = {}, int(seconds)
    for unit, size in UNITS.items():
        counts[unit], rest = divmod(rest, size)
    largest = next(i for i, count in enumerate(counts.values()) if count)
    return " ".join(f"{count} {unit}" for unit, count in list(counts.items())[largest : largest + 2])


def printable(text: str) -> str:
    r"""A text that stays on its line: with anything that does not print, it is written as in Python source.

    >>> printable("two\nlines"), printable("Zürich")
    ('two\\nlines', 'Zürich')
    """
    return text if text.isprintable() else repr(text)[1:-1]
