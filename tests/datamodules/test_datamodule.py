import os
import pickle
import subprocess
import sys
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader

from lre_lightning.datamodules import RelationBatch, RelationDataModule, collate
from lre_lightning.datamodules.loaders import Loader, split_test, split_train
from lre_lightning.errors import LREError
from lre_lightning.prompts import trials as draws
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import make_prompts
from lre_lightning.relations.relation import Sample
from lre_lightning.relations.selection import Selection
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.options import nested
from tests.relations.test_relations import CAPITALS, write

SIZES = {"first": 7, "second": 9, "third": 6}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three relations and a saved tokenizer."""
    path = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        samples = [{"subject": f"{name} {'x' * i}", "object": f"{i}"} for i in range(size)]
        write(path / "relations" / f"{name}.json", CAPITALS, name=name, samples=samples)
    tokenizers.make("characters").save_pretrained(path / "tokenizer")
    return path


@pytest.fixture
def make(folder):
    def make(**arguments):
        given = {"tokenizer": str(folder / "tokenizer"), "source": str(folder / "relations")}
        return RelationDataModule(**nested(**(given | {"n_shot": 3, "trials": 2, "batch_size": 2} | arguments)))

    return make


class Recorder(LightningModule):
    """Trains nothing and keeps what it is given."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.seen = []

    def record(self, stage, batch):
        assert isinstance(batch, RelationBatch)
        pair = {*zip(batch.relation.tolist(), batch.trial.tolist(), strict=True)}
        assert len(pair) == 1, "a batch holds prompts of one pair"
        self.seen.append((stage, self.current_epoch, *pair, tuple(batch.sample.tolist())))

    def training_step(self, batch, batch_idx):
        self.record("train", batch)
        self.optimizers().step()

    def validation_step(self, batch, batch_idx):
        self.record("val", batch)

    def test_step(self, batch, batch_idx):
        self.record("test", batch)

    def configure_optimizers(self):
        return None


def trainer(tmp_path, **arguments):
    defaults = {
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "reload_dataloaders_every_n_epochs": 1,
        "default_root_dir": tmp_path,
    }
    return Trainer(**(defaults | arguments))


def pairs_seen(seen, stage):
    return list(dict.fromkeys((epoch, pair) for what, epoch, pair, _ in seen if what == stage))


def fitted(recorder, data, tmp_path, **arguments):
    fit = trainer(tmp_path, **arguments)
    fit.fit(recorder, datamodule=data)
    return fit


# Without a Trainer


def test_without_a_trainer(make):
    data = make(seed=4)
    assert [relation.name for relation in data.relations] == ["first", "second", "third"]
    assert data.schedule == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    for index, (relation, trial) in enumerate(data.schedule):
        assert data.trial(index) == draws.draw(data.relations[relation], 3, trial, 4)
    batches = list(data.train_dataloader())
    assert [batch.sample.tolist() for batch in batches] == [[0, 1], [2]]
    assert [prompt for batch in batches for prompt in batch.prompts] == draws.train_prompts(
        data.trial(0), data.tokenizer
    )
    assert {int(batch.weight.min()) for batch in batches} == {1}


def test_an_explicit_pair(make):
    data = make(seed=5)
    (batch, _) = data.train_dataloader(index=3)
    assert (batch.relation.tolist(), batch.trial.tolist()) == ([1, 1], [1, 1])
    assert [prompt.subject for prompt in batch.prompts] == [sample.subject for sample in data.trial(3).train[:2]]
    with pytest.raises(LREError, match="there is no trial 6: 3 relations and 2 trials of each make the trials 0 to 5"):
        data.train_dataloader(index=6)
    with pytest.raises(LREError, match="there is no trial -1"):
        data.val_dataloader(indices=[0, -1])


