"""Stopping a run by a signal: at once, whatever it is doing."""

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
from typing_extensions import Self

GRACE = 20.0
"""Seconds that an orderly end may take after a signal; then the process is ended."""


class Stopped(BaseException):
    """Ctrl-C was pressed, or the process was told to end."""


class Stop(Callback):
    """A context in which Ctrl-C and SIGTERM raise `Stopped` in the main thread; a second signal kills the process.

    A run's files are complete at any moment, so there is nothing to wait for. Lightning's own handler would wait for
    the end of the batch and, on several devices, for the other processes; as a callback, this class replaces it. Under
    SLURM, SIGTERM is left to Lightning, which queues the job again. A signal that is ignored, as Ctrl-C is by jobs in
    the background of a script, stays ignored.

    Args:
        line: The line to print on standard error.

    Attributes:
        signum: The signal that was received; None if there was none.
        trainers: The Trainers whose processes `end_processes` ends.
    """

    def __init__(self, line: str = "stopped") -> None:
        self.line = line
        self.signum: int | None = None
        self.trainers: list[L.Trainer] = []
        self._before: dict[int, Any] = {}
        self._process = os.getpid()
        self._timer: threading.Timer | None = None

    def __reduce__(self) -> tuple[type[Stop], tuple[()]]:
        """Return one that does nothing, for another process: this process ends that one."""
        return Stop, ()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            wanted = [signal.SIGINT] if SLURMEnvironment.detect() else [signal.SIGINT, signal.SIGTERM]
            before = {signum: signal.getsignal(signum) for signum in wanted}
            self._before = {signum: handler for signum, handler in before.items() if handler != signal.SIG_IGN}
            self._listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        if self._timer is not None:
            self._timer.cancel()

    def _listen(self, trainer: L.Trainer | None = None, pl_module: L.LightningModule | None = None) -> None:
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
        """The exit status by which a shell recognizes a process that the signal has ended."""
        return 128 + (self.signum or 0)

    def say(self) -> None:
        """Print the line, once for all processes, below a progress bar and the terminal's ``^C``."""
        if getattr(rank_zero_only, "rank", 0) == 0:
            print(("\n" if sys.stderr.isatty() else "") + self.line, file=sys.stderr, flush=True)

    def _end(self) -> None:
        self.end_processes()
        self.say()
        os._exit(self.status)

    def end_processes(self) -> None:
        """Kill the processes that the Trainers have started: all that they keep is in files."""
        for trainer in self.trainers:
            if trainer.strategy.launcher is not None:
                trainer.strategy.launcher.kill(signal.SIGTERM if os.name == "nt" else signal.SIGKILL)

    # Lightning has set its own handlers by then.
    on_sanity_check_start = on_train_start = on_validation_start = on_predict_start = _listen


def command_line(arguments: Sequence[str] | None, resume: bool) -> str:
    """Return the command that runs a job again, for a shell.

    `arguments` are those that the command line was called with in Python; this process's own if None. With `resume` the
    job resumes from the last checkpoint, whichever was given.

    >>> command_line(["fit", "--ckpt_path", "a.ckpt", "--data.relations=[word sentiment]"], resume=True)
    "lre fit '--data.relations=[word sentiment]' --ckpt_path last"
    """
    program, kept = (_program(), sys.argv[1:]) if arguments is None else (["lre"], list(arguments))
    if resume:
        for i in reversed(range(len(kept))):
            if kept[i].partition("=")[0] == "--ckpt_path":
                del kept[i : i + (1 if "=" in kept[i] else 2)]
        kept += ["--ckpt_path", "last"]
    return shlex.join([*program, *kept])


def _program() -> list[str]:
    """Return the beginning of this process's command: the installed program, or an interpreter and its script."""
    script = sys.argv[0]
    name = os.path.basename(script)
    if name != "lre":
        return list(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv) + 1])
    installed = shutil.which(name)
    return [name if installed and os.path.realpath(installed) == os.path.realpath(script) else script]
