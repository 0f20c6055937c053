"""Baselines whose right answer is known in closed form, and against plain loops over whole prompts."""

import numpy as np
import pytest
import torch

from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt, make_prompts
from lre_lightning.records.record import CAUSALITY_BASELINES, FAITHFULNESS_BASELINES, TrialRecord
from lre_lightning.relations.relation import Sample
from lre_lightning.runs.processes import ONE_PROCESS
from lre_lightning.scoring.baselines import (
    CAUSALITY,
    FAITHFULNESS,
    Examples,
    identity,
    linear_regression,
    translation,
    with_baselines,
)
from lre_lightning.scoring.scores import with_grid
from tests.helpers import toy
from tests.helpers.tiny_models import VOCAB, tiny_model
from tests.scoring.trials import answer, normal, state, states_of

LAYERS = ("emb", 0, 1)
HIDDEN = toy.WIDTH
UNIT = torch.eye(HIDDEN, dtype=torch.float64)
BLANK = TrialRecord("toy", "", 0, samples=24, range_size=4, tested=24, known=24, layers=LAYERS, betas=(0.5, 1.0))


def test_results_declare_the_names_of_all_baselines():
    assert tuple(FAITHFULNESS) == FAITHFULNESS_BASELINES
    assert tuple(CAUSALITY) == CAUSALITY_BASELINES


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
    found = linear_regression(subjects, objects)(new)
    assert found.dtype == dtype
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_examples_without_a_difference_predict_their_mean(count, dtype):
    """For example subjects with the same last token, at the embedding."""
    subjects, objects = normal(1, HIDDEN, dtype=dtype).expand(count, -1), normal(count, HIDDEN, seed=2, dtype=dtype)
    found = linear_regression(subjects, objects)(normal(4, HIDDEN, seed=3, dtype=dtype))
    torch.testing.assert_close(found, objects.mean(0).expand(4, -1))


@pytest.mark.parametrize("count", [3, 5, 8, 12])
@pytest.mark.parametrize("far", [10, 10000])
def test_a_small_difference_between_examples_counts_and_rounding_does_not(count, far):
    """Examples far from zero, centred with rounding, span one direction more than their differences do."""
    subjects, new = (far + normal(n, HIDDEN, seed=seed).float() / 10 for n, seed in ((count, 1), (50, 3)))
    objects = normal(count, HIDDEN, seed=2).float()
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    found = linear_regression(subjects, objects)(new).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * far)


def test_translation_adds_the_mean_difference_and_identity_nothing():
    subjects, objects, new = normal(7, HIDDEN), normal(7, HIDDEN, seed=1), normal(3, 2, HIDDEN, seed=2)
    shift = sum(o - s for s, o in zip(subjects, objects, strict=True)) / 7
    torch.testing.assert_close(translation(subjects, objects)(new), new + shift)
    assert torch.equal(identity(subjects, objects)(new), new)


def test_examples_are_gathered_in_draw_order_and_widened():
    lm = LanguageModel(tiny_model("gpt2", torch.bfloat16))
    examples, half = Examples(lm, ["emb", 0]), torch.arange(HIDDEN, dtype=torch.bfloat16)
    assert examples.gather(0, ONE_PROCESS).shape == (3, 0, HIDDEN)
    for place in (2, 0, 1):
        examples.add(place, PromptJacobian({}, {0: half, "emb": 2 * half}, place * half))
    found = examples.gather(3, ONE_PROCESS)
    assert found.dtype == torch.float32
    expected = [[factor * half.float() for factor in factors] for factors in ((2, 2, 2), (1, 1, 1), (0, 1, 2))]
    assert torch.equal(found, torch.stack([torch.stack(rows) for rows in expected]))


# Toys whose blocks are affine maps: every baseline has another known answer.


