"""The slope of F along lines between subjects, against F itself on whole prompts and against closed forms."""

import dataclasses

import pytest
import torch

from lre_lightning.datamodules import collate
from lre_lightning.errors import LREError
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.scoring.line_integrals import line_integrals, trial_integrals
from lre_lightning.scoring.scores import EncodedTrial, encode
from tests.helpers import toy
from tests.helpers.tiny_models import WIDTH, tiny_model, widen_casts

FAMILIES = ("gpt2", "llama", "gpt_neox", "gemma2")
SHARED = [5, 9, 2, 40]
PROMPTS = [[*SHARED, 11, 12, 13], [*SHARED, 21, 8], [*SHARED, 11, 12, 60, 61], [*SHARED, 70, 71, 72]]
SUBJECTS = [5, 4, 5, 5]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lre_of(weight, layer):
    """Neither its bias nor its beta may have a part in any of this."""
    return LRE(weight, normal(len(weight), seed=9), layer, Origin("", "", ""), beta=3.0)


def batch_of(lm, prompts=PROMPTS, subjects=SUBJECTS):
    length = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in prompts])
    return PromptBatch(lm, ids, torch.tensor(subjects), torch.tensor([len(prompt) - 1 for prompt in prompts]))


def plain(lm, row, layer, value):
    """o of a whole prompt with the hidden state at the subject replaced, as a function of it."""

    def put(hidden):
        return hidden.index_copy(1, torch.tensor([SUBJECTS[row]]), value.to(hidden)[None, None])

    with replace(lm.module_at(layer), put):
        return lm(torch.tensor([PROMPTS[row]]))[0, -1]


@pytest.fixture(params=FAMILIES)
def lm(request, monkeypatch):
    widen_casts(monkeypatch, request.param)
    return LanguageModel(tiny_model(request.param))


def ends_of(lm, layer):
    """s of the prompts and states as far from them as s is from zero."""
    start = batch_of(lm).hidden_states([layer])[0][:, 0]
    step = normal(len(PROMPTS), WIDTH)
    return start, start + step * (start.norm(dim=-1) / step.norm(dim=-1))[:, None]


@pytest.mark.parametrize("layer", ["emb", 0, 1])
def test_the_integral_is_the_distance_between_the_ends_of_f(lm, layer):
    """To 1e-12 with the 32 nodes that there are by default, to 1e-5 with 8, and not so with 2."""
    start, end = ends_of(lm, layer)
    with torch.no_grad():
        distances = [plain(lm, row, layer, end[row]) - plain(lm, row, layer, start[row]) for row in range(len(PROMPTS))]
    exact = torch.stack(distances).norm(dim=-1)
    lre = lre_of(normal(WIDTH, WIDTH), layer)

    def error(chunk_size=None, **options):
        lm.chunk_size = chunk_size
        found, _ = line_integrals(batch_of(lm), lre, start, end, **options)
        return float((found / exact - 1).abs().max())

    assert error() < 1e-12
    assert error(nodes=32, chunk_size=7) < 1e-12
    assert error() < error(nodes=8) < 1e-5
    assert 1e-4 < error(nodes=2) < 0.1


@pytest.mark.parametrize("layer", ["emb", 1])
def test_the_estimate_is_what_w_says_about_the_same_line(lm, layer):
    start, end = ends_of(lm, layer)
    weight = normal(WIDTH, WIDTH, seed=3)
    lm.chunk_size = 5
    _, found = line_integrals(batch_of(lm), lre_of(weight, layer), start, end)
    for row in range(len(PROMPTS)):
        with torch.no_grad():
            change = plain(lm, row, layer, end[row]) - plain(lm, row, layer, start[row])
        u, v = change / change.norm(), (end[row] - start[row]) / (end[row] - start[row]).norm()
        expected = sum(u[i] * weight[i, j] * v[j] for i in range(WIDTH) for j in range(WIDTH))
        torch.testing.assert_close(found[row], expected * (end[row] - start[row]).norm(), rtol=1e-9, atol=1e-12)


def test_between_equal_states_nothing_changes():
    lm = LanguageModel(tiny_model("gpt2"))
    start, _ = ends_of(lm, 0)
    found = line_integrals(batch_of(lm), lre_of(normal(WIDTH, WIDTH), 0), start, start)
    assert all(torch.equal(values, torch.zeros(len(PROMPTS), dtype=torch.float64)) for values in found)


