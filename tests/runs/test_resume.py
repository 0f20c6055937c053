"""A fit that is killed, has no room, may not write or is not alone: what is on the disk is whole, and it goes on."""

import csv
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import lightning as L
import psutil
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.records.record import read_records
from lre_lightning.records.summary import COLUMNS
from lre_lightning.runs.checkpoints import WholeCheckpointIO, finished_trials
from lre_lightning.runs.folder import RunFolder
from lre_lightning.storage.locks import FolderLock
from tests.helpers.launcher import FIT, TRIALS, Launcher

KILLS = int(os.environ.get("LRE_KILLS", "24"))
"""How often each of the two tests of kills kills."""


@pytest.fixture(scope="module")
def launch(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("toy"))
    yield launcher
    launcher.close()


@pytest.fixture(scope="module")
def whole(launch, tmp_path_factory):
    """An uninterrupted fit: its folder, and how it ended."""
    folder = tmp_path_factory.mktemp("whole")
    ended = launch(folder, pictures=True)
    assert ended.status == 0, ended.error
    assert ended.trials == list(range(TRIALS))
    return folder / "run", launch(folder / "again")


def results(root):
    """Every result file by its name, byte for byte; safetensors writes what its headers hold in any order."""
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


def assert_all_is_whole(root):
    """Whatever has its final name is whole, and the records go just as far as the checkpoint or one pair further."""
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
            assert header == COLUMNS
            assert {len(row) for row in rows} <= {len(COLUMNS)}
            assert len(rows) in (finished, finished + 1)
    return finished


def go_on_until_it_is_done(launch, folder, deaths, whole):
    """Start a fit again and again, in the ways of dying that are given, and at last let it live; count the kills."""
    finished = kills = 0
    for death in [*deaths, {}]:
        ended = launch(folder, *(["--ckpt_path=last"] if (folder / "run").exists() else []), **death)
        assert ended.status in (0, -signal.SIGKILL, -signal.SIGXFSZ), ended.error
        assert ended.trials == list(range(finished, finished + len(ended.trials)))  # none again but the one under way
        finished = assert_all_is_whole(folder / "run")
        if ended.trials:
            assert finished >= ended.trials[-1]
        if ended.status == 0:
            break
        kills += 1
    assert ended.status == 0
    assert finished == TRIALS
    assert results(folder / "run") == results(whole[0])
    assert table_of(ended) == table_of(whole[1])
    assert [path.name for path in (folder / "run").rglob("*.part")] == []
    return kills


def kill_many(launch, tmp_path, whole, death):
    """Kill fits six times each, as `death` says, until enough have been killed."""
    kills = fits = 0
    while kills < KILLS:
        deaths = [death() for _ in range(6)]
        assert fits < KILLS  # or hardly any of them dies
        kills += go_on_until_it_is_done(launch, tmp_path / str(fits), deaths, whole)
        fits += 1
    print(f"{kills} kills of {fits} fits")


