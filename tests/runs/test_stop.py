"""Ctrl-C and SIGTERM: a run ends at once, whatever it is doing, and says how to resume it."""

import os
import shlex
import signal
import textwrap

import pytest

from lre_lightning.records.files import read_records
from lre_lightning.runs.checkpoints import finished_trials
from lre_lightning.runs.stopping import command_line
from tests.helpers.launcher import TRIALS

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
STEP = "lre_lightning.training.module:LREModule.training_step"
SCORING = "lre_lightning.training.module:LREModule.on_validation_epoch_end"
STOPS = [
    ("lre_lightning.models.language_model:LanguageModel.from_pretrained", 0, signal.SIGINT),
    (STEP, 1, signal.SIGTERM),
    ("lre_lightning.storage.files:_sync", 30, signal.SIGTERM),
    ("torch:save", 2, signal.SIGINT),
]


def assert_says_how_to_resume(ended, signum):
    """The last line of the errors is the command to resume, without a traceback; returns its arguments."""
    assert ended.status == STATUS[signum], ended.error
    assert "Traceback" not in ended.error
    assert "error: " not in ended.error
    line = ended.error.splitlines()[-1]
    start = "stopped; resume with: lre "
    assert line.startswith(start)
    return shlex.split(line.removeprefix(start))


def test_a_fit_stops_at_once_and_resumes(launch, whole, tmp_path):
    """The printed command resumes the fit each time, and no finished trial is run again."""
    args, finished, last = launch.fit(tmp_path), 0, tmp_path / "run" / "checkpoints" / "last.ckpt"
    for where, turn, signum in STOPS:
        ended = launch(tmp_path, args=args, where=where, turn=turn, signum=signum)
        args = assert_says_how_to_resume(ended, signum)
        assert ended.trials == list(range(finished, finished + len(ended.trials)))
        assert list(tmp_path.rglob("*.part")) == []
        if last.exists():
            begun, finished = finished + len(ended.trials), finished_trials(last)[0]
            assert finished in (begun - 1, begun)
    assert 0 < finished < TRIALS
    ended = launch(tmp_path, args=args)
    assert (ended.status, ended.trials) == (0, list(range(finished, TRIALS))), ended.error
    assert read_records([tmp_path]) == whole.records


def test_evaluate_resumes_and_validate_has_nothing_to_resume(launch, tmp_path):
    args = ["evaluate", *launch.fit(tmp_path)[1:], "--n_shots=[]", "--templates=false", "--model.measures=[]"]
    ended = launch(tmp_path, args=args, signum=signal.SIGTERM, where=SCORING, turn=2)
    assert assert_says_how_to_resume(ended, signal.SIGTERM) == args
    last = tmp_path / "run" / "main" / "checkpoints" / "last.ckpt"
    ended = launch(tmp_path, args=["validate", f"--ckpt_path={last}"], signum=signal.SIGTERM, where=SCORING)
    assert (ended.status, ended.error.splitlines()[-1]) == (143, "stopped")


CODES = {
    "a second signal kills": """
        with Stop():
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except Stopped:
                os.kill(os.getpid(), signal.SIGINT)
    """,
    "a run that does not end is ended": """
        stopping.GRACE = 0.1
        class Swallows:
            def __del__(self):  # where exceptions are lost
                os.kill(os.getpid(), signal.SIGTERM)
        with Stop("told to end"):
            Swallows()
            time.sleep(90)
    """,
    "earlier handlers are restored, and an ignored signal stays ignored": """
        before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        with Stop() as stop:
            assert signal.getsignal(signal.SIGTERM) == stop._stop
        assert before == [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with Stop():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    """,
}


@pytest.mark.parametrize(("kind", "status"), [*zip(CODES, (-signal.SIGINT, 143, 0), strict=True)])
def test_signals_in_the_context_of_a_stop(launch, tmp_path, kind, status):
    imports = "import os, signal, time\nfrom lre_lightning.runs import stopping\n"
    imports += "from lre_lightning.runs.stopping import Stop, Stopped\n"
    ended = launch(tmp_path, code=imports + textwrap.dedent(CODES[kind]))
    assert ended.status == status, ended.error
    assert ended.error.splitlines()[-1:] == (["told to end"] if status == 143 else [])


def test_the_command_that_resumes():
    assert command_line(["fit", "--ckpt_path=a b.ckpt", "--model.beta", "1"], resume=True) == (
        "lre fit --model.beta 1 --ckpt_path last"
    )
    assert command_line(["evaluate", "--n_shots", "[1, 2]"], resume=False) == "lre evaluate --n_shots '[1, 2]'"


SLURM = {"SLURM_NTASKS": "1", "SLURM_JOB_NAME": "fit", "SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}


def test_under_slurm_the_job_is_queued_again_and_resumes(launch, whole, tmp_path):
    """Lightning does it: SIGUSR1 is a warning, upon which it queues the job again; SIGTERM ends it after its trial.

    The second start needs no other options than the first one.
    """
    scontrol = tmp_path / "bin" / "scontrol"
    scontrol.parent.mkdir()
    scontrol.write_text(f"#!/bin/sh\necho $* > {tmp_path}/queued.txt\n")
    scontrol.chmod(0o755)
    environment = {**SLURM, "PATH": f"{scontrol.parent}:{os.environ['PATH']}"}
    pid = launch.start_and_hold(tmp_path, STEP, 2, environment=environment)
    for signum in (signal.SIGUSR1, signal.SIGTERM, signal.SIGCONT):
        os.kill(pid, signum)
    ended = launch.wait(pid)
    assert_says_how_to_resume(ended, signal.SIGTERM)
    assert (tmp_path / "queued.txt").read_text() == "requeue 7\n"
    assert finished_trials(tmp_path / "run" / "hpc_ckpt_1.ckpt")[0] == 2
    again = launch(tmp_path, environment={**environment, "SLURM_RESTART_COUNT": "1"})
    assert (again.status, again.trials) == (0, [3, 4, 5]), again.error
    assert read_records([tmp_path]) == whole.records
