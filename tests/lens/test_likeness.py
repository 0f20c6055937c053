"""Where lenses say nothing: limits from definitions, and what they let through on the demo."""

from dataclasses import replace

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lens.likeness import (
    LIKENESSES,
    PARTS,
    SENTENCES,
    Likenesses,
    digest_of,
    read_likenesses,
    words_of,
)
from lre_lightning.lens.plotting import plot_lenses
from lre_lightning.lens.reading import NOTHING, TextStates, print_lenses, read_lenses
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import fill
from lre_lightning.relations.sources import load_relations
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.storage.tensors import write_tensors

CAPITALS, TEXT = "country capital city", "Rosa took a train through Japan and slept in a small hotel near the sea."


@pytest.fixture(scope="module")
def demo():
    lm, lres = LanguageModel.from_pretrained("demo"), LRECollection.from_pretrained("demo")
    return lm, lres, Likenesses(lm, lres)


def sentences(lres, relation, chosen):
    """The sentences of relations that share nothing with one."""
    origins = [lres[key].origin for key in lres]
    own = next(words_of(origin) for origin in origins if origin.relation == relation)
    far = [origin for origin in origins if not own & words_of(origin)]
    return [f"{fill(origin.template, subject)} {answer}" for origin in far for subject, answer in origin.train[chosen]]


def states_of(lm, text, layer):
    """The hidden states of a text's tokens at one layer."""
    ids = [lm.tokenizer.bos_token_id, *lm.tokenizer(text, add_special_tokens=False)["input_ids"]]
    return lm.hidden_states(torch.tensor([ids]), [layer])[layer][0, 1:]


def test_a_collection_carries_what_its_lms_would_find(demo, monkeypatch, tmp_path):
    lm, lres, _ = demo
    layers = {name: lres.metadata[name, 0]["layer"] for name in (CAPITALS, "person sport")}
    made = Likenesses(lm, dict(lres), [*{*layers.values()}], 0.1)  # a plain mapping carries nothing
    expected = {name: made.own(name, layer) for name, layer in layers.items()}
    monkeypatch.setattr(type(lm), "hidden_states", None)  # nothing is run
    for name, layer in layers.items():
        carried = Likenesses(lm, lres, None, 0.1).own(name, layer)
        for part in ("train", "centre", "values", "limits"):
            torch.testing.assert_close(getattr(carried, part), getattr(expected[name], part), rtol=1e-4, atol=1e-5)
    origins = {name: lres[name].origin for name in layers}
    tensors = {f"0.{part}": getattr(expected[CAPITALS], part)[0] for part in PARTS}
    metadata = {"relations": [CAPITALS], "lres": digest_of(origins, layers)}
    write_tensors(path := tmp_path / LIKENESSES, tensors, "likenesses", metadata)
    assert [*read_likenesses(path, origins, layers)] == [CAPITALS]
    assert read_likenesses(path, origins, layers | {CAPITALS: 3}) == {}  # of other LREs
    write_tensors(path, tensors | {"0.centre": torch.full_like(tensors["0.centre"], torch.nan)}, "likenesses", metadata)
    with pytest.raises(LREError, match="is not a file of likenesses that can be read: the likeness of 'country"):
        read_likenesses(path, origins, layers)


def test_at_its_own_layer_a_lens_says_what_it_says_in_the_whole_grid(demo):
    lm, lres, likenesses = demo
    how = {"relations": [CAPITALS, "person sport"], "likenesses": likenesses}
    *whole, _ = read_lenses(lm, lm.tokenizer, TEXT, lres, **how)
    for own, lens in zip(read_lenses(lm, lm.tokenizer, TEXT, lres, own_layers=True, **how), whole, strict=True):
        row = lens.layers.index(lens.layer)
        assert (own.layers, own.top, own.silent) == ((lens.layer,), [lens.top[row]], [lens.silent[row]])
        torch.testing.assert_close(torch.tensor(own.probabilities[0]), torch.tensor(lens.probabilities[row]))


