"""What an LM computes: rounding and other code pass as the same, another computation does not."""

from dataclasses import replace

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.models.identity import EXACT, Identity
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.identities import ANOTHER, SOME
from tests.helpers.tiny_models import LAYERS, overflowing_gpt2, tiny_model


def identity_of(model, **options) -> Identity:
    return LanguageModel(model, **options).identity


def demo(**options) -> LanguageModel:
    return LanguageModel.from_pretrained("demo", **options)


BASE = demo().identity


@pytest.mark.parametrize("family", ["gpt2", "gemma3", "openai", "opt_350m"])
def test_dtypes_of_an_lm_are_the_same_and_noise_is_not(family):
    whole = identity_of(tiny_model(family, torch.float32))
    assert whole.difference(identity_of(tiny_model(family, torch.float32).double())) < EXACT / 100
    for dtype in (torch.bfloat16, torch.float16):
        rounded = identity_of(tiny_model(family, torch.float32).to(dtype))
        assert rounded.fits(whole)
        assert whole.fits(rounded)
    model = tiny_model(family, torch.float32)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if f".{LAYERS - 2}." in name and parameter.ndim == 2:
            parameter.data += 0.03 * parameter.std() * torch.randn(parameter.shape, generator=generator)
    assert not identity_of(model).fits(whole)


@pytest.mark.parametrize("options", [{"attn_implementation": "eager"}, {"dtype": "bfloat16"}, {"dtype": "float16"}])
def test_the_demo_is_the_same_however_it_is_loaded(options):
    found = demo(**options).identity
    assert found.fits(BASE)
    assert found.difference(BASE) < 0.5 * found.tolerance(BASE)


def scale_angles(model, factor):
    model.model.rotary_emb.inv_freq *= factor ** torch.linspace(0, -1, len(model.model.rotary_emb.inv_freq))


def set_eps(model, factor):
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon *= factor


def add_lora(model, size):
    """Add a product of rank 4 to queries and values, of a Frobenius norm relative to theirs."""
    generator = torch.Generator().manual_seed(0)
    for name, module in model.named_modules():
        if name.endswith(("q_proj", "v_proj")):
            weight = module.weight.data
            left, right = (torch.randn(size, 4, generator=generator) for size in weight.shape)
            weight += size * weight.norm() / (left @ right.T).norm() * (left @ right.T)


def scale_stream(model, factor):
    """Scale the residual stream, which the norms undo: logits stay, hidden states do not."""
    model.model.embed_tokens.weight = torch.nn.Parameter(model.model.embed_tokens.weight * factor)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= factor
        layer.mlp.down_proj.weight.data *= factor


def add_noise(model, size):
    for weight in model.model.layers[3].mlp.parameters():
        weight.data += size * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


def scale_norm(model, factor):
    """Change the decoder head alone."""
    model.model.norm.weight.data *= factor


@pytest.mark.parametrize(
    ("change", "size"),
    [
        (add_noise, 0.03),
        (add_lora, 0.01),
        (scale_angles, 10.0),
        (scale_angles, 1.1),
        (set_eps, 10.0),
        (scale_stream, 2.0),
        (scale_norm, 1.01),
    ],
)
def test_an_lm_that_computes_something_else_is_another_one(change, size):
    lm = demo()
    change(lm.model, size)
    assert lm.identity.difference(BASE) > 2 * EXACT
    assert not BASE.fits(lm.identity)


def test_a_missing_window_is_another_lm():
    window, none = (identity_of(tiny_model("mistral", torch.float32, sliding_window=size)) for size in (6, None))
    assert not window.fits(none)


def test_a_cast_lm_has_an_identity_of_its_own():
    lm = demo()
    assert lm.identity == BASE
    assert lm.to("cpu").identity is lm.identity
    cast = lm.to(torch.bfloat16).identity
    assert cast.dtype == "bfloat16"
    assert cast.fits(BASE)


def test_products_are_exact_and_the_users_setting_stays():
    lm, seen = demo(), set()
    lm.parts.blocks[0].register_forward_hook(lambda *_: seen.add(torch.backends.cuda.matmul.fp32_precision))
    try:
        torch.set_float32_matmul_precision("high")
        with torch.autocast("cpu", torch.bfloat16):
            assert lm.identity.difference(BASE) < EXACT / 100
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == {"ieee"}


def test_a_token_more_and_a_short_context_change_nothing_and_fail_nothing():
    lm = demo()
    count = len(lm.model.get_input_embeddings().weight)
    lm.model.resize_token_embeddings(count + 1)
    assert lm.identity.fits(BASE)
    assert identity_of(tiny_model("gpt2", torch.float32, n_positions=8)).blocks == LAYERS


def test_what_overflows_is_named():
    lm = LanguageModel(overflowing_gpt2().half(), name="tiny")
    with pytest.raises(LREError, match=r"tiny are not finite in float16, which .*: load the LM in bfloat16 or float32"):
        Identity.of(lm)


def test_a_comparison_says_what_differs():
    assert SOME.comparison(replace(ANOTHER, blocks=9)) == "one has 3 blocks and the other 9"
    assert not SOME.fits(replace(SOME, blocks=9))
    said = SOME.comparison(replace(ANOTHER, dtype="bfloat16", torch="9"))
    assert "differ by 1." in said
    assert "where rounding in float32 and bfloat16 explains 0.027" in said
    assert said.endswith("(then under transformers 5.0.0 and torch 2.6.0, now under transformers 5.0.0 and torch 9)")
    assert "then under" not in SOME.comparison(ANOTHER)
