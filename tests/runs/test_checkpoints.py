"""Checkpoints: they run no code, delete and overwrite nothing, and are a run or one clear error."""

import copy
import json
import os
import shutil

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.runs.checkpoints import read_checkpoint, read_hyperparameters
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUIET


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


def test_a_checkpoint_runs_no_code_when_it_is_read(checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint, "more": Made(os.system, "touch pwned")}, "x.ckpt")
    with pytest.raises(LREError, match=r"'x\.ckpt' holds more than tensors and plain data"):
        read_checkpoint("x.ckpt")
    assert os.listdir() == ["x.ckpt"]


def test_a_checkpoint_that_is_cut_off_is_an_error(last, tmp_path):
    for share in (0.0, 0.5, 0.99):
        content = last.read_bytes()
        (tmp_path / "x.ckpt").write_bytes(content[: int(share * len(content))])
        with pytest.raises(LREError, match=r"cannot be read; is it truncated\?"):
            read_hyperparameters(tmp_path / "x.ckpt")


def with_options(section, **options):
    return lambda checkpoint: {**checkpoint, section: {**checkpoint[section], **options}}


CHECKPOINTS = {
    "a list": (lambda checkpoint: [checkpoint], "holds a list instead of a run"),
    "nothing": (lambda checkpoint: {}, "is not a checkpoint of a fit"),
    "weights of an LM": (
        lambda c: {**c, "state_dict": {**c["state_dict"], "lm.model.lm_head.weight": torch.zeros(2)}},
        "is not a checkpoint of a fit",
    ),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_such_a_checkpoint_is_an_error(checkpoint, tmp_path, kind):
    change, message = CHECKPOINTS[kind]
    torch.save(change(checkpoint), tmp_path / "x.ckpt")
    with pytest.raises(LREError, match=message) as caught:
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
