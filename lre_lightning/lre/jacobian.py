"""The Jacobian do/ds of an LM's decoding of a prompt, at every layer, from one reverse sweep.

Four measures make it cheap without changing the result (Section 3.1 of the paper defines it; the tests compare every
element with the plain computation over the whole prompt):

* Tokens before the subject's last token do not depend on s. Their keys and values are computed once, without a graph.
* The gradient of o with respect to the subject position *as a node of the graph at a layer* is that layer's Jacobian,
  so one set of `hidden` vector-Jacobian products yields all layers.
* Cotangents go in chunks: the suffix is repeated over the lanes of a batch, run forward once, and every ordinary
  backward pass through that one graph gives as many rows of every layer's Jacobian as there are lanes. Where a prompt
  of a small LM leaves a device idle, prompts of one shape share a sweep.
* Work that equal lanes have in common is not repeated: they attend to one prefix, which no backward pass enters
  (`caches.py`), and share the slopes of activations and the forward pass of linear layers (`activations.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from lre_lightning import paper
from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, place_of
from lre_lightning.models.activations import one_slope_for_all_lanes
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.memory import busy_rows, slim_graph
from lre_lightning.models.precision import check_finite
from lre_lightning.models.prefix import Prefix, pieces

NUMBERS_AT_A_TIME = {"cpu": 2**16, "other": 2**18}
"""Size of a batch of hidden states (lanes x width) that keeps a device busy."""

MOST_PROMPTS = 4
"""The most prompts in one sweep. A sweep belongs to one process, so large ones would leave other processes idle."""


@dataclass(frozen=True, eq=False)
class PromptJacobian:
    """First-order behaviour of the LM around one prompt, in the LM's dtype, on its device, without a graph.

    Attributes:
        jacobian: do/ds by layer, each `(hidden, hidden)`: row i is the gradient of o_i.
        subject: s by layer, each `(hidden,)`.
        object: o, `(hidden,)`: output of the last block at the prompt's last token, before the final norm, or what
            `prompt_jacobian` was asked for instead.
    """

    jacobian: dict[Layer, Tensor]
    subject: dict[Layer, Tensor]
    object: Tensor

    def bias(self, layer: Layer) -> Tensor:
        """Return o - (do/ds) s at `layer`, `(hidden,)`, in float32 or the LM's dtype if that is wider (Equation 2)."""
        wide = torch.promote_types(self.object.dtype, torch.float32)
        return paper.bias(self.object.to(wide), self.jacobian[layer].to(wide) @ self.subject[layer].to(wide))


def prompt_jacobian(
    lm: LanguageModel,
    input_ids: Tensor,
    subject_position: int,
    layers: Sequence[Layer] | None = None,
    object_layer: Layer | None = None,
    object_tokens: int = 1,
) -> PromptJacobian:
    """Compute do/ds at every requested layer for one prompt.

    `lm.chunk_size` rows of the Jacobians are computed at a time. If it is None, as many as fit into half of the free
    memory of the LM's devices, but no more than keep them busy; with offloaded weights, which are loaded again for
    every chunk, as many as fit.

    Args:
        lm: The language model.
        input_ids: The prompt's token ids `(positions,)`, int64, without padding.
        subject_position: Index of the subject's last token.
        layers: Layers of the Jacobians; all up to `object_layer` if None.
        object_layer: The layer of o; the last block if None.
        object_tokens: Number of the last tokens over which o is the mean: with all of an object's tokens but the last
            one after the prompt, those that predict the object (Chanin et al., 2024, Section 3).

    Raises:
        LREError: If a position, layer or token id is out of range, the prompt is too long for the LM, a Jacobian is not
            finite, or memory does not hold a chunk of a single row.
    """
    if not 0 <= subject_position < len(input_ids):
        raise LREError(f"subject position {subject_position} is out of range: the prompt has {len(input_ids)} tokens")
    if not 1 <= object_tokens <= len(input_ids) - subject_position:
        after = len(input_ids) - subject_position
        raise LREError(f"object_tokens {object_tokens} is out of range: there are {after} tokens from the subject on")
    count, positions = len(input_ids), range(subject_position, subject_position + 1)
    (found,) = sweep(lm, input_ids[None], positions, range(count - object_tokens, count), layers, object_layer)
    if object_tokens == 1:
        return found
    means = {layer: total / object_tokens for layer, total in found.jacobian.items()}
    return PromptJacobian(means, found.subject, found.object)