def test_killed_before_any_of_its_file_operations(launch, whole, tmp_path):
    """Each time a few operations further: before one of them, or in the middle of a write."""
    _, ended = whole
    assert ended.operations > 150
    chance = random.Random(0)
    kill_many(
        launch,
        tmp_path,
        whole,
        lambda: {
            "die_at": chance.randrange(ended.operations // 3),
            "torn": chance.choice([None, chance.randrange(1000, 9000)]),
        },
    )


def test_killed_from_outside_at_any_time(launch, whole, tmp_path):
    _, ended = whole
    chance = random.Random(0)
    pair = ended.seconds / 2 / TRIALS
    kill_many(
        launch,
        tmp_path,
        whole,
        lambda: {"kill_in": chance.choice([0, 1, 1, 1, 2, 2, 3]), "kill_after": chance.uniform(0, 1.5 * pair)},
    )


def test_what_was_half_written_when_a_fit_had_finished_is_removed(launch, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "run")
    part = tmp_path / "run" / "checkpoints" / "last.ckpt.part"
    part.write_bytes(b"half a checkpoint")
    assert launch(tmp_path, "--ckpt_path=last").status == 0
    assert not part.exists()
    assert results(tmp_path / "run") == results(whole[0])


@pytest.mark.parametrize("more", [[], ["--ckpt_path=last"]], ids=["anew", "resumed"])
def test_there_is_a_checkpoint_before_the_first_pair(launch, whole, tmp_path, more):
    ended = launch(tmp_path, signum=signal.SIGKILL, where="lre_lightning.training.module:LREModule.training_step")
    assert (ended.status, ended.trials) == (-9, [0])
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert finished_trials(last)[:2] == (0, TRIALS)
    assert launch(tmp_path, *more).status == 0
    assert results(tmp_path / "run") == results(whole[0])


@pytest.fixture(scope="module")
def half(launch, tmp_path_factory):
    """A fit that was killed in its fourth pair."""
    folder = tmp_path_factory.mktemp("half")
    ended = launch(
        folder, signum=signal.SIGKILL, where="lre_lightning.training.module:LREModule.on_train_epoch_start", turn=3
    )
    assert ended.status == -9
    return folder


def assert_one_error(ended, *named):
    assert ended.status == 2, ended.error
    assert "Traceback" not in ended.error
    (line,) = (line for line in ended.error.splitlines() if line.startswith("error: "))
    for name in named:
        assert str(name) in line


def test_a_fit_with_finished_pairs_is_not_overwritten(launch, half, tmp_path):
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
        ("--data.trials=3", "data.trials 2, not 3"),
        ("--data.relations=[half colour]", "data.relations None, not ['half colour']"),
        ("--model.betas=[1.0]", "model.betas [0.0, 1.0], not [1.0]"),
        ("--model.layers=[0]", "model.layers None, not [0]"),
        ("--model.fitting.baselines=true", "model.baselines False, not True"),
    ],
)
def test_a_fit_does_not_go_on_with_other_options(launch, half, option, named):
    assert_one_error(launch(half, option, "--ckpt_path=last"), half / "run", named)


def test_a_fit_goes_on_with_options_that_change_no_result(launch, half, whole, tmp_path):
    shutil.copytree(half / "run", tmp_path / "run")
    more = ["--data.loader.batch_size=5", "--model.loading.chunk_size=3", "--model.loading.attn_implementation=eager"]
    ended = launch(tmp_path, *more, "--ckpt_path=last")
    assert (ended.status, ended.trials) == (0, [3, 4, 5]), ended.error
    assert read_records([tmp_path]) == read_records([whole[0]])


def test_a_checkpoint_in_the_middle_of_a_pair_resumes_at_its_beginning(launch, whole, tmp_path):
    more = ["--checkpoint.every_n_train_steps=1", "--data.loader.batch_size=1"]
    ended = launch(
        tmp_path, *more, signum=signal.SIGKILL, where="lre_lightning.training.module:LREModule.training_step", turn=5
    )
    assert (ended.status, ended.trials) == (-9, [0, 1])
    ended = launch(tmp_path, *more, "--ckpt_path=last")
    assert (ended.status, ended.trials) == (0, [1, 2, 3, 4, 5]), ended.error
    assert read_records([tmp_path]) == read_records([whole[0]])
    assert results(tmp_path / "run").keys() == results(whole[0]).keys()


def assert_goes_on(launch, folder, whole, ended):
    """A failed write has said how to go on, has left everything whole, and the fit goes on from there."""
    assert f"after that, go on with: lre fit {FIT[1]}" in ended.error
    assert_all_is_whole(folder / "run")
    assert launch(folder, "--ckpt_path=last").status == 0
    assert results(folder / "run") == results(whole[0])


@pytest.mark.parametrize(("size", "name"), [(1500, "config.yaml"), (7000, "last.ckpt")])
def test_a_file_that_gets_too_large(launch, whole, tmp_path, size, name):
    ended = launch(tmp_path, file_size=size)
    assert_one_error(ended, name, "cannot be written: File too large", "raise the limit")
    assert bool(ended.trials) == (size == 7000)
    assert_goes_on(launch, tmp_path, whole, ended)


@pytest.fixture
def mount(tmp_path):
    """Mount something as ``<tmp_path>/disk``; skips where that is not allowed."""
    disk = tmp_path / "disk"

    def mounted(*options):
        disk.mkdir(exist_ok=True)
        result = subprocess.run(["mount", *options, disk], capture_output=True, text=True)
        if result.returncode:
            pytest.skip(f"this user may not mount: {result.stderr.strip()}")
        return disk

    yield mounted
    while os.path.ismount(disk):
        subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
