"""One slope for all lanes, against plain autograd on every lane."""

import inspect

import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN, GELUActivation

from lre_lightning.models.activations import _pointwise, one_slope_for_all_lanes
from lre_lightning.models.hooks import overridden
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.tiny_models import FAMILIES, tiny_model

LANES, POSITIONS, WIDTH = 3, 2, 7


def without_arguments(kind):
    parameters = inspect.signature(kind).parameters.values()
    return all(one.default is not one.empty or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


KINDS = sorted({kind for kind in _pointwise() if without_arguments(kind)}, key=lambda kind: kind.__name__)


def equal_lanes():
    """Equal lanes, on both sides of every kink, and as many different cotangents."""
    generator = torch.Generator().manual_seed(0)
    lane = 4 * torch.randn(1, POSITIONS, WIDTH, generator=generator, dtype=torch.float64)
    cotangents = torch.randn(LANES, POSITIONS, WIDTH, generator=generator, dtype=torch.float64)
    return lane.repeat(LANES, 1, 1).requires_grad_(True), cotangents


def value_and_gradient(module, inputs, cotangents):
    output = module(inputs)
    return output.detach(), torch.autograd.grad(output, inputs, cotangents)[0]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_and_gradients_are_those_of_plain_autograd(kind):
    module = nn.Sequential(kind()).double().eval()
    inputs, cotangents = equal_lanes()
    expected = value_and_gradient(module, inputs, cotangents)
    with one_slope_for_all_lanes(module, LANES, POSITIONS):
        found = value_and_gradient(module, inputs, cotangents)
        assert type(module(inputs).grad_fn).__name__ == "_SharedSlopeBackward"
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(expected[1][0], expected[1][1])  # lanes have gradients of their own


def test_most_kinds_are_tested():
    names = {kind.__name__ for kind in KINDS}
    assert {"NewGELUActivation", "GELUActivation", "SiLUActivation", "GELU", "SiLU", "ReLU", "Tanh"} <= names
    assert len(KINDS) >= 15


@pytest.mark.parametrize(
    "activation",
    [ACT2FN["gelu_10"], GELUActivation(use_gelu_python=True), nn.PReLU(init=0.3), nn.GELU("tanh")],
    ids=repr,
)
def test_activations_with_arguments(activation):
    module = nn.Sequential(activation).double()
    inputs, cotangents = equal_lanes()
    expected = value_and_gradient(module, inputs, cotangents)
    with one_slope_for_all_lanes(module, LANES, POSITIONS):
        found = value_and_gradient(module, inputs, cotangents)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_an_activation_is_computed_on_one_lane():
    class Counting(nn.Tanh):
        def forward(self, inputs):
            seen.append(tuple(inputs.shape))
            return super().forward(inputs)

    seen, model = [], nn.Sequential(Counting())
    inputs, cotangents = equal_lanes()
    with one_slope_for_all_lanes(model, LANES, POSITIONS):
        value_and_gradient(model, inputs, cotangents)
    assert seen == [(1, POSITIONS, WIDTH)]


OTHERS = {
    "fewer lanes": (LANES - 1, POSITIONS, WIDTH),
    "other positions": (LANES, POSITIONS + 1, WIDTH),
    "rows of an expert": (LANES * POSITIONS, WIDTH),
    "as many rows": (LANES, WIDTH),
    "heads": (LANES, 4, POSITIONS, WIDTH),
    "heads and lanes": (LANES, POSITIONS, 4, WIDTH),
}


@pytest.mark.parametrize("shape", OTHERS)
def test_what_is_not_one_row_a_token_is_run_as_ever(shape):
    """Its lanes need not be equal: here they differ."""
    module = nn.Sequential(nn.GELU())
    inputs = torch.randn(OTHERS[shape], dtype=torch.float64).requires_grad_(True)
    cotangents = torch.randn_like(inputs)
    expected = value_and_gradient(module, inputs, cotangents)
    with one_slope_for_all_lanes(module, LANES, POSITIONS):
        found = value_and_gradient(module, inputs, cotangents)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_other_modules_are_left_alone():
    class Gated(nn.Module):
        def forward(self, inputs):
            return inputs * inputs.roll(1, 0)

    module = nn.Sequential(Gated(), nn.Softmax(0), nn.Linear(WIDTH, WIDTH))
    with one_slope_for_all_lanes(module, LANES, POSITIONS):
        assert not any("forward" in vars(one) for one in module.modules())


def test_forwards_are_restored():
    module = nn.Sequential(nn.GELU(), nn.Sequential(nn.SiLU()))
    activations = [module[0], module[1][0]]
    with one_slope_for_all_lanes(module, LANES, POSITIONS):
        assert all("forward" in vars(one) for one in activations)
    assert not any("forward" in vars(one) for one in activations)
    with pytest.raises(KeyError), one_slope_for_all_lanes(module, LANES, POSITIONS):
        raise KeyError
    assert not any("forward" in vars(one) for one in activations)


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_forward_that_was_overridden_is_used_and_comes_back(error):
    module = nn.Sequential(nn.GELU())
    inputs, cotangents = equal_lanes()

    def cube(states):
        return states**3

    with overridden({module[0]: cube}):
        try:
            with one_slope_for_all_lanes(module, LANES, POSITIONS):
                output, gradient = value_and_gradient(module, inputs, cotangents)
                if error:
                    raise error
        except KeyError:
            pass
        assert module[0].forward is cube
    torch.testing.assert_close(output, inputs.detach() ** 3)
    torch.testing.assert_close(gradient, 3 * inputs.detach() ** 2 * cotangents)
    assert "forward" not in vars(module[0])


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bloom"])  # has a class of its own
def test_activations_of_supported_families_are_found(family):
    lm = LanguageModel(tiny_model(family, torch.float32))
    with one_slope_for_all_lanes(lm, LANES, POSITIONS):
        assert sum("forward" in vars(module) for module in lm.modules()) >= lm.num_layers
    assert not any("forward" in vars(module) for module in lm.modules())