def test_works_without_gradients_and_in_the_dtype_of_w():
    lm = LanguageModel(tiny_model("llama", torch.float32))
    start, end = (states.float() for states in ends_of(lm, 0))
    lre = lre_of(normal(WIDTH, WIDTH), 0)
    narrow = dataclasses.replace(lre, weight=lre.weight.float(), bias=lre.bias.float())
    with torch.no_grad():
        found = line_integrals(batch_of(lm), narrow, start, end)
    assert [values.dtype for values in found] == [torch.float32, torch.float32]
    assert not any(values.requires_grad for values in found)
    assert torch.is_grad_enabled()
    for values, expected in zip(found, line_integrals(batch_of(lm), lre, start, end), strict=True):
        torch.testing.assert_close(values.double(), expected, rtol=1e-4, atol=1e-5)


# The gradient that it integrates


@pytest.mark.parametrize("layer", ["emb", 0, 1, 2])
def test_pullbacks_are_rows_of_the_jacobian_of_whole_prompts(lm, layer):
    """Prompts of three shapes, two of which share more than the context."""
    subject, cotangent = normal(4, 2, WIDTH, seed=1), normal(4, WIDTH, seed=2)
    found = batch_of(lm).pullback(layer, subject, cotangent)
    assert found.shape == subject.shape
    for row in range(len(PROMPTS)):
        for variant in range(2):
            jacobian = torch.autograd.functional.jacobian(
                lambda value, row=row: plain(lm, row, layer, value), subject[row, variant]
            )
            torch.testing.assert_close(found[row, variant], cotangent[row] @ jacobian, rtol=1e-8, atol=1e-9)
    if layer == 2:  # s is not at the last token, and only that is read from there on
        assert not found.any()
    else:
        assert found.abs().amax((1, 2)).min() > 1e-3


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 100])
def test_pullbacks_do_not_depend_on_chunks(chunk_size):
    lm = LanguageModel(tiny_model("llama"))
    subject, cotangent = normal(4, 5, WIDTH, seed=1), normal(4, WIDTH, seed=2)
    expected = batch_of(lm).pullback(0, subject, cotangent)
    lm.chunk_size = chunk_size
    with torch.no_grad():
        found = batch_of(lm).pullback(0, subject, cotangent)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert not subject.requires_grad


def test_a_subject_that_is_the_last_token_pulls_back_through_the_residual_stream():
    lm = toy.affine_toy(normal(toy.WIDTH, toy.WIDTH), normal(toy.WIDTH, seed=1), torch.eye(toy.WIDTH).double()[:6])
    batch = batch_of(lm, [[0, 8, 4, 9], [0, 8, 4, 10]], [3, 3])
    cotangent = normal(2, toy.WIDTH, seed=2)
    matrix = lm.module_at(0).matrix
    for layer, power in (("emb", matrix @ matrix), (0, matrix), (1, torch.eye(toy.WIDTH).double())):
        found = batch.pullback(layer, normal(2, 1, toy.WIDTH, seed=3), cotangent)[:, 0]
        torch.testing.assert_close(found, cotangent @ power)


# Pairs of a trial


def affine_trial(layers=("emb", 0, 1)):
    """All subjects of a toy with random affine blocks, in a trial, and W and b at each layer."""
    lm = toy.affine_toy(normal(toy.WIDTH, toy.WIDTH), normal(toy.WIDTH, seed=1), torch.eye(toy.WIDTH).double()[:6])
    first = toy.WORDS.index(toy.SUBJECTS[0])
    prompts = [
        Prompt("", name, toy.OBJECTS[i % 4], (0, first + i), (1, 2), (toy.WORDS.index(toy.OBJECTS[i % 4]),))
        for i, name in enumerate(toy.SUBJECTS)
    ]
    example = prompt_jacobian(lm, torch.tensor(prompts[0].input_ids), 1)
    lres = {layer: lre_of(example.jacobian[layer], layer) for layer in layers}
    return lm, prompts, lres


def join(lm, prompts, size, layers=("emb", 0, 1)):
    batches = []
    for start in range(0, len(prompts), size):
        batch = collate(prompts[start : start + size], 0, 0, range(len(prompts[start : start + size])))
        positions = batch.subject_position, batch.last_position
        batches.append(encode(lm, batch.prompts, batch.input_ids, *positions, layers))
    return EncodedTrial.join(batches, "targets")


