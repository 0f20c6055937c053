"""Where a Hugging Face causal LM keeps its decoder blocks and its decoder head D.

Everything is found from the model's structure and checked by running it: no name of a model or of a module
decides anything. What an architecture does to its logits after the unembedding is read off its config
(`LOGIT_TRANSFORMS`), and a wrong reading cannot pass silently: `find_parts` compares D at the last block's output
with the model's own logits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError
from lre_lightning.hooks import hidden_of, observe

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUPPORTED = "GPT-2, GPT-J, GPT-NeoX (Pythia), Llama, Mistral, Qwen2 and Gemma 2"

LOGIT_TRANSFORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "logit_scale": lambda logits, scale: logits * scale,
    "logits_scaling": lambda logits, scale: logits / scale,
    "final_logit_softcapping": lambda logits, cap: torch.tanh(logits / cap) * cap,
}
"""What a config's attribute, where it is set, does to the logits after the unembedding, in this order."""


@dataclass(frozen=True)
class Parts:
    """The parts of a causal LM that an LRE is made of.

    Attributes:
        backbone: The model without its unembedding.
        embedding: The token embedding module; its output is the hidden state at layer ``"emb"``.
        blocks: The decoder blocks, first to last.
        head: Modules applied to the last block's output before the unembedding (the final norm), in order.
        unembedding: The module from the final norm's output to logits.
        returns_tuple: Whether the blocks return a tuple whose first item is the hidden states.
    """

    backbone: nn.Module
    embedding: nn.Module
    blocks: tuple[nn.Module, ...]
    head: tuple[nn.Module, ...]
    unembedding: nn.Module
    returns_tuple: bool


def logit_transform(config: Any, logits: Tensor) -> Tensor:
    """Apply the logit scale and soft cap that the config names, as the architecture does.

    Args:
        config: The LM's (text) config.
        logits: Output of the unembedding, shape ``(..., vocab)``.

    Returns:
        The logits that the model itself returns, shape ``(..., vocab)``.
    """
    for name, transform in LOGIT_TRANSFORMS.items():
        value = getattr(config, name, None)
        if value is not None:
            logits = transform(logits, float(value))
    return logits


def find_parts(model: PreTrainedModel) -> Parts:
    """Find the decoder blocks and the decoder head of `model`, and check them by running it on a few tokens.

    Args:
        model: A causal LM with its unembedding, as `AutoModelForCausalLM` loads it.

    Raises:
        LREError: If the model is not a decoder-only LM with one stack of attention blocks, or if its logits are not
            what these parts compute.
    """
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False):
        raise _unsupported(name, "it has an encoder beside its decoder")
    backbone, embedding, unembedding = model.base_model, model.get_input_embeddings(), model.get_output_embeddings()
    if backbone is model or embedding is None or unembedding is None:
        raise _unsupported(name, "it has no unembedding on top of its decoder")
    blocks = _find_blocks(name, backbone, model.config.get_text_config().num_hidden_layers)
    head, returns_tuple = _find_head(backbone, blocks)
    parts = Parts(backbone, embedding, blocks, head, unembedding, returns_tuple)
    _check(model, parts)
    return parts


def _unsupported(name: str, why: str) -> LREError:
    return LREError(f"{name} is not supported: {why}. Decoder-only LMs are, such as {SUPPORTED}.")


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


def _probe_ids(model: nn.Module, batch: int = 1) -> Tensor:
    device = next(model.parameters()).device
    return torch.arange(4, device=device).repeat(batch, 1)


@torch.no_grad()
def _find_head(backbone: nn.Module, blocks: tuple[nn.Module, ...]) -> tuple[tuple[nn.Module, ...], bool]:
    """The modules outside the blocks that run after the last block, in their order, and what blocks return."""
    ran: list[nn.Module] = []
    inside = {id(module) for block in blocks for module in block.modules()}
    outer = [m for m in backbone.modules() if id(m) not in inside and not any(b in m.modules() for b in blocks)]
    returned: list[Any] = []

    def note(module: nn.Module) -> Callable[..., None]:
        return lambda *_: ran.append(module) if returned else None

    handles = [module.register_forward_hook(note(module)) for module in outer]
    handles.append(blocks[-1].register_forward_hook(lambda _module, _inputs, output: returned.append(output)))
    try:
        backbone(input_ids=_probe_ids(backbone), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    nested = {id(child) for module in ran for child in module.modules() if child is not module}
    return tuple(module for module in ran if id(module) not in nested), not isinstance(returned[0], Tensor)


@torch.no_grad()
def _check(model: PreTrainedModel, parts: Parts) -> None:
    """Refuse a model that is not causal, and one whose logits are not D of its last block's output."""
    name = type(model).__name__
    ids = _probe_ids(model, batch=2)
    ids[1, -1] = 0
    seen: list[Tensor] = []
    with observe(parts.blocks[-1], seen.append):
        output = model(input_ids=ids, use_cache=True)
    hidden = seen[-1]
    tolerance = 64 * torch.finfo(hidden.dtype).eps
    if not torch.allclose(hidden[0, :-1], hidden[1, :-1], rtol=tolerance, atol=tolerance * float(hidden.abs().max())):
        raise _unsupported(name, "its hidden states depend on later tokens, so it is not a decoder-only LM")
    cache = getattr(output, "past_key_values", None)
    if cache is None or not all(hasattr(layer, "keys") for layer in getattr(cache, "layers", [None])):
        raise _unsupported(name, "it keeps no attention keys and values for each of its blocks")
    logits = decode(parts, model.config.get_text_config(), hidden)
    expected = output.logits.to(logits)
    if not torch.allclose(logits, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())):
        raise _unsupported(name, "its logits are not its final norm and unembedding of the last block's output")


def decode(parts: Parts, config: Any, hidden: Tensor) -> Tensor:
    """The decoder head D: final norm, unembedding, logit scale and soft cap.

    Args:
        parts: The LM's parts.
        config: The LM's (text) config.
        hidden: Output of the last decoder block, shape ``(..., hidden)``, in the LM's dtype and on its last device.

    Returns:
        Logits of shape ``(..., vocab)``.
    """
    for module in parts.head:
        hidden = hidden_of(module(hidden))
    return logit_transform(config, parts.unembedding(hidden))
