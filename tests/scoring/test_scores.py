"""Scores computed in batches against their definitions, one sample, layer, beta and rank at a time."""

import dataclasses
import hashlib

import pytest
import torch

from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures import LowRank, Majorities
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import collate
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import Sample
from lre_lightning.scoring.scores import (
    causality_predictions,
    faithfulness_predictions,
    with_grid,
)
from lre_lightning.scoring.states import TrialStates, draw_key, draw_targets, knows
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model
from tests.scoring.trials import answer, normal, prompts_for, scored, state, states_of, sums_of, trial_of

LAYERS, BETAS, RANKS = ("emb", 0, 1), (0.0, 40.0, -40.0), (1, 5, WIDTH)
KNOWN = [False, False] + [True] * 10


@pytest.fixture(scope="module")
def lm():
    return LanguageModel(tiny_model("gpt2", seed=6))


@pytest.fixture(scope="module")
def lres():
    tensors = ((normal(WIDTH, WIDTH, seed=seed), normal(WIDTH, seed=10 + seed)) for seed in range(3))
    return {layer: LRE(*pair, layer, Origin("", SOME, "")) for layer, pair in zip(LAYERS, tensors, strict=True)}


@pytest.fixture(scope="module")
def prompts(lm):
    return prompts_for(lm, 12)


def record_of(**fields):
    return TrialRecord("toy", "", 0, **{"samples": 12, "range_size": 12, "tested": 12, "known": 10} | fields)


def test_the_grid_is_that_of_plain_loops(lm, prompts, monkeypatch):
    estimator = LREEstimator(LAYERS)
    for prompt in prompts[2:5]:
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS))
    lres = {layer: LRE(weight, bias, layer, Origin("", SOME, "")) for layer, weight, bias in estimator.means()}
    targets = targets_of(prompts)
    said, edited = torch.zeros(2, 10, len(LAYERS), 3, dtype=torch.long)
    for row, prompt in enumerate(prompts[2:]):
        difference = state(lm, prompts[targets[row + 2]], 2, -1) - state(lm, prompt, 2, -1)
        for i, (layer, lre) in enumerate(lres.items()):
            subject = state(lm, prompt, layer)
            left, values, right = torch.linalg.svd(lre.weight)
            for j, (beta, rank) in enumerate(zip(BETAS, RANKS, strict=True)):
                said[row, i, j] = lm.decode(beta * lre.weight @ subject + lre.bias).argmax()
                inverse = right[:rank].T @ torch.diag(1 / values[:rank]) @ left[:, :rank].T
                edited[row, i, j] = answer(lm, prompt, layer, subject + inverse @ difference)
    known, operators = states_of(lm, prompts[2:], LAYERS), list(lres.values())
    differences = torch.stack([state(lm, prompts[target], 2, -1) for target in targets[2:]]) - known.object
    assert torch.equal(faithfulness_predictions(lm, operators, known.subject, BETAS), said)
    assert torch.equal(causality_predictions(known.runs, operators, known.subject, differences, RANKS), edited)
    own = torch.tensor([prompt.object_token for prompt in prompts])
    aims = own[targets[2:]]
    right = ((said == own[2:, None, None]).sum(0), (edited == aims[:, None, None]).sum(0))
    for chunk_size, size in ((None, 100), (3, 5)):
        monkeypatch.setattr(lm, "chunk_size", chunk_size)
        record, *_ = with_grid(record_of(), states_of(lm, prompts, LAYERS, size=size), lres, BETAS, RANKS)
        assert (record.layers, record.betas, record.ranks, record.edited) == (LAYERS, BETAS, RANKS, 10)
        assert (record.faithful, record.causal) == tuple(tuple(map(tuple, counts.tolist())) for counts in right)
    assert len({count for row in (*record.faithful, *record.causal) for count in row}) > 2


