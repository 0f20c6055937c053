"""Checkpoints from strangers: they run no code, delete and overwrite nothing, and are a run or one clear error."""

import copy
import json
import os
import random
import shutil
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from lre_lightning.commands.resuming import explicit_options
from lre_lightning.errors import LREError
from lre_lightning.runs.checkpoints import read_checkpoint, read_hyperparameters
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUIET
from tests.helpers.hostile import (
    EXAMPLES,
    PLAIN,
    SPECIAL,
    SPOILS,
    Named,
    changed,
    changed_at,
    everything_in,
    little_memory,
    nodes,
    outcome,
    recipes,
    spoiled,
    tried,
)

TENSORS = {
    "tensor": torch.zeros(2),
    "sparse": torch.eye(4).to_sparse(),
    "stride 0": torch.zeros(1).expand(2**16, 2**16),
}
ANY = st.one_of(PLAIN, st.sampled_from([Named(name) for name in (*SPECIAL, *TENSORS)]))


@pytest.fixture(scope="module")
def last(launch, tmp_path_factory):
    """The checkpoint of a fit that has ended after its first trial."""
    folder = tmp_path_factory.mktemp("stranger")
    ended = launch(folder, "--trainer.max_epochs=1")
    assert ended.status == 0, ended.error
    return folder / "run" / "checkpoints" / "last.ckpt"


@pytest.fixture(scope="module")
def checkpoint(last):
    return torch.load(last, weights_only=True)


def run(launch, tmp_path, job, checkpoint):
    """Run a job with a checkpoint; it comes to a result or to one clear error."""
    torch.save(checkpoint, tmp_path / "x.ckpt")
    options = [f"--trainer.default_root_dir={tmp_path / 'run'}", f"--ckpt_path={tmp_path / 'x.ckpt'}"]
    texts = ["thing1"] if job == "predict" else []
    ended = launch(tmp_path / "cwd", args=[job, *QUIET, *options, *texts])
    shutil.rmtree(tmp_path / "cwd")
    assert ended.status in (0, 2), ended.error
    assert "Traceback" not in ended.error
    assert "\x1b" not in ended.output + ended.error
    assert [line.startswith("error: ") for line in ended.error.splitlines()].count(True) == (ended.status == 2)
    return ended


def saved(data, path):
    try:
        torch.save(data, path)
    except (RuntimeError, NotImplementedError, RecursionError):
        assume(False)
    return path


@given(recipe=recipes(ANY))
@tried(100)
def test_any_checkpoint_has_options_or_is_an_error(checkpoint, tmp_path, recipe):
    path = saved(changed(checkpoint, recipe, SPECIAL | TENSORS), tmp_path / "x.ckpt")
    found = outcome(read_hyperparameters, path, explicit_options())
    if found:
        text = json.dumps(found)
        assert len(text) < 10**6
        assert not any(f'"{name}"' in text for name in ("trust_remote_code", "lre_dir", "offload_folder"))


@given(spoil=SPOILS)
@tried(100)
def test_any_bytes_are_a_checkpoint_or_an_error(last, tmp_path, spoil):
    path = tmp_path / "x.ckpt"
    path.write_bytes(spoiled(last.read_bytes(), *spoil))
    outcome(read_hyperparameters, path)


@pytest.mark.parametrize("kind", ["directory", "pipe", "link to itself"])
def test_what_is_not_a_file_is_an_error_and_is_not_waited_for(tmp_path, kind):
    path = tmp_path / "x.ckpt"
    make = {"directory": path.mkdir, "pipe": lambda: os.mkfifo(path), "link to itself": lambda: path.symlink_to(path)}
    make[kind]()
    for item in (path, "x" * 5000, "a\x00b"):
        with pytest.raises(LREError, match="does not exist, or is not a file"):
            read_checkpoint(item)