@pytest.mark.parametrize("free", [-32, -16, -8, 0, 4, 12])
def test_a_full_disk(launch, whole, mount, free):
    """A disk that is full before the fit, at its beginning, or in the middle of it: at about 32 KiB plus these."""
    disk = mount("-t", "tmpfs", "-o", "size=1m", "tmpfs")
    (disk / "others").write_bytes(bytes((1024 - 32 - free) * 1024))
    ended = launch(disk, cwd=str(disk.parent))
    assert_one_error(ended, disk, "cannot be written: No space left on device; free some space there")
    (disk / "others").unlink()
    assert_goes_on(launch, disk, whole, ended)


@pytest.mark.skipif(shutil.which("mount") is None, reason="there is no mount here")
def test_a_disk_that_may_only_be_read(launch, mount):
    disk = mount("-t", "tmpfs", "tmpfs")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    ended = launch(disk, cwd=str(disk.parent))
    assert_one_error(ended, disk, "cannot be written: Read-only file system; give a folder that may be written to")
    assert "Loading" not in ended.error  # of an LM


@pytest.mark.parametrize("name", ["run", "run/lres", "run/checkpoints"])
def test_a_file_where_a_folder_should_be(launch, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("something")
    ended = launch(tmp_path)
    assert_one_error(ended, path, "cannot be written", "a file is where a folder should be")
    assert ended.trials == []
    assert ("Loading" in ended.error) == (name != "run")
    assert path.read_text() == "something"


@pytest.mark.parametrize("name", ["fit_results.jsonl", "fit_results.csv", "checkpoints/last.ckpt"])
def test_a_folder_where_a_file_should_be(launch, tmp_path, name):
    path = tmp_path / "run" / name
    path.mkdir(parents=True)
    ended = launch(tmp_path)
    assert_one_error(ended, path, "cannot be written", "a folder is where the file should be")
    assert ended.trials == []


def wait_until_it_is_stopped(pid):
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)


def test_two_fits_in_one_folder(launch, whole, tmp_path):
    """The second one ends at once and changes nothing; the first one, held in its third pair meanwhile, goes on."""
    first = launch.start(
        tmp_path, signum=signal.SIGSTOP, where="lre_lightning.training.module:LREModule.training_step", turn=2
    )
    wait_until_it_is_stopped(first)
    before = results(tmp_path / "run")
    for more in ([], ["--ckpt_path=last"]):
        ended = launch(tmp_path, *more, cwd=str(tmp_path.parent))
        assert "Loading" not in ended.error  # of an LM
        owner = f"is in use by process {first} on {socket.gethostname()} since"
        assert_one_error(ended, tmp_path / "run", owner, "default_root_dir")
    assert results(tmp_path / "run") == before
    os.kill(first, signal.SIGCONT)
    assert launch.wait(first).status == 0
    assert results(tmp_path / "run") == results(whole[0])


def test_two_evaluations_in_one_folder(launch, tmp_path):
    """Between two of its fits an evaluation keeps its folder too, and no fit can be there."""
    args = ["evaluate", *launch.fit(tmp_path)[1:], "--n_shots=[]", "--templates=false"]
    first = launch.start(tmp_path, args=args, signum=signal.SIGSTOP, where="lre_lightning.commands.evaluate:_settings")
    wait_until_it_is_stopped(first)
    for other in (args, launch.fit(tmp_path)):
        ended = launch(tmp_path, args=other, cwd=str(tmp_path.parent))
        assert_one_error(ended, tmp_path / "run", "is in use by", f"process {first} ")
    os.kill(first, signal.SIGCONT)
    assert launch.wait(first).status == 0
    assert {path.parent.name for path in tmp_path.rglob("fit_results.csv")} == {"main", "bare"}


def test_two_counts_in_one_folder(launch, tmp_path):
    args = ["dataset", *(option for option in launch.fit(tmp_path)[1:] if "callbacks" not in option)]
    first = launch.start(
        tmp_path, args=args, signum=signal.SIGSTOP, where="lre_lightning.commands.dataset:encode", turn=1
    )
    wait_until_it_is_stopped(first)
    ended = launch(tmp_path, args=args, cwd=str(tmp_path.parent))
    assert_one_error(ended, tmp_path / "run", "is in use by", f"process {first} ")
    os.kill(first, signal.SIGCONT)
    assert launch.wait(first).status == 0


class Fails(Callback):
    def on_train_start(self, *_):
        raise KeyError("something else")


