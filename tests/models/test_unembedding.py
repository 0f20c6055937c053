"""Logits through the few dimensions that states lie in, against the LM's own."""

import pytest
import torch

from lre_lightning.models import unembedding
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.tiny_models import WIDTH, tiny_model


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "cohere"])
@pytest.mark.parametrize("dimensions", [3, WIDTH])
def test_logits_of_states_in_few_dimensions_are_the_lms_own(monkeypatch, family, dimensions):
    """Norms with and without a mean and a bias; gemma2 and cohere change logits afterwards."""
    lm = LanguageModel(tiny_model(family, torch.float32))
    generator = torch.Generator().manual_seed(1)
    directions, bias = (torch.randn(rows, WIDTH, generator=generator) for rows in (dimensions, 1))
    states = torch.randn(2, 40, dimensions, generator=generator) @ directions + bias
    expected, bases, span = lm.decode(states), [], unembedding.span

    def kept(states):
        bases.append(span(states))
        return bases[-1]

    monkeypatch.setattr(unembedding, "span", kept)
    monkeypatch.setattr(unembedding, "MOST", 8)
    monkeypatch.setattr(unembedding, "LEAST", 0)
    torch.testing.assert_close(lm.decode(states), expected, rtol=1e-5, atol=1e-5)
    (basis,) = bases
    assert basis is None if dimensions == WIDTH else basis.shape[1] in (4, 5)


def test_states_that_are_not_finite_span_nothing():
    states = torch.ones(40, WIDTH)
    states[7, 3] = torch.nan
    assert unembedding.span(states) is None
