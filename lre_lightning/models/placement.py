"""Devices of an LM's parts: the hooks with which accelerate implements a device map."""

from __future__ import annotations

import itertools
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from lre_lightning.errors import LREError


def check_loaded(model: nn.Module, name: str) -> None:
    """Refuse a model with a weight on the meta device whose values no hook loads."""
    offloaded = [module for module in model.modules() if is_offloaded(module)]
    at_hand = {id(tensor) for module in offloaded for tensor in (*module.parameters(), *module.buffers())}
    for path, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if tensor.is_meta and id(tensor) not in at_hand:
            raise LREError(
                f"{name} has no values for its {path}, which is on the meta device: load the weights first, with "
                "from_pretrained or accelerate's load_checkpoint_and_dispatch"
            )


def execution_devices(model: nn.Module) -> list[torch.device | None]:
    """Return the device of every hook with which accelerate places parts of a model; none if it is placed by hand."""
    hooks = [module.__dict__["_hf_hook"] for module in model.modules() if "_hf_hook" in module.__dict__]
    devices = [getattr(hook, "execution_device", None) for hook in hooks]
    return [None if device is None else torch.device(device) for device in devices]


def runs_on(module: nn.Module) -> torch.device:
    """Return where a module computes: where its hook moves weights and inputs or, without a hook, its weights are."""
    device = getattr(module.__dict__.get("_hf_hook"), "execution_device", None)
    return next(module.parameters()).device if device is None else torch.device(device)


def is_offloaded(module: nn.Module) -> bool:
    """Return True if a hook loads the module's weights for each run and drops their values afterwards."""
    return bool(getattr(module.__dict__.get("_hf_hook"), "offload", False))


def weights_at_hand(module: nn.Module) -> AbstractContextManager[None]:
    """Give the weights of a module their values within the context, even if it is offloaded."""
    if not is_offloaded(module):
        return nullcontext()
    from accelerate.utils import align_module_device  # type: ignore[import-untyped]

    return align_module_device(module)  # type: ignore[no-any-return]
