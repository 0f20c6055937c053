"""Loading a causal LM from a hub or a folder, with one clear sentence for what can go wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lre_lightning.demo import resolve
from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from transformers import PreTrainedModel

DTYPES = ("auto", "float64", "float32", "bfloat16", "float16")


def load_model(name_or_path: str, dtype: str, options: Mapping[str, Any]) -> PreTrainedModel:
    """Load a causal LM with its unembedding.

    Args:
        name_or_path: Hub name or folder; ``"demo"`` is the bundled LM.
        dtype: One of `DTYPES`; ``"auto"`` is the dtype in which the weights are stored.
        options: Further arguments of `AutoModelForCausalLM.from_pretrained`; those that are None are left out.

    Raises:
        LREError: If the dtype is unknown, or no causal LM can be loaded.
    """
    from transformers import AutoModelForCausalLM

    if dtype not in DTYPES:
        raise LREError(f"dtype {dtype!r} is unknown: use one of {', '.join(DTYPES)}")
    path = locate(name_or_path)
    given = {key: value for key, value in options.items() if value is not None}
    try:
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype if dtype == "auto" else getattr(torch, dtype), **given
        )
    except Exception as error:  # whatever a hub, a config or a file of weights may be wrong with
        raise LREError(f"no decoder-only LM can be loaded from {name_or_path!r}: {first_line(error)}") from error


def locate(name_or_path: str) -> str:
    """Return what to hand to `from_pretrained`: a folder's path, or a hub name as it is.

    Raises:
        LREError: If the name can only be that of a folder, and there is none.
    """
    path = Path(resolve(name_or_path)).expanduser()
    looks_local = path.is_absolute() or name_or_path.startswith(".") or len(path.parts) > 2
    if looks_local and not path.is_dir():
        raise LREError(f"model folder {name_or_path!r} does not exist: give a folder with a config.json, or a hub name")
    return str(path) if looks_local else name_or_path
