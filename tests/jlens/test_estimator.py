"""Jacobians of texts against a plain autograd loop over whole texts, and the mean over texts."""

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.estimator import JacobianLensEstimator, digest_of_texts, estimate_jacobian_lens, text_jacobian
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model, widen_casts

TEXT = torch.arange(9) * 11 % VOCAB
TEXTS = [((torch.arange(9 + i) * 7 + i) % VOCAB).tolist() for i in range(4)]


def plain_jacobian(lm, ids, layer, skip, same):
    """The definition: whole texts, no cache, a row at a time, the gradient of each position by itself."""
    start, jacobian = [], torch.zeros(WIDTH, WIDTH, dtype=lm.dtype)

    def begin(hidden):
        start.append(hidden.detach().clone().requires_grad_(True))
        return start[0].clone()

    with replace(lm.module_at(layer), begin):
        output = lm(ids[None])[0]
    for p in range(skip, len(ids) - 1):
        for row in range(WIDTH):
            later = output[p, row] if same else output[p : len(ids) - 1, row].sum()
            jacobian[row] += torch.autograd.grad(later, start[0], retain_graph=True)[0][0, p]
    return jacobian / (len(ids) - 1 - skip)


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "lfm2"])
def test_every_element_at_every_layer(monkeypatch, family):
    widen_casts(monkeypatch, family)
    lm = LanguageModel(tiny_model(family), chunk_size=6)  # does not divide the width
    for targets in ("later", "same"):
        found = text_jacobian(lm, TEXT, Averaging(targets, skip=4))
        assert tuple(found) == lm.layers
        for layer, jacobian in found.items():
            expected = plain_jacobian(lm, TEXT, layer, 4, targets == "same")
            torch.testing.assert_close(jacobian, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
        assert torch.equal(found[2], torch.eye(WIDTH, dtype=torch.float64))
        assert (found["emb"] - found[2]).abs().max() > 0.1


def test_some_positions_are_spread_evenly():
    lm, averaging = LanguageModel(tiny_model("gpt2")), Averaging("same", skip=4, positions=3)
    assert averaging.chosen(len(TEXT)) == [4, 6, 7]
    expected = sum(text_jacobian(lm, TEXT[: p + 2], Averaging("same", skip=p))[0] for p in (4, 6, 7)) / 3
    torch.testing.assert_close(text_jacobian(lm, TEXT, averaging, [0])[0], expected)


def test_the_mean_over_texts_and_its_standard_error():
    lm, averaging = LanguageModel(tiny_model("gpt2")), Averaging(skip=4)
    lens = estimate_jacobian_lens(lm, TEXTS, averaging=averaging)
    each = torch.stack([text_jacobian(lm, torch.tensor(ids), averaging)[1] for ids in TEXTS])
    torch.testing.assert_close(lens.jacobians[1], each.mean(0))
    error = each.flatten(1).std(0).norm() / len(TEXTS) ** 0.5 / each.mean(0).norm()
    assert lens.standard_error(1) == pytest.approx(float(error), rel=1e-9)
    assert lens.standard_error(2) < 1e-6  # of identities
    assert (lens.n_prompts, lens.origin.texts, lens.origin.averaging.skip) == (4, (digest_of_texts(TEXTS),), 4)
    assert estimate_jacobian_lens(lm, TEXTS[:1], averaging=averaging).standard_error(1) is None


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_sums_are_wider_than_the_lm(dtype, error):
    models = tiny_model("llama", dtype), tiny_model("llama", dtype).double()
    lens, exact = (estimate_jacobian_lens(LanguageModel(m), TEXTS, averaging=Averaging(skip=4)) for m in models)
    assert lens.jacobians[0].dtype == torch.float32
    expected = exact.jacobians[0].float()
    assert (lens.jacobians[0] - expected).norm() < error * expected.norm()


def test_what_cannot_be_estimated_is_an_error():
    lm = LanguageModel(tiny_model("gpt2"))
    with pytest.raises(LREError, match="a text of 17 tokens is too short: with skip=16 it needs 18"):
        text_jacobian(lm, torch.arange(17))
    with pytest.raises(LREError, match="a prompt of 66 tokens is too long"):
        text_jacobian(lm, torch.arange(67))
    with pytest.raises(LREError, match="there is no text"):
        JacobianLensEstimator(lm).lens("")
    with pytest.raises(LREError, match="takes all positions"):
        Averaging(positions=3)
    with pytest.raises(LREError, match="positions must be a whole number of at least 1, got 0"):
        Averaging("same", positions=0)
    with pytest.raises(LREError, match="targets must be 'later' or 'same', got 'next'"):
        Averaging("next")
