"""Where a causal LM keeps its decoder blocks and its decoder head D.

For a Hugging Face model everything is found from its structure, for any other it is declared as `Parts`; either way it
is checked by running the model on a few tokens, so that a wrong reading cannot pass silently. No name of a model or of
a module decides anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError, first_line
from lre_lightning.models.caches import share_cache
from lre_lightning.models.hooks import hidden_of, observe, replace, runs_on, skip

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUPPORTED = (
    "GPT-2, GPT-J, GPT-Neo, GPT-NeoX (Pythia), OPT, BLOOM, Falcon, MPT, Phi, Llama, Mistral, Mixtral, Qwen, Gemma, "
    "OLMo, StableLM, StarCoder2, Cohere and Granite"
)

LOGIT_TRANSFORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "logit_scale": lambda logits, scale: logits * scale,
    "logits_scaling": lambda logits, scale: logits / scale,
    "final_logit_softcapping": lambda logits, cap: torch.tanh(logits / cap) * cap,
}
"""What a number in a config does to the logits after the unembedding, in this order, in the families that use it."""

CONTEXT_LENGTHS = ("max_position_embeddings", "max_seq_len")
"""What configs call the number of tokens that the LM is made for."""


def unchanged(logits: Tensor) -> Tensor:
    """Logits that are what the unembedding returns."""
    return logits


@dataclass(frozen=True)
class Parts:
    """The parts of a causal LM that an LRE is made of: found for Hugging Face models, declared for your own.

    The backbone is called with `input_ids` and, for a suffix, `past_key_values` and ``use_cache=True``; the model
    returns an object with `logits` and `past_key_values`, a transformers `Cache`. Blocks take the hidden states
    `(batch, positions, hidden)` as their first argument and return them, alone or first in a tuple.

    Attributes:
        backbone: The model without its unembedding.
        embedding: The token embedding, with `weight` `(vocab, hidden)`; its output is the hidden state at layer
            ``"emb"``.
        blocks: The decoder blocks, first to last.
        head: Applied to the last block's output before the unembedding (the final norm), in order.
        unembedding: The module from the final norm's output to logits, with `weight` `(vocab, hidden)`.
        logits: What the architecture does to the unembedding's output, such as a scale or a soft cap.

    Example:
        >>> from lre_lightning import LanguageModel
        >>> from lre_lightning.models.parts import Parts
        >>> model = LanguageModel.from_pretrained("demo").model  # or an nn.Module of your own
        >>> body = model.model
        >>> parts = Parts(body, body.embed_tokens, list(body.layers), [body.norm], model.lm_head)
        >>> LanguageModel(model, name="mine", parts=parts).num_layers == len(body.layers)
        True
    """

    backbone: nn.Module
    embedding: nn.Module
    blocks: Sequence[nn.Module]
    head: Sequence[Callable[[Tensor], Any]]
    unembedding: nn.Module
    logits: Callable[[Tensor], Tensor] = unchanged


@dataclass(frozen=True)
class Form:
    """What a run of the model shows about its blocks.

    Attributes:
        hidden_size: Width of the hidden states.
        items: Length of the tuple that a block returns; None if it returns the hidden states alone.
    """

    hidden_size: int
    items: int | None


def transform_logits(numbers: dict[str, float], logits: Tensor) -> Tensor:
    """Apply the logit scales and soft caps of `LOGIT_TRANSFORMS` that are in `numbers`.

    Args:
        numbers: Attributes of a config and their values.
        logits: Output of the unembedding, shape ``(..., vocab)``.
    """
    for name, transform in LOGIT_TRANSFORMS.items():
        if name in numbers:
            logits = transform(logits, numbers[name])
    return logits


def context_length(config: Any) -> int | None:
    """How many tokens an LM is made for, None if its config does not say.

    LongRoPE turns all keys anew in prompts longer than the original context, which cached keys cannot follow: what it
    adds to the context is left out.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    ropes = [rope, *(inner for inner in rope.values() if isinstance(inner, dict))]
    lengths = [getattr(config, name, None) for name in CONTEXT_LENGTHS]
    lengths += [one["original_max_position_embeddings"] for one in ropes if one.get("rope_type") == "longrope"]
    return min((int(length) for length in lengths if length), default=None)


def find_parts(model: nn.Module) -> Parts:
    """Find the decoder blocks and the decoder head of `model` from its structure.

    Args:
        model: A causal LM with its unembedding, as `AutoModelForCausalLM` loads it.

    Raises:
        LREError: If the model is not a decoder-only LM with one stack of blocks and an unembedding.
    """
    from transformers import PreTrainedModel

    name = type(model).__name__
    if not isinstance(model, PreTrainedModel):
        raise _unsupported(name, "it is no Hugging Face PreTrainedModel, so its parts must be declared")
    if getattr(model.config, "is_encoder_decoder", False):
        raise _unsupported(name, "it has an encoder beside its decoder")
    backbone, embedding, unembedding = model.base_model, model.get_input_embeddings(), model.get_output_embeddings()
    if backbone is model or embedding is None or unembedding is None:
        raise _unsupported(name, "it has no unembedding on top of its decoder")
    blocks = _find_blocks(name, backbone, model.config.get_text_config().num_hidden_layers)
    parts = Parts(backbone, embedding, blocks, _find_head(name, backbone, blocks, _probe_ids(embedding)), unembedding)
    return dataclasses.replace(parts, logits=_find_logits(model, parts))