def test_w_cut_down_to_a_rank_follows_the_definition(lm, lres, prompts):
    """The beta is the record's, not the LRE's; the LM's answers are made those at rank 3 for every other prompt."""
    record = record_of(layers=LAYERS, ranks=(1, 3, WIDTH), beta=1.5, layer=0)
    lre = dataclasses.replace(lres[0], beta=7.0)
    left, values, right = torch.linalg.svd(lre.weight)
    said = torch.zeros(12, 3, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        for column, rank in enumerate(record.ranks):
            low = sum(values[i] * left[:, i] * (right[i] @ state(lm, prompt, 0)) for i in range(rank))
            said[row, column] = lm.decode(1.5 * low + lre.bias).argmax()
    predicted = torch.where(torch.arange(12) % 2 == 0, said[:, 1], VOCAB)
    expected = (said == predicted[:, None])[2:].sum(0).tolist()
    states = dataclasses.replace(states_of(lm, prompts, LAYERS), predicted=predicted)
    assert sums_of(LowRank().measure(scored(record, states, {0: lre}))) == {"faithfulness": tuple(expected)}
    assert expected[1] == 5 > min(expected)


def test_a_trial_without_known_prompts_counts_nothing(lm, lres, prompts):
    unknown = [dataclasses.replace(prompt, object_tokens=((prompt.object_token + 7) % VOCAB,)) for prompt in prompts]
    states = states_of(lm, unknown, LAYERS)
    record, *_ = with_grid(record_of(known=0), states, lres, BETAS, RANKS)
    assert (states.all_known, record.edited) == (0, 0)
    assert record.faithful == record.causal == ((0, 0, 0),) * 3


# The states of a trial


def test_a_trial_holds_the_states_of_all_its_batches(lm, prompts):
    states = states_of(lm, prompts, LAYERS, size=5)
    assert (states.prompts, states.samples, states.zero_shot) == (tuple(prompts), tuple(range(12)), None)
    assert (states.known.tolist(), states.all_known) == (KNOWN, 10)
    for row, prompt in enumerate(prompts):
        assert states.predicted[row] == answer(lm, prompt)
        torch.testing.assert_close(states.object[row], state(lm, prompt, 2, -1))
        for column, layer in enumerate(LAYERS):
            torch.testing.assert_close(states.subject[row, column], state(lm, prompt, layer))
    targets = targets_of(prompts, key="toy\x1f0")
    assert states.edited.tolist() == states.all_edited == list(range(2, 12))
    assert states.targets.tolist() == targets[2:]
    assert states.wanted.tolist() == [prompts[target].object_token for target in targets[2:]]
    torch.testing.assert_close(states.target_objects, states.object[states.targets])
    torch.testing.assert_close(states.edited_runs.hidden_states([1])[1], states.object[states.edited])
    assert states_of(lm, prompts, LAYERS, number=1).targets.tolist() != targets[2:]


def test_copies_that_only_pad_a_batch_are_left_out(lm, prompts):
    batch = collate([prompts[i] for i in (4, 4, 1)], 0, 0, [4, 4, 1], weights=[1, 0, 1])
    states = TrialStates.run(lm, [batch], trial_of(prompts), LAYERS, alone=[batch])
    assert (states.samples, states.prompts) == ((4, 1), (prompts[4], prompts[1]))
    assert states.known.tolist() == knows(lm, batch).tolist() == [True, False]
    assert len(states.runs) == len(states.subject) == len(states.zero_shot) == 2
    empty = TrialStates.run(lm, [], trial_of(prompts), LAYERS, alone=[])
    assert empty.zero_shot.shape == empty.subject.shape == (0, 3, WIDTH)


# Targets of edits


def targets_of(prompts, known=KNOWN, key="toy\x1f0", sources=range(12)):
    tokens = [prompt.object_token if is_known else -1 for prompt, is_known in zip(prompts, known, strict=True)]
    return draw_targets(prompts, tokens, key, sources)


def test_a_trial_ends_with_the_sample_that_makes_enough_known(lm, lres, prompts):
    trial = trial_of(prompts)
    order = sorted(prompts, key=lambda one: hashlib.sha256(f"{draw_key(trial)}\x1f{one.subject}".encode()).digest())
    places = [place for place, one in enumerate(order) if KNOWN[prompts.index(one)]]
    kept = [one for one in prompts if one in order[: places[3] + 1]]
    batches = [collate(prompts[i : i + 5], 0, 0, range(i, min(i + 5, 12))) for i in (0, 5, 10)]
    states = TrialStates.run(lm, batches, trial, LAYERS, max_known=4)
    assert states.prompts == tuple(kept)
    assert states.all_known == 4
    expected = states_of(lm, kept, LAYERS)
    for name in ("subject", "object", "predicted", "known"):  # other prompts beside them change the last digits
        torch.testing.assert_close(getattr(states, name), getattr(expected, name))
    record, *_ = with_grid(record_of(), states, lres, BETAS, RANKS)
    assert record.faithful == with_grid(record_of(), expected, lres, BETAS, RANKS)[0].faithful
    assert all(states.tokens[states.targets] != states.tokens[torch.tensor(states.samples)[states.edited]])
    assert TrialStates.run(lm, batches, trial, LAYERS, max_known=99).all_known == 10


def test_targets_are_known_samples_with_another_object(prompts):
    targets = targets_of(prompts)
    assert targets[:2] == [None, None]
    for source, target in enumerate(targets[2:], start=2):
        assert KNOWN[target]
        assert prompts[target].object_token != prompts[source].object_token
    assert targets_of(prompts, sources=[7, 0, 3]) == [targets[7], None, targets[3]]
    assert targets_of(prompts, key="other") != targets
    same = [dataclasses.replace(prompt, object_tokens=(5,)) for prompt in prompts]
    assert targets_of(same) == [None] * 12


def test_targets_do_not_depend_on_the_order_of_samples(prompts):
    everything = [True] * 12
    backward = {
        prompts[::-1][i].subject: prompts[::-1][t].subject for i, t in enumerate(targets_of(prompts[::-1], everything))
    }
    assert {prompts[i].subject: prompts[t].subject for i, t in enumerate(targets_of(prompts, everything))} == backward


def test_with_several_templates_a_target_is_asked_with_the_same_one(prompts):
    thrice = [prompt for prompt in prompts for _ in range(3)]
    tokens = [prompt.object_token for prompt in thrice]
    alone = targets_of(prompts, [True] * 12)
    targets = draw_targets(thrice, tokens, "toy\x1f0", range(36), templates=3)
    assert targets == [3 * alone[i // 3] + i % 3 for i in range(36)]
    tokens[1] = -1  # not known with the second template
    for source, target in enumerate(draw_targets(thrice, tokens, "toy\x1f0", range(36), templates=3)):
        assert target != 1
        if targets[source] not in (1, None) and source != 1:
            assert target == targets[source]


def test_majorities_are_the_known_samples_with_the_most_frequent_first_token(lm, prompts):
    train = [Sample("a", "x"), Sample("b", "y"), Sample("c", "y")]
    states = states_of(lm, prompts, LAYERS, train=train)
    first = {prompt.object: prompt.object_token for prompt in prompts}
    of_data = max(first.values(), key=[prompt.object_token for prompt in prompts].count)
    for of_training in sorted(set(first.values())):
        tokens = {name: (token, 1) for name, token in first.items()} | {"x": (-5,), "y": (of_training,)}
        found = sums_of(Majorities().measure(scored(record_of(), states, tokens=tokens)), "majority of ")
        said = [prompt.object_token for prompt, known in zip(prompts, KNOWN, strict=True) if known]
        assert found == {"training": said.count(of_training), "data": said.count(of_data)}
    assert found["data"] >= 2
