"""Baselines where their right answer is known in closed form, and against plain loops over whole prompts."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch

from lre_lightning.datamodules import collate
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.prompt import Prompt, make_prompts
from lre_lightning.records.record import CAUSALITY_BASELINES, FAITHFULNESS_BASELINES, TrialRecord
from lre_lightning.relations.relation import Sample
from lre_lightning.scoring.baselines import (
    Example,
    LinearRegression,
    Translation,
    causal_baselines,
    faithful_baselines,
    fit_baselines,
    identity,
)
from lre_lightning.scoring.measurements import with_baselines
from lre_lightning.scoring.scores import EncodedTrial, encode, faithfulness_predictions, score
from tests.helpers import toy
from tests.helpers.tiny_models import VOCAB, tiny_model

LAYERS = ("emb", 0, 1)
HIDDEN = toy.WIDTH
UNIT = torch.eye(HIDDEN, dtype=torch.float64)
ONE_OF_EACH = (0, 1, 2, 3)


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


# The maps themselves


def least_squares(subjects, objects, new):
    """W of the smallest norm on centred data, by numpy."""
    subject, object_ = subjects.mean(0), objects.mean(0)
    weight = np.linalg.lstsq(subjects - subject, objects - object_, rcond=1e-10)[0]
    return (new - subject) @ weight + object_


@pytest.mark.parametrize("count", [1, 2, 8, HIDDEN, HIDDEN + 1, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_regression_is_numpys_least_squares(count, dtype):
    subjects, objects, new = (normal(n, HIDDEN, seed=i, dtype=dtype) + i for i, n in enumerate((count, count, 5)))
    found = LinearRegression(subjects, objects)(new)
    assert found.dtype == dtype
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_linear_regression_recovers_an_affine_map_from_examples_that_span_the_space():
    weight, shift = normal(HIDDEN, HIDDEN, seed=1), normal(HIDDEN, seed=2)
    subjects, new = normal(HIDDEN + 1, HIDDEN, seed=3), normal(4, 2, HIDDEN, seed=4)
    regression = LinearRegression(subjects, subjects @ weight.T + shift)
    torch.testing.assert_close(regression(new), new @ weight.T + shift, rtol=1e-8, atol=1e-8)


def test_with_fewer_examples_it_fits_them_and_maps_what_is_orthogonal_to_zero():
    subjects, objects = normal(5, HIDDEN, seed=1), normal(5, HIDDEN, seed=2)
    regression = LinearRegression(subjects, objects)
    torch.testing.assert_close(regression(subjects), objects)
    orthogonal = torch.linalg.svd(subjects - subjects.mean(0)).Vh[4:]
    expected = objects.mean(0).expand(len(orthogonal), -1)
    torch.testing.assert_close(regression(subjects.mean(0) + 3 * orthogonal), expected)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_examples_without_a_difference_predict_their_mean(count, dtype):
    """Such as subjects whose last token is the same, at the embedding."""
    subjects, objects = normal(1, HIDDEN, dtype=dtype).expand(count, -1), normal(count, HIDDEN, seed=2, dtype=dtype)
    found = LinearRegression(subjects, objects)(normal(4, HIDDEN, seed=3, dtype=dtype))
    torch.testing.assert_close(found, objects.mean(0).expand(4, -1))


@pytest.mark.parametrize("count", [3, 4, 5, 7, 8, 12])
@pytest.mark.parametrize("far", [10, 1000, 10000])
def test_a_small_difference_between_examples_counts_and_rounding_does_not(count, far):
    """Examples far from zero, centred with rounding, span one direction more than their differences do."""
    subjects, new = (far + normal(n, HIDDEN, seed=seed).float() / 10 for n, seed in ((count, 1), (50, 3)))
    objects = normal(count, HIDDEN, seed=2).float()
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    found = LinearRegression(subjects, objects)(new).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * far)


def test_translation_adds_the_mean_difference():
    subjects, objects, new = normal(7, HIDDEN), normal(7, HIDDEN, seed=1), normal(3, 2, HIDDEN, seed=2)
    shift = sum(o - s for s, o in zip(subjects, objects, strict=True)) / 7
    torch.testing.assert_close(Translation(subjects, objects)(new), new + shift)
    torch.testing.assert_close(Translation(subjects[:1], objects[:1])(subjects[0]), objects[0])


def test_identity_is_s_itself():
    new = normal(3, HIDDEN)
    assert torch.equal(identity(new), new)


def test_each_baseline_is_fitted_under_its_name_on_s_of_its_layer():
    examples = [Example({"emb": normal(HIDDEN, seed=i), 1: normal(HIDDEN, seed=50 + i)}, UNIT[i]) for i in range(5)]
    objects, new = UNIT[:5], normal(3, HIDDEN, seed=99)
    for layer in ("emb", 1):
        subjects = torch.stack([example.subject[layer] for example in examples])
        maps = fit_baselines(examples, layer)
        assert tuple(maps) == FAITHFULNESS_BASELINES == ("linear regression", "translation", "identity")
        regressed = torch.from_numpy(least_squares(subjects.numpy(), objects.numpy(), new.numpy()))
        torch.testing.assert_close(maps["linear regression"](new), regressed)
        torch.testing.assert_close(maps["translation"](new), new + (objects - subjects).mean(0))
        torch.testing.assert_close(maps["identity"](new), new)


def test_an_example_of_a_half_precision_lm_is_widened():
    half = torch.arange(3, dtype=torch.bfloat16)
    example = Example.of(PromptJacobian({0: torch.eye(3)}, {0: half, "emb": 2 * half}, 4 * half))
    assert example.object.dtype == example.subject[0].dtype == example.subject["emb"].dtype == torch.float32
    assert (example.object.tolist(), example.subject["emb"].tolist()) == ([0, 4, 8], [0, 2, 4])
    wide = PromptJacobian({0: torch.eye(3)}, {0: half.double()}, half.double())
    assert Example.of(wide).object.dtype == torch.float64


# Toys whose blocks are affine maps: every baseline has another known answer.


def encoded_toy(lm, train, zero_shot=True):
    """Examples, LREs and the trial of subjects `train` under a few-shot context, and all others as test samples."""
    tokenizer = toy.toy_tokenizer()
    samples = [Sample(name, toy.OBJECTS[i % len(toy.OBJECTS)]) for i, name in enumerate(toy.SUBJECTS)]
    context, test = [samples[i] for i in train], [s for i, s in enumerate(samples) if i not in train]
    prompts, bare = (make_prompts(tokenizer, "{}", test, given) for given in (context, ()))
    examples = [
        prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS)
        for prompt in make_prompts(tokenizer, "{}", context)
    ]
    alone = batch_of(lm, bare) if zero_shot else None
    batch = collate(prompts, 0, 0, range(len(prompts)))
    encoded = encode(lm, prompts, batch.input_ids, batch.subject_position, batch.last_position, LAYERS, alone)
    lres = {
        layer: LRE(examples[0].jacobian[layer], examples[0].bias(layer), layer, Origin("toy", "", ""))
        for layer in LAYERS
    }
    return list(map(Example.of, examples)), lres, EncodedTrial.join([encoded], "key")


def batch_of(lm, prompts):
    batch = collate(prompts, 0, 0, range(len(prompts)))
    return PromptBatch(lm, batch.input_ids, batch.subject_position, batch.last_position)


def shares(lm, train=ONE_OF_EACH):
    """Every baseline's share of successes by layer, after checking that the LRE's is 1 everywhere."""
    examples, lres, trial = encoded_toy(lm, train)
    tests = len(toy.SUBJECTS) - len(train)
    counts = score(trial, lres, [1.0], [HIDDEN])
    assert counts.known == counts.edited == counts.tested == tests
    assert set(counts.faithful.flatten().tolist()) == set(counts.causal.flatten().tolist()) == {tests}
    maps = {layer: fit_baselines(examples, layer) for layer in LAYERS}
    faithful = faithful_baselines(trial, trial.subject, maps)
    assert faithful_baselines(trial, trial.zero_shot, maps) == faithful  # blocks see no context
    found = faithful | causal_baselines(trial, LAYERS)
    assert set(found) == {*FAITHFULNESS_BASELINES, *CAUSALITY_BASELINES}
    return {name: tuple(count / tests for count in by_layer) for name, by_layer in found.items()}


def everywhere(share):
    return (share,) * len(LAYERS)


NO_SHIFT, ROWS = torch.zeros(HIDDEN, dtype=torch.float64), UNIT[:6]
AT_THE_LAST_BLOCK = (0.0, 0.0, 1.0)


def test_blocks_that_do_nothing_make_every_baseline_right():
    found = shares(toy.affine_toy(UNIT, NO_SHIFT, ROWS))
    assert found == dict.fromkeys(found, everywhere(1.0))


def test_without_a_difference_between_examples_linear_regression_repeats_their_object():
    """19 of the 23 others have another object."""
    found = shares(toy.affine_toy(UNIT, NO_SHIFT, ROWS), train=(6,))
    assert found.pop("linear regression") == everywhere(5 / 23)
    assert found == dict.fromkeys(found, everywhere(1.0))


def test_blocks_that_add_a_constant():
    """The unembedding reads off s, and off anything put in its place, one decoy that the blocks take away or add."""
    shift = 5 * UNIT[4] - 5 * UNIT[5]
    found = shares(toy.affine_toy(UNIT, shift, ROWS))
    assert found == {
        "linear regression": everywhere(1.0),
        "translation": everywhere(1.0),
        "identity": AT_THE_LAST_BLOCK,
        "oracle": everywhere(1.0),
        "unembedding": AT_THE_LAST_BLOCK,
        "object": AT_THE_LAST_BLOCK,
    }


def turn():
    """The orthogonal map that takes the unit vector of each object to that of the next."""
    matrix = UNIT.clone()
    matrix[:4, :4] = UNIT[:4, :4].roll(1, 0)
    return matrix


def test_blocks_that_permute_directions():
    found = shares(toy.affine_toy(turn(), NO_SHIFT, ROWS))
    assert found == {
        "linear regression": everywhere(1.0),
        "translation": AT_THE_LAST_BLOCK,
        "identity": AT_THE_LAST_BLOCK,
        "oracle": everywhere(1.0),
        "unembedding": AT_THE_LAST_BLOCK,
        "object": AT_THE_LAST_BLOCK,
    }


@pytest.mark.parametrize(("train", "right"), [((0, 1, 4, 5), 8), ((0, 1, 2, 5), 14)])
def test_linear_regression_is_right_only_about_objects_that_its_examples_span(train, right):
    """20 subjects are left, of every object six less its examples; the LRE is right about all of them."""
    found = shares(toy.affine_toy(turn(), NO_SHIFT, ROWS), train)
    assert found["linear regression"] == everywhere(right / 20)


def test_row_of_the_unembedding_and_o_are_told_apart():
    """A decoy row that is long reads more off an object's row than that row itself, and little off its o."""
    common, rows = UNIT[6], ROWS.clone()
    rows[:4] += common
    rows[4] = 3 * common
    found = shares(toy.affine_toy(UNIT, NO_SHIFT, rows))
    assert found.pop("unembedding") == everywhere(0.0)
    assert found == dict.fromkeys(found, everywhere(1.0))


