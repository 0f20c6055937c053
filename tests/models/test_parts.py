"""Parts of an LM: supported and refused models, numbers in configs, and an architecture of the user's own."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn

from lre_lightning.errors import LREError
from lre_lightning.lre.answers import most_likely
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models import prefix
from lre_lightning.models.hooks import observe, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.parts import Parts
from lre_lightning.models.patching import PromptBatch
from lre_lightning.models.precision import check_logits
from tests.helpers.tiny_models import FAMILIES, LAYERS, VOCAB, WIDTH, plain_output, tiny_model
from tests.lre.test_jacobian import PROMPT, plain_jacobians, relative_error

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 16,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

REFUSED = {
    "its hidden states depend on later tokens": ("BertLMHeadModel", {}),
    "it has an encoder beside its decoder": ("T5ForConditionalGeneration", {"d_model": 16, "num_layers": 1}),
    "it has no unembedding on top of its decoder": ("GPT2Model", {"n_embd": 16, "n_layer": 2, "n_head": 2}),
    "a few tokens cannot be run through it": ("MixtralForCausalLM", {"num_experts_per_tok": 9}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("reason", REFUSED)
def test_unsupported_models_are_refused_with_the_reason(reason, dtype):
    name, options = REFUSED[reason]
    model_class = getattr(transformers, name)
    torch.manual_seed(0)
    model = model_class(model_class.config_class(**{**SMALL, **options})).to(dtype)
    with pytest.raises(LREError, match=f"^{name} is not supported: {reason}.*Supported are decoder-only LMs"):
        LanguageModel(model)
    assert not any(module._forward_hooks for module in model.modules())


def test_the_decoder_of_a_multimodal_model_is_found():
    """Gemma 3 beyond 1B: its vision tower has a list of blocks of its own."""
    text = transformers.Gemma3TextConfig(**FAMILIES["gemma3"][1])
    vision = {**SMALL, "num_hidden_layers": LAYERS, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(text_config=text.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    lm = LanguageModel(model)
    assert lm.module_at(0) is model.model.language_model.layers[0]
    with torch.no_grad():
        torch.testing.assert_close(lm.decode(lm(PROMPT[None])), model(PROMPT[None]).logits)


def test_experts_run_as_transformers_runs_them_by_default():
    lm = LanguageModel(tiny_model("mixtral", torch.float32))
    expected = lm(PROMPT[None])
    lm.model.set_experts_implementation("grouped_mm")
    torch.testing.assert_close(lm(PROMPT[None]), expected, rtol=1e-4, atol=1e-5)
    assert prompt_jacobian(lm, PROMPT, 9).jacobian[0].any()


LONG_ROPE = {
    "original_max_position_embeddings": 12,
    "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0, 1.0], "long_factor": [3.0, 4.0]},
}


@pytest.mark.parametrize(("family", "options", "longest"), [("mpt", {}, 64), ("phi3", LONG_ROPE, 12)])
def test_prompts_longer_than_the_context_are_refused(family, options, longest):
    lm = LanguageModel(tiny_model(family, **options), name="tiny")
    lm.check_ids(torch.zeros(longest, dtype=torch.long))
    with pytest.raises(LREError, match=f"a prompt of {longest + 1} tokens is too long: tiny is made for {longest}"):
        lm.check_ids(torch.zeros(longest + 1, dtype=torch.long))


class OwnBlock(nn.Module):
    """Attention in which later tokens weigh more, and a tuple as output."""

    def __init__(self, index):
        super().__init__()
        self.index, self.query_key_value, self.out = index, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, stream, past):
        query, key, value = self.query_key_value(torch.tanh(stream))[:, None].chunk(3, dim=-1)
        if past is not None:
            key, value = past.update(key, value, self.index)
        scores = query @ key.transpose(-1, -2) + 0.1 * torch.arange(key.shape[-2]).to(stream)
        later = torch.ones_like(scores[0, 0]).triu(key.shape[-2] - query.shape[-2] + 1).bool()
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        return stream + self.out((weights @ value)[:, 0]), weights


class OwnBody(nn.Module):
    """Blocks that are attributes, not a list."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.first, self.second, self.norm = OwnBlock(0), OwnBlock(1), nn.LayerNorm(WIDTH)

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        past = past_key_values if past_key_values is not None or not use_cache else transformers.DynamicCache()
        stream = self.tokens(input_ids)
        for block in (self.first, self.second):
            stream, _ = block(stream, past)
        return SimpleNamespace(stream=self.norm(stream), past_key_values=past)


class OwnLM(nn.Module):
    """Logits that are halved without a number in a config."""

    def __init__(self):
        super().__init__()
        self.body, self.to_logits = OwnBody(), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids, **options):
        output = self.body(input_ids, **options)
        output.logits = self.to_logits(output.stream) / 2
        return output


class TokenLM(OwnLM):
    """Logits that depend on the token itself."""

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        output.logits = output.logits + 0.02 * input_ids[..., None].to(output.logits)
        return output


class ExcludingLM(OwnLM):
    """Logits that exclude some tokens."""

    def forward(self, input_ids, **options):
        output = super().forward(input_ids, **options)
        output.logits[..., 90:] = -torch.inf
        return output


