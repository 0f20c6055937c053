"""The datamodule: which prompts it serves when, to which process, and what it remembers of its options."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

from lre_lightning.datamodules import Loader, Prompts, RelationBatch, RelationDataModule, Selection
from lre_lightning.datamodules.loaders import shapes_of
from lre_lightning.errors import LREError
from lre_lightning.prompts import trials
from lre_lightning.relations.relation import Relation, Sample
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.options import nested
from tests.helpers.relations import write
from tests.training.test_module import trainer_of

SIZES = {"first": 7, "second": 9, "third": 6}
TEMPLATES = ["The capital city of {} is", "{}'s capital is", "What is the capital of {}? It is"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with three relations and a saved tokenizer."""
    path = tmp_path_factory.mktemp("data")
    for name, size in SIZES.items():
        samples = [{"subject": f"{name} {'x' * i}", "object": f"{i}"} for i in range(size)]
        write(path / "relations" / f"{name}.json", name=name, prompt_templates=TEMPLATES, samples=samples)
    tokenizers.make("characters").save_pretrained(path / "tokenizer")
    return path


@pytest.fixture
def make(folder):
    def make(process=None, **options):
        given = {"tokenizer": str(folder / "tokenizer"), "source": str(folder / "relations"), "n_shot": 3, "trials": 2}
        data = RelationDataModule(**nested(**given | {"batch_size": 2} | options))
        if process:
            state = SimpleNamespace(fn="validate")
            data.trainer = SimpleNamespace(global_rank=process[0], world_size=process[1], state=state)
        return data

    return make


def key_of(batch):
    """Return the relation, the trial and the samples of a batch, which has only one trial."""
    assert len({*batch.relation.tolist()}) == len({*batch.trial.tolist()}) == 1
    return int(batch.relation[0]), int(batch.trial[0]), tuple(batch.sample.tolist())


def prompts_of(loader):
    return [prompt for batch in loader for prompt in batch.prompts]


class Recorder(BoringModel):
    """Keep the keys of all batches by epoch."""

    def __init__(self):
        super().__init__()
        self.train_keys, self.val_keys, self.test_keys = {}, {}, {}

    def record(self, keys, batch):
        assert isinstance(batch, RelationBatch)
        keys.setdefault(self.current_epoch, []).append(key_of(batch))

    def training_step(self, batch, batch_idx):
        self.record(self.train_keys, batch)
        return self.layer.bias.sum()

    def validation_step(self, batch, batch_idx):
        self.record(self.val_keys, batch)

    def test_step(self, batch, batch_idx):
        self.record(self.test_keys, batch)


def fitted(folder, data, **options):
    recorder = Recorder()
    trainer = trainer_of(folder, inference_mode=True, **options)
    trainer.fit(recorder, datamodule=data)
    return recorder, trainer


# Without a Trainer.


def test_trials_and_their_prompts(make):
    data = make(seed=4)
    assert data.schedule == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    for index, (relation, number) in enumerate(data.schedule):
        trial = data.trial(index)
        assert trial == trials.draw(data.relations[relation], 3, number, 4)
        batches = list(data.train_dataloader(index))
        assert [key_of(batch) for batch in batches] == [(relation, number, (0, 1)), (relation, number, (2,))]
        assert prompts_of(batches) == trials.train_prompts(trial, data.tokenizer)
        assert {int(batch.weight.min()) for batch in batches} == {1}
        objects = [data.relations[relation].objects[i] for batch in batches for i in batch.object]
        assert objects == [prompt.object for prompt in prompts_of(batches)]
    assert prompts_of(data.train_dataloader()) == prompts_of(data.train_dataloader(0))
    with pytest.raises(LREError, match="there is no trial 6: the schedule has 0 to 5"):
        data.train_dataloader(6)
    with pytest.raises(LREError, match="there is no trial -1"):
        data.val_dataloader([0, -1])


def test_validation_serves_every_test_sample_once(make):
    data = make()
    for indices in (None, [0, 2], [4]):
        loader = data.val_dataloader(indices)
        keys = [key_of(batch) for batch in loader]
        chosen = range(6) if indices is None else indices
        expected = [(*data.schedule[index], i) for index in chosen for i in range(len(data.trial(index).test))]
        assert [(relation, number, i) for relation, number, samples in keys for i in samples] == expected
        assert max(len(samples) for _, _, samples in keys) == 2
        assert len(loader) == len(keys)
        made = [p for index in chosen for p in trials.test_prompts(data.trial(index), data.tokenizer)]
        assert prompts_of(loader) == made


