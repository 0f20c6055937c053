"""Answers of the LM and the attribute lens to prompts that distract: in closed form, and by a plain loop."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.datamodules import DistractionDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.distraction import GENERIC_LENS, LENS, LM, OTHER_LENS, latent_knowledge
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from tests.helpers import toy
from tests.helpers.options import nested
from tests.helpers.relations import write
from tests.helpers.tiny_models import WIDTH, tiny_model

# An LM that copies what it has read.

# Places in a hidden state: the object that was mentioned, and the object of the subject itself.
SEEN, OWN = slice(0, 4), slice(4, 8)


def copying_toy():
    """Return the toy with an LM that says the object that it has read, or else the subject's own.

    In the hidden state of a subject its object's unit vector is in `OWN`; in that of an object's mention it is in
    `SEEN`, which attention, alike to all tokens, copies to all later positions.
    """
    model = toy.toy_model().double()
    embed, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embed.zero_(), head.zero_()
    unit = torch.eye(toy.WIDTH, dtype=torch.float64)
    for i, name in enumerate(toy.OBJECTS):
        embed[toy.WORDS.index(name)] = unit[SEEN][i]
        head[toy.WORDS.index(name)] = 5.0 * unit[SEEN][i] + unit[OWN][i]
    for i, name in enumerate(toy.SUBJECTS):
        embed[toy.WORDS.index(name)] = unit[OWN][i % 4]
    embed[toy.WORDS.index("[UNK]")] = embed[toy.WORDS.index("[BOS]")] = unit[12]
    attention = model.model.layers[0].self_attn
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        projection.weight.data.zero_()
    attention.v_proj.weight.data[SEEN] = attention.o_proj.weight.data[SEEN] = 1.0 * unit[SEEN]
    return LanguageModel(model)


@pytest.fixture(scope="module")
def toy_folder(tmp_path_factory):
    """Write relations of the toy: two that the LM knows, one that it does not, and one of which it knows some."""
    folder = toy.write_toy_relations(tmp_path_factory.mktemp("toy") / "relations")
    some = toy.relation_json("some colour")
    for i, sample in enumerate(some["samples"]):
        sample["object"] = toy.OBJECTS[(i + i // 12) % 4]  # the first 12 are right
    (folder / "some_colour.json").write_text(json.dumps(some))
    return folder


def toy_data(folder, **options):
    given = {"trials": 2, "n_shot": 3, "falsehood_separator": "\n", "relations": ["thing colour"]}
    return DistractionDataModule(toy.toy_tokenizer(), source=str(folder), **nested(**given | options))


def projection(part, shift=0):
    """Return a W that keeps a part of the hidden state, moved to where the decoder head reads the subject's object."""
    weight = torch.zeros(toy.WIDTH, toy.WIDTH)
    unit = torch.eye(4)
    weight[OWN, part] = unit[[(i - shift) % 4 for i in range(4)]]
    return weight


def toy_lres(lm, data, weights, layer=0):
    """Return an LRE for each trial of the relations in `weights`, with that W and no bias."""
    lres = {}
    for trial in map(data.trial, range(len(data.schedule))):
        name, template = trial.relation.name, trial.relation.template
        train = tuple((sample.subject, sample.object) for sample in trial.train)
        origin = Origin(lm.name, lm.fingerprint, name, trial=trial.number, template=template, train=train)
        if name in weights:
            lres[name, trial.number] = LRE(weights[name], torch.zeros(toy.WIDTH), layer, origin)
    return lres


def test_an_lm_that_copies_says_the_falsehood_and_the_lens_finds_the_fact(toy_folder, capfd):
    lm, data = copying_toy(), toy_data(toy_folder, distraction="instruction", batch_size=5)
    results = latent_knowledge(lm, data, toy_lres(lm, data, {"thing colour": projection(OWN)}))
    assert [(result.relation, result.trial) for result in results] == [("thing colour", 0), ("thing colour", 1)]
    for result in results:
        assert (result.tested, result.known, result.range_size, result.layer) == (21, 21, 4, 0)
        assert (result.distraction, result.model, result.category) == ("instruction", lm.name, "factual")
        assert result.found == {LM: (0, 21, 21), LENS: (21, 21, 21)}
        assert result.false_found[LM] == (21, 21, 21)
        assert result.false_found[LENS][0] == 0
        assert result.other_relation is None
    assert capfd.readouterr() == ("", "")