def test_a_long_row_of_the_unembedding_outweighs_what_blocks_add_and_o_does_not():
    found = shares(toy.affine_toy(UNIT, 2 * UNIT[4], 10 * ROWS))
    assert (found["unembedding"], found["object"], found["oracle"]) == (
        everywhere(1.0),
        AT_THE_LAST_BLOCK,
        everywhere(1.0),
    )


def test_only_layers_that_are_asked_for_are_counted_in_their_order():
    lm = toy.affine_toy(turn(), NO_SHIFT, ROWS)
    examples, _, trial = encoded_toy(lm, ONE_OF_EACH, zero_shot=False)
    some = {layer: fit_baselines(examples, layer) for layer in (1, 0)}
    assert faithful_baselines(trial, trial.subject[:, [2, 1]], some)["identity"] == (20, 0)


def test_without_an_edit_nothing_is_counted():
    """All test samples have one object, so that there is none to change it into."""
    lm = toy.affine_toy(UNIT, NO_SHIFT, ROWS)
    prompts = make_prompts(toy.toy_tokenizer(), "{}", [Sample(f"thing{4 * i}", "red") for i in range(6)])
    batch = collate(prompts, 0, 0, range(6))
    encoded = encode(lm, prompts, batch.input_ids, batch.subject_position, batch.last_position, LAYERS)
    trial = EncodedTrial.join([encoded], "key")
    assert (int(trial.known.sum()), len(trial.edited)) == (6, 0)
    assert causal_baselines(trial, LAYERS) == dict.fromkeys(CAUSALITY_BASELINES, (0, 0, 0))
    maps = {layer: fit_baselines([Example(dict.fromkeys(LAYERS, UNIT[0]), UNIT[0])], layer) for layer in LAYERS}
    assert faithful_baselines(trial, trial.subject, maps) == dict.fromkeys(FAITHFULNESS_BASELINES, (6, 6, 6))


