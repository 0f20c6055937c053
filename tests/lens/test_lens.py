"""The computation of attribute lenses, against hidden states, decoder heads and softmax taken straight from the LMs."""

import json
import re
from functools import cache

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.errors import LREError
from lre_lightning.lens import lens as lens_module
from lre_lightning.lens.lens import LOGIT_LENS, read_lenses, to_json, token_text
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import load_tokenizer
from tests.helpers import tokenizers_fixtures as fixtures
from tests.helpers.tiny_models import LAYERS, VOCAB, WIDTH, tiny_model, widen_casts

TEXT, IDS = "w40 w7 w7 w93", [1, 40, 7, 7, 93]
EVERY = ("emb", *range(LAYERS))


@cache
def words():
    """Token i is the word "wi"; the first is what texts begin with."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", unk_token="w0")


def random_lre(lm, relation, seed, beta=1.0, layer=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(lm.hidden_size, lm.hidden_size, generator=generator, dtype=torch.float64)
    bias = torch.randn(lm.hidden_size, generator=generator, dtype=torch.float64)
    return LRE(weight, bias, layer, Origin("tiny", lm.fingerprint, relation), beta)


def hidden_states(model, blocks):
    """What the token embedding and the blocks put out, by hooks of this test's own."""
    found, handles = [], []
    for module in (model.get_input_embeddings(), *blocks):
        keep = lambda _m, _i, output: found.append(output[0] if isinstance(output, tuple) else output)  # noqa: E731
        handles.append(module.register_forward_hook(keep))
    with torch.no_grad():
        logits = model(torch.tensor([IDS]), use_cache=False).logits[0, 1:]
    for handle in handles:
        handle.remove()
    return [hidden.reshape(-1, len(IDS), WIDTH)[0, 1:] for hidden in found], logits


HEADS = {
    "gpt2": lambda m, h: m.lm_head(m.transformer.ln_f(h)),
    "llama": lambda m, h: m.lm_head(m.model.norm(h)),
    "gemma2": lambda m, h: 3 * torch.tanh(m.lm_head(m.model.norm(h)) / 3),
}


@pytest.mark.parametrize("family", HEADS)
def test_every_cell_is_the_softmax_of_the_decoded_lre_of_its_hidden_state(family, monkeypatch):
    widen_casts(monkeypatch, family)
    model = tiny_model(family)
    lm = LanguageModel(model)
    lres = {"first": random_lre(lm, "first", 1, beta=2.25), "second": random_lre(lm, "second", 2, layer="emb")}
    grids = read_lenses(lm, words(), TEXT, lres, top_k=4)
    hidden, logits = hidden_states(model, model.transformer.h if family == "gpt2" else model.model.layers)
    maps = {
        "first": lambda h: 2.25 * h @ lres["first"].weight.T + lres["first"].bias,
        "second": lambda h: h @ lres["second"].weight.T + lres["second"].bias,
        LOGIT_LENS: lambda h: h,
    }
    assert [grid.name for grid in grids] == list(maps)
    for grid, function in zip(grids, maps.values(), strict=True):
        assert (grid.text, grid.tokens, grid.layers) == (TEXT, tuple(TEXT.split()), EVERY)
        for y, states in enumerate(hidden):
            with torch.no_grad():
                expected = HEADS[family](model, function(states)).softmax(-1).sort(descending=True)
            torch.testing.assert_close(
                torch.tensor(grid.probabilities[y], dtype=torch.float64), expected.values[:, :4], rtol=1e-9, atol=0
            )
            assert [list(cell) for cell in grid.top[y]] == [
                [f"w{i}" for i in cell] for cell in expected.indices[:, :4].tolist()
            ]
    last = torch.tensor(grids[-1].probabilities[-1], dtype=torch.float64)
    torch.testing.assert_close(last, logits.softmax(-1).topk(4).values, rtol=1e-9, atol=0)


def test_the_logit_lens_of_the_demos_last_layer_is_its_next_token():
    lm, tokenizer = LanguageModel.from_pretrained("demo"), load_tokenizer("demo")
    text = "The sport of Domo Beri is"
    (grid,) = read_lenses(lm, tokenizer, text, {}, top_k=3)
    ids = [tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        expected = lm.model(torch.tensor([ids])).logits[0, 1:].softmax(-1).topk(3)
    torch.testing.assert_close(torch.tensor(grid.probabilities[-1]), expected.values, rtol=1e-4, atol=1e-7)
    assert [cell[0] for cell in grid.top[-1]] == [tokenizer.decode([i]) for i in expected.indices[:, 0].tolist()]
    assert grid.tokens == tuple(tokenizer.decode([i]) for i in ids[1:])


def test_a_few_rows_of_logits_at_a_time_give_the_same(monkeypatch):
    lm = LanguageModel(tiny_model("llama"))
    lres = {"first": random_lre(lm, "first", 1)}
    whole = read_lenses(lm, words(), TEXT, lres)
    sizes = []
    decode = lm.decode
    monkeypatch.setattr(lm, "decode", lambda hidden: sizes.append(len(hidden)) or decode(hidden))
    monkeypatch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", VOCAB * lm.dtype.itemsize * 3)
    parts = read_lenses(lm, words(), TEXT, lres)
    assert set(sizes) == {3, 1}  # 16 hidden states in threes
    for one, other in zip(whole, parts, strict=True):
        assert one.top == other.top
        torch.testing.assert_close(torch.tensor(one.probabilities), torch.tensor(other.probabilities))


def test_chosen_layers_are_rows_of_all_layers_in_the_lms_order():
    lm = LanguageModel(tiny_model("gpt2"))
    (whole,), (part,) = (read_lenses(lm, words(), TEXT, {}, layers=layers) for layers in (None, [2, "emb"]))
    assert part.layers == ("emb", 2)
    assert part.top == (whole.top[0], whole.top[3])
    torch.testing.assert_close(
        torch.tensor(part.probabilities), torch.tensor([whole.probabilities[0], whole.probabilities[3]])
    )


def test_grids_as_json_are_the_grids():
    lm = LanguageModel(tiny_model("gpt2"))
    grids = read_lenses(lm, words(), TEXT, {"första": random_lre(lm, "första", 3)}, top_k=2)
    found = json.loads(to_json(grids))
    for grid, entry in zip(grids, found, strict=True):
        assert entry == json.loads(json.dumps(vars(grid)))
    assert "första" in to_json(grids)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 0}, "top_k 0 is out of range: it must be 1 to 97"),
        ({"top_k": VOCAB + 1}, "top_k 98 is out of range"),
        ({"layers": [3]}, "layer 3 is out of range"),
        ({"layers": []}, "no layer is given"),
        ({"text": "  "}, "has no token"),
        ({"text": "w5 " * 64}, "65 tokens is too long"),
    ],
)
def test_what_cannot_be_read_is_refused(changes, message):
    lm = LanguageModel(tiny_model("gpt2"))
    with pytest.raises(LREError, match=message):
        read_lenses(lm, words(), **{"text": TEXT, "lres": {}, **changes})


