"""A fit that is killed, has no space, may not write or is not alone: its files are complete, and it can be resumed."""

import csv
import json
import os
import random
import shutil
import signal
import socket

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.records.files import read_records
from lre_lightning.records.summary import CSV_COLUMNS
from lre_lightning.runs.checkpoints import WholeCheckpointIO, finished_trials
from lre_lightning.runs.folder import RunFolder
from lre_lightning.storage.locks import FolderLock
from tests.helpers.launcher import FIT, TRIALS

KILLS = int(os.environ.get("LRE_KILLS", "4"))
"""Number of kills in the test of kills, at most."""

MODULE = "lre_lightning.training.module:LREModule"


def results(root):
    """Every file of results by its name, byte for byte; safetensors writes the entries of its headers in any order."""
    files = [root / "fit_results.jsonl", root / "fit_results.csv", *sorted((root / "lres").rglob("*.safetensors"))]
    return {str(path.relative_to(root)): ordered(path) for path in files if path.exists()}


def ordered(path):
    content = path.read_bytes()
    if path.suffix != ".safetensors":
        return content
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def table_of(ended):
    return ended.output[ended.output.index("Linear relational") :].partition("By relation and trial")[0]


def assert_all_is_complete(root):
    """Files of every kind can be read, and the records are those of the checkpoint or one trial ahead of it."""
    last = root / "checkpoints" / "last.ckpt"
    finished = finished_trials(last)[0] if last.exists() else 0
    for path in root.rglob("*"):
        if path.suffix == ".safetensors":
            LRE.load(path)
        elif path.suffix == ".ckpt":
            assert len(torch.load(path, weights_only=True)["state_dict"]["bank._extra_state"]["records"]) == finished
        elif path.suffix == ".jsonl":
            assert path.read_bytes()[-1:] in (b"", b"\n")
            assert len(read_records([path])) in (finished, finished + 1)
        elif path.suffix == ".csv":
            assert path.read_bytes().endswith(b"\r\n")
            header, *rows = csv.reader(path.open(newline=""))
            assert header[: len(CSV_COLUMNS)] == CSV_COLUMNS
            assert {len(row) for row in rows} <= {len(header)}
            assert {*header[len(CSV_COLUMNS) :]} <= {"majority of training", "majority of data"}
            assert len(rows) in (finished, finished + 1)
    return finished


# Killed


def test_killed_before_or_within_file_operations(launch, whole, tmp_path):
    """A fit that dies again and again, each time before or within a random file operation, and at last may live."""
    assert whole.ended.operations > 150
    chance = random.Random(0)
    deaths = [
        {
            "die_at": chance.randrange(whole.ended.operations // 4),
            "torn": chance.choice([None, chance.randrange(1000, 9000)]),
        }
        for _ in range(KILLS)
    ]
    finished = kills = 0
    for death in [*deaths, {}]:
        ended = launch(tmp_path, *(["--ckpt_path=last"] if (tmp_path / "run").exists() else []), **death)
        assert ended.status in (0, -signal.SIGKILL, -signal.SIGXFSZ), ended.error
        assert ended.trials == list(range(finished, finished + len(ended.trials)))  # none but the interrupted one again
        finished = assert_all_is_complete(tmp_path / "run")
        assert finished >= max(ended.trials, default=0)
        if ended.status == 0:
            break
        kills += 1
    assert (ended.status, finished) == (0, TRIALS)
    assert results(tmp_path / "run") == results(whole.root)
    assert table_of(ended) == table_of(whole.ended)
    assert list((tmp_path / "run").rglob("*.part")) == []
    assert kills >= min(2, KILLS)


def test_a_partial_file_of_a_finished_fit_is_removed(launch, whole, tmp_path):
    shutil.copytree(whole.root, tmp_path / "run")
    part = tmp_path / "run" / "checkpoints" / "last.ckpt.part"
    part.write_bytes(b"half a checkpoint")
    assert launch(tmp_path, "--ckpt_path=last").status == 0
    assert not part.exists()
    assert results(tmp_path / "run") == results(whole.root)


def test_there_is_a_checkpoint_before_the_first_trial(launch, whole, tmp_path):
    """The same command starts the fit again, and a killed fit resumes from that checkpoint."""
    for more, where in (([], "training_step"), ([], "on_validation_start"), (["--ckpt_path=last"], None)):
        ended = launch(tmp_path, *more, **({"signum": signal.SIGKILL, "where": f"{MODULE}.{where}"} if where else {}))
        assert ended.status == (-9 if where else 0), ended.error
        if where:
            assert ended.trials == [0]
            assert finished_trials(tmp_path / "run" / "checkpoints" / "last.ckpt")[:2] == (0, TRIALS)
    assert results(tmp_path / "run") == results(whole.root)


@pytest.fixture(scope="module")
def half(launch, tmp_path_factory):
    """A fit that was killed in its fourth trial, after a step of which a checkpoint was written."""
    folder = tmp_path_factory.mktemp("half")
    more = ["--checkpoint.every_n_train_steps=1", "--data.loader.batch_size=1"]
    ended = launch(folder, *more, signum=signal.SIGKILL, where=f"{MODULE}.training_step", turn=10)
    assert (ended.status, ended.trials) == (-9, [0, 1, 2, 3])
    return folder


def assert_one_error(ended, *named):
    assert ended.status == 2, ended.error
    assert "Traceback" not in ended.error
    (line,) = (line for line in ended.error.splitlines() if line.startswith("error: "))
    for name in named:
        assert str(name) in line


def test_a_fit_with_finished_trials_is_not_overwritten(launch, half, tmp_path):
    before = results(half / "run")
    last = half / "run" / "checkpoints" / "last.ckpt"
    other = shutil.copy(last, tmp_path)
    for more in ([], [f"--ckpt_path={other}"]):
        ended = launch(half, *more)
        assert_one_error(ended, half / "run", "3 of 6 trials finished", "--ckpt_path last", "root_dir", "/model'")
    assert results(half / "run") == before


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--data.seed=1", "data.seed 0, not 1"),
        ("--data.relations=[half colour]", "data.relations None, not ['half colour']"),
        ("--model.betas=[1.0]", "model.betas [0.0, 1.0], not [1.0]"),
    ],
)
def test_a_fit_is_not_resumed_with_other_options(launch, half, option, named):
    assert_one_error(launch(half, option, "--ckpt_path=last"), half / "run", named)


