"""Data sets of Hugging Face as tables: in memory, saved in a folder, or on the hub.

No code of a data set is run, and its files are read as those of a user are: `datasets.load_dataset` would take the text
``007`` for a number and ``NA`` for a missing value.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.table_files import LARGEST_TABLE, SUFFIXES, Row, Splits, Table, guarded, open_file
from lre_lightning.storage.plain import printable, shown

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

HUB_OPTIONS = ("name", "split", "revision", "data_files", "data_dir", "token")
"""The options of `datasets.load_dataset` that a data set of the hub may be given."""
TIMEOUT = 10.0
"""Seconds that the hub may take to say whether it has a data set."""

_HUB_NAME = re.compile(r"(hf://datasets/)?([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([^\s@]+))?", re.ASCII)
_SAVED = ({"dataset_info.json", "state.json"}, {"dataset_dict.json"})


def is_saved(folder: str | Path) -> bool:
    """Say whether a folder is one of `datasets.Dataset.save_to_disk` or `datasets.DatasetDict.save_to_disk`."""
    return any(all((Path(folder) / name).is_file() for name in names) for names in _SAVED)


def is_hub_name(name: str) -> bool:
    """Say whether a string can be the name of a data set of the hub, and not of a file of relations here."""
    if name.startswith("hf://"):
        return True
    return bool(_HUB_NAME.fullmatch(name)) and "/" in name and not name.endswith((".json", *SUFFIXES))


def open_saved(folder: Path) -> tuple[str, str, Splits]:
    """Open a folder of `save_to_disk`: its name for errors, the name of its relation if it is one, its splits.

    Raises:
        LREError: It is no such folder, or broken.
    """
    if not is_saved(folder):
        raise LREError(f"the folder {str(folder)!r} is none that save_to_disk of a data set wrote")
    from datasets import load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception as error:  # whatever a broken folder may be wrong with
        raise LREError(f"can't read the data set {str(folder)!r}: {first_line(error)}") from error
    name = printable(os.fsencode(folder.resolve().name).decode(errors="replace"))
    return open_loaded(loaded, str(folder), name)


def open_loaded(loaded: Any, place: str, name: str) -> tuple[str, str, Splits]:
    """Open a data set in memory: its name for errors, the name of its relation if it is one, its splits.

    Raises:
        LREError: It is something else.
    """
    from datasets import Dataset, DatasetDict

    if isinstance(loaded, Dataset):
        return place, name, {str(loaded.split or "train"): lambda: [_dataset(loaded, place)]}
    if isinstance(loaded, DatasetDict):
        return place, name, {str(split): partial(_open_split, str(split), part) for split, part in loaded.items()}
    raise LREError(
        "relations are read from a path, a name, a datasets.Dataset or a datasets.DatasetDict, "
        f"and not from {shown(loaded)}"
    )


def _open_split(split: str, part: Dataset) -> list[Table]:
    return [_dataset(part, f"the split {split!r}")]


def _dataset(dataset: Dataset, place: str) -> Table:
    def rows(names: Sequence[str]) -> Iterator[Row]:
        labels = [getattr(dataset.features[name], "int2str", None) for name in names]
        number = 0
        for batch in dataset.select_columns(list(names)).with_format("arrow").iter(batch_size=10_000):
            cells = [batch.column(name).to_pylist() for name in names]
            for column, label in enumerate(labels):
                if label is not None:
                    cells[column] = [None if value is None or value < 0 else label(value) for value in cells[column]]
            for row in zip(*cells, strict=True):
                number += 1
                yield number, list(row)

    return Table(place, "row", dataset.column_names, guarded(rows, place))


def open_hub(source: str, options: Mapping[str, Any]) -> tuple[str, str, Splits]:
    """Open a data set of the hub: its name for errors, the name of its relation if it is one, its splits.

    Args:
        source: ``hf://datasets/ORG/NAME[@REVISION]`` or ``ORG/NAME``.
        options: Some of `HUB_OPTIONS`.

    Raises:
        LREError: The hub has no such data set, it can't be fetched, or it has no tables.
    """
    match = _HUB_NAME.fullmatch(source)
    if not match or not (match[1] or "/" in match[2]):
        missing = "" if source.startswith("hf://") else f"there is no file or folder {source!r} here, and "
        raise LREError(
            f"{missing}{source!r} is no name of a data set of the hub: give hf://datasets/ORG/NAME or "
            "hf://datasets/ORG/NAME@REVISION; some of its files are chosen by the option data_files"
        )
    name, revision = match[2], unquote(match[3]) if match[3] else None
    given = options.get("revision")
    if revision and given and revision != given:
        raise LREError(f"{source!r} names the revision {revision!r}, and the options {given!r}: give one of them")
    folder = _fetch(source, name, revision or given, options)
    if not any(path.name.lower().endswith((".json", *SUFFIXES)) for path in folder.rglob("*")):
        raise LREError(
            f"the data set {name!r} of the hub has no table that is asked for: it must have files "
            f".json, {', '.join(SUFFIXES)}"
        )
    from datasets import load_dataset_builder

    chosen = {key: options[key] for key in ("name", "data_files", "data_dir") if options.get(key) is not None}
    try:
        builder = load_dataset_builder(str(folder), **chosen)
    except Exception as error:  # whatever the files of a stranger may be wrong with
        reason = printable(" ".join(str(error).splitlines()[:2]) or type(error).__name__)
        raise LREError(f"the data set {name!r} of the hub can't be read: {reason}") from error
    splits: Splits = {
        str(split): partial(_open_fetched, [Path(path) for path in paths], folder, name, builder.config)
        for split, paths in (builder.config.data_files or {}).items()
    }
    return source, name.rpartition("/")[2], splits


def _open_fetched(paths: Sequence[Path], folder: Path, name: str, config: Any) -> list[Table]:
    places = [_inside(path, folder, name) for path in paths]
    return [
        open_file(path, f"{name}/{place}", getattr(config, "sep", None))
        for path, place in zip(paths, places, strict=True)
    ]


def _inside(path: Path, folder: Path, name: str) -> str:
    """The path of a data set's file in its folder, which it may not leave."""
    relative = os.path.relpath(path, folder.resolve())
    if relative.startswith(os.pardir) or os.path.isabs(relative):
        raise LREError(f"the data set {name!r} of the hub names the file {shown(str(path))}, which is none of its own")
    return relative