@pytest.mark.parametrize("pairs", [None, [0, 2], [4]])
def test_validation_serves_every_test_sample_once(make, pairs):
    data = make()
    batches = list(data.val_dataloader(indices=pairs))
    seen = [
        (relation, trial, sample)
        for batch in batches
        for relation, trial, sample in zip(
            batch.relation.tolist(), batch.trial.tolist(), batch.sample.tolist(), strict=True
        )
    ]
    chosen = range(6) if pairs is None else pairs
    assert seen == [(*data.schedule[pair], i) for pair in chosen for i in range(len(data.trial(pair).test))]
    assert all(len(set(batch.relation.tolist())) == len(set(batch.trial.tolist())) == 1 for batch in batches)
    assert max(map(len, batches)) == 2
    for batch in batches:
        relation, trial = batch.relation[0].item(), batch.trial[0].item()
        test = data.trial(data.schedule.index((relation, trial))).test
        assert [prompt.subject for prompt in batch.prompts] == [test[i].subject for i in batch.sample]
    assert len(data.val_dataloader(indices=pairs)) == len(batches)


def test_prompts_are_made_when_they_are_needed_and_once(make, monkeypatch):
    made = []
    for name in ("train_prompts", "test_prompts"):
        original = getattr(draws, name)
        monkeypatch.setattr(
            f"lre_lightning.datamodules.relations.{name}",
            lambda draw, tokenizer, chosen, form, original=original, name=name: (
                made.extend((name, draw.relation.name, i) for i in chosen) or original(draw, tokenizer, chosen, form)
            ),
        )
    data = make(batch_size=2, trials=1)
    loader = data.val_dataloader()
    assert made == []
    list(loader)
    assert made == [("test_prompts", name, i) for name, size in SIZES.items() for i in range(size - 3)]
    made.clear()
    for _ in range(2):
        list(data.train_dataloader(2))
        list(data.val_dataloader([1]))
    assert made == [("train_prompts", "third", i) for i in range(3)]


def test_few_prompts_are_kept(make, monkeypatch):
    monkeypatch.setattr("lre_lightning.datamodules.relations.PROMPTS_KEPT", 5)
    data = make(batch_size=2, trials=1)
    found = [batch.prompts for batch in data.val_dataloader()]
    assert sum(map(len, data._batches.values())) <= 5
    assert [batch.prompts for batch in data.val_dataloader()] == found


# Templates


TEMPLATES = ["The capital city of {} is", "{}'s capital is", "What is the capital of {}? It is"]


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_template_by_its_index_few_shot_ones_first(make, index):
    data = make(template=index)
    assert [relation.name for relation in data.relations] == list(SIZES)
    for prompt in (*next(iter(data.train_dataloader())).prompts, *next(iter(data.val_dataloader())).prompts):
        *context, asked = [line for line in prompt.text.split("\n") if line]
        assert asked == TEMPLATES[index].format(prompt.subject)
        for line in context:
            assert line.startswith(TEMPLATES[index].split("{}")[0])
            assert TEMPLATES[index].split("{}")[1] in line
    assert data.trial(0) == draws.draw(data.relations[0], 3, 0, 0)
    assert data.trial(0).train == make().trial(0).train  # another template, the same draw
    assert data.hparams["prompts"]["template"] == index


def test_one_template_for_all_relations(make):
    data = make(template="{}")
    context = [f"{sample.subject} {sample.object}" for sample in data.trial(0).train]
    for prompt in next(iter(data.val_dataloader())).prompts:
        assert prompt.text == "\n".join([*context, prompt.subject])
    assert {relation.template for relation in data.relations} == {"{}"}
    assert data.hparams["prompts"]["template"] == "{}"


def test_relations_with_fewer_templates_are_left_out(make, tmp_path):
    more = {"prompt_templates": ["{} a", "{} b", "{} a"], "prompt_templates_zs": ["{} b", "{} c"]}
    samples = [{"subject": f"s{i}", "object": f"{i}"} for i in range(5)]
    write(tmp_path / "few.json", CAPITALS, name="few", samples=samples, prompt_templates_zs=[])
    write(tmp_path / "many.json", CAPITALS, name="many", samples=samples, **more)
    every = make(source=str(tmp_path))
    assert [relation.templates for relation in every.relations] == [tuple(TEMPLATES[:2]), ("{} a", "{} b", "{} c")]
    for index, expected in enumerate((TEMPLATES[:2], ["{} a", "{} b", "{} c"])):
        found = [make(source=str(tmp_path), template=i).relations for i in range(len(expected))]
        named = [[relation.template for relation in some if relation.name == ("few", "many")[index]] for some in found]
        assert named == [[template] for template in expected]
    assert [relation.name for relation in make(source=str(tmp_path), template=2).relations] == ["many"]
    with pytest.raises(LREError, match="no relation has a template 3: the relations have at most 3, counted from 0"):
        make(source=str(tmp_path), template=3).setup()


