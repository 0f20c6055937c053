"""The safetensors file of an LRE: W or its factors, b, and where they come from, all checked before use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError, first_line
from lre_lightning.grid import WIDEST, layer_of, rank_of
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import LONGEST_NAME, listing, mapping, number, printable, shown, text, truth, whole

_Check = Callable[[Any, str], Any]
_name = partial(text, longest=LONGEST_NAME)


def or_none(check: _Check) -> _Check:
    """Return a check that permits None as well."""
    return lambda value, what: None if value is None else check(value, what)


def _train(value: object, what: str) -> tuple[tuple[str, str], ...]:
    samples = [listing(sample, "a sample of train", 2) for sample in listing(value, what)]
    if any(len(sample) != 2 for sample in samples):
        raise LREError("a sample of train must be a subject and an object")
    return tuple((text(subject, "a subject"), text(object_, "an object")) for subject, object_ in samples)


def entries(checks: Mapping[str, _Check], value: object, what: str) -> dict[str, Any]:
    """Check the entries of an object, each with its own check; other entries are dropped."""
    given = mapping(value, what)
    return {name: check(given[name], name) for name, check in checks.items()}


_FORM: dict[str, _Check] = {
    "shots": or_none(whole),
    "separator": text,
    "chat": truth,
    "system": or_none(text),
}
ORIGIN: dict[str, _Check] = {
    "model": text,
    "fingerprint": _name,
    "relation": _name,
    "revision": or_none(_name),
    "category": _name,
    "trial": whole,
    "template": text,
    "train": _train,
    "form": partial(entries, _FORM),
}
_METADATA: dict[str, _Check] = {
    "origin": partial(entries, ORIGIN),
    "layer": layer_of,
    "beta": number,
    "rank": or_none(rank_of),
}


def checked_metadata(metadata: object) -> dict[str, Any]:
    """Check the metadata of an LRE as plain data; lists become tuples, and unknown keys are dropped."""
    try:
        return entries(_METADATA, metadata, "it")
    except KeyError as error:
        raise LREError(f"this is not the metadata of an LRE: it lacks {error}") from error
    except LREError as error:
        raise LREError(f"this is not the metadata of an LRE: {error}") from error


def _check_names(names: Collection[str]) -> None:
    if set(names) not in ({"weight", "bias"}, {"left", "values", "right", "bias"}):
        raise LREError(
            f"it has {len(names)} tensors, and they should be weight and bias, or left, values, right and bias"
        )


def check_shapes(shapes: Mapping[str, Sequence[int]]) -> None:
    """Check that an LRE has W, `(hidden, hidden)`, or its factors, and b, `(hidden,)`, none of them too large."""
    _check_names(shapes)
    given = {name: tuple(shape) for name, shape in shapes.items()}
    width, rank = given["bias"], given.get("values", ())
    dense = {"weight": 2 * width, "bias": width}
    factors = {"left": width + rank, "values": rank, "right": width + rank, "bias": width}
    fits = len(width) == 1 and 1 <= width[0] <= WIDEST
    if "weight" in given and not (fits and given == dense):
        raise LREError(
            f"an LRE needs W of shape (hidden, hidden) and b of shape (hidden,), not {given['weight']} and {width}"
        )
    if "weight" not in given and not (fits and given == factors and len(rank) == 1 and 1 <= rank[0] <= width[0]):
        raise LREError(
            "an LRE needs factors of shapes (hidden, rank), (rank,) and (hidden, rank) and b of shape (hidden,), not "
            f"{given['left']}, {rank}, {given['right']} and {width}"
        )


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


def check_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Check the tensors of an LRE and return them without a graph."""
    _check_names(tensors)
    for name, tensor in tensors.items():
        check_tensor(tensor, f"{name} of an LRE", FLOATS if name in ("left", "right") else WIDE)
    check_shapes({name: tensor.shape for name, tensor in tensors.items()})
    return {name: tensor.detach() for name, tensor in tensors.items()}


def write_tensors(path: str | Path, tensors: Mapping[str, Tensor], name: str, metadata: Mapping[str, Any]) -> None:
    """Write a safetensors file atomically: tensors, and metadata under a name."""
    from safetensors.torch import save

    plain = {key: tensor.contiguous().cpu() for key, tensor in tensors.items()}
    write_whole(Path(path), save(plain, {name: json.dumps(metadata)}))


def read_lre(path: str | Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the metadata of an LRE from its file, checked, and its tensors if they are wanted."""
    with opened(path, "an LRE file", "lre") as (file, metadata):
        names = file.keys()
        check_shapes({name: file.get_slice(name).get_shape() for name in names})
        checked = checked_metadata(metadata)
        return checked, check_tensors({name: file.get_tensor(name) for name in names}) if tensors else {}


@contextmanager
def opened(path: str | Path, what: str, name: str) -> Iterator[tuple[Any, Any]]:
    """Open a safetensors file that `write_tensors` wrote, and yield it with its metadata.

    If reading it fails within the context, an `LREError` says that the file is not `what`.
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isfile(path):
        raise LREError(f"{str(path)!r} is not {what} that can be read: there is no such file")
    try:
        with safe_open(path, framework="pt") as file:
            yield file, json.loads((file.metadata() or {})[name])
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError, MemoryError) as error:
        reason = printable(first_line(error))
        raise LREError(f"{str(path)!r} is not {what} that can be read: {reason}") from error
