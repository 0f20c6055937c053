"""Readings of attribute lenses, against hidden states, decoder heads and softmax taken straight from the LMs."""

import re
from dataclasses import replace
from functools import cache

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.concepts.concepts import Concepts
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.reading import (
    LensGrid,
    TextStates,
    print_lenses,
    read_lenses,
)
from lre_lightning.lre.lens import JACOBIAN_LENS, LOGIT_LENS, LogitLens
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text
from tests.helpers import tokenizers_fixtures as fixtures
from tests.helpers.tiny_models import LAYERS, VOCAB, WIDTH, tiny_model, widen_casts

TEXT, IDS = "w40 w7 w7 w93", [1, 40, 7, 7, 93]


@cache
def words():
    """A tokenizer whose token i is the word "wi", and whose texts begin with w1."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w1", unk_token="w0")


def random_lre(lm, relation, seed, beta=1.0, layer=1):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(lm.hidden_size, lm.hidden_size, generator=generator, dtype=torch.float64)
    bias = torch.randn(lm.hidden_size, generator=generator, dtype=torch.float64)
    return LRE(weight, bias, layer, Origin("tiny", lm.identity, relation), beta)


def hidden_states(model, blocks):
    """Run the LM, and return the outputs of the embedding and of each block, by this test's own hooks, and logits."""
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
    "gemma2": lambda m, h: 3 * torch.tanh(m.lm_head(m.model.norm(h)) / 3),
}


@pytest.mark.parametrize("family", HEADS)
def test_every_cell_is_the_softmax_of_the_decoded_lre_of_its_hidden_state(family, monkeypatch):
    widen_casts(monkeypatch, family)
    model = tiny_model(family)
    lm = LanguageModel(model)
    first, second = random_lre(lm, "first", 1, beta=2.25), random_lre(lm, "second", 2, layer="emb")
    sizes, decode = [], lm.decode
    monkeypatch.setattr(lm, "decode", lambda hidden: sizes.append(len(hidden)) or decode(hidden))
    monkeypatch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", VOCAB * 8 * 3)
    grids = read_lenses(lm, words(), TEXT, {("first", 0): first, ("second", 0): second}, top_k=4)
    assert set(sizes) == {3, 1}  # 16 hidden states, three at a time
    hidden, logits = hidden_states(model, model.transformer.h if family == "gpt2" else model.model.layers)
    maps = {
        "first": lambda h: 2.25 * h @ first.weight.T + first.bias,
        "second": lambda h: h @ second.weight.T + second.bias,
        LOGIT_LENS: lambda h: h,
    }
    assert [(grid.name, grid.layer) for grid in grids] == list(zip(maps, [1, "emb", None], strict=True))
    for grid, function in zip(grids, maps.values(), strict=True):
        assert (grid.text, grid.tokens, grid.layers) == (TEXT, TEXT.split(), ("emb", *range(LAYERS)))
        for y, states in enumerate(hidden):
            with torch.no_grad():
                expected = HEADS[family](model, function(states)).softmax(-1).sort(descending=True)
            torch.testing.assert_close(
                torch.tensor(grid.probabilities[y], dtype=torch.float64), expected.values[:, :4], rtol=1e-9, atol=0
            )
            assert grid.top[y] == [[f"w{i}" for i in cell] for cell in expected.indices[:, :4].tolist()]
    last = torch.tensor(grids[-1].probabilities[-1], dtype=torch.float64)
    torch.testing.assert_close(last, logits.softmax(-1).topk(4).values, rtol=1e-9, atol=0)


