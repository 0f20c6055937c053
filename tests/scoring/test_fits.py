"""Everything that a fit measures, on a toy of which numpy computes every count."""

import dataclasses
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch

from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures import Baselines, LineIntegrals, LowRank, Majorities, Outcomes, WholeObjects
from lre_lightning.measures.baselines import CAUSALITY
from lre_lightning.prompts.trials import Trial
from lre_lightning.records.files import read_records
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.scores import new_record, with_grid
from lre_lightning.scoring.states import TrialStates
from lre_lightning.training.module import LREModule
from tests.helpers import toy
from tests.helpers.identities import SOME
from tests.helpers.toy import WIDTH
from tests.scoring.trials import edits_of, pinv, scored, sums_of
from tests.training.test_module import trainer_of

LAYERS = ("emb", 0, 1)
BETAS, RANKS = (0.0, 0.8, 1.0), (2, 5, WIDTH)
GRID = {"betas": list(BETAS), "ranks": list(RANKS), "beta": 0.8}
FREE = (Majorities(), LowRank(), Outcomes())
FULL = {**GRID, "measures": [*FREE, Baselines(), LineIntegrals(3), WholeObjects()]}
OBJECTS = slice(toy.WORDS.index(toy.OBJECTS[0]), toy.WORDS.index(toy.OBJECTS[-1]) + 1)
NOWHERE = Origin("", SOME, "")
SCORED = [(name, trial) for name in ("half colour", "thing colour") for trial in (0, 1)]


def data_of(source, **options):
    return RelationDataModule(toy.toy_tokenizer(), source=source, n_shot=4, **{"trials": 2, **options})


