"""The parts of a causal LM: where it keeps its decoder blocks and its decoder head D.

The parts of a Hugging Face model are found from its structure, those of any other model are declared as `Parts`. Either
way they are checked by running the model on a few tokens, so that a wrong reading cannot pass unnoticed. No decision
depends on the name of a model or a module.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError, first_line
from lre_lightning.models.hooks import STREAMS_AXIS, hidden_of, observe, overridden, replace, skip
from lre_lightning.models.memory import slim_graph
from lre_lightning.models.placement import is_offloaded, runs_on
from lre_lightning.models.precision import agrees, check_finite, check_logits, neighbour, rounded_otherwise
from lre_lightning.models.prefix import Prefix, Way, pieces, run_after


@dataclass(frozen=True)
class Parts:
    """The parts of a causal LM that an LRE depends on: found for Hugging Face models, declared for your own.

    The model and its backbone are called with `input_ids`, `use_cache` and, for a suffix, `past_key_values`; the model
    returns an object with `logits` and `past_key_values`, such as a transformers `Cache`. Blocks take the hidden states
    `(batch, positions, hidden)` as their first argument and return them, alone or first in a tuple.

    Attributes:
        backbone: The model without its unembedding.
        embedding: The token embedding, with `weight` `(vocab, hidden)`; its output is the hidden state at layer
            ``"emb"``. If it has another width than those of the blocks, there is no such layer.
        blocks: The decoder blocks, first to last.
        unembedding: The module from the final norm's output to logits, with `weight` `(vocab, width)`.

    Example:
        >>> from lre_lightning import LanguageModel
        >>> from lre_lightning.models.parts import Parts
        >>> model = LanguageModel.from_pretrained("demo").model  # or an nn.Module of your own
        >>> body = model.model
        >>> parts = Parts(body, body.embed_tokens, list(body.layers), model.lm_head)
        >>> LanguageModel(model, name="mine", parts=parts).num_layers == len(body.layers)
        True
    """

    backbone: nn.Module
    embedding: nn.Module
    blocks: Sequence[nn.Module]
    unembedding: nn.Module


@dataclass(frozen=True)
class Behaviour:
    """What a model was found to do when it was run on a few tokens.

    Attributes:
        hidden_size: Width of the hidden states of blocks; residual streams are laid side by side.
        tuple_length: Length of the tuple that a block returns; None if it returns the hidden states alone.
        way: How prompts with a common beginning are run: the cheapest way that gives the results of whole prompts.
        skips: Whether it can be run from a block on, without those before.
        in_place: Whether a block changes the hidden states that it is given in place.
    """

    hidden_size: int
    tuple_length: int | None
    way: Way
    skips: bool
    in_place: bool


def context_length(model: nn.Module) -> int | None:
    """Return the number of tokens an LM is made for, None if its config does not say.

    LongRoPE changes all keys in prompts longer than the original context, which cached keys cannot follow. So what it
    adds to the context does not count.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = [rope, *(inner for inner in rope.values() if isinstance(inner, dict))]
    lengths = [getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len")]
    lengths += [entry["original_max_position_embeddings"] for entry in ropes if entry.get("rope_type") == "longrope"]
    return min((int(length) for length in lengths if length), default=None)


def find_parts(model: nn.Module) -> Parts:
    """Find the parts of a model from its structure."""
    from transformers import PreTrainedModel

    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise _unsupported(name, "it is not a Hugging Face PreTrainedModel, so its parts must be declared")
    if getattr(model.config, "is_encoder_decoder", False):
        raise _unsupported(name, "it has an encoder beside its decoder")
    embedding, unembedding = model.get_input_embeddings(), model.get_output_embeddings()
    backbone = next((child for child in model.children() if embedding in child.modules()), None)
    if backbone is None or unembedding is None:
        raise _unsupported(name, "it has no unembedding on top of its decoder")
    ran: set[nn.Module] = set()
    with nn.modules.module.register_module_forward_hook(lambda module, *_: ran.add(module)), torch.no_grad():
        _run(name, model, input_ids=probe_ids(embedding), use_cache=False)
    # Image and audio encoders don't run on text alone, nor do decoder blocks that attend to their output.
    lists = [
        (path, blocks)
        for path, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList) and (blocks := [block for block in module if block in ran])
    ]
    if not lists:
        raise _unsupported(name, "it has no list of decoder blocks")
    count = getattr(model.config.get_text_config(), "num_hidden_layers", None)
    # Of as many as the config has layers, which may mean something else, the outermost, and then the longest.
    _, blocks = min(lists, key=lambda item: (len(item[1]) != count, item[0].count("."), -len(item[1])))
    return Parts(backbone, embedding, tuple(blocks), unembedding)


