"""Lenses side by side, by a plain loop over one prompt, layer and word at a time."""

import json
from dataclasses import replace

import pytest
import torch

from lre_lightning.concepts.concepts import Concepts
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.comparison import FREQUENT, rank_lenses
from lre_lightning.lens.prompt_sets import LAST, LINE_BREAK, SUBJECT, read_prompt_set, relation_prompts, spellings
from lre_lightning.lens.swaps import lens_swaps
from lre_lightning.lre.lens import LogitLens
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.relations.relation import draw_order
from lre_lightning.relations.sources import load_relations
from lre_lightning.sharing.collection import LRECollection

LAYERS = ("emb", 1, 3)
ITEMS = [
    {"prompt": "The capital of Peru is", "target": "Lima", "intermediates": ["Lima", "qqqq", "of"]},
    {"prompt": "Miles\nThe capital of Kenya", "target": "is", "intermediates": ["capital"]},
    {"prompt": "The capital", "target": "of", "intermediates": ["qqqq"]},
]


@pytest.fixture(scope="module")
def lm():
    return LanguageModel.from_pretrained("demo")


def write(folder, items, name="lens-eval-hops.json"):
    path = folder / name
    path.write_text(json.dumps({"items": items}))
    return path


def states_of(lm, ids):
    """The hidden states of one prompt by layer, `(tokens, hidden)`, from the LM's own output."""
    found = lm.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    return {layer: found[0 if layer == "emb" else layer + 1][0] for layer in LAYERS}


def place_in(lm, output, tokens):
    """The first of some tokens in the order of falling logits, counted from 1."""
    order = lm.decode(output).argsort(descending=True, stable=True).tolist()
    return 1 + min(order.index(token) for token in tokens)


@torch.no_grad()
def test_the_words_of_a_file_are_where_a_plain_loop_finds_them(lm, tmp_path):
    torch.manual_seed(0)
    lens = JacobianLens({layer: torch.randn(lm.hidden_size, lm.hidden_size) for layer in LAYERS[:2]}, 1)
    prompts = read_prompt_set(write(tmp_path, ITEMS), lm.tokenizer)
    found = {one.lens: one for one in rank_lenses(lm, prompts, {"J": lens, "logit": LogitLens()}, LAYERS)}
    assert (prompts.name, prompts.left_out, found["J"].layers, found["logit"].layers) == (
        *("lens-eval-hops", 2, LAYERS[:2], LAYERS),
    )
    words = [["Lima", "of"], ["capital"]]
    for row, (item, wanted) in enumerate(zip(ITEMS[:2], words, strict=True)):
        ids = tokenize_text(lm.tokenizer, item["prompt"])[0]
        states = states_of(lm, ids)
        for column, word in enumerate(wanted):
            forms = {space + form for form in (word, word.lower(), word.capitalize()) for space in ("", " ")}
            encoded = [lm.tokenizer.encode(form, add_special_tokens=False) for form in forms]
            tokens = [one for one, *more in encoded if not more]
            for name, read in (("J", lambda h, layer: lens.jacobians[layer] @ h), ("logit", lambda h, layer: h)):
                for place, layer in enumerate(found[name].layers):
                    rank = place_in(lm, read(states[layer][-1], layer), tokens)
                    assert found[name].ranks[place, row, column] == rank
    assert found["logit"].ranks[:, 1, 1].isnan().all()  # it has one word
    assert all(one.among is None and one.seconds > 0 and one.place == LAST for one in found.values())


@torch.no_grad()
def test_facts_are_read_at_the_subject_and_at_the_last_token(lm):
    name = "country capital city"
    lre, other = (LRECollection.from_pretrained("demo")[one] for one in (name, "country language"))
    (relation,) = load_relations([name], "demo")
    seen = relation.samples[3].subject
    prompts = relation_prompts(lm, relation, lre.origin, 6, [seen])
    train = {subject for subject, _ in lre.origin.train} | {seen}
    known, objects = {}, {}
    for sample in relation.samples:
        prompt = lre.origin.prompt(lm, sample.subject)
        token = lm.tokenizer.encode(f" {sample.object}", add_special_tokens=False)[0]
        objects[sample.object] = token
        if sample.subject not in train and lm.model(torch.tensor([prompt.input_ids])).logits[0, -1].argmax() == token:
            known[prompt.input_ids] = prompt, sample
    assert len(prompts.prompts) == 6 < len(known)
    assert prompts.objects == objects

    torch.manual_seed(0)
    few = tuple(sorted(objects)[::2])
    concepts = Concepts(few, torch.randn(len(few), lm.hidden_size), 1, 4, 5, "first", lre.origin)
    lenses = {"LRE": replace(lre, beta=1.5), "other": other, "concepts": concepts}
    found = {(one.lens, one.place): one for one in rank_lenses(lm, prompts, lenses, LAYERS)}
    assert {place for _, place in found} == {SUBJECT, LAST}
    assert found["LRE", SUBJECT].own is None  # layer 2 is not read
    assert found["concepts", SUBJECT].own == 1
    tokens = [asked.words[0][0] for asked in prompts.prompts]
    run = [states_of(lm, asked.ids) for asked in prompts.prompts]
    for (kind, place), one in found.items():
        for row, asked in enumerate(prompts.prompts):
            prompt, sample = known[asked.ids]
            assert tokens[row] == objects[sample.object]
            for number, layer in enumerate(LAYERS):
                state = run[row][layer][prompt.subject_position if place == SUBJECT else -1]
                if kind == FREQUENT:
                    order = sorted({*tokens}, key=lambda token: (-tokens.count(token), tokens.index(token)))
                    assert one.ranks[number, row] == one.among[number, row] == 1 + order.index(tokens[row])
                elif kind == "concepts":
                    scores = dict(zip(few, (concepts.vectors @ state).tolist(), strict=True))
                    above = sum(score > scores.get(sample.object, torch.nan) for score in scores.values())
                    assert one.among[number, row] == (1 + above if sample.object in few else torch.inf)
                    assert one.ranks is None
                else:
                    own = lenses[kind]
                    output = own(state)
                    assert one.ranks[number, row, 0] == place_in(lm, output, [objects[sample.object]])
                    logits = lm.decode(output)
                    above = {token for token in objects.values() if logits[token] > logits[objects[sample.object]]}
                    assert one.among[number, row] == 1 + len(above)


