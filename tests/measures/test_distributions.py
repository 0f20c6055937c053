"""Scores beyond the argmax, on a toy of which numpy computes every probability."""

import dataclasses
import json
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures.distributions import DISTRIBUTION_SCORES, NAME, Distributions
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.scores import new_record, with_grid
from lre_lightning.scoring.states import TrialStates
from lre_lightning.training.module import LREModule
from tests.helpers import toy
from tests.scoring.test_fits import BETAS, GRID, LAYERS, RANKS, ByHand, data_of
from tests.scoring.trials import scored, sums_of
from tests.training.test_module import trainer_of


@pytest.fixture(scope="module")
def measured(random_toy, toy_relations, tmp_path_factory):
    noted, run = [], TrialStates.run
    module = LREModule(random_toy, **GRID, measures=[Distributions()])
    data = data_of(toy_relations, trials=1, loader={"batch_size": 7})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialStates, "run", lambda *args: noted.append(run(*args)) or noted[-1])
        patch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", 8 * len(toy.WORDS) * 8)  # a few rows at a time
        trainer_of(tmp_path_factory.mktemp("run")).fit(module, datamodule=data)
    return module, noted


def logs_of(hand, output):
    logits = hand.rows @ (output / np.sqrt((output**2).mean() + 1e-6))  # with the LM's final norm
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def token_rank(logs, token):
    return (logs > logs[token]).sum() + (logs[:token] == logs[token]).sum()


def cosine(one, other):
    norms = np.linalg.norm(one) * np.linalg.norm(other)
    return one @ other / norms if norms else 0.0


@pytest.mark.parametrize("index", [0, 1])
def test_every_sum_is_that_of_a_loop(random_toy, measured, index):
    module, noted = measured
    states = noted[index]
    record, hand = module.records[states.trial.relation.name, 0], ByHand(random_toy, states.trial)
    pairs = zip(states.edited.tolist(), states.targets.tolist(), strict=True)
    edits = [(states.prompts[row].subject, states.prompts[target].subject) for row, target in pairs]
    expected = {name: np.zeros((3, 3 if axis else 1)) for name, (axis, _) in DISTRIBUTION_SCORES.items()}

    def logs(output):
        return logs_of(hand, output)

    for i, layer in enumerate(LAYERS):
        for j, beta in enumerate(BETAS):
            for s in hand.test.values():
                o, found = hand.output(s), hand.lre(layer, beta)(hand.state(s, layer))
                own, said = logs(o), logs(found)
                answer = own.argmax()
                rank, lm_rank = token_rank(said, answer), token_rank(own, answer)
                expected["probability"][i, j] += np.exp(said[answer])
                expected["token rank"][i, j] += rank
                expected["truth"][i, j] += rank == 0
                expected["LM's probability of the truth"][i, 0] += np.exp(own[answer]) / len(BETAS)
                expected["LM's token rank of the truth"][i, 0] += lm_rank / len(BETAS)
                expected["KL"][i, j] += (np.exp(own) * (own - said)).sum()
                expected["cosine"][i, j] += cosine(found, o)
        for subject, target in edits:
            o, wanted = hand.output(hand.test[subject]), hand.output(hand.test[target])
            way = hand.state(hand.test[target], layer) - hand.state(hand.test[subject], layer)
            weight = np.linalg.matrix_power(hand.matrix, 2 - i)
            expected["cosine of differences"][i, 0] += cosine(weight @ way, wanted - o)
            for j, rank in enumerate(RANKS):
                after = logs(hand.output(hand.edited(subject, target, layer, rank), layer))
                token, original = hand.objects[target], logs(o).argmax()
                expected["probability moved"][i, j] += np.exp(after[token]) - np.exp(logs(o)[token])
                expected["log-odds"][i, j] += after[token] - after[original]
                expected["KL after edits"][i, j] += (np.exp(logs(wanted)) * (logs(wanted) - after)).sum()
    for name in ("probability", "token rank"):
        expected[f"{name} of the truth"] = expected[name]
    found = sums_of(record.measures[NAME])
    assert list(found) == list(DISTRIBUTION_SCORES)
    for name, sums in found.items():
        squeezed = expected[name] if DISTRIBUTION_SCORES[name][0] else expected[name][:, 0]
        np.testing.assert_allclose(sums, squeezed, rtol=1e-6, atol=1e-6, err_msg=name)
    mean = record.measured(NAME, "cosine", layer=1, beta=1.0)
    assert mean == pytest.approx(expected["cosine"][2, 2] / record.known, rel=1e-4)
    assert TrialRecord.from_plain(record.plain()) == record


