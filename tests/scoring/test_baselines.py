"""Baselines against closed forms, and against plain loops over whole prompts."""

import numpy as np
import pytest
import torch

from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.records.record import CAUSALITY_BASELINES, FAITHFULNESS_BASELINES, TrialRecord
from lre_lightning.scoring.baselines import (
    CAUSALITY,
    FAITHFULNESS,
    example_states,
    identity,
    linear_regression,
    translation,
    with_baselines,
)
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import WIDTH, tiny_model
from tests.scoring.trials import normal, prompt_of, prompts_for, state, states_of

LAYERS = ("emb", 0, 1)
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


@pytest.mark.parametrize("count", [1, 2, 8, WIDTH, WIDTH + 1, 50])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_regression_is_numpys_least_squares(count, dtype):
    subjects, objects, new = (normal(n, WIDTH, seed=i, dtype=dtype) + i for i, n in enumerate((count, count, 5)))
    found = linear_regression(subjects, objects)(new)
    assert found.dtype == dtype
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    tolerance = 1e-9 if dtype == torch.float64 else 1e-3
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=tolerance, atol=tolerance)
    # Without a difference, as between subjects with the same last token at the embedding, it is the mean.
    found = linear_regression(subjects[:1].expand(count, -1), objects)(new)
    torch.testing.assert_close(found, objects.mean(0).expand(5, -1))


@pytest.mark.parametrize("count", [3, 5, 8, 12])
@pytest.mark.parametrize("far", [10, 10000])
def test_a_small_difference_between_examples_counts_and_rounding_does_not(count, far):
    """Examples far from zero, centred with rounding, span one direction more than their differences do."""
    subjects, new = (far + normal(n, WIDTH, seed=seed).float() / 10 for n, seed in ((count, 1), (50, 3)))
    objects = normal(count, WIDTH, seed=2).float()
    expected = least_squares(*(tensor.double().numpy() for tensor in (subjects, objects, new)))
    found = linear_regression(subjects, objects)(new).double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * far)


def test_translation_adds_the_mean_difference_and_identity_nothing():
    subjects, objects, new = normal(7, WIDTH), normal(7, WIDTH, seed=1), normal(3, 2, WIDTH, seed=2)
    shift = sum(o - s for s, o in zip(subjects, objects, strict=True)) / 7
    torch.testing.assert_close(translation(subjects, objects)(new), new + shift)
    assert torch.equal(identity(subjects, objects)(new), new)


def test_states_of_examples_are_widened():
    lm = LanguageModel(tiny_model("gpt2", torch.bfloat16))
    found = example_states(lm, [prompt_of(number, 0) for number in range(3)], ["emb", 0])
    assert (found.dtype, found.shape) == (torch.float32, (3, 3, WIDTH))


# A random LM, for which subjects alone are something else. All other counts are those of the tests of fits.


def subject_alone(prompt):
    """The start token and the subject."""
    subject = prompt.input_ids[slice(*prompt.subject_span)]
    return Prompt("", prompt.subject, prompt.object, (1, *subject), (1, 3), prompt.object_tokens)


def test_zero_shot_counts_are_those_of_a_plain_loop():
    lm = LanguageModel(tiny_model("gpt2", seed=6))
    prompts = prompts_for(lm, 24)
    examples = example_states(lm, prompts[4:9], LAYERS)
    weights = torch.eye(WIDTH, dtype=torch.float64) + normal(3, WIDTH, WIDTH, seed=7) / 10
    lres = {layer: LRE(w, w[0], layer, Origin("", SOME, "")) for layer, w in zip(LAYERS, weights, strict=True)}
    states = states_of(lm, prompts, LAYERS, size=10, alone=[subject_alone(prompt) for prompt in prompts])
    record = with_baselines(BLANK, states, lres, examples)
    objects = torch.stack([state(lm, prompt, 2, -1) for prompt in prompts[4:9]])
    expected = {name: [0] * len(LAYERS) for name in FAITHFULNESS_BASELINES}
    of_lres = [[0, 0] for _ in LAYERS]
    for column, layer in enumerate(LAYERS):
        trained = torch.stack([state(lm, prompt, layer) for prompt in prompts[4:9]])
        for prompt in prompts[2:]:
            s = state(lm, subject_alone(prompt), layer)
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
    assert record.zero_shot_baselines == {name: tuple(counts) for name, counts in expected.items()}
    assert record.faithful_zero_shot == tuple(map(tuple, of_lres))
    assert len({count for counts in record.zero_shot_baselines.values() for count in counts}) > 2
    assert record.zero_shot_baselines != record.faithful_baselines
