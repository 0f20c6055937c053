"""LREs on every relation's test samples, on a toy of which numpy computes every count."""

import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import make_prompt
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.cross import CONTROLS, cross_scores, shuffled
from tests.helpers.tiny_models import tiny_model
from tests.lens.test_reading import random_lre, words
from tests.scoring.test_fits import SCORED, ByHand, data_of, fitted  # noqa: F401
from tests.scoring.trials import edits_of


def test_every_count_is_that_of_numpy_and_the_diagonal_that_of_the_fit(random_toy, fitted, toy_relations):  # noqa: F811
    module, all_states, _ = fitted
    found = cross_scores(random_toy, data_of(toy_relations), module.lres, trials=2)
    scores = {(one.relation, one.trial, one.reader): one for one in found}
    readers = {name for name, _ in SCORED}
    assert set(scores) == {(*key, reader) for key in SCORED for reader in (*readers, *CONTROLS)}
    for (relation, trial, reader), one in scores.items():
        states, record = all_states[relation, trial], module.records[relation, trial]
        hand, own = ByHand(random_toy, states.trial), module.lres[relation, trial]
        lre = module.lres[reader, trial] if reader in readers else own
        weight, bias = lre.weight.double().numpy(), lre.bias.double().numpy()
        weight, bias = {"W without b": (weight, 0 * bias), "b alone": (0 * weight, bias)}.get(reader, (weight, bias))
        assert (one.known, one.edited, one.category) == (record.known, record.edited, record.category)
        assert one.faithful == hand.faithful(lambda s: lre.beta * weight @ s + bias, lre.layer)  # noqa: B023
        if reader == relation:
            assert (one.faithfulness, one.causality) == record.chosen_scores
        if reader == "b alone":
            assert one.causal == 0
        elif reader != "shuffled examples":
            edits, how = edits_of(states), (lre.layer, lre.rank, weight)
            assert one.causal == hand.causal(edits, lre.layer, lambda *pair: hand.edited(*pair, *how))  # noqa: B023


def test_shuffled_examples_have_the_object_of_the_next_one():
    lm = LanguageModel(tiny_model("gpt2"))
    lm.tokenizer = words()
    samples = tuple(Sample(f"w{i}", f"w{i + 40}") for i in range(10, 16))
    relation = Relation("toy", "", ("{} w7",), (), "", "", False, samples)
    data = RelationDataModule(lm.tokenizer, source=relation, n_shot=3, trials=1)
    trial, own = data.trial(0), random_lre(lm, "toy", 0)
    train = trial.train
    exchanged = [Sample(one.subject, other.object) for one, other in zip(train, train[1:] + train[:1], strict=True)]
    estimator = LREEstimator([1])
    for i, sample in enumerate(exchanged):
        prompt = make_prompt(lm.tokenizer, relation.template, sample, exchanged[:i] + exchanged[i + 1 :])
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, [1]))
    found = shuffled(lm, data, trial, own)
    assert torch.equal(found.weight, estimator.weight(1))
    assert torch.equal(found.bias, estimator.bias(1))
    assert (found.layer, found.beta, found.origin) == (own.layer, own.beta, own.origin)


@pytest.mark.parametrize(("n", "shots", "same"), [(1, None, False), (3, 0, False), (3, None, True)])
def test_where_examples_cannot_differ_they_are_not_shuffled(n, shots, same):
    lm = LanguageModel(tiny_model("gpt2"))
    lm.tokenizer = words()
    samples = tuple(Sample(f"w{i}", "w50" if same else f"w{i + 40}") for i in range(10, 16))
    relation = Relation("toy", "", ("{} w7",), (), "", "", False, samples)
    data = RelationDataModule(lm.tokenizer, source=relation, n_shot=n, trials=1, prompts={"shots": shots})
    assert shuffled(lm, data, data.trial(0), random_lre(lm, "toy", 0)) is None


def test_relations_without_an_lre_are_an_error(random_toy, toy_relations):
    with pytest.raises(LREError, match="no relation of the data has an LRE: give the relations and the seed"):
        cross_scores(random_toy, data_of(toy_relations), {})
