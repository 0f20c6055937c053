"""One slope for all lanes, against plain autograd on every lane."""

import inspect

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN, GELUActivation

from lre_lightning.models.activations import _pointwise, one_slope_for_all_lanes

PROMPTS, LANES, POSITIONS, WIDTH = 2, 3, 2, 7


def without_arguments(kind):
    parameters = inspect.signature(kind).parameters.values()
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


ACTIVATIONS = [kind() for kind in {*filter(without_arguments, _pointwise())}]
ACTIVATIONS += [ACT2FN["gelu_10"], GELUActivation(use_gelu_python=True), nn.PReLU(init=0.3), nn.GELU("tanh")]


def equal_lanes():
    """Return prompts in equal lanes with values on both sides of every kink, and a different cotangent for each."""
    generator = torch.Generator().manual_seed(0)
    prompts = 4 * torch.randn(PROMPTS, POSITIONS, WIDTH, generator=generator, dtype=torch.float64)
    cotangents = torch.randn(PROMPTS * LANES, POSITIONS, WIDTH, generator=generator, dtype=torch.float64)
    return prompts.repeat_interleave(LANES, 0).requires_grad_(True), cotangents


def value_and_gradient(module, inputs, cotangents):
    output = module(inputs)
    return output.detach(), torch.autograd.grad(output, inputs, cotangents)[0]


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS, key=repr), ids=repr)
def test_values_and_gradients_are_those_of_plain_autograd(activation):
    module = nn.Sequential(activation).double().eval()
    inputs, cotangents = equal_lanes()
    expected = value_and_gradient(module, inputs, cotangents)
    with one_slope_for_all_lanes(module, LANES, PROMPTS * LANES, POSITIONS):
        found = value_and_gradient(module, inputs, cotangents)
        shared = type(module(inputs).grad_fn).__name__ == "_SharedSlopeBackward"
    assert shared == isinstance(activation, _pointwise())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(expected[1][0], expected[1][1])  # lanes have gradients of their own


def test_the_common_activations_are_among_them():
    names = {type(activation).__name__ for activation in ACTIVATIONS}
    assert {"NewGELUActivation", "GELUActivation", "SiLUActivation", "GELU", "SiLU", "ReLU", "Tanh"} <= names


@pytest.mark.parametrize(
    "shape", [(LANES, POSITIONS), (PROMPTS * LANES * POSITIONS,), (PROMPTS * LANES, POSITIONS, 4)], ids=str
)
def test_inputs_of_another_shape_are_not_shared(shape):
    """Their lanes need not be equal: here they differ."""
    module = nn.Sequential(nn.GELU())
    inputs = torch.randn((*shape, WIDTH), dtype=torch.float64).requires_grad_(True)
    cotangents = torch.randn_like(inputs)
    expected = value_and_gradient(module, inputs, cotangents)
    with one_slope_for_all_lanes(module, LANES, PROMPTS * LANES, POSITIONS):
        found = value_and_gradient(module, inputs, cotangents)
    assert all(map(torch.equal, found, expected))


def test_only_activations_are_overridden_and_only_within_the_context():
    module = nn.Sequential(nn.GELU(), nn.Sequential(nn.SiLU()), nn.Softmax(0), nn.Linear(WIDTH, WIDTH))
    seen = []

    def fail():
        seen.extend(one for one in module.modules() if "forward" in vars(one))
        raise KeyError

    with pytest.raises(KeyError), one_slope_for_all_lanes(module, LANES, PROMPTS * LANES, POSITIONS):
        fail()
    assert seen == [module[0], module[1][0]]
    assert not any("forward" in vars(one) for one in module.modules())