def test_a_folder_is_let_go_of_when_its_fit_has_failed(tmp_path):
    """So that the same process can try again, as in a notebook."""

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


def test_checkpoints_are_whole_or_not_there(tmp_path):
    """Also without the command line, and where Lightning would write them first to another disk."""
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


def test_a_way_to_write_checkpoints_of_the_users_own_stays(launch, tmp_path):
    ended = launch(
        tmp_path, "--trainer.plugins=tests.helpers.launcher.ShoutingCheckpointIO", "--data.relations=[half colour]"
    )
    assert ended.status == 0, ended.error
    assert ended.output.count("saved last.ckpt!") >= 3


TWO = """
from pathlib import Path

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringModel

from lre_lightning.runs.checkpoints import WholeCheckpointIO
from lre_lightning.errors import LREError
from lre_lightning.runs.processes import on_rank_zero
from lre_lightning.commands.trainer import LRETrainer


class Writes(Callback):
    def on_train_start(self, trainer, module):
        for write in (lambda: trainer.save_checkpoint("folder"), lambda: on_rank_zero(trainer, lambda: 1 / 0)):
            try:
                write()
            except Exception as error:
                with Path(f"rank{trainer.global_rank}.txt").open("a") as file:
                    file.write(f"{type(error).__name__}: {error}\\n")


Path("folder").mkdir()
options = dict(logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
LRETrainer(
    accelerator="cpu", devices=2, strategy="ddp_fork", callbacks=[Writes()], plugins=[WholeCheckpointIO()], max_steps=2,
    limit_val_batches=0, **options
).fit(BoringModel())
"""


def test_what_rank_zero_cannot_write_is_an_error_on_all_ranks(launch, tmp_path):
    ended = launch(tmp_path, code=TWO)
    assert ended.status == 0, ended.error
    message = "'folder' cannot be written: Is a directory; a folder is where the file should be"
    written, divided = (tmp_path / "rank0.txt").read_text().splitlines()
    assert written.startswith(f"NotWritten: {message}")
    assert divided == "ZeroDivisionError: division by zero"
    written, divided = (tmp_path / "rank1.txt").read_text().splitlines()
    assert written.startswith(f"RankZeroError: {message}")
    assert divided == "RankZeroError: division by zero"


def test_an_error_of_processes_that_lightning_forks_is_one_line(launch, tmp_path):
    lock = FolderLock(tmp_path / "run")
    lock.acquire()
    devices = ["--trainer.devices=2", "--trainer.strategy=ddp_fork"]
    ended = launch(tmp_path, *devices, environment={"OMPI_COMM_WORLD_RANK": "0"})  # no look before that
    lock.release()
    assert_one_error(ended, tmp_path / "run", f"is in use by process {os.getpid()} on")


@pytest.mark.slow
def test_two_processes_are_killed_and_stopped_and_go_on(launch, whole, tmp_path):
    """From a shell; what is left at last, one process does."""
    options = launch.fit(tmp_path, "--trainer.devices=2", "--trainer.strategy=ddp", "--data.loader.batch_size=1")
    command = [sys.executable, str(Path(__file__).parents[2] / "cli.py"), *options]
    records = tmp_path / "run" / "fit_results.jsonl"

    def run(*more, pairs, signum):
        with (tmp_path / "error.txt").open("w") as error:
            process = subprocess.Popen(
                [*command, *more], cwd=tmp_path, stderr=error, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        while not records.is_file() or records.read_text().count("\n") < pairs:
            assert process.poll() is None, (tmp_path / "error.txt").read_text()
            time.sleep(0.02)
        others = psutil.Process(process.pid).children()
        assert len(others) == 1
        process.send_signal(signum)
        status = process.wait(timeout=100)
        psutil.wait_procs(others, timeout=100)
        assert not any(other.is_running() for other in others)
        return status, (tmp_path / "error.txt").read_text()

    assert run(pairs=1, signum=signal.SIGKILL)[0] == -9
    finished = assert_all_is_whole(tmp_path / "run")
    status, error = run("--ckpt_path=last", pairs=finished + 2, signum=signal.SIGTERM)
    assert status == 143
    assert error.count("stopped; go on with: ") == 1
    assert "Traceback" not in error
    ended = launch(tmp_path, "--ckpt_path=last")
    assert ended.status == 0, ended.error
    assert ended.trials[0] >= finished + 1
    assert read_records([tmp_path]) == read_records([whole[0]])
