"""One model tried: its Jacobians and patched runs against the plain ones of the whole prompt."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models.hooks import observe, replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch

PROMPT = torch.arange(3, 23) * 7 % 97  # longer than windows and chunks of state spaces
SUBJECTS = (16, 19)  # several tokens, and one, are run after the prefix


def largest_error(lm: LanguageModel) -> float:
    """Return the largest relative error of s, do/ds and o with s replaced, at two layers and of two subjects."""
    lm.chunk_size = 20  # which does not divide the width
    return max(_largest_error(lm, subject) for subject in SUBJECTS)


def rounding_error(lm: LanguageModel, wide: LanguageModel) -> float:
    """Return the relative error of do/ds beside that of the same LM in a wider dtype, of all layers and subjects."""
    squares = [0.0, 0.0]
    for at in SUBJECTS:
        found, right = (prompt_jacobian(one, PROMPT, at).jacobian for one in (lm, wide))
        squares[0] += sum(float((found[layer].float() - right[layer]).square().sum()) for layer in right)
        squares[1] += sum(float(right[layer].square().sum()) for layer in right)
    return math.sqrt(squares[0] / squares[1])


def _largest_error(lm: LanguageModel, at: int) -> float:
    result = prompt_jacobian(lm, PROMPT, at, lm.layers[:2])
    last = torch.tensor([len(PROMPT) - 1] * 2)
    batch = PromptBatch(lm, PROMPT.expand(2, -1), torch.tensor([at] * 2), last)
    errors = []
    for layer, jacobian in result.jacobian.items():
        subject = _plain_run(lm, layer, at)[0]
        run = partial(_plain_run, lm, layer, at)
        expected = torch.autograd.functional.jacobian(lambda s, run=run: run(s)[1], subject)
        new = torch.randn(2, 3, lm.hidden_size, dtype=subject.dtype)
        with torch.no_grad():
            output = run(new[1, 2])[1]
        found = (result.subject[layer], jacobian, batch.patched(layer, new)[1, 2])
        errors += [_relative(one, other) for one, other in zip(found, (subject, expected, output), strict=True)]
    return max(errors)


def _plain_run(lm: LanguageModel, layer: Layer, at: int, value: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Run the whole prompt by the model's own code, with s replaced if there is a value; return s and o."""
    seen: dict[str, Any] = {}

    def look(hidden: Tensor) -> Tensor:
        seen["s"] = hidden[0, at].detach().clone()
        if value is None:
            return hidden.clone()
        return torch.cat([hidden[:, :at], value[None, None].to(hidden), hidden[:, at + 1 :]], 1)

    last = lm.module_at(lm.num_layers - 1)
    with replace(lm.module_at(layer), look), observe(last, lambda hidden: seen.update(o=hidden[0, -1].clone())):
        lm.model(input_ids=PROMPT[None], use_cache=False)
    return seen["s"], seen["o"]


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max()) if expected.any() else float("inf")
