"""The benchmarks' comparisons, on tiny models: their assertions hold, and would not if the engine were wrong."""

import pytest
import torch

from benchmarks import jacobian, jlens, scoring
from benchmarks.common import Products
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt
from tests.helpers.tiny_models import LAYERS, VOCAB, WIDTH, tiny_model

PROMPTS = [(torch.arange(14) * step % VOCAB, 10) for step in (5, 11)]


@pytest.fixture
def lm():
    return LanguageModel(tiny_model("llama", torch.float32))


def test_jacobians_are_compared_and_timed(lm):
    rows = jacobian.compare(lm, PROMPTS, 2, [1], 1)
    others = ["copied prefix", "stepwise", "whole prompts", "published", "plain*"]
    assert [row[1] for row in rows] == ["engine", "floor", *others]
    assert all(float(row[2]) >= 0 for row in rows)


def test_a_wrong_jacobian_fails_the_benchmark(lm, monkeypatch):
    def wrong(*arguments):
        found = prompt_jacobian(*arguments)
        found.jacobian[1] += 0.1
        return found

    monkeypatch.setattr(jacobian, "prompt_jacobian", wrong)
    with pytest.raises(AssertionError, match="layer 1"):
        jacobian.compare(lm, PROMPTS, 1, [1], 1)


def test_the_floor_has_the_products_of_the_blocks(lm, monkeypatch):
    monkeypatch.setattr(lm, "chunk_size", WIDTH)
    with Products(lm) as products:
        prompt_jacobian(lm, *PROMPTS[0])
    forward = [notes for _, notes in products.calls if any(isinstance(note, torch.Tensor) for note in notes)]
    # Seven weights a block: the prefix, one lane that is measured or the chunk itself, and one backward pass.
    assert len(forward) >= 3 * 7 * LAYERS - 1
    assert products.seconds() > 0


@pytest.mark.parametrize("wrong", [False, True])
def test_jacobians_of_texts_are_compared_and_timed(lm, monkeypatch, wrong):
    ids, averaging = torch.arange(14) * 5 % VOCAB, Averaging(skip=4)
    if wrong:
        found = {layer: jacobian * 1.01 for layer, jacobian in jlens.text_jacobian(lm, ids, averaging).items()}
        monkeypatch.setattr(jlens, "text_jacobian", lambda *_: found)
        with pytest.raises(AssertionError, match="layer emb"):
            jlens.compare(lm, ids, 3, 1e9, averaging)
        return
    rows = jlens.compare(lm, ids, 3, 1e9, averaging)
    assert [row[1] for row in rows] == ["estimator", "floor", "loop*"]
    assert all(float(row[2]) >= 0 for row in rows)
    with pytest.raises(AssertionError):
        jlens.compare(lm, ids, 3, 0.0, averaging)


@pytest.mark.parametrize("wrong", [False, True])
def test_answers_are_compared(lm, monkeypatch, wrong):
    context = (1, 7, 7, 9)
    prompts = [Prompt("", f"s{n}", "", (*context, 20 + n, 30 + n, 3), (4, 6), (0,)) for n in range(12)]
    encoded, lres = scoring.trial(lm, PROMPTS, prompts)
    if wrong:
        monkeypatch.setattr(scoring.Published, "edited", lambda *_: -1)
        with pytest.raises(AssertionError):
            scoring.compare(lm, encoded, lres, [1, 4], 12, None)
        return
    rows = scoring.compare(lm, encoded, lres, [1, 4], 12, None)
    assert [row[1] for row in rows] == ["engine", "published"]
    cells = 12 * len(lm.layers) * (2 + len(scoring.BETAS))
    assert rows[1][-1] == f"{cells:,}"
