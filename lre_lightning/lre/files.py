"""The safetensors file of an LRE: W or its factors, b, and where they come from, all checked before use."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from typing_extensions import TypedDict

from lre_lightning.errors import LREError
from lre_lightning.grid import WIDEST, CheckedLayer, CheckedRank
from lre_lightning.lre.origin import Origin
from lre_lightning.storage.tensors import FLOATS, WIDE, check_tensor, opened
from lre_lightning.storage.typed import Number, typed


class LREMetadata(TypedDict):
    """All of an LRE but its tensors."""

    layer: CheckedLayer
    beta: Number
    rank: CheckedRank | None
    origin: Origin


def checked_metadata(metadata: object) -> dict[str, Any]:
    """Check the metadata of an LRE as plain data; lists become tuples, and unknown keys are dropped."""
    try:
        checked = typed(LREMetadata, metadata)
    except LREError as error:
        raise LREError(f"this is not the metadata of an LRE: {error}") from error
    return {**checked, "origin": asdict(checked["origin"])}


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


def check_tensors(tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    """Check the tensors of an LRE and return them without a graph."""
    _check_names(tensors)
    for name, tensor in tensors.items():
        check_tensor(tensor, f"{name} of an LRE", FLOATS if name in ("left", "right") else WIDE)
    check_shapes({name: tensor.shape for name, tensor in tensors.items()})
    return {name: tensor.detach() for name, tensor in tensors.items()}


def read_lre(path: str | Path, tensors: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the metadata of an LRE from its file, checked, and its tensors if they are wanted."""
    with opened(path, "an LRE file", "lre") as (file, metadata):
        names = file.keys()
        check_shapes({name: file.get_slice(name).get_shape() for name in names})
        checked = checked_metadata(metadata)
        return checked, check_tensors({name: file.get_tensor(name) for name in names}) if tensors else {}
