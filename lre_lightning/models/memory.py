"""Memory: chunk sizes that fit into it, and graphs that do not keep offloaded weights in it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from lre_lightning.errors import LREError
from lre_lightning.models.placement import weights_at_hand

T = TypeVar("T")

CGROUP = Path("/sys/fs/cgroup")
"""Folder in which Linux reports the memory of a container."""


def free_memory(device: torch.device) -> int | None:
    """Return the bytes of memory that a device has left for this process; None if they are unknown."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + unused
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory()) - int(torch.mps.current_allocated_memory())
    if device.type == "cpu":
        import psutil

        return int(min(psutil.virtual_memory().available, _container_memory()))
    return None


def _container_memory() -> float:
    """Return the bytes that this process's container has left; infinity outside a container."""
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)$", (CGROUP / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # there is no container, or its limit is "max"
        return float("inf")
    return limit - used + (int(cached[1]) if cached else 0)


def busy_rows(device: torch.device, width: int, numbers: Mapping[str, int], least: int) -> int:
    """Return how many rows of `width` numbers keep a device busy, at least `least`; more would only take memory.

    `numbers` says how many numbers keep a device busy, by type of device or ``"other"``.
    """
    return max(least, numbers[device.type if device.type in numbers else "other"] // width)


def rows_in_memory(devices: Iterable[torch.device], row_bytes: int) -> int | None:
    """Return how many rows half of the devices' free memory holds, if each takes twice its bytes; None if unknown."""
    free = [found for device in devices if (found := free_memory(device)) is not None]
    return max(1, min(free) // (4 * row_bytes)) if free and row_bytes else None


class ChunkSizes:
    """Chunk sizes for the kinds of work done on one LM, reduced when memory runs out.

    Attributes:
        halves: Whether sizes are reduced. Where processes share an LM, none of them can repeat work alone.

    Example:
        >>> sizes = ChunkSizes()
        >>> sizes.run("rows", 8, lambda chunk_size: chunk_size)
        8
    """

    def __init__(self) -> None:
        self.halves = True
        self._largest: dict[str, int] = {}

    def run(self, what: str, wanted: int, work: Callable[[int], T]) -> T:
        """Return ``work(chunk_size)``, where the chunk size is `wanted` and halved until memory suffices.

        Later work of this kind, `what`, a plural noun, starts with the size that was found. A warning is given once.
        """
        size = begun = min(wanted, self._largest.get(what, wanted))
        while True:
            try:
                result = work(size)
            except RuntimeError as error:
                signs = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "can't allocate memory")
                if not isinstance(error, torch.OutOfMemoryError) and not any(sign in str(error) for sign in signs):
                    raise
                if not self.halves:
                    raise LREError(
                        f"out of memory for {size} {what} at a time: give a lower chunk_size, or more processes that "
                        f"share the LM ({str(error).splitlines()[0]})"
                    ) from error
                if size == 1:
                    raise LREError(
                        f"out of memory, even for {what} one at a time: load the LM in bfloat16 or float16, or use a "
                        f"device with more memory ({str(error).splitlines()[0]})"
                    ) from error
            else:
                break
            if torch.cuda.is_available():  # outside `except`, whose traceback keeps tensors alive
                torch.cuda.empty_cache()
            size = (size + 1) // 2
        if size < begun:
            if what not in self._largest:
                warnings.warn(f"out of memory for {wanted} {what} at a time: continuing with {size}", stacklevel=4)
            self._largest[what] = size
        return result


@dataclass(frozen=True)
class _Reloaded:
    """A weight of an offloaded module, or a view of it, that a graph does not keep."""

    module: nn.Module
    name: str
    size: Sequence[int]
    stride: Sequence[int]
    offset: int

    def load(self) -> Tensor:
        with weights_at_hand(self.module):
            weight = self.module.get_parameter(self.name).detach()
        return weight.as_strided(self.size, self.stride, weight.storage_offset() + self.offset)


@contextmanager
def slim_graph(offloaded: Sequence[nn.Module], note: Callable[[Tensor], None] | None = None) -> Iterator[None]:
    """Keep the weights of offloaded modules out of graphs within the context: backward passes load them again.

    Otherwise a graph through an LM that is larger than a device would hold the whole LM on it. `note` is called with
    every tensor that a graph keeps.
    """
    running: list[nn.Module] = []

    def keep(tensor: Tensor) -> Tensor | _Reloaded:
        start = tensor.untyped_storage().data_ptr()
        for name, weight in running[-1].named_parameters() if running else ():
            if not weight.is_meta and weight.untyped_storage().data_ptr() == start:
                offset, (owner, _, own) = int(tensor.storage_offset() - weight.storage_offset()), name.rpartition(".")
                return _Reloaded(running[-1].get_submodule(owner), own, tensor.size(), tensor.stride(), offset)
        if note is not None:
            note(tensor)
        return tensor

    def restore(kept: Tensor | _Reloaded) -> Tensor:
        return kept.load() if isinstance(kept, _Reloaded) else kept

    with ExitStack() as stack:
        for module in offloaded:
            stack.enter_context(module.register_forward_pre_hook(lambda module, _: running.append(module)))
            stack.enter_context(module.register_forward_hook(lambda module, *_: running.remove(module)))
        if offloaded or note is not None:
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, restore))
        yield
