"""The callback on a module that is not ours: when it writes, what, where, on how many processes, and what it leaves."""

import json
import os
import pickle
import random
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import warnings
from dataclasses import asdict
from io import BytesIO

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lre_lightning.callbacks import AttributeLens, attribute_lens
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lens.lens import read_lenses
from lre_lightning.lens.page import lens_page
from lre_lightning.lens.plotting import plot_lenses, to_pixels
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.training.module import LREModule
from tests.helpers.tiny_models import tiny_model
from tests.helpers.toy import OBJECTS, WIDTH, WORDS, toy_model, toy_tokenizer, write_toy_model, write_toy_relations

TEXTS = ["colour thing1", "thing2 thing3 red"]
BATCHES = 4


def toy_lre(lm, relation, trial, seed=None):
    """The identity, or a map drawn at random."""
    weight = torch.eye(WIDTH)
    if seed is not None:
        weight = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(seed))
    return LRE(weight, torch.zeros(WIDTH), 0, Origin("toy", lm.fingerprint, relation, trial=trial))


class Foreign(L.LightningModule):
    """A network of its own that is trained with dropout, beside an LM and LREs of it."""

    def __init__(self, lres=None, lm=None):
        super().__init__()
        self.lm = lm or LanguageModel(toy_model(), name="toy")
        self.tokenizer = toy_tokenizer()
        if lres is None:
            lres = {
                ("turned", 5): toy_lre(self.lm, "turned", 5, seed=5),
                ("colour", 2): toy_lre(self.lm, "colour", 2, seed=2),
                ("colour", 1): toy_lre(self.lm, "colour", 1),
                ("turned", 3): toy_lre(self.lm, "turned", 3, seed=3),
            }
        self.lres = lres
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))

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
    defaults = {
        "default_root_dir": root,
        "accelerator": "cpu",
        "devices": 1,
        "logger": TensorBoardLogger(root, name="logs", version="run"),
        "max_epochs": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    return L.Trainer(**{**defaults, **options}, callbacks=list(callbacks))


@pytest.fixture(autouse=True)
def quiet():
    """Lightning's advice about loaders with few workers is of no interest here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module=r"lightning\..*(connectors|loops)")
        yield


def expected(module, relations=("turned", "colour"), texts=TEXTS, **options):
    """The grids that the callback is to write, of the first trial of each relation."""
    return [read_lenses(module.lm, module.tokenizer, text, module.lres, relations, **options) for text in texts]


def to_json(lenses):
    return json.dumps([asdict(lens) for lens in lenses], ensure_ascii=False, indent=1)


def check_files(folder, grids):
    flat = [lens for text in grids for lens in text]
    assert (folder / "lenses.json").read_text(encoding="utf-8") == to_json(flat)
    assert (folder / "lenses.html").read_text(encoding="utf-8") == lens_page(flat)
    for number, text in enumerate(grids):
        with Image.open(folder / f"text{number}.png") as image:
            assert np.array_equal(np.asarray(image), to_pixels(plot_lenses(text)))
    names = {"lenses.json", "lenses.html", *(f"text{number}.png" for number in range(len(grids)))}
    assert {path.name for path in folder.iterdir()} == names


def image_steps(root):
    """Steps of the images that were logged, by tag."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(root), size_guidance={"images": 0})
    events.Reload()
    return {tag: [image.step for image in events.Images(tag)] for tag in events.Tags()["images"]}


# What is written, and where.


def test_files_hold_the_grids_of_the_first_trial_of_every_relation(tmp_path):
    module = Foreign()
    trainer_of(tmp_path, [AttributeLens(TEXTS)]).fit(module)
    check_files(tmp_path / "lenses", expected(module))
    grid = json.loads((tmp_path / "lenses" / "lenses.json").read_text())[1]
    assert grid["name"] == "colour"
    for row in grid["top"]:  # the toy's blocks do nothing, and thing1 is followed by the second object
        assert row[1][0] == OBJECTS[1]


def test_options_choose_relations_layers_tokens_and_folder(tmp_path):
    module = Foreign()
    options = {"relations": ["colour"], "top_k": 2, "layers": [1, "emb"], "dirpath": str(tmp_path / "there" / "deep")}
    trainer_of(tmp_path, [AttributeLens(TEXTS[:1], **options)]).fit(module)
    check_files(tmp_path / "there" / "deep", expected(module, ["colour"], TEXTS[:1], top_k=2, layers=["emb", 1]))
    assert not (tmp_path / "lenses").exists()


def test_without_an_lre_there_is_the_logit_lens(tmp_path):
    module = Foreign(lres={})
    trainer_of(tmp_path, [AttributeLens(TEXTS)]).fit(module)
    check_files(tmp_path / "lenses", expected(module, []))


def test_validate_alone_writes(tmp_path):
    module = Foreign()
    trainer_of(tmp_path, [AttributeLens(TEXTS)]).validate(module)
    check_files(tmp_path / "lenses", expected(module))
    assert image_steps(tmp_path / "logs" / "run") == {"attribute_lens/0": [0], "attribute_lens/1": [0]}


def test_the_datamodules_tokenizer_is_preferred(tmp_path):
    class Data(L.LightningDataModule):
        tokenizer = toy_tokenizer()
        relations = ("of another", "kind")

        def train_dataloader(self):
            return Foreign.train_dataloader(self)

    module = Foreign()
    module.tokenizer = "another one"
    trainer_of(tmp_path, [AttributeLens(TEXTS, ["turned", "colour"])]).fit(module, datamodule=Data())
    module.tokenizer = toy_tokenizer()
    check_files(tmp_path / "lenses", expected(module))


def test_of_our_own_module_it_shows_what_fit_finds(tmp_path):
    model = str(write_toy_model(tmp_path / "model"))
    data = RelationDataModule(
        model,
        ["thing colour", "wrong colour"],
        str(write_toy_relations(tmp_path / "relations")),
        n_shot=4,
        trials=2,
    )
    callback = AttributeLens(["thing6", "colour thing3"], every_n_epochs=1, relations=["wrong colour", "thing colour"])
    options = {"max_epochs": -1, "reload_dataloaders_every_n_epochs": 1, "num_sanity_val_steps": 0}
    module = LREModule(model, betas=[1.0], ranks=[4])
    trainer = trainer_of(tmp_path, [callback], inference_mode=False, **options)
    with pytest.warns(UserWarning, match="no LRE of 'wrong colour' to look through, but of 'thing colour'"):
        trainer.fit(module, datamodule=data)
    assert list(module.lres) == [("thing colour", 0), ("thing colour", 1)]
    found = json.loads((tmp_path / "lenses" / "lenses.json").read_text())
    assert [grid["name"] for grid in found] == ["thing colour", "logit lens"] * 2
    assert {row[0][0] for row in found[0]["top"]} == {OBJECTS[2]}
    assert {row[1][0] for row in found[2]["top"]} == {OBJECTS[3]}
    assert image_steps(tmp_path / "logs" / "run")["attribute_lens/1"] == [
        trainer.global_step * epoch // 4 for epoch in range(1, 5)
    ]
    with pytest.raises(
        LREError, match="no LRE of 'colours' can be shown: the data have 'thing colour', 'wrong colour'"
    ):
        trainer_of(tmp_path, [AttributeLens(TEXTS, ["colours"])], **options).fit(module, datamodule=data)


# When.


@pytest.mark.parametrize(
    ("every", "epochs", "shown"),
    [(None, 2, [2]), (1, 3, [1, 2, 3]), (2, 5, [2, 4, 5]), (2, 4, [2, 4]), (7, 3, [3])],
)
def test_images_are_logged_at_the_chosen_epochs_and_at_the_end(tmp_path, every, epochs, shown):
    callback = AttributeLens(["thing1"], every_n_epochs=every)
    trainer_of(tmp_path, [callback], max_epochs=epochs).fit(Foreign())
    assert image_steps(tmp_path / "logs" / "run") == {"attribute_lens/0": [BATCHES * epoch for epoch in shown]}


def test_the_same_callback_shows_every_fit(tmp_path):
    """The second goes on from a checkpoint of the first's end, and has nothing left to train."""
    callback = AttributeLens(["thing1"], every_n_epochs=1)
    first = trainer_of(tmp_path / "first", [callback])
    first.fit(Foreign())
    first.save_checkpoint(tmp_path / "one.ckpt")
    trainer_of(tmp_path / "second", [callback]).fit(Foreign(), ckpt_path=tmp_path / "one.ckpt")
    for name in ("first", "second"):
        assert (tmp_path / name / "lenses" / "text0.png").exists()


def test_a_resumed_fit_counts_epochs_from_the_first(tmp_path):
    first = trainer_of(tmp_path / "first", max_epochs=3)
    first.fit(Foreign())
    first.save_checkpoint(tmp_path / "three.ckpt")
    trainer = trainer_of(tmp_path, [AttributeLens(["thing1"], every_n_epochs=2)], max_epochs=6)
    trainer.fit(Foreign(), ckpt_path=tmp_path / "three.ckpt")
    assert image_steps(tmp_path / "logs" / "run") == {"attribute_lens/0": [16, 24]}


def test_nothing_is_done_in_epochs_in_which_it_is_off(tmp_path, monkeypatch):
    calls, counts = [], []
    call = type(toy_tokenizer()).__call__
    monkeypatch.setattr(type(toy_tokenizer()), "__call__", lambda *a, **k: calls.append("tokens") or call(*a, **k))
    forward = LanguageModel.hidden_states
    monkeypatch.setattr(LanguageModel, "hidden_states", lambda *a, **k: calls.append("lm") or forward(*a, **k))

    class Count(Callback):
        def on_train_start(self, *_):
            calls.clear()

        def on_train_epoch_end(self, trainer, _):
            counts.append(list(calls))
            calls.clear()

    trainer_of(tmp_path, [AttributeLens(TEXTS, every_n_epochs=3), Count()], max_epochs=4).fit(Foreign())
    assert [bool(count) for count in counts] == [False, False, True, False]
    assert calls


# What is left behind.


class Watch(Callback):
    """Keeps all that a callback might change; `pair` of them stand around the one that is watched."""

    def __init__(self, states):
        self.states = states

    def look(self, module):
        hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in module.modules()]
        random_state = (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))
        modes = [m.training for m in module.modules()]
        forwards = ["forward" in m.__dict__ for m in module.modules()]
        self.states.append(
            (random_state, modes, hooks, forwards, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        )

    def on_train_epoch_end(self, _, module):
        self.look(module)

    def on_fit_end(self, _, module):
        self.look(module)

    def on_validation_end(self, _, module):
        self.look(module)


def dropout_lm():
    """An LM of the toy's words whose dropout is on, as in a fine-tuning."""
    model = tiny_model("gpt2", torch.float32, vocab_size=len(WORDS), resid_pdrop=0.5, embd_pdrop=0.5, bos_token_id=0)
    lm = LanguageModel(model, name="tiny")
    model.train()
    return lm


def noisy(*arguments, **options):
    """Read lenses and draw numbers everywhere; what an LM keeps of a run must be of use to later training."""
    assert not torch.is_inference_mode_enabled()
    torch.rand(1), random.random(), np.random.rand()
    return read_lenses(*arguments, **options)


def test_it_leaves_everything_as_found(tmp_path, monkeypatch):
    monkeypatch.setattr(attribute_lens, "read_lenses", noisy)
    weights = {}
    for name, callback in {"with": AttributeLens(TEXTS, every_n_epochs=1), "without": Callback()}.items():
        module = Foreign(lm=dropout_lm(), lres={})
        before, after = [], []
        trainer = trainer_of(tmp_path / name, [Watch(before), callback, Watch(after)], max_epochs=2)
        L.seed_everything(3)
        trainer.fit(module)
        shown = [path.read_text(encoding="utf-8") for path in (tmp_path / "with" / "lenses").glob("*.json")]
        trainer.validate(module, verbose=False)
        assert len(before) == len(after) == 7  # validation: before fit, after both epochs, alone
        assert before == after
        assert max(sum(state[1]) for state in before) > 20  # the LM's dropout was on too
        weights[name] = [parameter.clone() for parameter in module.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(weights["with"], weights["without"], strict=True))
    module.lm.model.eval()
    assert shown == [to_json([lens for text in expected(module, []) for lens in text])]  # without the LM's dropout


def test_it_leaves_everything_as_found_where_it_raises(tmp_path, monkeypatch):
    def broken(lm, *_):
        noisy(lm, *_)
        assert not any(module.training for module in lm.modules())
        raise RuntimeError("out of memory\nand more")

    monkeypatch.setattr(attribute_lens, "read_lenses", broken)
    before, after, watch = [], [], Watch([])
    module = Foreign(lm=dropout_lm(), lres={})
    trainer = trainer_of(tmp_path, [Watch(before), AttributeLens(TEXTS, every_n_epochs=1)], limit_val_batches=0)
    with pytest.raises(LREError, match=r"^the attribute lens failed: RuntimeError: out of memory$") as caught:
        trainer.fit(module)
    assert isinstance(caught.value.__cause__, RuntimeError)
    watch.look(module)
    after = watch.states
    assert [state[:4] for state in before] == [state[:4] for state in after]


def test_files_that_cannot_be_written_are_an_error_that_names_them(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LREError, match=r"file/deep.* cannot be written: .*a file is where"):
        trainer_of(tmp_path, [AttributeLens(TEXTS, dirpath=str(tmp_path / "file" / "deep"))]).fit(Foreign())


def test_lres_are_looked_up_one_at_a_time(tmp_path):
    """Each may be a large file: they are not gathered."""

    class Counting(dict):
        looked_up = ()

        def __getitem__(self, pair):
            Counting.looked_up += (pair,)
            return super().__getitem__(pair)

        def values(self):
            raise AssertionError("all LREs at once")

        items = values

    module = Foreign()
    module.lres = Counting(module.lres)
    trainer_of(tmp_path, [AttributeLens(["thing1"], ["colour"])]).fit(module)
    assert set(Counting.looked_up) == {("colour", 1)}


# Loggers.


def messages(record):
    return [str(warning.message) for warning in record if "attribute lens" in str(warning.message)]


@pytest.mark.parametrize("logger", [False, "csv"])
def test_without_a_logger_for_images_it_says_so_once_and_writes_files(tmp_path, logger):
    name = "CSVLogger" if logger else "the trainer without a logger"
    callback, module = AttributeLens(TEXTS, every_n_epochs=1), Foreign()
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for _ in range(2):
            trainer = trainer_of(tmp_path, [callback], logger=logger and CSVLogger(tmp_path), max_epochs=2)
            trainer.fit(module)
            trainer.validate(module, verbose=False)
    (message,) = messages(record)
    assert message.startswith(f"attribute lenses cannot be logged as images: {name} takes none")
    assert str(tmp_path / "lenses") in message
    check_files(tmp_path / "lenses", expected(module))


def test_a_checkpoint_remembers_what_has_been_said(tmp_path):
    first = trainer_of(tmp_path, [AttributeLens(TEXTS)], logger=False)
    with pytest.warns(UserWarning, match="cannot be logged as images"):
        first.fit(Foreign())
    first.save_checkpoint(tmp_path / "one.ckpt")
    callback = AttributeLens(TEXTS)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        trainer_of(tmp_path, [callback], logger=False, max_epochs=2).fit(Foreign(), ckpt_path=tmp_path / "one.ckpt")
    assert messages(record) == []
    assert callback.state_dict() == {"warned": True}
    assert AttributeLens(TEXTS).state_dict() == {"warned": False}


def test_every_tensorboard_logger_gets_the_images_and_nothing_is_said(tmp_path):
    loggers = [TensorBoardLogger(tmp_path, name=name, version="run") for name in ("one", "two")]
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        trainer_of(tmp_path, [AttributeLens(TEXTS)], logger=[CSVLogger(tmp_path), *loggers]).fit(Foreign())
    assert messages(record) == []
    for name in ("one", "two"):
        assert list(image_steps(tmp_path / name / "run")) == ["attribute_lens/0", "attribute_lens/1"]


def test_a_copy_through_pickle_does_the_same(tmp_path):
    callback = AttributeLens(TEXTS, ["turned"], 2, 3, ["emb"], str(tmp_path / "out"))
    again = pickle.loads(pickle.dumps(callback))
    assert vars(again) == vars(callback)
    module = Foreign()
    trainer_of(tmp_path, [again]).fit(module)
    check_files(tmp_path / "out", expected(module, ["turned"], top_k=3, layers=["emb"]))


# What is refused.


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"texts": []}, r"texts \[\] is no list"),
        ({"texts": "thing1"}, "texts 'thing1' is no list"),
        ({"texts": [" "]}, "texts must be texts with something in them, and one is ' '"),
        ({"texts": ["a", 3]}, "one is 3"),
        ({"texts": ["a", "b", "a"]}, "'a' is twice among the texts"),
        ({"relations": []}, r"relations \[\] is no list"),
        ({"relations": [None]}, "relations must be texts with something in them, and one is None"),
        ({"every_n_epochs": 0}, "every_n_epochs 0 is out of range"),
        ({"every_n_epochs": 1.5}, "every_n_epochs 1.5 is out of range"),
        ({"top_k": 0}, "top_k 0 is out of range"),
        ({"top_k": True}, "top_k True is out of range"),
        ({"layers": [0, -1]}, "layer -1 is none"),
        ({"layers": ["embed"]}, "layer 'embed' is none"),
        ({"layers": [True]}, "layer True is none"),
    ],
)
def test_arguments_that_are_refused(changes, message):
    with pytest.raises(LREError, match=message):
        AttributeLens(**{"texts": TEXTS, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": [0, 7]}, "layer 7 is out of range"),
        ({"top_k": len(WORDS) + 1}, f"top_k {len(WORDS) + 1} is out of range: the LM's vocabulary has {len(WORDS)}"),
        ({"texts": ["thing1 " * 3000]}, "tokens is too long"),
    ],
)
@pytest.mark.parametrize("function", ["fit", "validate"])
def test_what_does_not_fit_the_lm_is_refused_before_it_is_too_late(tmp_path, changes, message, function):
    class Never(Callback):
        def on_train_batch_start(self, *_):
            raise AssertionError("training began")

        on_validation_batch_start = on_train_batch_start

    trainer = trainer_of(tmp_path, [AttributeLens(**{"texts": TEXTS, **changes}), Never()], num_sanity_val_steps=0)
    with pytest.raises(LREError, match=message):
        getattr(trainer, function)(Foreign())