# A random LM: every count against whole prompts run one by one.


@pytest.fixture(scope="module")
def random_lm():
    return LanguageModel(tiny_model("gpt2", seed=6))


def random_prompt(number, object_token):
    """Context, a subject of two tokens, none to two tokens of template."""
    ids = (1, 7, 7, 9, 20 + number % 3, 30 + number, *(3, 5)[: (number + 2) % 3])
    return Prompt("", f"s{number}", f"o{object_token}", ids, (4, 6), (object_token,))


def subject_alone(prompt):
    """The start token and the subject."""
    subject = prompt.input_ids[slice(*prompt.subject_span)]
    return Prompt("", prompt.subject, prompt.object, (1, *subject), (1, 3), prompt.object_tokens)


@pytest.fixture(scope="module")
def random_trial(random_lm):
    """Twenty-four prompts of which the LM knows twenty-two, in batches of ten."""
    said = whole(random_lm, [random_prompt(number, 0) for number in range(24)])
    prompts = [random_prompt(number, token if number > 1 else (token + 1) % VOCAB) for number, token in enumerate(said)]
    batches = []
    for start in range(0, 24, 10):
        some = prompts[start : start + 10]
        batch, alone = (collate(given, 0, 0, range(len(some))) for given in (some, [subject_alone(p) for p in some]))
        bare = PromptBatch(random_lm, alone.input_ids, alone.subject_position, alone.last_position)
        positions = batch.subject_position, batch.last_position
        batches.append(encode(random_lm, some, batch.input_ids, *positions, LAYERS, bare))
    return EncodedTrial.join(batches, "key")


