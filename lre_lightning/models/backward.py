"""Rules of the backward pass: contexts in which an LM runs forward as ever, and passes gradients on in another way.

Within the rule ``"frozen"`` the scale factors of norms and the weights of attention are constants: an LM is then a
chain of maps that are linear in the hidden states, apart from the activations of its MLPs. The rule belongs to torch's
functions, not to modules, so it needs no list of architectures; whether it holds everything that it should is found by
running the LM on a few tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from lre_lightning.errors import LREError
from lre_lightning.models.caches import attention_weights
from lre_lightning.models.hooks import replace
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.memory import slim_graph

Backward: TypeAlias = Literal["exact", "frozen"]
"""How gradients pass through an LM: as they are, or with the scales of norms and attention weights as constants."""

FAR = 0.1
"""Relative error from which two results of the probe differ, where epsilons of norms alone may make them."""


def backward_rule(rule: Backward) -> AbstractContextManager[Any]:
    """Return a context in which LMs run with a rule: forward values are the same, bit for bit; derivatives are not.

    It holds for derivatives in forward mode, too.
    """
    return Frozen() if rule == "frozen" else nullcontext()


def check_backward(lm: LanguageModel, rule: Backward) -> None:
    """Check on a few tokens that an LM can run with a rule: that it changes no value, and holds what it should.

    Raises:
        LREError: If a hidden state changes, a block has no attention weights, or the scale of a norm is not held.
    """
    if rule == "exact":
        return
    ids = torch.arange(24).view(2, 12) * 5 % min(23, lm.vocab_size)
    ids[1, :6] = ids[0, :6]
    ids = ids.to(lm.device)
    for prefix in (None, lm.prefix(ids[:1, :6]) if lm.shares_prefix else None):
        suffix = ids if prefix is None else ids[:, 6:]
        with torch.no_grad():
            plain = lm.hidden_states(suffix, lm.layers, prefix)
        with torch.inference_mode(False), torch.enable_grad(), slim_graph(lm.offloaded), ExitStack() as stack:
            rules = stack.enter_context(Frozen())
            for block in lm.parts.blocks:
                stack.enter_context(_attends(block, rules, rule, lm.name))
                for module in block.modules():
                    stack.enter_context(
                        module.register_forward_hook(partial(_check_norm, lm.name, rule), with_kwargs=True)
                    )
            stack.enter_context(replace(lm.module_at("emb"), lambda hidden: hidden.detach().requires_grad_(True)))
            found = lm.hidden_states(suffix, lm.layers, prefix)
        for layer, states in plain.items():
            if not torch.equal(found[layer], states):
                raise _unfit(lm.name, rule, f"it changes the hidden states at layer {layer}")


def _unfit(name: str, rule: str, why: str) -> LREError:
    return LREError(f"{name} cannot run with backward {rule!r}: {why}; leave backward out")


@contextmanager
def _attends(block: nn.Module, rules: Frozen, rule: str, name: str) -> Iterator[None]:
    """Check that attention weights are held in each run of a block."""
    before = 0

    def begin(*_: Any) -> None:
        nonlocal before
        before = rules.attention

    def end(*_: Any) -> None:
        if rules.attention == before:
            raise _unfit(name, rule, f"a block, {type(block).__name__}, shows no weights of softmax attention")

    with block.register_forward_pre_hook(begin), block.register_forward_hook(end):
        yield


def _check_norm(name: str, rule: str, module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
    """Check a module that makes nothing of the scale of its input: along it the output grows if the scale is held."""
    given = inputs[0] if len(inputs) == 1 and not named else None
    if not (isinstance(given, Tensor) and isinstance(output, Tensor)) or given.shape != output.shape:
        return
    if not output.requires_grad:
        return
    rest = torch.nan_to_num(module.forward(torch.zeros_like(given)))
    change, moved = (output - rest).detach(), (module.forward(2 * given) - output).detach()
    if not change.any() or moved.norm() > FAR * change.norm():
        return
    (gradient,) = torch.autograd.grad(output, given, change, retain_graph=True, materialize_grads=True)
    grown, whole = float((gradient * given.detach()).sum()), float(change.square().sum())
    if abs(grown - whole) > FAR * whole:
        raise _unfit(name, rule, f"the scale of a norm, {type(module).__name__}, is not held")


class Frozen(TorchFunctionMode):
    """The context in which norms' scales and attention weights are constants.

    Attributes:
        attention: How often attention weights were held constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a function, with the rule's derivative if it has one."""
        rule, kwargs = _RULES.get(func), kwargs or {}
        if rule is None:
            return func(*args, **kwargs)
        found, held = rule(func, *args, **kwargs)
        self.attention += held
        return found


def _value_of(value: Tensor, twin: Tensor) -> Tensor:
    """Return the value of one tensor, bit for bit, with the derivative of another that has the same up to rounding."""
    return value.detach() + (twin - twin.detach())


def _scale(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> tuple[Tensor, bool]:
    """Hold a root if it is one number for many, as a norm's scale is; other powers are none."""
    found = func(*args, **kwargs)
    exponent = kwargs.get("exponent", args[-1]) if func in _POWERS else 0.5
    root = isinstance(exponent, float) and abs(exponent) == 0.5
    return (found.detach() if root and found.ndim and found.shape[-1] == 1 else found), False


def _layer_norm(
    func: Any, input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> tuple[Tensor, bool]:
    """Hold the deviation; the mean stays what it is, a linear map."""
    value = func(input, normalized_shape, weight, bias, eps)
    axes = tuple(range(-len(normalized_shape), 0))
    states = input.to(torch.promote_types(input.dtype, torch.float32))
    scale = (states.var(axes, correction=0, keepdim=True) + eps).rsqrt().detach()
    return _value_of(value, _weighted((states - states.mean(axes, keepdim=True)) * scale, weight, value)), False


def _rms_norm(
    func: Callable[..., Tensor], input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> tuple[Tensor, bool]:
    """Hold the root of the mean square."""
    value = func(input, normalized_shape, weight, eps)
    axes = tuple(range(-len(normalized_shape), 0))
    states = input.to(torch.promote_types(input.dtype, torch.float32))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    scale = (states.square().mean(axes, keepdim=True) + eps).rsqrt().detach()
    return _value_of(value, _weighted(states * scale, weight, value)), False


def _weighted(states: Tensor, weight: Tensor | None, like: Tensor) -> Tensor:
    return (states if weight is None else states * weight).to(like)


def _softmax(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> tuple[Tensor, bool]:
    """Hold weights `(batch, heads, queries, keys)`; those of routers and other gates have fewer axes."""
    found = func(*args, **kwargs)
    held = found.ndim >= 4
    return (found.detach() if held else found), held


def _attention(
    func: Callable[..., Tensor],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, bool]:
    """Hold the weights of fused attention, which does not show them."""
    found = func(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    weights, values = attention_weights(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return _value_of(found, weights.detach() @ values), True


_POWERS = (Tensor.pow, Tensor.__pow__, torch.pow)

_RULES: dict[Any, Callable[..., tuple[Tensor, bool]]] = {
    **dict.fromkeys((Tensor.rsqrt, torch.rsqrt, Tensor.sqrt, torch.sqrt, *_POWERS), _scale),
    **dict.fromkeys((Tensor.norm, torch.norm, torch.linalg.vector_norm, Tensor.std, torch.std), _scale),
    **dict.fromkeys((functional.softmax, Tensor.softmax, torch.softmax), _softmax),
    functional.layer_norm: _layer_norm,
    functional.rms_norm: _rms_norm,
    functional.scaled_dot_product_attention: _attention,
}