def test_the_jacobian_lens_decodes_each_layer_through_its_own_jacobian():
    model = tiny_model("gpt2")
    lm = LanguageModel(model)
    jacobians = {layer: torch.randn(WIDTH, WIDTH, dtype=torch.float64) for layer in (0, 2)}
    lens = JacobianLens(jacobians, n_prompts=3)
    hidden, _ = hidden_states(model, model.transformer.h)
    for layers, shown in ((None, [0, 2]), ([2, "emb"], [2]), (["emb"], [])):
        *grids, logit = read_lenses(lm, words(), TEXT, {}, top_k=4, layers=layers, jacobian_lens=lens)
        assert [(grid.name, list(grid.layers), grid.layer) for grid in grids] == [(JACOBIAN_LENS, shown, None)] * bool(
            shown
        )
        assert (logit.name, logit.layers) == (LOGIT_LENS, lm.check_layers(layers))
        for row, layer in enumerate(shown):
            with torch.no_grad():
                logits = HEADS["gpt2"](model, hidden[layer + 1] @ jacobians[layer].T)
            expected = logits.softmax(-1).sort(descending=True).values[:, :4]
            torch.testing.assert_close(torch.tensor(grids[0].probabilities[row], dtype=torch.float64), expected)


def test_the_subject_is_marked_where_a_text_asks_about_it_or_mentions_a_training_subject():
    lm = LanguageModel(tiny_model("gpt2"))
    lres = {}
    for name, template, subject in (("asked", "{} w93", "w3"), ("trained", "w9 {}", "w40"), ("neither", "w9 {}", "w9")):
        lre = random_lre(lm, name, 1)
        lres[name, 0] = replace(lre, origin=replace(lre.origin, template=template, train=((subject, "w1"),)))

    class Collection(dict):
        """LREs that carry more subjects."""

        @property
        def subjects(self):
            return {"trained": ["w7"]}

    lres = Collection(lres)
    lenses = read_lenses(lm, words(), TEXT, lres)  # w40 w7 w7 w93
    assert [(lens.name, lens.mentions) for lens in lenses] == [
        ("asked", [("w40 w7 w7", 2)]),
        ("trained", [("w40", 0), ("w7", 1), ("w7", 2)]),
        ("neither", []),
        (LOGIT_LENS, [("w40", 0), ("w7", 1), ("w7", 2)]),
    ]
    assert lenses[1].places == [0, 1, 2]
    lenses = read_lenses(lm, words(), "w3 w40 w93 w9", lres)
    assert [lens.places for lens in lenses] == [[0], [1], [3], [0, 1, 3]]


def test_concepts_are_shown_by_their_objects_and_not_decoded():
    lm, objects = LanguageModel(tiny_model("gpt2")), ("Rome", "Lima", "Oslo")
    vectors = torch.nn.functional.normalize(torch.randn(3, WIDTH, dtype=torch.float64))
    concepts = Concepts(objects, vectors, 1, 4, 2, "first", Origin("tiny", lm.identity, "capital"))
    states = TextStates.of(lm, words(), TEXT)
    grid = states.grid(concepts, 2, "Oslo")
    cosines = torch.cosine_similarity(states.hidden[..., None, :], vectors, dim=-1)
    torch.testing.assert_close(
        torch.tensor(grid.probabilities, dtype=torch.float64), cosines.topk(2).values, rtol=0, atol=1e-6
    )
    assert grid.top[2][3][0] == objects[int(cosines[2, 3].argmax())]
    torch.testing.assert_close(torch.tensor(grid.pinned.probabilities).double(), cosines[..., 2], rtol=0, atol=1e-6)
    assert (grid.pinned.ranks[1][0] == 1) == bool(cosines[1, 0].argmax() == 2)
    assert (grid.name, grid.layer, states.grid(concepts, 9).pinned) == ("capital", 1, None)


def test_the_logit_lens_can_be_bound():
    lm = LanguageModel(tiny_model("gpt2"))
    assert LogitLens().bind(lm).bound is lm
    with pytest.raises(LREError, match="the logit lens has no LM to run"):
        _ = LogitLens().bound


