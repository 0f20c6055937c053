"""Prefixes: what an LM keeps of earlier tokens, from which many runs continue without changing it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from lre_lightning.models.caches import growing_cache, select_prefixes, share_cache

Way = Literal["shared", "copied", "stepwise", "whole"]
"""How prompts with a common prefix are run.

``"shared"``: all attend to the keys and values of one prefix. ``"copied"``: each continues a copy of what the LM keeps
of the prefix, whatever that is. ``"stepwise"``: as copied, and the tokens after the prefix are run one at a time.
``"whole"``: each is run as a whole.
"""

ARGUMENTS = ("past_key_values", "cache_params")
"""Names under which LMs return what they keep of tokens, and take it again."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """What an LM keeps of one or several equally long prefixes, without a graph; runs leave it unchanged.

    Attributes:
        cache: A transformers `Cache`, or whatever else the LM has for it.
        argument: Name of the argument in which the LM takes it.
        count: Number of prefixes.
        length: Number of tokens of each.
        way: How prompts continue it; not ``"whole"``.
    """

    cache: Any
    argument: str
    count: int
    length: int
    way: Way

    @classmethod
    @torch.inference_mode(False)  # graphs may need it
    @torch.no_grad()
    def run(cls, backbone: nn.Module, ids: Tensor, way: Way, before: Prefix | None = None) -> Prefix:
        """Run token ids `(prefixes, positions)`, the first of which continue the first prefix of `before`, if any."""
        count, length = ids.shape
        if before is None:
            output = vars(backbone(input_ids=ids, use_cache=True))
            argument = next(name for name in ARGUMENTS if output.get(name) is not None)
            return cls(output[argument], argument, count, length, way)
        cache = growing_cache(before.cache) if way == "shared" else before._copied(count)
        for piece in pieces(ids, before):
            backbone(input_ids=piece, use_cache=True, **{before.argument: cache})
        return replace(before, cache=cache, count=count, length=before.length + length)

    def inputs(self, prompts: int) -> dict[str, Any]:
        """Return the arguments of one run of `prompts` prompts, of which the first continue the first prefix."""
        cache = share_cache(self.cache) if self.way == "shared" else self._copied(prompts)
        return {self.argument: cache, "use_cache": True}

    def select(self, rows: Tensor) -> Prefix:
        """Return prefixes by their rows, int64 `(some,)`; a single one serves all prompts and is returned as it is."""
        if self.count == 1:
            return self
        cache = select_prefixes(self.cache, rows) if self.way == "shared" else _spread(self.cache, self.count, rows)
        return replace(self, cache=cache, count=len(rows))

    @property
    def copy_bytes(self) -> int:
        """Bytes of the copy that every prompt of a run gets."""
        return 0 if self.way == "shared" else sum(tensor.nbytes for tensor in self.tensors()) // self.count

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the cache that hold something of each prefix, which is what copies consist of."""
        noted: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            noted.append(tensor.held if isinstance(tensor, State) else tensor)
            return tensor

        _mapped(self.cache, note)
        return [tensor for tensor in noted if tensor.ndim and len(tensor) == self.count and tensor.is_floating_point()]

    def _copied(self, prompts: int) -> Any:
        rows = torch.arange(self.count).repeat_interleave(prompts // self.count)
        return _spread(self.cache, self.count, rows)


def pieces(states: Tensor, prefix: Prefix | None) -> tuple[Tensor, ...]:
    """Split token ids or hidden states `(prompts, positions, …)` that follow a prefix into those of one call."""
    count = 1 if prefix is not None and prefix.way == "stepwise" else states.shape[1]
    return tuple(states.split(count, 1))


def run_after(prefix: Prefix | None, backbone: nn.Module, ids: Tensor) -> None:
    """Run token ids `(prompts, positions)` after a prefix, if any."""
    inputs = {"use_cache": False} if prefix is None else prefix.inputs(len(ids))
    for piece in pieces(ids, prefix):
        backbone(input_ids=piece, **inputs)


def _spread(cache: Any, count: int, rows: Tensor) -> Any:
    """Return a cache of its own for each of some rows of a cache of `count` prefixes."""

    def chosen(tensor: Tensor) -> Tensor:
        per_prefix = tensor.ndim and len(tensor) == count
        return State(tensor.index_select(0, rows.to(tensor.device))) if per_prefix else tensor

    return _mapped(cache, chosen)


def _mapped(cache: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Copy a cache, with a function of each of its tensors in the tensor's place."""

    class Map(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(args[0]) if func is Tensor.__deepcopy__ else func(*args, **(kwargs or {}))

    with Map():
        return copy.deepcopy(cache)


class State(Tensor):
    """A tensor of a cache: where the LM copies new values into it, they replace the old ones, which a graph may need.

    Attributes:
        held: The values that every other operation gets.
    """

    held: Tensor

    def __new__(cls, values: Tensor) -> State:
        """Wrap the values."""
        state: State = Tensor._make_wrapper_subclass(cls, values.shape, dtype=values.dtype, device=values.device)
        state.held = values
        return state

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply `func` to the values, or replace them by changed ones."""
        plain, options = tree_map(lambda value: value.held if isinstance(value, State) else value, (args, kwargs or {}))
        if func is Tensor.copy_ and isinstance(args[0], State):
            args[0].held = plain[1].to(plain[0]).expand_as(plain[0])
            return args[0]
        return func(*plain, **options)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Fail: `__torch_function__` comes first."""
        raise NotImplementedError(f"{func} on a state of a cache")
