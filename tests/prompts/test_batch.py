"""Batches of prompts: their tensors, padding on either side, moves between devices, and rows of data sets."""

from dataclasses import fields

import pytest
import torch
from lightning import LightningModule

from lre_lightning.datamodules import RelationBatch, collate
from lre_lightning.prompts.prompt import make_prompts
from lre_lightning.relations.relation import Sample
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.tiny_models import tiny_model

TENSORS = tuple(field.name for field in fields(RelationBatch) if field.name != "prompts")


@pytest.fixture
def batch():
    samples = [Sample("Ulm", "small"), Sample("Paris", "big")]
    prompts = make_prompts(tokenizers.make("characters"), "{} is", samples, [Sample("Rome", "old")])
    return collate(prompts, 4, 2, [7, 3], pad_id=99, weights=[1, 0], objects=["old", "big"])


@pytest.fixture
def padded():
    """Return prompts of very different lengths, padded on the right and on the left."""
    samples = [Sample("x" * length, "y") for length in (1, 9, 4, 23, 2)]
    prompts = make_prompts(tokenizers.make("characters"), "{} is", samples, [Sample("b", "c")])
    return [collate(prompts, 0, 0, range(5), 9, padding_side=side) for side in ("right", "left")]


def same(one, other):
    return one.prompts == other.prompts and all(torch.equal(getattr(one, n), getattr(other, n)) for n in TENSORS)


def test_tensors_by_hand(batch):
    texts = ["Rome is old\nUlm is", "Rome is old\nParis is"]
    expected = {
        "input_ids": [[0, *map(ord, texts[0]), 99, 99], [0, *map(ord, texts[1])]],
        "attention_mask": [[1] * 19 + [0] * 2, [1] * 21],
        "subject_position": [15, 17],
        "last_position": [18, 20],
        "object_token": [ord(" ")] * 2,
        "relation": [4, 4],
        "trial": [2, 2],
        "sample": [7, 3],
        "weight": [1, 0],
        "object": [-1, 1],
    }
    assert {name: getattr(batch, name).tolist() for name in TENSORS} == expected
    for name in TENSORS:
        assert getattr(batch, name).dtype == (torch.float32 if name == "weight" else torch.int64)
    assert [prompt.text for prompt in batch.prompts] == texts
    assert len(batch) == 2


def test_left_padding_by_hand(padded):
    right, left = padded
    length = right.input_ids.shape[1]
    for row, prompt in enumerate(left.prompts):
        pads = length - len(prompt.input_ids)
        assert left.input_ids[row].tolist() == [9] * pads + list(prompt.input_ids)
        assert left.attention_mask[row].tolist() == [0] * pads + [1] * len(prompt.input_ids)
        assert left.position_ids[row].tolist() == [0] * pads + list(range(len(prompt.input_ids)))
        assert right.position_ids[row].tolist() == list(range(len(prompt.input_ids))) + [0] * pads
        assert left.subject_position[row] == pads + prompt.subject_position
        assert left.last_position[row] == length - 1
    assert [prompt.last_position for prompt in left.prompts] == right.last_position.tolist()
    assert same(right.padded("left"), left)
    assert same(left.padded("right"), right)
    assert left.padded("left") is left
    assert not same(left, right)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_left_padded_prompts_have_the_hidden_states_of_unpadded_ones(family, padded):
    longest = {"gpt2": "n_positions", "llama": "max_position_embeddings"}[family]
    model = tiny_model(family, vocab_size=600, **{longest: 128})

    def states(batch, **options):
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask, **options}
        with torch.no_grad():
            found = torch.stack(model(**inputs, output_hidden_states=True).hidden_states)
        rows = torch.arange(len(batch))
        return found[:, rows, batch.subject_position], found[:, rows, batch.last_position]

    alone = [states(collate([prompt], 0, 0, [0])) for prompt in padded[0].prompts]
    expected = [torch.cat(some, 1) for some in zip(*alone, strict=True)]
    for batch in padded:
        torch.testing.assert_close(list(states(batch, position_ids=batch.position_ids)), expected, rtol=0, atol=1e-10)
    # The control: GPT-2 counts padding on the left unless it is given positions.
    wrong = states(padded[1])[1] - expected[1]
    assert (wrong.abs().max() > 1e-3) == (family == "gpt2")


def test_every_tensor_moves_and_is_pinned(batch, monkeypatch):
    for moved in (batch.to("meta"), LightningModule().transfer_batch_to_device(batch, torch.device("meta"), 0)):
        assert isinstance(moved, RelationBatch)
        assert {getattr(moved, name).device.type for name in TENSORS} == {"meta"}
        assert moved.prompts == batch.prompts
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 1)
    pinned = batch.pin_memory()
    assert all(torch.equal(getattr(pinned, name), getattr(batch, name) + 1) for name in TENSORS)


def test_a_batch_becomes_rows_of_a_data_set(padded):
    datasets = pytest.importorskip("datasets")
    for batch in padded:
        rows = batch.rows()
        table = datasets.Dataset.from_list(rows)
        assert table.to_list() == rows
        assert table["sample"] == batch.sample.tolist()
        for row, prompt in zip(table, batch.prompts, strict=True):
            assert row["text"][slice(*row["subject_chars"])] == row["subject"] == prompt.subject
            assert (tuple(row["input_ids"]), tuple(row["subject_span"])) == (prompt.input_ids, prompt.subject_span)
            assert (tuple(row["object_tokens"]), row["object"]) == (prompt.object_tokens, prompt.object)
            assert (row["relation"], row["trial"], row["weight"]) == (0, 0, 1.0)