def test_of_an_affine_lm_w_says_all_that_there_is():
    lm, prompts, lres = affine_trial()
    trial = join(lm, prompts, 24)
    for index, (layer, lre) in enumerate(lres.items()):
        found = trial_integrals(trial, index, lre, 100, "key")
        assert len(found) == len(trial.edited) == 24
        wrong = trial_integrals(trial, (index + 1) % 3, lre, 100, "key")
        changes = {
            round(float((trial.object[target] - trial.object[row]).norm()), 6)
            for row, target in zip(trial.edited.tolist(), trial.targets.tolist(), strict=True)
        }
        for (exact, estimate), (other, _) in zip(found, wrong, strict=True):
            assert estimate == pytest.approx(exact, rel=1e-9)
            assert round(exact, 6) in changes  # s1 and s2 are an edit's source and target, whose objects differ
            assert exact != pytest.approx(other), layer
        doubled = dataclasses.replace(lre, weight=2 * lre.weight)
        assert [e for _, e in trial_integrals(trial, index, doubled, 100, "key")] == pytest.approx(
            [2 * e for _, e in found]
        )


def test_pairs_are_drawn_by_the_key_alone():
    lm, prompts, lres = affine_trial()
    whole, parts = join(lm, prompts, 24), join(lm, prompts[::-1], 5)
    found = trial_integrals(whole, 1, lres[0], 6, "key")
    assert len(found) == len(set(found)) == 6
    assert trial_integrals(whole, 1, lres[0], 6, "key") == found
    lm.chunk_size = 3
    again = trial_integrals(parts, 1, lres[0], 6, "key")
    assert [round(exact, 9) for exact, _ in again] == [round(exact, 9) for exact, _ in found]
    every = trial_integrals(whole, 1, lres[0], 24, "key")
    assert [round(exact, 9) for exact, _ in every[:6]] == [round(exact, 9) for exact, _ in found]
    other = trial_integrals(whole, 1, lres[0], 6, "another key")
    assert [round(exact, 9) for exact, _ in other] != [round(exact, 9) for exact, _ in found]


def test_lines_go_from_the_subject_of_a_prompt_to_its_target_in_that_prompt():
    """Of a random LM, whose F is another one in every prompt and in either direction."""
    lm = LanguageModel(tiny_model("gpt2", seed=6))
    prompts = [
        Prompt("", f"s{row}", "", tuple(ids), (position, position + 1), (0,))
        for row, (ids, position) in enumerate(zip(PROMPTS, SUBJECTS, strict=True))
    ]
    (start, *_), said = batch_of(lm).hidden_states([1]), lm.predict(batch_of(lm).hidden_states([1])[1])
    prompts = [dataclasses.replace(p, object_tokens=(t,)) for p, t in zip(prompts, said.tolist(), strict=True)]
    trial = join(lm, prompts, 4, [0, 1])
    weight = normal(WIDTH, WIDTH, seed=3)
    found = trial_integrals(trial, 1, lre_of(weight, 1), 4, "key")
    expected = []
    for row, target in zip(trial.edited.tolist(), trial.targets.tolist(), strict=True):
        with torch.no_grad():
            change = plain(lm, row, 1, start[target, 0]) - plain(lm, row, 1, start[row, 0])
        estimate = change @ weight @ (start[target, 0] - start[row, 0]) / change.norm()
        expected.append((float(change.norm()), float(estimate)))
    assert len(set(said.tolist())) > 1
    assert sorted(found) == [pytest.approx(pair, rel=1e-8) for pair in sorted(expected)]


def test_without_pairs_of_different_objects_there_is_nothing_to_integrate():
    lm, prompts, lres = affine_trial()
    assert trial_integrals(join(lm, prompts[::4], 24), 0, lres["emb"], 3, "key") == ()
    assert trial_integrals(join(lm, prompts, 24), 0, lres["emb"], 0, "key") == ()


def test_inference_mode_is_refused_in_one_sentence():
    lm = LanguageModel(tiny_model("gpt2"))
    with torch.inference_mode():
        runs = PromptBatch(lm, torch.tensor([[1, 2, 3]]), torch.tensor([1]), torch.tensor([2]))
        with pytest.raises(LREError, match=r"a pullback needs a graph: leave torch.inference_mode"):
            runs.pullback(0, torch.zeros(1, 1, lm.hidden_size), torch.zeros(1, lm.hidden_size))