def test_poems_are_read_at_their_last_line_break(lm, tmp_path):
    poems = [
        {"prompt": "Miles\nThe capital of\nKenya", "intermediates": ["of"]},
        {"prompt": "is\nof", "intermediates": ["of"]},
    ]
    prompts = read_prompt_set(write(tmp_path, poems), lm.tokenizer).prompts
    ends = [lm.tokenizer.decode(asked.ids[: asked.places[LINE_BREAK] + 1]) for asked in prompts]
    assert [end.rstrip(" ").endswith("\n") for end in ends] == [True, True]
    assert [end.strip()[-2:] for end in ends] == ["of", "is"]
    one_line = [*poems, {"prompt": "The capital", "intermediates": ["of"]}]
    for items in (one_line, [{**item, "target": "x"} for item in poems]):
        assert {*read_prompt_set(write(tmp_path, items), lm.tokenizer).prompts[0].places} == {LAST}


def test_words_count_in_any_spelling_that_is_a_single_token(lm):
    shown = {lm.tokenizer.decode(token) for token in spellings(lm.tokenizer, "the")}
    assert {"The", " The", "the", " the"} >= shown >= {"The", " the"}
    assert spellings(lm.tokenizer, "qqqq") == ()
    signs = [lm.tokenizer.encode(text, add_special_tokens=False)[0] for text in ("+", "*")]
    assert [sign in spellings(lm.tokenizer, "addition") for sign in signs] == [True, False]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "must be an object"),
        ('{"items": [{"prompt": "a", "intermediates": "b"}]}', r"items\[0\].intermediates must be a list"),
        ('{"items": [{"intermediates": ["b"]}]}', r"items\[0\] lacks the key 'prompt'"),
        ('{"items": [{"prompt": [{"role": "user"}], "intermediates": []}]}', "prompt must be a string"),
        ('{"items": [{"prompt": "a", "intermediates": ["qqqq"]}]}', "no prompt with a word"),
        ("{", "is not a JSON file"),
    ],
)
def test_files_of_another_form_are_refused(lm, tmp_path, text, message):
    path = tmp_path / "set.json"
    path.write_text(text)
    with pytest.raises(LREError, match=message):
        read_prompt_set(path, lm.tokenizer)


@torch.no_grad()
def test_a_swap_exchanges_what_a_lens_reads_and_its_control_goes_as_far(lm):
    """Each swap is solved for by least squares, and the prompt run token by token with s replaced by a hook."""
    name, layer = "country capital city", 2
    lre = LRECollection.from_pretrained("demo")[name]
    (relation,) = load_relations([name], "demo")
    prompts = relation_prompts(lm, relation, lre.origin, 5)
    torch.manual_seed(0)
    objects = tuple(prompts.objects)
    concepts = Concepts(objects, torch.randn(len(objects), lm.hidden_size), 1, 4, 5, "first", lre.origin)
    lenses = {"LRE": lre, "logit": LogitLens(), "concepts": concepts}
    found = {one.lens: one for one in lens_swaps(lm, prompts, lenses, layer)}
    maps = {"LRE": lre(torch.eye(lm.hidden_size)) - lre.bias, "logit": torch.eye(lm.hidden_size)}
    asked = prompts.prompts
    for kind, one in found.items():
        swapped, lengths = 0, []
        for own in asked:
            others = [other for other in asked if other.words != own.words]
            pair = own, min(others, key=lambda other: draw_order(own.ids, other.ids))
            ids, place = torch.tensor([own.ids]), own.places[SUBJECT]
            state = lm.hidden_states(ids, [layer])[layer][0, place]
            if kind == "concepts":
                rows = torch.stack([concepts[asked_.object] for asked_ in pair])
            else:
                rows = torch.stack([maps[kind] @ lm.model.lm_head.weight[asked_.words[0][0]] for asked_ in pair])
            change = torch.linalg.lstsq(rows, (rows @ state).flip(0) - rows @ state, driver="gelsd").solution
            lengths.append(float(change.norm() / state.norm()))

            def put(module, args, output, change=change, place=place):
                output[0, place] += change

            with lm.model.model.layers[layer].register_forward_hook(put):
                swapped += int(lm.model(ids).logits[0, -1].argmax() == pair[1].words[0][0])
        assert (one.edits, one.swapped) == (5, swapped)
        assert one.length == pytest.approx(sum(lengths) / 5, rel=1e-3)
    assert found["LRE"].swapped > found["LRE"].control == 0
