"""Measures beyond the argmax, on a toy of which numpy computes every probability."""

import dataclasses

import numpy as np
import pytest

from lre_lightning.records.record import MEASURES, TrialRecord
from lre_lightning.scoring.states import TrialStates
from lre_lightning.training.module import LREModule
from tests.helpers import toy
from tests.scoring.test_fits import BETAS, GRID, LAYERS, RANKS, ByHand, data_of
from tests.training.test_module import trainer_of


@pytest.fixture(scope="module")
def measured(random_toy, toy_relations, tmp_path_factory):
    noted, join = [], TrialStates.join
    module = LREModule(random_toy, **GRID, fitting={"measures": True})
    data = data_of(toy_relations, trials=1, loader={"batch_size": 7})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialStates, "join", lambda *args: noted.append(join(*args)) or noted[-1])
        patch.setattr("lre_lightning.models.language_model.LOGIT_BYTES", 8 * len(toy.WORDS) * 8)  # a few rows at a time
        trainer_of(tmp_path_factory.mktemp("run")).fit(module, datamodule=data)
    return module, noted


def log_softmax(logits):
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


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
    expected = {name: np.zeros((3, {"betas": 3, "ranks": 3, "": 1}[axis])) for name, (axis, _) in MEASURES.items()}

    def logs(output):
        return log_softmax(hand.rows @ (output / np.sqrt((output**2).mean() + 1e-6)))  # with the LM's final norm

    for i, layer in enumerate(LAYERS):
        for j, beta in enumerate(BETAS):
            for s in hand.test.values():
                o, found = hand.output(s), hand.lre(layer, beta)(hand.state(s, layer))
                own, said = logs(o), logs(found)
                answer = own.argmax()
                expected["probability"][i, j] += np.exp(said[answer])
                expected["token rank"][i, j] += (said > said[answer]).sum() + (said[:answer] == said[answer]).sum()
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
    assert list(record.measures) == list(MEASURES)
    for name, sums in record.measures.items():
        np.testing.assert_allclose(sums, expected[name], rtol=2e-4, atol=2e-4, err_msg=name)
    assert record.measure("cosine", 1, 1.0) == pytest.approx(expected["cosine"][2, 2] / record.known, rel=1e-4)
    assert TrialRecord.from_plain(record.plain()) == record


def test_the_unknown_are_answered_and_compared_with_the_truth(random_toy, toy_relations, tmp_path):
    """On "half colour" renamed so that the LM knows half of its samples, what the LRE says of the others."""
    relation = toy.relation_json("some colour")
    for i, sample in enumerate(relation["samples"]):
        sample["object"] = toy.OBJECTS[(i + (i % 3 == 0)) % 4]  # a third is wrong
    import json

    (tmp_path / "some.json").write_text(json.dumps(relation))
    module = LREModule(random_toy, **GRID, fitting={"measures": True})
    data = data_of(str(tmp_path / "some.json"), trials=1)
    trainer_of(tmp_path).fit(module, datamodule=data)
    (record,) = module.records.values()
    hand, trial = ByHand(random_toy, data.trial(0)), data.trial(0)
    unknown = [
        sample
        for sample in trial.test
        if hand.says(hand.output(hand.test[sample.subject])) != hand.objects[sample.subject]
    ]
    assert record.unknown == len(unknown) > 3
    for i, layer in enumerate(LAYERS):
        for j, beta in enumerate(BETAS):
            said = {one: hand.says(hand.lre(layer, beta)(hand.state(hand.test[one.subject], layer))) for one in unknown}
            agree = sum(token == hand.says(hand.output(hand.test[one.subject])) for one, token in said.items())
            true = sum(token == hand.objects[one.subject] for one, token in said.items())
            assert record.measures["agreement on the unknown"][i][j] == agree
            assert record.measures["truth on the unknown"][i][j] == true


def test_counts_are_those_of_a_fit_without_measures(random_toy, measured, toy_relations, tmp_path):
    module, _ = measured
    plain = LREModule(random_toy, **GRID)
    trainer_of(tmp_path).fit(plain, datamodule=data_of(toy_relations, trials=1))
    for key, record in plain.records.items():
        assert dataclasses.replace(module.records[key], measures={}) == record
