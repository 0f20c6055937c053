"""The attribute lens as a callback, on a module of its own: when it writes, what, and what it leaves behind."""

import json
import pickle
import random
from dataclasses import asdict
from io import BytesIO

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lre_lightning.callbacks import (
    AttributeLens,
    BetaTuning,
    RelationLog,
    ResultsFigures,
    ResultsScalars,
    ResultsTable,
    attribute_lens,
)
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.page import lens_page
from lre_lightning.lens.plotting import plot_lenses, to_pixels
from lre_lightning.lens.reading import read_lenses
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.training.module import LREModule
from tests.callbacks.test_loggers import events_of
from tests.helpers.tiny_models import tiny_model
from tests.helpers.toy import (
    OBJECTS,
    WIDTH,
    WORDS,
    relation_json,
    toy_model,
    toy_tokenizer,
    write_toy_model,
    write_toy_relations,
)
from tests.training.test_module import trainer_of as quiet_trainer

TEXTS = ["colour thing1", "thing2 red"]
BATCHES = 4


class Foreign(L.LightningModule):
    """A network of its own that is trained with dropout, beside an LM and LREs of it."""

    def __init__(self, lres=None, lm=None):
        super().__init__()
        self.lm = (lm or LanguageModel(toy_model(), name="toy")).requires_grad_(False)
        self.tokenizer = toy_tokenizer()
        self.lres = lres
        if lres is None:
            keys = [("turned", 5), ("colour", 2), ("colour", 1), ("turned", 3)]
            self.lres = {key: self.random_lre(*key) for key in keys}
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

    def random_lre(self, relation, trial):
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(trial))
        return LRE(weight, torch.zeros(WIDTH), 0, Origin("toy", self.lm.identity, relation, trial=trial))

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), 0.01)

    def training_step(self, batch, batch_idx):
        return self.net(batch[0]).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.net(batch[0]).square().mean())

    def train_dataloader(self):
        data = torch.randn(8 * BATCHES, 4, generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(data), batch_size=8)

    val_dataloader = train_dataloader


def trainer_of(root, callbacks=(), **options):
    board = TensorBoardLogger(root, name="logs", version="run")
    return quiet_trainer(root, callbacks, **{"logger": board, "max_epochs": 1, "inference_mode": True, **options})


def expected(module, texts=TEXTS, **options):
    return [read_lenses(module.lm, module.tokenizer, text, module.lres, **options) for text in texts]


def check_files(folder, grids):
    flat = [lens for text in grids for lens in text]
    assert json.loads((folder / "lenses.json").read_text()) == json.loads(json.dumps([asdict(lens) for lens in flat]))
    assert (folder / "lenses.html").read_text(encoding="utf-8") == lens_page(flat)
    for number, text in enumerate(grids):
        with Image.open(folder / f"text{number}.png") as image:
            assert np.array_equal(np.asarray(image), to_pixels(plot_lenses(text)))
    names = {"lenses.json", "lenses.html", *(f"text{number}.png" for number in range(len(grids)))}
    assert {path.name for path in folder.iterdir()} == names


def images(root):
    """Return the images that were logged, by tag."""
    events = events_of(root / "logs" / "run")
    return {tag: events.Images(tag) for tag in events.Tags()["images"]}


# What is written, and where.


def test_the_grids_go_to_files_and_to_tensorboard(tmp_path):
    module = Foreign()
    trainer_of(tmp_path, [AttributeLens(TEXTS)]).fit(module)
    check_files(tmp_path / "lenses", expected(module))
    found = images(tmp_path)
    assert list(found) == [f"attribute_lens/{number} {text}" for number, text in enumerate(TEXTS)]
    for (logged,), grids in zip(found.values(), expected(module), strict=True):
        assert logged.step == BATCHES
        with Image.open(BytesIO(logged.encoded_image_string)) as shown:
            assert np.array_equal(np.asarray(shown), to_pixels(plot_lenses(grids), 700))


def test_options_choose_relations_layers_tokens_and_folder_also_after_pickling(tmp_path):
    options = {"relations": ["colour", "taste"], "top_k": 2, "layers": [1, "emb"]}
    callback = pickle.loads(pickle.dumps(AttributeLens(TEXTS[:1], **options, dirpath=str(tmp_path / "there" / "deep"))))
    module = Foreign()
    trainer_of(tmp_path, [callback]).fit(module)
    check_files(tmp_path / "there" / "deep", expected(module, TEXTS[:1], **options))
    assert not (tmp_path / "lenses").exists()