def test_a_fit_resumes_with_harmless_options_at_the_beginning_of_the_interrupted_trial(launch, half, whole, tmp_path):
    shutil.copytree(half / "run", tmp_path / "run")
    more = ["--data.loader.batch_size=5", "--model.loading.chunk_size=3", "--model.loading.attn_implementation=eager"]
    ended = launch(tmp_path, *more, "--ckpt_path=last")
    assert (ended.status, ended.trials) == (0, [3, 4, 5]), ended.error
    assert read_records([tmp_path]) == whole.records
    assert results(tmp_path / "run").keys() == results(whole.root).keys()


def test_trials_are_added_to_a_finished_fit_also_if_that_is_killed(launch, whole, tmp_path):
    """Those that it has are left alone, and all files are those of a fit of all trials at once."""
    assert launch(tmp_path, "--data.trials=1").status == 0
    assert len(before := read_records([tmp_path])) == TRIALS / 2
    assert_one_error(
        launch(tmp_path, "--data.trials=2"), "trials are all finished", "more --data.trials and --ckpt_path"
    )
    add = ["--data.trials=2", "--ckpt_path=last"]
    ended = launch(tmp_path, *add, signum=signal.SIGKILL, where="lre_lightning.training.trial:FitTrial.train", turn=1)
    assert ended.status == -9
    kept = {record.key: record for record in read_records([tmp_path])}
    assert [kept.pop(record.key) for record in before] == before
    assert 0 < len(kept) < TRIALS / 2
    ended = launch(tmp_path, *add)
    assert ended.status == 0, ended.error
    assert results(tmp_path / "run") == results(whole.root)


# No space


def assert_resumes(launch, folder, whole, ended):
    """A failed write says how to resume and leaves complete files, and the fit resumes from there."""
    assert f"after that, resume with: lre fit {FIT[1]}" in ended.error
    assert_all_is_complete(folder / "run")
    assert launch(folder, "--ckpt_path=last").status == 0
    assert results(folder / "run") == results(whole.root)


