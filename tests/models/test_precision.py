"""LMs in half precision: the estimates are float32, and close to those of the LM in float32."""

import copy
from itertools import cycle

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import VOCAB, WAYS, WIDTH, batch_of, overflowing_gpt2, tiny_model

PROMPTS = torch.stack([torch.arange(14) * step % VOCAB for step in (11, 13, 17)])
POSITION = 9
LAYERS = ("emb", 0, 1)
ADVICE = "float16, which overflows at 65504: load the LM in bfloat16 or float32$"
HALF = {torch.bfloat16: 0.04, torch.float16: 0.005}  # relative errors


def estimate(lm):
    estimator = LREEstimator(LAYERS)
    for prompt in PROMPTS:
        estimator.update(prompt_jacobian(lm, prompt, POSITION))
    return estimator


def relative_error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize(("family", "dtype"), zip(["gpt2", "mistral", "gemma2", "falcon"], cycle(HALF)), ids=str)
def test_an_lm_in_half_precision_gives_lres_in_float32(family, dtype):
    model = tiny_model(family, torch.float32)
    lm = LanguageModel(copy.deepcopy(model).to(dtype))
    assert prompt_jacobian(lm, PROMPTS[0], POSITION).jacobian["emb"].dtype == lm.dtype == dtype
    found, expected = estimate(lm), estimate(LanguageModel(model))
    for layer in LAYERS:
        for name in ("weight", "bias"):
            one, other = (getattr(estimator, name)(layer) for estimator in (found, expected))
            assert one.dtype == torch.float32
            assert 0 < relative_error(one, other) < HALF[dtype], layer
            assert not torch.equal(one.to(dtype).float(), one)  # means are not rounded to half precision


def test_an_lm_in_full_precision_keeps_it_and_the_bias_is_computed_in_float32():
    """In bfloat16 the difference of o and W s would lose most of its digits."""
    for dtype in (torch.float32, torch.float64):
        estimator = estimate(LanguageModel(tiny_model("gpt2", dtype)))
        assert estimator.weight("emb").dtype == estimator.bias("emb").dtype == dtype
    example = prompt_jacobian(LanguageModel(tiny_model("gpt2", torch.bfloat16)), PROMPTS[0], POSITION)
    jacobian, subject, output = (one.double() for one in (example.jacobian[0], example.subject[0], example.object))
    assert example.bias(0).dtype == torch.float32
    assert relative_error(example.bias(0), output - jacobian @ subject) < 1e-6


def large_gpt2(scale=2.0**8):
    model = tiny_model("gpt2", torch.float32)
    model.transformer.h[1].mlp.c_fc.weight.data *= scale
    model.transformer.h[1].mlp.c_proj.weight.data *= scale
    return model


def test_a_jacobian_too_large_for_float16_is_refused_with_advice():
    """It is large at the embedding and at block 0, since block 1 is scaled."""
    wide = prompt_jacobian(LanguageModel(large_gpt2().bfloat16()), PROMPTS[0], POSITION)
    assert all(torch.isfinite(wide.jacobian[layer]).all() for layer in LAYERS)
    narrow = LanguageModel(large_gpt2().half(), name="large")
    assert all(torch.isfinite(parameter).all() for parameter in narrow.parameters())
    message = f"the Jacobian at layer {{}} of large is not finite in {ADVICE}"
    for layers in (None, [0]):
        with pytest.raises(LREError, match=message.format("emb" if layers is None else 0)):
            prompt_jacobian(narrow, PROMPTS[0], POSITION, layers)


@pytest.mark.parametrize("keep", [False, True])
def test_an_lm_that_overflows_in_float16_is_refused_with_advice(keep):
    """It would count as one that knows nothing."""
    with pytest.raises(LREError, match=f"the hidden states at layer 1 of GPT2LMHeadModel are not finite in {ADVICE}"):
        LanguageModel(large_gpt2(2.0**18).half())
    batches = {dtype: batch_of(LanguageModel(overflowing_gpt2().to(dtype), name="large")) for dtype in HALF}
    with pytest.raises(LREError, match=f"the last hidden states of large are not finite in {ADVICE}"):
        batches[torch.float16].hidden_states([0], keep)
    assert all(torch.isfinite(states).all() for states in batches[torch.bfloat16].hidden_states([0], keep))


KINDS = [
    "gpt2",
    "ctrl",
    "bloom",
    "mpt",
    "mixtral",
    "gemma2",
    "gemma3",
    "mamba",
    "mamba2",
    "gemma4_shared_keys",
    "gemma3n",
]


@pytest.mark.parametrize(("family", "dtype"), zip(KINDS, cycle(HALF)), ids=str)
def test_an_lm_in_half_precision_is_run_as_in_float32(family, dtype):
    assert LanguageModel(tiny_model(family, dtype)).way == WAYS[family]


def random_lre(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(WIDTH, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)
    return LRE(weight.to(dtype), bias.to(dtype), 0, Origin("toy", SOME, "r"), beta=1.3, rank=5)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_lre_arithmetic_on_half_precision_states_is_float32(dtype):
    """Only the states are rounded; the arithmetic is that of float32."""
    lre, wide = random_lre(), random_lre(torch.float64)
    subject, other = (torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype) for seed in (1, 2))
    for found, expected in (
        (lre(subject), wide(subject.double())),
        (lre(subject, beta=torch.tensor(0.7)), wide(subject.double(), beta=0.7)),
        (lre.operator.edits(subject, [2, 5]), wide.operator.edits(subject.double(), [2, 5])),
    ):
        assert found.dtype == torch.float32
        assert relative_error(found, expected) < 1e-5
    edit = lre.edit(subject, other)
    assert edit.dtype == torch.float32
    assert relative_error(edit, wide.edit(subject.double(), other.double())) < 2 * torch.finfo(dtype).eps