def fractions(lm, train=(0, 1, 2, 3)):
    """Every baseline's fraction of successes by layer, after checking that the LRE's is 1 everywhere.

    Subjects `train` are the examples under a few-shot context, and all others are test samples.
    """
    tokenizer = toy.toy_tokenizer()
    samples = [Sample(name, toy.OBJECTS[i % len(toy.OBJECTS)]) for i, name in enumerate(toy.SUBJECTS)]
    context, test = [samples[i] for i in train], [s for i, s in enumerate(samples) if i not in train]
    prompts, alone = (make_prompts(tokenizer, "{}", test, given) for given in (context, ()))
    examples, lres = Examples(lm, LAYERS), {}
    for place, prompt in enumerate(make_prompts(tokenizer, "{}", context)):
        example = prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS)
        examples.add(place, example)
        lres = {layer: LRE(example.jacobian[layer], example.bias(layer), layer, Origin("", "", "")) for layer in LAYERS}
    states = states_of(lm, prompts, LAYERS, alone=alone, train=context)
    tests = len(test)
    record = with_baselines(with_grid(BLANK, states, lres, [1.0], [HIDDEN]), states, lres, examples)
    assert states.all_known == record.edited == tests
    assert record.faithful == record.causal == record.faithful_zero_shot == ((tests,),) * 3
    assert record.zero_shot_baselines == record.faithful_baselines  # blocks see no context
    found = {**record.faithful_baselines, **record.causal_baselines}
    return {name: tuple(count / tests for count in by_layer) for name, by_layer in found.items()}


NO_SHIFT, ROWS = torch.zeros(HIDDEN, dtype=torch.float64), UNIT[:6]
EVERYWHERE, NOWHERE, AT_THE_LAST_BLOCK = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0)


def test_blocks_that_do_nothing_make_every_baseline_right():
    found = fractions(toy.affine_toy(UNIT, NO_SHIFT, ROWS))
    assert found == dict.fromkeys(found, EVERYWHERE)


def test_without_a_difference_between_examples_linear_regression_repeats_their_object():
    """18 of the 23 others have another object."""
    found = fractions(toy.affine_toy(UNIT, NO_SHIFT, ROWS), train=(6,))
    assert found.pop("linear regression") == (5 / 23,) * 3
    assert found == dict.fromkeys(found, EVERYWHERE)


def test_blocks_that_add_a_constant():
    """The unembedding reads off s, and off anything put in its place, one decoy that the blocks take away or add."""
    found = fractions(toy.affine_toy(UNIT, 5 * UNIT[4] - 5 * UNIT[5], ROWS))
    everywhere = {"linear regression", "translation", "oracle"}
    assert found == {name: EVERYWHERE if name in everywhere else AT_THE_LAST_BLOCK for name in found}


def turn():
    """The orthogonal map that takes the unit vector of each object to that of the next."""
    matrix = UNIT.clone()
    matrix[:4, :4] = UNIT[:4, :4].roll(1, 0)
    return matrix


def test_blocks_that_permute_directions():
    found = fractions(toy.affine_toy(turn(), NO_SHIFT, ROWS))
    everywhere = {"linear regression", "oracle"}
    assert found == {name: EVERYWHERE if name in everywhere else AT_THE_LAST_BLOCK for name in found}


@pytest.mark.parametrize(("train", "right"), [((0, 1, 4, 5), 8), ((0, 1, 2, 5), 14)])
def test_linear_regression_is_right_only_about_objects_that_its_examples_span(train, right):
    """Of the 20 test subjects, those with an object that an example has; the LRE is right about all of them."""
    found = fractions(toy.affine_toy(turn(), NO_SHIFT, ROWS), train)
    assert found["linear regression"] == (right / 20,) * 3


def test_the_row_of_the_unembedding_and_o_are_told_apart():
    """A decoy row that is long reads more off an object's row than that row itself, and little off its o."""
    rows = ROWS.clone()
    rows[:4] += UNIT[6]
    rows[4] = 3 * UNIT[6]
    found = fractions(toy.affine_toy(UNIT, NO_SHIFT, rows))
    assert found.pop("unembedding") == NOWHERE
    assert found == dict.fromkeys(found, EVERYWHERE)


def test_a_long_row_of_the_unembedding_outweighs_what_blocks_add_and_o_does_not():
    found = fractions(toy.affine_toy(UNIT, 2 * UNIT[4], 10 * ROWS))
    assert (found["unembedding"], found["object"], found["oracle"]) == (EVERYWHERE, AT_THE_LAST_BLOCK, EVERYWHERE)


# A random LM: every count against whole prompts run one by one.


def random_prompt(number, object_token):
    """Context, a subject of two tokens, none to two tokens of template."""
    ids = (1, 7, 7, 9, 20 + number % 3, 30 + number, *(3, 5)[: (number + 2) % 3])
    return Prompt("", f"s{number}", f"o{object_token}", ids, (4, 6), (object_token,))