def test_prompts_are_made_on_demand_and_once(make, monkeypatch):
    made = []

    def counted(trial, tokenizer, chosen, options):
        made.extend((trial.relation.name, i) for i in chosen)
        return trials.test_prompts(trial, tokenizer, chosen, options)

    monkeypatch.setattr("lre_lightning.datamodules.relations.test_prompts", counted)
    data = make(trials=1)
    loader = data.val_dataloader()
    assert made == []
    first = prompts_of(loader)
    assert prompts_of(data.val_dataloader([1])) == first[4:10]
    assert made == [(name, i) for name, size in SIZES.items() for i in range(size - 3)]
    monkeypatch.setattr("lre_lightning.datamodules.relations.PROMPTS_KEPT", 5)
    few = make(trials=1)
    assert prompts_of(few.val_dataloader()) == first
    assert sum(map(len, few._batches.values())) <= 5


def test_subjects_alone_follow_the_start_token_and_nothing_else(make):
    data = make(batch_size=3, template=2)
    batch = list(data.val_dataloader([2]))[1]
    alone = data.subjects_alone(batch)
    assert [prompt.text for prompt in alone.prompts] == [prompt.subject for prompt in batch.prompts]
    assert key_of(alone) == key_of(batch)
    for row, prompt in enumerate(batch.prompts):
        ids = [int(batch.input_ids[0, 0]), *data.tokenizer(prompt.subject, add_special_tokens=False)["input_ids"]]
        last = int(alone.last_position[row])
        assert alone.input_ids[row, : last + 1].tolist() == ids
        assert int(alone.subject_position[row]) == last
    elsewhere = replace(batch, input_ids=batch.input_ids.to("meta"))
    assert data.subjects_alone(elsewhere).weight.device.type == "meta"


def test_the_tokenizers_own_padding_token_pads(make):
    tokenizer = tokenizers.byte_level(bos=tokenizers.START)
    for pad in (tokenizer.eos_token_id, tokenizer.bos_token_id):
        batches = list(make(tokenizer=tokenizer).val_dataloader())
        assert {token for b in batches for token in b.input_ids[b.attention_mask == 0].tolist()} == {pad}
        tokenizer.pad_token = tokenizer.bos_token


# Templates.

ROME = [Sample(f"s{i}", f"{i}") for i in range(6)]
TOLD = Relation("told", "toy", (TEMPLATES[0], TEMPLATES[1]), (), "", "", False, ROME)
ASKED = Relation("asked", "toy", ("{}'s capital is",), (TEMPLATES[2],), "", "", False, ROME)
DOUBLE = Relation("double", "toy", ("{}:", "{} is", "{}:"), ("{}:", "{}?"), "", "", False, ROME)
BARE = Relation("bare", "toy", (), (), "", "", False, ROME)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (0, {"asked": ["{}'s capital is"], "told": [TEMPLATES[0]], "double": ["{}:"]}),
        (1, {"asked": [TEMPLATES[2]], "told": [TEMPLATES[1]], "double": ["{} is"]}),
        (2, {"double": ["{}?"]}),
        ("few-shot", {"asked": ["{}'s capital is"], "told": TEMPLATES[:2], "double": ["{}:", "{} is"]}),
        ("zero-shot", {"asked": [TEMPLATES[2]], "double": ["{}:", "{}?"]}),
        ("all", {"asked": TEMPLATES[1:], "told": TEMPLATES[:2], "double": ["{}:", "{} is", "{}?"]}),
        ("bare", {"asked": ["{}"], "told": ["{}"], "double": ["{}"]}),
        ({}, {"asked": ["{}"], "told": ["{}"], "double": ["{}"]}),
        ("Of {}:", {"asked": ["Of {}:"], "told": ["Of {}:"], "double": ["Of {}:"]}),
        ({"told": "{}!"}, {"asked": ["{}'s capital is"], "told": ["{}!"], "double": ["{}:"]}),
    ],
)
def test_choices_of_templates(make, template, expected):
    source = [ASKED, TOLD, DOUBLE]
    data = make(source=source, template=template, trials=1)
    assert {relation.name: list(data.trial(i).asked_with) for i, relation in enumerate(data.relations)} == expected
    for i, relation in enumerate(data.relations):
        asked, trial = expected[relation.name], data.trial(i)
        assert relation.template == asked[0]
        test = prompts_of(data.val_dataloader([i]))
        assert [prompt.text.split("\n")[-1] for prompt in (*prompts_of(data.train_dataloader(i)), *test)] == [
            template.replace("{}", sample.subject) for sample in (*trial.train, *trial.test) for template in asked
        ]
        for index, prompt in enumerate(test):  # the examples have the question's template
            own = asked[index % len(asked)]
            lines = [f"{own.replace('{}', sample.subject)} {sample.object}" for sample in trial.train]
            assert prompt.text.split("\n")[:-1] == lines
        assert trial.train == make(source=source).draw(relation, 0).train
    assert RelationDataModule(**{**data.hparams, "source": source}).digest == data.digest


