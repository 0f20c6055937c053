"""The command line from its arguments to its exit status: one line per error, and which warnings to ignore."""

from __future__ import annotations

import errno
import logging
import re
import signal
import sys
import warnings

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import ArgsType
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.multiprocessing.spawn import ProcessRaisedException

from lre_lightning.commands.cache import Cache
from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine, given_command
from lre_lightning.commands.concepts import Concepts
from lre_lightning.commands.cross import Cross
from lre_lightning.commands.data import Data
from lre_lightning.commands.dataset import Dataset
from lre_lightning.commands.distract import Distract
from lre_lightning.commands.edit import Edit
from lre_lightning.commands.evaluate import Evaluate
from lre_lightning.commands.explore import Explore
from lre_lightning.commands.fit import Fit
from lre_lightning.commands.jlens import JLens
from lre_lightning.commands.lenses import Lenses
from lre_lightning.commands.parser import UsageError
from lre_lightning.commands.predict import Predict
from lre_lightning.commands.push import Push
from lre_lightning.commands.report import Report
from lre_lightning.commands.validate import Validate
from lre_lightning.errors import LREError
from lre_lightning.runs.processes import RankZeroError, process_index
from lre_lightning.runs.stopping import Stop, command_line
from lre_lightning.storage.files import NotWritten
from lre_lightning.storage.plain import printable

KINDS = (
    *(
        Fit,
        Validate,
        Predict,
        Explore,
        Edit,
        Evaluate,
        Dataset,
        Distract,
        Concepts,
        Cross,
        Lenses,
        JLens,
        Push,
        Report,
    ),
    Data,
    Cache,
)
COMMANDS: dict[str, Command] = {kind.name: kind() for kind in KINDS}

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}

EARLY = re.compile("Early stopping conditioned on metric `[^`]*` which is not available")
"""Lightning's message for a name that `EarlyStopping` does not find."""

LOST = re.compile("Connection (closed|reset) by peer|Broken pipe|remote process exited|NCCL error")
"""Messages of torch.distributed after another process has ended."""

HARMLESS_WARNINGS = (
    # Tokenizing here takes less than starting workers would.
    ".*does not have many workers.*",
    # Checkpoints are meant to be in the run's folder, which a second run or a resumed one finds there.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Nothing is optimized.
    ".*`LightningModule.configure_optimizers` returned `None`.*",
    # The LM is meant to be in eval mode.
    ".*in eval mode at the start of training.*",
    # Lightning's own use of torch.
    r".*isinstance\(treespec, LeafSpec\).*",
    # A fit ends after its last relation.
    ".*`max_epochs` was not set.*",
)


def quiet() -> None:
    """Leave out warnings and tips that a user of this command line can do nothing about."""
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # how --trainer.profiler says its results


def main(args: ArgsType = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0; 2 after a user's mistake or a write that failed, which is printed as one line without a
        traceback; 130 or 143 after Ctrl-C or SIGTERM, with a line that says how to resume.
    """
    quiet()
    command = next_command(args)
    stop = Stop(f"stopped; resume with: {command}" if command else "stopped")
    try:
        with stop:
            LRECommandLine(COMMANDS, args, stop)
    except BaseException as error:
        stop.end_processes()
        if isinstance(error, SIGTERMException):  # Lightning's, under SLURM
            stop.signum = signal.SIGTERM
        if stop.signum is not None:
            stop.say()
            return stop.status
        message = message_of(error)
        if message is None:
            raise
        if not isinstance(error, RankZeroError):
            print(f"error: {message}" + (f" (rank {process_index()})" if process_index() else ""), file=sys.stderr)
        if command and process_index() == 0 and isinstance(error, NotWritten | OSError):
            print(f"after that, resume with: {command}", file=sys.stderr)
        return 2
    return 0


def next_command(args: ArgsType) -> str | None:
    """Return the command that resumes what was stopped; None if there is nothing to resume."""
    name = given_command(args, COMMANDS)
    if not isinstance(args, list | None) or name is None or not COMMANDS[name].resumable:
        return None
    return command_line(args, resume=name == "fit")


def message_of(error: BaseException) -> str | None:
    """Return the message for an exception; None if it is neither a user's mistake nor a failed write."""
    if isinstance(error, LREError):
        return "\n".join(map(printable, error.lines if isinstance(error, UsageError) else [str(error)]))
    if isinstance(error, MisconfigurationException):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{repr(error.filename) if error.filename else 'a file'} cannot be written: {error.strerror}"
    if isinstance(error, RuntimeError) and EARLY.match(str(error)):
        return str(error)
    if isinstance(error, RuntimeError) and LOST.search(str(error)):
        return "another process of this run has ended: its own error is the reason"
    if isinstance(error, ProcessRaisedException):  # by a process that Lightning has forked or spawned
        lines = str(error).strip().splitlines()
        raised = max((i for i, line in enumerate(lines) if line.startswith("lre_lightning.")), default=None)
        return None if raised is None else "\n".join(lines[raised:]).partition(": ")[2]
    return None
