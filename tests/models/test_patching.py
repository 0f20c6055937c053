"""Runs that share a prefix, as they are and patched, against whole prompts run one by one."""

import pytest
import torch

from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import FAMILIES, VOCAB, WIDTH, tiny_model, widen_casts

SHARED = [5, 9, 2, 40, 41, 7]
PROMPTS = [[*SHARED, 11, 12, 13], [*SHARED, 21, 8], [*SHARED, 11, 12, 60, 61, 62]]
SUBJECTS = [7, 6, 7]


def batch_of(lm, prompts=PROMPTS, subjects=SUBJECTS):
    length = max(map(len, prompts))
    ids = torch.tensor([prompt + [0] * (length - len(prompt)) for prompt in prompts])
    return PromptBatch(lm, ids, torch.tensor(subjects), torch.tensor([len(prompt) - 1 for prompt in prompts]))


@pytest.fixture(params=FAMILIES)
def lm(request, monkeypatch):
    widen_casts(monkeypatch, request.param)
    return LanguageModel(tiny_model(request.param))


def test_hidden_states_equal_those_of_whole_prompts(lm):
    subject, output = batch_of(lm).hidden_states(["emb", 0, 2])
    assert subject.shape == (3, 3, WIDTH)
    for row, (prompt, position) in enumerate(zip(PROMPTS, SUBJECTS, strict=True)):
        with torch.no_grad():
            whole = lm.hidden_states(torch.tensor([prompt]), lm.layers)
        for column, layer in enumerate(["emb", 0, 2]):
            torch.testing.assert_close(subject[row, column], whole[layer][0, position], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(output[row], whole[2][0, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layer", ["emb", 0, 1, 2])
@pytest.mark.parametrize("chunk_size", [2, 64])
def test_patched_runs_equal_a_plain_hook_on_whole_prompts(lm, layer, chunk_size):
    new = torch.randn(3, 4, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lm.chunk_size = chunk_size
    batch = batch_of(lm)
    patched = batch.patched(layer, new)
    changed = 0
    for row, (prompt, position) in enumerate(zip(PROMPTS, SUBJECTS, strict=True)):
        for variant in range(4):

            def put(hidden, value=new[row, variant], position=position):
                hidden = hidden.clone()
                hidden[0, position] = value
                return hidden

            with torch.no_grad(), replace(lm.module_at(layer), put):
                expected = lm(torch.tensor([prompt]))[0, -1]
            torch.testing.assert_close(patched[row, variant], expected, rtol=1e-9, atol=1e-9)
            changed += not torch.allclose(expected, batch.hidden_states([0])[1][row])
    assert changed == (0 if layer == 2 else 12)  # at the last block only the last token reaches o
    torch.testing.assert_close(batch.select(torch.tensor([2, 0])).patched(layer, new[[2, 0]]), patched[[2, 0]])


def test_putting_s_itself_back_changes_nothing(lm):
    batch = batch_of(lm)
    subject, output = batch.hidden_states(lm.layers)
    for column, layer in enumerate(lm.layers):
        torch.testing.assert_close(batch.patched(layer, subject[:, column, None])[:, 0], output, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prompts", [[[3, 4, 5], [6, 4, 5]], [[3, 4, 5]]], ids=["nothing shared", "one prompt"])
def test_prompts_that_share_nothing_or_everything(prompts):
    lm = LanguageModel(tiny_model("gpt2"))
    _, output = batch_of(lm, prompts, [0] * len(prompts)).hidden_states([0])
    with torch.no_grad():
        torch.testing.assert_close(output, lm(torch.tensor(prompts))[:, -1])


def test_subjects_may_share_their_first_tokens():
    """Only tokens before every subject's last one are shared, so that s itself is never in the cache."""
    lm = LanguageModel(tiny_model("llama"))
    prompts = [[1, 2, 3, 4], [1, 2, 3, 4]]
    subject, _ = batch_of(lm, prompts, [2, 2]).hidden_states([1])
    with torch.no_grad():
        torch.testing.assert_close(subject[0, 0], lm.hidden_states(torch.tensor(prompts), [1])[1][0, 2])
    assert max(max(prompt) for prompt in PROMPTS) < VOCAB


def test_no_prompts():
    lm = LanguageModel(tiny_model("gpt2"))
    some, ids, nowhere = batch_of(lm), torch.zeros(0, 1, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    for none in (PromptBatch(lm, ids, nowhere, nowhere), some.select(nowhere)):
        assert len(none) == 0
        subject, output = none.hidden_states(["emb", 1])
        assert (subject.shape, output.shape) == ((0, 2, WIDTH), (0, WIDTH))
        assert subject.dtype == output.dtype == torch.float64
        new = torch.zeros(0, 4, WIDTH)
        assert none.patched(1, new).shape == none.pullback(1, new, output).shape == new.shape
        assert none.patched(1, new).dtype == torch.float64
        assert len(none.select(nowhere)) == len(PromptBatch.join([none, none])) == 0
        joined = PromptBatch.join([none, some, none, some.select(torch.tensor([0]))])
        assert len(joined) == 4
        torch.testing.assert_close(joined.hidden_states([0])[0][:3], some.hidden_states([0])[0])
        torch.testing.assert_close(
            joined.patched(0, torch.ones(4, 1, WIDTH))[3], some.patched(0, torch.ones(3, 1, WIDTH))[0]
        )