def noted_fit(module, data, root):
    """Fit a module and return its trainer, and the states of its scored trials by relation and number."""
    trainer, states, run = trainer_of(root, [ResultsTable()], inference_mode=True), {}, TrialStates.run

    def note(lm, batches, trial, *args):
        return states.setdefault((trial.relation.name, trial.number), run(lm, batches, trial, *args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialStates, "run", note)
        trainer.fit(module, datamodule=data)
    return trainer, {key: found for key, found in states.items() if module.records[key].scored}


@pytest.fixture(scope="module")
def fitted(random_toy, toy_relations, tmp_path_factory):
    """A fit with all measurements, the states of its trials, and its folder."""
    module, root = LREModule(random_toy, **FULL), tmp_path_factory.mktemp("run")
    trainer, states = noted_fit(module, data_of(toy_relations), root)
    trainer.save_checkpoint(root / "fit.ckpt")
    return module, states, root


class ByHand:
    """Every quantity of a trial of the toy by numpy, from the blocks' A and c, the embeddings and the unembedding."""

    def __init__(self, lm, trial):
        block = lm.module_at(0)
        self.matrix, self.shift = block.matrix.numpy(), block.shift.numpy()
        self.rows = lm.model.lm_head.weight.numpy()
        tokens = {word: lm.model.model.embed_tokens.weight[i].double().numpy() for i, word in enumerate(toy.WORDS)}
        self.train = [tokens[sample.subject] for sample in trial.train]
        self.test = {sample.subject: tokens[sample.subject] for sample in trial.test}
        self.objects = {sample.subject: toy.WORDS.index(sample.object) for sample in trial.test}

    def state(self, embedding, layer):
        """The hidden state at a layer, of what is one at the embedding."""
        for _ in range(LAYERS.index(layer)):
            embedding = self.matrix @ embedding + self.shift
        return embedding

    def output(self, value, layer="emb"):
        """O, of what is at a layer."""
        for _ in range(2 - LAYERS.index(layer)):
            value = self.matrix @ value + self.shift
        return value

    def says(self, output, tokens=slice(None)):
        return int(np.arange(len(self.rows))[tokens][np.argmax(self.rows[tokens] @ output)])

    def faithful(self, function, layer):
        """The number of test samples of which a function of s says what the LM says."""
        return sum(self.says(function(self.state(s, layer))) == self.objects[name] for name, s in self.test.items())

    def weight(self, layer):
        return np.linalg.matrix_power(self.matrix, 2 - LAYERS.index(layer))

    def lre(self, layer, beta, rank=WIDTH):
        bias = self.output(np.zeros(WIDTH), layer)
        left, values, right = np.linalg.svd(self.weight(layer))
        weight = (left[:, :rank] * values[:rank]) @ right[:rank]
        return lambda s: beta * weight @ s + bias

    def translation(self, layer):
        shift = np.mean([self.output(s) - self.state(s, layer) for s in self.train], 0)
        return lambda s: s + shift

    def regression(self, layer):
        subjects = np.stack([self.state(s, layer) for s in self.train])
        objects = np.stack([self.output(s) for s in self.train])
        weight = np.linalg.lstsq(subjects - subjects.mean(0), objects - objects.mean(0), rcond=1e-10)[0]
        return lambda s: (s - subjects.mean(0)) @ weight + objects.mean(0)

    def causal(self, edits, layer, edit):
        """The number of edits (subject, target) after which the LM says the target's object."""
        return sum(self.says(self.output(edit(*pair), layer)) == self.objects[pair[1]] for pair in edits)

    def edited(self, subject, target, layer, rank, weight=None):
        """S after the edit by W, or by another matrix."""
        inverse = pinv(self.weight(layer) if weight is None else weight, rank)
        difference = self.output(self.test[target]) - self.output(self.test[subject])
        return self.state(self.test[subject], layer) + inverse @ difference

    def inserted(self, name, target, layer):
        """The state that a baseline of causality inserts in place of s."""
        if name == "oracle":
            return self.state(self.test[target], layer)
        return self.rows[self.objects[target]] if name == "unembedding" else self.output(self.test[target])


def outcomes_of(hand, edits, layer, beta, rank):
    """The outcome of every test sample at a point of the grid."""
    lre, targets = hand.lre(layer, beta), dict(edits)
    for sample, (name, s) in enumerate(hand.test.items()):
        after = hand.output(hand.edited(name, targets[name], layer, rank), layer)
        right = hand.says(lre(hand.state(s, layer))) == hand.objects[name]
        yield sample, int(right), int(hand.says(after) == hand.objects[targets[name]])


def test_outcomes_are_those_of_numpy_where_not_all_are_right(random_toy, fitted):
    module, all_states, _ = fitted
    record, states = module.records[SCORED[0]], all_states[SCORED[0]]
    hand, edits = ByHand(random_toy, states.trial), edits_of(states)
    lres = {
        layer: LRE(*map(torch.from_numpy, (hand.weight(layer), hand.output(np.zeros(WIDTH), layer))), layer, NOWHERE)
        for layer in LAYERS
    }
    _, said, edited = with_grid(record, states, lres, BETAS, RANKS)
    seen = set()
    for layer, beta, rank in product(LAYERS, BETAS, RANKS):
        at = replace(record, layer=layer, beta=beta, rank=rank)
        found = Outcomes().measure(scored(at, states, lres, said=said, edited=edited)).rows
        assert found == tuple(outcomes_of(hand, edits, layer, beta, rank))
        seen |= {one[1:] for one in found}
    assert len(seen) == 4


@pytest.mark.parametrize("key", SCORED, ids=str)
def test_every_count_is_that_of_numpy(random_toy, fitted, key):
    module, all_states, _ = fitted
    record, states = module.records[key], all_states[key]
    hand, edits = ByHand(random_toy, states.trial), edits_of(states)
    assert (record.layers, record.betas, record.ranks) == (LAYERS, BETAS, RANKS)
    assert record.tested == record.known == record.edited == len(edits) == len(hand.test)

    alone = sums_of(record.measures["baselines"], "zero-shot faithfulness: ")
    faithful = tuple(tuple(hand.faithful(hand.lre(layer, beta), layer) for beta in BETAS) for layer in LAYERS)
    assert record.faithful == alone.pop("LRE") == faithful  # blocks see no context
    causal = [
        [hand.causal(edits, layer, lambda *pair: hand.edited(*pair, layer, rank)) for rank in RANKS]  # noqa: B023
        for layer in LAYERS
    ]
    assert record.causal == tuple(map(tuple, causal))
    assert len({count for at in (*faithful, *causal) for count in at}) > 3
    assert record.rows_of("outcomes") == tuple(outcomes_of(hand, edits, record.layer, 0.8, record.rank))
    low_rank = tuple(hand.faithful(hand.lre(record.layer, 0.8, rank), record.layer) for rank in RANKS)
    assert sums_of(record.measures["low rank"]) == {"faithfulness": low_rank}

    baselines = {
        "linear regression": tuple(hand.faithful(hand.regression(layer), layer) for layer in LAYERS),
        "translation": tuple(hand.faithful(hand.translation(layer), layer) for layer in LAYERS),
        "identity": tuple(hand.faithful(lambda s: s, layer) for layer in LAYERS),
    }
    assert sums_of(record.measures["baselines"], "faithfulness: ") == alone == baselines
    assert baselines["identity"][-1] == record.known > baselines["identity"][0]
    inserted = sums_of(record.measures["baselines"], "causality: ")
    for name in CAUSALITY:
        counts = [
            hand.causal(edits, layer, lambda _, target: hand.inserted(name, target, layer))  # noqa: B023
            for layer in LAYERS
        ]
        assert inserted[name] == tuple(counts)
    assert inserted["oracle"] == (record.edited,) * 3
    assert inserted["object"][0] < record.edited

    # Objects are single tokens: as a whole they are what first tokens are, and in a closed set nothing else is said.
    lre, chosen = hand.lre(record.layer, 0.8), (record.layer, record.rank)
    answers = {name: hand.says(lre(hand.state(s, record.layer)), OBJECTS) for name, s in hand.test.items()}
    closed = [sum(answers[name] == hand.objects[name] for name in hand.test)]
    closed.append(sum(hand.says(lre(0 * s), OBJECTS) == hand.objects[name] for name, s in hand.test.items()))
    closed.append(sum(answers[target] == hand.objects[name] for name, target in edits))
    aims = [(hand.output(hand.edited(*pair, *chosen), record.layer), hand.objects[pair[1]]) for pair in edits]
    whole = record.measures["whole objects"].tallies
    assert (whole["closed-set faithfulness"].total, whole["closed-set causality"].total) == (
        record.known,
        record.edited,
    )
    assert tuple(tally.sums for tally in whole.values()) == (
        *(record.known, record.faithful[LAYERS.index(record.layer)][1], *closed),
        *(
            causal[LAYERS.index(record.layer)][RANKS.index(record.rank)],
            sum(hand.says(o, OBJECTS) == t for o, t in aims),
        ),
    )

    # Of an affine LM, W says everything about the distances between objects.
    outputs = {name: hand.output(s) for name, s in hand.test.items()}
    distances = [np.linalg.norm(outputs[target] - outputs[subject]) for subject, target in edits]
    assert len(record.rows_of("line integrals")) == 3
    for exact, estimate in record.rows_of("line integrals"):
        assert exact == pytest.approx(estimate, rel=1e-5)
        assert min(abs(exact - distance) for distance in distances) < 1e-9


def test_records_say_where_they_come_from(random_toy, fitted):
    module, _, root = fitted
    assert [key for key, record in module.records.items() if record.scored] == SCORED
    for record in module.records.values():
        assert (record.model, record.n_shot, record.template, record.template_index) == (random_toy.name, 4, "{}", 0)
        assert (record.beta, record.reported) == (0.8, True)
        assert (record.range_size, record.first_tokens) == (4, 4)
    assert read_records([root]) == list(module.records.values())


def test_objects_that_begin_alike_have_one_first_token():
    objects = ["red", "red green", "blue", "red", "blue white"]
    samples = tuple(Sample(f"thing{i}", name) for i, name in enumerate(objects))
    relation = Relation("mixed colour", "bias", ("the {}",), (), "", "", False, samples)
    data = RelationDataModule(toy.toy_tokenizer(), source=relation, n_shot=2, selection={"first_trial": 3}, trials=1)
    record = new_record(Trial(relation, 3, samples[:2], samples[2:]), data, tested=3, known=1)
    assert (record.samples, record.range_size, record.first_tokens) == (5, 4, 2)
    assert (record.relation, record.category, record.trial, record.n_shot) == ("mixed colour", "bias", 3, 2)
    assert (record.tested, record.known, record.template, record.scored) == (3, 1, "the {}", False)


def test_by_default_a_fit_measures_the_grid_alone(random_toy, fitted, toy_relations, tmp_path):
    whole, _, _ = fitted
    module = LREModule(random_toy, **GRID)
    trainer_of(tmp_path).fit(module, datamodule=data_of(toy_relations))
    for key, record in whole.records.items():
        assert module.records[key] == dataclasses.replace(record, measures={})


def test_the_embedding_joins_given_layers_for_baselines(random_toy, fitted, toy_relations, tmp_path):
    whole, _, _ = fitted
    module = LREModule(random_toy, layers=[1], **FULL)
    trainer_of(tmp_path).fit(module, datamodule=data_of(toy_relations, trials=1, relations="thing colour"))
    record, reference = module.records["thing colour", 0], whole.records["thing colour", 0]
    assert record.layers == ("emb", 1)
    before = sums_of(reference.measures["baselines"])
    for name, counts in sums_of(record.measures["baselines"]).items():
        assert counts == (before[name][0], before[name][2])


def test_batches_chunks_and_sanity_checks_do_not_change_the_counts(
    random_toy, fitted, toy_relations, tmp_path, monkeypatch
):
    whole, _, _ = fitted
    monkeypatch.setattr(random_toy, "chunk_size", 3)
    module, data = LREModule(random_toy, **FULL), data_of(toy_relations, trials=1, loader={"batch_size": 3})
    trainer_of(tmp_path, num_sanity_val_steps=2).fit(module, datamodule=data)
    for key, record in module.records.items():
        expected = whole.records[key]
        integrals = {name: record.measures[name] for name in record.measures if name == "line integrals"}
        assert dataclasses.replace(expected, measures={**expected.measures, **integrals}) == record
        assert np.allclose(record.rows_of("line integrals"), expected.rows_of("line integrals"), rtol=1e-9)


def test_validation_scores_the_saved_lres_alone(random_toy, fitted, toy_relations, tmp_path):
    whole, _, root = fitted
    module = LREModule(random_toy, **FULL)
    data = data_of(toy_relations, loader={"batch_size": 3})
    trainer_of(tmp_path, [ResultsTable()]).validate(module, data, root / "fit.ckpt", weights_only=True)
    assert read_records([tmp_path / "validate_results.jsonl"]) == list(module.records.values())
    assert (tmp_path / "validate_results.csv").exists()
    for key in SCORED:
        record, before = module.records[key], whole.records[key]
        assert record.chosen_scores == before.chosen_scores
        assert (record.layers, record.betas, record.ranks) == ((before.layer,), (0.8,), (before.rank,))
        for name in ("outcomes", "majorities", "whole objects"):
            assert record.measures[name] == before.measures[name]
        for name, integral in zip(record.rows_of("line integrals"), before.rows_of("line integrals"), strict=True):
            assert name == pytest.approx(integral, rel=1e-5)
        at = LAYERS.index(before.layer)
        for name, counts in sums_of(record.measures["baselines"], "causality: ").items():
            assert counts == (before.measures["baselines"].tallies[f"causality: {name}"].sums[at],)


def test_an_lm_in_memory_is_used_as_it_is_and_named_in_checkpoints(random_toy, fitted):
    module, _, root = fitted
    loaded = LREModule.load_from_checkpoint(root / "fit.ckpt", name_or_path=random_toy)
    assert module.lm is loaded.lm is random_toy
    assert module.hparams["name_or_path"] == random_toy.name == "LlamaForCausalLM"
    assert (loaded.records, loaded.hparams) == (module.records, module.hparams)