def whole(lm, prompts, layer=None, value=None):
    """The LM's answers to whole prompts, with the hidden state at a layer replaced where that is given."""
    answers = []
    for prompt in prompts:

        def put(hidden, position=prompt.subject_position):
            hidden = hidden.clone()
            hidden[0, position] = value
            return hidden

        with torch.no_grad(), nullcontext() if value is None else replace(lm.module_at(layer), put):
            answers.append(int(lm.model(torch.tensor([prompt.input_ids])).logits[0, -1].argmax()))
    return answers


def state(lm, prompt, layer, position=None):
    """The hidden state of a whole prompt at the subject, or where `position` says."""
    at = prompt.subject_position if position is None else position
    with torch.no_grad():
        return lm.hidden_states(torch.tensor([prompt.input_ids]), [layer])[layer][0, at]


def test_a_trial_knows_what_the_lm_says_and_edits_lead_to_other_known_objects(random_lm, random_trial):
    said = whole(random_lm, random_trial.prompts)
    assert random_trial.known.tolist() == [p.object_token == t for p, t in zip(random_trial.prompts, said, strict=True)]
    assert random_trial.known.tolist() == [False, False] + [True] * 22
    assert 10 < len(random_trial.edited) <= 22
    for row, target in zip(random_trial.edited.tolist(), random_trial.targets.tolist(), strict=True):
        assert random_trial.known[[row, target]].all()
        assert random_trial.prompts[row].object_token != random_trial.prompts[target].object_token


