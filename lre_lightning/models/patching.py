"""Many prompts that begin alike: what they share is run once, and s can be replaced at any layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.models.caches import select_prefixes, share_cache
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.memory import busy_rows, slim_graph

if TYPE_CHECKING:
    from transformers import Cache

NUMBERS_AT_A_TIME = {"cpu": 2**17, "other": 2**22}
"""How many numbers, those of a hidden state times the patched prompts, keep a device busy."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Prompts of one shape: as many tokens up to the subject's last one, and as many from there on.

    Attributes:
        rows: Which of the batch's prompts they are, int64 `(prompts,)`.
        cache: Keys and values of the tokens before the subject's last one; None if there are none.
        suffix: The token ids from the subject's last one on, `(prompts, suffix)`.
    """

    rows: Tensor
    cache: Cache | None
    suffix: Tensor


class PromptBatch:
    """A batch of prompts, run from where they first differ.

    The tokens that all prompts share, their context as a rule, are run once, and what a prompt has of its own before
    the subject's last token is run once for each prompt: every run goes on from the keys and values of those. A run
    with s replaced starts at the layer where it is replaced.

    Args:
        lm: The language model.
        input_ids: Token ids `(batch, positions)`, int64, padded on the right. There may be no prompt, `(0, 1)`.
        subject_position: Index of the subject's last token, `(batch,)`, int64.
        last_position: Index of each prompt's last token, `(batch,)`, int64.
        like: Prompts that may share the same tokens, which are then not run again.
    """

    def __init__(
        self,
        lm: LanguageModel,
        input_ids: Tensor,
        subject_position: Tensor,
        last_position: Tensor,
        like: PromptBatch | None = None,
    ) -> None:
        self.lm = lm
        lm.check_ids(input_ids)
        self._ids = input_ids.to(lm.device)
        self._subject, self._last = subject_position.to(lm.device), last_position.to(lm.device)
        self._shared = _shared_length(self._ids, int(subject_position.min())) if len(input_ids) else 0
        shared = self._ids[:1, : self._shared].flatten()
        known = like is not None and len(like) and torch.equal(shared, like._ids[0, : like._shared])
        self._context: Cache | None = like._context if like is not None and known else lm.prefix_cache(shared)

    @classmethod
    def join(cls, batches: Sequence[PromptBatch]) -> PromptBatch:
        """All prompts of several batches in one, with what all of them share."""
        length = max(batch._ids.shape[1] for batch in batches)
        ids = torch.cat([functional.pad(batch._ids, (0, length - batch._ids.shape[1])) for batch in batches])
        subject, last = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("_subject", "_last"))
        return cls(batches[0].lm, ids, subject, last, batches[0])

    def select(self, rows: Tensor) -> PromptBatch:
        """The prompts of `rows`, int64 `(chosen,)`, with what all of the batch share already run."""
        chosen, rows = copy.copy(self), rows.to(self._ids.device)
        chosen._ids, chosen._subject, chosen._last = self._ids[rows], self._subject[rows], self._last[rows]
        for name in ("_groups", "_hidden"):
            chosen.__dict__.pop(name, None)
        return chosen

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._ids)

    @torch.no_grad()
    def hidden_states(self, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
        """Run the prompts as they are.

        Args:
            layers: Where s is wanted.

        Returns:
            s, `(batch, layers, hidden)`, and o, `(batch, hidden)`, in the LM's dtype, on the LM's device.
        """
        if not len(self):
            nothing = torch.empty(0, len(layers), self.lm.hidden_size, dtype=self.lm.dtype, device=self.lm.device)
            return nothing, nothing[:, 0]
        last = self.lm.num_layers - 1
        suffix = self._ids[:, self._shared : int(self._last.max()) + 1]
        found = self.lm.hidden_states(suffix, [*layers, last], share_cache(self._context))
        rows, device = torch.arange(len(self), device=self._ids.device), self._ids.device

        def at(positions: Tensor, hidden: Tensor) -> Tensor:
            return hidden[rows.to(hidden.device), positions.to(hidden.device)].to(device)

        subjects = self._subject - self._shared
        subject = torch.stack([at(subjects, found[layer]) for layer in layers], dim=1)
        return subject, at(self._last - self._shared, found[last])

    @torch.no_grad()
    def patched(self, layer: Layer, subject: Tensor) -> Tensor:
        """Run the prompts with s replaced, `F(s, c | s := subject)`.

        The hidden states of all layers are kept for the next call: drop the batch when it is scored.

        Args:
            layer: The layer whose output at the subject's last token is replaced.
            subject: What to put there, `(batch, variants, hidden)`, in any floating dtype.

        Returns:
            o for every prompt and variant, `(batch, variants, hidden)`, in the LM's dtype, on the device of `subject`.
        """
        wanted = self._wanted(subject)
        return self.lm.chunk_sizes.run("patched prompts", wanted, partial(self._patched, layer, subject))

    def pullback(self, layer: Layer, subject: Tensor, cotangent: Tensor) -> Tensor:
        """Run the prompts with s replaced and compute u^T F'(s), the gradient of u . o with respect to s.

        Args:
            layer: The layer whose output at the subject's last token is replaced.
            subject: What to put there, `(batch, variants, hidden)`, in any floating dtype.
            cotangent: u for every prompt, `(batch, hidden)`.

        Returns:
            u^T F'(s) for every prompt and variant, `(batch, variants, hidden)`, in the dtype and on the device of
            `subject`.

        Raises:
            LREError: In inference mode, where torch keeps no graph.
        """
        if torch.is_inference_mode_enabled():
            raise LREError("a pullback needs a graph: leave torch.inference_mode(), torch.no_grad() is fine")
        wanted = self._wanted(subject)
        return self.lm.chunk_sizes.run("patched prompts", wanted, partial(self._pullback, layer, subject, cotangent))

    def _wanted(self, subject: Tensor) -> int:
        """How many prompts to run at a time, of as many as there are prompts and variants."""
        busy = busy_rows(self.lm.device, self.lm.hidden_size, NUMBERS_AT_A_TIME, 64)
        return min(max(1, len(self) * subject.shape[1]), self.lm.chunk_size or busy)

    def _pullback(self, layer: Layer, subject: Tensor, cotangent: Tensor, chunk_size: int) -> Tensor:
        gradient = torch.empty_like(subject)
        for group, states in zip(self._groups, self._hidden, strict=True):
            for prompts, variants in _chunks(len(group.rows), subject.shape[1], chunk_size):
                rows = group.rows[prompts].to(subject.device)
                values = subject[rows, variants].detach().requires_grad_(True)
                with torch.enable_grad(), slim_graph(self.lm.offloaded):
                    found = self._run_patched(layer, group, prompts, states[layer][prompts], values)
                    u = cotangent[rows.to(cotangent.device), None].to(found)
                    (at,) = torch.autograd.grad(found, values, u.expand_as(found))
                gradient[rows, variants] = at
        return gradient

    def _patched(self, layer: Layer, subject: Tensor, chunk_size: int) -> Tensor:
        output = torch.empty(subject.shape, dtype=self.lm.dtype, device=subject.device)
        for group, states in zip(self._groups, self._hidden, strict=True):
            for prompts, variants in _chunks(len(group.rows), subject.shape[1], chunk_size):
                rows = group.rows[prompts].to(subject.device)
                found = self._run_patched(layer, group, prompts, states[layer][prompts], subject[rows, variants])
                output[rows, variants] = found.to(output.device)
        return output

    def _run_patched(self, layer: Layer, group: _Group, prompts: slice, hidden: Tensor, values: Tensor) -> Tensor:
        """O, `(prompts, variants, hidden)`, of some of a group's prompts."""
        count, variants = values.shape[:2]
        hidden = hidden.repeat_interleave(variants, 0)
        hidden[:, 0] = values.flatten(0, 1).to(hidden)
        ids = group.suffix[prompts].repeat_interleave(variants, 0)
        cache = None if group.cache is None else share_cache(select_prefixes(group.cache, prompts))
        output = self.lm.run_from(layer, hidden, ids, cache)[:, -1]
        return output.reshape(count, variants, -1)

    @cached_property
    def _groups(self) -> list[_Group]:
        shapes = torch.stack([self._subject, self._last], 1)
        return [
            self._group((shapes == shape).all(1).nonzero().flatten(), *shape.tolist()) for shape in shapes.unique(dim=0)
        ]

    def _group(self, rows: Tensor, subject: int, last: int) -> _Group:
        """Run what the prompts have of their own before the subject's last token."""
        ids, cache = self._ids[rows], self._context
        if subject > self._shared:
            cache = self.lm.extend_cache(cache, ids[:, self._shared : subject])
        return _Group(rows, cache, ids[:, subject : last + 1])

    @cached_property
    def _hidden(self) -> list[dict[Layer, Tensor]]:
        """For each group the hidden states `(prompts, suffix, hidden)` of its prompts as they are, by layer."""
        return [self.lm.hidden_states(group.suffix, self.lm.layers, share_cache(group.cache)) for group in self._groups]


def _chunks(prompts: int, variants: int, chunk_size: int) -> Iterator[tuple[slice, slice]]:
    """Slices of prompts and variants, of at most `chunk_size` runs each."""
    width = min(variants, chunk_size)
    height = max(1, chunk_size // width)
    for top in range(0, prompts, height):
        for left in range(0, variants, width):
            yield slice(top, top + height), slice(left, left + width)


def _shared_length(ids: Tensor, limit: int) -> int:
    """How many leading tokens all rows have in common, at most `limit`."""
    same = (ids[:, :limit] == ids[0, :limit]).all(0).long()
    return int(same.cumprod(0).sum())