@pytest.mark.parametrize("template", ["", "the capital", "{} and {}", "{subject} is", "{} is {", "{0}"])
def test_a_template_must_have_one_place_for_the_subject(make, template):
    with pytest.raises(LREError, match=r"must have exactly one \{\} for the subject, and no other brace"):
        make(template=template)


@pytest.mark.parametrize("template", [-1, 1.5, True, None])
def test_a_template_is_a_string_or_an_index(make, template):
    with pytest.raises(LREError, match=f"template must be a whole number of at least 0, got {template}"):
        make(template=template)


def test_subjects_alone_follow_the_start_token_and_nothing_else(make, folder):
    data = make(batch_size=3, template=2)
    batch = list(data.val_dataloader(indices=[2]))[1]
    alone = data.subjects_alone(batch)
    assert [prompt.text for prompt in alone.prompts] == [prompt.subject for prompt in batch.prompts]
    for name in ("relation", "trial", "sample"):
        assert torch.equal(getattr(alone, name), getattr(batch, name))
    start = int(batch.input_ids[0, 0])
    for row, prompt in enumerate(batch.prompts):
        ids = [start, *data.tokenizer(prompt.subject, add_special_tokens=False)["input_ids"]]
        last = int(alone.last_position[row])
        assert alone.input_ids[row, : last + 1].tolist() == ids
        assert int(alone.subject_position[row]) == last
    elsewhere = replace(batch, input_ids=batch.input_ids.to("meta"))
    assert {getattr(data.subjects_alone(elsewhere), name).device.type for name in TENSORS} == {"meta"}


# In a Trainer


def test_every_epoch_of_a_fit_is_one_pair(make, tmp_path):
    data, recorder = make(), Recorder()
    fitted(recorder, data, tmp_path, max_epochs=6)
    assert pairs_seen(recorder.seen, "train") == list(enumerate(data.schedule))
    assert pairs_seen(recorder.seen, "val") == list(enumerate(data.schedule))
    for pair in range(6):
        for stage, size in (("train", 3), ("val", len(data.trial(pair).test))):
            samples = [i for what, epoch, _, some in recorder.seen if (what, epoch) == (stage, pair) for i in some]
            assert samples == list(range(size))


def test_validate_and_test_serve_all_pairs(make, tmp_path):
    data, recorder = make(), Recorder()
    fit = fitted(recorder, data, tmp_path, max_epochs=2)
    for stage, run in (("val", fit.validate), ("test", fit.test)):
        recorder.seen.clear()
        run(recorder, datamodule=data, verbose=False)
        assert [pair for _, pair in pairs_seen(recorder.seen, stage)] == data.schedule
    assert len(data.val_dataloader()) == len(recorder.seen)


def test_after_a_fit_the_loaders_are_those_without_a_trainer(make, tmp_path):
    data = make()
    fitted(Recorder(), data, tmp_path, max_epochs=2)
    assert len(data.val_dataloader()) == len(make().val_dataloader())
    assert next(iter(data.train_dataloader())).relation.tolist() == [0, 0]


def test_the_fit_ends_after_the_last_pair(make, tmp_path):
    data, recorder = make(trials=1), Recorder()
    fitted(recorder, data, tmp_path, max_epochs=9)
    assert pairs_seen(recorder.seen, "train") == list(enumerate(data.schedule))
    assert pairs_seen(recorder.seen, "val") == list(enumerate(data.schedule))