def test_templates_that_no_relation_has_are_refused(make):
    for source, template, message in (
        (TOLD, "zero-shot", "no relation has a template for 'zero-shot': give one yourself"),
        (TOLD, 2, "no relation has a template 2: the relations have at most 2, counted from 0"),
        (TOLD, {"tolled": "{}"}, "a template is given for 'tolled', which is not among the relations"),
        (BARE, 0, "has no template: give one"),
    ):
        with pytest.raises(LREError, match=message):
            make(source=source, template=template).setup()
    for template in ("bare", {"bare": "{}"}, "{}"):
        assert make(source=BARE, template=template).trial(0).asked_with == ("{}",)
    with pytest.raises(LREError, match="'bare' is not among the relations"):
        make(source=TOLD).draw(BARE, 0)


# In a Trainer.


def test_every_epoch_of_a_fit_is_one_trial_and_the_fit_ends_after_the_last(make, tmp_path):
    data = make()
    recorder, trainer = fitted(tmp_path, data, max_epochs=9)
    for epoch, (relation, number) in enumerate(data.schedule):
        assert recorder.train_keys[epoch] == [(relation, number, (0, 1)), (relation, number, (2,))]
        tested = [i for key in recorder.val_keys[epoch] for i in key[2]]
        assert {key[:2] for key in recorder.val_keys[epoch]} == {(relation, number)}
        assert tested == list(range(len(data.trial(epoch).test)))
    assert max(recorder.train_keys) == max(recorder.val_keys) == 5
    # After the fit the loaders are those without a Trainer, and other stages serve all trials.
    assert key_of(next(iter(data.train_dataloader())))[0] == 0
    for keys, run in ((recorder.val_keys, trainer.validate), (recorder.test_keys, trainer.test)):
        keys.clear()
        run(recorder, datamodule=data, verbose=False)
        ((_, served),) = keys.items()
        assert list(dict.fromkeys(key[:2] for key in served)) == data.schedule


def test_a_resumed_fit_continues_with_the_next_trial(make, tmp_path):
    _, trainer = fitted(tmp_path, make(), max_epochs=2)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    recorder, data = Recorder(), make()
    again = trainer_of(tmp_path, inference_mode=True, max_epochs=4)
    again.fit(recorder, datamodule=data, ckpt_path=tmp_path / "last.ckpt", weights_only=True)
    assert {epoch: keys[0][:2] for epoch, keys in recorder.train_keys.items()} == {2: (1, 0), 3: (1, 1)}
    assert recorder.val_keys.keys() == {2, 3}
    other = make(n_shot=2)
    with pytest.raises(LREError, match="are not those that the fit was begun with"):
        again.fit(recorder, datamodule=other, ckpt_path=tmp_path / "last.ckpt", weights_only=True)


@pytest.mark.parametrize("every", [0, 2])
def test_a_trainer_that_would_serve_one_trial_for_ever_is_refused(make, tmp_path, every):
    options = {"max_epochs": 1, "reload_dataloaders_every_n_epochs": every}
    message = f"another one of the 6 trials: give the Trainer reload_dataloaders_every_n_epochs=1, not {every}"
    with pytest.raises(LREError, match=message):
        fitted(tmp_path, make(), **options)
    recorder, _ = fitted(tmp_path, make(relations="first", trials=1), **options)  # nothing to reload
    assert recorder.train_keys == {0: [(0, 0, (0, 1)), (0, 0, (2,))]}


def test_every_epoch_may_serve_all_trials_in_another_order(make, tmp_path):
    def served(seed=0, every=1):
        options = {"max_epochs": 2, "reload_dataloaders_every_n_epochs": every}
        recorder, _ = fitted(tmp_path, make(epoch="all", seed=seed), **options)
        for keys in recorder.val_keys.values():
            found = [(relation, number, i) for relation, number, samples in keys for i in samples]
            assert found == [(r, number, i) for r, n in enumerate((4, 6, 3)) for number in (0, 1) for i in range(n)]
        return list(recorder.train_keys.values())

    first, second = served()
    expected = [(relation, number, some) for relation in range(3) for number in range(2) for some in ((0, 1), (2,))]
    assert sorted(first) == sorted(second) == expected
    assert first != second
    assert expected not in (first, second)
    assert served(every=0) == [first, second]
    assert served(seed=1)[0] != first
    loader = make(epoch="all").train_dataloader()
    loader.sampler.set_epoch(1)
    assert [key_of(batch) for batch in loader] == second, "without a Trainer"
    assert [key_of(batch) for batch in make(epoch="all").train_dataloader(3)] == [(1, 1, (0, 1)), (1, 1, (2,))]