def test_a_jacobian_lens_is_read_from_its_file_or_the_module(tmp_path):
    module, path = Foreign(), tmp_path / "jacobian_lens.safetensors"
    lens = JacobianLens({1: torch.randn(WIDTH, WIDTH)}, n_prompts=2)
    lens.save(path)
    trainer_of(tmp_path, [AttributeLens(TEXTS[:1], jacobian_lens=str(path), dirpath=str(tmp_path / "a"))]).fit(module)
    module.jacobian_lens = lens
    trainer_of(tmp_path, [AttributeLens(TEXTS[:1], dirpath=str(tmp_path / "b"))]).fit(module)
    for folder in ("a", "b"):
        check_files(tmp_path / folder, expected(module, TEXTS[:1], jacobian_lens=lens))
    with pytest.raises(LREError, match=r"there is no Jacobian lens at 'none.pt'"):
        trainer_of(tmp_path, [AttributeLens(TEXTS, jacobian_lens="none.pt")]).fit(module)


def test_a_fit_of_lres_shows_what_it_finds(tmp_path):
    model, relations = str(write_toy_model(tmp_path / "model")), write_toy_relations(tmp_path / "relations")
    longer = relation_json("longer colour") | {"prompt_templates": ["colour {}"]}
    (relations / "longer_colour.json").write_text(json.dumps(longer))
    data = RelationDataModule(model, source=str(relations), n_shot=4, trials=1)
    options = {"max_epochs": -1, "inference_mode": False}
    module = LREModule(model, layers=[0], betas=[1.0], ranks=[4])
    given = AttributeLens(["thing6"], ["wrong colour", "thing colour"], 1, dirpath=str(tmp_path / "given"))
    trainer_of(tmp_path, [given, AttributeLens()], **options).fit(module, datamodule=data)
    found = json.loads((tmp_path / "given" / "lenses.json").read_text())
    assert [grid["name"] for grid in found] == ["thing colour", "logit lens"]
    assert {row[0][0] for row in found[0]["top"]} == {OBJECTS[2]}
    # Without texts each category gives its shortest sentence.
    found = json.loads((tmp_path / "lenses" / "lenses.json").read_text())
    assert [grid["name"] for grid in found] == ["half colour", "logit lens", "thing colour", "logit lens"]
    tested = {trial.relation.name: trial.test for trial in map(data.trial, range(4))}
    for grid, other in zip(found[::2], found[1::2], strict=True):
        subjects = [sample.subject for sample in tested[grid["name"]]]
        assert grid["text"] == other["text"] == min(subjects, key=len)
    texts = [f"attribute_lens/{i} {found[2 * i]['text']}" for i in (0, 1)]
    assert {tag: len(shown) for tag, shown in images(tmp_path).items()} == (
        {"attribute_lens/0 thing6": 4} | dict.fromkeys(texts, 1)
    )
    with pytest.raises(LREError, match=r"no LRE of \['colours'\] can be shown: the data have \['half colour', "):
        trainer_of(tmp_path, [AttributeLens(TEXTS, ["colours"])], **options).fit(module, datamodule=data)


# When.


@pytest.fixture
def shown(monkeypatch):
    """The times at which lenses were read, as numbers of batches, with nothing read and written."""
    steps = []
    monkeypatch.setattr(attribute_lens, "read_lenses", lambda *_: None)
    show = AttributeLens._show
    monkeypatch.setattr(AttributeLens, "_show", lambda *args: steps.append(args[1].global_step) or show(*args))
    monkeypatch.setattr(attribute_lens, "write_lenses", lambda grids, _: [Figure()] * len(grids))
    return steps


@pytest.mark.parametrize(
    ("every", "epochs", "expected"),
    [(None, 2, [2]), (2, 5, [2, 4, 5]), (2, 4, [2, 4])],
)
def test_lenses_are_read_after_the_chosen_epochs_and_at_the_end_alone(tmp_path, shown, every, epochs, expected):
    trainer_of(tmp_path, [AttributeLens(["thing1"], every_n_epochs=every)], max_epochs=epochs).fit(Foreign())
    assert shown == [BATCHES * epoch for epoch in expected]


def test_a_resumed_fit_counts_epochs_from_the_first_and_the_same_callback_shows_every_fit(tmp_path, shown):
    callback = AttributeLens(["thing1"], every_n_epochs=2)
    first = trainer_of(tmp_path, [callback], max_epochs=3)
    first.fit(Foreign())
    first.save_checkpoint(tmp_path / "three.ckpt")
    for epochs in (6, 3):  # the last has nothing left to train
        trainer_of(tmp_path, [callback], max_epochs=epochs).fit(Foreign(), ckpt_path=tmp_path / "three.ckpt")
    assert shown == [8, 12, 16, 24, 12]


# What is left behind.


class Watch(Callback):
    """Keep all that a callback might change; two of them stand around the one that is watched."""

    def __init__(self):
        self.states = []

    def look(self, _, module):
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules()]
        random_state = torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state())
        modes = [m.training for m in module.modules()]
        grad = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        self.states.append((random_state, modes, hooks, grad))

    on_train_epoch_end = on_fit_end = on_validation_end = look