def weight_of(module: nn.Module) -> Tensor:
    """Return the weight of a module, which has one."""
    return cast(Tensor, module.weight)


def _unsupported(name: str, why: str) -> LREError:
    return LREError(
        f"{name} is not supported: {why}. Supported are decoder-only LMs of transformers, and your own once its parts "
        "are declared: LanguageModel(model, parts=Parts(...))."
    )


def probe_ids(embedding: nn.Module) -> Tensor:
    """Return two prompts of four tokens that differ in the last one."""
    return torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]], device=runs_on(embedding))


def _run(name: str, module: Callable[..., Any], **inputs: Any) -> Any:
    try:
        return module(**inputs)
    except Exception as error:  # a model of another kind may fail in any way
        raise _unsupported(name, f"a few tokens cannot be run through it ({first_line(error)})") from error


def decode(model: nn.Module, parts: Parts, items: int | None, hidden: Tensor) -> Tensor:
    """Apply the decoder head D, all that the model does after its last block, to outputs of it `(..., hidden)`.

    `items` is the length of the tuple that a block returns. Returns logits `(..., vocab)`.
    """
    states = hidden.reshape(-1, 1, hidden.shape[-1])
    ids = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)
    embedded = states.new_ones(*ids.shape, weight_of(parts.embedding).shape[-1])  # any of the right shape
    with ExitStack() as stack:
        stack.enter_context(overridden({parts.embedding: lambda *_: embedded}))
        stack.enter_context(skip(parts.blocks, items))
        stack.enter_context(replace(parts.blocks[-1], lambda _: states))
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits.reshape(*hidden.shape[:-1], -1)


@torch.no_grad()
def first_states(parts: Parts, items: int | None, embedded: Tensor) -> Tensor:
    """Return what the model makes of token embeddings `(..., width)` before its first block, `(..., hidden)`."""
    states, seen = embedded.reshape(-1, 1, embedded.shape[-1]), list[Tensor]()
    ids = torch.zeros(states.shape[:2], dtype=torch.long, device=states.device)
    whole = overridden({parts.embedding: lambda *_: states.clone()})
    with whole, skip(parts.blocks, items), observe(parts.blocks[0], seen.append):
        parts.backbone(input_ids=ids, use_cache=False)
    return seen[0].reshape(*embedded.shape[:-1], -1)