def test_a_jacobian_lens_reads_the_subject_as_a_control(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder)
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    (result, _) = latent_knowledge(lm, data, lres, jacobian_lens=JacobianLens({0: projection(OWN, shift=1)}, 1))
    assert result.found[LENS][0] == 21
    assert result.found[GENERIC_LENS][0] == 0
    with pytest.raises(LREError, match="the Jacobian lens has no layer 0: it has"):
        latent_knowledge(lm, data, lres, jacobian_lens=JacobianLens({1: projection(OWN)}, 1))


def test_only_facts_that_the_lm_knows_undistracted_count(toy_folder):
    names = ["some colour", "wrong colour", "thing colour"]
    lm, data = copying_toy(), toy_data(toy_folder, batch_size=4, relations=names)
    results = latent_knowledge(lm, data, toy_lres(lm, data, dict.fromkeys(names, projection(OWN))))
    assert len(results) == 6
    for index, result in enumerate(results):
        test = data.trial(index).test
        right = [s for s in test if toy.OBJECTS[toy.SUBJECTS.index(s.subject) % 4] == s.object]
        assert (result.tested, result.known) == (21, len(right))
        assert result.found[LENS] == (len(right),) * 3, "the lens is right about all of them"
        most = sorted(Counter(sample.object for sample in right).values(), reverse=True)
        assert result.most_frequent == tuple(sum(most[:k]) for k in (1, 2, 3))
    assert {(result.known, result.found[LM]) for result in results if result.relation == "wrong colour"} == {
        (0, (0, 0, 0))
    }
    some = [result.known for result in results if result.relation == "some colour"]
    assert 0 < min(some) <= max(some) < 21


def test_the_other_relation_is_chosen_from_those_of_the_trial(toy_folder):
    names = ["thing colour", "half colour", "wrong colour", "some colour"]
    lm, data = copying_toy(), toy_data(toy_folder, trials=5, relations=names)
    lres = toy_lres(lm, data, dict.fromkeys(names, projection(OWN)))
    del lres["half colour", 3], lres["some colour", 3]
    chosen = {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, lres)}
    assert set(chosen) == set(lres)
    assert all(other != relation and (other, trial) in lres for (relation, trial), other in chosen.items())
    assert {chosen["thing colour", 3], chosen["wrong colour", 3]} == {"thing colour", "wrong colour"}
    assert len({chosen["thing colour", trial] for trial in range(5)}) > 1
    reordered = dict(reversed(list(lres.items())))
    assert chosen == {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, reordered)}


def test_decoding_a_few_rows_at_a_time_gives_the_same(toy_folder, monkeypatch):
    lm, data = copying_toy(), toy_data(toy_folder)
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    expected, decode, rows = latent_knowledge(lm, data, lres), lm.decode, []
    monkeypatch.setattr(lm, "decode", lambda hidden: rows.append(len(hidden)) or decode(hidden))
    monkeypatch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", 3 * lm.vocab_size * 8)
    assert latent_knowledge(lm, data, lres) == expected
    assert max(rows) == 3


def test_lres_of_other_trials_prompts_or_lms_are_refused(toy_folder):
    lm, data = copying_toy(), toy_data(toy_folder)
    lres = toy_lres(lm, data, {"thing colour": projection(OWN)})
    with pytest.raises(LREError, match=r"\('thing colour', 0\) to \('thing colour', 1\), and the 0 LREs of nothing"):
        latent_knowledge(lm, data, {})
    with pytest.raises(
        LREError, match=r"no LRE has the relation and trial of a prompt: .* and the 1 LREs of \('thing', 0\)"
    ):
        latent_knowledge(lm, data, {("thing", 0): lres["thing colour", 0]})
    for options in ({"seed": 1}, {"n_shot": 4}, {"template": "colour {}"}):
        with pytest.raises(LREError, match="trial 0, was estimated from other prompts than the datamodule draws"):
            latent_knowledge(lm, toy_data(toy_folder, **options), lres)
    with pytest.raises(LREError, match="was estimated from 'LlamaForCausalLM'"):
        latent_knowledge(LanguageModel(toy.toy_model(seed=1)), data, lres)
    origin = replace(lres["thing colour", 0].origin, fingerprint="another", relation="other")
    control = replace(lres["thing colour", 0], origin=origin)
    with pytest.raises(LREError, match="was estimated from 'LlamaForCausalLM'"):
        latent_knowledge(lm, data, {**lres, ("other", 0): control})


# A random LM, one prompt at a time.

FIRST_WORD = 4
WORDS = [f"w{i}" for i in range(90)]


