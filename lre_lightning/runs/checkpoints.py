"""Checkpoints: written atomically, and read as tensors and plain data.

A checkpoint is a run's own file, so its form is not checked. Reading one lets no code run all the same, and its options
neither let code run nor say where to write. What strangers share are collections, whose files are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from typing_extensions import override

from lre_lightning.errors import LREError, first_line
from lre_lightning.runs.processes import share_error
from lre_lightning.storage.files import written_whole
from lre_lightning.storage.plain import mapping, printable, shown

STATE = "bank._extra_state"
"""The only entry of a checkpoint's ``state_dict``."""

TRIALS_KEY = "lre_trials"
"""The entry of a checkpoint with the number of trials of its fit."""


class WholeCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically: an interrupted write leaves the previous file as it was.

    Lightning itself writes to the system's temporary folder and then moves the file. Where that folder is on another
    disk, a process that is killed or a disk that fills up during the move leaves a truncated checkpoint in place of the
    last one. The command line uses this class; in Python it is ``Trainer(plugins=[WholeCheckpointIO()])``. Addresses
    such as ``s3://…`` are left to Lightning.

    Checkpoints are read with ``weights_only=True`` unless the caller asks otherwise, so that they cannot run code.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     WholeCheckpointIO().save_checkpoint({"epoch": 3}, f"{folder}/last.ckpt")
    ...     WholeCheckpointIO().load_checkpoint(f"{folder}/last.ckpt")
    {'epoch': 3}
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        """Write a checkpoint; if that fails, a previous file is left as it was."""
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
        """Read a checkpoint with `read_checkpoint`, unless `weights_only` is given or the path is a remote address."""
        if weights_only is None and "://" not in str(path):
            return read_checkpoint(path)
        return super().load_checkpoint(path, map_location, True if weights_only is None else weights_only)


class LRETrainer(Trainer):
    """Lightning's Trainer, but every process fails if the first one cannot write a checkpoint."""

    @override
    def save_checkpoint(
        self, filepath: str | Path, weights_only: bool | None = None, storage_options: Any | None = None
    ) -> None:
        """Write a checkpoint, as Lightning's Trainer does; the error of a failed write is raised in every process."""
        error = None
        try:
            super().save_checkpoint(filepath, weights_only, storage_options)
        except LREError as raised:  # on the first process, before the barrier at which the others wait
            error = raised
            self.strategy.barrier("Trainer.save_checkpoint")
        share_error(self, error)


def read_checkpoint(path: str | Path, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint of tensors and plain data; anything else is an `LREError`.

    With `mapped` tensors are mapped into memory instead of read, and the file must not change while they are used.
    """
    if not os.path.isfile(path):
        raise LREError(f"checkpoint {str(path)!r} does not exist, or is not a file")
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except UnpicklingError as error:
        raise LREError(f"checkpoint {str(path)!r} holds more than tensors and plain data") from error
    except Exception as error:  # readers of archives and pickles raise anything on broken bytes
        reason = printable(first_line(error))
        raise LREError(f"checkpoint {str(path)!r} cannot be read; is it truncated? ({reason})") from error
    if not isinstance(checkpoint, dict):
        raise LREError(f"checkpoint {str(path)!r} holds {shown(checkpoint)} instead of a run")
    return checkpoint


def read_hyperparameters(path: Path, explicit: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Read the arguments of the module and the datamodule that a checkpoint was made with.

    Args:
        path: A checkpoint of `LREModule`; anything else is an `LREError`.
        explicit: Dotted names of options to leave out, such as ``"model.loading.trust_remote_code"``: they let code run
            or say where to write, so a checkpoint must not set them.

    Returns:
        The arguments under ``"model"`` and ``"data"``, without an attention implementation that is code from the hub.
    """
    checkpoint = read_checkpoint(path, mapped=True)
    state = checkpoint.get("state_dict")
    if not isinstance(state, dict) or list(state) != [STATE]:
        raise LREError(f"{str(path)!r} is not a checkpoint of a fit of linear relational embeddings")
    try:
        keys = {"model": "hyper_parameters", "data": "datamodule_hyper_parameters"}
        options: dict[str, Any] = {section: _options(checkpoint, key) for section, key in keys.items()}
        for name in explicit:
            *sections, last = name.split(".")
            holder = options
            for section in sections:  # anything but an object could be text that the command line would parse
                holder = mapping(holder.get(section) or {}, section)
            holder.pop(last, None)
        loading = mapping(options["model"].get("loading") or {}, "loading")
    except LREError as error:
        raise LREError(f"checkpoint {str(path)!r} is invalid: {error}") from error
    if "/" in str(loading.get("attn_implementation")):
        del loading["attn_implementation"]
    return options


def _options(checkpoint: Mapping[str, Any], key: str) -> dict[str, Any]:
    options = mapping(checkpoint.get(key, {}), key)
    for name, value in options.items():
        if isinstance(value, dict) and "class_path" in value:  # which the command line would import
            raise LREError(f"{name} in {key} names a class_path")
    return options


def finished_trials(path: Path) -> tuple[int, int | None, str]:
    """Return the number of a checkpoint's finished trials, of all its fit's trials if known, and the LM's name."""
    model = read_hyperparameters(path)["model"].get("name_or_path")
    checkpoint = read_checkpoint(path, mapped=True)
    finished: int = checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"]
    return finished, checkpoint.get(TRIALS_KEY), str(model)


def restrict(checkpoint: dict[str, Any], trainer: Trainer | None = None) -> None:
    """Remove from a checkpoint, in place, what a Trainer would trust and a run of this project does not need.

    The state of a `ModelCheckpoint` is removed because it names files that are deleted later; a resumed fit starts
    without it. So are the states of loops other than that of fit, and of optimizers, which this project never has.

    A state of more trials than the Trainer is to run is an `LREError`.
    """
    checkpoint["optimizer_states"], checkpoint["lr_schedulers"] = [], []
    loops = checkpoint.pop("loops", {})
    if trainer is None:
        return
    dropped = {callback.state_key for callback in trainer.checkpoint_callbacks}
    checkpoint["callbacks"] = {k: v for k, v in checkpoint.get("callbacks", {}).items() if k not in dropped}
    if trainer.state.fn != "fit":
        return
    checkpoint["loops"] = {"fit_loop": loops["fit_loop"]}
    finished, last = loops["fit_loop"]["epoch_progress"]["current"]["completed"], trainer.max_epochs
    if last is not None and 0 <= last < finished:
        raise LREError(f"the checkpoint's fit has finished {finished} trials, and this one is to end after {last}")