def test_resuming_goes_on_at_the_next_pair(make, tmp_path):
    first = fitted(Recorder(), make(), tmp_path, max_epochs=2)
    first.save_checkpoint(tmp_path / "last.ckpt")
    data, recorder = make(), Recorder()
    trainer(tmp_path, max_epochs=4).fit(recorder, datamodule=data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert pairs_seen(recorder.seen, "train") == [(2, data.schedule[2]), (3, data.schedule[3])]
    assert pairs_seen(recorder.seen, "val") == [(2, data.schedule[2]), (3, data.schedule[3])]


@pytest.mark.parametrize("every", [0, 2])
def test_a_trainer_that_would_serve_one_pair_for_ever(make, tmp_path, every):
    with pytest.raises(LREError, match=rf"6 trials: give the Trainer reload_dataloaders_every_n_epochs=1, not {every}"):
        fitted(Recorder(), make(), tmp_path, max_epochs=2, reload_dataloaders_every_n_epochs=every)
    # With a single pair there is nothing to reload.
    recorder = Recorder()
    one = make(relations="first", trials=1)
    fitted(recorder, one, tmp_path, max_epochs=1, reload_dataloaders_every_n_epochs=every)
    assert pairs_seen(recorder.seen, "train") == [(0, (0, 0))]


def test_the_checkpoint_finds_the_same_data(make, tmp_path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LRE_RELATIONS_DIR", "relations")
    data = make(tokenizer="tokenizer", relations=["second", "./relations/first.json"], source=None, seed=3)
    fit = fitted(Recorder(), data, tmp_path, max_epochs=1)
    fit.save_checkpoint(tmp_path / "last.ckpt", weights_only=False)
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    monkeypatch.delenv("LRE_RELATIONS_DIR")
    monkeypatch.chdir(tmp_path)
    loaded = RelationDataModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert dict(loaded.hparams) == dict(data.hparams)
    assert loaded.hparams["source"] == str(folder / "relations")
    assert [relation.name for relation in loaded.relations] == ["second", "first"]
    assert loaded.trial(1) == data.trial(1)


def test_hyperparameters_are_plain(make, monkeypatch, tmp_path):
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    tokenizer = tokenizers.byte_level()
    data = make(tokenizer=tokenizer, source=None, relations=("first",))
    assert dict(data.hparams) == {
        "relations": ["first"],
        "source": "demo",
        "n_shot": 3,
        "trials": 2,
        "seed": 0,
        "prompts": asdict(Prompts()),
        "selection": asdict(Selection()),
        "loader": asdict(Loader(batch_size=2)),
    }
    secret = make(selection={"options": {"token": "secret", "split": "train"}}, loader={"texts": ["a"]})
    assert secret.hparams["selection"]["options"] == {"split": "train"}
    assert secret.hparams["loader"]["texts"] == []
    assert make(tokenizer=tokenizer).tokenizer is tokenizer
    tokenizer.save_pretrained(tmp_path)
    assert make(tokenizer=type(tokenizer).from_pretrained(tmp_path)).hparams["tokenizer"] == str(tmp_path)


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_shot": 0}, "n_shot must be a whole number of at least 1, got 0"),
        ({"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({"batch_size": -2}, "batch_size must be a whole number of at least 1, got -2"),
        ({"batch_size": 1.5}, r"batch_size must be a whole number of at least 1, got 1\.5"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"relations": []}, "selection of relations is empty"),
        ({"relations": "nothing"}, "no relation, category or path 'nothing'"),
        ({"relations": 3}, "relations must be None, a string or a list of strings, got 3"),
        ({"relations": ["first", 3]}, "relations must be None, a string or a list of strings, got .*3"),
        ({"source": "/no/where"}, "no such file or folder of relations: '/no/where'"),
        ({"source": ""}, "source is ''"),
        ({"tokenizer": "/no/where"}, "model folder '/no/where' does not exist"),
        ({"tokenizer": SimpleNamespace(is_fast=False)}, "use the fast tokenizer"),
        ({"n_shot": 6}, "relation 'third' has 6 distinct subjects, but n_shot=6 needs at least 7"),
    ],
)
def test_mistakes_show_at_setup_at_the_latest(make, arguments, message):
    with pytest.raises(LREError, match=message):
        make(**arguments).setup()


# Batches


@pytest.fixture
def batch():
    tokenizer = tokenizers.make("characters")
    samples = [Sample("Ulm", "small"), Sample("Paris", "big")]
    prompts = make_prompts(tokenizer, "{} is", samples, [Sample("Rome", "old")])
    return collate(prompts, relation=4, trial=2, samples=[7, 3], pad_id=99, weights=[1, 0])


INDICES = ("subject_position", "last_position", "object_token", "relation", "trial", "sample")
TENSORS = ("input_ids", "attention_mask", *INDICES, "weight")


def test_collate_by_hand(batch):
    texts = ["Rome is old\nUlm is", "Rome is old\nParis is"]
    rows = [[0, *map(ord, texts[0]), 99, 99], [0, *map(ord, texts[1])]]
    expected = {
        "input_ids": rows,
        "attention_mask": [[1] * 19 + [0] * 2, [1] * 21],
        "subject_position": [15, 17],
        "last_position": [18, 20],
        "object_token": [ord(" ")] * 2,
        "relation": [4, 4],
        "trial": [2, 2],
        "sample": [7, 3],
        "weight": [1, 0],
    }
    assert {name: getattr(batch, name).tolist() for name in TENSORS} == expected
    for name in TENSORS:
        assert getattr(batch, name).dtype == (torch.float32 if name == "weight" else torch.int64)
    assert len(batch) == 2
    assert [prompt.text for prompt in batch.prompts] == texts


def test_positions_point_into_the_padded_rows(make):
    for batch in make(tokenizer=tokenizers.make("byte-level, bos added")).val_dataloader():
        for i, prompt in enumerate(batch.prompts):
            length = batch.attention_mask[i].sum()
            assert tuple(batch.input_ids[i, :length].tolist()) == prompt.input_ids
            assert batch.last_position[i] == length - 1
            assert batch.subject_position[i] == prompt.subject_position < length


def test_padding_token(make):
    tokenizer = tokenizers.byte_level(bos=tokenizers.START)
    for pad in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        batches = list(make(tokenizer=tokenizer).val_dataloader())
        padding = [batch.input_ids[batch.attention_mask == 0].tolist() for batch in batches]
        assert {token for some in padding for token in some} == {pad}
        tokenizer.pad_token = tokenizer.eos_token


def test_moving_a_batch(batch):
    moved = batch.to("meta")
    assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
    assert {getattr(batch, name).device.type for name in TENSORS} == {"cpu"}
    assert moved.prompts == batch.prompts
    hooked = Recorder().transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert isinstance(hooked, RelationBatch)
    assert hooked.input_ids.device.type == hooked.weight.device.type == "meta"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="page-locked memory needs a GPU")
