"""Checkpoints, read and checked before anything is built from them.

A file may be a stranger's. Only tensors and plain data are read, and what is not in the form in which this project
writes it is an error that says so.
"""

from __future__ import annotations

import os
import pickletools
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError, first_line
from lre_lightning.storage.plain import _plain, check_plain, mapping, printable, shown, text, truth, whole

if TYPE_CHECKING:
    from lightning import Trainer

STATE = "bank._extra_state"
"""The one entry of a checkpoint's ``state_dict``."""

GLOBALS = re.compile(r"collections OrderedDict|builtins set|torch._utils _rebuild_tensor_v2|torch [A-Z]\w+Storage")
"""What the pickle in a checkpoint may name: other things that ``weights_only`` allows make arrays of any size."""

VERSION = re.compile(r"2\.([6-9]|[1-9]\d{1,3})(\.\d{1,4})?((a|b|rc|\.post|\.?dev)\d{1,8})?")
"""The versions of Lightning that have written checkpoints of this project."""

EXPLICIT_ONLY = {"model": {"trust_remote_code", "lre_dir", "offload_folder"}, "data": {"trust_remote_code"}}
"""Options that let code run or say where to write: they hold where they are given, never because of a checkpoint."""


def read_checkpoint(path: str | Path, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint: tensors and plain data.

    Args:
        path: A file in the form of `torch.save`.
        mapped: Whether to leave the tensors in the file, which must stay as it is while they are used.

    Raises:
        LREError: If it is truncated or is something else, or holds more than tensors and plain data.
    """
    import torch

    if not os.path.isfile(path):
        raise LREError(f"checkpoint {str(path)!r} does not exist, or is no file")
    try:
        _check_archive(Path(path))
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except LREError:
        raise
    except Exception as error:  # whatever a reader of archives and pickles may make of broken bytes
        reason = printable(first_line(error))
        raise LREError(f"checkpoint {str(path)!r} cannot be read; is it whole? ({reason})") from error
    if not isinstance(checkpoint, dict):
        raise LREError(f"checkpoint {str(path)!r} holds {shown(checkpoint)}, and no run")
    return _plain(checkpoint)


def _check_archive(path: Path) -> None:
    """Refuse an archive that takes more room than its file, and a pickle that does more than list tensors and data."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if any(e.compress_type != zipfile.ZIP_STORED or e.file_size != e.compress_size for e in entries):
            raise LREError(f"checkpoint {str(path)!r} is compressed, as none is that this project writes")
        pickles = [entry for entry in entries if entry.filename.lower().endswith(".pkl")]
        if len(pickles) != 1:
            raise LREError(f"checkpoint {str(path)!r} has {len(pickles)} pickles in it, and not one")
        _check_pickle(path, archive.read(pickles[0]))


def _check_pickle(path: Path, data: bytes) -> None:
    for operation, argument, _ in pickletools.genops(data):
        if operation.name == "GLOBAL" and not GLOBALS.fullmatch(str(argument)):
            name = shown(str(argument).replace(" ", "."))
            raise LREError(f"checkpoint {str(path)!r} holds more than tensors and plain data: {name}")


def read_hyperparameters(path: Path) -> dict[str, dict[str, Any]]:
    """Read the arguments of the module and the datamodule that a checkpoint was made with.

    Args:
        path: A checkpoint of `LREModule`.

    Returns:
        The arguments under ``"model"`` and ``"data"``, without those that have to be given explicitly, `EXPLICIT_ONLY`
        and an attention implementation that is code from the hub.

    Raises:
        LREError: If the file is truncated, or not such a checkpoint.
    """
    checkpoint = read_checkpoint(path, mapped=True)
    state = checkpoint.get("state_dict")
    if not isinstance(state, dict) or list(_plain(state)) != [STATE]:
        raise LREError(f"{str(path)!r} is not a checkpoint of a fit of linear relational embeddings")
    try:
        _check_progress(checkpoint)
        options = {
            "model": _options(checkpoint, "hyper_parameters"),
            "data": _options(checkpoint, "datamodule_hyper_parameters"),
        }
    except LREError as error:
        raise LREError(f"checkpoint {str(path)!r} is broken: {error}") from error
    if "/" in str(options["model"].get("attn_implementation")):
        del options["model"]["attn_implementation"]
    return {
        section: {name: value for name, value in given.items() if name not in EXPLICIT_ONLY[section]}
        for section, given in options.items()
    }


def _check_progress(checkpoint: Mapping[str, Any]) -> None:
    """Check what Lightning reads of a checkpoint before any code of this project does, and how far the fit has come."""
    version = text(checkpoint.get("pytorch-lightning_version"), "the version of Lightning", 40)
    if not VERSION.fullmatch(version):
        raise LREError(f"it was written by Lightning {version!r}, and this project needs one of 2.6 or later")
    for name in ("epoch", "global_step"):
        whole(checkpoint.get(name), name)
    whole(checkpoint.get("lre_pairs", 0), "lre_pairs")
    for name in ("callbacks", "loops", "RelationDataModule"):
        mapping(checkpoint.get(name, {}), name)
    place: Any = checkpoint.get("loops", {})
    for name in ("fit_loop", "epoch_progress", "current"):
        place = mapping(place, "loops").get(name)
    for name in ("ready", "started", "processed", "completed"):
        whole(mapping(place, "the progress of the fit").get(name), f"the number of pairs {name}")


def _options(checkpoint: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = mapping(checkpoint.get(key, {}), key)
    for name in found:
        if not name.isidentifier():
            raise LREError(f"{shown(name)} in {key} is no name of an option")
    check_plain(found, key)
    return dict(found)


def restrict(checkpoint: dict[str, Any], trainer: Trainer | None = None) -> None:
    """Take out of a checkpoint, in place, what a Trainer would trust and a run of this project does not need.

    The state of a `ModelCheckpoint` is left out, because it names files that are deleted later; a fit that goes on
    begins it anew. So are the states of other loops than that of fit, and of optimizers, of which there is none.

    Args:
        checkpoint: A checkpoint, as Lightning hands it to `on_load_checkpoint`.
        trainer: The Trainer that goes on with it.

    Raises:
        LREError: If the state of the fit is not in the form in which the Trainer would write it, or it has gone farther
            than the Trainer is to go.
    """
    checkpoint["optimizer_states"], checkpoint["lr_schedulers"] = [], []
    loops = mapping(checkpoint.pop("loops", {}), "loops")
    if trainer is None:
        return
    dropped = {callback.state_key for callback in trainer.checkpoint_callbacks}
    callbacks = mapping(checkpoint.get("callbacks", {}), "callbacks")
    kept = {key: state for key, state in callbacks.items() if key not in dropped and key.isprintable()}
    checkpoint["callbacks"] = {key: _plain(state) if isinstance(state, dict) else state for key, state in kept.items()}
    if trainer.state.fn != "fit":
        return
    progress = _alike(loops.get("fit_loop"), trainer.fit_loop.state_dict(), "loops.fit_loop")
    checkpoint["loops"] = {"fit_loop": progress}
    finished, last = progress["epoch_progress"]["current"]["completed"], trainer.max_epochs
    if last is not None and 0 <= last < finished:
        raise LREError(f"the checkpoint's fit has finished {finished} pairs, and this one is to end after {last}")


def _alike(given: object, own: Any, what: str) -> Any:
    """A loop's state that has the structure of another, down to the counts in it."""
    if isinstance(own, dict):
        found = mapping(given, what)
        if found.keys() != own.keys():
            raise LREError(f"{what} of the checkpoint has other entries than {', '.join(sorted(own)) or 'none'}")
        return {key: _alike(found[key], value, f"{what}.{key}") for key, value in own.items()}
    return truth(given, what) if isinstance(own, bool) else whole(given, what)
