"""The same numbers from one process and from several, with every strategy that Lightning starts them by."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import lightning as L
import pytest
import torch
from filelock import FileLock
from lightning.pytorch.strategies import DDPStrategy, FSDPStrategy, ModelParallelStrategy, SingleDeviceStrategy

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.records.record import TrialRecord, read_records
from lre_lightning.runs.processes import Processes, check_strategy, without_wrapper
from tests.helpers.toy import relation_json, write_toy_model

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
SIZES = (1, 2, 3, 4)


def run(args, **environment):
    """Run Python; its output if it ends well."""
    given = {"capture_output": True, "text": True, "timeout": 280, "env": ENVIRONMENT | environment, "cwd": ROOT}
    result = subprocess.run([sys.executable, *map(str, args)], check=False, **given)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="session")
def folder(tmp_path_factory, worker_id):
    """The toy, with a relation that has fewer test samples than there are processes, and fits on one to four.

    All of pytest's own processes share it, and the first one makes it.
    """
    base = tmp_path_factory.getbasetemp()
    root = (base if worker_id == "master" else base.parent) / "devices"
    with FileLock(f"{root}.lock"):
        if not (root / "made").exists():
            write_toy_model(root / "model")
            (root / "relations").mkdir()
            for name, count in (("few", 5), ("more", 14)):
                (root / "relations" / f"{name}.json").write_text(json.dumps(relation_json(name, count=count)))
            run(["-m", "tests.helpers.fit_on_devices", root, "ddp_fork", "both", *SIZES])
            (root / "made").touch()
    return root


@pytest.fixture(scope="session")
def runs(folder):
    """The folders of the fits on one to four processes."""
    return folder / "ddp_fork"


def counts_of(folder, file="fit_results.jsonl") -> list[TrialRecord]:
    """The records without what is no count, and those numbers apart."""
    records = [record.plain() for record in read_records([folder / file])]
    return records, [record.pop("line_integrals") for record in records]


def assert_same(folder, other):
    """Two fits, on other numbers of processes, have the same LREs and the same counts."""
    for file in ("fit_results.jsonl", "validate_results.jsonl"):
        if (other / file).exists():
            (counts, integrals), (others, other_integrals) = counts_of(folder, file), counts_of(other, file)
            assert counts == others
            for one, two in zip(integrals, other_integrals, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-4, atol=1e-5)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors"))
    assert files == sorted(path.relative_to(other) for path in other.rglob("*.safetensors"))
    assert files
    for file in files:
        one, two = LRE.load(folder / file), LRE.load(other / file)
        assert one.metadata() == two.metadata()
        assert torch.equal(one.weight, two.weight)
        assert torch.equal(one.bias, two.bias)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("lm", ["demo", "toy"])
def test_the_numbers_are_those_of_one_process(runs, lm, size):
    assert_same(runs / f"{lm}1", runs / f"{lm}{size}")


@pytest.mark.slow
def test_all_relations_are_scored_and_measured(runs):
    for lm in ("demo", "toy"):
        records = read_records([runs / f"{lm}4" / "fit_results.jsonl"])
        assert all(record.scored for record in records)
        assert all(record.causal_baselines and record.line_integrals for record in records)
        assert sum(map(sum, records[0].causal)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("lm", ["demo", "toy"])
def test_every_sample_is_served_once_and_copies_only_fill_up(runs, lm, size):
    def served(stage, number):
        lines = [
            [json.loads(line) for line in (runs / f"{lm}{number}" / f"served_{stage}_{rank}.jsonl").open()]
            for rank in range(number)
        ]
        weighted = sorted(tuple(line[:-1]) for rank in lines for line in rank if line[-1])
        return weighted, [sum(line[0] == "train" for line in rank) for rank in lines]

    for stage in ("fit", "validate"):
        found, train = served(stage, size)
        assert found == served(stage, 1)[0]
        assert len(found) == len(set(found))
        assert len(set(train)) == 1  # no process has fewer training prompts


@pytest.mark.slow
def test_callbacks_write_what_they_write_on_one_process(runs):
    one, two = (torch.load(runs / f"demo{n}" / "state.pt", weights_only=True)["bank._extra_state"] for n in (1, 2))
    assert one["tuned"] is not None
    assert one["tuned"] == two["tuned"]
    one, two = (json.loads((runs / f"demo{number}" / "lenses" / "lenses.json").read_text()) for number in (1, 2))
    assert len(one) == 9  # three texts, two relations and the logit lens
    for lens, other in zip(one, two, strict=True):
        assert {name: value for name, value in lens.items() if name != "probabilities"} == {
            name: value for name, value in other.items() if name != "probabilities"
        }


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_notebook", "object"])
def test_other_ways_to_start_processes(runs, folder, strategy):
    arguments = ["-m", "tests.helpers.fit_on_devices", folder, strategy, "toy", 2]
    try:
        run(arguments)
    except AssertionError as error:  # a spawned process of torch that has ended its work may rarely end so
        if "terminate called without an active exception" not in str(error):
            raise
        shutil.rmtree(folder / strategy)
        run(arguments)
    assert_same(runs / "toy1", folder / strategy / "toy2")


def command(folder, out, *options):
    arguments = {
        "data.source": folder / "relations",
        "data.n_shot": 2,
        "data.trials": 2,
        "data.loader.batch_size": 4,
        "model.name_or_path": folder / "model",
        "model.ranks": "[1,16]",
        "model.baselines": True,
        "model.line_integrals": 2,
        "trainer.default_root_dir": out,
        "trainer.accelerator": "cpu",
    }
    return ["cli.py", "fit", *(f"--{name}={value}" for name, value in arguments.items()), *options]


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--trainer.devices=2",), ("--trainer.devices=1", "--trainer.strategy=ddp")])
def test_from_the_command_line(runs, folder, tmp_path, options):
    printed = run(command(folder, tmp_path, *options))
    assert printed.count("random guess") == 1  # one table
    assert_same(runs / "toy1", tmp_path)


@pytest.mark.slow
def test_a_fit_goes_on_with_another_number_of_processes(runs, folder, tmp_path):
    run(command(folder, tmp_path, "--trainer.devices=2", "--trainer.max_epochs=3"))
    assert len(read_records([tmp_path])) == 3
    run(command(folder, tmp_path, "--ckpt_path=last"))
    assert_same(runs / "toy1", tmp_path)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def run_together(commands):
    """Run processes side by side until all have ended; none may fail."""
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    processes = [subprocess.Popen([sys.executable, *map(str, args)], env=env, **given) for args, env in commands]
    try:
        printed = [process.communicate(timeout=250)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes), printed
    return printed


@pytest.mark.slow
def test_two_nodes_by_torchrun(runs, folder, tmp_path):
    port = free_port()
    node = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    fit = command(folder, tmp_path, "--trainer.num_nodes=2")
    printed = run_together(
        ([*node, f"--master-port={port}", f"--node-rank={rank}", *fit], ENVIRONMENT) for rank in (0, 1)
    )
    assert ["random guess" in text for text in printed] == [True, False]
    assert_same(runs / "toy1", tmp_path)


@pytest.mark.slow
def test_two_nodes_by_slurm(runs, folder, tmp_path):
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "fit", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_NNODES": "2", "SLURM_LOCALID": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    job |= {"SLURM_NODELIST": "127.0.0.1"}
    fit = command(folder, tmp_path, "--trainer.num_nodes=2", "--trainer.devices=1")
    run_together((fit, ENVIRONMENT | job | {"SLURM_PROCID": str(i), "SLURM_NODEID": str(i)}) for i in (0, 1))
    assert_same(runs / "toy1", tmp_path)


DIFFERENT = """
import os, sys
from lre_lightning.cli import main
if os.environ.get("LOCAL_RANK") == "1":
    sys.argv = [argument.replace("{was}", "{now}") for argument in sys.argv]
sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("data.n_shot=2", "data.n_shot=3", "the relations, or their draws, on 1 of 2 processes differ"),
        ("path={folder}/model", "path={tmp_path}/other", "the weights of the LM on 1 of 2 processes differ"),
    ],
)
def test_processes_that_differ_are_refused(folder, tmp_path, was, now, message):
    write_toy_model(tmp_path / "other", seed=1)
    script = tmp_path / "differing.py"
    was, now = (text.format(folder=folder, tmp_path=tmp_path) for text in (was, now))
    script.write_text(DIFFERENT.replace("{was}", was).replace("{now}", now))
    _, *arguments = command(folder, tmp_path / "run", "--trainer.devices=2")
    given = {"capture_output": True, "text": True, "timeout": 250, "env": ENVIRONMENT, "cwd": ROOT}
    result = subprocess.run([sys.executable, script, *map(str, arguments)], check=False, **given)
    assert result.returncode not in (0, None)
    assert message in result.stderr
    assert not list((tmp_path / "run").rglob("*.safetensors"))


@pytest.mark.parametrize("strategy", [FSDPStrategy(), ModelParallelStrategy()])
def test_strategies_that_shard_the_lm_are_refused(strategy):
    with pytest.raises(LREError, match=f"{type(strategy).__name__} keeps a part of the LM's weights on each device"):
        check_strategy(strategy)
    check_strategy(DDPStrategy())
    check_strategy(SingleDeviceStrategy("cpu"))


def test_a_strategy_goes_on_to_wrap_other_modules():
    wrapped = []

    class Wrapping(DDPStrategy):
        def configure_ddp(self):
            wrapped.append(self.lightning_module)

    ours, theirs = L.LightningModule(), L.LightningModule()
    strategy = Wrapping()
    without_wrapper(strategy, ours)
    strategy.connect(ours)
    strategy.configure_ddp()
    assert wrapped == []
    strategy.connect(theirs)
    strategy.configure_ddp()
    without_wrapper(strategy, ours)  # whose setup fails
    strategy.configure_ddp()
    assert wrapped == [theirs, theirs]


def test_one_process_has_all_rows():
    rows = torch.arange(6.0).reshape(3, 2)
    assert torch.equal(Processes().rows(rows, [0, 1, 2], 3), rows)
    assert Processes().rows(rows, [2, 0, 4], 5).tolist() == [[2, 3], [0, 0], [0, 1], [0, 0], [4, 5]]
