"""The subcommand ``cross``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import add_ckpt_path
from lre_lightning.commands.validate import FromCheckpoint
from lre_lightning.records.analysis import SCORES
from lre_lightning.report import page
from lre_lightning.report.console import show_tables
from lre_lightning.report.cross import controls_table, matrix_table, plot_cross
from lre_lightning.report.sections import picture_of
from lre_lightning.report.tables import write_table
from lre_lightning.scoring.cross import cross_scores
from lre_lightning.storage.files import write_whole


class Cross(FromCheckpoint):
    """Score the LRE of each relation on all relations.

    Every LRE of the fit is scored on the test samples of every relation. So are controls: a relation's own LRE without
    its offset b, b alone, and an LRE from examples whose objects are exchanged. Tables and a heat map go to the folder
    ``cross`` below --trainer.default_root_dir.
    """

    name = "cross"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "take the LREs from")
        parser.add_argument("--trials", type=int, default=1, help="number of trials, the first ones")

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        lm, folder = self.restore(line), Path(line.trainer.default_root_dir) / "cross"
        most = line.model.fitting.max_known
        scores = cross_scores(lm, line.datamodule, line.model.lres, line.options.trials, most)
        svg, png = page.plot(picture_of(plot_cross, scores))
        write_whole(folder / "cross.svg", svg)
        write_whole(folder / "cross.png", png)
        for metric in SCORES:
            write_table(matrix_table(scores, metric), folder / f"cross_{metric}")
        show_tables([controls_table(scores)], folder)