@pytest.mark.parametrize(
    ("lacking", "message"),
    [
        ("lm", "Foreign has no 'lm'"),
        ("lres", "Foreign has no 'lres'"),
        ("tokenizer", "needs a 'tokenizer', of the datamodule or of Foreign"),
    ],
)
def test_a_module_without_what_it_takes_is_refused(tmp_path, lacking, message):
    module = Foreign()
    delattr(module, lacking)
    with pytest.raises(LREError, match=message):
        trainer_of(tmp_path, [AttributeLens(TEXTS)]).fit(module)


def test_a_relation_without_an_lre_is_named_once_at_the_end(tmp_path):
    module = Foreign()
    trainer = trainer_of(tmp_path, [AttributeLens(TEXTS, ["taste", "colour", "smell"], 1)], max_epochs=2)
    with pytest.warns(UserWarning, match="there is no LRE of 'taste', 'smell' to look through") as record:
        trainer.fit(module)
    named = [str(warning.message) for warning in record if "taste" in str(warning.message)]
    assert named == ["there is no LRE of 'taste', 'smell' to look through, but of 'turned', 'colour'"]
    check_files(tmp_path / "lenses", expected(module, ["colour"]))
    with pytest.warns(UserWarning, match="'taste'"):
        trainer.validate(module, verbose=False)


