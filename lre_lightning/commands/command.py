"""The base class of subcommands."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser

    from lre_lightning.commands.command_line import LRECommandLine


class Command:
    """A subcommand: its arguments, its checks before an LM is loaded, and its work.

    The docstring of a subclass is the description that its help shows, and the first line the help of `lre --help`.

    Attributes:
        name: The name on the command line.
        needs_lm: Whether it has the options of the Trainer, the module and the datamodule. `LRECommandLine.trainer`,
            `model` and `datamodule` exist when it runs.
        resumable: Whether the same command resumes it after it was stopped.
    """

    name: ClassVar[str]
    needs_lm: ClassVar[bool] = True
    resumable: ClassVar[bool] = False

    def add_arguments(self, parser: LightningArgumentParser) -> None:
        """Add the arguments of this subcommand, and change defaults."""

    def check(self, line: LRECommandLine) -> None:
        """Check the parsed arguments, and change them where a checkpoint is named."""

    def run(self, line: LRECommandLine) -> None:
        """Do the work."""
        raise NotImplementedError
