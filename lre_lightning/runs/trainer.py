"""A Trainer that fails on every process when the first one cannot write a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import Trainer
from typing_extensions import override

from lre_lightning.errors import LREError
from lre_lightning.runs.processes import share_error


class LRETrainer(Trainer):
    """Lightning's Trainer, as the command line uses it."""

    @override
    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint, as Lightning's Trainer does.

        Raises:
            LREError: On every process, if it cannot be written.
        """
        error = None
        try:
            super().save_checkpoint(filepath, weights_only, storage_options)
        except LREError as raised:  # on the first process, before the barrier at which the others wait
            error = raised
            self.strategy.barrier("Trainer.save_checkpoint")
        share_error(self, error)