def checked(*arguments):
    """Read lenses; what the LM keeps of a run must be of use to later training."""
    assert not torch.is_inference_mode_enabled()
    return read_lenses(*arguments)


def dropout_lm():
    """An LM of the toy's words whose dropout is on, as in a fine-tuning."""
    model = tiny_model("gpt2", torch.float32, vocab_size=len(WORDS), resid_pdrop=0.5, embd_pdrop=0.5, bos_token_id=0)
    lm = LanguageModel(model, name="tiny")
    model.train()
    return lm


def test_it_leaves_everything_as_found(tmp_path, monkeypatch):
    monkeypatch.setattr(attribute_lens, "read_lenses", checked)
    weights = {}
    for name, callback in {"with": AttributeLens(TEXTS, every_n_epochs=1), "without": Callback()}.items():
        module, before, after = Foreign(lm=dropout_lm(), lres={}), Watch(), Watch()
        trainer = trainer_of(tmp_path / name, [before, callback, after], max_epochs=2)
        L.seed_everything(3)
        trainer.fit(module)
        assert len(before.states) == 5  # after both epochs and their validation, and at the end
        assert before.states == after.states
        assert max(sum(state[1]) for state in before.states) > 20  # the LM's dropout was on too
        weights[name] = [parameter.clone() for parameter in module.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(weights["with"], weights["without"], strict=True))
    check_files(tmp_path / "with" / "lenses", expected(module))  # without the LM's dropout
    monkeypatch.setattr(attribute_lens, "read_lenses", lambda *_: 1 / 0)
    before, after, module = Watch(), Watch(), Foreign(lm=dropout_lm(), lres={})
    trainer = trainer_of(tmp_path, [before, AttributeLens(TEXTS, every_n_epochs=1)], limit_val_batches=0)
    with pytest.raises(ZeroDivisionError):
        trainer.fit(module)
    after.look(trainer, module)
    assert [state[:3] for state in before.states] == [state[:3] for state in after.states]


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": []}, r"texts must be a list of different texts, none of them empty, got \[\]"),
        ({"texts": ["a", " "]}, r"got \['a', ' '\]"),
        ({"texts": ["a", "b", "a"]}, r"got \['a', 'b', 'a'\]"),
        ({"relations": []}, "relations must be a list"),
        ({"every_n_epochs": 0}, "every_n_epochs must be a whole number of at least 1"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        # What does not fit the LM.
        ({"layers": [0, 7]}, "layer 7 is out of range"),
        ({"top_k": len(WORDS) + 1}, f"top_k {len(WORDS) + 1} is out of range"),
        ({"texts": ["thing1 " * 3000]}, "tokens is too long"),
    ],
)
def test_invalid_arguments_are_refused_before_the_work(tmp_path, changes, message):
    class Never(Callback):
        def on_train_batch_start(self, *_):
            raise AssertionError("the work began")

    with pytest.raises(LREError, match=message):
        trainer_of(tmp_path, [AttributeLens(**{"texts": TEXTS, **changes}), Never()]).fit(Foreign())


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (AttributeLens(TEXTS), "AttributeLens needs a module with 'lm' and 'lres', but Foreign has no 'lres'"),
        (BetaTuning(), "BetaTuning needs a module with 'records', but Foreign has no 'records'"),
        (BetaTuning(apply=True), "with 'records' and 'set_beta', but Foreign has no 'records' and no 'set_beta'"),
        (RelationLog(), "RelationLog needs a module with 'records', but Foreign has no 'records'"),
        (ResultsTable(), "ResultsTable needs a module with 'records', but Foreign has no 'records'"),
        (ResultsFigures(), "ResultsFigures needs a module with 'records', but Foreign has no 'records'"),
        (ResultsScalars(), "ResultsScalars needs a module with 'records', but Foreign has no 'records'"),
    ],
)
def test_a_module_that_lacks_something_is_refused(tmp_path, callback, message):
    module = Foreign()
    del module.lres
    with pytest.raises(LREError, match=message):
        trainer_of(tmp_path, [callback]).fit(module)


def test_texts_and_a_tokenizer_must_come_from_somewhere(tmp_path):
    module = Foreign()
    with pytest.raises(LREError, match="AttributeLens needs texts, or a RelationDataModule to take them from"):
        trainer_of(tmp_path, [AttributeLens()]).fit(module)
    del module.tokenizer
    with pytest.raises(LREError, match="AttributeLens needs a 'tokenizer' of the datamodule or of Foreign"):
        trainer_of(tmp_path, [AttributeLens(TEXTS)]).fit(module)