def random_setting(tmp_path, family):
    """Return a random LM and its tokenizer, and write relations of which it knows some: two in three of its answers."""
    vocabulary = {"[BOS]": 0, "[UNK]": 1, ".": 2, "Repeat": 3} | {word: i + FIRST_WORD for i, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[BOS]", unk_token="[UNK]")
    lm = LanguageModel(tiny_model(family))
    for number, template in enumerate(["w1 {} w2", "w3 w4 {} w5"]):
        samples = []
        for i in range(24):
            subject = f"w{20 + i} w{60 + i}"
            ids = [0, *tokenizer(template.format(subject))["input_ids"]]
            said = int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())
            word = WORDS[said - FIRST_WORD] if i % 3 and said in range(FIRST_WORD, 94) else WORDS[i + number]
            samples.append({"subject": subject, "object": word})
        own = {"prompt_templates": [template], "prompt_templates_zs": []}
        write(tmp_path / f"{number}.json", name=f"relation {number}", samples=samples, **own)
    return lm, tokenizer


@pytest.mark.parametrize(("family", "kind", "beta"), [("gpt2", "repetition", None), ("gemma2", "instruction", 2.5)])
def test_counts_are_those_of_a_plain_loop(tmp_path, family, kind, beta):
    lm, tokenizer = random_setting(tmp_path, family)
    loader = {"batch_size": 6}
    data = DistractionDataModule(tokenizer, source=str(tmp_path), distraction=kind, n_shot=3, trials=1, loader=loader)
    generator = torch.Generator().manual_seed(0)
    lres = {}
    for index, layer in ((0, 1), (1, "emb")):
        trial = data.trial(index)
        train = tuple((sample.subject, sample.object) for sample in trial.train)
        origin = Origin("", lm.fingerprint, trial.relation.name, template=trial.relation.template, train=train)
        weight, bias = (torch.randn(*shape, generator=generator) for shape in ((WIDTH, WIDTH), (WIDTH,)))
        lres[trial.relation.name, 0] = LRE(weight, bias, layer, origin, beta=0.5)
    ks = (1, 3, 20)
    results = latent_knowledge(lm, data, lres, beta, ks)
    assert [result.relation for result in results] == ["relation 0", "relation 1"]
    for index, result in enumerate(results):
        own, other = lres[result.relation, 0], lres[results[1 - index].relation, 0]
        expected = plain_loop(lm, data, index, {LENS: own, OTHER_LENS: other}, 0.5 if beta is None else beta, ks)
        assert (result.known, result.found, result.false_found) == expected
        assert 0 < result.known < result.tested == len(data.trial(index).test)
        assert (result.layer, result.beta) == (own.layer, beta or 0.5)
    counts = {tuple(found) for r in results for side in (r.found, r.false_found) for found in side.values()}
    assert len(counts) > 4, "numbers that all agree would show little"


def plain_loop(lm, data, index, lenses, beta, ks):
    """Count with whole prompts and no cache, one at a time, and with sorted lists."""
    trial, tokenizer = data.trial(index), data.tokenizer
    template, known = trial.relation.template, 0
    counts = {reader: ([0] * len(ks), [0] * len(ks)) for reader in (LM, *lenses)}
    token = {word: i + FIRST_WORD for i, word in enumerate(WORDS)}
    falsehoods = [false for batch in data.val_dataloader([index]) for false in batch.false_objects]
    for sample, false in zip(trial.test, falsehoods, strict=True):
        statement = template.format(sample.subject)
        bait = f"{statement} {false}. "
        text = (bait * 2 if data.distraction == "repetition" else bait + "Repeat exactly: ") + statement
        plain, ids = ([0, *tokenizer(t, add_special_tokens=False)["input_ids"]] for t in (statement, text))
        if int(lm.model(torch.tensor([plain])).logits[0, -1].argmax()) != token[sample.object]:
            continue
        known += 1
        run = lm.model(torch.tensor([ids]), output_hidden_states=True)
        position = len(ids) - 1 - len(template.split("{}")[1].split())
        assert WORDS[ids[position] - FIRST_WORD] == sample.subject.split()[-1]
        answers = {LM: run.logits[0, -1]}
        for reader, lre in lenses.items():
            if lre.layer == "emb":
                hidden = lm.model.get_input_embeddings()(torch.tensor([ids]))[0, position]
            else:
                hidden = run.hidden_states[lre.layer + 1][0, position]
            output = beta * (lre.weight.to(torch.float64) @ hidden) + lre.bias
            answers[reader] = lm.decode(output.float())
        for reader, logits in answers.items():
            order = sorted(range(len(logits)), key=lambda i, logits=logits: (-float(logits[i]), i))
            for side, wanted in enumerate((sample.object, false)):
                rank = order.index(token[wanted])
                for i, k in enumerate(ks):
                    counts[reader][side][i] += rank < k
    found, false_found = ({r: tuple(sides[side]) for r, sides in counts.items()} for side in (0, 1))
    return known, found, false_found
