"""Checkpoints that are whole or not there."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from typing_extensions import override

from lre_lightning.runs.checkpoints import read_checkpoint, read_hyperparameters
from lre_lightning.storage.files import written_whole

PAIRS_KEY = "lre_pairs"
"""Where a checkpoint says how many pairs its fit has."""


class WholeCheckpointIO(TorchCheckpointIO):
    """Writes checkpoints that have their name only once they are whole and on the disk.

    Lightning's own way is a file in the system's folder for temporary files that is then moved: where that folder is on
    another disk, a process that is killed or a disk that is full meanwhile leaves a truncated checkpoint in place of
    the last one. The command line uses this; in Python it is ``Trainer(plugins=[WholeCheckpointIO()])``. Addresses such
    as ``s3://…`` are left to Lightning.

    Checkpoints are read with ``weights_only=True`` where nothing else is asked for: they can hold no code.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     WholeCheckpointIO().save_checkpoint({"epoch": 3}, f"{folder}/last.ckpt")
    ...     WholeCheckpointIO().load_checkpoint(f"{folder}/last.ckpt")
    {'epoch': 3}
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write a checkpoint.

        Raises:
            LREError: If the file cannot be written; what was there before stays.
        """
        if storage_options is not None or "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        buffer = BytesIO()
        torch.save(checkpoint, buffer)
        with written_whole(Path(path)) as part:
            part.write_bytes(buffer.getbuffer())

    @override
    def load_checkpoint(
        self,
        path: str | Path,
        map_location: Callable[..., Any] | None = lambda storage, _: storage,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Read a checkpoint, as `read_checkpoint` does where nothing else is asked for."""
        if weights_only is None and "://" not in str(path):
            return read_checkpoint(path)
        return super().load_checkpoint(path, map_location, True if weights_only is None else weights_only)


def finished_pairs(path: Path) -> tuple[int, int | None, str]:
    """How far the fit of a checkpoint has come.

    Args:
        path: A checkpoint of `LREModule`.

    Returns:
        How many pairs are finished, of how many where the checkpoint says so, and the LM's name.

    Raises:
        LREError: If the file is truncated, or not such a checkpoint.
    """
    model = read_hyperparameters(path)["model"].get("name_or_path")
    checkpoint = read_checkpoint(path, mapped=True)
    finished: int = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return finished, checkpoint.get(PAIRS_KEY), str(model)
