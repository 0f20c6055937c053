"""Collections: what they have of a run, what making LREs smaller loses, and their cards."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import ModelCard

from lre_lightning.demo import COLLECTIONS
from lre_lightning.errors import LREError
from lre_lightning.records.files import read_records
from lre_lightning.scoring.states import draw_key, draw_targets
from lre_lightning.sharing.card import About, card_of
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.index import Entry, Index
from lre_lightning.sharing.smaller import Form, Scorer
from lre_lightning.sharing.writing import write_collection
from tests.helpers.hostile import STRINGS

COLOUR, HALF = "thing colour", "half colour"


def test_a_collection_has_the_lres_and_records_of_its_run(fit, run, tmp_path):
    module, _, root = fit
    for collection in (run, run.save(tmp_path, Form(trials="all"))):
        assert dict.fromkeys(collection) == dict.fromkeys(sorted(module.lres, key=lambda key: (key[0] == COLOUR, key)))
        for key, lre in collection.items():
            assert torch.equal(lre.weight, module.lres[key].weight)
            assert torch.equal(lre.bias, module.lres[key].bias)
            assert lre.metadata() == module.lres[key].metadata()
            assert collection.index.entries[key].scores == module.records[key].chosen_scores
        assert collection.records == read_records(root)
        assert (collection.model, collection.identity) == ("toys/affine", module.lm.identity)
        assert collection[COLOUR].origin.trial == 0
        assert collection.path((COLOUR, 2)).name == "trial2.safetensors"
        assert repr(collection).startswith("LRECollection(6 LREs of 2 relations of 'toys/affine', folder ")
        assert collection._repr_html_().count("<tr>") == 7
        assert f"<td>{COLOUR}</td><td>0</td><td>0</td>" in collection._repr_html_()


def test_lres_are_found_by_relation_category_layer_and_score(fit, run, tmp_path):
    saved = run.save(tmp_path)
    assert (list(saved), COLOUR in saved, (COLOUR, 1) in saved) == ([(HALF, 0), (COLOUR, 0)], True, False)
    assert list(run.select(category="bias")) == [(HALF, trial) for trial in range(3)]
    assert len(run.select(layer=0, causality=0.0)) == 6
    least = max(entry.scores[1] for entry in run.index.entries.values())
    best = run.select(causality=least)
    assert {entry.scores[1] for entry in best.index.entries.values()} == {least}
    with pytest.raises(LREError, match=r"no LRE of .* has category 'bias', layer 7, faithfulness 0"):
        run.select(category="bias", layer=7)
    with pytest.raises(LREError, match=r"there is no LRE of 'thing color' in .*: it has thing colour"):
        saved["thing color"]
    with pytest.raises(KeyError):
        saved[COLOUR, 1]
    assert saved.for_text(fit[0].lm, "thing3") == []  # the templates of the toy have no text to know them by


def plain_scores(fit, key, weight, bias, rank, without=()):
    """Faithfulness and causality of W and b of a trial, one sample at a time, and the inverse by numpy.

    Samples whose subject is in `without` count as unknown.
    """
    module, data, _ = fit
    lm, record = module.lm, module.records[key]
    keys = [(data.relations[relation].name, number) for relation, number in data.schedule]
    trial = data.trial(keys.index(key))
    states, said = {}, {}
    (batch,) = data.val_dataloader([keys.index(key)])
    for row, prompt in enumerate(batch.prompts):
        found = lm.hidden_states(torch.tensor([prompt.input_ids]), [record.layer, lm.num_layers - 1])
        s, o = found[record.layer][0, prompt.subject_position], found[lm.num_layers - 1][0, -1]
        if int(lm.decode(o).argmax()) == int(batch.object_token[row]) and prompt.subject not in without:
            states[row], said[row] = (s.numpy(), o.numpy()), int(lm.decode(o).argmax())
    tokens = [said.get(row, -1) for row in range(len(trial.test))]
    targets = draw_targets(trial.test, tokens, draw_key(trial), range(len(trial.test)))
    left, values, right = np.linalg.svd(weight)
    inverse = (right[:rank].T / values[:rank]) @ left[:, :rank].T
    faithful = causal = 0
    for row, (s, o) in states.items():
        faithful += int(lm.decode(torch.from_numpy(weight @ s + bias)).argmax()) == said[row]
        edited = s + inverse @ (states[targets[row]][1] - o)
        for layer in range(record.layer + 1, lm.num_layers):
            block = lm.model.model.layers[layer]
            edited = block.matrix.numpy() @ edited + block.shift.numpy()
        causal += int(lm.decode(torch.from_numpy(edited)).argmax()) == said[targets[row]]
    return faithful / len(states), causal / len(states)


def cut(weight, rank):
    left, values, right = np.linalg.svd(weight)
    return (left[:, :rank] * values[:rank]) @ right[:rank]


def test_what_low_rank_loses_is_what_plain_loops_count(fit, run, scorer, tmp_path):
    measured = [run.save(tmp_path / str(rank), Form(rank=rank), scorer) for rank in (1, 2, 3)]
    for key in ((COLOUR, 0), (HALF, 0)):
        lre = run[key]
        weight, bias = lre.weight.double().numpy(), lre.bias.double().numpy()
        full = plain_scores(fit, key, weight, bias, lre.rank)
        for rank, collection in enumerate(measured, 1):
            entry = collection.index.entries[key]
            assert (entry.factors, entry.dtype, entry.full) == (rank, "float32", pytest.approx(full))
            expected = plain_scores(fit, key, cut(weight, rank), bias, min(rank, lre.rank))
            assert entry.scores == pytest.approx(expected)
            assert entry.loss == pytest.approx(np.subtract(full, expected))
            assert collection[key].rank == min(rank, lre.rank)
    losses = [entry.loss[0] for collection in measured for entry in collection.index.entries.values()]
    assert max(losses) > 0.1  # so that a loss would be seen


def test_the_automatic_rank_is_the_smallest_that_loses_little(run, scorer, tmp_path, monkeypatch):
    # Of these, 12 loses a fifth, and 14 nothing.
    monkeypatch.setattr("lre_lightning.sharing.smaller.default_ranks", lambda width: [8, 12, 14, 16])
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        auto = run.save(tmp_path / dtype, Form(rank="auto", dtype=dtype), scorer)
        tried = [run.save(tmp_path / f"{dtype}{r}", Form(rank=r, dtype=dtype), scorer) for r in (8, 12, 14)]
        for key, entry in auto.index.entries.items():
            fits = [one.index.entries[key] for one in tried if max(one.index.entries[key].loss) <= 0.01]
            assert entry.factors == (fits[0].factors if fits else None)
            assert fits
            assert auto[key].tensors()["left"].element_size() == size
    least = run.save(tmp_path / "least", Form(rank="auto", least=15), scorer)
    assert {entry.factors for entry in least.index.entries.values()} == {16}


def test_a_mean_over_trials_is_scored_on_samples_of_none(fit, run, scorer, tmp_path):
    saved = run.save(tmp_path, Form(trials="mean"), scorer)
    for name in (COLOUR, HALF):
        lres = [run[name, trial] for trial in range(3)]
        weight, bias = (
            np.mean([getattr(lre, part).double().numpy() for lre in lres], 0) for part in ("weight", "bias")
        )
        np.testing.assert_allclose(saved[name].weight, weight, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(saved[name].bias, bias, rtol=1e-5, atol=1e-6)
        entry = saved.index.entries[name, 0]
        seen = {subject for lre in lres[1:] for subject, _ in lre.origin.train}
        assert entry.trials == (0, 1, 2)
        assert entry.scores == pytest.approx(plain_scores(fit, (name, 0), weight, bias, lres[0].rank, seen))
        assert saved[name].origin == lres[0].origin
        states = scorer.states([run.index.entries[name, trial] for trial in range(3)])
        subjects = {states.prompts[place].subject for place in states.known.nonzero().flatten().tolist()}
        assert subjects == {prompt.subject for prompt in states.prompts} - seen
        assert len(subjects) < len(states.prompts)


def test_forms_that_cannot_be_are_refused(fit, run, scorer, tmp_path):
    for options, message in (
        ({"rank": 0}, "rank must be a whole number of at least 1, 'auto' or None, not 0"),
        ({"rank": "best"}, "rank must be a whole number"),
        ({"dtype": "int8", "rank": 4}, "dtype must be 'float32' or 'float16' or 'bfloat16', got 'int8'"),
        ({"dtype": "bfloat16"}, "W in full is kept in float32: give a rank"),
        ({"trials": "last"}, "trials must be 'first' or 'mean' or 'all', got 'last'"),
    ):
        with pytest.raises(LREError, match=message):
            Form(**options)
    with pytest.raises(LREError, match="rank 'auto' needs the LM and the data of the fit"):
        run.save(tmp_path, Form(rank="auto"))
    with pytest.raises(LREError, match="rank 17 is out of range"):
        run.save(tmp_path, Form(rank=17), scorer)
    with pytest.raises(LREError, match="has the LREs of a run, or those to be saved: give another folder"):
        run.save(fit[2])
    shutil.copytree(COLLECTIONS["demo"], tmp_path / "demo")
    with pytest.raises(LREError, match="has a collection of another LM: give another folder"):
        run.save(tmp_path / "demo")
    with pytest.raises(LREError, match="the data draw other samples for trial 0"):
        run.save(tmp_path, Form(rank=2), Scorer(fit[0].lm, fit[1].changed(seed=5)))
    assert run.save(tmp_path / "unmeasured", Form(rank=2)).index.entries[COLOUR, 0].scores == (None, None)


def test_writing_that_was_stopped_goes_on(run, scorer, tmp_path, monkeypatch):
    begun, states, stops = [], Scorer.states, [False, True]

    def watched(self, group):
        begun.append(group[0].key)
        if stops and stops.pop(0):
            raise KeyboardInterrupt
        return states(self, group)

    monkeypatch.setattr(Scorer, "states", watched)
    with pytest.raises(KeyboardInterrupt):
        run.save(tmp_path, Form(rank=2), scorer)
    resumed = run.save(tmp_path, Form(rank=2), scorer)
    assert begun == [(HALF, 0), (COLOUR, 0), (COLOUR, 0)]
    assert resumed.index == run.save(tmp_path / "whole", Form(rank=2), scorer).index
    del begun[:]
    resumed.path(HALF).write_bytes(b"damaged")
    run.save(tmp_path, Form(rank=2), scorer)
    assert begun == [(HALF, 0)]
    run.save(tmp_path, Form(rank=3), scorer)  # another form begins anew
    assert begun[1:] == [(HALF, 0), (COLOUR, 0)]


def test_a_collection_that_is_saved_again_stays_as_it_is(run, scorer, tmp_path):
    for form in (Form("all", 2, "float16"), Form("mean", "auto")):
        once = write_collection(run, tmp_path / form.trials, form, scorer, About(license="mit"))
        again = write_collection(once, tmp_path / "again" / form.trials, about=About(data_license="CC0"))
        assert (again.index.entries, again.records) == (once.index.entries, once.records)
        assert again.index.made == once.index.made | {"about": {"license": "mit", "data_license": "CC0"}}
    first = once.select(category="bias").save(tmp_path / "one")
    assert first.index.entries == {key: entry for key, entry in once.index.entries.items() if key == (HALF, 0)}


def test_the_card_says_what_the_hub_filters_by_and_its_example_runs(fit, run, scorer, tmp_path, monkeypatch, capsys):
    about = About("toys/base", "mit", "CC0", str(tmp_path))
    collection = write_collection(run, tmp_path, Form(rank=2, dtype="float16"), scorer, about)
    card = ModelCard(collection.card)
    assert card.data.to_dict() == {
        "library_name": "lre-lightning",
        "base_model": "toys/base",
        "license": "mit",
        "tags": ["lre-lightning", "linear-relational-embeddings", "interpretability", "bias", "factual"],
    }
    entry = collection.index.entries[COLOUR, 0]
    shown = " | ".join(f"{value:.2f}" for value in entry.scores)
    losses = ", ".join(f"{value:.2f}" for value in entry.loss)
    row = f"| thing colour | factual | 0 | 2 | 1.0 | rank 2, float16 | {shown} | {losses} |"
    assert row in card.text
    assert f"under transformers\n{transformers.__version__} and torch" in card.text
    assert "n_shot: 3" in card.text
    assert "The data: CC0." in card.text
    assert str(fit[2]) not in card.text  # nor any other path of this machine, but that of the example
    assert collection.records[0].model == "toys/base"
    code = card.text.split("```python\n")[1].split("```")[0].replace("for_text", "select and lres.for_text")
    monkeypatch.setattr("lre_lightning.LanguageModel.from_pretrained", lambda name: fit[0].lm)
    exec(code, {})
    assert " 0." in capsys.readouterr().out


def test_names_of_any_kind_neither_break_a_card_nor_add_to_it(run):
    (entry, *_) = run.index.entries.values()
    made = {"config": {"data": {"source": "a```b"}}, "about": {"license": "[x](y)"}, "versions": {"<b>": "1"}}
    for name in [*STRINGS, "a|b", "```", "'''", "x\n---\ny", "![x](http://y)", "&lt;script>"]:
        origin = entry.metadata["origin"] | dict.fromkeys(("relation", "model", "category"), name)
        origin |= {"template": f"{{}} {name}", "train": ((name, name),)}
        odd = replace(entry, metadata=entry.metadata | {"origin": origin})
        text = card_of(Index({odd.key: odd}, made), figure=False)
        card = ModelCard(text)
        assert (card.data.library_name, card.data.base_model) == ("lre-lightning", None)
        (row,) = (line for line in card.text.splitlines() if "full, float32" in line)
        assert row.replace("\\|", "").count("|") == 10
        shown = card.text.split("```python")[0] + card.text.split("## Relations")[1]
        assert not re.search(r"(?<!\\)<script|&lt;", shown)
        compile(card.text.split("```python\n")[1].split("```")[0], "card", "exec")
        assert card.text.count("```") == 4


def test_any_made_of_an_index_is_a_card_or_nothing(run):
    (entry, *_) = run.index.entries.values()
    entry = replace(entry, metadata=entry.metadata | {"origin": entry.metadata["origin"] | {"train": ()}})
    odd = ({"data": 1}, {"data": {"source": [1]}}, {"model": {"loading": [2]}}, {"license": {"a": [1]}})
    for value in (None, 1, "x", [1], *odd):
        for name in ("config", "about", "versions", "form"):
            text = card_of(Index.of([entry], {name: value}), figure=False)
            assert ModelCard(text).data.library_name == "lre-lightning"


def test_an_index_is_read_as_it_was_written(run, tmp_path):
    (entry, *_) = run.index.entries.values()
    tuned = replace(entry, metadata=entry.metadata | {"beta": 7.0})
    assert LRECollection(run.place, Index.of([tuned], {}))[entry.key].beta == 7.0
    full = Entry(entry.metadata, (1, 2), 7, "bfloat16", (0.25, None), (0.5, 1.0), 9, "0" * 64)
    Index.of([full], {"a": [1, {"b": None}]}).write(tmp_path)
    assert Index.read(tmp_path / "index.json") == Index.of([full], {"a": [1, {"b": None}]})
    assert json.loads((tmp_path / "index.json").read_text())["lres"][0]["file"] == full.file


def test_a_collection_carries_the_subjects_of_its_relations(run, fit, tmp_path):
    names = {name for name, _ in run}
    expected = {one.name: [sample.subject for sample in one.samples] for one in fit[1].relations if one.name in names}
    assert run.subjects == expected
    saved = run.save(tmp_path / "saved", Form())
    assert saved.subjects == LRECollection.from_pretrained(tmp_path / "saved").subjects == expected
    assert saved.select(layer=0).save(tmp_path / "again").subjects == expected
    for content in (b"{", b"[]", b'{"a": 1}', b'{"a": [1]}', b"\xff"):
        (tmp_path / "saved" / "subjects.json").write_bytes(content)
        with pytest.raises(LREError, match=r"subjects\.json' is not a file of subjects: "):
            _ = LRECollection.from_pretrained(tmp_path / "saved").subjects
    (tmp_path / "saved" / "subjects.json").unlink()
    assert LRECollection.from_pretrained(tmp_path / "saved").subjects == {}