class Made:
    """What a pickle calls when it is read."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


MADE = {
    "a command": Made(os.system, "touch pwned"),
    "much memory": Made(bytearray, 2**40),
    "a large tensor": Made(torch.Tensor, 2**20, 2**20),
    "a sparse tensor": torch.eye(4).to_sparse(),
    "a parameter": torch.nn.Parameter(torch.zeros(2)),
    "a tensor without memory": torch.zeros(2**20, 2**20, device="meta"),
    "a path": Path("x"),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_checkpoint_that_makes_something_when_it_is_read_is_refused(checkpoint, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint, "more": MADE[kind]}, "x.ckpt")
    with little_memory(), pytest.raises(LREError, match=r"'x\.ckpt' holds more than tensors and plain data: '"):
        read_checkpoint("x.ckpt")
    assert os.listdir() == ["x.ckpt"]


def deflated(path):
    """Write an archive anew, with a pickle in it that takes a thousand times the room of the file."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def two_pickles(path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/DATA.PKL", b"\x80\x02N.")


def legacy(path):
    torch.save(torch.load(path, weights_only=True), path, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [(deflated, "is compressed"), (two_pickles, "contains 2 pickles"), (legacy, "cannot be read")],
)
def test_another_kind_of_archive_is_no_checkpoint(checkpoint, tmp_path, change, message):
    path = tmp_path / "x.ckpt"
    torch.save({**checkpoint, "more": "x" * 10**6}, path)
    change(path)
    with little_memory(), pytest.raises(LREError, match=message):
        read_checkpoint(path)


def with_options(section, **options):
    return lambda checkpoint: {**checkpoint, section: {**checkpoint[section], **options}}


def with_entry(name, value):
    return lambda checkpoint: {**checkpoint, name: value}


CHECKPOINTS = {
    "a list": (lambda checkpoint: [checkpoint], "holds a list instead of a run"),
    "nothing": (lambda checkpoint: {}, "is not a checkpoint of a fit"),
    "weights of an LM": (
        lambda c: {**c, "state_dict": {**c["state_dict"], "lm.model.lm_head.weight": torch.zeros(2)}},
        "is not a checkpoint of a fit",
    ),
    "an old version": (with_entry("pytorch-lightning_version", "1.4.0"), "was written by Lightning '1.4.0'"),
    "no version": (with_entry("pytorch-lightning_version", None), "the version of Lightning must be a string"),
    "an endless number": (with_entry("epoch", 1 << 2000), "epoch must be a whole number .* not a number of 2001 bits"),
    "loops": (with_entry("loops", {"fit_loop": 3}), "loops must be an object"),
    "another section": (with_options("hyper_parameters", **{"x.y": 1}), "'x.y' in hyper_parameters is not the name"),
    "a tensor": (with_options("hyper_parameters", beta=torch.ones(())), "contains a Tensor"),
    "a huge number": (with_options("hyper_parameters", beta=10**400), "a number of 1329 bits"),
    "a terminal's language": (with_options("hyper_parameters", name_or_path="\x1b[31m"), "control character"),
    "deep": (with_options("datamodule_hyper_parameters", selection=[[[[[[[["x"]]]]]]]]), "nested more than 8 deep"),
    "endless": (with_options("hyper_parameters", choices=SPECIAL["small, and endless to walk through"]), "nested more"),
    "long": (with_options("hyper_parameters", betas=[1.0] * 200_000), "more than 100000 entries"),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_such_a_checkpoint_is_an_error(checkpoint, tmp_path, kind):
    change, message = CHECKPOINTS[kind]
    torch.save(change(checkpoint), tmp_path / "x.ckpt")
    with little_memory(), pytest.raises(LREError, match=message) as caught:
        read_hyperparameters(tmp_path / "x.ckpt")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"_instantiator": "os.system"}, "no option --_instantiator"),
        ({"betas": "many"}, "model.betas"),
        ({"beta": None}, "has no value for model.beta"),
    ],
)
def test_options_of_a_checkpoint_that_do_not_fit_are_one_clear_error(launch, checkpoint, tmp_path, options, message):
    ended = run(launch, tmp_path, "validate", with_options("hyper_parameters", **options)(checkpoint))
    assert ended.status == 2
    assert message in ended.error