def test_chosen_layers_are_rows_of_all_layers_in_the_lms_order():
    lm = LanguageModel(tiny_model("gpt2"))
    (whole,), (part,) = (read_lenses(lm, words(), TEXT, {}, layers=layers) for layers in (None, [2, "emb"]))
    assert part.layers == ("emb", 2)
    assert part.top == [whole.top[0], whole.top[3]]
    torch.testing.assert_close(torch.tensor(part.probabilities), torch.tensor(whole.probabilities)[[0, 3]])


def test_the_first_trial_of_each_wanted_relation_is_looked_up_and_no_other():
    lm, asked = LanguageModel(tiny_model("gpt2")), []

    class Store(dict):
        def __getitem__(self, key):
            asked.append(key)
            return super().__getitem__(key)

        def values(self):
            raise AssertionError("all LREs at once, each of which may be a large file")

        items = values

    lres = Store({key: random_lre(lm, *key) for key in (("a", 2), ("b", 0), ("a", 1))})
    for relations, keys in ((["b", "c", "a"], [("b", 0), ("a", 1)]), (None, [("a", 1), ("b", 0)]), ([], [])):
        asked.clear()
        grids = read_lenses(lm, words(), TEXT, lres, relations)
        assert asked == keys
        assert [grid.name for grid in grids] == [relation for relation, _ in keys] + [LOGIT_LENS]


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
def test_arguments_out_of_range_are_refused(changes, message):
    lm = LanguageModel(tiny_model("gpt2"))
    with pytest.raises(LREError, match=message):
        read_lenses(lm, words(), **{"text": TEXT, "lres": {}, **changes})


def test_an_lre_of_another_lm_and_logits_that_are_not_finite_are_refused():
    lm, other = LanguageModel(tiny_model("gpt2")), LanguageModel(tiny_model("gpt2", seed=1))
    with pytest.raises(LREError, match="the LRE of 'first' was estimated from 'tiny'"):
        read_lenses(lm, words(), TEXT, {("first", 0): random_lre(other, "first", 1)})
    with torch.no_grad():
        lm.module_at(0).mlp.c_proj.bias[0] = float("nan")
    with pytest.raises(LREError, match=r"the logits of .* are not finite in float64"):
        read_lenses(lm, words(), TEXT, {})


SENTENCES = "Miles Davis plays\nthe trumpet. Café Müller, 北京 中国 Москва 😀 👍🏽  two spaces naïve\tשבת"


@pytest.mark.parametrize("name", fixtures.LOSSLESS)
def test_tokens_put_together_are_the_text(name):
    tokenizer = fixtures.make(name)
    ids = tokenizer(SENTENCES, add_special_tokens=False)["input_ids"]
    shown = [token_text(tokenizer, token) for token in ids]
    assert all("\ufffd" not in piece and "\u2581" not in piece and "\u0120" not in piece for piece in shown)
    data = b""
    for piece in shown:
        for part in re.split(r"(<0x[0-9A-F]{2}>)", piece):
            data += bytes([int(part[3:5], 16)]) if re.fullmatch(r"<0x..>", part) else part.encode()
    assert data.decode().removeprefix(" ") == SENTENCES


def test_bytes_that_are_not_a_character_are_shown_as_bytes():
    tokenizer = fixtures.make("byte-level")
    ids = tokenizer("ד!", add_special_tokens=False)["input_ids"]
    assert [token_text(tokenizer, token) for token in ids] == ["<0xD7>", "<0x93>", "!"]
    gpt2 = type("Gpt2", (), {"convert_ids_to_tokens": lambda *_: "Ġð", "decode": lambda *_, **__: " \ufffd"})()
    assert token_text(gpt2, 0) == " <0xF0>"