def sweep(
    lm: LanguageModel,
    input_ids: Tensor,
    sources: range,
    targets: range,
    layers: Sequence[Layer] | None = None,
    object_layer: Layer | None = None,
) -> list[PromptJacobian]:
    """Compute the sum over target positions of do/ds, in the mean over source positions, at every requested layer.

    Args:
        lm: As in `prompt_jacobian`.
        input_ids: Token ids of prompts `(prompts, positions)`, int64, without padding.
        sources: Consecutive positions of s. Tokens before the first of them are a prefix without a graph.
        targets: Consecutive positions of o.
        layers: As in `prompt_jacobian`.
        object_layer: As in `prompt_jacobian`.

    Returns:
        The Jacobian of each prompt, with the means of s over the sources and of o over the targets: in the LM's dtype
        where that is one position, else in float32 or the LM's dtype if that is wider.
    """
    lm.check_ids(input_ids)
    (above,) = lm.check_layers(lm.layers[-1:] if object_layer is None else [object_layer])
    chosen = lm.check_layers(lm.layers[: lm.layers.index(above) + 1] if layers is None else layers)
    if place_of(chosen[-1]) > place_of(above):
        raise LREError(f"layer {chosen[-1]!r} is above the object layer {above!r}, which does not depend on it")
    with torch.inference_mode(False):
        ids = input_ids.to(lm.device, copy=True)
        # Several sources would be in several pieces of a suffix that is run one token at a time.
        run_once = lm.shares_prefix and (len(sources) == 1 or lm.way != "stepwise")
        shared = sources.start if run_once else 0
        prefix, suffixes = lm.prefix(ids[:, :shared]), ids[:, shared:]
        source, target = (slice(places.start - shared, places.stop - shared) for places in (sources, targets))
        wanted = lm.chunk_size or _fitting_lanes(lm, suffixes, prefix, chosen, len(sources))
        passes = math.ceil(lm.hidden_size / max(1, wanted // len(ids)))
        result = lm.chunk_sizes.run(
            "rows of a Jacobian",
            math.ceil(lm.hidden_size / passes),
            lambda lanes: _compute(lm, suffixes, lanes, source, target, prefix, chosen, above),
        )
    for layer, jacobians in result.jacobian.items():
        check_finite(jacobians, f"the Jacobian at layer {layer} of {lm.name} is")
    return [
        PromptJacobian(
            {layer: jacobians[row] for layer, jacobians in result.jacobian.items()},
            {layer: states[row] for layer, states in result.subject.items()},
            output,
        )
        for row, output in enumerate(result.object)
    ]


def prompts_in_a_sweep(lm: LanguageModel, device: torch.device | None = None) -> int:
    """Return how many prompts' Jacobians keep a device busy, that of the LM if None, from one to `MOST_PROMPTS`.

    That depends on nothing but the LM, its chunk size and the type of the device, and is the same in all processes.
    """
    busy = lm.chunk_size or busy_rows(device or lm.device, lm.hidden_size, NUMBERS_AT_A_TIME, 1)
    return min(MOST_PROMPTS, max(1, busy // lm.hidden_size))


def _compute(
    lm: LanguageModel,
    suffixes: Tensor,
    lanes: int,
    source: slice,
    target: slice,
    prefix: Prefix | None,
    layers: tuple[Layer, ...],
    object_layer: Layer,
) -> PromptJacobian:
    """Sweep back through the graph of suffixes `(prompts, suffix)`; each pass yields a row per prompt and lane.

    Everything in the result has an axis of prompts in front.
    """
    prompts, device = len(suffixes), lm.device
    nodes, outputs = _suffix_graph(lm, suffixes, lanes, prefix, layers, object_layer)
    output = outputs[:, target]
    hidden = output.shape[-1]
    states = {layer: _mean(node[::lanes, source].detach()) for layer, node in nodes.items()}
    jacobians = {layer: state.new_empty(prompts, hidden, hidden) for layer, state in states.items()}
    for start in range(0, hidden, lanes):
        count = min(lanes, hidden - start)
        cotangents, rows = torch.zeros_like(output), torch.arange(count)
        cotangents.unflatten(0, (prompts, lanes))[:, rows, :, start + rows] = 1
        last = start + lanes >= hidden
        gradients = torch.autograd.grad(output, list(nodes.values()), cotangents, not last, materialize_grads=True)
        for jacobian, gradient in zip(jacobians.values(), gradients, strict=True):
            jacobian[:, start : start + count] = _mean(gradient.unflatten(0, (prompts, lanes))[:, :count, source])
    return PromptJacobian(
        jacobian={layer: jacobian.to(device) for layer, jacobian in jacobians.items()},
        subject={layer: state.to(device) for layer, state in states.items()},
        object=_mean(output[::lanes].detach()).to(device),
    )


def _mean(states: Tensor) -> Tensor:
    """Return the mean over positions, the last axis but one, of states; that of a single one in its own dtype."""
    if states.shape[-2] == 1:
        return states.squeeze(-2).clone()
    return states.mean(-2, dtype=torch.promote_types(states.dtype, torch.float32))


def _fitting_lanes(
    lm: LanguageModel, suffixes: Tensor, prefix: Prefix | None, layers: tuple[Layer, ...], sources: int = 1
) -> int:
    """Return how many lanes half of the free memory holds: each takes a graph and as much again for a backward pass."""
    busy = busy_rows(lm.device, lm.hidden_size * sources, NUMBERS_AT_A_TIME, max(8, 32 // sources))
    most = lm.hidden_size if lm.offloaded else busy
    shape = (suffixes.shape[1], 0 if prefix is None else prefix.length // 64, layers[0])
    if shape not in lm.lane_bytes:
        copies = 0 if prefix is None else prefix.copy_bytes
        lm.lane_bytes[shape] = max(1, copies + _graph_bytes(lm, suffixes, prefix, layers) // len(suffixes))
    return min(most, lm.rows_in_memory(lm.lane_bytes[shape]) or most)


def _graph_bytes(lm: LanguageModel, suffixes: Tensor, prefix: Prefix | None, layers: tuple[Layer, ...]) -> int:
    """Measure the bytes that the graph of single lanes keeps for a backward pass, apart from the LM's weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in lm.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()

    _suffix_graph(lm, suffixes, 1, prefix, layers, lm.num_layers - 1, note=note)
    return sum(kept.values())


def _suffix_graph(
    lm: LanguageModel,
    suffixes: Tensor,
    lanes: int,
    prefix: Prefix | None,
    layers: tuple[Layer, ...],
    object_layer: Layer,
    note: Callable[[Tensor], None] | None = None,
) -> tuple[dict[Layer, Tensor], Tensor]:
    """Run suffixes `(prompts, suffix)`; return nodes by layer and o, each `(prompts * lanes, suffix, hidden)`.

    The graph starts at the first requested layer; `note` is called with every tensor that it keeps. If the tokens are
    run one at a time, the nodes are those of the first one, the subject's last.
    """
    nodes: dict[Layer, Tensor] = {}

    def start_graph(hidden: Tensor) -> Tensor:
        if nodes:
            return hidden
        nodes[layers[0]] = hidden.detach().requires_grad_(True)
        return nodes[layers[0]].clone()  # a block may change it in place

    ids = suffixes.repeat_interleave(lanes, 0)
    with torch.enable_grad(), ExitStack() as stack:
        stack.enter_context(slim_graph(lm.offloaded, note))
        batch, positions = pieces(ids, prefix)[0].shape
        stack.enter_context(one_slope_for_all_lanes(lm, lanes, batch, positions, linear=not lm.offloaded))
        stack.enter_context(replace(lm.module_at(layers[0]), start_graph))
        found = lm.states_by_piece(ids, [*layers[1:], object_layer], prefix)
    nodes |= {layer: found[layer][0] for layer in layers[1:]}
    outputs = found[object_layer]
    return nodes, outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1)