def test_a_checkpoint_can_neither_let_code_run_nor_say_where_to_write(launch, checkpoint, tmp_path):
    """The LM that it names has code of its own, and it says that this may run."""
    evil = shutil.copytree(launch.model, tmp_path / "evil")
    config = json.loads((evil / "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}, "model_type": "evil"}
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "code.py").write_text(f"open({str(tmp_path / 'pwned')!r}, 'w')\n")
    loading = {"trust_remote_code": True, "attn_implementation": "a/kernel", "offload_folder": str(tmp_path / "disk")}
    given_options = checkpoint["hyper_parameters"]
    loading = given_options["loading"] | loading
    fitting = given_options["fitting"] | {"lre_dir": str(tmp_path / "elsewhere")}
    hostile = with_options("hyper_parameters", loading=loading, fitting=fitting)(checkpoint)
    ended = run(launch, tmp_path, "fit", hostile)
    assert ended.status == 0, ended.error
    assert LREModule.load_from_checkpoint(tmp_path / "x.ckpt").fitting.lre_dir is None
    data = with_options("datamodule_hyper_parameters", loader={"trust_remote_code": True}, tokenizer=str(evil))
    as_class = {"class_path": "lre_lightning.models.loading.Loading", "init_args": loading}
    for form, message in (
        (loading, "contains custom code"),
        (json.dumps(loading), "loading must be an object"),
        (as_class, "class_path"),
    ):
        named = with_options("hyper_parameters", name_or_path=str(evil), loading=form)(checkpoint)
        ended = run(launch, tmp_path, "validate", data(named))
        assert ended.status == 2
        assert message in ended.error, ended.error
        with pytest.raises((LREError, TypeError), match=message):
            LREModule.load_from_checkpoint(tmp_path / "x.ckpt")
    assert {entry.name for entry in tmp_path.iterdir()} == {"evil", "run", "x.ckpt"}


def test_a_checkpoint_deletes_no_file(launch, checkpoint, tmp_path):
    """Lightning deletes the last file that the state of a ModelCheckpoint names, when there is a newer one."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("x")
    place = f"{(tmp_path / 'run' / 'checkpoints').resolve()}"
    hostile = copy.deepcopy(checkpoint)
    for state in hostile["callbacks"].values():
        state |= dict.fromkeys(("best_model_path", "last_model_path", "kth_best_model_path"), f"{place}/../../victim")
        state["dirpath"] = place
    ended = run(launch, tmp_path, "fit", hostile)
    assert ended.status == 0, ended.error
    assert (tmp_path / "run" / "checkpoints" / "last.ckpt").is_file()
    assert (tmp_path / "victim" / "precious").read_text() == "x"


def test_any_checkpoint_on_the_command_line_is_a_run_or_one_clear_error(launch, last, checkpoint, tmp_path):
    """Changes to every part of a checkpoint, to few of them in each run of the tests, but to the same."""
    chance = random.Random(0)
    paths = list(nodes(checkpoint))
    values = [None, -1, 10**30, True, float("nan"), "x", "\x1b[2J", [], {}, {"a": 1}, [[]], torch.zeros(2), checkpoint]
    before = everything_in(last.parents[2])
    for _ in range(EXAMPLES or 6):
        path, value = chance.choice(paths), chance.choice(values)
        hostile = changed_at(checkpoint, path, chance.choice(["replace", "leave out"]), value)
        run(launch, tmp_path, chance.choice(["fit", "validate", "predict"]), hostile)
        assert everything_in(last.parents[2]) == before
        assert {entry.name for entry in tmp_path.iterdir()} <= {"x.ckpt", "run"}
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
