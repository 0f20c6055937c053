"""A warm process that runs the command line in forked children, which can be ended in ways that are rare by chance.

It forks in place of a test process, which has threads, with everything imported; all test processes share it.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path

import psutil
import pytest
from filelock import FileLock
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from tests.helpers.command import QUIET, without_plots
from tests.helpers.toy import write_toy_model, write_toy_relations

ROOT = Path(__file__).parents[2]
CLI = str(ROOT / "cli.py")
FIT = [
    "fit",
    *QUIET,
    "--trainer.callbacks+=lre_lightning.callbacks.BetaTuning",
    "--trainer.callbacks.apply=true",
    "--data.n_shot=3",
    "--data.trials=2",
    "--model.betas=[0.0, 1.0]",
    "--model.beta=0.0",
    "--model.ranks=[4, 16]",
]
TRIALS = 6
"""Number of trials of the toy's relations."""


@dataclass
class Run:
    """A run of the command line in the folder `cwd`; changes of `watched` count as file operations.

    Attributes:
        die_at: Number of the file operation before which the process kills itself.
        torn: With `die_at`, the process instead dies in the next write that makes a file larger than this, in bytes;
            the part of the write that fits is on the disk.
        file_size: The largest size that a file may get, in bytes.
        signum: A signal that it receives in the function `where`, ``"module:Class.name"``, at its call `turn`.
        environment: Variables to set.
        code: Python to run in place of the command line.
    """

    args: list[str]
    cwd: str
    watched: str
    script: str = "lre"
    die_at: int | None = None
    torn: int | None = None
    file_size: int | None = None
    signum: int | None = None
    where: str | None = None
    turn: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    code: str | None = None


@dataclass
class Ended:
    """How a run ended; `trials` are the numbers of those that it started.

    The status is minus the signal's number if a signal killed it. Operations are counted if it ended by itself.
    """

    status: int
    operations: int
    trials: list[int]
    output: str
    error: str


class ShoutingCheckpointIO(TorchCheckpointIO):
    def save_checkpoint(self, checkpoint, path, storage_options=None):
        super().save_checkpoint(checkpoint, path, storage_options)
        print(f"saved {Path(path).name}!")


class Launcher:
    """A test process's end of the warm process, which the first one starts.

    Args:
        root: A folder for the toy's LM, its relations, and the socket.
        environment: The environment from before any fit, in which Lightning leaves a rank and a port.
        owner: The process with which the warm one ends.
    """

    def __init__(self, root: Path, environment: dict[str, str], owner: int):
        self.socket, self.model, self.relations = root / SOCKET, root / "model", root / "relations"
        self.places = [f"--model.name_or_path={self.model}", f"--data.source={self.relations}"]
        self.started: dict[int, tuple[BufferedReader, Run]] = {}
        with FileLock(f"{root}.lock"):
            if not root.exists():
                write_toy_model(self.model)
                write_toy_relations(self.relations)
                with (root / "warm.txt").open("w") as said:
                    self.server = subprocess.Popen(
                        [sys.executable, "-c", WARM, root, str(owner)],
                        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
                        stdin=subprocess.DEVNULL,
                        stdout=said,
                        stderr=said,
                    )
                while not self.socket.exists():
                    assert self.server.poll() is None, (root / "warm.txt").read_text()
                    time.sleep(0.01)

    def fit(self, folder: Path, *more: str) -> list[str]:
        """Arguments of a fit of the toy in ``<folder>/run``."""
        return [*FIT, *self.places, f"--trainer.default_root_dir={folder / 'run'}", *more]

    def __call__(self, folder: Path, *more: str, **how) -> Ended:
        """Run a fit of the toy in ``<folder>/run``, or other `args` there, and wait until it has ended."""
        return self.wait(self.start(folder, *more, **how))

    def start(self, folder: Path, *more: str, **how) -> int:
        """Start a run without waiting for it; returns the id of the process."""
        folder.mkdir(exist_ok=True, parents=True)
        run = Run(**{"args": self.fit(folder, *more), "cwd": str(folder), "watched": str(folder / "run"), **how})
        for name in FILES:
            Path(run.cwd, name).write_text("")
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(self.socket))
            asking.sendall(pickle.dumps(run))
            asking.shutdown(socket.SHUT_WR)
            answer = asking.makefile("rb")
        pid = int(answer.readline())
        self.started[pid] = answer, run
        return pid

    def start_and_hold(self, folder: Path, where: str, turn: int, **how) -> int:
        """Start a run, and wait until it has stopped itself in a function; SIGCONT lets it go on."""
        pid = self.start(folder, signum=signal.SIGSTOP, where=where, turn=turn, **how)
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        return pid

    def wait(self, pid: int) -> Ended:
        """Wait for a process that was started."""
        answer, run = self.started.pop(pid)
        with answer:
            status = int(answer.readline())
        begun, operations, output, error = (Path(run.cwd, name).read_text() for name in FILES)
        return Ended(status, int(operations or 0), [int(line) for line in begun.split()], output, error)

    def close(self):
        """Kill what tests have failed to wait for."""
        for pid in self.started:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


