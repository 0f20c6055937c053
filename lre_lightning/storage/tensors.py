"""Files of tensors with metadata, and checks of tensors that come from outside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError, first_line
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import printable, shown

WIDE = (torch.float32, torch.float64)
"""Dtypes of W, singular values and b."""
FLOATS = (*WIDE, torch.float16, torch.bfloat16)
"""Dtypes of singular vectors, and of Jacobians in files of others."""


def check_tensor(tensor: object, name: str, dtypes: Sequence[torch.dtype] = WIDE) -> Tensor:
    """Check that a tensor is a plain one of floats that is as large as it claims, before anything is computed."""
    if type(tensor) is not Tensor or tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta:
        raise LREError(f"{name} must be a plain tensor, not {shown(tensor)} of another kind")
    if tensor.dtype not in dtypes:
        known = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise LREError(f"{name} must be {known}, not {tensor.dtype}")
    if not 1 <= tensor.shape.numel() <= tensor.untyped_storage().nbytes() // tensor.element_size():
        raise LREError(f"{name} claims the shape {tuple(tensor.shape)}, more numbers than its memory holds")
    return tensor


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], name: str, metadata: Mapping[str, Any]) -> None:
    """Write a safetensors file atomically: tensors, and metadata under a name."""
    from safetensors.torch import save

    plain = {key: tensor.contiguous().cpu() for key, tensor in tensors.items()}
    write_whole(Path(path), save(plain, {name: json.dumps(metadata)}))


@contextmanager
def opened(path: str | Path, what: str, name: str | None) -> Iterator[tuple[Any, Any]]:
    """Open a safetensors file that `write_tensors` wrote, and yield it with its metadata; all of its header if None.

    If reading it fails within the context, an `LREError` says that the file is not `what`.
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise LREError(f"{str(path)!r} is not {what} that can be read: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            yield file, header if name is None else json.loads(header[name])
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, MemoryError) as error:
        reason = printable(first_line(error))
        raise LREError(f"{str(path)!r} is not {what} that can be read: {reason}") from error