def _fetch(source: str, name: str, revision: str | None, options: Mapping[str, Any]) -> Path:
    """Bring the data files of a data set into the cache, or find them there.

    Returns:
        The folder of the files.
    """
    from datasets import config
    from huggingface_hub import HfApi, snapshot_download

    patterns = ["README.md", ".huggingface.yaml", *_patterns(options)]
    token = options.get("token")
    missing = "" if source.startswith("hf://") else f"there is no file or folder {source!r} here, and "
    reason: BaseException | None = None
    if not config.HF_HUB_OFFLINE:
        try:
            info = HfApi().dataset_info(name, revision=revision, timeout=TIMEOUT, files_metadata=True, token=token)
        except Exception as error:  # a hub that says no, or none at all
            status = getattr(getattr(error, "response", None), "status_code", 0)
            if isinstance(error, ValueError) or 400 <= status < 500:
                raise LREError(f"{missing}{_refusal(name, revision, error)}") from error
            reason = error
        else:
            _check_size(name, info.siblings or (), patterns)
    offline = reason is not None or config.HF_HUB_OFFLINE
    try:
        folder = snapshot_download(
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns=patterns,
            token=token,
            local_files_only=offline,
        )
    except Exception as error:
        if not offline:
            raise LREError(
                f"the data set {name!r} of the hub can't be fetched: {printable(first_line(error))}; "
                "what has been fetched is kept, so try again"
            ) from error
        why = (
            f"the Hugging Face Hub can't be reached ({printable(first_line(reason))})"
            if reason
            else "HF_HUB_OFFLINE is set"
        )
        raise LREError(
            f"{missing}the data set {name!r} of the hub is not in the cache, and {why}: fetch it once where there is a "
            "network, or save it to a folder and give that"
        ) from error
    if reason is not None:
        print(f"The Hugging Face Hub can't be reached: {name} is read from the cache.", file=sys.stderr)
    return Path(folder)


def _patterns(options: Mapping[str, Any]) -> list[str]:
    """The files to fetch, in the patterns of `huggingface_hub`, in which ``*`` stands for ``/`` too."""
    given = options.get("data_files")
    if given is None:
        folder = f"{str(options['data_dir']).strip('/')}/" if options.get("data_dir") else ""
        return [f"{folder}*{suffix}" for suffix in (".json", *SUFFIXES)]
    parts = given.values() if isinstance(given, Mapping) else [given]
    found = [str(p) for part in parts for p in ([part] if isinstance(part, str) else part)]
    folder = f"{str(options['data_dir']).strip('/')}/" if options.get("data_dir") else ""
    return [folder + pattern for p in found for pattern in dict.fromkeys((p, p.replace("**/", "")))]


def _check_size(name: str, files: Sequence[Any], patterns: Sequence[str]) -> None:
    wanted = [file for file in files if any(fnmatch(file.rfilename, pattern) for pattern in patterns)]
    size = sum(file.size or 0 for file in wanted)
    if size > LARGEST_TABLE:
        raise LREError(
            f"the tables of the data set {name!r} of the hub have {size} bytes, and may have {LARGEST_TABLE}: choose "
            "some by the option data_files"
        )


def _refusal(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    what = f"the data set {name!r}"
    if isinstance(error, GatedRepoError):
        return f"{what} of the hub is gated: ask for access on its page, and log in with `hf auth login`"
    if isinstance(error, RepositoryNotFoundError):
        hint = "check the name, or log in with `hf auth login` if it is private"
        return f"the Hugging Face Hub has no data set {name!r}: {hint}"
    if isinstance(error, RevisionNotFoundError):
        return f"{what} of the hub has no revision {revision!r}"
    return f"the Hugging Face Hub refused {what}: {printable(first_line(error))}"