@torch.no_grad()
def check_parts(model: nn.Module, parts: Parts) -> Behaviour:
    """Check by running it that a model is a decoder-only LM made of `parts`, and find out how it can be run."""
    name, ids = type(model).__name__, probe_ids(parts.embedding)
    modules = [parts.embedding, *parts.blocks, parts.unembedding]
    returned: list[Any] = []
    kept: list[Tensor] = []

    def keep(module: nn.Module, _inputs: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) else output
        if getattr(first, "ndim", 3) > 3 and first.shape[1:3] == ids.shape:
            setattr(module, STREAMS_AXIS, 0)
        returned.append(output)
        kept.append(hidden_of(module, output).clone())

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_hook(keep))
        logits = _run(name, model, input_ids=ids, use_cache=False).logits
    if len(returned) != len(modules):
        raise _unsupported(
            name, f"its token embedding, {len(parts.blocks)} blocks and unembedding do not run once each"
        )
    outputs, states = returned[:-1], kept[:-1]
    shapes = [tuple(hidden.shape) for hidden in states]
    if len({*shapes[1:]}) > 1 or {shape[:2] for shape in shapes} != {tuple(ids.shape)}:
        different = f"its token embeddings have the shape {shapes[0]} and its hidden states {shapes[-1]}"
        raise _unsupported(name, f"{different}, for token ids of the shape {tuple(ids.shape)}")
    for layer, hidden in zip(("emb", *range(len(parts.blocks))), states, strict=True):
        check_finite(hidden, f"the hidden states at layer {layer} of {name} are")
    check_logits(logits, name)
    _check_gradients(name, parts)
    if _sees_later_tokens(model, parts, states[-1]):
        raise _unsupported(name, "its hidden states depend on later tokens, so it is not a decoder-only LM")
    items = None if isinstance(outputs[-1], Tensor) else len(outputs[-1])
    decoded, rounded = (
        _run(name, partial(decode, model, parts, items), hidden=hidden)
        for hidden in (states[-1], neighbour(states[-1]))
    )
    if not agrees(decoded, logits, (decoded, rounded), logits.roll(1, 1)):
        raise _unsupported(name, "its logits do not follow from the last block's output alone")
    in_place = any(
        not torch.equal(hidden_of(module, output), state)
        for module, output, state in zip(modules[:-1], outputs, states, strict=True)
    )
    way = _find_way(parts)
    prefix = None if way == "whole" else Prefix.run(parts.backbone, probe_ids(parts.embedding)[:1, :2], way)
    _run(name, parts.backbone, input_ids=ids.flip(1), use_cache=False)  # so that blocks keep nothing of the right run
    skips = all(_runs_from_a_block(parts, items, states, before) for before in {None, prefix})
    return Behaviour(shapes[-1][-1], items, way, skips, in_place)


@torch.inference_mode(False)
def _sees_later_tokens(model: nn.Module, parts: Parts, states: Tensor) -> bool:
    """Return True if hidden states depend on later tokens.

    Their gradients with respect to these are exactly zero in a decoder, in any dtype. What no gradient shows, such as a
    choice among experts, is looked for in `states` `(2, positions, hidden)` of prompts that differ in their last token.
    """
    name, roots, last = type(model).__name__, list[Tensor](), list[Tensor]()
    ids = _longer_probe(parts.embedding)[:1, : context_length(model)]
    offloaded = [module for module in parts.backbone.modules() if is_offloaded(module)]
    with torch.enable_grad(), slim_graph(offloaded), ExitStack() as stack:
        stack.enter_context(replace(parts.embedding, partial(_start_graph, roots)))
        stack.enter_context(observe(parts.blocks[-1], last.append))
        _run(name, parts.backbone, input_ids=ids, use_cache=False)
    middle = ids.shape[1] // 2
    earlier = last[0][:, :middle]
    try:
        (gradient,) = torch.autograd.grad(earlier, roots[0], _cotangent(earlier))
    except RuntimeError as error:
        raise _unsupported(name, f"its hidden states have no gradients ({first_line(error)})") from error
    if gradient[:, middle:].nan_to_num(0, 0, 0).any():  # a gradient may overflow where the states do not
        return True
    with rounded_otherwise([parts.embedding, *parts.blocks[:-1]]), observe(parts.blocks[-1], last.append):
        _run(name, parts.backbone, input_ids=probe_ids(parts.embedding), use_cache=False)
    right, other = states[:, :-1]
    return not agrees(other, right, (last[-1][0, :-1], right), states[0, -1:].expand_as(right))


def _start_graph(roots: list[Tensor], hidden: Tensor) -> Tensor:
    """Return token embeddings that are the roots of a graph, and keep these."""
    roots.append(hidden.detach().requires_grad_(True))
    return roots[-1].clone()


def _cotangent(like: Tensor) -> Tensor:
    """Return a cotangent of hidden states `(..., hidden)`, which is not constant."""
    return torch.linspace(1, 2, like.shape[-1], dtype=like.dtype, device=like.device).expand(like.shape)