def test_a_file_that_gets_too_large(launch, whole, tmp_path):
    for size, name in ((1500, "config.yaml"), (8000, "last.ckpt")):
        ended = launch(tmp_path, file_size=size)
        assert_one_error(ended, name, "cannot be written: File too large", "raise the limit")
        assert bool(ended.trials) == (size == 8000)
    assert_resumes(launch, tmp_path, whole, ended)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("run/lres", "file", "a file is where a folder should be"),
        ("run/fit_results.jsonl", "folder", "a folder is where the file should be"),
        ("run/checkpoints/last.ckpt", "folder", "a folder is where the file should be"),
    ],
)
def test_something_else_in_place_of_a_file_or_folder(launch, tmp_path, name, kind, message):
    path = tmp_path / name
    (path.parent if kind == "file" else path).mkdir(parents=True, exist_ok=True)
    if kind == "file":
        path.write_text("something")
    ended = launch(tmp_path)
    assert_one_error(ended, path, "cannot be written", message)
    assert ended.trials == []
    assert kind == "folder" or path.read_text() == "something"


# Not alone


@pytest.mark.parametrize(
    ("command", "where", "turn", "other"),
    [
        ("fit", f"{MODULE}.training_step", 2, "resumed"),
        ("evaluate", "lre_lightning.commands.evaluate:_settings", 0, "fit"),  # between two of its fits
        ("dataset", "lre_lightning.commands.dataset:new_record", 1, "dataset"),
    ],
)
def test_two_runs_in_one_folder(launch, whole, tmp_path, command, where, turn, other):
    """The second one ends at once and changes nothing; the first one, held meanwhile, continues or is killed."""
    fit = launch.fit(tmp_path)
    args = {
        "fit": fit,
        "resumed": [*fit, "--ckpt_path=last"],
        "evaluate": ["evaluate", *fit[1:], "--n_shots=[]", "--templates=false", "--model.measures=[]"],
        "dataset": ["dataset", *(option for option in fit[1:] if "callbacks" not in option)],
    }
    first = launch.start_and_hold(tmp_path, where, turn, args=args[command])
    before = results(tmp_path / "run")
    owner = f"is in use by process {first} on {socket.gethostname()} since"
    ended = launch(tmp_path, args=args[other], cwd=str(tmp_path.parent))
    assert_one_error(ended, tmp_path / "run", owner, "default_root_dir")
    assert results(tmp_path / "run") == before
    os.kill(first, signal.SIGKILL if command == "evaluate" else signal.SIGCONT)
    assert launch.wait(first).status == (-signal.SIGKILL if command == "evaluate" else 0)
    if command == "fit":
        assert results(tmp_path / "run") == results(whole.root)


class Fails(Callback):
    def on_train_start(self, *_):
        raise KeyError("something else")


def test_a_folder_is_unlocked_when_its_fit_has_failed(tmp_path):
    """The same process can try again, as in a notebook."""

    def fit(*callbacks):
        options = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        L.Trainer(default_root_dir=tmp_path, callbacks=[*callbacks], fast_dev_run=True, **options).fit(BoringModel())

    for _ in range(2):
        with pytest.raises(KeyError, match="something else"):
            fit(RunFolder(), Fails())
    with pytest.raises(ZeroDivisionError):
        fit(RunFolder(lambda: 1 / 0))
    fit(RunFolder())
    lock = FolderLock(tmp_path)
    lock.acquire()
    with pytest.raises(LREError, match=f"is in use by process {os.getpid()} on"):
        fit(RunFolder())
    lock.release()
    fit(RunFolder())


def test_checkpoints_are_written_atomically(tmp_path):
    """This holds without the command line too, where Lightning would write them to another disk first."""
    path = tmp_path / "checkpoints" / "last.ckpt"
    io = WholeCheckpointIO()
    io.save_checkpoint({"epoch": 1}, path)
    with pytest.raises(Exception, match="pickle"):
        io.save_checkpoint({"epoch": lambda: 2}, path)
    path.with_name("last.ckpt.part").mkdir()
    with pytest.raises(LREError, match=r"last.ckpt' cannot be written: Is a directory"):
        io.save_checkpoint({"epoch": 2}, path)
    assert io.load_checkpoint(path) == {"epoch": 1}
    torch.save({"epoch": Fails}, path)
    with pytest.raises(LREError, match="holds more than tensors and plain data"):
        io.load_checkpoint(path)
    io.remove_checkpoint(path)
    assert not path.exists()


def test_a_checkpoint_io_of_the_users_own_is_kept(launch, tmp_path):
    ended = launch(
        tmp_path, "--trainer.plugins=tests.helpers.launcher.ShoutingCheckpointIO", "--data.relations=[half colour]"
    )
    assert ended.status == 0, ended.error
    assert ended.output.count("saved last.ckpt!") >= 3
