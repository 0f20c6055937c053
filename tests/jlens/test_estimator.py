"""Jacobians of texts against a plain autograd loop over whole texts, and the mean over texts."""

from contextlib import ExitStack
from functools import partial

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


def plain_jacobians(lm, ids, skip, same):
    """The definition, by layer: whole texts, no cache, a row at a time, the gradient of each position by itself."""
    found, jacobians = {}, {layer: torch.zeros(WIDTH, WIDTH, dtype=lm.dtype) for layer in lm.layers}

    def keep(hidden, layer):
        found[layer] = hidden if found else hidden.detach().requires_grad_()
        return found[layer].clone()

    with ExitStack() as stack:
        for layer in lm.layers:
            stack.enter_context(replace(lm.module_at(layer), partial(keep, layer=layer)))
        output = lm(ids[None])[0]
    for p in range(skip, len(ids) - 1):
        for row in range(WIDTH):
            later = output[p, row] if same else output[p : len(ids) - 1, row].sum()
            gradients = torch.autograd.grad(later, found.values(), retain_graph=True)
            for jacobian, gradient in zip(jacobians.values(), gradients, strict=True):
                jacobian[row] += gradient[0, p]
    return {layer: jacobian / (len(ids) - 1 - skip) for layer, jacobian in jacobians.items()}


@pytest.mark.parametrize("family", ["gpt2", "gemma2", "lfm2"])
def test_every_element_at_every_layer(monkeypatch, family):
    widen_casts(monkeypatch, family)
    lm = LanguageModel(tiny_model(family), chunk_size=6)  # does not divide the width
    for targets in ("later", "same"):
        found = text_jacobian(lm, TEXT, Averaging(targets, skip=4))
        assert tuple(found) == lm.layers
        for layer, expected in plain_jacobians(lm, TEXT, 4, targets == "same").items():
            torch.testing.assert_close(found[layer], expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))
        assert torch.equal(found[2], torch.eye(WIDTH, dtype=torch.float64))
        assert (found["emb"] - found[2]).abs().max() > 0.1


def test_o_may_be_the_output_of_an_earlier_block():
    """At the block before the last: J of the whole LM is that of the last block times it, where nothing attends."""
    model = tiny_model("gpt2")
    for block in model.transformer.h:
        block.attn.c_proj.weight.data.zero_()
    lm, averaging = LanguageModel(model), Averaging("same", skip=7, object_layer=1)
    lens, whole = (estimate_jacobian_lens(lm, [TEXT.tolist()], averaging=a) for a in (averaging, Averaging("same", 7)))
    assert lens.layers == ("emb", 0, 1)
    torch.testing.assert_close(whole.jacobians[1] @ lens.jacobians["emb"], whole.jacobians["emb"])
    later = estimate_jacobian_lens(lm, [TEXT.tolist()], averaging=Averaging(skip=7, object_layer=1))
    torch.testing.assert_close(later.jacobians[0], lens.jacobians[0])
    with pytest.raises(LREError, match="layer 2 is above the object layer 1"):
        estimate_jacobian_lens(lm, [TEXT.tolist()], [2], averaging)
    with pytest.raises(LREError, match="layer 7 is out of range"):
        estimate_jacobian_lens(lm, [TEXT.tolist()], averaging=Averaging(object_layer=7))


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
