"""Loading, layers, token ids and predictions of a language model."""

import pytest
import torch
import transformers

from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models import language_model
from lre_lightning.models.hooks import observe, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.loading import Loading
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model

IDS = torch.arange(20).reshape(2, 10) * 7 % VOCAB


def test_predict_is_the_argmax_of_the_logits_in_any_chunks(monkeypatch):
    lm = LanguageModel(tiny_model("gemma2"))
    hidden = torch.randn(5, 3, WIDTH)
    expected = lm.decode(hidden).argmax(-1)
    assert len(set(expected.flatten().tolist())) > 3
    assert torch.equal(lm.predict(hidden), expected)
    monkeypatch.setattr(language_model, "LOGIT_BYTES", 4 * 8 * VOCAB)
    assert torch.equal(lm.predict(hidden), expected)
    assert lm.predict(hidden[:0]).shape == (0, 3)


def test_loads_from_a_folder_in_the_given_dtype_with_the_identity_of_its_weights(tmp_path):
    model = tiny_model("llama", torch.float32, seed=1)
    model.save_pretrained(tmp_path)
    lm = LanguageModel.from_pretrained(str(tmp_path), dtype="bfloat16", attn_implementation="eager", chunk_size=3)
    assert (lm.dtype, lm.chunk_size) == (torch.bfloat16, 3)
    assert lm.model.config._attn_implementation == "eager"
    assert not any(parameter.requires_grad for parameter in lm.parameters())
    lm.train()
    assert not any(module.training for module in lm.modules())
    identity = LanguageModel(model, name="another name").identity
    assert LanguageModel.from_pretrained(str(tmp_path)).identity == identity
    assert lm.identity.fits(identity)
    assert not LanguageModel(tiny_model("llama", torch.float32, seed=2)).identity.fits(identity)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("./nowhere", {}, "model folder './nowhere' does not exist"),
        ("no/such-model", {}, "there is no folder 'no/such-model' here, and the hub cannot be asked"),
        *((name, {}, f"model folder '{name}' does not exist") for name in ("lms/toy/", "~lms", "my lm", "toy/lm.json")),
        ("demo", {"dtype": "float8"}, "dtype must be 'auto' or .* got 'float8'"),
        ("demo", {"quantization": "2bit"}, "quantization must be '8bit' or '4bit', got '2bit'"),
        ("demo", {"max_memory": {"cpu": "1GiB"}}, "max_memory needs a device_map of auto, .*, not None"),
        ("demo", {"dtyp": "float32"}, "from_pretrained has no option 'dtyp': it has dtype, attn_implementation, "),
    ],
)
def test_invalid_names_and_options_are_refused(name, options, message):
    with pytest.raises(LREError, match=message):
        LanguageModel.from_pretrained(name, **options)


def test_options_are_given_as_loading_or_one_by_one_and_dtypes_are_torchs_too():
    lm = LanguageModel.from_pretrained("demo", Loading(dtype="float64", chunk_size=3), dtype=torch.bfloat16)
    assert (lm.dtype, lm.chunk_size) == (torch.bfloat16, 3)


def test_the_loaders_progress_bar_is_shown_in_terminals_alone(monkeypatch, capsys):
    LanguageModel.from_pretrained("demo")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    LanguageModel.from_pretrained("demo")
    assert "Loading weights" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["cut off", "T5", "empty"])
def test_folders_without_a_decoder_only_lm_are_refused(tmp_path, content):
    if content == "cut off":
        tiny_model("gpt2", torch.float32).save_pretrained(tmp_path)
        weights = tmp_path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:1000])
    elif content == "T5":
        transformers.T5Config().save_pretrained(tmp_path)
    with pytest.raises(LREError, match="no decoder-only LM can be loaded from"):
        LanguageModel.from_pretrained(str(tmp_path))


def test_layers_chunk_sizes_token_ids_and_prompts_that_do_not_fit_the_lm_are_refused():
    lm, last = LanguageModel(tiny_model("gpt2"), name="tiny"), torch.tensor([9])
    assert lm.check_layers([2, "emb", 2]) == ("emb", 2)
    for call, message in (
        (lambda: lm.check_layers([3]), "layer 3 is out of range: tiny has the layers 'emb' and 0 to 2"),
        (lambda: lm.check_layers(["embed"]), "layer 'embed'"),
        (lambda: lm.check_layers([]), "no layer"),
        (lambda: setattr(lm, "chunk_size", -1), "chunk_size must be a whole number of at least 1, got -1"),
        (
            lambda: PromptBatch(lm, torch.full((1, 10), VOCAB), last - 1, last),
            "token id 97 is out of range: tiny has 97 token embeddings",
        ),
        (
            lambda: prompt_jacobian(lm, torch.zeros(65, dtype=torch.long), 3),
            "a prompt of 65 tokens is too long: tiny is made for 64; lower n_shot",
        ),
    ):
        with pytest.raises(LREError, match=message):
            call()


def test_no_hook_survives_an_exception():
    lm = LanguageModel(tiny_model("gpt2"))
    block = lm.module_at(1)

    def fail(hidden):
        raise RuntimeError("on purpose")

    for context in (replace, observe):
        with pytest.raises(RuntimeError, match="on purpose"), context(block, fail):
            lm(IDS)
        assert not block._forward_hooks
