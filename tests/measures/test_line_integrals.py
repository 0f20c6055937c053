"""The slope of F along lines between subjects, against F itself on whole prompts and against closed forms."""

import dataclasses

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.measures.line_integrals import LineIntegrals, line_integrals
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.records.record import TrialRecord
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import WIDTH, batch_of, plain_output, tiny_model, widen_casts
from tests.scoring.trials import normal, prompts_for, scored, states_of

FAMILIES = ("gpt2", "gemma2")
SHARED = [5, 9, 2, 40]
PROMPTS = [[*SHARED, 11, 12, 13], [*SHARED, 21, 8], [*SHARED, 11, 12, 60, 61], [*SHARED, 70, 71, 72], [*SHARED, 50]]
SUBJECTS = [5, 4, 5, 5, 4]


def lre_of(weight, layer):
    """Neither its bias nor its beta may have a part in any of this."""
    return LRE(weight, normal(len(weight), seed=9), layer, Origin("", SOME, ""), beta=3.0)


def runs_of(lm):
    return batch_of(lm, PROMPTS, SUBJECTS)


def plain(lm, row, layer, value):
    return plain_output(lm, PROMPTS[row], SUBJECTS[row], layer, value)


@pytest.fixture(params=FAMILIES)
def lm(request, monkeypatch):
    widen_casts(monkeypatch, request.param)
    return LanguageModel(tiny_model(request.param))


def ends_of(lm, layer):
    """s of the prompts and states as far from them as s is from zero."""
    start = runs_of(lm).hidden_states([layer])[0][:, 0]
    step = normal(len(PROMPTS), WIDTH)
    return start, start + step * (start.norm(dim=-1) / step.norm(dim=-1))[:, None]


@pytest.mark.parametrize("layer", ["emb", 1])
def test_the_integral_is_the_distance_between_the_ends_of_f_and_the_estimate_is_that_of_w(lm, layer):
    """To 1e-12 with the 32 nodes of the default, to 1e-4 with 8, and not so with 2."""
    start, end = ends_of(lm, layer)
    with torch.no_grad():
        changes = [plain(lm, row, layer, end[row]) - plain(lm, row, layer, start[row]) for row in range(len(PROMPTS))]
    exact, weight = torch.stack(changes).norm(dim=-1), normal(WIDTH, WIDTH, seed=3)

    def error(chunk_size=None, **options):
        lm.chunk_size = chunk_size
        found, estimates = line_integrals(runs_of(lm), lre_of(weight, layer), start, end, **options)
        for row, (change, estimate) in enumerate(zip(changes, estimates, strict=True)):
            expected = change @ weight @ (end[row] - start[row]) / change.norm()
            torch.testing.assert_close(estimate, expected, rtol=1e-9, atol=1e-12)
        return float((found / exact - 1).abs().max())

    assert error() < 1e-12
    assert error(nodes=32, chunk_size=7) < 1e-12
    assert 1e-12 < error(nodes=8) < 1e-4
    assert 1e-4 < error(nodes=2) < 0.1


def test_between_equal_states_nothing_changes():
    lm = LanguageModel(tiny_model("gpt2"))
    start, _ = ends_of(lm, 0)
    found = line_integrals(runs_of(lm), lre_of(normal(WIDTH, WIDTH), 0), start, start)
    assert all(torch.equal(values, torch.zeros(len(PROMPTS), dtype=torch.float64)) for values in found)


def test_integrals_work_without_gradients_and_in_the_dtype_of_w():
    lm = LanguageModel(tiny_model("llama", torch.float32))
    start, end = (states.float() for states in ends_of(lm, 0))
    lre = lre_of(normal(WIDTH, WIDTH), 0)
    narrow = dataclasses.replace(lre, weight=lre.weight.float(), bias=lre.bias.float())
    with torch.no_grad():
        found = line_integrals(runs_of(lm), narrow, start, end)
    for values, expected in zip(found, line_integrals(runs_of(lm), lre, start, end), strict=True):
        assert values.dtype == torch.float32
        assert not values.requires_grad
        torch.testing.assert_close(values.double(), expected, rtol=1e-4, atol=1e-5)


