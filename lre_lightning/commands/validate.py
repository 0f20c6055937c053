"""The subcommand ``validate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.resuming import add_ckpt_path, add_weights_only, find_checkpoint
from lre_lightning.errors import LREError
from lre_lightning.runs.checkpoints import read_checkpoint

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser

    from lre_lightning.commands.command_line import LRECommandLine
    from lre_lightning.models.language_model import LanguageModel


class FromCheckpoint(Command):
    """A subcommand that uses the LREs of a checkpoint."""

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, where one is named."""
        config = line.options
        if not config.ckpt_path:
            return
        path = find_checkpoint(config.ckpt_path, Path(config.checkpoint.dirpath))
        if path is None:
            raise LREError(f"there is no checkpoint in {config.checkpoint.dirpath}: run fit first, or give its path")
        line.take_options_of(path)

    @staticmethod
    def restore(line: LRECommandLine) -> LanguageModel:
        """Load the LREs of the checkpoint into the module, and return the LM on its device."""
        line.model.load_state_dict(read_checkpoint(line.options.ckpt_path)["state_dict"])
        return line.placed_lm()


class Validate(FromCheckpoint):
    """Score saved LREs again, at their layer, beta and rank."""

    name = "validate"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "take the LREs from", None)
        add_weights_only(parser)
        parser.add_argument("--verbose", type=bool, default=False, help="print Lightning's own table too")

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        line.trainer.validate(
            line.model,
            datamodule=line.datamodule,
            ckpt_path=options.ckpt_path,
            verbose=options.verbose,
            weights_only=options.weights_only,
        )