# Several processes.


def run_on_rank(rank, size, nodes, port, root):
    """Fit with and without failures on one of several processes; keeps the message of each failure."""
    torch.set_num_threads(1)
    os.environ.update(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        WORLD_SIZE=str(size),
        RANK=str(rank),
        LOCAL_RANK="0" if nodes > 1 else str(rank),
        GROUP_RANK=str(rank if nodes > 1 else 0),
    )
    warnings.simplefilter("ignore")
    found = {}

    def fit(name, epochs=1, **options):
        callback = AttributeLens(TEXTS, every_n_epochs=1, **options)
        logger = TensorBoardLogger(root / name, name="logs", version="run")
        trainer = trainer_of(
            root / name,
            [callback],
            logger=logger,
            strategy="ddp",
            devices=size // nodes,
            num_nodes=nodes,
            plugins=[TorchElasticEnvironment()],
            max_epochs=epochs,
        )
        try:
            trainer.fit(Foreign())
            found[name] = None
        except LREError as error:
            found[name] = str(error)

    read = found["read"] = []
    attribute_lens.read_lenses = lambda *arguments: read.append(arguments[2]) or read_lenses(*arguments)
    fit("good", epochs=2, dirpath=str(root / f"written by {rank}"))

    def broken(*_):
        raise LREError("text 1 is broken") if rank == 1 else RuntimeError("another rank's")

    attribute_lens.read_lenses = broken if rank == 1 else read_lenses
    fit("unread")
    attribute_lens.read_lenses = read_lenses
    fit("unwritten", dirpath=str(root / "file" / "deep"))
    (root / f"rank{rank}.json").write_text(json.dumps(found))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "nodes"), [(2, 1), (3, 3)])
