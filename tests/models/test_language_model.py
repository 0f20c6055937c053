import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models import language_model
from lre_lightning.models.caches import share_cache
from lre_lightning.models.hooks import observe, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import FAMILIES, LAYERS, VOCAB, WIDTH, tiny_model, widen_casts

IDS = torch.arange(20).reshape(2, 10) * 7 % VOCAB


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_logits_are_those_of_transformers(monkeypatch, family):
    widen_casts(monkeypatch, family)
    model = tiny_model(family)
    lm = LanguageModel(model)
    with torch.no_grad():
        expected = model(IDS, output_hidden_states=True)
        found = lm.hidden_states(IDS, lm.layers)
        # The last of transformers' hidden states has gone through the final norm already.
        for index in range(LAYERS - 1):
            torch.testing.assert_close(found[index], expected.hidden_states[index + 1], rtol=1e-12, atol=1e-12)
        assert torch.equal(found["emb"], model.get_input_embeddings()(IDS))
        torch.testing.assert_close(lm.decode(found[LAYERS - 1]), expected.logits, rtol=1e-12, atol=1e-12)
    assert lm.layers == ("emb", 0, 1, 2)
    assert (lm.hidden_size, lm.vocab_size, lm.num_layers) == (WIDTH, VOCAB, LAYERS)
    # A control: D without the final norm, or without the soft cap, is something else.
    assert not torch.allclose(model.get_output_embeddings()(found[LAYERS - 1]), expected.logits, rtol=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
def test_running_the_suffix_on_a_cached_prefix_changes_nothing(family):
    lm = LanguageModel(tiny_model(family))
    with torch.no_grad():
        whole = lm.hidden_states(IDS[:1], lm.layers)
        cache = lm.prefix_cache(IDS[0, :7])
        for _ in range(2):  # the first run must not change what the second one sees
            suffix = lm.hidden_states(IDS[:1, 7:].repeat(3, 1), lm.layers, share_cache(cache))
            for layer in lm.layers:
                torch.testing.assert_close(suffix[layer][2], whole[layer][0, 7:], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_on_the_right_changes_nothing(family):
    lm = LanguageModel(tiny_model(family))
    padded = torch.cat([IDS[:, :6], torch.zeros(2, 4, dtype=torch.long)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(lm(padded)[:, :6], lm(IDS[:, :6]), rtol=1e-6, atol=1e-7)


def test_predict_is_the_argmax_of_the_logits_in_any_chunks(monkeypatch):
    lm = LanguageModel(tiny_model("gemma2"))
    hidden = torch.randn(5, 3, WIDTH)
    expected = lm.decode(hidden).argmax(-1)
    assert len(set(expected.flatten().tolist())) > 3
    assert torch.equal(lm.predict(hidden), expected)
    monkeypatch.setattr(language_model, "LOGIT_BYTES", 4 * 8 * VOCAB)
    assert torch.equal(lm.predict(hidden), expected)
    assert lm.predict(hidden[:0]).shape == (0, 3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_loads_from_a_folder_in_the_dtype_asked_for(tmp_path, dtype):
    saved = tiny_model("llama", torch.float32)
    saved.save_pretrained(tmp_path)
    lm = LanguageModel.from_pretrained(str(tmp_path), dtype=dtype, attn_implementation="eager")
    assert lm.dtype == getattr(torch, dtype)
    assert lm.model.config._attn_implementation == "eager"
    assert torch.equal(lm(IDS).argmax(-1), lm(IDS).argmax(-1))
    assert not any(parameter.requires_grad for parameter in lm.parameters())
    lm.train()
    assert not any(module.training for module in lm.modules())


def test_fingerprint_tells_models_apart_and_not_folders(tmp_path):
    lm = LanguageModel(tiny_model("gpt2", torch.float32, seed=1), name="one")
    lm.model.save_pretrained(tmp_path)
    assert LanguageModel.from_pretrained(str(tmp_path)).fingerprint == lm.fingerprint
    assert LanguageModel(tiny_model("gpt2", torch.float32, seed=2)).fingerprint != lm.fingerprint


def test_logits_that_are_not_explained_by_the_parts_are_refused():
    model = tiny_model("gemma2")
    LanguageModel(model)
    _break_logits(model)
    with pytest.raises(LREError, match="its logits are not its final norm and unembedding"):
        LanguageModel(model)


def _break_logits(model):
    forward = type(model).forward

    def broken(*args, **kwargs):
        output = forward(model, *args, **kwargs)
        output.logits = output.logits * 1.01
        return output

    model.forward = broken


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([3], "layer 3 is out of range: .* 'emb' and 0 to 2"),
        (["embed"], "layer 'embed'"),
        ([-1], "-1"),
        ([], "no layer"),
    ],
)
def test_layers_out_of_range(layers, message):
    with pytest.raises(LREError, match=message):
        LanguageModel(tiny_model("gpt2")).check_layers(layers)


def test_layers_come_in_the_lms_order():
    assert LanguageModel(tiny_model("gpt2")).check_layers([2, "emb", 2]) == ("emb", 2)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("./nowhere", {}, "model folder './nowhere' does not exist"),
        ("demo", {"dtype": "float8"}, "dtype 'float8' is unknown: use one of auto"),
        ("demo", {"chunk_size": 0}, "chunk_size must be a whole number of at least 1, got 0"),
        ("demo", {"dtyp": "float32"}, "from_pretrained has no option 'dtyp': it has dtype, attn_implementation, "),
        ("no/such-model", {}, "no decoder-only LM can be loaded from 'no/such-model'"),
    ],
)
def test_models_that_cannot_be_loaded(name, options, message):
    with pytest.raises(LREError, match=message):
        LanguageModel.from_pretrained(name, **options)


def test_weights_that_are_cut_off(tmp_path):
    tiny_model("gpt2", torch.float32).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LREError, match="no decoder-only LM can be loaded from"):
        LanguageModel.from_pretrained(str(tmp_path))


def test_a_device_map(tmp_path):
    tiny_model("gpt2", torch.float32).save_pretrained(tmp_path)
    mapped = LanguageModel.from_pretrained(str(tmp_path), device_map="cpu")
    assert torch.equal(mapped(IDS), LanguageModel.from_pretrained(str(tmp_path))(IDS))


def test_token_ids_and_prompts_that_do_not_fit_the_lm():
    lm = LanguageModel(tiny_model("gpt2"), name="tiny")
    last = torch.tensor([9])
    with pytest.raises(LREError, match="token id 97 is out of range: tiny has 97 token embeddings"):
        PromptBatch(lm, torch.full((1, 10), VOCAB), last - 1, last)
    with pytest.raises(LREError, match="a prompt of 65 tokens is too long: tiny is made for 64; lower n_shot"):
        prompt_jacobian(lm, torch.zeros(65, dtype=torch.long), 3)


def test_a_folder_that_is_not_a_decoder_only_lm(tmp_path):
    import transformers

    transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(LREError, match="no decoder-only LM can be loaded from"):
        LanguageModel.from_pretrained(str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(LREError, match="no decoder-only LM can be loaded from"):
        LanguageModel.from_pretrained(str(empty))


def test_no_hook_survives_an_exception():
    lm = LanguageModel(tiny_model("gpt2"))
    block = lm.module_at(1)

    def fail(hidden):
        raise RuntimeError("on purpose")

    for context in (replace, observe):
        with pytest.raises(RuntimeError, match="on purpose"), context(block, fail):
            lm(IDS)
        assert not block._forward_hooks
    assert torch.isfinite(lm(IDS)).all()
