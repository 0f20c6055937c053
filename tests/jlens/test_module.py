"""A fit of the Jacobian lens: the plain estimate, however it is interrupted and split over processes."""

import random
import re
import signal

import pytest
import torch

from lre_lightning.datamodules import TextDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.estimator import estimate_jacobian_lens
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.jlens.module import JacobianLensModule
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.runs.checkpoints import WholeCheckpointIO
from tests.helpers.command import QUIET
from tests.helpers.tiny_models import tiny_model
from tests.helpers.toy import WORDS, toy_tokenizer
from tests.training.test_module import trainer_of as plain_trainer

SHORT = Averaging(skip=3)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A file of seven texts, which make eight sequences of up to 12 tokens."""
    chance, path = random.Random(0), tmp_path_factory.mktemp("texts") / "texts.txt"
    lengths = (11, 11, 9, 14, 11, 8, 22)
    path.write_text("\n\n".join(" ".join(chance.choices(WORDS[3:], k=length)) for length in lengths))
    return path


def data_of(texts, **options):
    return TextDataModule(str(texts), toy_tokenizer(), length=12, shortest=8, batch_size=3, **options)


def trainer_of(folder, **options):
    return plain_trainer(folder, plugins=[WholeCheckpointIO()], **options)


def assert_same(lens, other):
    assert lens.layers == other.layers
    assert (lens.n_prompts, lens.origin.texts) == (other.n_prompts, other.origin.texts)
    for layer in lens.layers:
        assert torch.equal(lens.jacobians[layer], other.jacobians[layer])
        assert lens.standard_error(layer) == pytest.approx(other.standard_error(layer), abs=1e-9)


def test_a_fit_is_the_plain_estimate_and_resumes_after_any_epoch(texts, tmp_path):
    lm, data = LanguageModel(tiny_model("llama", torch.float32)), data_of(texts)
    trainer, module = trainer_of(tmp_path), JacobianLensModule(lm, averaging=SHORT)
    trainer.fit(module, datamodule=data)
    expected = estimate_jacobian_lens(lm, data.sequences, averaging=SHORT)
    assert_same(module.lens, expected)
    assert (len(data.sequences), trainer.current_epoch, module.lens.n_prompts) == (8, 3, 8)
    errors = [expected.standard_error(layer) for layer in lm.layers]
    assert float(trainer.callback_metrics["standard_error"]) == pytest.approx(sum(errors) / len(errors), abs=1e-6)
    for epochs in (1, 3):
        first = trainer_of(tmp_path, max_epochs=epochs)
        first.fit(JacobianLensModule(lm, averaging=SHORT), datamodule=data_of(texts))
        first.save_checkpoint(tmp_path / "some.ckpt")
        resumed = JacobianLensModule(lm, averaging=SHORT)
        trainer_of(tmp_path).fit(resumed, datamodule=data_of(texts), ckpt_path=tmp_path / "some.ckpt")
        assert_same(resumed.lens, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"limit": 5}, "other texts"),
        ({"averaging": Averaging(skip=4)}, "other averaging"),
        ({"layers": [0]}, "other layers"),
        ({"seed": 1}, "other hidden states of the LM"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(texts, tmp_path, changes, message):
    lm = LanguageModel(tiny_model("gpt2", torch.float32))
    trainer = trainer_of(tmp_path, max_epochs=1)
    trainer.fit(JacobianLensModule(lm, averaging=SHORT), datamodule=data_of(texts))
    trainer.save_checkpoint(tmp_path / "some.ckpt")
    if "seed" in changes:
        lm = LanguageModel(tiny_model("gpt2", torch.float32, seed=1))
    module = JacobianLensModule(lm, changes.get("layers"), changes.get("averaging", SHORT))
    with pytest.raises(LREError, match=message):
        trainer_of(tmp_path).fit(
            module, datamodule=data_of(texts, limit=changes.get("limit")), ckpt_path=tmp_path / "some.ckpt"
        )


def test_what_a_module_cannot_estimate_from(texts, tmp_path):
    lm = LanguageModel(tiny_model("gpt2", torch.float32))
    with pytest.raises(LREError, match=r"a text may have 8 tokens, and with skip=16 the shortest .* has 18"):
        trainer_of(tmp_path).fit(JacobianLensModule(lm), datamodule=data_of(texts))
    with pytest.raises(LREError, match="needs a TextDataModule"):
        trainer_of(tmp_path).fit(JacobianLensModule(lm), train_dataloaders=[0])


def command(model, texts, folder, *more):
    options = ["--data.length=12", "--data.shortest=8", "--data.batch_size=3", "--model.averaging.skip=3"]
    places = [f"--model.name_or_path={model}", f"--data.texts={texts}", f"--trainer.default_root_dir={folder / 'run'}"]
    return {"args": ["jlens", *QUIET, *places, *options, *more]}


def test_the_command_line_killed_resumed_and_on_two_processes(launch, texts, tmp_path):
    model, killed, two = (tmp_path / name for name in ("model", "killed", "two"))
    tiny_model("llama", torch.float32).save_pretrained(model)
    toy_tokenizer().save_pretrained(model)
    where = "lre_lightning.jlens.module:JacobianLensModule.training_step"
    ended = launch(killed, **command(model, texts, killed), signum=signal.SIGKILL, where=where, turn=1)
    assert ended.status == -signal.SIGKILL, ended.error
    assert not (killed / "run" / "jacobian_lens.safetensors").exists()
    ended = launch(killed, **command(model, texts, killed, "--published"))
    assert ended.status == 0, ended.error
    error = r"relative standard error \d+\.\d% on average over layers, at most \d+\.\d%"
    assert re.search(rf"Jacobian lens of 8 texts at 4 layers, {error}: ", ended.output)
    assert re.search(rf"batch 2 of 3, 6 texts, {error}", ended.error)
    lens = JacobianLens.load(killed / "run")
    lm = LanguageModel.from_pretrained(str(model))
    assert_same(lens, estimate_jacobian_lens(lm, data_of(texts).sequences, averaging=SHORT))
    assert lens.origin.model == str(model)
    published = JacobianLens.load(killed / "run" / "lens.pt", lm)
    assert (published.layers, published.n_prompts) == ((0, 1, 2), 8)
    devices = ["--trainer.devices=2", "--trainer.strategy=ddp_fork"]
    ended = launch(two, **command(model, texts, two, *devices))
    assert ended.status == 0, ended.error
    assert_same(JacobianLens.load(two / "run"), lens)
    ended = launch(killed, **command(model, texts, killed, "--data.limit=5"))
    assert (ended.status, ended.error.count("error: the checkpoint is of a Jacobian lens with other texts")) == (2, 1)
