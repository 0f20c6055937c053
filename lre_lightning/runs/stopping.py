"""How a run ends when it is told to: at once, whatever it is doing."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any

import lightning as L
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import Self, override

GRACE = 20.0
"""Seconds for an orderly end after a signal; then the process ends all the same."""


class Stopped(BaseException):
    """Ctrl-C was pressed, or the process was told to end."""


class Stop(Callback):
    """Within its context Ctrl-C and SIGTERM raise `Stopped` wherever the main thread is; a second one kills.

    Everything that a run keeps is whole in its files at any moment, so there is nothing to wait for. Lightning's own
    handler would wait for the end of the batch, and on several devices for the other processes. As a callback this puts
    itself before that handler. Under SLURM SIGTERM is left to Lightning, which has the job queued again.

    Args:
        line: What to say of it on standard error.

    Attributes:
        signum: The signal that was received; None so far.
        trainers: Trainers whose processes `end_processes` ends.
    """

    def __init__(self, line: str = "stopped") -> None:
        self.line = line
        self.signum: int | None = None
        self.trainers: list[L.Trainer] = []
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._timer: threading.Timer | None = None

    def __reduce__(self) -> tuple[type[Stop], tuple[()]]:
        """In another process it does nothing: that one is ended from here."""
        return Stop, ()

    def __enter__(self) -> Self:
        """Listen, where this is the main thread; to what is ignored, as Ctrl-C by jobs in the background, not."""
        if threading.current_thread() is threading.main_thread():
            wanted = [signal.SIGINT] if SLURMEnvironment.detect() else [signal.SIGINT, signal.SIGTERM]
            before = {signum: signal.getsignal(signum) for signum in wanted}
            self._before = {signum: handler for signum, handler in before.items() if handler != signal.SIG_IGN}
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Listen no longer."""
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if self._timer is not None:
            self._timer.cancel()

    def _listen(self) -> None:
        for signum in self._before:
            signal.signal(signum, self._stop)

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is not None or os.getpid() != self._process:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
            return
        self.signum = signum
        self._timer = threading.Timer(GRACE, self._end)
        self._timer.daemon = True
        self._timer.start()
        raise Stopped(signal.Signals(signum).name)

    @property
    def status(self) -> int:
        """The exit status that a shell expects of a process that was ended by the signal."""
        return 128 + (self.signum or 0)

    def say(self) -> None:
        """Print the line, once for all ranks, below what a progress bar or the terminal has left on its line."""
        if getattr(rank_zero_only, "rank", 0) == 0:
            print(("\n" if sys.stderr.isatty() else "") + self.line, file=sys.stderr, flush=True)

    def _end(self) -> None:
        self.end_processes()
        self.say()
        os._exit(self.status)

    def end_processes(self) -> None:
        """End the processes that the Trainers have started; they hold nothing that is not in files."""
        for trainer in self.trainers:
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    @override
    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()

    @override
    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()

    @override
    def on_predict_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()


def command_line(arguments: Sequence[str] | None, resume: bool) -> str:
    """The command that goes on with a run, for a shell.

    Args:
        arguments: Those that the command line was called with in Python; this process's own if None.
        resume: Whether to go on from the last checkpoint, whichever was given.

    >>> command_line(["fit", "--ckpt_path", "a.ckpt", "--data.relations=[word sentiment]"], resume=True)
    "lre fit '--data.relations=[word sentiment]' --ckpt_path last"
    """
    program, given = (_program(), sys.argv[1:]) if arguments is None else (["lre"], arguments)
    kept = list(given)
    if resume:
        for i in reversed(range(len(kept))):
            if kept[i] == "--ckpt_path":
                del kept[i : i + 2]
            elif kept[i].startswith("--ckpt_path="):
                del kept[i]
        kept += ["--ckpt_path", "last"]
    return shlex.join([*program, *kept])


def _program() -> list[str]:
    """How this process was started: by an installed command, or by an interpreter and its script."""
    script = sys.argv[0]
    name = os.path.basename(script)
    if name != "lre":
        return list(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    found = shutil.which(name)
    return [name if found and os.path.realpath(found) == os.path.realpath(script) else script]
