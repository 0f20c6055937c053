"""Keys and values of a prefix, shared by the prompts that continue it.

A model's attention joins the keys of the prefix to those of the tokens it runs, once per prompt of a batch, although
all prompts have the same prefix. The copies cost as much as the model's own matrix products, and a backward pass
computes gradients for them that are not needed. Here the join is only recorded, and attention, whatever code the model
has for it, is computed with the one prefix: its products with the queries of all prompts are one matrix product. Any
other operation gets the keys and values joined, as it expects.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from transformers import Cache


def share_cache(cache: Cache) -> Cache:
    """Return a cache of one or several equally long prefixes for one run that continues them; it stays unchanged.

    The run's batch may be larger: with p prefixes and b prompts the first b / p prompts continue the first prefix.
    """
    return _copy(cache, _join)


def growing_cache(cache: Cache) -> Cache:
    """Return a cache as `share_cache` does, which the run turns into that of the longer prefixes, still shared."""
    return _copy(cache, _grow)


def select_prefixes(cache: Cache, rows: Tensor) -> Cache:
    """Return the cache of some prefixes; a cache of a single prefix serves all prompts and is returned whole."""
    chosen = _copy(cache)
    layers: list[Any] = chosen.layers
    for layer in layers:
        layer.keys, layer.values = _rows_of(layer.keys, rows), _rows_of(layer.values, rows)
    return chosen


def _copy(cache: Cache, update: Callable[..., Any] | None = None) -> Cache:
    """Return a cache of the same tensors, with layers of its own and another `update` for each."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    layers: list[Any] = copied.layers
    if update is not None:
        for layer in layers:
            layer.update = partial(update, layer)
    return copied


def _join(layer: Any, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Joined, Joined]:
    """Replace the `update` of a cache layer, and leave the layer unchanged."""
    return Joined(layer.keys, keys), Joined(layer.values, values)


