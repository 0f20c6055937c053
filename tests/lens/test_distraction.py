"""Answers of the LM and the attribute lens to prompts that distract, by a plain loop over one prompt at a time."""

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
from tests.helpers.identities import ANOTHER
from tests.helpers.options import nested
from tests.helpers.relations import write
from tests.helpers.tiny_models import WIDTH, tiny_model

FIRST_WORD = 4
WORDS = [f"w{i}" for i in range(90)]
TEMPLATES = ["w1 {} w2", "w3 w4 {} w5", "w6 {} w7", "w8 {} w9"]


def random_setting(folder, family, templates=TEMPLATES[:2], **options):
    """Return a random LM and data of relations of which it knows some: two in three of its answers."""
    vocabulary = {"[BOS]": 0, "[UNK]": 1, ".": 2, "Repeat": 3} | {word: i + FIRST_WORD for i, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, bos_token="[BOS]", unk_token="[UNK]")
    lm = LanguageModel(tiny_model(family), name="tiny")
    for number, template in enumerate(templates):
        samples = []
        for i in range(24):
            subject = f"w{20 + i} w{60 + i}"
            ids = [0, *tokenizer(template.format(subject))["input_ids"]]
            said = int(lm.model(torch.tensor([ids])).logits[0, -1].argmax())
            word = WORDS[said - FIRST_WORD] if i % 3 and said in range(FIRST_WORD, 94) else WORDS[i + number]
            samples.append({"subject": subject, "object": word})
        own = {"prompt_templates": [template], "prompt_templates_zs": []}
        write(folder / f"{number}.json", name=f"relation {number}", samples=samples, **own)
    return lm, data_of(tokenizer, folder, **options)


def data_of(tokenizer, folder, **options):
    given = {"n_shot": 3, "trials": 1, "batch_size": 6} | options
    return DistractionDataModule(tokenizer, source=str(folder), **nested(**given))


def lres_of(lm, data, layers):
    """Return a random LRE for each trial, at the layers in turn."""
    generator, lres = torch.Generator().manual_seed(0), {}
    for index in range(len(data.schedule)):
        trial = data.trial(index)
        train = tuple((sample.subject, sample.object) for sample in trial.train)
        name, template = trial.relation.name, trial.relation.template
        origin = Origin(lm.name, lm.identity, name, trial=trial.number, template=template, train=train)
        weight, bias = (torch.randn(*shape, generator=generator) for shape in ((WIDTH, WIDTH), (WIDTH,)))
        lres[name, trial.number] = LRE(weight, bias, layers[index % len(layers)], origin, beta=0.5)
    return lres


@pytest.mark.parametrize(("family", "kind", "beta"), [("gpt2", "repetition", None), ("gemma2", "instruction", 2.5)])
def test_counts_are_those_of_a_plain_loop(tmp_path, family, kind, beta, monkeypatch, capfd):
    lm, data = random_setting(tmp_path, family, distraction=kind)
    monkeypatch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", 3 * lm.vocab_size * lm.dtype.itemsize)
    lres, jacobian = lres_of(lm, data, [1, "emb"]), torch.randn(WIDTH, WIDTH)
    ks, jacobian_lens = (1, 3, 20), JacobianLens({1: jacobian, "emb": -jacobian}, 1)
    results = latent_knowledge(lm, data, lres, beta, ks, jacobian_lens)
    assert [result.relation for result in results] == ["relation 0", "relation 1"]
    for index, result in enumerate(results):
        own, other = lres[result.relation, 0], lres[results[1 - index].relation, 0]
        generic = replace(own, weight=jacobian if own.layer == 1 else -jacobian, bias=0 * own.bias, beta=1.0)
        lenses = {LENS: own, OTHER_LENS: other, GENERIC_LENS: generic}
        if beta is not None:
            lenses = {reader: replace(lre, beta=beta) for reader, lre in lenses.items()}
        expected = plain_loop(lm, data, index, lenses, ks)
        assert (result.known, result.found, result.false_found, result.most_frequent) == expected
        assert 0 < result.known < result.tested == len(data.trial(index).test)
        assert (result.layer, result.beta, result.trial) == (own.layer, beta or 0.5, 0)
        assert (result.distraction, result.model, result.category) == (kind, "tiny", tmp_path.name)
        assert result.range_size == len({sample.object for sample in data.relations[index].samples})
    counts = {tuple(found) for r in results for side in (r.found, r.false_found) for found in side.values()}
    assert len(counts) > 4, "numbers that all agree would show little"
    assert capfd.readouterr() == ("", "")