def test_pinning_a_batch(batch):
    pinned = batch.pin_memory()
    assert all(getattr(pinned, name).is_pinned() for name in TENSORS)
    assert pinned.prompts == batch.prompts


def test_pinning_pins_every_tensor(batch, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    pinned = batch.pin_memory()
    assert all(torch.equal(getattr(pinned, name), getattr(batch, name) + 1) for name in TENSORS)


def test_pickling_a_batch(batch):
    again = pickle.loads(pickle.dumps(batch))
    assert all(torch.equal(getattr(again, name), getattr(batch, name)) for name in TENSORS)
    assert again.prompts == batch.prompts


def test_worker_processes_give_the_same_batches(make):
    loader = make().val_dataloader(indices=[1])
    workers = DataLoader(loader.dataset, batch_size=None, num_workers=1, multiprocessing_context="fork")
    for one, other in zip(loader, workers, strict=True):
        assert torch.equal(one.input_ids, other.input_ids)
        assert one.prompts == other.prompts


# Several processes


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_training_is_shared_out_evenly(n, world_size):
    ranks = [split_train(4, n, 2, rank, world_size) for rank in range(world_size)]
    assert len({tuple(len(share.samples) for share in shares) for shares in ranks}) == 1
    shared = [
        (sample, weight)
        for shares in ranks
        for share in shares
        for sample, weight in zip(share.samples, share.weights, strict=True)
    ]
    assert sorted(sample for sample, weight in shared if weight == 1) == list(range(n))
    assert {weight for _, weight in shared} <= {0.0, 1.0}
    assert len(shared) - n < world_size
    assert {share.index for shares in ranks for share in shares} == {4}


@pytest.mark.parametrize("world_size", [1, 2, 3, 16])
def test_testing_is_shared_out_once(world_size):
    sizes = [(2, 5), (0, 1), (7, 4)]
    samples = {index: range(n) for index, n in sizes}
    ranks = [split_test(samples, 2, rank, world_size) for rank in range(world_size)]
    shared = [(share.index, i) for shares in ranks for share in shares if all(share.weights) for i in share.samples]
    assert len(shared) == 10
    assert set(shared) == {(pair, i) for pair, n in sizes for i in range(n)}
    for shares in ranks:
        assert all(len(share.samples) == len(share.weights) <= 2 for share in shares)
        assert [share.index for share in shares] == sorted((share.index for share in shares), key=[2, 0, 7].index)
        for pair, n in sizes:
            mine = sum(len(share.samples) for share in shares if share.index == pair and all(share.weights))
            assert abs(mine - n / world_size) < 1


def test_no_process_is_without_a_batch():
    ranks = [split_test({3: [1, 0]}, 4, rank, 4) for rank in range(4)]
    assert [len(shares) for shares in ranks] == [1, 1, 1, 1]
    assert sorted(share.weights for (share,) in ranks) == [(0.0,), (0.0,), (1.0,), (1.0,)]
    assert split_test({}, 4, 1, 2) == []  # after the last pair nobody has one


def test_this_process_gets_its_own_share(make):
    shares = []
    for rank in range(2):
        data = make()
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, state=SimpleNamespace(fn="validate"))
        shares.append([(int(b.relation[0]), int(b.trial[0]), *b.sample.tolist()) for b in data.val_dataloader()])
        (batch,) = data.train_dataloader(0)
        assert (batch.sample.tolist(), batch.weight.tolist()) == (([0, 2], [1, 1]) if rank == 0 else ([1, 0], [1, 0]))
    alone = [(int(b.relation[0]), int(b.trial[0]), *b.sample.tolist()) for b in make().val_dataloader()]

    def samples(batches):
        return [(relation, trial, sample) for relation, trial, *some in batches for sample in some]

    assert sorted(samples(shares[0]) + samples(shares[1])) == sorted(samples(alone))