def _find_way(parts: Parts) -> Way:
    """Return the cheapest way to run prompts with a common beginning that gives the results of whole prompts.

    Caches are made for one token at a time. Several at a time must depend on every tensor that one token depends on: a
    model without code for them ignores a state, and that may change its results only little.
    """
    if _shares_prefix(parts):
        return "shared"
    try:
        *right, _ = _run_probe(parts, None)
        with rounded_otherwise(parts.blocks[:-1]):
            *rounded, _ = _run_probe(parts, None, change=neighbour)
    except Exception:  # a model of another kind may fail in any way
        return "whole"
    wholes = list(zip(right, rounded, strict=True))
    one_by_one = _used_states(parts, "stepwise", wholes)
    if one_by_one is None:
        return "whole"
    together = _used_states(parts, "copied", wholes)
    if together is None or any(alone and not in_copies for alone, in_copies in zip(one_by_one, together, strict=True)):
        return "stepwise"
    return "copied"


@torch.inference_mode(False)
@torch.no_grad()
def _shares_prefix(parts: Parts) -> bool:
    """Return True if suffixes of several tokens, and of one, on keys and values of prefixes equal whole prompts."""
    ids = _longer_probe(parts.embedding)
    ids = torch.stack([ids[0], ids[0].flip(0)])  # which differ everywhere, so that a wrong prefix shows most

    def last_states(prefix: Prefix | None, ids: Tensor) -> Tensor:
        seen: list[Tensor] = []
        with observe(parts.blocks[-1], seen.append):
            run_after(prefix, parts.backbone, ids)
        return seen[0]

    try:
        with rounded_otherwise([parts.embedding, *parts.blocks[:-1]], len(ids)):
            right, rounded = last_states(None, ids.repeat(2, 1)).chunk(2)
        prefix = None
        for start, length in ((0, 20), (20, 26)):
            prefix = Prefix.run(parts.backbone, ids[:, start:length], "shared", prefix)
            layers = prefix.cache.layers
            if any(layer.keys is None for layer in layers) or len(layers) < len(parts.blocks):
                return False
            # Each prefix is continued by its own suffix and then by the other's; lanes are in the order of prefixes.
            found, wrong = last_states(prefix, ids[[0, 1, 1, 0], length:]).view(2, 2, -1, right.shape[-1]).unbind(1)
            if not agrees(found, right[:, length:], (right[:, length:], rounded[:, length:]), wrong.flip(0)):
                return False
    except Exception:  # a cache of another kind may fail in any way
        return False
    return True


@torch.inference_mode(False)
@torch.no_grad()
def _used_states(parts: Parts, way: Way, wholes: Sequence[tuple[Tensor, Tensor]]) -> list[bool] | None:
    """Return which tensors of a prefix's cache a longer suffix depends on; None if runs of prefixes are wrong.

    Models have other code for a single token than for several, so both are tried, in prefixes and suffixes. States and
    gradients must equal `wholes`, those of whole prompts, each with itself rounded otherwise.
    """
    prefix, used = None, list[bool]()
    try:
        for start, end in itertools.pairwise((0, 20, 23, 24, 26)):
            ids = _longer_probe(parts.embedding)[: 1 if start == 0 else 2, start:end]
            prefix = Prefix.run(parts.backbone, ids, way, prefix)
            if end in (23, 26):
                *wrong, _ = _run_probe(parts, prefix, swapped=True)
                *found, drawn_on = _run_probe(parts, prefix)
                for result, other, whole in zip(found, wrong, wholes, strict=True):
                    expected, changed = (one[:, end : end + result.shape[1]] for one in whole)
                    if not agrees(result, expected, (expected, changed), other):
                        return None
                used = used or drawn_on
    except Exception:  # a cache of another kind may fail in any way
        return None
    return used