def test_the_unknown_are_answered_and_compared_with_the_truth(random_toy, tmp_path):
    """On "thing colour" with a third of the objects exchanged, what the LRE and the LM say of those and of all."""
    relation = toy.relation_json("some colour")
    for i, sample in enumerate(relation["samples"]):
        sample["object"] = toy.OBJECTS[(i + (i % 3 == 0)) % 4]  # a third is wrong
    (tmp_path / "some.json").write_text(json.dumps(relation))
    module = LREModule(random_toy, **GRID, measures=[Distributions()])
    data = data_of(str(tmp_path / "some.json"), trials=1)
    trainer_of(tmp_path).fit(module, datamodule=data)
    (record,) = module.records.values()
    hand = ByHand(random_toy, data.trial(0))
    known = {name for name, s in hand.test.items() if hand.says(hand.output(s)) == hand.objects[name]}
    assert record.known == len(known) > 3 < record.unknown == len(hand.test) - len(known)
    expected = {name: np.zeros((3, 3 if axis else 1)) for name, (axis, _) in DISTRIBUTION_SCORES.items()}
    for (i, layer), (j, beta), (name, s) in product(enumerate(LAYERS), enumerate(BETAS), hand.test.items()):
        token, own = hand.objects[name], logs_of(hand, hand.output(s))
        said = logs_of(hand, hand.lre(layer, beta)(hand.state(s, layer)))
        for where in [""] if name in known else ["", " on the unknown"]:
            expected[f"truth{where}"][i, j] += token_rank(said, token) == 0
            expected[f"probability of the truth{where}"][i, j] += np.exp(said[token])
            expected[f"token rank of the truth{where}"][i, j] += token_rank(said, token)
            expected[f"LM's probability of the truth{where}"][i, 0] += np.exp(own[token]) / len(BETAS)
            expected[f"LM's token rank of the truth{where}"][i, 0] += token_rank(own, token) / len(BETAS)
        expected["agreement on the unknown"][i, j] += name not in known and said.argmax() == own.argmax()
    found = sums_of(record.measures[NAME])
    for name in list(DISTRIBUTION_SCORES)[8:]:
        squeezed = expected[name] if DISTRIBUTION_SCORES[name][0] else expected[name][:, 0]
        np.testing.assert_allclose(found[name], squeezed, rtol=1e-6, atol=1e-6, err_msg=name)


def test_counts_are_those_of_a_fit_without_measures(random_toy, measured, toy_relations, tmp_path):
    module, _ = measured
    plain = LREModule(random_toy, **GRID)
    trainer_of(tmp_path).fit(plain, datamodule=data_of(toy_relations, trials=1))
    for key, record in plain.records.items():
        assert dataclasses.replace(module.records[key], measures={}) == record


def test_a_chat_lm_that_answers_otherwise_is_compared_with_the_truth():
    """A random LM, which knows no fact, in conversations that a loop tokenizes and runs as a whole."""
    lm = LanguageModel(LlamaForCausalLM(toy.toy_model().config).eval())
    lm.tokenizer = tokenizer = toy.toy_tokenizer()
    tokenizer.chat_template = (
        "{{ bos_token }}{% for one in messages %}{{ ' colour' if one.role == 'assistant' else '' }} {{ one.content }}\n"
        "{% endfor %}{{ ' colour' if add_generation_prompt else '' }}"
    )
    samples = tuple(Sample(**one) for one in toy.relation_json("thing colour")["samples"])
    relation = Relation("thing colour", "factual", ("{}",), (), "", "", False, samples)
    data = RelationDataModule(tokenizer, source=relation, n_shot=2, trials=1, prompts={"chat": True})
    trial = data.trial(0)
    states = TrialStates.run(lm, list(data.val_dataloader([0])), trial, [1])
    weight = torch.eye(toy.WIDTH) + 0.1 * torch.randn(toy.WIDTH, toy.WIDTH, generator=torch.Generator().manual_seed(0))
    lres = {1: LRE(weight, torch.zeros(toy.WIDTH), 1, Origin.of(lm, trial))}
    record, *_ = with_grid(new_record(trial, data, len(states.prompts), states.all_known), states, lres, [1.0], [2])
    found = sums_of(Distributions().measure(scored(record, states, lres)))
    expected = {name: 0.0 for name in DISTRIBUTION_SCORES}
    shown = [one for sample in trial.train for one in turns(sample)]
    for sample in trial.test:
        text = tokenizer.apply_chat_template([*shown, turns(sample)[0]], tokenize=False, add_generation_prompt=True)
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        place = int((ids[0] == toy.WORDS.index(sample.subject)).nonzero()[-1])
        with torch.no_grad():
            own = lm.model(ids).logits[0, -1].log_softmax(-1).numpy()
            said = lm.decode(lres[1](lm.hidden_states(ids, [1])[1][0, place])).log_softmax(-1).numpy()
        token = toy.WORDS.index(sample.object)
        for where in ["", " on the unknown"] if own.argmax() != token else [""]:
            expected[f"probability of the truth{where}"] += np.exp(said[token])
            expected[f"token rank of the truth{where}"] += token_rank(said, token)
            expected[f"LM's probability of the truth{where}"] += np.exp(own[token])
            expected[f"LM's token rank of the truth{where}"] += token_rank(own, token)
    assert record.unknown > record.tested / 2
    for name in (name for name in DISTRIBUTION_SCORES if "of the truth" in name):
        np.testing.assert_allclose(np.ravel(found[name]), expected[name], rtol=1e-4, err_msg=name)


def turns(sample):
    return [{"role": "user", "content": sample.subject}, {"role": "assistant", "content": sample.object}]