def _grow(layer: Any, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Replace the `update` of a cache layer, which keeps what it would keep anyway, such as a sliding window."""
    joined = _join(layer, keys, values)
    if getattr(layer, "is_sliding", False):
        layer.keys, layer.values = (one.tensor()[..., : -keys.shape[-2], :] for one in joined)
        found: tuple[Tensor, Tensor] = type(layer).update(layer, keys, values, *args, **kwargs)
        return found
    layer.keys, layer.values = joined
    return joined


def _rows_of(states: Tensor, rows: Tensor) -> Tensor:
    if isinstance(states, Joined):
        return Joined(_rows_of(states.prefix, rows), states.own[rows.to(states.own.device)])
    return states if states.shape[0] == 1 else states[rows.to(states.device)]


class Joined(Tensor):
    """Keys or values of some tokens, joined to those of a prefix that several prompts share.

    It behaves like ``torch.cat([prefix.repeat_interleave(prompts, 0), own], axis)`` and turns into that for every
    operation without a handler.

    Attributes:
        prefix: `(prefixes, heads, positions, width)`, or with the last two axes exchanged, without a graph. It may be a
            join itself.
        own: `(prefixes * prompts, heads, own positions, width)`, or with the last two axes exchanged.
        axis: The axis of positions, -2 or -1.
    """

    prefix: Tensor
    own: Tensor
    axis: int

    def __new__(cls, prefix: Tensor, own: Tensor, axis: int = -2) -> Joined:
        """Record the join without computing it."""
        shape = list(own.shape)
        shape[axis] += prefix.shape[axis]
        joined: Joined = Tensor._make_wrapper_subclass(cls, shape, dtype=own.dtype, device=own.device)
        joined.prefix, joined.own, joined.axis = prefix, own, axis
        return joined

    def tensor(self) -> Tensor:
        """Compute the join."""
        prompts = self.own.shape[0] // self.prefix.shape[0]
        shape = list(self.own.shape)
        shape[self.axis] = self.prefix.shape[self.axis]
        prefix = self.prefix.unsqueeze(1).expand(-1, prompts, *self.prefix.shape[1:]).flatten(0, 1)
        return torch.cat([prefix.expand(shape), self.own], self.axis)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply `func` to the two parts if it has a handler, else to the join."""
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        found = _HANDLERS[func](func, *args, **kwargs) if func in _HANDLERS else NotImplemented
        if found is NotImplemented:
            args, kwargs = tree_map(lambda one: one.tensor() if isinstance(one, Joined) else one, (args, kwargs))
            found = func(*args, **kwargs)
        return found

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Fail: `__torch_function__` comes first."""
        raise NotImplementedError(f"{func} on keys and values that share a prefix")


def _each(func: Any, joined: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an operation that leaves the axes as they are, such as a cast, to either part."""
    if not isinstance(joined, Joined):  # another tensor, cast to the dtype of the join
        return NotImplemented
    return Joined(func(joined.prefix, *args, **kwargs), func(joined.own, *args, **kwargs), joined.axis)


def _transpose(func: Any, joined: Any, dim0: int, dim1: int) -> Any:
    """Exchange the last two axes."""
    last = {joined.ndim - 2, joined.ndim - 1}
    if {dim0 % joined.ndim, dim1 % joined.ndim} != last:
        return NotImplemented
    return Joined(joined.prefix.transpose(-1, -2), joined.own.transpose(-1, -2), -3 - joined.axis)


def _index(func: Any, joined: Joined, index: Any) -> Any:
    """Insert axes between whole ones, as models do to repeat heads."""
    whole = isinstance(index, tuple) and all(one is None or one == slice(None) for one in index)
    if not whole or index[0] is None or any(one is None for one in index[-2:]):
        return NotImplemented
    return Joined(joined.prefix[index], joined.own[index], joined.axis)


def _reshape(func: Any, joined: Joined, *sizes: Any, **named: Any) -> Any:
    """Reshape the axes between the first and the last two."""
    if named:
        return NotImplemented
    shape = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if len(shape) < 3 or shape[0] != joined.shape[0] or shape[-2:] != joined.shape[-2:]:
        return NotImplemented
    between = shape[1:-2]
    prefix = func(joined.prefix, (joined.prefix.shape[0], *between, *joined.prefix.shape[-2:]))
    return Joined(prefix, func(joined.own, (joined.own.shape[0], *between, *joined.own.shape[-2:])), joined.axis)


def _matmul(func: Any, left: Any = None, right: Any = None, **named: Any) -> Any:
    """Multiply queries by keys, or attention weights by values; the prefix's part for all prompts at once."""
    if named or isinstance(left, Joined) or left.ndim != 4 or right.ndim != 4 or left.shape[0] != right.shape[0]:
        return NotImplemented
    prefix, own = right.prefix, right.own
    count = prefix.shape[right.axis]
    if right.axis == -1:
        return torch.cat([_product(left, prefix), left @ own], -1)
    return _product(left[..., :count], prefix) + left[..., count:] @ own


def _product(left: Tensor, prefix: Tensor) -> Tensor:
    """Multiply the rows of each prompt, `(prefixes * prompts, heads, rows, n)`, by its prefix, `(…, n, m)`."""
    prefixes, rows = prefix.shape[0], left.shape[2]
    prompts = left.shape[0] // prefixes
    product: Tensor = left.unflatten(0, (prefixes, prompts)).transpose(1, 2).flatten(2, 3) @ prefix
    return product.reshape(prefixes, -1, prompts, rows, product.shape[-1]).transpose(1, 2).flatten(0, 1)


def _attention(
    func: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Compute scaled dot-product attention, the softmax at least in float32; every query must see some key."""
    if not (isinstance(key, Joined) and isinstance(value, Joined)) or query.ndim != 4 or dropout_p:
        return NotImplemented
    weights, value = attention_weights(query, key, value, attn_mask, is_causal, scale, enable_gqa)
    return weights @ value


def attention_weights(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Any]:
    """Return the weights of scaled dot-product attention, and the values that they weigh, one head for each query's."""
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (_repeat_heads(one, repeats) for one in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(query.dtype), value


def _repeat_heads(states: Any, repeats: int) -> Any:
    repeat = Tensor.repeat_interleave
    return _each(repeat, states, repeats, 1) if isinstance(states, Joined) else repeat(states, repeats, 1)


_METADATA: set[Any] = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "requires_grad")
} | {Tensor.size, Tensor.dim, Tensor.numel}

_HANDLERS: dict[Any, Callable[..., Any]] = (
    dict.fromkeys((Tensor.to, Tensor.float, Tensor.contiguous), _each)
    | dict.fromkeys((Tensor.transpose, torch.transpose), _transpose)
    | dict.fromkeys((Tensor.reshape, Tensor.view, Tensor.expand), _reshape)
    | dict.fromkeys((Tensor.matmul, Tensor.__matmul__, torch.matmul), _matmul)
    | {Tensor.__getitem__: _index, functional.scaled_dot_product_attention: _attention}
)
