"""What a fit measures, on toys of which numpy computes every count, and which trials and layers it chooses."""

import dataclasses
import json

import numpy as np
import pytest
import torch

import lre_lightning.training.trial as module_file
from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.prompts.trials import Trial
from lre_lightning.records.record import CAUSALITY_BASELINES, read_records
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.scoring.scores import new_record
from lre_lightning.scoring.states import TrialStates
from lre_lightning.training.module import LREModule
from tests.helpers import toy
from tests.helpers.toy import WIDTH
from tests.training import test_module

LAYERS = ("emb", 0, 1)
BETAS, RANKS = (0.0, 0.8, 1.0), (2, 5, WIDTH)
GRID = {"betas": list(BETAS), "ranks": list(RANKS), "beta": 0.8}
ALL = {"baselines": True, "line_integrals": 3}
FULL = {**GRID, "fitting": ALL}
NOT_MEASURED = {
    "faithful_baselines": {},
    "faithful_zero_shot": (),
    "zero_shot_baselines": {},
    "causal_baselines": {},
    "line_integrals": (),
}
NAMES = ("half colour", "thing colour", "wrong colour")


def random_toy():
    """A toy of which neither blocks nor any approximation of them but the LRE is trivial."""
    generator = torch.Generator().manual_seed(3)
    matrix = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) / 4
    shift = torch.randn(WIDTH, generator=generator, dtype=torch.float64) / 4
    rows = torch.randn(6, WIDTH, generator=generator, dtype=torch.float64) / 10
    rows[:4] += torch.eye(WIDTH, dtype=torch.float64)[:4]
    return toy.affine_toy(matrix, shift, rows)


@pytest.fixture(scope="module")
def lm():
    return random_toy()


@pytest.fixture(scope="module")
def relations_dir(tmp_path_factory):
    return str(toy.write_toy_relations(tmp_path_factory.mktemp("relations")))


@pytest.fixture
def data(relations_dir):
    """Make a datamodule."""

    def make(**options):
        given = {"tokenizer": toy.toy_tokenizer(), "source": relations_dir, "n_shot": 4, "trials": 2}
        return RelationDataModule(**{**given, **options})

    return make


def trainer_of(root, callbacks=(), **options):
    """With Lightning's own inference mode."""
    return test_module.trainer_of(root, callbacks, **{"inference_mode": True, **options})


def fit(root, module, data, **options):
    """Fit and return the module, its trainer still at hand."""
    trainer = trainer_of(root, **options)
    trainer.fit(module, datamodule=data)
    return module


# Numbers