@pytest.fixture
def own():
    torch.manual_seed(0)
    return OwnLM().double()


def parts_of(model, **changes):
    body = model.body
    declared = {
        "backbone": body,
        "embedding": body.tokens,
        "blocks": [body.first, body.second],
        "unembedding": model.to_logits,
    }
    return Parts(**{**declared, **changes})


def check_runs(lm):
    """Compare logits, Jacobians and patched runs with plain ones."""
    with torch.no_grad():
        torch.testing.assert_close(lm.decode(lm(PROMPT[None])), lm.model(PROMPT[None]).logits)
    result = prompt_jacobian(lm, PROMPT, 9)
    batch = PromptBatch(lm, PROMPT[None], torch.tensor([9]), torch.tensor([13]))
    new = torch.randn(WIDTH, dtype=torch.float64)
    output, plain = plain_jacobians(lm, PROMPT, 9)
    for layer, (expected, _) in plain.items():
        assert expected.any() == (layer != 1)
        assert relative_error(result.jacobian[layer], expected) < 1e-12
        assert relative_error(result.object, output) < 1e-12
        with torch.no_grad():
            patched = plain_output(lm, PROMPT, 9, layer, new)
        torch.testing.assert_close(batch.patched(layer, new[None, None])[0, 0], patched)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unembedding": nn.Linear(WIDTH, 9)}, "its token embedding, 2 blocks and unembedding do not run once"),
        ({"blocks": [nn.Linear(2, 2)]}, "its token embedding, 1 blocks and unembedding do not run once"),
        (None, "LM is not supported: it is not a Hugging Face PreTrainedModel, so its parts must be declared"),
    ],
)
def test_wrong_and_missing_declarations_are_refused(own, changes, message):
    with pytest.raises(LREError, match=message):
        LanguageModel(own, parts=None if changes is None else parts_of(own, **changes))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_head_that_reads_more_than_hidden_states_is_refused(own, dtype):
    own.__class__ = TokenLM
    with pytest.raises(LREError, match="its logits do not follow from the last block's output alone"):
        LanguageModel(own.to(dtype), parts=parts_of(own))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tokens_may_be_excluded_by_minus_infinity(own, dtype):
    own.__class__ = ExcludingLM
    lm = LanguageModel(own.to(dtype), parts=parts_of(own))
    shares, tokens = most_likely(lm, lm(PROMPT[None])[0, -1], VOCAB)[::-1]
    assert (shares[tokens >= 90] == 0).all()
    assert shares.sum() == pytest.approx(1)
    assert lm.identity.fits(lm.identity)
    with pytest.raises(LREError, match="the logits of ExcludingLM are not finite"):
        check_logits(torch.full((2, 9), -torch.inf), lm.name)


class ForgetfulBody(OwnBody):
    """Positions that start at zero again in a suffix."""

    def forward(self, input_ids, **options):
        positions = torch.arange(input_ids.shape[-1])[:, None]
        with replace(self.tokens, lambda stream: stream + positions):
            return super().forward(input_ids, **options)


class SharingBody(OwnBody):
    """A first block that hands more than hidden states to the second, so that no run can start in between."""

    def forward(self, input_ids, **options):
        handed = partial(setattr, self, "handed")
        with observe(self.first.out, handed), replace(self.second.out, lambda out: out + self.handed):
            return super().forward(input_ids, **options)


class LossyBody(OwnBody):
    """A second block that loses its values of the prefix."""

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        if past_key_values is not None:
            layer = past_key_values.layers[1]
            layer.values = torch.zeros_like(layer.values)
        return super().forward(input_ids, past_key_values, use_cache)


@pytest.mark.parametrize("dtype", [torch.float64, *DTYPES], ids=str)
@pytest.mark.parametrize(
    ("body", "way", "skips"),
    [
        (OwnBody, "shared", True),
        (ForgetfulBody, "whole", True),
        (LossyBody, "whole", True),
        (SharingBody, "shared", False),
    ],
)
def test_a_model_runs_prompts_in_the_way_that_equals_whole_ones(own, body, way, skips, dtype):
    torch.manual_seed(0)
    own.body = body()
    lm = LanguageModel(own.to(dtype), parts=parts_of(own))
    assert (lm.way, lm._behaviour.skips) == (way, skips)
    assert (lm.name, lm.layers, lm.hidden_size, lm.vocab_size) == ("OwnLM", ("emb", 0, 1), WIDTH, VOCAB)
    if dtype == torch.float64:
        check_runs(lm)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies_that_lose_a_state_are_not_used(monkeypatch, dtype):
    spread = prefix._spread

    def lossy(cache, count, rows):
        found = spread(cache, count, rows)
        found.layers[0].conv_states = torch.zeros_like(found.layers[0].conv_states)
        return found

    assert LanguageModel(tiny_model("lfm2", dtype)).way == "copied"
    monkeypatch.setattr(prefix, "_spread", lossy)
    assert LanguageModel(tiny_model("lfm2", dtype)).way == "whole"
