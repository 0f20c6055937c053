"""Prompts with a common beginning, which is run once, and s replaced at any layer."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.models.activations import one_slope_for_all_lanes
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.memory import T, busy_rows, slim_graph
from lre_lightning.models.precision import check_finite
from lre_lightning.models.prefix import Prefix, pieces
from lre_lightning.models.products import JacobianProduct, vjp

NUMBERS_AT_A_TIME = {"cpu": 2**17, "other": 2**22}
"""Numbers (patched prompts times width of the hidden states) that keep a device busy."""
PRODUCTS_AT_A_TIME = {"cpu": 2**16, "other": 2**18}
"""As many for products with Jacobians, for which a graph is kept."""


@dataclass(frozen=True, eq=False)
class _Group:
    """Prompts with equally many tokens before the subject's last one, and equally many from there on.

    They are some of the prompts that were run together; everything but `rows` and `places` is kept for all of these.
    """

    rows: Tensor  # indices of the prompts in the batch, int64 `(prompts,)`
    places: Tensor  # indices of the prompts among those run together, int64 `(prompts,)`
    prefix: Prefix | None  # the tokens before the subject's last one
    suffix: Tensor  # token ids after those, `(run together, suffix)`
    position: int  # index of the subject's last token in the suffix
    states: dict[Layer, Tensor]  # hidden states of the prompts as they are, `(run together, suffix, hidden)`

    def select(self, rows: Tensor) -> _Group:
        """Return the prompts that are among `rows` of the batch, `(chosen,)`; their rows become indices into `rows`."""
        found, chosen = (rows[:, None] == self.rows).nonzero().unbind(1)
        return dataclasses.replace(self, rows=found, places=self.places[chosen])

    def at(self, layer: Layer, places: Tensor) -> Tensor:
        """Return the hidden states of prompts by their places, `(places, suffix, hidden)`, as a copy."""
        states = self.states[layer]
        return states[places.to(states.device)]


class PromptBatch:
    """A batch of prompts whose common beginning is run once.

    The tokens that all prompts share, usually their context, are run once, and those that a prompt has of its own
    before the subject's last token once per prompt: every run continues from their keys and values. A run with s
    replaced starts at the layer where it is replaced.

    Args:
        lm: The language model.
        input_ids: Token ids `(batch, positions)`, int64, padded on the right. The batch may be empty, `(0, 1)`.
        subject_position: Index of the subject's last token, `(batch,)`, int64.
        last_position: Index of each prompt's last token, `(batch,)`, int64.
    """

    def __init__(self, lm: LanguageModel, input_ids: Tensor, subject_position: Tensor, last_position: Tensor) -> None:
        self.lm = lm
        lm.check_ids(input_ids)
        self._ids = ids = input_ids.to(lm.device)
        self._subject, self._last = subject_position.to(lm.device), last_position.to(lm.device)
        self._shared = 0
        if len(ids) and lm.shares_prefix:
            beginning = ids[:, : int(subject_position.min())]
            self._shared = int((beginning == beginning[0]).all(0).long().cumprod(0).sum())

    @classmethod
    def join(cls, batches: Sequence[PromptBatch]) -> PromptBatch:
        """Return the prompts of several batches as one batch; what they have run is not kept."""
        length = max(batch._ids.shape[1] for batch in batches)
        ids = torch.cat([functional.pad(batch._ids, (0, length - batch._ids.shape[1])) for batch in batches])
        subject, last = (torch.cat([getattr(batch, name) for batch in batches]) for name in ("_subject", "_last"))
        return cls(batches[0].lm, ids, subject, last)

    def select(self, rows: Tensor) -> PromptBatch:
        """Return the prompts of `rows`, int64 `(chosen,)`; what the batch has run is not run again."""
        chosen, rows = copy.copy(self), rows.to(self._ids.device)
        chosen._ids, chosen._subject, chosen._last = self._ids[rows], self._subject[rows], self._last[rows]
        if "_groups" in vars(self):
            chosen._groups = [group.select(rows) for group in self._groups]
        return chosen

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self._ids)

    @torch.no_grad()
    def hidden_states(self, layers: Sequence[Layer], keep: bool = False) -> tuple[Tensor, Tensor]:
        """Run the prompts as they are.

        Args:
            layers: The layers of s.
            keep: Whether to keep the hidden states at all layers, from which the prompts are run with s replaced. Set
                it if they will be: then they need not be run as they are again.

        Returns:
            s, `(batch, layers, hidden)`, and o, `(batch, hidden)`, in the LM's dtype, on the LM's device.

        Raises:
            LREError: If a number is not finite, such as where an LM overflows in float16.
        """
        if not len(self):
            nothing = torch.empty(0, len(layers), self.lm.hidden_size, dtype=self.lm.dtype, device=self.lm.device)
            return nothing, nothing[:, 0]
        subject, output = self._kept(layers) if keep else self._plain(layers)
        check_finite(output, f"the last hidden states of {self.lm.name} are")
        return subject, output

    def _plain(self, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
        """Return s and o, as `hidden_states` does, from a run of which nothing is kept."""
        last = self.lm.num_layers - 1
        suffix = self._ids[:, self._shared : int(self._last.max()) + 1]
        found = self.lm.hidden_states(suffix, [*layers, last], self._context)
        rows, device = torch.arange(len(self), device=self._ids.device), self._ids.device

        def at(positions: Tensor, hidden: Tensor) -> Tensor:
            return hidden[rows.to(hidden.device), positions.to(hidden.device)].to(device)

        subjects = self._subject - self._shared
        subject = torch.stack([at(subjects, found[layer]) for layer in layers], dim=1)
        return subject, at(self._last - self._shared, found[last])

    def _kept(self, layers: Sequence[Layer]) -> tuple[Tensor, Tensor]:
        """Return s and o, as `hidden_states` does, from what is kept."""
        subject, output, device, last = [], [], self._ids.device, self.lm.num_layers - 1
        for group in self._groups:
            found = {layer: group.at(layer, group.places).to(device) for layer in (*layers, last)}
            subject.append(torch.stack([found[layer][:, group.position] for layer in layers], dim=1))
            output.append(found[last][:, -1])
        order = torch.cat([group.rows for group in self._groups]).argsort()
        return torch.cat(subject)[order], torch.cat(output)[order]

    @torch.no_grad()
    def patched(self, layer: Layer, subject: Tensor) -> Tensor:
        """Run the prompts with s replaced, `F(s, c | s := subject)`.

        The hidden states at all layers are kept for the next call: drop the batch when it is scored.

        Args:
            layer: The layer whose output at the subject's last token is replaced.
            subject: The values that replace it, `(batch, variants, hidden)`, in any floating dtype.

        Returns:
            o for every prompt and variant, `(batch, variants, hidden)`, in the LM's dtype, on the device of `subject`.
        """

        def work(chunk_size: int) -> Tensor:
            output = torch.empty(subject.shape, dtype=self.lm.dtype, device=subject.device)
            for rows, variants, run in self._chunks(layer, subject, chunk_size):
                output[rows, variants] = run(subject[rows, variants]).to(output.device)
            return output

        return self._run(subject[..., 0].numel(), work)

    @torch.no_grad()
    def continued(
        self, layer: Layer, subject: Tensor, rows: Tensor, tokens: Tensor, read: Callable[[Tensor, slice], Tensor]
    ) -> Tensor:
        """Run prompts with s replaced and with tokens after them; each prompt may be run with several texts.

        Args:
            layer: As in `patched`.
            subject: The values that replace s, `(batch, hidden)`, in any floating dtype.
            rows: The prompt of each run, int64 `(runs,)`.
            tokens: The token ids after it, int64 `(runs, length)`.
            read: Called with the last block's outputs at the tokens of some runs, `(some, length, hidden)`, and the
                slice of those runs; outputs of many runs would take too much memory.

        Returns:
            What `read` returned, joined.
        """
        order = torch.arange(tokens.shape[1], device=self._ids.device)

        def run(some: slice) -> Tensor:
            at, values = rows[some].to(self._ids.device), subject[rows[some].to(subject.device)]
            places, lines = self._last[at, None] + 1 + order, torch.arange(len(at), device=at.device)
            ids = functional.pad(self._ids[at], (0, len(order))).scatter(1, places, tokens[some].to(at.device))
            mentions, start = self._subject[at] - self._shared, 0

            def put(hidden: Tensor) -> Tensor:
                nonlocal start  # of the tokens that are run in one call
                here = (mentions >= start) & (mentions < start + hidden.shape[1])
                hidden, device = hidden.clone(), hidden.device
                replaced = values[here.to(values.device)].to(hidden)
                hidden[lines[here].to(device), mentions[here].to(device) - start] = replaced
                start += hidden.shape[1]
                return hidden

            self.lm.check_ids(ids[:, : int(places.max()) + 1])
            with replace(self.lm.module_at(layer), put):
                output = self.lm(ids[:, self._shared : int(places.max()) + 1], self._context)
            return read(output[lines[:, None].to(output.device), (places - self._shared).to(output.device)], some)

        def work(chunk_size: int) -> Tensor:
            return torch.cat([run(slice(top, top + chunk_size)) for top in range(0, len(rows), chunk_size)])

        return self._run(len(rows), work)

    def pullback(self, layer: Layer, subject: Tensor, cotangent: Tensor) -> Tensor:
        """Run the prompts with s replaced and compute u^T F'(s), the gradient of u . o with respect to s.

        Args:
            layer: As in `patched`.
            subject: As in `patched`.
            cotangent: u for every prompt, `(batch, hidden)`.

        Returns:
            u^T F'(s) for every prompt and variant, `(batch, variants, hidden)`, in the dtype and on the device of
            `subject`.

        Raises:
            LREError: In inference mode, where torch keeps no graph.
        """
        if torch.is_inference_mode_enabled():
            raise LREError("a pullback needs a graph: leave torch.inference_mode(), torch.no_grad() is fine")

        def work(chunk_size: int) -> Tensor:
            gradient = torch.empty_like(subject)
            for rows, variants, run in self._chunks(layer, subject, chunk_size):
                values = subject[rows, variants]
                u = cotangent[rows.to(cotangent.device), None].expand(values.shape)
                with slim_graph(self.lm.offloaded):
                    gradient[rows, variants] = vjp(run, values, u)
            return gradient

        return self._run(subject[..., 0].numel(), work)

    @torch.no_grad()
    def products(self, layer: Layer, vectors: Tensor, product: JacobianProduct) -> Tensor:
        """Multiply vectors by the Jacobians F'(s) of the prompts as they are.

        Args:
            layer: The layer of s.
            vectors: Vectors of each prompt, `(batch, variants, hidden)`, in any floating dtype.
            product: `jvp` for F'(s) v, or `vjp` for F'(s)^T v, of `lre_lightning.models.products`.

        Returns:
            The products, `(batch, variants, hidden)`, in the LM's dtype, on its device.

        Raises:
            RuntimeError: If an operation of the LM has no derivative in the mode of `product`.
        """

        def work(chunk_size: int) -> Tensor:
            found = torch.empty(vectors.shape, dtype=self.lm.dtype, device=self._ids.device)
            for group, prompts, variants in self._slices(vectors.shape[1], chunk_size):
                rows = group.rows[prompts]
                chosen = vectors[rows.to(vectors.device), variants].to(found)
                states = group.at(layer, group.places[prompts])[:, group.position, None].expand(chosen.shape).clone()
                run = partial(self._run_patched, layer, group, prompts)
                with self._sharing_between_lanes(group, *chosen.shape[:2]), slim_graph(self.lm.offloaded):
                    found[rows, variants] = product(run, states.to(found.device), chosen)
            return found

        with torch.inference_mode(False):
            return self._run(vectors[..., 0].numel(), work, "products with Jacobians", PRODUCTS_AT_A_TIME)

    def _sharing_between_lanes(self, group: _Group, prompts: int, lanes: int) -> AbstractContextManager[None]:
        positions = pieces(group.suffix, group.prefix)[0].shape[1]
        return one_slope_for_all_lanes(self.lm, lanes, prompts * lanes, positions, linear=not self.lm.offloaded)

    def _run(
        self,
        runs: int,
        work: Callable[[int], T],
        what: str = "patched prompts",
        numbers: Mapping[str, int] = NUMBERS_AT_A_TIME,
    ) -> T:
        tokens = 1 if self.lm.shares_prefix else int(self._last.max()) + 1  # of those that a run takes anew
        busy = busy_rows(self.lm.device, self.lm.hidden_size * tokens, numbers, max(1, 64 // tokens))
        copies = 0 if self._context is None else self._context.copy_bytes
        busy = min(busy, self.lm.rows_in_memory(copies) or busy)
        wanted = min(max(1, runs), self.lm.chunk_size or busy)
        return self.lm.chunk_sizes.run(what, wanted, work)

    def _chunks(
        self, layer: Layer, subject: Tensor, chunk_size: int
    ) -> Iterator[tuple[Tensor, slice, Callable[[Tensor], Tensor]]]:
        """Yield rows and variants of at most `chunk_size` runs, and the function that runs them with s replaced."""
        for group, prompts, variants in self._slices(subject.shape[1], chunk_size):
            run = partial(self._run_patched, layer, group, prompts)
            yield group.rows[prompts].to(subject.device), variants, run

    def _slices(self, variants: int, chunk_size: int) -> Iterator[tuple[_Group, slice, slice]]:
        """Yield groups with slices of their prompts and of the variants, of at most `chunk_size` runs."""
        width = min(variants, chunk_size)
        height = max(1, chunk_size // width)
        for group in self._groups:
            for top in range(0, len(group.rows), height):
                for left in range(0, variants, width):
                    yield group, slice(top, top + height), slice(left, left + width)

    def _run_patched(self, layer: Layer, group: _Group, prompts: slice, values: Tensor) -> Tensor:
        """Return o, `(prompts, variants, hidden)`, of some prompts of a group with s replaced by `values`."""
        count, variants = values.shape[:2]
        places = group.places[prompts]
        lines = places.repeat_interleave(variants)
        hidden = group.at(layer, lines)
        hidden[:, group.position] = values.flatten(0, 1).to(hidden)
        prefix = None if group.prefix is None else group.prefix.select(places)
        output = self.lm.run_from(layer, hidden, group.suffix[lines], prefix)[:, -1]
        return output.reshape(count, variants, -1)

    @cached_property
    def _context(self) -> Prefix | None:
        """The tokens that all prompts share."""
        return self.lm.prefix(self._ids[:1, : self._shared]) if len(self) else None

    @cached_property
    def _groups(self) -> list[_Group]:
        """The prompts, run as they are, in groups of one shape that fit into memory."""
        shapes = torch.stack([self._subject, self._last], 1)
        alike = [(shapes == shape).all(1).nonzero().flatten() for shape in shapes.unique(dim=0)]

        def work(chunk_size: int) -> list[_Group]:
            return [self._group(some) for rows in alike for some in rows.split(chunk_size)]

        return self._run(len(self), work, "prompts")

    def _group(self, rows: Tensor) -> _Group:
        """Run prompts of one shape as they are."""
        first, ids = int(rows[0]), self._ids[rows]
        subject, last = int(self._subject[first]), int(self._last[first])
        run = subject if self.lm.shares_prefix else 0
        prefix, suffix = self.lm.prefix(ids[:, self._shared : run], self._context), ids[:, run : last + 1]
        with torch.inference_mode(False), torch.no_grad():  # graphs may need them
            states = self.lm.hidden_states(suffix, self.lm.layers, prefix)
        places = torch.arange(len(rows), device=rows.device)
        return _Group(rows, places, prefix, suffix, subject - run, states)