def plain_loop(lm, data, index, lenses, ks):
    """Count with whole prompts and no cache, one at a time, and with sorted lists."""
    trial, tokenizer = data.trial(index), data.tokenizer
    template, known = trial.relation.template, []
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
        known.append(sample.object)
        run = lm.model(torch.tensor([ids]), output_hidden_states=True)
        position = len(ids) - 1 - len(template.split("{}")[1].split())
        assert WORDS[ids[position] - FIRST_WORD] == sample.subject.split()[-1]
        answers = {LM: run.logits[0, -1]}
        for reader, lre in lenses.items():
            if lre.layer == "emb":
                hidden = lm.model.get_input_embeddings()(torch.tensor([ids]))[0, position]
            else:
                hidden = run.hidden_states[lre.layer + 1][0, position]
            output = lre.beta * (lre.weight.to(torch.float64) @ hidden) + lre.bias
            answers[reader] = lm.decode(output.float())
        for reader, logits in answers.items():
            numbers = logits.tolist()
            order = sorted(range(len(numbers)), key=lambda i, numbers=numbers: (-numbers[i], i))
            for side, wanted in enumerate((sample.object, false)):
                rank = order.index(token[wanted])
                for i, k in enumerate(ks):
                    counts[reader][side][i] += rank < k
    found, false_found = ({r: tuple(sides[side]) for r, sides in counts.items()} for side in (0, 1))
    often = sorted(Counter(known).values(), reverse=True)
    return len(known), found, false_found, tuple(sum(often[:k]) for k in ks)


def test_the_other_relation_is_chosen_from_those_of_the_trial(tmp_path):
    lm, data = random_setting(tmp_path, "gpt2", TEMPLATES, trials=3)
    lres = lres_of(lm, data, [0])
    del lres["relation 1", 2], lres["relation 3", 2]
    chosen = {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, lres)}
    assert set(chosen) == set(lres)
    assert all(other != relation and (other, trial) in lres for (relation, trial), other in chosen.items())
    assert len({chosen[relation, trial] for relation, trial in chosen if trial < 2}) > 2
    reordered = dict(reversed(list(lres.items())))
    assert chosen == {(r.relation, r.trial): r.other_relation for r in latent_knowledge(lm, data, reordered)}
    (alone,) = latent_knowledge(lm, data, {("relation 0", 0): lres["relation 0", 0]})
    assert (alone.other_relation, alone.found.keys()) == (None, {LM, LENS})


def test_lres_of_other_trials_prompts_or_lms_are_refused(tmp_path):
    lm, data = random_setting(tmp_path, "gpt2", TEMPLATES[:1])
    lres = lres_of(lm, data, [0])
    missing = r"no LRE has the relation and trial of a prompt: .*\('relation 0', 0\) to \('relation 0', 0\), and the "
    for given, found in (({}, "0 LREs of nothing"), ({("thing", 0): None}, r"1 LREs of \('thing', 0\)")):
        with pytest.raises(LREError, match=missing + found):
            latent_knowledge(lm, data, given)
    for options in ({"seed": 1}, {"n_shot": 4}, {"template": "w11 {}"}):
        with pytest.raises(LREError, match="trial 0, was estimated from other prompts than the datamodule draws"):
            latent_knowledge(lm, data_of(data.tokenizer, tmp_path, **options), lres)
    other = LanguageModel(tiny_model("gpt2", seed=1))
    with pytest.raises(LREError, match="was estimated from 'tiny'"):
        latent_knowledge(other, data, lres)
    origin = replace(lres["relation 0", 0].origin, identity=ANOTHER, relation="other")
    control = replace(lres["relation 0", 0], origin=origin)
    with pytest.raises(LREError, match="was estimated from 'tiny'"):
        latent_knowledge(lm, data, {**lres, ("other", 0): control})
    with pytest.raises(LREError, match="the Jacobian lens has no layer 0: it has"):
        latent_knowledge(lm, data, lres, jacobian_lens=JacobianLens({1: torch.eye(WIDTH)}, 1))
