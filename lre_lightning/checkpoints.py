"""What a checkpoint remembers, read before anything is built."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from lre_lightning.errors import LREError, first_line


def read_hyperparameters(path: Path) -> dict[str, dict[str, Any]]:
    """Read the arguments of the module and the datamodule that a checkpoint was made with.

    Args:
        path: A checkpoint of `LREModule`.

    Returns:
        The arguments under ``"model"`` and ``"data"``.

    Raises:
        LREError: If the file is truncated, or not such a checkpoint.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, zipfile.BadZipFile) as error:
        raise LREError(f"checkpoint {str(path)!r} cannot be read; is it whole? ({first_line(error)})") from error
    state = checkpoint.get("state_dict", {}) if isinstance(checkpoint, dict) else {}
    if "bank._extra_state" not in state:
        raise LREError(f"{str(path)!r} is not a checkpoint of a fit of linear relational embeddings")
    return {
        "model": dict(checkpoint.get("hyper_parameters", {})),
        "data": dict(checkpoint.get("datamodule_hyper_parameters", {})),
    }