def test_subjects_of_like_length_go_to_one_process(make):
    lengths = []
    for rank in range(2):
        data = make()
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2, state=SimpleNamespace(fn="validate"))
        batches = list(data.val_dataloader([0]))
        lengths += [len(prompt.subject) for batch in batches for prompt in batch.prompts]
        for batch in batches:
            assert [data.trial(0).test[i].subject for i in batch.sample] == [p.subject for p in batch.prompts]
    assert lengths == sorted(lengths)


def test_the_digest_tells_relations_and_draws_from_others(make):
    assert make().digest == make().digest
    assert make().digest != make(seed=1).digest
    data = make()
    data.load_state_dict(make().state_dict())
    with pytest.raises(LREError, match="are not those that the fit was begun with"):
        data.load_state_dict(make(n_shot=2).state_dict())


# The command line and imports


def test_from_the_command_line(folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cli.py"])
    arguments = {
        "relations": "[first,second]",
        "source": folder / "relations",
        "tokenizer": folder / "tokenizer",
        "n_shot": 4,
    }
    args = [f"--data.{name}={value}" for name, value in arguments.items()]
    cli = LightningCLI(
        Recorder, RelationDataModule, run=False, save_config_callback=None, seed_everything_default=False, args=args
    )
    assert [relation.name for relation in cli.datamodule.relations] == list(SIZES)[:2]
    assert (cli.datamodule.hparams["n_shot"], cli.datamodule.hparams["trials"]) == (4, 3)


def test_importing_loads_no_model_code():
    code = (
        "import sys, lightning; before = set(sys.modules); import lre_lightning.datamodules\n"
        "print([name for name in set(sys.modules) - before if name.split('.')[0] in ('transformers', 'matplotlib')])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ, timeout=240
    )
    assert run.stdout.strip() == "[]"