# Several processes.


@pytest.mark.parametrize("count", [2, 3])
def test_processes_serve_together_what_one_serves_alone(make, count):
    def served(process=None, split="val", **options):
        data = make(process, template="all", batch_size=4, **options)
        batches = list(getattr(data, f"{split}_dataloader")())
        keys = {key_of(batch)[:2] for batch in batches}
        return keys, [p for b in batches for p, weight in zip(b.prompts, b.weight, strict=True) if weight]

    for options in ({}, {"split": "train", "epoch": "all"}):
        found = [prompt for process in range(count) for prompt in served((process, count), **options)[1]]
        assert sorted(prompt.text for prompt in found) == sorted(prompt.text for prompt in served(**options)[1])
    steps = [list(make((i, count), epoch="all", template="all").train_dataloader()) for i in range(count)]
    for together in zip(*steps, strict=True):  # a step has one trial on all processes
        assert len({(key_of(batch)[:2], len(batch)) for batch in together}) == 1


def test_shapes_of_prompts_are_known_before_they_are_made():
    data = RelationDataModule("demo", ["country capital city"], "demo", trials=1, prompts=Prompts(template="all"))
    data.setup()
    prompts = prompts_of(data.val_dataloader())
    real = [(len(prompt.input_ids), prompt.subject_position) for prompt in prompts]
    shapes = shapes_of(data.trial(0), data.tokenizer)
    assert len(shapes) == len(real) > len({*real}) > 1
    assert len({*real}) == len({*shapes}) == len({*zip(real, shapes, strict=True)})


# Options.


def test_a_checkpoint_finds_the_same_data(make, tmp_path, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("LRE_RELATIONS_DIR", "relations")
    data = make(tokenizer="tokenizer", relations=["second", "./relations/first.json"], source=None, seed=3, shots=2)
    _, trainer = fitted(tmp_path, data, max_epochs=1)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    torch.load(tmp_path / "last.ckpt", weights_only=True)
    monkeypatch.delenv("LRE_RELATIONS_DIR")
    monkeypatch.chdir(tmp_path)
    loaded = RelationDataModule.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    assert dict(loaded.hparams) == dict(data.hparams)
    assert loaded.hparams["source"] == str(folder / "relations")
    assert [relation.name for relation in loaded.relations] == ["second", "first"]
    assert loaded.trial(1) == data.trial(1)
    assert loaded.digest == data.digest != make(seed=1).digest


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
    secret = make(options={"token": "secret", "split": "train"}, texts=["a"])
    assert secret.hparams["selection"]["options"] == {"split": "train"}
    assert secret.hparams["loader"]["texts"] == []
    assert make(tokenizer=tokenizer).tokenizer is tokenizer
    tokenizer.save_pretrained(tmp_path)
    assert make(tokenizer=type(tokenizer).from_pretrained(tmp_path)).hparams["tokenizer"] == str(tmp_path)


def test_changed_options_leave_the_others(make):
    data = make(seed=3, shots=1)
    changed = data.changed(n_shot=2, prompts={"separator": "; "}, selection=Selection(exclude=["first"]))
    assert (changed.n_shot, changed.seed, changed.loader) == (2, 3, data.loader)
    assert changed.prompts == Prompts(shots=1, separator="; ")
    assert [relation.name for relation in changed.relations] == ["second", "third"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_shot": 0}, "n_shot must be a whole number of at least 1, got 0"),
        ({"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"batch_size": 1.5}, r"batch_size must be a whole number of at least 1, got 1\.5"),
        ({"padding_side": "both"}, "padding_side must be 'right' or 'left', got 'both'"),
        ({"epoch": "every"}, "epoch must be 'trial' or 'all', got 'every'"),
        ({"prompts": {"shot": 1}}, "prompts has no option 'shot': it has template, shots, "),
        ({"selection": 3}, r"selection must be Selection\(...\) or a mapping of exclude, .*, not 3"),
        ({"relations": ["first", 3]}, "relations must be None, a string or a list of strings, got .*3"),
        ({"tokenizer": "/no/where"}, "model folder '/no/where' does not exist"),
        ({"tokenizer": SimpleNamespace(is_fast=False)}, "use the fast tokenizer"),
    ],
)
def test_mistakes_show_at_setup_at_the_latest(make, options, message):
    with pytest.raises(LREError, match=message):
        make(**options).setup()
