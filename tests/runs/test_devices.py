"""The same numbers from one process and from several, however they are started."""

import json
import shutil
import socket

import pytest
import torch
from filelock import FileLock

from lre_lightning.lre.lre import LRE
from lre_lightning.records.files import read_records
from tests.helpers.toy import relation_json, write_toy_model

SHARED = {"shared2": "ddp_fork"}
"""A fit of two processes that share the LM."""
FITS = {"demo1": "auto", "demo2": "object", "toy1": "auto", "toy3": "ddp_fork"}
"""The strategies of the fits by LM and number of processes; "object" is a strategy that is not given by name."""


def fit_code(root, folder, lm, strategy, devices):
    call = f"fit({str(root)!r}, {str(folder)!r}, {lm!r}, {strategy!r}, {devices})"
    return f"from tests.helpers.fit_on_devices import fit; {call}"


@pytest.fixture(scope="session")
def folder(launch, shared):
    """The toy, with a relation that has fewer test samples than there are processes, and the fits.

    All of pytest's own processes share it, and the first one makes it.
    """
    root = shared / "devices"
    with FileLock(f"{root}.lock"):
        if not root.exists():
            write_toy_model(root / "model")
            (root / "relations").mkdir()
            for name, count in (("few", 4), ("more", 13)):
                (root / "relations" / f"{name}.json").write_text(json.dumps(relation_json(name, count=count)))
            started = [
                launch.start(root / f"cwd_{name}", code=fit_code(root / name, root, name[:-1], strategy, int(name[-1])))
                for name, strategy in (FITS | SHARED).items()
            ]
            for ended in map(launch.wait, started):
                assert ended.status == 0, ended.error
    return root


def counts_of(path):
    """The counts of records, and apart from them the line integrals, which are not counts."""
    records = [record.plain() for record in read_records([path])]
    return records, [record["measures"].pop("line integrals", {"rows": ()})["rows"] for record in records]


def plain(lre):
    """The metadata of an LRE but for the LM's identity, whose numbers are those of its own processes."""
    metadata = lre.metadata()
    return {**metadata, "origin": {**metadata["origin"], "identity": None}}


def assert_same(folder, other, **tolerance):
    """Two fits, on different numbers of processes, have the same LREs and the same counts."""
    for file in ("fit_results.jsonl", "validate_results.jsonl"):
        if (other / file).exists():
            (counts, integrals), (others, other_integrals) = counts_of(folder / file), counts_of(other / file)
            assert counts == others
            for one, two in zip(integrals, other_integrals, strict=True):
                torch.testing.assert_close(torch.tensor(one), torch.tensor(two), rtol=1e-4, atol=1e-5)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors"))
    assert files == sorted(path.relative_to(other) for path in other.rglob("*.safetensors"))
    assert files
    for file in files:
        one, two = LRE.load(folder / file), LRE.load(other / file)
        assert one.origin.identity.fits(two.origin.identity)
        assert plain(one) == plain(two)
        torch.testing.assert_close(one.weight, two.weight, **tolerance or {"rtol": 0, "atol": 0})
        torch.testing.assert_close(one.bias, two.bias, **tolerance or {"rtol": 0, "atol": 0})


@pytest.mark.slow
@pytest.mark.parametrize(("one", "several"), [("demo1", "demo2"), ("toy1", "toy3")])
def test_the_numbers_are_those_of_one_process(folder, one, several):
    assert_same(folder / one, folder / several)
    records = read_records([folder / several / "fit_results.jsonl"])
    assert all({"baselines", "line integrals"} <= record.measures.keys() for record in records)
    assert sum(map(sum, records[0].causal)) > 0


@pytest.mark.slow
def test_processes_that_share_the_lm_have_the_numbers_of_one(folder):
    assert_same(folder / "demo1", folder / "shared2", rtol=1e-4, atol=1e-5)
    (served, again) = (folder / "shared2" / f"served_fit_{index}.jsonl" for index in range(2))
    assert served.read_text() == again.read_text() == (folder / "demo1" / "served_fit_0.jsonl").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", FITS)