FILES = ("begun.txt", "operations.txt", "output.txt", "error.txt")
SOCKET = "socket"
WARM = """
import gc, sys
gc.disable()  # among what stays
from tests.helpers.launcher import serve
serve(*sys.argv[1:])
"""

IMPORTED = (
    "lre_lightning.commands.main",
    "pydantic.dataclasses",
    "torch._decomp.decompositions_for_jvp",  # which are compiled
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.utils.serialization.config",
    "torch.utils.tensorboard",
)
"""What only some fits import, or import late."""


def warm_up(root: Path) -> None:
    """Do here, once, what every child would do again: imports, parsing, and loading an LM, by a fit of no trial."""
    import torch

    for name in IMPORTED:
        importlib.import_module(name)
    from lre_lightning.cli import main

    torch.set_num_threads(1)
    without_plots(pytest.MonkeyPatch())
    places = [f"--model.name_or_path={root / 'model'}", f"--data.source={root / 'relations'}"]
    assert main([*FIT, *places, f"--trainer.default_root_dir={root / 'warm_up'}", "--trainer.max_epochs=0"]) == 0
    gc.collect()
    gc.freeze()  # so that collections of a child copy no page of what is here
    gc.enable()


def serve(root: str, owner: str) -> None:
    """Fork a child for each run that is asked for, and answer with its id and its status, while the owner lives."""
    warm_up(Path(root))
    running: dict[int, socket.socket] = {}
    listener, (ended, ending) = socket.socket(socket.AF_UNIX), socket.socketpair()
    for end in (ended, ending):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # it wakes the loop, which alone asks who has ended
    signal.set_wakeup_fd(ending.fileno())
    listener.bind(f"{root}/{SOCKET}.part")
    listener.listen()
    os.rename(f"{root}/{SOCKET}.part", f"{root}/{SOCKET}")
    while psutil.pid_exists(int(owner)):
        ready, _, _ = select.select([listener, ended], [], [], 1)
        if ended in ready:
            ended.recv(4096)
        while running and (found := os.waitpid(-1, os.WNOHANG))[0]:
            with running.pop(found[0]) as asking, suppress(BrokenPipeError):  # of a test process that has ended
                asking.sendall(b"%d\n" % os.waitstatus_to_exitcode(found[1]))
        if listener in ready:
            asking, _ = listener.accept()
            with asking.makefile("rb") as question:
                run = pickle.load(question)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                child(run)
            running[pid] = asking
            asking.sendall(b"%d\n" % pid)


def child(run: Run) -> None:
    """Be the command line; never returns."""
    begun, operations, output, error = (Path(run.cwd, name) for name in FILES)
    status = 70
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored where the suite runs in the background
        os.chdir(run.cwd)
        os.environ.update(run.environment)
        for path, descriptor in ((output, 1), (error, 2)):
            os.dup2(os.open(path, os.O_WRONLY), descriptor)
        sys.argv = [run.script, *run.args]
        sys.orig_argv = [sys.executable, *sys.argv]
        sys.modules["__main__"].__spec__ = None  # Lightning starts further processes by the script
        counter = count_operations(run)
        log_trials(begun)
        if run.where is not None:
            signal_within(run)
        if run.file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (run.file_size, resource.RLIM_INFINITY))
        from lre_lightning.cli import main

        try:
            status = main() if run.code is None else exec(run.code, {"__name__": "code"}) or 0
        except SystemExit as exit_:
            status = exit_.code if isinstance(exit_.code, int) else 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        operations.write_text(str(counter[0]))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.truncate"}


def count_operations(run: Run) -> list[int]:
    """Count the changes of the watched folder, and die when it is time."""
    counter = [0]

    def count() -> None:
        if counter[0] == run.die_at and run.torn is None:
            os.kill(os.getpid(), signal.SIGKILL)
        if counter[0] == run.die_at and run.torn is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (run.torn, resource.RLIM_INFINITY))
        counter[0] += 1

    def audit(event: str, arguments: tuple) -> None:
        if event not in CHANGES and not (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if str(arguments[0]).startswith(run.watched):
            count()

    def fsync(descriptor: int) -> None:  # no test cuts the power
        count()
        os.fstat(descriptor)
        count()

    sys.addaudithook(audit)
    os.fsync = fsync
    return counter


def log_trials(begun: Path) -> None:
    """Note the number of each trial that is started."""
    from lre_lightning.training.module import LREModule

    start = LREModule.on_train_epoch_start

    def noted(module: LREModule) -> None:
        with begun.open("a") as file:
            file.write(f"{module.current_epoch}\n")
        start(module)

    LREModule.on_train_epoch_start = noted


def signal_within(run: Run) -> None:
    """Send the process a signal while it is in a function."""
    module, _, names = run.where.partition(":")
    *owner, name = names.split(".")
    holder = importlib.import_module(module)
    for part in owner:
        holder = getattr(holder, part)
    function, calls = getattr(holder, name), [0]

    def signalled(*args, **kwargs):
        calls[0] += 1
        if calls[0] == run.turn + 1:
            os.kill(os.getpid(), run.signum)
        return function(*args, **kwargs)

    setattr(holder, name, signalled)