@pytest.fixture(scope="module")
def fitted(lm, relations_dir, tmp_path_factory):
    """A fit with all measurements, and the trials that it scored by relation and trial."""
    root, trials, join = tmp_path_factory.mktemp("run"), {}, TrialStates.join

    def note(batches, trial, processes):
        trials[trial.relation.name, trial.number] = join(batches, trial, processes)
        return trials[trial.relation.name, trial.number]

    data = RelationDataModule(toy.toy_tokenizer(), None, relations_dir, n_shot=4, trials=2)
    module, trainer = LREModule(lm, **FULL), trainer_of(root, [ResultsTable()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrialStates, "join", note)
        trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(root / "fit.ckpt")
    return module, trials, root


class ByHand:
    """Every quantity of a trial of the toy by numpy, from the blocks' A and c, the embeddings and the unembedding."""

    def __init__(self, lm, draw):
        block = lm.module_at(0)
        self.matrix, self.shift = block.matrix.numpy(), block.shift.numpy()
        self.rows = lm.model.lm_head.weight.numpy()
        tokens = {word: lm.model.model.embed_tokens.weight[i].double().numpy() for i, word in enumerate(toy.WORDS)}
        self.train = [tokens[sample.subject] for sample in draw.train]
        self.test = {sample.subject: tokens[sample.subject] for sample in draw.test}
        self.objects = {sample.subject: toy.WORDS.index(sample.object) for sample in draw.test}

    def state(self, embedding, layer):
        """The hidden state at a layer, of what is one at the embedding."""
        for _ in range(LAYERS.index(layer)):
            embedding = self.matrix @ embedding + self.shift
        return embedding

    def output(self, value, layer):
        """O, of what is at a layer."""
        for _ in range(2 - LAYERS.index(layer)):
            value = self.matrix @ value + self.shift
        return value

    def weight(self, layer):
        return np.linalg.matrix_power(self.matrix, 2 - LAYERS.index(layer))

    def says(self, output):
        return int(np.argmax(self.rows @ output))

    def faithful(self, function, layer):
        """How often a function of s says what the LM says."""
        return sum(self.says(function(self.state(s, layer))) == self.objects[name] for name, s in self.test.items())

    def lre(self, layer, beta, rank=WIDTH):
        bias = self.output(np.zeros(WIDTH), layer)
        left, values, right = np.linalg.svd(self.weight(layer))
        weight = (left[:, :rank] * values[:rank]) @ right[:rank]
        return lambda s: beta * weight @ s + bias

    def translation(self, layer):
        shift = np.mean(
            [self.state(s, "emb") * 0 + self.output(s, "emb") - self.state(s, layer) for s in self.train], 0
        )
        return lambda s: s + shift

    def regression(self, layer):
        subjects = np.stack([self.state(s, layer) for s in self.train])
        objects = np.stack([self.output(s, "emb") for s in self.train])
        weight = np.linalg.lstsq(subjects - subjects.mean(0), objects - objects.mean(0), rcond=1e-10)[0]
        return lambda s: (s - subjects.mean(0)) @ weight + objects.mean(0)

    def inserted(self, name, other, layer):
        """What a baseline of causality puts in place of s."""
        if name == "oracle":
            return self.state(self.test[other], layer)
        return self.rows[self.objects[other]] if name == "unembedding" else self.output(self.test[other], "emb")

    def edited(self, subject, other, layer, rank):
        left, values, right = np.linalg.svd(self.weight(layer))
        difference = self.output(self.test[other], "emb") - self.output(self.test[subject], "emb")
        return self.state(self.test[subject], layer) + (right[:rank].T / values[:rank]) @ left[:, :rank].T @ difference


def scored_pairs(module):
    return [pair for pair, record in module.records.items() if record.scored]


def by_hand(lm, module, pair):
    relation = [r.name for r in module._data.relations].index(pair[0])
    return ByHand(lm, module._data.trial(module._data.schedule.index((relation, pair[1]))))


def edits_of(trial):
    """Names of the subjects and targets of a trial's edits."""
    rows, targets = trial.edited.tolist(), trial.targets.tolist()
    return [(trial.prompts[r].subject, trial.prompts[t].subject) for r, t in zip(rows, targets, strict=True)]


def test_the_grid_is_what_numpy_counts(lm, fitted):
    module, trials, _ = fitted
    assert scored_pairs(module) == [(name, trial) for name in NAMES[:2] for trial in (0, 1)]
    for pair in scored_pairs(module):
        record, hand = module.records[pair], by_hand(lm, module, pair)
        assert (record.layers, record.betas, record.ranks) == (LAYERS, BETAS, RANKS)
        assert record.tested == record.known == record.edited == len(hand.test)
        expected = tuple(tuple(hand.faithful(hand.lre(layer, beta), layer) for beta in BETAS) for layer in LAYERS)
        assert record.faithful == record.faithful_zero_shot == expected  # blocks see no context
        causal = tuple(
            tuple(
                sum(
                    hand.says(hand.output(hand.edited(subject, other, layer, rank), layer)) == hand.objects[other]
                    for subject, other in edits_of(trials[pair])
                )
                for rank in RANKS
            )
            for layer in LAYERS
        )
        assert record.causal == causal
        assert len({count for at in (*expected, *causal) for count in at}) > 3


def test_baselines_are_what_numpy_counts(lm, fitted):
    module, trials, _ = fitted
    for pair in scored_pairs(module):
        record, hand = module.records[pair], by_hand(lm, module, pair)
        faithful = {
            "linear regression": tuple(hand.faithful(hand.regression(layer), layer) for layer in LAYERS),
            "translation": tuple(hand.faithful(hand.translation(layer), layer) for layer in LAYERS),
            "identity": tuple(hand.faithful(lambda s: s, layer) for layer in LAYERS),
        }
        assert record.faithful_baselines == record.zero_shot_baselines == faithful
        assert faithful["identity"][-1] == record.known > faithful["identity"][0]
        for name in CAUSALITY_BASELINES:
            answers = [
                [
                    hand.says(hand.output(hand.inserted(name, other, layer), layer)) == hand.objects[other]
                    for _, other in edits_of(trials[pair])
                ]
                for layer in LAYERS
            ]
            assert record.causal_baselines[name] == tuple(map(sum, answers))
        assert record.causal_baselines["oracle"] == (record.edited,) * 3
        assert record.causal_baselines["object"][0] < record.edited


def test_faithfulness_by_rank_is_what_numpy_counts_at_the_chosen_layer_and_beta(lm, fitted):
    module, _, _ = fitted
    for pair in scored_pairs(module):
        record, hand = module.records[pair], by_hand(lm, module, pair)
        expected = tuple(hand.faithful(hand.lre(record.layer, 0.8, rank), record.layer) for rank in RANKS)
        assert record.faithful_low_rank == expected
        assert record.low_rank_faithfulness(WIDTH) == record.faithfulness(record.layer, 0.8)


def test_line_integrals_are_distances_between_objects_of_which_w_says_all(lm, fitted):
    module, trials, _ = fitted
    for pair in scored_pairs(module):
        record, hand = module.records[pair], by_hand(lm, module, pair)
        outputs = {name: hand.output(s, "emb") for name, s in hand.test.items()}
        distances = [np.linalg.norm(outputs[other] - outputs[one]) for one, other in edits_of(trials[pair])]
        assert len(record.line_integrals) == 3
        for exact, estimate in record.line_integrals:
            assert exact == pytest.approx(estimate, rel=1e-5)
            assert min(abs(exact - distance) for distance in distances) < 1e-9


def test_objects_that_begin_alike_have_one_first_token():
    samples = tuple(
        Sample(f"thing{i}", name) for i, name in enumerate(["red", "red green", "blue", "red", "blue white"])
    )
    relation = Relation("mixed colour", "bias", ("the {}",), (), "", "", False, samples)
    data = RelationDataModule(toy.toy_tokenizer(), source=relation, n_shot=2, selection={"first_trial": 3}, trials=1)
    record = new_record(Trial(relation, 3, samples[:2], samples[2:]), data, tested=3, known=1)
    assert (record.samples, record.range_size, record.first_tokens) == (5, 4, 2)
    assert (record.relation, record.category, record.trial, record.n_shot) == ("mixed colour", "bias", 3, 2)
    assert (record.tested, record.known, record.template, record.scored) == (3, 1, "the {}", False)


def test_records_say_where_they_come_from(lm, fitted):
    module, _, root = fitted
    for record in module.records.values():
        assert (record.model, record.n_shot, record.template, record.template_index) == (lm.name, 4, "{}", 0)
        assert (record.beta, record.reported) == (0.8, True)
        assert (record.range_size, record.first_tokens) == (4, 4)
    assert read_records([root]) == list(module.records.values())


def test_without_being_asked_a_fit_measures_the_grid_and_low_ranks_alone(lm, fitted, data, tmp_path):
    module, _, _ = fitted
    plain = fit(tmp_path, LREModule(lm, **GRID), data())
    for pair, record in module.records.items():
        assert plain.records[pair] == dataclasses.replace(record, **NOT_MEASURED)


def test_layers_that_are_given_are_joined_by_the_embedding_for_baselines(lm, fitted, data, tmp_path):
    whole, _, _ = fitted
    module = fit(tmp_path, LREModule(lm, layers=[1], **FULL), data(trials=1))
    record, reference = module.records["thing colour", 0], whole.records["thing colour", 0]
    assert record.layers == ("emb", 1)
    assert record.faithful_baselines["identity"] == tuple(reference.faithful_baselines["identity"][i] for i in (0, 2))
    assert record.causal_baselines["object"] == tuple(reference.causal_baselines["object"][i] for i in (0, 2))
    assert record.faithful_zero_shot == (reference.faithful_zero_shot[0], reference.faithful_zero_shot[2])


def test_batches_chunks_and_lightnings_own_defaults_give_the_same(lm, fitted, data, tmp_path, monkeypatch):
    whole, _, _ = fitted
    monkeypatch.setattr(lm, "chunk_size", 3)
    module = LREModule(lm, **FULL)
    fit(tmp_path, module, data(loader={"batch_size": 3}), num_sanity_val_steps=2, inference_mode=True)
    for pair, record in module.records.items():
        expected = whole.records[pair]
        assert dataclasses.replace(record, line_integrals=expected.line_integrals) == expected
        assert np.allclose(record.line_integrals, expected.line_integrals, rtol=1e-9)


def test_validation_scores_the_kept_lres_alone(lm, fitted, data, tmp_path):
    whole, _, root = fitted
    module = LREModule(lm, **FULL)
    trainer_of(tmp_path).validate(module, data(), root / "fit.ckpt", weights_only=True)
    for pair in scored_pairs(whole):
        record, before = module.records[pair], whole.records[pair]
        assert record.chosen_scores == before.chosen_scores
        assert (record.layers, record.betas, record.ranks) == ((before.layer,), (0.8,), (before.rank,))
        assert record == dataclasses.replace(record, **NOT_MEASURED, faithful_low_rank=())


# A fit that is cut short


def test_a_fit_that_is_cut_short_goes_on_to_identical_records(lm, fitted, data, tmp_path):
    whole, _, _ = fitted
    first = trainer_of(tmp_path, [ResultsTable()], max_epochs=3)
    first.fit(LREModule(lm, **FULL), datamodule=data())
    first.save_checkpoint(tmp_path / "part.ckpt")
    assert len(read_records([tmp_path])) == 3
    resumed = LREModule(random_toy(), **FULL)
    trainer = trainer_of(tmp_path, [ResultsTable()])
    trainer.fit(resumed, datamodule=data(), ckpt_path=tmp_path / "part.ckpt", weights_only=True)
    assert resumed.records == whole.records
    assert read_records([tmp_path]) == list(whole.records.values())
    assert all(torch.equal(resumed.bank.lres[pair].weight, lre.weight) for pair, lre in whole.bank.lres.items())


# An LM that is there already


def test_an_lm_in_memory_is_used_as_it_is_and_named_in_checkpoints(lm, fitted):
    module, _, root = fitted
    assert module.lm is lm
    assert module.hparams["name_or_path"] == lm.name == "LlamaForCausalLM"
    checkpoint = torch.load(root / "fit.ckpt", weights_only=True)
    assert checkpoint["hyper_parameters"]["name_or_path"] == lm.name
    assert {type(value) for value in checkpoint["hyper_parameters"].values()} <= {
        str,
        int,
        float,
        bool,
        list,
        dict,
        type(None),
    }
    assert list(checkpoint["state_dict"]) == ["bank._extra_state"]
    assert "given" not in checkpoint["hyper_parameters"]


def test_a_checkpoint_is_loaded_with_an_lm_in_memory(lm, fitted):
    module, _, root = fitted
    loaded = LREModule.load_from_checkpoint(root / "fit.ckpt", name_or_path=lm)
    assert loaded.lm is lm
    assert loaded.records == module.records
    assert loaded.hparams == module.hparams


# Trials that only choose


def counted(monkeypatch, best):
    """Replace the counts of edits in a fit: the best points by trial, or by relation and trial."""

    def count(states, answers):
        relation, trial = states.trial.relation.name, states.trial.number
        counts = torch.zeros(answers.shape[1:], dtype=torch.long)
        layer, rank = best.get((relation, trial), best.get(trial))
        if counts.shape == (1, 1):  # validation at the point that was chosen
            return counts
        counts[LAYERS.index(layer), RANKS.index(rank)] = len(states.edited)
        return counts

    monkeypatch.setattr(TrialStates, "count_causal", count)


def choices_of(module, relation="thing colour"):
    return {trial: (r.layer, r.rank) for (name, trial), r in module.records.items() if name == relation}


def test_trials_set_apart_choose_and_are_not_reported(lm, data, tmp_path, monkeypatch):
    counted(monkeypatch, {("half colour", 0): (0, 2), 0: (1, 5), 1: ("emb", 2), 2: (0, WIDTH)})
    module = LREModule(lm, **GRID, fitting={"selection_trials": 1})
    trainer = trainer_of(tmp_path, [ResultsTable()])
    trainer.fit(module, datamodule=data(trials=3))
    assert choices_of(module, "half colour") == dict.fromkeys((0, 1, 2), (0, 2))
    assert choices_of(module, "thing colour") == dict.fromkeys((0, 1, 2), (1, 5))
    assert {pair: record.reported for pair, record in module.records.items()} == {
        (name, trial): trial > 0 for name in NAMES for trial in (0, 1, 2)
    }
    assert list(module.bank.lres) == [(name, trial) for name in NAMES[:2] for trial in (1, 2)]
    assert [(lre.layer, lre.rank) for lre in module.bank.lres.values()] == [(0, 2), (0, 2), (1, 5), (1, 5)]
    files = sorted(path.relative_to(tmp_path / "lres") for path in (tmp_path / "lres").rglob("*.safetensors"))
    assert [str(path) for path in files] == [
        f"{n}_colour/trial{k}.safetensors" for n in ("half", "thing") for k in (1, 2)
    ]
    assert [record.reported for record in read_records([tmp_path])] == [False, True, True] * 3
    trainer.save_checkpoint(tmp_path / "fit.ckpt")
    again = LREModule(lm, **GRID, fitting={"selection_trials": 1})
    trainer_of(tmp_path / "again").validate(again, data(trials=3), tmp_path / "fit.ckpt", weights_only=True)
    assert {pair: (record.reported, record.scored) for pair, record in again.records.items()} == {
        (name, trial): (trial > 0, trial > 0 and name != "wrong colour") for name in NAMES for trial in (0, 1, 2)
    }


def test_without_trials_set_apart_the_first_chooses_and_is_reported(lm, data, tmp_path, monkeypatch):
    counted(monkeypatch, {("half colour", 0): (0, 2), 0: (1, 5), 1: ("emb", 2)})
    module = fit(tmp_path, LREModule(lm, **GRID), data())
    assert choices_of(module, "half colour") == dict.fromkeys((0, 1), (0, 2))
    assert choices_of(module) == dict.fromkeys((0, 1), (1, 5))
    assert all(record.reported for record in module.records.values())
    assert len(module.bank.lres) == 4


def test_several_trials_set_apart_choose_by_their_mean(lm, data, tmp_path, monkeypatch):
    counted(monkeypatch, {0: (0, 2), 1: (1, 5), 2: (1, 5), 3: ("emb", 2)})
    module = fit(
        tmp_path, LREModule(lm, **GRID, fitting={"selection_trials": 3}), data(trials=4, relations="thing colour")
    )
    assert choices_of(module) == {0: (0, 2), 1: (0, 2), 2: (1, 5), 3: (1, 5)}
    assert list(module.bank.lres) == [("thing colour", 3)]


def test_a_fit_that_goes_on_remembers_what_trials_set_apart_counted(lm, data, tmp_path, monkeypatch):
    counted(monkeypatch, {0: (0, 2), 1: (1, 5), 2: ("emb", 2)})
    options = {**GRID, "fitting": {"selection_trials": 1}}
    first = trainer_of(tmp_path, max_epochs=2)
    first.fit(LREModule(lm, **options), datamodule=data(trials=3, relations="thing colour"))
    first.save_checkpoint(tmp_path / "part.ckpt")
    resumed = LREModule(lm, **options)
    trainer_of(tmp_path).fit(
        resumed,
        datamodule=data(trials=3, relations="thing colour"),
        ckpt_path=tmp_path / "part.ckpt",
        weights_only=True,
    )
    assert choices_of(resumed) == dict.fromkeys((0, 1, 2), (0, 2))


@pytest.mark.parametrize("trials", [1, 2])
def test_trials_that_choose_must_leave_some_to_report(lm, data, tmp_path, trials):
    with pytest.raises(LREError, match=f"2 trials that choose leave none to report: there are {trials} of each"):
        fit(tmp_path, LREModule(lm, fitting={"selection_trials": 2}), data(trials=trials))


# Layers and ranks that are given


@pytest.fixture
def estimated(monkeypatch):
    """Layers at which Jacobians are computed, by relation, in the order of the fit."""
    found = []

    def note(lm, input_ids, subject_position, layers):
        found.append(tuple(layers))
        return prompt_jacobian(lm, input_ids, subject_position, layers)

    monkeypatch.setattr(module_file, "prompt_jacobian", note)
    return found


GIVEN = {"thing colour": {"layer": 1, "rank": 3}}


def test_a_given_layer_is_the_only_one_that_is_estimated(lm, data, tmp_path, estimated, fitted):
    whole, _, _ = fitted
    module = fit(tmp_path, LREModule(lm, betas=list(BETAS), beta=0.8, fitting={"choices": GIVEN}), data(trials=1))
    assert estimated == [LAYERS] * 4 + [(1,)] * 4
    record, reference = module.records["thing colour", 0], whole.records["thing colour", 0]
    assert (record.layers, record.ranks, record.layer, record.rank) == ((1,), (3,), 1, 3)
    assert (record.faithful[0], record.edited) == (reference.faithful[2], reference.edited)
    assert len(record.causal) == len(record.causal[0]) == len(record.faithful_low_rank) == 1
    lre = module.bank.lres["thing colour", 0]
    assert (lre.layer, lre.rank) == (1, 3)
    assert module.records["half colour", 0].layers == LAYERS
    assert module.records["half colour", 0].ranks == (4, 8, 16)


def test_ranks_that_are_given_join_that_of_the_choice(lm, data, tmp_path, estimated):
    options = {**GRID, "fitting": {"choices": {"thing colour": {"layer": "emb", "rank": 3}}}}
    module = fit(tmp_path, LREModule(lm, **options), data(trials=1, relations="thing colour"))
    assert estimated == [("emb",)] * 4
    record = module.records["thing colour", 0]
    assert (record.ranks, record.rank, record.layer) == ((2, 3, 5, WIDTH), 3, "emb")
    assert len(record.causal[0]) == len(record.faithful_low_rank) == 4


def test_a_given_rank_among_those_of_the_grid_comes_once(lm, data, tmp_path):
    options = {**GRID, "fitting": {"choices": {"thing colour": {"layer": 0, "rank": 5}}}}
    module = fit(tmp_path, LREModule(lm, **options), data(trials=1, relations="thing colour"))
    assert module.records["thing colour", 0].ranks == RANKS


def test_baselines_of_a_given_layer_are_at_the_embedding_too(lm, data, tmp_path, estimated, fitted):
    whole, _, _ = fitted
    module = fit(
        tmp_path, LREModule(lm, **GRID, fitting={**ALL, "choices": GIVEN}), data(trials=1, relations="thing colour")
    )
    assert estimated == [("emb", 1)] * 4
    record, reference = module.records["thing colour", 0], whole.records["thing colour", 0]
    assert (record.layers, record.layer, record.rank) == (("emb", 1), 1, 3)
    for name, counts in record.faithful_baselines.items():
        assert counts == tuple(reference.faithful_baselines[name][i] for i in (0, 2))
    # The same pairs, between whose objects the distance is the same from whatever layer on.
    assert np.allclose(record.line_integrals, reference.line_integrals, rtol=1e-5)
    assert reference.layer == "emb"


def test_trials_that_choose_are_not_reported_where_layers_are_given_either(lm, data, tmp_path):
    module = fit(tmp_path, LREModule(lm, **GRID, fitting={"choices": GIVEN, "selection_trials": 1}), data())
    reported = {pair: record.reported for pair, record in module.records.items()}
    assert reported == {(n, t): t == 1 for n in NAMES for t in (0, 1)}
    assert list(module.bank.lres) == [("half colour", 1), ("thing colour", 1)]


def test_choices_survive_in_a_checkpoint(lm, data, tmp_path):
    trainer = trainer_of(tmp_path)
    trainer.fit(LREModule(lm, **GRID, fitting={"choices": GIVEN}), datamodule=data(trials=1, relations="thing colour"))
    trainer.save_checkpoint(tmp_path / "fit.ckpt")
    checkpoint = torch.load(tmp_path / "fit.ckpt", weights_only=True)
    assert json.loads(json.dumps(checkpoint["hyper_parameters"]["fitting"]["choices"])) == GIVEN
    assert LREModule.load_from_checkpoint(tmp_path / "fit.ckpt", name_or_path=lm).fitting.choices == GIVEN


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"layer": 2, "rank": 3}, "the choice for 'of toys': layer 2 is out of range"),
        ({"layer": "last", "rank": 3}, "the choice for 'of toys': layer 'last' is out of range"),
        ({"layer": 1, "rank": 17}, "the choice for 'of toys': rank 17 is out of range: it must be 1 to 16"),
        ({"layer": 1, "rank": 0}, "the choice for 'of toys': rank 0 is out of range"),
        ({"layer": 1}, "the choice for 'of toys' lacks its 'rank': give layer and rank"),
        ({"rank": 1}, "the choice for 'of toys' lacks its 'layer': give layer and rank"),
    ],
)
def test_choices_out_of_range(lm, choice, message):
    with pytest.raises(LREError, match=message):
        LREModule(lm, fitting={"choices": {"thing colour": {"layer": 1, "rank": 3}, "of toys": choice}})


@pytest.mark.parametrize("name", ["selection_trials", "line_integrals"])
def test_numbers_below_zero_are_refused(lm, name):
    with pytest.raises(LREError, match=f"{name} must be a whole number of at least 0, got -1"):
        LREModule(lm, fitting={name: -1})


def test_choices_for_none_of_the_relations_are_refused(lm, data, tmp_path):
    module = LREModule(lm, fitting={"choices": {"of another run": {"layer": 1, "rank": 3}}})
    with pytest.raises(LREError, match="such as 'of another run', and the data has none of them, but 'half colour'"):
        fit(tmp_path, module, data())
