"""Many prompts that begin alike: what they share is run once, and s can be replaced at any layer."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from lre_lightning.caches import repeat_cache
from lre_lightning.language_model import LanguageModel, Layer


class PromptBatch:
    """A batch of prompts, run from where they first differ.

    The tokens that all prompts share, their context as a rule, are run once and their keys and values are reused by
    every run. A run with s replaced starts at the layer where it is replaced.

    Args:
        lm: The language model.
        input_ids: Token ids `(batch, positions)`, int64, padded on the right.
        subject_position: Index of the subject's last token, `(batch,)`, int64.
        last_position: Index of each prompt's last token, `(batch,)`, int64.
    """

    def __init__(self, lm: LanguageModel, input_ids: Tensor, subject_position: Tensor, last_position: Tensor) -> None:
        self.lm = lm
        lm.check_ids(input_ids)
        ids = input_ids.to(lm.device)
        shared = _shared_length(ids, int(subject_position.min()))
        self._cache = lm.prefix_cache(ids[0, :shared])
        self._suffix = ids[:, shared : int(last_position.max()) + 1]
        self._subject = subject_position.to(lm.device) - shared
        self._last = last_position.to(lm.device) - shared
        self._hidden: dict[Layer, Tensor] = {}

    def select(self, rows: Tensor) -> PromptBatch:
        """The prompts of `rows`, int64 `(chosen,)`, with what they share already run.

        Patched runs keep the hidden states of all layers for the next one: drop the batch when it is scored.
        """
        chosen = copy.copy(self)
        chosen._suffix, chosen._subject, chosen._last = self._suffix[rows], self._subject[rows], self._last[rows]
        chosen._hidden = {}
        return chosen

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._suffix)

    @torch.no_grad()
    def hidden_states(self, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
        """Run the prompts as they are.

        Args:
            layers: Where s is wanted.

        Returns:
            s, `(batch, layers, hidden)`, and o, `(batch, hidden)`, in the LM's dtype.
        """
        last = self.lm.num_layers - 1
        found = self._states([*layers, last])
        rows = torch.arange(len(self), device=self._suffix.device)
        subject = torch.stack([found[layer][rows, self._subject] for layer in layers], dim=1)
        return subject, found[last][rows, self._last]

    def _states(self, layers: Sequence[Layer]) -> dict[Layer, Tensor]:
        """Hidden states `(batch, suffix, hidden)` of the prompts as they are."""
        return self.lm.hidden_states(self._suffix, layers, repeat_cache(self._cache, len(self)))

    @torch.no_grad()
    def patched(self, layer: Layer, subject: Tensor, chunk_size: int = 64) -> Tensor:
        """Run the prompts with s replaced, `F(s, c | s := subject)`.

        Args:
            layer: The layer whose output at the subject's last token is replaced.
            subject: What to put there, `(batch, variants, hidden)`, in any floating dtype.
            chunk_size: How many prompts run at a time.

        Returns:
            o for every prompt and variant, `(batch, variants, hidden)`, in the LM's dtype.
        """
        batch, variants, hidden = subject.shape
        prompts = torch.arange(batch, device=self._suffix.device).repeat_interleave(variants)
        values = subject.reshape(-1, hidden)
        found = [
            self._run_patched(layer, rows, new)
            for rows, new in zip(prompts.split(chunk_size), values.split(chunk_size), strict=True)
        ]
        return torch.cat(found).reshape(batch, variants, -1)

    def _run_patched(self, layer: Layer, prompts: Tensor, values: Tensor) -> Tensor:
        rows = torch.arange(len(prompts), device=prompts.device)
        if layer not in self._hidden:
            self._hidden = self._states(self.lm.layers)
        hidden = self._hidden[layer][prompts]
        hidden[rows, self._subject[prompts]] = values.to(hidden)
        output = self.lm.run_from(layer, hidden, self._suffix[prompts], repeat_cache(self._cache, len(prompts)))
        return output[rows, self._last[prompts]]


def _shared_length(ids: Tensor, limit: int) -> int:
    """How many leading tokens all rows have in common, at most `limit`."""
    same = (ids[:, :limit] == ids[0, :limit]).all(0).long()
    return int(same.cumprod(0).sum())
