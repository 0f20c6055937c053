"""Scoring in batches against the definitions, one sample, layer, beta and rank at a time."""

import dataclasses

import pytest
import torch

from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.scoring.scores import (
    EncodedTrial,
    causality_predictions,
    draw_targets,
    encode,
    faithfulness_predictions,
    score,
)
from tests.helpers.tiny_models import VOCAB, WIDTH, tiny_model

LAYERS, BETAS, RANKS = ("emb", 0, 1), (0.0, 1.0, 3.0), (1, 5, WIDTH)
SHARED = (1, 7, 7, 9)


def prompt_of(number, object_token):
    """Context, a subject of two tokens, one or two tokens of template."""
    tail = (3,) if number % 2 else (3, 5)
    ids = (*SHARED, 20 + number % 3, 30 + number, *tail)
    return Prompt(f"s{number} is", f"s{number}", f"o{object_token}", ids, (4, 6), (object_token,))


@pytest.fixture(scope="module")
def lm():
    return LanguageModel(tiny_model("gpt2"))


@pytest.fixture(scope="module")
def lres():
    generator = torch.Generator().manual_seed(1)

    def lre(layer):
        weight = torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64)
        bias = torch.randn(WIDTH, generator=generator, dtype=torch.float64)
        return LRE(weight, bias, layer, Origin("", "", ""))

    return {layer: lre(layer) for layer in LAYERS}


def batch_of(lm, prompts, layers=LAYERS):
    length = max(len(prompt.input_ids) for prompt in prompts)
    ids = torch.tensor([[*prompt.input_ids, *[0] * (length - len(prompt.input_ids))] for prompt in prompts])
    subject = torch.tensor([prompt.subject_position for prompt in prompts])
    return encode(lm, prompts, ids, subject, torch.tensor([prompt.last_position for prompt in prompts]), layers)


def answers(lm, count):
    """What the LM itself says, so that some prompts can be made known."""
    return batch_of(lm, [prompt_of(number, 0) for number in range(count)]).predicted.tolist()


@pytest.fixture(scope="module")
def prompts(lm):
    """Twelve prompts of which the LM knows ten."""
    said = answers(lm, 12)
    assert len(set(said)) > 2
    return [prompt_of(number, token if number > 1 else (token + 1) % VOCAB) for number, token in enumerate(said)]


def plain_states(lm, prompt, layer):
    with torch.no_grad():
        return lm.hidden_states(torch.tensor([prompt.input_ids]), [layer])[layer][0]


def test_known_facts_are_those_that_the_lm_answers(lm, prompts):
    encoded = batch_of(lm, prompts)
    assert encoded.known.tolist() == [False, False] + [True] * 10
    for row, prompt in enumerate(prompts):
        assert encoded.predicted[row] == lm.decode(plain_states(lm, prompt, 2)[-1]).argmax()


def test_faithfulness_predictions_follow_the_definition(lm, lres, prompts):
    found = faithfulness_predictions(lm, list(lres.values()), batch_of(lm, prompts).subject, BETAS)
    assert found.shape == (12, 3, 3)
    for row, prompt in enumerate(prompts):
        for i, (layer, lre) in enumerate(lres.items()):
            subject = plain_states(lm, prompt, layer)[prompt.subject_position]
            for j, beta in enumerate(BETAS):
                expected = lm.decode(beta * lre.weight @ subject + lre.bias).argmax()
                assert found[row, i, j] == expected
    assert len(set(found.flatten().tolist())) > 5


def test_causality_predictions_follow_the_definition(lm, lres, prompts, monkeypatch):
    encoded = batch_of(lm, prompts)
    target = encoded.object.flip(0)
    monkeypatch.setattr(lm, "chunk_size", 5)
    found = causality_predictions(encoded.runs, list(lres.values()), encoded.subject, target - encoded.object, RANKS)
    for row, prompt in enumerate(prompts):
        for i, (layer, lre) in enumerate(lres.items()):
            left, values, right = torch.linalg.svd(lre.weight)
            for j, rank in enumerate(RANKS):
                inverse = right[:rank].T @ torch.diag(1 / values[:rank]) @ left[:, :rank].T
                delta = inverse @ (target[row] - encoded.object[row])

                def put(hidden, delta=delta, position=prompt.subject_position):
                    hidden = hidden.clone()
                    hidden[0, position] += delta
                    return hidden

                with torch.no_grad(), replace(lm.module_at(layer), put):
                    expected = lm.decode(lm(torch.tensor([prompt.input_ids]))[0, -1]).argmax()
                assert found[row, i, j] == expected
    assert len(set(found.flatten().tolist())) > 3


def test_counts_do_not_depend_on_batches_or_chunks(lm, prompts, monkeypatch):
    estimator = LREEstimator(LAYERS)
    for prompt in prompts[2:5]:
        estimator.update(prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS))
    lres = {layer: LRE(estimator.weight(layer), estimator.bias(layer), layer, Origin("", "", "")) for layer in LAYERS}
    betas = (0.0, 40.0, -40.0)
    whole = score(EncodedTrial.join([batch_of(lm, prompts)], "key"), lres, betas, RANKS)
    batches = [batch_of(lm, prompts[i : i + 5]) for i in (0, 5, 10)]
    monkeypatch.setattr(lm, "chunk_size", 3)
    parts = score(EncodedTrial.join(batches, "key"), lres, betas, RANKS)
    assert (whole.tested, whole.known) == (12, 10)
    for field in dataclasses.fields(whole):
        left, right = getattr(whole, field.name), getattr(parts, field.name)
        assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right
    assert whole.faithful.sum() > 0
    assert len(set(whole.faithful.flatten().tolist())) > 1