def test_several_processes_write_what_one_writes_and_fail_together(tmp_path, size, nodes):
    """Two devices of one machine; three machines of one device, more than there are texts."""
    module = Foreign()
    trainer_of(tmp_path / "alone", [AttributeLens(TEXTS)]).fit(module)
    (tmp_path / "file").write_text("")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = (size, nodes, port, tmp_path)
    torch.multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])  # imports take longest
    context = torch.multiprocessing.start_processes(run_on_rank, arguments, size, False, start_method="forkserver")
    give_up = time.monotonic() + 240
    while not context.join(timeout=1):
        if time.monotonic() > give_up:
            for process in context.processes:
                process.kill()
            pytest.fail("the processes wait for each other")
    files = {path.name: path.read_bytes() for path in (tmp_path / "alone" / "lenses").iterdir()}
    assert len(files) == 4
    assert {path.name: path.read_bytes() for path in (tmp_path / "written by 0").iterdir()} == files
    assert len(list(tmp_path.glob("written by *"))) == 1
    steps = [-(-BATCHES // size) * epoch for epoch in (1, 2)]
    assert image_steps(tmp_path / "good" / "logs" / "run") == {f"attribute_lens/{i}": steps for i in (0, 1)}
    for rank in range(size):
        found = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert found["good"] is None
        assert found["read"] == TEXTS[rank : rank + 1] * 2
        assert found["unread"] == "text 1 is broken"
        assert re.search("file/deep.* cannot be written: .*a file is where a folder should be", found["unwritten"])


# A real TensorBoard.


@pytest.fixture
def tensorboard(tmp_path):
    """Serve the log folder, and give a function that fetches from the server."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path / "logs"), "--port", "0"]
    options = [
        "--load_fast",
        "false",
        "--samples_per_plugin",
        "images=100",
        "--host",
        "127.0.0.1",
        "--reload_interval",
        "1",
    ]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        told = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+", told)):
            line = server.stderr.readline()
            assert line, f"TensorBoard did not start: {told}"
            told += line

        def fetch(path, **query):
            url = f"{address[0]}/data/plugin/images/{path}?{urllib.parse.urlencode(query)}"
            with urllib.request.urlopen(url, timeout=60) as answer:
                return answer.read()

        yield fetch
    finally:
        server.terminate()
        server.wait(timeout=60)
        server.stderr.close()


def served_images(fetch):
    """The images of the run that TensorBoard has read by now, by tag."""
    tags = json.loads(fetch("tags")).get("run", ())
    return {tag: json.loads(fetch("images", tag=tag, run="run", sample=0)) for tag in tags}


@pytest.mark.slow
def test_tensorboard_serves_the_pictures(tmp_path, tensorboard):
    module = Foreign()
    trainer_of(tmp_path, [AttributeLens(TEXTS, every_n_epochs=2)], max_epochs=3).fit(module)
    give_up = time.monotonic() + 120
    # It reads while the fit writes: at first it may have one of the two epochs.
    while sum(map(len, (found := served_images(tensorboard)).values())) < 2 * len(TEXTS):
        assert time.monotonic() < give_up, found
        time.sleep(0.5)
    for number, grids in enumerate(expected(module)):
        pixels = to_pixels(plot_lenses(grids))
        with Image.open(tmp_path / "lenses" / f"text{number}.png") as file:
            assert np.array_equal(np.asarray(file), pixels)
        images = found[f"attribute_lens/{number}"]
        assert [image["step"] for image in images] == [2 * BATCHES, 3 * BATCHES]
        for image in images:
            content = tensorboard("individualImage", **dict(urllib.parse.parse_qsl(image["query"])))
            with Image.open(BytesIO(content)) as shown:
                assert np.array_equal(np.asarray(shown.convert("RGB")), pixels)