def test_an_lre_of_another_lm_is_refused():
    lm, other = LanguageModel(tiny_model("gpt2")), LanguageModel(tiny_model("gpt2", seed=1))
    with pytest.raises(LREError, match="the LRE of 'first' was estimated from 'tiny'"):
        read_lenses(lm, words(), TEXT, {"first": random_lre(other, "first", 1)})


SENTENCES = [
    "Miles Davis plays\nthe trumpet. ",
    "Café Müller, 北京 中国 東京",
    "Москва 😀 👍🏽  two spaces",
    "naïve\tשבת",
]


@pytest.mark.parametrize("text", SENTENCES)
@pytest.mark.parametrize("name", fixtures.LOSSLESS)
def test_tokens_put_together_are_the_text(name, text):
    tokenizer = fixtures.make(name)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    shown = [token_text(tokenizer, token) for token in ids]
    assert all("\ufffd" not in piece and "\u2581" not in piece and "\u0120" not in piece for piece in shown)
    data = b""
    for piece in shown:
        for part in re.split(r"(<0x[0-9A-F]{2}>)", piece):
            data += bytes([int(part[3:5], 16)]) if re.fullmatch(r"<0x..>", part) else part.encode()
    assert data.decode().removeprefix(" ") == text


def test_bytes_that_are_no_character_are_shown_as_bytes():
    tokenizer = fixtures.make("byte-level")
    ids = tokenizer("ד!", add_special_tokens=False)["input_ids"]
    assert [token_text(tokenizer, token) for token in ids] == ["<0xD7>", "<0x93>", "!"]


def test_of_the_real_gpt2():
    tokenizer = fixtures.make("gpt2")
    ids = tokenizer("Paris is 中国", add_special_tokens=False)["input_ids"]
    assert [token_text(tokenizer, token) for token in ids] == ["Paris", " is", " ", "中", "<0xE5><0x9B>", "<0xBD>"]
    assert token_text(tokenizer, 30325) == " <0xF0><0x9F><0x98>"
    assert token_text(tokenizer, 198) == "\n"
    assert token_text(tokenizer, 50256) == "<|endoftext|>"
    assert token_text(tokenizer, 50300) == "<50300>"


def test_a_sentencepiece_token_keeps_its_space():
    """Llama's decoder drops the space with which a text begins."""
    tokenizer = fixtures.sentencepiece(legacy=True)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(steps)
    ids = tokenizer("the capital", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids[:1]) == "the"
    assert "".join(token_text(tokenizer, token) for token in ids) == " the capital"
    assert token_text(tokenizer, tokenizer.convert_tokens_to_ids("\u2581")) == " "
    assert token_text(tokenizer, tokenizer.convert_tokens_to_ids("<0x0A>")) == "\n"
    assert token_text(tokenizer, tokenizer.convert_tokens_to_ids("<0xE4>")) == "<0xE4>"


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece, legacy", "wordpiece"])
def test_ids_outside_of_the_vocabulary_are_shown_as_numbers(name):
    tokenizer = fixtures.make(name)
    assert token_text(tokenizer, len(tokenizer) + 5) == f"<{len(tokenizer) + 5}>"


def test_spaces_of_a_sentencepiece_token_are_all_there():
    class Pieces:
        def convert_ids_to_tokens(self, token):
            return ["\u2581is", "\u2581\u2581\u2581", "is"][token]

        def decode(self, ids, **_):
            return self.convert_ids_to_tokens(ids[0]).replace("\u2581", " ").removeprefix(" ")

    assert [token_text(Pieces(), token) for token in range(3)] == [" is", "   ", "is"]


def test_logits_that_are_not_finite_are_an_error(monkeypatch):
    monkeypatch.setattr(lens_module, "encode_text", lambda *_: (1, 2, 3))
    lm = LanguageModel(tiny_model("gpt2"))
    with torch.no_grad():
        lm.module_at(0).mlp.c_proj.bias[0] = float("nan")
    with pytest.raises(LREError, match=r"the logits of .* are not finite in float64"):
        read_lenses(lm, fixtures.make("byte-level"), "Paris", {})