def test_a_trial_holds_all_its_batches_and_what_edits_should_lead_to(lm, prompts):
    batches = [batch_of(lm, prompts[i : i + 5]) for i in (0, 5, 10)]
    trial = EncodedTrial.join(batches, "key")
    assert trial.prompts == tuple(prompts)
    assert trial.zero_shot is None
    for row, prompt in enumerate(prompts):
        torch.testing.assert_close(trial.object[row], plain_states(lm, prompt, 2)[-1])
        for column, layer in enumerate(LAYERS):
            expected = plain_states(lm, prompt, layer)[prompt.subject_position]
            torch.testing.assert_close(trial.subject[row, column], expected)
    targets = targets_of(prompts, trial.known.tolist())
    assert trial.edited.tolist() == [row for row, target in enumerate(targets) if target is not None]
    assert trial.targets.tolist() == [target for target in targets if target is not None]
    assert trial.wanted.tolist() == [prompts[target].object_token for target in targets if target is not None]
    assert trial.edited.tolist()[0] == 2  # the first two are not known: edits are not counted from the first sample on
    assert len(trial.runs) == 12
    torch.testing.assert_close(trial.edited_runs.hidden_states([1])[1], trial.object[trial.edited])
    assert EncodedTrial.join(batches, "other key").targets.tolist() != trial.targets.tolist()


def test_zero_shot_states_of_all_batches_are_joined_in_their_order(lm, prompts):
    alone = [
        dataclasses.replace(prompt, input_ids=(1, *prompt.input_ids[4:6]), subject_span=(1, 3)) for prompt in prompts
    ]
    batches = [
        dataclasses.replace(batch_of(lm, prompts[i : i + 5]), zero_shot=batch_of(lm, alone[i : i + 5]).subject)
        for i in (0, 5, 10)
    ]
    found = EncodedTrial.join(batches, "key").zero_shot
    for row, prompt in enumerate(alone):
        torch.testing.assert_close(found[row, 2], plain_states(lm, prompt, 1)[2])


def test_answers_are_counted_against_those_of_the_lm_and_of_edits(lm, prompts):
    trial = EncodedTrial.join([batch_of(lm, prompts)], "key")
    generator = torch.Generator().manual_seed(0)
    right, aims = trial.predicted[trial.known], trial.wanted
    wrong = [torch.rand(len(values), 2, 3, generator=generator) < 0.4 for values in (right, aims)]
    faithful, causal = (v[:, None, None] + w.long() for v, w in zip((right, aims), wrong, strict=True))
    assert trial.count_faithful(faithful).tolist() == (~wrong[0]).sum(0).tolist()
    assert trial.count_causal(causal).tolist() == (~wrong[1]).sum(0).tolist()
    assert int(trial.count_faithful(faithful[:, 1, 2])) == int((~wrong[0])[:, 1, 2].sum())


def test_a_trial_of_which_nothing_is_known_counts_nothing(lm, lres, prompts):
    unknown = [dataclasses.replace(prompt, object_tokens=((prompt.object_token + 7) % VOCAB,)) for prompt in prompts]
    trial = EncodedTrial.join([batch_of(lm, unknown)], "key")
    counts = score(trial, lres, BETAS, RANKS)
    assert (counts.tested, counts.known, counts.edited) == (12, 0, 0)
    assert counts.faithful.tolist() == counts.causal.tolist() == [[0, 0, 0]] * 3


def targets_of(prompts, known, key="key", sources=None):
    tokens = [prompt.object_token if is_known else -1 for prompt, is_known in zip(prompts, known, strict=True)]
    return draw_targets(prompts, tokens, key, range(len(prompts)) if sources is None else sources)


def test_targets_are_known_samples_with_another_object(prompts):
    known = [False, False] + [True] * 10
    targets = targets_of(prompts, known)
    assert targets[:2] == [None, None]
    for source, target in enumerate(targets[2:], start=2):
        assert target is not None
        assert known[target]
        assert prompts[target].object_token != prompts[source].object_token
    assert targets_of(prompts, known) == targets
    assert targets_of(prompts, known, "other key") != targets


def test_targets_do_not_depend_on_the_order_of_samples(prompts):
    known = [True] * len(prompts)
    forward, backward = targets_of(prompts, known), targets_of(prompts[::-1], known)
    subjects = {prompts[i].subject: prompts[t].subject for i, t in enumerate(forward)}
    assert subjects == {prompts[::-1][i].subject: prompts[::-1][t].subject for i, t in enumerate(backward)}


def test_with_several_templates_a_target_is_asked_for_with_the_same_one(prompts):
    thrice = [prompt for prompt in prompts for _ in range(3)]
    tokens = [prompt.object_token for prompt in thrice]
    alone = targets_of(prompts, [True] * len(prompts))
    targets = draw_targets(thrice, tokens, "key", range(len(thrice)), templates=3)
    assert targets == [3 * alone[i // 3] + i % 3 for i in range(len(thrice))]
    tokens[1] = -1  # not known with the second template
    for source, target in enumerate(draw_targets(thrice, tokens, "key", range(len(thrice)), templates=3)):
        assert target != 1
        if targets[source] not in (1, None) and source != 1:
            assert target == targets[source]


def test_without_another_object_there_is_no_target(prompts):
    same = [dataclasses.replace(prompt, object_tokens=(5,)) for prompt in prompts]
    assert targets_of(same, [True] * len(same)) == [None] * len(same)


def test_targets_of_some_samples_are_those_that_they_have_among_all(prompts):
    known = [False] + [True] * (len(prompts) - 1)
    targets = targets_of(prompts, known)
    assert targets_of(prompts, known, sources=[7, 0, 3]) == [targets[7], None, targets[3]]
