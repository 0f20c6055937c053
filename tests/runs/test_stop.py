"""Ctrl-C and SIGTERM, whatever the run is doing: it ends at once, and says how to go on."""

import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from lre_lightning.records.record import read_records
from lre_lightning.runs.checkpoints import finished_trials
from lre_lightning.runs.stopping import command_line
from tests.helpers.launcher import PAIRS, Launcher

CLI = Path(__file__).parents[2] / "cli.py"
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
WHERE = {
    "loading": ("lre_lightning.training.module:LanguageModel.from_pretrained", 0),
    "estimating": ("lre_lightning.training.module:LREModule.training_step", 2),
    "scoring": ("lre_lightning.training.module:with_grid", 2),
    "writing": ("lre_lightning.storage.files:_sync", 30),
    "writing a checkpoint": ("torch:save", 2),
}


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("toy"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory):
    """The records of an uninterrupted fit."""
    folder = tmp_path_factory.mktemp("whole")
    assert launch(folder).status == 0
    return read_records([folder])


def assert_says_how_to_go_on(ended, signum):
    """One line, without a traceback; returns the command's arguments."""
    assert ended.status == STATUS[signum], ended.error
    assert "Traceback" not in ended.error
    assert "error: " not in ended.error
    line = ended.error.splitlines()[-1]
    start = "stopped; go on with: lre "
    assert line.startswith(start)
    return shlex.split(line.removeprefix(start))


@pytest.mark.parametrize("signum", STATUS)
@pytest.mark.parametrize("doing", WHERE)
def test_a_fit_ends_at_once_and_goes_on(launch, whole, tmp_path, signum, doing):
    function, turn = WHERE[doing]
    ended = launch(tmp_path, signum=signum, where=function, turn=turn)
    args = assert_says_how_to_go_on(ended, signum)
    assert len(ended.pairs) < PAIRS
    assert list(tmp_path.rglob("*.part")) == []
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    if doing != "loading":
        assert finished_trials(last)[0] in (len(ended.pairs) - 1, len(ended.pairs))
    again = launch(tmp_path, args=args)
    assert (again.status, read_records([tmp_path])) == (0, whole), again.error
    assert not set(again.pairs) & set(ended.pairs[:-1])


@pytest.mark.parametrize("signum", STATUS)
def test_a_long_step_is_not_waited_for(launch, tmp_path, signum):
    ended = launch(
        tmp_path, signum=signum, where="lre_lightning.training.module:prompt_jacobian", turn=1, sleeping=True
    )
    assert_says_how_to_go_on(ended, signum)
    assert ended.seconds < 50  # of the minute that the step takes


def test_other_jobs_say_what_there_is_to_say(launch, tmp_path):
    args = ["evaluate", *launch.fit(tmp_path)[1:], "--n_shots=[]", "--templates=false"]
    how = {"signum": signal.SIGTERM, "where": "lre_lightning.training.module:with_grid", "turn": 2}
    ended = launch(tmp_path, args=args, **how)
    assert assert_says_how_to_go_on(ended, signal.SIGTERM) == args
    last = tmp_path / "run" / "main" / "checkpoints" / "last.ckpt"
    ended = launch(tmp_path, args=["validate", f"--ckpt_path={last}"], **{**how, "turn": 1})
    assert (ended.status, ended.error.splitlines()[-1]) == (143, "stopped")


def test_a_second_signal_kills(launch, tmp_path):
    code = """
        import os, signal
        from lre_lightning.runs.stopping import Stop, Stopped
        with Stop():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except Stopped:
                os.kill(os.getpid(), signal.SIGINT)
    """
    assert launch(tmp_path, code=textwrap.dedent(code)).status == -signal.SIGINT


def test_a_run_that_does_not_end_is_ended(launch, tmp_path):
    """Where an exception gets lost, as in a destructor, or what cleans up hangs."""
    code = """
        import os, signal, time
        import lre_lightning.runs.stopping as stopping
        stopping.GRACE = 0.1
        class Swallows:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
        with stopping.Stop("told to end"):
            Swallows()
            time.sleep(90)
    """
    ended = launch(tmp_path, code=textwrap.dedent(code))
    assert (ended.status, ended.error.splitlines()[-1]) == (143, "told to end")


def test_handlers_are_those_of_before_again(launch, tmp_path):
    code = """
        import signal
        from lre_lightning.runs.stopping import Stop
        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        with Stop() as stop:
            assert signal.getsignal(signal.SIGTERM) == stop._stop
        assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Stop():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    """
    ended = launch(tmp_path, code=textwrap.dedent(code))
    assert ended.status == 0, ended.error


def wait_for(condition, process):
    """Until something is the case; the process must live so long."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.02)


@pytest.mark.slow
def test_from_a_shell(launch, whole, tmp_path):
    """`python cli.py fit`, interrupted from outside, and the command that it prints, both as a user runs them."""
    command = [sys.executable, str(CLI), *launch.fit(tmp_path, "--data.loader.batch_size=1")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    watched = tmp_path / "run" / "fit_results.jsonl"
    wait_for(lambda: watched.is_file() and watched.read_text(), process)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130, error
    start = f"stopped; go on with: {shlex.join(command)} --ckpt_path last"
    assert error.splitlines()[-1] == start
    result = subprocess.run(
        shlex.split(start.removeprefix("stopped; go on with: ")), cwd=tmp_path, env=environment, capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert read_records([tmp_path]) == whole


def test_the_command_that_goes_on():
    assert command_line(["fit", "--ckpt_path=a b.ckpt", "--model.beta", "1"], resume=True) == (
        "lre fit --model.beta 1 --ckpt_path last"
    )
    assert command_line(["evaluate", "--n_shots", "[1, 2]"], resume=False) == "lre evaluate --n_shots '[1, 2]'"


SLURM = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "fit", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_under_slurm_the_job_is_queued_again_and_goes_on(launch, whole, tmp_path):
    """As Lightning does it: SIGUSR1 is a warning, upon which it queues the job again; SIGTERM ends it after its pair.

    The second start needs no other options than the first one.
    """
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* > {tmp_path}/queued.txt\n")
    scontrol.chmod(0o755)
    environment = {**SLURM, "PATH": f"{scontrol.parent}:{os.environ['PATH']}"}
    where = "lre_lightning.training.module:LREModule.training_step"
    pid = launch.start(tmp_path, signum=signal.SIGSTOP, where=where, turn=2, environment=environment)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, signum)
    ended = launch.wait(pid)
    assert_says_how_to_go_on(ended, signal.SIGTERM)
    assert (tmp_path / "queued.txt").read_text() == "requeue 7\n"
    assert finished_trials(tmp_path / "run" / "hpc_ckpt_1.ckpt")[0] == 2
    again = launch(tmp_path, environment={**environment, "SLURM_RESTART_COUNT": "1"})
    assert (again.status, again.pairs) == (0, [3, 4, 5]), again.error
    assert read_records([tmp_path]) == whole
