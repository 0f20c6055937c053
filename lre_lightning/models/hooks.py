"""Context managers that observe, replace or skip what a module does to the hidden states.

The blocks of some architectures return a tensor, those of others a tuple whose first item is the hidden states. Some
return several residual streams for each token, which are laid side by side here. This file alone handles the
difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

STREAMS_AXIS = "_streams_axis"
"""Attribute of modules that return residual streams along another axis than the third."""


def hidden_of(module: nn.Module, output: Any) -> Tensor:
    """Return the hidden states in a module's output: the output itself, or the first item of a tuple.

    Residual streams `(batch, positions, streams, width)` are returned side by side, `(batch, positions, hidden)`.
    """
    hidden = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(hidden, Tensor):
        raise TypeError(f"expected hidden states from a decoder block, got {type(hidden).__name__}")
    return hidden if hidden.ndim < 4 else hidden.movedim(getattr(module, STREAMS_AXIS, 2), 2).flatten(2)


def replace(module: nn.Module, function: Callable[[Tensor], Tensor]) -> RemovableHandle:
    """Replace the hidden states h `(batch, positions, hidden)` that a module returns by ``function(h)``."""

    def hook(module: nn.Module, _inputs: Any, output: Any) -> Any:
        several = isinstance(output, tuple | list)
        before: Tensor = output[0] if several else output
        hidden = function(hidden_of(module, output))
        if before.ndim > 3:
            axis: int = getattr(module, STREAMS_AXIS, 2)
            hidden = hidden.unflatten(-1, (before.shape[axis], before.shape[-1])).movedim(2, axis)
        return (hidden, *output[1:]) if several else hidden

    return module.register_forward_hook(hook)


def observe(module: nn.Module, function: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``function(h)`` on the hidden states h that a module returns."""
    return module.register_forward_hook(lambda module, _inputs, output: function(hidden_of(module, output)))


def observe_ids(embedding: nn.Module, function: Callable[[Tensor], None]) -> RemovableHandle:
    """Call ``function(ids)`` on the token ids `(batch, positions)` that the token embedding is given."""
    return embedding.register_forward_hook(lambda _module, inputs, _output: function(inputs[0]))


def skip(modules: Sequence[nn.Module], items: int | None) -> AbstractContextManager[None]:
    """Let decoder blocks return the hidden states they are given, in a tuple of `items` unless that is None."""

    def unchanged(hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return hidden_states if items is None else (hidden_states, *[None] * (items - 1))

    return overridden(dict.fromkeys(modules, unchanged))


@contextmanager
def overridden(functions: Mapping[nn.Module, Callable[..., Any]], method: str = "forward") -> Iterator[None]:
    """Let modules run other functions instead of a method."""
    before = {module: module.__dict__.get(method) for module in functions}
    try:
        for module, function in functions.items():
            module.__dict__[method] = function
        yield
    finally:
        for module, own in before.items():
            if own is None:
                module.__dict__.pop(method, None)
            else:
                module.__dict__[method] = own
