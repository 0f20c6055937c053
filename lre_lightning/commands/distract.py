"""The subcommand ``distract``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import add_ckpt_path
from lre_lightning.commands.validate import FromCheckpoint
from lre_lightning.datamodules import DistractionDataModule
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.distraction import latent_knowledge
from lre_lightning.report.console import show_tables
from lre_lightning.report.distraction import distraction_table


class Distract(FromCheckpoint):
    """Ask what an LM still knows under distraction.

    Each known fact is asked for after a falsehood, which is stated twice or followed by an instruction to repeat it.
    The LM is then likely to say the falsehood. How often is the truth among its k most likely tokens, and among those
    of the relation's lens at the subject (the paper's table "attribute-lens")? Controls stand beside. The tables go as
    CSV and LaTeX to the folder ``distraction`` below --trainer.default_root_dir.
    """

    name = "distract"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "take the LREs from")
        lens = "ask a Jacobian lens too: a file, a folder or a hub name"
        parser.add_argument("--jlens", type=str | None, default=None, help=lens)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        lm, hparams, jlens = self.restore(line), line.datamodule.hparams, line.options.jlens
        lens = None if jlens is None else JacobianLens.load(jlens, lm)
        kinds: tuple[Literal["repetition", "instruction"], ...] = ("repetition", "instruction")
        results = [
            result
            for kind in kinds
            for result in latent_knowledge(
                lm, DistractionDataModule(distraction=kind, **hparams), line.model.lres, jacobian_lens=lens
            )
        ]
        tables = distraction_table(results, "micro"), distraction_table(results, "macro")
        show_tables(tables, Path(line.trainer.default_root_dir) / "distraction")
