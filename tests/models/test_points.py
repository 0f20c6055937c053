"""Answers at many betas from few unembeddings, against `lm.predict` on every family's decoder head."""

import pytest
import torch
from torch import nn

from lre_lightning.models import points
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.tiny_models import FAMILIES, tiny_model

BETAS = torch.arange(-2, 3.01, 0.25)


@pytest.fixture(autouse=True)
def small_models_too(monkeypatch):
    monkeypatch.setattr(points, "WORTHWHILE", 0)


def lines(lm, rows=40):
    """Points beta d + b, `(rows, betas, hidden)`, where the answer changes from beta to beta."""
    generator = torch.Generator().manual_seed(1)
    slope, bias = (torch.randn(n, lm.hidden_size, generator=generator) * 2 for n in (rows, 1))
    return (BETAS[:, None] * slope[:, None] + bias).to(lm.dtype)


def plainly_decoded(lm, output, monkeypatch):
    """Return the answers, and how many outputs were unembedded one by one."""
    seen, predict = [0], lm.predict

    def count(hidden):
        seen.append(hidden[..., 0].numel())
        return predict(hidden)

    monkeypatch.setattr(lm, "predict", count)
    answers = points.predict_points(lm, output)
    monkeypatch.undo()
    monkeypatch.setattr(points, "WORTHWHILE", 0)
    return answers, sum(seen)


@pytest.mark.parametrize("family", ["gpt2", "gptj", "llama", "gemma2", "cohere", "granite", "bloom", "mpt"])
def test_answers_are_those_of_plain_unembeddings(family, monkeypatch):
    assert family in FAMILIES
    for dtype in (torch.float32, torch.float64):
        lm = LanguageModel(tiny_model(family, seed=2).to(dtype))
        output = lines(lm)
        found, plain = plainly_decoded(lm, output, monkeypatch)
        assert torch.equal(found, lm.predict(output))
        assert (found.diff(dim=1) != 0).any(1).float().mean() > 0.5
        if dtype == torch.float32:  # norms compute in it, so that states of other dtypes are rounded off their line
            assert plain < 0.05 * found.numel()


def test_what_lies_on_no_line_is_decoded_as_it_is(monkeypatch):
    lm = LanguageModel(tiny_model("llama", seed=2))
    output = torch.randn(5, 8, lm.hidden_size, generator=torch.Generator().manual_seed(0))
    found, plain = plainly_decoded(lm, output, monkeypatch)
    assert torch.equal(found, lm.predict(output))
    assert plain == 40
    output = lines(lm)
    output[3, 7, 2] += 1.0  # one point off its line
    assert torch.equal(points.predict_points(lm, output), lm.predict(output))
    output[1, 2] = torch.nan
    assert torch.equal(points.predict_points(lm, output), lm.predict(output))


def test_ties_are_resolved_as_plain_unembeddings_resolve_them(monkeypatch):
    model = tiny_model("llama", seed=2)
    with torch.no_grad():
        model.lm_head.weight[50:90] = model.lm_head.weight[:40]
    lm = LanguageModel(model)
    found, plain = plainly_decoded(lm, lines(lm), monkeypatch)
    assert torch.equal(found, lm.predict(lines(lm)))
    assert plain > 0.2 * found.numel()


class _Scaled(nn.Module):
    """A model that changes the order of its logits after the unembedding."""

    def __init__(self, model):
        super().__init__()
        self.inner, self.config = model, model.config
        self.scale = torch.linspace(-1, 1, model.config.vocab_size)

    def forward(self, **inputs):
        output = self.inner(**inputs)
        return type(output)(logits=output.logits * self.scale)


def test_a_head_that_changes_the_order_of_logits_is_decoded_as_it_is(monkeypatch):
    own = LanguageModel(tiny_model("llama", seed=2))
    lm = LanguageModel(_Scaled(own.model), parts=own.parts)
    found, plain = plainly_decoded(lm, lines(lm), monkeypatch)
    assert not points.reads_linearly(lm)
    assert torch.equal(found, lm.predict(lines(lm)))
    assert plain == found.numel()