@pytest.mark.parametrize("chunk_size", [None, 1, 7])
def test_causal_counts_are_those_of_a_plain_loop(random_lm, random_trial, chunk_size, monkeypatch):
    expected = {name: [0] * len(LAYERS) for name in CAUSALITY_BASELINES}
    rows = random_lm.model.lm_head.weight
    for row, aim in zip(random_trial.edited.tolist(), random_trial.targets.tolist(), strict=True):
        prompt, target = random_trial.prompts[row], random_trial.prompts[aim]
        for column, layer in enumerate(LAYERS):
            inserted = {
                "oracle": state(random_lm, target, layer),
                "unembedding": rows[target.object_token],
                "object": state(random_lm, target, 2, -1),
            }
            for name, value in inserted.items():
                expected[name][column] += whole(random_lm, [prompt], layer, value) == [target.object_token]
    monkeypatch.setattr(random_lm, "chunk_size", chunk_size)
    found = causal_baselines(random_trial, LAYERS)
    assert found == {name: tuple(counts) for name, counts in expected.items()}
    assert len({count for counts in found.values() for count in counts}) > 3


def examples_of(lm, prompts):
    return [prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS) for prompt in prompts]


def test_a_record_has_counts_few_shot_and_zero_shot(random_lm, random_trial):
    examples = list(map(Example.of, examples_of(random_lm, random_trial.prompts[4:9])))
    weights = torch.eye(16, dtype=torch.float64) + normal(3, 16, 16, seed=7) / 10
    lres = {la: LRE(w, w[0], la, Origin("", "", "")) for la, w in zip(LAYERS, weights, strict=True)}
    blank = TrialRecord("", "", 0, samples=24, range_size=9, tested=24, known=22, layers=LAYERS, betas=(0.5, 1.0))
    record = with_baselines(blank, random_trial, lres, examples)
    maps = {layer: fit_baselines(examples, layer) for layer in LAYERS}
    assert record.faithful_baselines == faithful_baselines(random_trial, random_trial.subject, maps)
    assert record.zero_shot_baselines == faithful_baselines(random_trial, random_trial.zero_shot, maps)
    assert record.zero_shot_baselines != record.faithful_baselines
    assert record.causal_baselines == causal_baselines(random_trial, LAYERS)
    alone = [(subject_alone(prompt), prompt) for prompt in random_trial.prompts[2:]]

    def faithful(lre, beta):
        answers = [beta * lre.weight @ state(random_lm, bare, lre.layer) + lre.bias for bare, _ in alone]
        return sum(
            int(random_lm.decode(answer).argmax()) == prompt.object_token
            for answer, (_, prompt) in zip(answers, alone, strict=True)
        )

    assert record.faithful_zero_shot == tuple(tuple(faithful(lre, b) for b in (0.5, 1.0)) for lre in lres.values())
    few_shot = random_trial.count_faithful(
        faithfulness_predictions(random_lm, list(lres.values()), random_trial.subject[random_trial.known], (0.5, 1.0))
    )
    assert record.faithful_zero_shot != tuple(map(tuple, few_shot.tolist()))


def test_faithful_counts_are_those_of_a_plain_loop_few_shot_and_zero_shot(random_lm, random_trial):
    examples = list(map(Example.of, examples_of(random_lm, random_trial.prompts[4:9])))
    maps = {layer: fit_baselines(examples, layer) for layer in LAYERS}
    objects = torch.stack([state(random_lm, prompt, 2, -1) for prompt in random_trial.prompts[4:9]])
    for few_shot, subject in ((True, random_trial.subject), (False, random_trial.zero_shot)):
        expected = {name: [0] * len(LAYERS) for name in FAITHFULNESS_BASELINES}
        for known, prompt in zip(random_trial.known.tolist(), random_trial.prompts, strict=True):
            if not known:
                continue
            for column, layer in enumerate(LAYERS):
                trained = torch.stack([state(random_lm, p, layer) for p in random_trial.prompts[4:9]])
                s = state(random_lm, prompt if few_shot else subject_alone(prompt), layer)
                answers = {
                    "linear regression": torch.from_numpy(least_squares(trained.numpy(), objects.numpy(), s.numpy())),
                    "translation": s + (objects - trained).mean(0),
                    "identity": s,
                }
                for name, answer in answers.items():
                    expected[name][column] += int(random_lm.decode(answer).argmax()) == prompt.object_token
        found = faithful_baselines(random_trial, subject, maps)
        assert found == {name: tuple(counts) for name, counts in expected.items()}
        assert len({count for counts in found.values() for count in counts}) > 2
    assert not torch.allclose(random_trial.zero_shot[:, 2], random_trial.subject[:, 2])