@torch.enable_grad()
@torch.inference_mode(False)
def _run_probe(
    parts: Parts, prefix: Prefix | None, swapped: bool = False, change: Callable[[Tensor], Tensor] = Tensor.clone
) -> tuple[Tensor, Tensor, list[bool]]:
    """Run what follows a prefix in the longer probe, on two lanes for each of its prompts.

    If `swapped`, each suffix follows the prefix of the other prompt; `change` is made to the token embeddings. Returns
    the last states `(4, positions, hidden)`, the gradient of the last one with respect to the embeddings that are run
    in one call with the first, and for each tensor of the prefix's cache whether its gradient is not zero.
    """
    ids = _longer_probe(parts.embedding)[:, 0 if prefix is None else prefix.length :].repeat_interleave(2, 0)
    states = [] if prefix is None else [tensor.requires_grad_(True) for tensor in prefix.tensors()]
    roots, outputs = list[Tensor](), list[Tensor]()
    offloaded = [module for module in parts.backbone.modules() if is_offloaded(module)]
    with slim_graph(offloaded), ExitStack() as stack:
        stack.enter_context(replace(parts.embedding, lambda hidden: change(_start_graph(roots, hidden))))
        stack.enter_context(observe(parts.blocks[-1], outputs.append))
        run_after(prefix, parts.backbone, ids.flip(0) if swapped else ids)
    last = outputs[-1][:, -1]
    gradient, *drawn_on = torch.autograd.grad(last, [roots[0], *states], _cotangent(last), materialize_grads=True)
    results = torch.cat(outputs, 1).detach(), gradient if prefix is None else gradient[:, :1]
    hidden, gradient = (tensor.flip(0) if swapped else tensor for tensor in results)
    return hidden, gradient, [bool(of_state.any()) for of_state in drawn_on]


def _longer_probe(embedding: nn.Module) -> Tensor:
    """Return two prompts of 27 tokens that differ in the last seven; a prefix of a few would hide a wrong position."""
    ids = torch.arange(54).view(2, 27) * 5 % min(23, len(weight_of(embedding)))
    ids[1, :20] = ids[0, :20]
    return ids.to(runs_on(embedding))


def _runs_from_a_block(parts: Parts, items: int | None, states: list[Tensor], prefix: Prefix | None) -> bool:
    """Return True if the last block, run without those before, gives what it gives after them."""
    ids, start = probe_ids(parts.embedding), 0 if prefix is None else prefix.length
    before = [parts.embedding, *parts.blocks][-2]

    def run_on(hidden: Tensor) -> Tensor:
        given, seen = iter(pieces(hidden[:, start:], prefix)), list[Tensor]()
        states_before = replace(before, lambda _: next(given).clone())
        with states_before, observe(parts.blocks[-1], seen.append), skip(parts.blocks[:-1], items):
            run_after(prefix, parts.backbone, ids[:, start:])
        return torch.cat(seen, 1)

    try:
        found, rounded = (run_on(hidden) for hidden in (states[-2], neighbour(states[-2])))
    except Exception:  # a block may need something from those before
        return False
    right = states[-1][:, start:]
    return agrees(found, right, (found, rounded), right.roll(1, 1))


@torch.enable_grad()
@torch.inference_mode(False)
def _check_gradients(name: str, parts: Parts) -> None:
    """Refuse a model with a quantized vocabulary, or with integer layers that pass on no gradients."""
    for module in (parts.embedding, parts.unembedding):
        if not weight_of(module).is_floating_point():
            raise _unsupported(
                name, f"the weights of its {type(module).__name__} are quantized: quantize only its blocks"
            )
    cut: list[nn.Module] = []

    def check(module: nn.Module, inputs: Any, output: Any) -> None:
        given = next((tensor for tensor in inputs if isinstance(tensor, Tensor) and tensor.requires_grad), None)
        if given is None or not isinstance(output, Tensor):
            return
        gradient = None
        if output.requires_grad:  # it may be so, and the gradient zero
            cotangent = torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
            (gradient,) = torch.autograd.grad(output, given, cotangent, retain_graph=True, allow_unused=True)
        if gradient is None or (output.any() and not gradient.any()):
            cut.append(module)

    layers = [module for block in parts.blocks for module in block.modules() if _has_whole_numbers(module)]
    with ExitStack() as stack:
        for module in layers:
            stack.enter_context(module.register_forward_hook(check))
        if layers:
            stack.enter_context(replace(parts.embedding, lambda hidden: hidden.detach().requires_grad_(True)))
            _run(name, parts.backbone, input_ids=probe_ids(parts.embedding))
    if cut:
        raise _unsupported(name, f"its {type(cut[0]).__name__} passes on no gradients")


def _has_whole_numbers(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(not tensor.is_floating_point() and tensor.dtype != torch.bool for tensor in own)
