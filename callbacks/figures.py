"""Pictures of the results, as files and in loggers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from lre_lightning.callbacks.loggers import NARROW, log_image
from lre_lightning.report.analysis import counted
from lre_lightning.report.relations import plot_relations
from lre_lightning.report.sweeps import plot_layers
from lre_lightning.storage.files import written_whole


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
            figure.set_figwidth(NARROW)
            log_image(trainer, f"results/{name}", figure)
