"""Decoder blocks in context managers: see, replace or skip what a block does to the hidden states.

Some architectures' blocks return a tensor, others a tuple whose first item is the hidden states. That difference is
handled here and nowhere else; so are the hooks by which accelerate places modules and offloads their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


def hidden_of(output: Any) -> Tensor:
    """Return the hidden states in a module's output: the output itself, or the first item of a tuple."""
    hidden = output[0] if isinstance(output, tuple | list) else output
    if not isinstance(hidden, Tensor):
        raise TypeError(f"a decoder block returned {type(hidden).__name__}, where hidden states were expected")
    return hidden


def with_hidden(output: Any, hidden: Tensor) -> Any:
    """Return a module's output with its hidden states replaced by `hidden`, in the form the module used."""
    return (hidden, *output[1:]) if isinstance(output, tuple | list) else hidden


@contextmanager
def replace(module: nn.Module, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Within the context, replace the hidden states h that `module` returns by ``function(h)``.

    Args:
        module: The token embedding or a decoder block.
        function: From hidden states ``(batch, positions, hidden)`` to hidden states of the same shape.
    """
    handle = module.register_forward_hook(lambda _m, _i, output: with_hidden(output, function(hidden_of(output))))
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def observe(module: nn.Module, function: Callable[[Tensor], None]) -> Iterator[None]:
    """Within the context, call ``function(h)`` on the hidden states h that `module` returns."""

    def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
        function(hidden_of(output))

    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def skip(modules: Sequence[nn.Module], items: int | None) -> Iterator[None]:
    """Within the context, let decoder blocks return the hidden states that they are given.

    Args:
        modules: The decoder blocks.
        items: Length of the tuple that the architecture's blocks return; None if they return a tensor.
    """

    def unchanged(hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Any:
        return hidden_states if items is None else (hidden_states, *[None] * (items - 1))

    with overridden(dict.fromkeys(modules, unchanged)):
        yield


@contextmanager
def overridden(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Within the context, modules run other functions in place of their `forward`."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = own


def placement_hooks(module: nn.Module) -> list[Any]:
    """The hooks by which accelerate places what is in `module`; none if the module is placed by hand."""
    return [one.__dict__["_hf_hook"] for one in module.modules() if "_hf_hook" in one.__dict__]


def runs_on(module: nn.Module) -> torch.device:
    """Where a module computes: where its weights are or, if a hook places it, where its weights and inputs go."""
    where = getattr(module.__dict__.get("_hf_hook"), "execution_device", None)
    return next(module.parameters()).device if where is None else torch.device(where)


def is_offloaded(module: nn.Module) -> bool:
    """Whether a hook brings the module's weights in for each run, and they have no values in between."""
    return bool(getattr(module.__dict__.get("_hf_hook"), "offload", False))


@contextmanager
def weights_at_hand(module: nn.Module) -> Iterator[None]:
    """Within the context, the weights of a module have their values, also if it is offloaded."""
    if not is_offloaded(module):
        yield
        return
    from accelerate.utils import align_module_device  # type: ignore[import-untyped]

    with align_module_device(module):
        yield
