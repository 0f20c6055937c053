"""A model that is already in memory: what `torch.compile` and PEFT put around it, and how it runs and is left alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError
from lre_lightning.models.hooks import overridden


@contextmanager
def at_rest(model: nn.Module, forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Run a model in eval mode, uncompiled, with its weights kept out of graphs; then leave each module as it was.

    Args:
        model: The model.
        forwards: What some of its modules run instead of their `forward`.
    """
    modules = [*model.modules()]
    training = [module for module in modules if module.training]
    found = [(module, *item) for module in modules for item in module._parameters.items()]
    # By name: an offloaded module has other parameters after each run.
    learning = [(module, name) for module, name, value in found if value is not None and value.requires_grad]
    try:
        for module in training:
            module.training = False
        for module, name in learning:
            module.get_parameter(name).requires_grad_(False)
        with _uncompiled(), overridden(forwards):
            yield
    finally:
        for module in training:
            module.training = True
        for module, name in learning:
            module.get_parameter(name).requires_grad_(True)


def _uncompiled() -> AbstractContextManager[Any]:
    """Run what `torch.compile` has made as plain code: the other calls no later hooks, and has fewer derivatives."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def unwrapped(model: nn.Module) -> tuple[nn.Module, str | None]:
    """Take a model out of what `torch.compile` and PEFT put around it; the layers of an adapter are within it.

    Returns:
        The model, and PEFT's name of the adapter; None if PEFT is not around it.
    """
    compiled = getattr(model, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        return unwrapped(compiled)
    peft: Any = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel | peft.PeftMixedModel):
        return model, None
    return unwrapped(model.get_base_model())[0], "+".join(model.active_adapters)


@torch.no_grad()
def check_unwrapped(whole: nn.Module, model: nn.Module, ids: Tensor) -> None:
    """Check on a few token ids `(batch, positions)` that a model computes what it did with what was around it.

    Raises:
        LREError: If it does not, such as without the prompts that an adapter has learned.
    """
    found, expected = (one(input_ids=ids).logits for one in (model, whole))
    if found.shape != expected.shape or not torch.allclose(found, expected):
        raise LREError(
            f"the adapter of this {type(whole).__name__} works around the LM, such as a learned prompt, and not in its "
            "layers, where LREs can read it: give the LM without it"
        )
