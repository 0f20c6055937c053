"""The base class of subcommands."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from lightning import LightningDataModule, LightningModule
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.cli import LightningArgumentParser

from lre_lightning.callbacks import (
    AttributeLens,
    BetaTuning,
    RelationLog,
    ResultsFigures,
    ResultsScalars,
    ResultsTable,
)
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.training.module import LREModule

if TYPE_CHECKING:
    from lre_lightning.commands.command_line import LRECommandLine

T = TypeVar("T")


def given(kind: type[T], options: Any) -> T:
    """Return options of a subcommand as the dataclass whose fields they are."""
    return kind(**{field.name: options[field.name] for field in fields(kind)})  # type: ignore[arg-type]


class Command:
    """A subcommand: its arguments, its checks before an LM is loaded, and its work.

    The docstring of a subclass is the description that its help shows, and the first line the help of `lre --help`.

    Attributes:
        name: The name on the command line.
        needs_lm: Whether it has the options of the Trainer, the module and the datamodule. `LRECommandLine.trainer`,
            `model` and `datamodule` exist when it runs.
        resumable: Whether the same command resumes it after it was stopped.
        module: The class of the module.
        data: The class of the datamodule.
        logs: Whether its Trainer has a logger unless one is given.
        callbacks: Callbacks of every Trainer; one that the user gives replaces that of its type.
        unused: Options, and sections of them, that have no effect here; the short help leaves them out.
    """

    name: ClassVar[str]
    needs_lm: ClassVar[bool] = True
    resumable: ClassVar[bool] = False
    module: ClassVar[type[LightningModule]] = LREModule
    data: ClassVar[type[LightningDataModule]] = RelationDataModule
    unused: ClassVar[tuple[str, ...]] = ()
    logs: ClassVar[bool] = True
    callbacks: ClassVar[tuple[type[Callback], ...]] = (
        BetaTuning,
        ResultsFigures,
        ResultsScalars,
        ResultsTable,
        RelationLog,
        AttributeLens,
    )

    def add_arguments(self, parser: LightningArgumentParser) -> None:
        """Add the arguments of this subcommand, and change defaults."""

    def shares_lm(self, options: Any) -> bool:
        """Whether several processes that share the LM can do the work."""
        return False

    def check(self, line: LRECommandLine) -> None:
        """Check the parsed arguments, and change them where a checkpoint is named."""

    def check_data(self, line: LRECommandLine) -> None:
        """Find mistakes in the data before an LM is loaded, in the first process."""
        RelationDataModule(**line.options.data.as_dict()).candidates()

    def run(self, line: LRECommandLine) -> None:
        """Do the work."""
        raise NotImplementedError
