"""Keys and values of a prefix, shared by the runs that go on from it.

A model's attention joins the keys of the prefix to those of the tokens that it runs: for every prompt of a batch once
more, although all prompts have the same prefix. Copying them costs as much as the model's own matrix products, and a
backward pass computes gradients of all copies that nobody asks for. So the join is only noted here, and attention,
in whatever code the model has for it, is computed with the one prefix: its queries against the prefix are one matrix
product for all runs. Whatever else a model does with keys and values gets them joined, as it expects.
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


def share_cache(cache: Cache | None) -> Cache | None:
    """The cache of one or several equally long prefixes, to be handed to one run that goes on from them.

    The run's batch may be larger: with p prefixes and b prompts the first b / p prompts go on from the first prefix.
    The cache that is given is not changed by the run.
    """
    return None if cache is None else _copy(cache, _join)


def growing_cache(cache: Cache) -> Cache:
    """As `share_cache`; after the run it is the cache of the longer prefixes, which still share what they shared."""
    return _copy(cache, _grow)


def select_prefixes(cache: Cache, rows: slice) -> Cache:
    """Those of some prefixes; a cache of one prefix is that of all runs."""
    chosen = _copy(cache)
    layers: list[Any] = chosen.layers
    for layer in layers:
        layer.keys, layer.values = _rows_of(layer.keys, rows), _rows_of(layer.values, rows)
    return chosen


def _copy(cache: Cache, update: Callable[..., Any] | None = None) -> Cache:
    """A cache with layers of its own, whose `update` is another function of the layer, and the same tensors."""
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    layers: list[Any] = copied.layers
    if update is not None:
        for layer in layers:
            layer.update = partial(update, layer)
    return copied


def _join(layer: Any, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Joined, Joined]:
    """In place of a cache layer's `update`."""
    return Joined(layer.keys, keys), Joined(layer.values, values)


def _grow(layer: Any, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """In place of a cache layer's `update`; what it keeps is what the layer itself would, a sliding window for one."""
    joined = _join(layer, keys, values)
    if getattr(layer, "is_sliding", False):
        layer.keys, layer.values = (one.tensor()[..., : -keys.shape[-2], :] for one in joined)
        found: tuple[Tensor, Tensor] = type(layer).update(layer, keys, values, *args, **kwargs)
        return found
    layer.keys, layer.values = joined
    return joined


def _rows_of(states: Tensor, rows: slice) -> Tensor:
    if isinstance(states, Joined):
        return Joined(_rows_of(states.prefix, rows), states.own[rows])
    return states if states.shape[0] == 1 else states[rows]


class Joined(Tensor):
    """Keys or values of some tokens, joined to those of a prefix that several runs share.

    Behaves like ``torch.cat([prefix.repeat_interleave(runs, 0), own], axis)``, which it turns into for every operation
    that it does not know.

    Attributes:
        prefix: `(prefixes, heads, positions, width)`, or with the last two axes exchanged, without a graph. It may be a
            join itself.
        own: `(prefixes * runs, heads, own positions, width)`, or with the last two axes exchanged.
        axis: That of positions: -2 or -1.
    """

    prefix: Tensor
    own: Tensor
    axis: int

    def __new__(cls, prefix: Tensor, own: Tensor, axis: int = -2) -> Joined:
        """Note the join, without computing it."""
        shape = list(own.shape)
        shape[axis] += prefix.shape[axis]
        joined: Joined = Tensor._make_wrapper_subclass(cls, shape, dtype=own.dtype, device=own.device)
        joined.prefix, joined.own, joined.axis = prefix, own, axis
        return joined

    def tensor(self) -> Tensor:
        """The join itself."""
        runs = self.own.shape[0] // self.prefix.shape[0]
        shape = list(self.own.shape)
        shape[self.axis] = self.prefix.shape[self.axis]
        prefix = self.prefix.unsqueeze(1).expand(-1, runs, *self.prefix.shape[1:]).flatten(0, 1)
        return torch.cat([prefix.expand(shape), self.own], self.axis)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute `func` on the two parts where that is known how, else on the join."""
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
        """Never reached: `__torch_function__` comes first."""
        raise NotImplementedError(f"{func} on keys and values that share a prefix")


def _each(func: Any, joined: Any, *args: Any, **kwargs: Any) -> Any:
    """What leaves the axes as they are, such as a cast, on either part."""
    if not isinstance(joined, Joined):  # another tensor, cast to what the join is
        return NotImplemented
    return Joined(func(joined.prefix, *args, **kwargs), func(joined.own, *args, **kwargs), joined.axis)


def _transpose(func: Any, joined: Any, dim0: int, dim1: int) -> Any:
    """An exchange of the last two axes."""
    last = {joined.ndim - 2, joined.ndim - 1}
    if {dim0 % joined.ndim, dim1 % joined.ndim} != last:
        return NotImplemented
    return Joined(joined.prefix.transpose(-1, -2), joined.own.transpose(-1, -2), -3 - joined.axis)


def _index(func: Any, joined: Joined, index: Any) -> Any:
    """New axes between whole ones, as where heads are repeated."""
    whole = isinstance(index, tuple) and all(one is None or one == slice(None) for one in index)
    if not whole or index[0] is None or any(one is None for one in index[-2:]):
        return NotImplemented
    return Joined(joined.prefix[index], joined.own[index], joined.axis)


def _reshape(func: Any, joined: Joined, *sizes: Any, **named: Any) -> Any:
    """A new shape of what lies between the first axis and the last two."""
    if named:
        return NotImplemented
    shape = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if len(shape) < 3 or shape[0] != joined.shape[0] or shape[-2:] != joined.shape[-2:]:
        return NotImplemented
    between = shape[1:-2]
    prefix = func(joined.prefix, (joined.prefix.shape[0], *between, *joined.prefix.shape[-2:]))
    return Joined(prefix, func(joined.own, (joined.own.shape[0], *between, *joined.own.shape[-2:])), joined.axis)


def _matmul(func: Any, left: Any = None, right: Any = None, **named: Any) -> Any:
    """Queries against keys, or attention weights against values: the prefix's part for all runs at once."""
    if named or isinstance(left, Joined) or left.ndim != 4 or right.ndim != 4 or left.shape[0] != right.shape[0]:
        return NotImplemented
    prefix, own = right.prefix, right.own
    count = prefix.shape[right.axis]
    if right.axis == -1:
        return torch.cat([_product(left, prefix), left @ own], -1)
    return _product(left[..., :count], prefix) + left[..., count:] @ own


def _product(left: Tensor, prefix: Tensor) -> Tensor:
    """Rows of each run, `(prefixes * runs, heads, rows, n)`, times the matrix of its prefix, `(…, n, m)`."""
    prefixes, rows = prefix.shape[0], left.shape[2]
    runs = left.shape[0] // prefixes
    product: Tensor = left.unflatten(0, (prefixes, runs)).transpose(1, 2).flatten(2, 3) @ prefix
    return product.reshape(prefixes, -1, runs, rows, product.shape[-1]).transpose(1, 2).flatten(0, 1)


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
    """Scaled dot-product attention, written out, with a softmax in float32 at least; every query must see some key."""
    if not (isinstance(key, Joined) and isinstance(value, Joined)) or query.ndim != 4 or dropout_p:
        return NotImplemented
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = (_each(Tensor.repeat_interleave, one, repeats, 1) for one in (key, value))
    scores = (query * (query.shape[-1] ** -0.5 if scale is None else scale)) @ key.transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    weights = torch.softmax(scores, -1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.to(query.dtype) @ value


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
