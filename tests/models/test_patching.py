"""Batches of prompts that share nothing, everything, or are none."""

import pytest
import torch

from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import WIDTH, batch_of, tiny_model


@pytest.mark.parametrize(
    ("prompts", "position"),
    [([[3, 4, 5], [6, 4, 5]], 0), ([[3, 4, 5]], 0), ([[1, 2, 3, 4], [1, 2, 3, 4]], 2)],
    ids=["nothing", "the first token is the subject", "the subject too"],
)
def test_prompts_that_share_nothing_or_everything(prompts, position):
    """Only tokens before every subject's last one are shared, so that s itself is never in the cache."""
    lm = LanguageModel(tiny_model("llama"))
    subject, output = batch_of(lm, prompts, [position] * len(prompts)).hidden_states([1])
    with torch.no_grad():
        expected = lm.hidden_states(torch.tensor(prompts), [1, 2])
    torch.testing.assert_close(subject[:, 0], expected[1][:, position])
    torch.testing.assert_close(output, expected[2][:, -1])


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


@pytest.mark.parametrize("family", ["llama", "gpt2", "mamba", "gemma2"])
def test_what_is_kept_of_the_prompts_as_they_are(family, monkeypatch):
    """Kept states are those of a plain run, serve edits of any choice of prompts, and are not run again for these."""
    lm, values = LanguageModel(tiny_model(family)), torch.randn(3, 2, WIDTH, dtype=torch.float64)
    plain, kept, rows = batch_of(lm), [], torch.tensor([2, 0])
    right = plain.hidden_states([0, 1])
    for inference in (False, True):
        with torch.inference_mode(inference):
            kept.append(batch_of(lm))
            for found, expected in zip(kept[-1].hidden_states([0, 1], keep=True), right, strict=True):
                torch.testing.assert_close(found, expected)
    expected, gradient = plain.patched(1, values), plain.pullback(1, values, values[:, 0])
    monkeypatch.setattr(LanguageModel, "prefix", None)
    for one in kept:
        torch.testing.assert_close(one.patched(1, values), expected)
        torch.testing.assert_close(one.pullback(1, values, values[:, 0]), gradient)
        chosen = one.select(rows)
        torch.testing.assert_close(chosen.patched(1, values[rows]), expected[rows])
        torch.testing.assert_close(chosen.hidden_states([0], keep=True)[1], one.hidden_states([0])[1][rows])


def test_prompts_as_they_are_are_run_in_chunks_that_fit(monkeypatch):
    lm, prompts = LanguageModel(tiny_model("llama")), [[1, 2, first, 4] for first in range(5, 10)]
    expected = batch_of(lm, prompts, [2] * 5).hidden_states([1], keep=True)
    run = LanguageModel.hidden_states

    def short_of_memory(lm, ids, *rest):
        if len(ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(lm, ids, *rest)

    monkeypatch.setattr(LanguageModel, "hidden_states", short_of_memory)
    with pytest.warns(UserWarning, match="out of memory for 5 prompts at a time: continuing with 2"):
        found = batch_of(lm, prompts, [2] * 5).hidden_states([1], keep=True)
    torch.testing.assert_close(found, expected)