def test_likeness_and_its_limit_are_those_of_the_definition(demo):
    lm, lres, likenesses = demo
    lre = lres[CAPITALS, 0]
    others = [states_of(lm, text, lre.layer)[1:] for text in sentences(lres, CAPITALS, slice(SENTENCES))]
    others = torch.cat(others).double()
    train = []
    for subject, _ in lre.origin.train:
        prompt = lre.origin.prompt(lm, subject)
        train.append(
            lm.hidden_states(torch.tensor([prompt.input_ids]), [lre.layer])[lre.layer][0, prompt.subject_position]
        )
    centre = others.mean(0)
    train = torch.stack(train).double() - centre

    def likeness(states):
        states = states.double() - centre
        return torch.nn.functional.cosine_similarity(states[:, None], train, dim=-1).amax(-1)

    found, place = likenesses[CAPITALS], likenesses.layers.index(lre.layer)
    states = TextStates.of(lm, lm.tokenizer, TEXT)
    torch.testing.assert_close(
        found(states.hidden)[place].double(), likeness(states_of(lm, TEXT, lre.layer)), rtol=0, atol=1e-5
    )
    exceed = (likeness(others) > float(found.limits[place]) + 1e-6).sum()
    assert int(exceed) == int(0.05 * (len(others) + 1)) - 1


def test_subjects_are_let_through_and_tokens_about_something_else_are_not(demo):
    lm, lres, likenesses = demo
    alarms, kept = [], []
    for relation in load_relations(source="demo")[::6]:
        lre = lres[relation.name, 0]
        place = likenesses.layers.index(lre.layer)

        def speaks(texts, relation=relation, place=place):
            states = [TextStates.of(lm, lm.tokenizer, text).hidden for text in texts]
            return [~likenesses[relation.name].silent(state)[place] for state in states]

        train = {subject for subject, _ in lre.origin.train}
        subjects = [sample.subject for sample in relation.samples if sample.subject not in train][:10]
        kept += [bool(found[-1]) for found in speaks([f"Yesterday we talked about {name}" for name in subjects])]
        unseen = sentences(lres, relation.name, slice(SENTENCES, SENTENCES + 1))
        alarms += torch.cat([found[1:] for found in speaks(unseen)]).tolist()
    assert sum(kept) / len(kept) > 0.7
    assert sum(alarms) / len(alarms) < 0.08


def test_a_grid_shows_nothing_where_the_lens_says_nothing(demo, capsys):
    lm, lres, likenesses = demo
    spoken, logit_lens = read_lenses(lm, lm.tokenizer, TEXT, lres, [CAPITALS], likenesses=likenesses)
    (everywhere, _) = read_lenses(lm, lm.tokenizer, TEXT, lres, [CAPITALS])
    assert (spoken.top, logit_lens.silent) == (everywhere.top, None)
    row = spoken.layers.index(spoken.layer)
    line = repr(spoken).splitlines()[1 + len(spoken.layers) - row].split()
    assert "Tokyo" in line
    assert line.count(NOTHING) == sum(spoken.silent[row]) >= len(spoken.tokens) - 3
    place = spoken.silent[row].index(False)
    at = [replace(spoken, name=name, mentions=[("it", x)]) for name, x in ((CAPITALS, place), ("elsewhere", place - 1))]
    print_lenses({at[0].text: at})
    printed = capsys.readouterr().out
    assert CAPITALS in printed
    assert "elsewhere" not in printed  # a row of which nothing is said
    print_lenses({"it": [at[0], replace(at[1], mentions=[("that", place - 1)])]})
    assert "No lens is known to speak at that: " in capsys.readouterr().out
    drawn = {text.get_text() for text in plot_lenses([spoken]).axes[0].texts}
    assert NOTHING in drawn
    assert "Tokyo" in "".join(drawn)


def test_an_lm_in_bfloat16_is_measured_in_float32(demo):
    _, lres, _ = demo
    lm = LanguageModel.from_pretrained("demo", dtype="bfloat16")
    two = {(name, 0): lres[name, 0] for name in (CAPITALS, "person sport")}
    found = Likenesses(lm, two)[CAPITALS]
    states = TextStates.of(lm, lm.tokenizer, TEXT).hidden
    assert states.dtype == torch.bfloat16
    assert found(states).dtype == torch.float32
    assert found.silent(states).shape == states.shape[:2]


def test_mistakes_are_named(demo):
    lm, lres, likenesses = demo
    with pytest.raises(LREError, match="and the text is read at"):
        read_lenses(lm, lm.tokenizer, TEXT, lres, [CAPITALS], layers=[1, 2], likenesses=likenesses)
    with pytest.raises(LREError, match="false_alarms must be a share between 0 and 1"):
        Likenesses(lm, lres, false_alarms=5)
    alone = Likenesses(lm, {(CAPITALS, 0): lres[CAPITALS, 0]})
    with pytest.raises(LREError, match="there is no LRE of such a one"):
        alone[CAPITALS]
