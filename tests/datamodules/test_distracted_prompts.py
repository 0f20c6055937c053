"""Prompts that distract: their text, their tokens and positions, and the choice of the false object."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from lightning import LightningModule

from lre_lightning.datamodules import DistractionBatch, DistractionDataModule, RelationDataModule
from lre_lightning.datamodules.distraction import false_objects
from lre_lightning.errors import LREError
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.options import nested
from tests.helpers.relations import CAPITALS, write

TEMPLATE = CAPITALS["prompt_templates"][0]
CITIES = ["Paris", "Tokyo", "Rome", "Tesla", "Davis"]
COUNTRIES = [f"{first} {second}" for first in ("New", "Old", "Far") for second in ("France", "Japan", "Italy", "Peru")]
SAMPLES = [{"subject": subject, "object": CITIES[i % 5]} for i, subject in enumerate(COUNTRIES)]


@pytest.fixture
def make(tmp_path):
    """Make datamodules of one relation, with byte-level tokens unless told otherwise."""

    def make(samples=None, tokenizer="byte-level", **arguments):
        path = tmp_path / "relation.json"
        write(path, name="capital", samples=samples or SAMPLES)
        given = {"tokenizer": tokenizers.make(tokenizer), "relations": str(path), "n_shot": 3, "trials": 2}
        return DistractionDataModule(**nested(**given | arguments))

    return make


def served(data, trials=None):
    """Return all prompts that are served, as (trial, distracted, undistracted, false object, its token)."""
    rows = []
    for batch in data.val_dataloader(trials):
        false = batch.false_objects, batch.false_token.tolist()
        rows += zip(batch.trial.tolist(), batch.prompts, batch.undistracted.prompts, *false, strict=True)
    return rows


def falsehoods(data):
    """Return the false object of every fact and trial."""
    return {(trial, asked.subject, asked.object): false for trial, asked, _, false, _ in served(data)}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "{T} {O}. {T} {O}. {T}"),
        ({"repetitions": 3, "falsehood_separator": "\n"}, "{T} {O}\n{T} {O}\n{T} {O}\n{T}"),
        ({"distraction": "instruction", "repetitions": 3}, "{T} {O}. Repeat exactly: {T}"),
    ],
)
def test_prompts_state_a_falsehood_and_ask_for_the_fact(make, options, expected):
    samples = [*SAMPLES, {"subject": "{Far} {}", "object": "Rome"}]
    data = make(samples=samples, **options)
    rows = served(data)
    assert len(rows) == 2 * 10
    for _, asked, undistracted, false, _ in rows:
        statement = TEMPLATE.replace("{}", asked.subject, 1)
        assert asked.text == expected.replace("{T}", statement).replace("{O}", false)
        assert undistracted.text == statement
        assert (undistracted.subject, undistracted.object) == (asked.subject, asked.object)


def test_the_few_shot_question_follows_the_training_examples(make):
    few, zero = make(undistracted="few-shot"), make()
    for row, plain in zip(served(few), served(zero), strict=True):
        train = few.trial(row[0]).train
        lines = [f"{TEMPLATE.format(sample.subject)} {sample.object}" for sample in train]
        assert row[2].text == "\n".join([*lines, TEMPLATE.format(row[2].subject)])
        assert row[1] == plain[1], "the distracted prompt has none"


@pytest.mark.parametrize("tokenizer", ["byte-level", "qwen", "sentencepiece, prepend first"])
def test_tokens_are_those_of_the_text(make, tokenizer):
    data = make(tokenizer=tokenizer, batch_size=4)
    own = data.tokenizer
    for batch in data.val_dataloader():
        for i, prompt in enumerate(batch.prompts):
            assert prompt.text[: prompt.subject_chars[1]] == prompt.text.removesuffix(" is"), "the last mention"
            for one in (batch, batch.undistracted):
                ids = own(one.prompts[i].text, add_special_tokens=False)["input_ids"]
                assert one.input_ids[i, 1 : one.last_position[i] + 1].tolist() == ids
                assert one.object_token[i] == batch.object_token[i]
            ids = list(prompt.input_ids[1:])
            for answer, token in ((prompt.object, batch.object_token), (batch.false_objects[i], batch.false_token)):
                answered = own(f"{prompt.text} {answer}", add_special_tokens=False)["input_ids"]
                assert answered[: len(ids) + 1] == [*ids, int(token[i])]


def test_the_test_samples_are_those_of_the_same_trial_in_undistracted_data(make):
    data = make(batch_size=2, seed=5)
    plain = RelationDataModule(data.tokenizer, data.hparams["relations"], n_shot=3, trials=2, seed=5)
    assert data.schedule == plain.schedule
    for trial in range(2):
        assert data.trial(trial) == plain.trial(trial)
        rows = served(data, [trial])
        assert [(row[0], row[1].subject) for row in rows] == [(trial, s.subject) for s in plain.trial(trial).test]
    assert [len(batch) for batch in data.val_dataloader()] == [2, 2, 2, 2, 1] * 2
    assert [batch.sample.tolist() for batch in data.val_dataloader([1])] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_a_false_object_is_another_one_of_the_range_with_another_first_token(make):
    seen = Counter()
    for seed in range(12):
        for _, asked, _, false, token in served(make(seed=seed)):
            assert token != asked.object_token
            seen[asked.object, false] += 1
    assert set(seen) == {(true, false) for true in CITIES for false in CITIES if true != false}
    assert max(seen.values()) < 4 * min(seen.values()), "each about equally often"


def test_the_choice_depends_on_seed_relation_and_trial_alone(make):
    first = falsehoods(make())
    assert falsehoods(make(samples=SAMPLES[::-1], batch_size=1, distraction="instruction")) == first
    other = falsehoods(make(seed=1))
    assert sum(other.get(fact) != false for fact, false in first.items()) > len(first) / 3
    trials = make().trial(0), make().trial(1)
    both = [sample for sample in trials[0].test if sample in trials[1].test]
    assert any(first[0, s.subject, s.object] != first[1, s.subject, s.object] for s in both)
    renamed = replace(trials[0], relation=replace(trials[0].relation, name="other"))
    assert any(false_objects(trials[0], s, 0) != false_objects(renamed, s, 0) for s in both)


def test_no_object_of_the_subject_is_false(make):
    twice = [{"subject": f" {COUNTRIES[i]}", "object": CITIES[(i + 2) % 5]} for i in range(12)]
    true = {(sample["subject"].strip(), sample["object"]) for sample in SAMPLES + twice}
    rows = served(make(samples=SAMPLES + twice))
    assert len(rows) == 2 * 2 * 9
    assert not any((asked.subject.strip(), false) in true for _, asked, _, false, _ in rows)


def test_samples_without_a_false_object_of_another_first_token_are_left_out(make):
    samples = [{"subject": COUNTRIES[i], "object": ["New York", "New Delhi"][i % 2]} for i in range(12)]
    both = [{"subject": COUNTRIES[0], "object": "Rome"}]  # Rome is true of this subject, and false of all others
    data = make(samples=samples + both, trials=12)
    whole = RelationDataModule(data.tokenizer, data.hparams["relations"], n_shot=3, trials=12)
    left_out = 0
    for trial in range(12):
        expected = [s for s in whole.trial(trial).test if s.subject != COUNTRIES[0] or s.object == "Rome"]
        assert {s for s in data.trial(trial).test if s.object != "Rome"} == {s for s in expected if s.object != "Rome"}
        assert [row[1].subject for row in served(data, [trial])] == [s.subject for s in data.trial(trial).test]
        assert {row[3] for row in served(data, [trial]) if row[1].object != "Rome"} == {"Rome"}
        assert data.trial(trial).train == whole.trial(trial).train
        left_out += len(whole.trial(trial).test) - len(data.trial(trial).test)
    assert left_out > 0
    nothing = make(tokenizer="characters", samples=samples)  # every object's first token is a space
    assert list(nothing.val_dataloader()) == []
    assert nothing.trial(0).test == ()


def test_a_relation_with_one_object_is_refused(make):
    data = make(samples=[{"subject": subject, "object": "Rome"} for subject in COUNTRIES])
    for _ in range(2):
        with pytest.raises(LREError, match=r"'capital' has only the object 'Rome', so nothing false .*exclude"):
            data.setup()


def test_arguments_are_hyperparameters(make):
    options = {"distraction": "instruction", "repetitions": 4, "falsehood_separator": "\n", "undistracted": "few-shot"}
    data = make(**options)
    assert options.items() <= dict(data.hparams).items()
    again = DistractionDataModule(**{**data.hparams, "tokenizer": data.tokenizer})
    assert served(again) == served(data)
    changed = data.changed(distraction="repetition")
    assert isinstance(changed, DistractionDataModule)
    assert served(changed)[0][1].text.count("\n") == 4
    with pytest.raises(LREError, match="nothing is estimated from distracted prompts"):
        data.train_dataloader()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distraction": "noise"}, "distraction must be 'repetition' or 'instruction', got 'noise'"),
        ({"undistracted": "one-shot"}, "undistracted must be 'zero-shot' or 'few-shot', got 'one-shot'"),
        ({"repetitions": 0}, "repetitions must be a whole number of at least 1, got 0"),
        ({"falsehood_separator": ""}, "falsehood_separator is ''"),
        ({"chat": True}, "leave chat out"),
        ({"template": "all", "source": "demo"}, "need one template, and 'all' may be several"),
        ({"n_shot": 999, "source": "demo"}, "distinct subjects, but n_shot=999 needs"),
    ],
)
def test_invalid_arguments_are_refused(options, message):
    with pytest.raises(LREError, match=message):
        DistractionDataModule(**nested(**options)).setup()


def test_every_tensor_moves_with_the_batch(make):
    batch = next(iter(make().val_dataloader()))
    moved = LightningModule().transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert isinstance(moved, DistractionBatch)
    for one in (moved, moved.undistracted):
        assert {value.device.type for value in vars(one).values() if isinstance(value, torch.Tensor)} == {"meta"}
    assert moved.false_objects == batch.false_objects