def _unsupported(name: str, why: str) -> LREError:
    return LREError(
        f"{name} is not supported: {why}. Decoder-only LMs are, such as {SUPPORTED}, and your own once its parts are "
        "declared: LanguageModel(model, parts=Parts(...))."
    )


def _find_blocks(name: str, backbone: nn.Module, count: int) -> tuple[nn.Module, ...]:
    """The outermost list of `count` modules of one kind below `backbone`."""
    lists = [
        (path, module)
        for path, module in backbone.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise _unsupported(name, f"it has no list of {count} decoder blocks")
    _, blocks = min(lists, key=lambda item: item[0].count("."))
    return tuple(blocks)


def _probe_ids(embedding: nn.Module) -> Tensor:
    """Two prompts of four tokens that differ in the last one."""
    return torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]], device=runs_on(embedding))


def _run(name: str, module: Callable[..., Any], **inputs: Any) -> Any:
    try:
        return module(**inputs)
    except Exception as error:  # whatever a model of another kind stumbles over
        raise _unsupported(name, f"a few tokens cannot be run through it ({first_line(error)})") from error


@torch.no_grad()
def _find_head(name: str, backbone: nn.Module, blocks: Sequence[nn.Module], ids: Tensor) -> tuple[nn.Module, ...]:
    """The modules outside the blocks that run after the last block, in their order."""
    ran: list[nn.Module] = []
    inside = {id(module) for block in blocks for module in block.modules()}
    outer = [m for m in backbone.modules() if id(m) not in inside and not any(b in m.modules() for b in blocks)]

    def note(module: nn.Module) -> Callable[..., None]:
        return lambda *_: ran.append(module)

    handles = [module.register_forward_hook(note(module)) for module in outer]
    handles.append(blocks[-1].register_forward_hook(lambda *_: ran.clear()))
    try:
        _run(name, backbone, input_ids=ids, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    nested = {id(child) for module in ran for child in module.modules() if child is not module}
    return tuple(module for module in ran if id(module) not in nested)


@torch.no_grad()
def _find_logits(model: PreTrainedModel, parts: Parts) -> Callable[[Tensor], Tensor]:
    """What turns the unembedding's output into the model's logits, of what numbers in its config may mean.

    A number may be there and mean nothing in this family: of all choices of them, what fits the logits best.
    """
    config, name = model.config.get_text_config(), type(model).__name__
    found = {attribute: getattr(config, attribute, None) for attribute in LOGIT_TRANSFORMS}
    numbers = [(attribute, float(value)) for attribute, value in found.items() if isinstance(value, int | float)]
    if not numbers:
        return unchanged
    seen: list[Tensor] = []
    with observe(parts.blocks[-1], seen.append):
        logits = _run(name, model, input_ids=_probe_ids(parts.embedding)).logits
    raw = _run(name, partial(decode, parts), hidden=seen[-1])
    choices = [dict(chosen) for count in range(len(numbers), -1, -1) for chosen in combinations(numbers, count)]
    errors = [float((transform_logits(chosen, raw) - logits.to(raw)).abs().max()) for chosen in choices]
    return partial(transform_logits, choices[errors.index(min(errors))])


def _equal(found: Tensor, expected: Tensor, root: int = 1) -> bool:
    """Whether two results of one computation are equal up to rounding; a higher root allows for more of it."""
    tolerance = (64 * torch.finfo(found.dtype).eps) ** (1 / root)
    expected = expected.to(found)
    return torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@torch.no_grad()
def check_parts(model: nn.Module, parts: Parts) -> Form:
    """Check by running it that `model` is a decoder-only LM made of `parts`.

    Raises:
        LREError: If its hidden states depend on later tokens, a suffix cannot be run on cached keys and values or from
            one of its blocks on, or its logits are not D of its last block's output.
    """
    name, ids = type(model).__name__, _probe_ids(parts.embedding)
    returned, output = _run_watched(name, model, parts, ids)
    states = [hidden_of(one) for one in returned]
    form = Form(states[-1].shape[-1], None if isinstance(returned[-1], Tensor) else len(returned[-1]))
    shapes = [tuple(hidden.shape) for hidden in states]
    if len(set(shapes)) > 1:
        raise _unsupported(name, f"its token embeddings have the shape {shapes[0]} and its hidden states {shapes[-1]}")
    if not _equal(states[-1][0, :-1], states[-1][1, :-1]):
        raise _unsupported(name, "its hidden states depend on later tokens, so it is not a decoder-only LM")
    _check_suffix(name, parts, form, ids, states)
    if not _equal(_run(name, partial(decode, parts), hidden=states[-1]), output.logits):
        raise _unsupported(name, "its logits are not its final norm and unembedding of the last block's output")
    _check_quantized(name, parts, ids)
    return form


def _run_watched(name: str, model: nn.Module, parts: Parts, ids: Tensor) -> tuple[list[Any], Any]:
    """Run the model; return what its token embedding and each of its blocks return, and what it returns itself."""
    returned: list[Any] = []
    modules = [parts.embedding, *parts.blocks]
    handles = [one.register_forward_hook(lambda _module, _inputs, output: returned.append(output)) for one in modules]
    try:
        output = _run(name, model, input_ids=ids, use_cache=True)
    finally:
        for handle in handles:
            handle.remove()
    if len(returned) != len(modules):
        raise _unsupported(name, f"its token embedding and {len(parts.blocks)} blocks do not run once each")
    return returned, output


def _check_suffix(name: str, parts: Parts, form: Form, ids: Tensor, states: list[Tensor]) -> None:
    """Refuse a model that runs a suffix on a cache, or from a block on, otherwise than the whole prompt."""
    cache = getattr(_run(name, parts.backbone, input_ids=ids[:1, :2], use_cache=True), "past_key_values", None)
    layers = getattr(cache, "layers", [])
    if len(layers) < len(parts.blocks) or any(getattr(layer, "keys", None) is None for layer in layers):
        raise _unsupported(name, "it keeps no attention keys and values for each of its blocks")

    def run_suffix() -> Any:
        suffix_cache = share_cache(cache)
        return _run(name, parts.backbone, input_ids=ids[:, 2:], past_key_values=suffix_cache, use_cache=True)

    seen: list[Tensor] = []
    before = [parts.embedding, *parts.blocks][-2]
    with observe(parts.blocks[-1], seen.append):
        with skip(parts.blocks[:-1], form.items), replace(before, lambda _: states[-2][:, 2:]):
            run_suffix()
        run_suffix()
    if not all(_equal(found, states[-1][:, 2:], root=3) for found in seen):
        raise _unsupported(name, "the end of a prompt, run on cached keys and values, differs from the whole prompt")


@torch.enable_grad()
@torch.inference_mode(False)
def _check_quantized(name: str, parts: Parts, ids: Tensor) -> None:
    """Refuse a model whose vocabulary is quantized, or that has layers of whole numbers that pass no gradients on."""
    for module in (parts.embedding, parts.unembedding):
        weight: Any = module.weight
        if not weight.is_floating_point():
            raise _unsupported(
                name, f"the weights of its {type(module).__name__} are quantized: leave them as they are"
            )
    cut: list[nn.Module] = []

    def watch(module: nn.Module, inputs: Any, output: Any) -> None:
        given = next((one for one in inputs if isinstance(one, Tensor) and one.requires_grad), None)
        if given is not None and isinstance(output, Tensor) and not _passes_gradients(given, output):
            cut.append(module)

    layers = [module for block in parts.blocks for module in block.modules() if _has_whole_numbers(module)]
    with ExitStack() as stack:
        for module in layers:
            stack.callback(module.register_forward_hook(watch).remove)
        if layers:
            stack.enter_context(replace(parts.embedding, lambda hidden: hidden.detach().requires_grad_(True)))
            _run(name, parts.backbone, input_ids=ids.clone())
    if cut:
        raise _unsupported(name, f"its {type(cut[0]).__name__} passes no gradients on")


def _passes_gradients(given: Tensor, output: Tensor) -> bool:
    """Whether some gradient of a layer's output is not zero; an operation without one may claim to have it."""
    if not output.requires_grad:
        return False
    cotangent = torch.linspace(1, 2, output.numel(), dtype=output.dtype, device=output.device).view_as(output)
    (gradient,) = torch.autograd.grad(output, given, cotangent, retain_graph=True, allow_unused=True)
    return gradient is not None and bool(gradient.any() or not output.any())


def _has_whole_numbers(module: nn.Module) -> bool:
    own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    return any(not tensor.is_floating_point() and tensor.dtype != torch.bool for tensor in own)


def decode(parts: Parts, hidden: Tensor) -> Tensor:
    """The decoder head D: final norm, unembedding, logit scale and soft cap.

    Args:
        parts: The LM's parts.
        hidden: Output of the last decoder block, shape ``(..., hidden)``, in the LM's dtype, where its head computes.

    Returns:
        Logits of shape ``(..., vocab)``.
    """
    for module in parts.head:
        hidden = hidden_of(module(hidden))
    logits: Tensor = parts.unembedding(hidden)
    return parts.logits(logits)