def subject_alone(prompt):
    """The start token and the subject."""
    subject = prompt.input_ids[slice(*prompt.subject_span)]
    return Prompt("", prompt.subject, prompt.object, (1, *subject), (1, 3), prompt.object_tokens)


@pytest.fixture(scope="module")
def lm():
    return LanguageModel(tiny_model("gpt2", seed=6))


@pytest.fixture(scope="module")
def prompts(lm):
    """Twenty-four prompts of which the LM knows twenty-two."""
    said = [answer(lm, random_prompt(number, 0)) for number in range(24)]
    return [random_prompt(number, token if number > 1 else (token + 1) % VOCAB) for number, token in enumerate(said)]


@pytest.fixture(scope="module")
def lres():
    weights = UNIT + normal(3, HIDDEN, HIDDEN, seed=7) / 10
    return {layer: LRE(w, w[0], layer, Origin("", "", "")) for layer, w in zip(LAYERS, weights, strict=True)}


@pytest.fixture(scope="module")
def measured(lm, prompts, lres):
    """The states of the prompts in batches of ten, and the record of all baselines, fitted on five of the prompts."""
    examples = Examples(lm, LAYERS)
    for place, prompt in enumerate(prompts[4:9]):
        examples.add(place, prompt_jacobian(lm, torch.tensor(prompt.input_ids), prompt.subject_position, LAYERS))
    states = states_of(lm, prompts, LAYERS, size=10, alone=[subject_alone(prompt) for prompt in prompts])
    record = with_baselines(BLANK, states, lres, examples)
    lm.chunk_size = 7
    assert with_baselines(BLANK, states, lres, examples) == record
    lm.chunk_size = None
    return states, record


def test_causal_counts_are_those_of_a_plain_loop(lm, prompts, measured):
    states, record = measured
    expected = {name: [0] * len(LAYERS) for name in CAUSALITY_BASELINES}
    assert 10 < len(states.edited) <= 22
    for row, aim in zip(states.edited.tolist(), states.targets.tolist(), strict=True):
        target = prompts[aim]
        for column, layer in enumerate(LAYERS):
            inserted = {
                "oracle": state(lm, target, layer),
                "unembedding": lm.model.lm_head.weight[target.object_token],
                "object": state(lm, target, 2, -1),
            }
            for name, value in inserted.items():
                expected[name][column] += answer(lm, prompts[row], layer, value) == target.object_token
    assert record.causal_baselines == {name: tuple(counts) for name, counts in expected.items()}
    assert len({count for counts in expected.values() for count in counts}) > 3


@pytest.mark.parametrize("zero_shot", [False, True])
def test_faithful_counts_are_those_of_a_plain_loop_few_shot_and_zero_shot(lm, prompts, lres, measured, zero_shot):
    _, record = measured
    objects = torch.stack([state(lm, prompt, 2, -1) for prompt in prompts[4:9]])
    expected = {name: [0] * len(LAYERS) for name in FAITHFULNESS_BASELINES}
    of_lres = [[0, 0] for _ in LAYERS]
    for column, layer in enumerate(LAYERS):
        trained = torch.stack([state(lm, prompt, layer) for prompt in prompts[4:9]])
        for prompt in prompts[2:]:
            s = state(lm, subject_alone(prompt) if zero_shot else prompt, layer)
            answers = {
                "linear regression": torch.from_numpy(least_squares(trained.numpy(), objects.numpy(), s.numpy())),
                "translation": s + (objects - trained).mean(0),
                "identity": s,
            }
            for name, output in answers.items():
                expected[name][column] += int(lm.decode(output).argmax()) == prompt.object_token
            for index, beta in enumerate(BLANK.betas):
                output = beta * lres[layer].weight @ s + lres[layer].bias
                of_lres[column][index] += int(lm.decode(output).argmax()) == prompt.object_token
    found = record.zero_shot_baselines if zero_shot else record.faithful_baselines
    assert found == {name: tuple(counts) for name, counts in expected.items()}
    assert len({count for counts in found.values() for count in counts}) > 2
    assert (record.faithful_zero_shot == tuple(map(tuple, of_lres))) == zero_shot