def test_a_sentencepiece_token_keeps_its_spaces():
    """Llama's decoder drops the space at the beginning of a text."""
    tokenizer = fixtures.sentencepiece(legacy=True)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.backend_tokenizer.decoder = decoders.Sequence(steps)
    ids = tokenizer("the capital", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids[:1]) == "the"
    assert "".join(token_text(tokenizer, token) for token in ids) == " the capital"
    for piece, shown in (("\u2581", " "), ("<0x0A>", "\n"), ("<0xE4>", "<0xE4>")):
        assert token_text(tokenizer, tokenizer.convert_tokens_to_ids(piece)) == shown


@pytest.mark.parametrize("name", ["byte-level", "sentencepiece, legacy", "wordpiece"])
def test_ids_outside_the_vocabulary_are_shown_as_numbers(name):
    tokenizer = fixtures.make(name)
    assert token_text(tokenizer, len(tokenizer) + 5) == f"<{len(tokenizer) + 5}>"


def test_a_lens_shows_itself_in_notebooks_and_interpreters():
    lens = LensGrid(
        "r", "a <b", ["a", "<b"], [0, 1], [[["x"], ["y"]], [["z"], ["w"]]], [[[0.5], [0.25]], [[0.1], [1.0]]]
    )
    first, second = lens._repr_html_().split("<tr><td>")[1:]
    assert first.startswith("1</td><td>z 0.10</td><td>w 1.00</td>")
    assert second.startswith("0</td><td>x 0.50</td>")
    assert "<th>&lt;b</th>" in lens._repr_html_()
    marked = replace(lens, layer=1, mentions=[("a", 0)])._repr_html_()
    assert "<tr><td>▸1</td><td>z 0.10</td>" in marked
    assert "<th>▸a</th><th>&lt;b</th>" in marked
    assert repr(replace(lens, layer=1, mentions=[("a", 0)])).splitlines() == [
        "r: a <b",
        "layer  ▸a      <b",
        "▸1     z 0.10  w 1.00",
        "0      x 0.50  y 0.25",
    ]


def test_in_peru_and_peruvian_the_subject_is_read_and_not_the_adjective():
    demo = LanguageModel.from_pretrained("demo")
    lres = {("capital", 0): random_lre(demo, "capital", 1)}
    lres["capital", 0] = replace(lres["capital", 0], origin=replace(lres["capital", 0].origin, train=(("Peru", "x"),)))
    lenses = read_lenses(demo, demo.tokenizer, "Peru is what Peruvians call it, and Peru", lres, top_k=1)
    for lens in lenses:
        read = ["".join(lens.tokens[: place + 1]).strip() for place in lens.places]
        assert read == ["Peru", "Peru is what Peruvians call it, and Peru"]


def test_a_lens_is_printed_where_it_is_most_certain_but_not_at_the_first_token(capsys):
    likely = [[0.9, 0.1, 0.3, 0.2], [0.9, 0.4, 0.6, 0.7]]
    top = [[[f" {layer}{token}"] for token in "abcd"] for layer in "xy"]
    grid = LensGrid("plays", "a b c d", ["a", " b", " c", " d"], [0, 1], top, [[[p] for p in row] for row in likely], 1)
    one = replace(grid, text="a", tokens=["a"], top=[row[:1] for row in top], probabilities=[[[0.9]], [[0.9]]])
    print_lenses({"a": [grid, replace(grid, layer=None)], "b": [replace(one, layer=0)]})
    both = replace(grid, layer=0, mentions=[("b", 1), ("c d", 3)])
    quiet = replace(grid, mentions=[("d", 3), ("c", 2)], silent=[[False] * 4, [False, True, True, False]])
    print_lenses({"c": [both, replace(quiet, name="plays2"), replace(quiet, mentions=[("c", 2)])]}, {"plays": 0.456})
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "plays" in line]
    assert rows == [
        ["d", "plays", "1", "yd", "0.70"],
        ["a", "plays", "0", "xa", "0.90"],
        ["b", "plays", "0", "0.46", "xb", "0.10"],
        ["c", "d", "plays", "0", "0.46", "xd", "0.20"],
        ["d", "plays2", "1", "-", "yd", "0.70"],
    ]
