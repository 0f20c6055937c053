"""Jacobians element by element against the plain computation: whole prompt, no cache, row by row."""

from contextlib import ExitStack
from functools import partial

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian, prompts_in_a_sweep
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.prefix import Prefix
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model

PROMPT = torch.arange(14) * 11 % VOCAB


def plain_jacobians(lm, ids, position, object_layer=None, tokens=1):
    """o of the whole prompt, and by layer s and the Jacobian of o with respect to it, whose rows are gradients."""
    found, target = {}, lm.num_layers - 1 if object_layer is None else object_layer

    def keep(hidden, layer):
        found[layer] = hidden if found else hidden.detach().requires_grad_()
        return found[layer].clone()  # blocks may change it in place

    with ExitStack() as stack:
        for layer in lm.layers:
            stack.enter_context(replace(lm.module_at(layer), partial(keep, layer=layer)))
        states = lm.hidden_states(ids[None], [target])[target][0]
    output = sum(states[-1 - i] for i in range(tokens)) / tokens
    below = {layer: found[layer] for layer in lm.layers[: lm.layers.index(target) + 1]}
    rows = [
        torch.autograd.grad(number, below.values(), retain_graph=True, allow_unused=True, materialize_grads=True)
        for number in output
    ]
    jacobians = [torch.stack([gradient[0, position] for gradient in column]) for column in zip(*rows, strict=True)]
    subjects = [hidden[0, position].detach() for hidden in below.values()]
    return output.detach(), dict(zip(below, zip(jacobians, subjects, strict=True), strict=True))


def relative_error(found, expected):
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(torch.finfo(expected.dtype).tiny))


def check_jacobian(lm, position, tolerance):
    """Compare every element at every layer."""
    result, nonzero = prompt_jacobian(lm, PROMPT, position), []
    output, plain = plain_jacobians(lm, PROMPT, position)
    assert relative_error(result.object, output) < tolerance
    for layer, (expected, subject) in plain.items():
        nonzero += [layer] if expected.any() else []
        assert relative_error(result.jacobian[layer], expected) < tolerance, (position, layer)
        assert relative_error(result.subject[layer], subject) < tolerance
        assert relative_error(result.bias(layer), output - expected @ subject) < tolerance
    assert lm.layers[0] in nonzero  # the comparison is not one of zeros
    assert (2 in nonzero) == (position == 13)  # at the last block only the last token reaches o
    assert tuple(result.jacobian) == lm.layers


@pytest.mark.parametrize("family", ["gpt2", "gemma2"])
def test_every_element_at_every_layer_in_float32(family):
    """In float64 those of all families are compared in tests/models/test_families.py."""
    lm = LanguageModel(tiny_model(family, torch.float32), chunk_size=6)  # does not divide the width
    for position in (9, 13):
        check_jacobian(lm, position, 1e-4)


def test_chunks_and_layers_do_not_change_the_result():
    lm = LanguageModel(tiny_model("gemma2"))
    everything = prompt_jacobian(lm, PROMPT, 9)
    assert everything.jacobian["emb"].shape == (WIDTH, WIDTH)
    for chunk_size in (1, 7, 1000):
        lm.chunk_size = chunk_size
        some = prompt_jacobian(lm, PROMPT, 9, [1, "emb"])
        assert tuple(some.jacobian) == ("emb", 1)
        for layer in some.jacobian:
            assert relative_error(some.jacobian[layer], everything.jacobian[layer]) < 1e-6


def test_prompts_that_keep_a_device_busy_do_not_share_sweeps():
    lm = LanguageModel(tiny_model("gpt2"))
    assert prompts_in_a_sweep(lm) == 4
    for chunk_size, prompts in ((WIDTH - 1, 1), (2 * WIDTH, 2), (2 * WIDTH - 1, 1), (99 * WIDTH, 4)):
        lm.chunk_size = chunk_size
        assert prompts_in_a_sweep(lm) == prompts


def test_a_prefix_cache_that_a_run_mutates_would_be_noticed(monkeypatch):
    """Without the copy of the cache, on purpose, the second chunk sees the first one's tokens."""
    lm = LanguageModel(tiny_model("llama"))
    right = prompt_jacobian(lm, PROMPT, 9).jacobian[0]
    cache = lm.prefix(PROMPT[None, :9]).cache
    cache.batch_repeat_interleave(WIDTH)
    monkeypatch.setattr(Prefix, "inputs", lambda *_: {"past_key_values": cache, "use_cache": True})
    assert relative_error(prompt_jacobian(lm, PROMPT, 9).jacobian[0], right) < 1e-6
    assert relative_error(prompt_jacobian(lm, PROMPT, 9).jacobian[0], right) > 1e-3


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_no_grad_and_inference_mode_do_not_change_the_result(mode):
    lm = LanguageModel(tiny_model("gpt2"))
    expected = prompt_jacobian(lm, PROMPT, 9).jacobian
    with mode():
        found = prompt_jacobian(lm, PROMPT.clone(), 9).jacobian
    assert all(torch.equal(found[layer], expected[layer]) for layer in lm.layers)
    assert not any(module._forward_hooks for module in lm.modules())
    assert all(parameter.grad is None for parameter in lm.parameters())


def test_invalid_positions_and_layers():
    lm = LanguageModel(tiny_model("gpt2"))
    with pytest.raises(LREError, match="subject position 14 is out of range: the prompt has 14 tokens"):
        prompt_jacobian(lm, PROMPT, 14)
    with pytest.raises(LREError, match="layer 7"):
        prompt_jacobian(lm, PROMPT, 3, [7])


def test_object_layer_that_the_subjects_layer_does_not_reach():
    lm = LanguageModel(tiny_model("gpt2"))
    assert tuple(prompt_jacobian(lm, PROMPT, 9, object_layer=1).jacobian) == ("emb", 0, 1)
    with pytest.raises(LREError, match="layer 2 is above the object layer 1"):
        prompt_jacobian(lm, PROMPT, 9, [0, 2], object_layer=1)
    for tokens in (0, 6):
        with pytest.raises(LREError, match=f"object_tokens {tokens} is out of range: there are 5 tokens"):
            prompt_jacobian(lm, PROMPT, 9, object_tokens=tokens)