# The gradient that is integrated


@pytest.mark.parametrize("lm", [*FAMILIES, "ctrl"], indirect=True)  # which changes its embeddings in place
@pytest.mark.parametrize("layer", ["emb", 0, 2])
def test_pullbacks_are_rows_of_the_jacobian_of_whole_prompts(lm, layer):
    """Prompts of four shapes, two of which share more than the context."""
    subject, cotangent = normal(5, 2, WIDTH, seed=1), normal(5, WIDTH, seed=2)
    found = runs_of(lm).pullback(layer, subject, cotangent)
    lm.chunk_size = 3
    with torch.no_grad():
        torch.testing.assert_close(runs_of(lm).pullback(layer, subject, cotangent), found, rtol=1e-9, atol=1e-12)
    for row in range(len(PROMPTS)):
        for variant in range(2):
            _, expected = torch.autograd.functional.vjp(
                lambda value, row=row: plain(lm, row, layer, value), subject[row, variant], cotangent[row]
            )
            torch.testing.assert_close(found[row, variant], expected, rtol=1e-8, atol=1e-9)
    # From the last block on only the last token is read, which is s in the last prompt alone.
    reaching = [4] if layer == 2 else range(5)
    assert [row for row in range(5) if found[row].abs().max() > 1e-3] == list(reaching)


def test_a_pullback_in_inference_mode_is_refused():
    lm = LanguageModel(tiny_model("gpt2"))
    with torch.inference_mode(), pytest.raises(LREError, match=r"a pullback needs a graph: leave torch.inference_mode"):
        runs_of(lm).pullback(0, torch.zeros(5, 1, WIDTH), torch.zeros(5, WIDTH))


# Pairs of a trial


def integrals(states, lre, count, layers):
    counts = {"samples": 24, "range_size": 4, "tested": 24, "known": 24}
    record = TrialRecord("toy", "", 0, **counts, layers=layers, layer=lre.layer)
    return LineIntegrals(count).measure(scored(record, states, {lre.layer: lre})).rows


def test_pairs_are_drawn_by_the_trial_alone():
    lm, lre = LanguageModel(tiny_model("gpt2", seed=6)), lre_of(normal(WIDTH, WIDTH), 0)
    some = prompts_for(lm, 24)

    def exact(count, prompts=some, **options):
        return [round(exact, 9) for exact, _ in integrals(states_of(lm, prompts, [0], **options), lre, count, (0,))]

    found = exact(6)
    assert len(set(found)) == 6
    assert exact(24)[:6] == found
    assert exact(6, number=1) != found
    lm.chunk_size = 3
    assert exact(6, some[::-1], size=5) == found
    assert exact(3, [prompt for prompt in some if prompt.object_token == some[2].object_token]) == []  # without targets


def test_lines_go_from_the_subject_of_a_prompt_to_its_target_in_that_prompt():
    """Of a random LM, whose F is another one in every prompt and in either direction."""
    lm = LanguageModel(tiny_model("gpt2", seed=6))
    start, output = runs_of(lm).hidden_states([1])
    said = lm.predict(output).tolist()
    prompts = [
        Prompt("", f"s{row}", "", tuple(ids), (position, position + 1), (token,))
        for row, (ids, position, token) in enumerate(zip(PROMPTS, SUBJECTS, said, strict=True))
    ]
    states = states_of(lm, prompts, [0, 1], number=2)
    weight = normal(WIDTH, WIDTH, seed=3)
    expected = []
    for row, target in zip(states.edited.tolist(), states.targets.tolist(), strict=True):
        with torch.no_grad():
            change = plain(lm, row, 1, start[target, 0]) - plain(lm, row, 1, start[row, 0])
        estimate = change @ weight @ (start[target, 0] - start[row, 0]) / change.norm()
        expected.append((float(change.norm()), float(estimate)))
    assert len(expected) == 5
    found = integrals(states, lre_of(weight, 1), 5, (0, 1))
    assert sorted(found) == [pytest.approx(pair, rel=1e-8) for pair in sorted(expected)]
