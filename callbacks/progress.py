"""The progress bar that says which relation and trial a fit is at."""

from __future__ import annotations

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import TQDMProgressBar
from typing_extensions import override


class RelationProgressBar(TQDMProgressBar):
    """Lightning's progress bar, named after the relation and trial of the epoch.

    Works with any datamodule that has `pairs`, a list of (relation index, trial), and `relations`; with others it is
    Lightning's own.
    """

    @override
    def on_train_epoch_start(self, trainer: L.Trainer, *args: Any) -> None:
        super().on_train_epoch_start(trainer, *args)
        datamodule: Any = getattr(trainer, "datamodule", None)
        pairs = getattr(datamodule, "pairs", None)
        if pairs:
            index, trial = pairs[trainer.current_epoch]
            name = datamodule.relations[index].name
            self.train_progress_bar.set_description(f"{trainer.current_epoch + 1}/{len(pairs)} {name}, trial {trial}")
