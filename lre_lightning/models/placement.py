"""Devices of an LM's parts: device maps, and the hooks with which accelerate implements them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import nn

from lre_lightning.errors import LREError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Place: TypeAlias = int | str
"""A device, as torch names it or by the accelerator's index, or ``"disk"``."""

DeviceMap: TypeAlias = str | dict[str, Place]
"""A strategy (`STRATEGIES`), a place for the whole LM, or places by the names of modules."""

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")


def expand_map(model: PreTrainedModel, places: Mapping[str, Place]) -> dict[str, Place]:
    """Return a device map without exceptions, such as one block of an LM on another device: accelerate takes none.

    Of the names in `places` (``""`` is the whole LM) the longest that covers a weight decides. Tied weights go to one
    place: the first of theirs that is not the disk. The model needs no values.

    Raises:
        LREError: If the LM has no part of that name, or a weight has no place.
    """
    weights = dict(itertools.chain(model.named_parameters(remove_duplicate=False), model.named_buffers()))
    names = {*weights, *(name for name, _ in model.named_modules())}
    for name in places:
        if name not in names:
            parts = [f"{one}.{part}" for one, module in model.named_children() for part, _ in module.named_children()]
            raise LREError(
                f"device_map names {name!r}, which the LM does not have: it has {', '.join(parts)} and parts of those"
            )
    wanted: dict[str, Place] = {}
    for name in weights:
        covering = [part for part in places if _covers(part, name)]
        if not covering:
            raise LREError(f"device_map has no place for {name!r}: give '' a place for everything that is not named")
        wanted[name] = places[max(covering, key=len)]
    for name, weight in weights.items():
        tied = [wanted[other] for other, same in weights.items() if same is weight]
        wanted[name] = next((place for place in tied if place != "disk"), "disk")
    return _merge(model, "", wanted)


def _covers(part: str, name: str) -> bool:
    return part in ("", name) or name.startswith(f"{part}.")


def _merge(module: nn.Module, path: str, wanted: Mapping[str, Place]) -> dict[str, Place]:
    """Return a place for each of the largest modules whose weights have the same place."""
    inside = {name: place for name, place in wanted.items() if _covers(path, name)}
    places = set(inside.values())
    if not places:
        return {}
    if len(places) == 1:
        return {path: places.pop()}
    found = {name: place for name, place in inside.items() if name.rpartition(".")[0] == path}
    for name, child in module.named_children():
        found |= _merge(child, f"{path}.{name}".lstrip("."), inside)
    return found


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


@contextmanager
def weights_at_hand(module: nn.Module) -> Iterator[None]:
    """Give the weights of a module their values within the context, even if it is offloaded."""
    if not is_offloaded(module):
        yield
        return
    from accelerate.utils import align_module_device  # type: ignore[import-untyped]

    with align_module_device(module):
        yield