def test_every_sample_is_served_once_and_copies_have_no_weight(folder, name):
    def served(stage, name):
        lines = [
            [json.loads(line) for line in (folder / name / f"served_{stage}_{index}.jsonl").open()]
            for index in range(int(name[-1]))
        ]
        weighted = sorted(tuple(line[:-1]) for process in lines for line in process if line[-1])
        return weighted, [sum(line[0] == "train" for line in process) for process in lines]

    for stage in ("fit", "validate"):
        found, train = served(stage, name)
        assert found == served(stage, f"{name[:-1]}1")[0]
        assert len(found) == len(set(found))
        assert stage == "validate" or all(train)  # where a process has no training prompt, it has a copy


@pytest.mark.slow
def test_a_spawned_process(launch, folder, tmp_path):
    """One of them: it takes seconds to start."""
    code = fit_code(tmp_path / "run", folder, "toy", "ddp_spawn", 1)
    ended = launch(tmp_path, code=code)
    if "terminate called without an active exception" in ended.error:  # rarely, by torch, when its work is done
        shutil.rmtree(tmp_path / "run")
        ended = launch(tmp_path, code=code)
    assert ended.status == 0, ended.error
    assert_same(folder / "toy1", tmp_path / "run")


def command(folder, out, *options):
    arguments = {
        "data.source": folder / "relations",
        "data.n_shot": 2,
        "data.trials": 2,
        "data.loader.batch_size": 4,
        "model.name_or_path": folder / "model",
        "model.ranks": "[1,16]",
        "trainer.default_root_dir": out,
        "trainer.accelerator": "cpu",
    }
    measures = [f"--model.measures+={name}" for name in ("Baselines", "WholeObjects", "LineIntegrals")]
    measures.append("--model.measures.pairs=2")
    return ["fit", *(f"--{name}={value}" for name, value in arguments.items()), *measures, *options]


@pytest.mark.slow
def test_a_fit_resumes_with_another_number_of_processes(launch, folder, tmp_path):
    out = tmp_path / "run"
    two, one = ["--trainer.devices=2", "--trainer.strategy=ddp_fork"], ["--trainer.devices=1", "--trainer.strategy=ddp"]
    for options in ([*two, "--trainer.max_epochs=3"], [*one, "--ckpt_path=last"]):
        ended = launch(tmp_path, args=command(folder, out, *options))
        assert ended.status == 0, ended.error
        assert ended.output.count("random guess") == 1  # one table
        assert len(read_records([out])) == (3 if options[-1] == "--trainer.max_epochs=3" else 4)
    assert_same(folder / "toy1", out)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def torchrun(index, port):
    """The environment of a process that torchrun has started, the only one of its node."""
    node = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": f"{index}", "TORCHELASTIC_RUN_ID": "none"}
    return node | {"RANK": f"{index}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def slurm(index, port):
    """The environment of a process that SLURM has started, the only one of its node."""
    job = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "fit", "SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "1"}
    job |= {"SLURM_NNODES": "2", "SLURM_LOCALID": "0", "SLURM_NODELIST": "127.0.0.1"}
    job |= {"SLURM_PROCID": f"{index}", "SLURM_NODEID": f"{index}"}
    return job | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def run_on_two_nodes(launch, tmp_path, environment, commands):
    port = free_port()
    started = [
        launch.start(tmp_path / f"node{index}", args=args, environment=environment(index, port))
        for index, args in enumerate(commands)
    ]
    return [launch.wait(pid) for pid in started]


@pytest.mark.slow
@pytest.mark.parametrize("environment", [torchrun, slurm])
def test_two_nodes(launch, folder, tmp_path, environment):
    fit = command(folder, tmp_path / "run", "--trainer.num_nodes=2", "--trainer.devices=1")
    ended = run_on_two_nodes(launch, tmp_path, environment, [fit, fit])
    assert [one.status for one in ended] == [0, 0], ended
    assert ["random guess" in one.output for one in ended] == [True, False]
    assert_same(folder / "toy1", tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--data.n_shot=3", "the relations, or their "),
        ("--model.name_or_path={other}", "the LM's hidden states on 1 of 2 processes differ"),
    ],
)
def test_processes_that_differ_are_refused(launch, folder, tmp_path, option, message):
    option = option.format(other=write_toy_model(tmp_path / "other", seed=1))
    fit = command(folder, tmp_path / "run", "--trainer.num_nodes=2", "--trainer.devices=1")
    ended = run_on_two_nodes(launch, tmp_path, torchrun, [fit, [*fit, option]])
    assert [one.status for one in ended] == [2, 2], ended
    assert all(message in one.error for one in ended)
    assert not list((tmp_path / "run").rglob("*.safetensors"))
