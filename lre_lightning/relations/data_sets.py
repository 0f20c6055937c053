"""Data sets of Hugging Face as rows: in memory, saved in a folder, or on the Hub.

No code of a data set is run. Its files are read as any other table is: `datasets.load_dataset` would convert the text
``007`` to a number and ``NA`` to a missing value.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from lre_lightning.errors import LREError, first_line
from lre_lightning.relations.formats import (
    FORMATS,
    NumberedRow,
    Opened,
    Rows,
    has_table_suffix,
    open_rows,
    rows_of_batches,
)
from lre_lightning.storage.plain import printable, shown

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

HUB_OPTIONS = ("name", "split", "revision", "data_files", "data_dir", "token")
"""The options of `datasets.load_dataset` that apply to a data set of the Hub."""

_HUB_NAME = re.compile(r"(hf://datasets/)?([A-Za-z0-9][\w.-]*(?:/[A-Za-z0-9][\w.-]*)?)(?:@([^\s@]+))?", re.ASCII)
_SAVED = ({"dataset_info.json", "state.json"}, {"dataset_dict.json"})


def is_saved(folder: str | Path) -> bool:
    """Return whether a folder was written by `save_to_disk` of a `datasets.Dataset` or `datasets.DatasetDict`."""
    return any(all(os.path.isfile(os.path.join(folder, name)) for name in names) for names in _SAVED)


def is_hub_name(name: str) -> bool:
    """Return whether a string can be the name of a data set of the Hub, and not a path to a file of relations."""
    is_file_name = name.endswith(".json") or has_table_suffix(name)
    return name.startswith("hf://") or ("/" in name and not is_file_name and bool(_HUB_NAME.fullmatch(name)))


def open_saved(folder: Path, split: Any = None) -> Opened:
    """Open a folder written by `save_to_disk`; a broken one is an `LREError`."""
    from datasets import load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except Exception as error:  # a broken folder may raise anything
        raise LREError(f"the data set {str(folder)!r} cannot be read: {first_line(error)}") from error
    return open_loaded(loaded, str(folder), printable(folder.resolve().name), split)


def open_loaded(loaded: Any, place: str = "the data set", name: str = "dataset", split: Any = None) -> Opened:
    """Open a data set in memory; anything else is an `LREError`."""
    from datasets import Dataset, DatasetDict

    if isinstance(loaded, Dataset):
        loaded = {loaded.split or "train": loaded}
    elif not isinstance(loaded, DatasetDict):
        right = "a path, a name, a datasets.Dataset or a datasets.DatasetDict"
        raise LREError(f"relations are read from {right}, not from {shown(loaded)}")
    parts = {str(split): _rows(part, f"{place}, split {str(split)!r}") for split, part in loaded.items()}
    return place, name, choose_splits(place, parts, split)


def _rows(dataset: Dataset, place: str) -> Rows:
    def rows(names: Sequence[str]) -> Iterator[NumberedRow]:
        to_text = {name: getattr(dataset.features[name], "int2str", None) for name in names}
        labels = {name: int2str for name, int2str in to_text.items() if int2str}
        batches = dataset.select_columns(list(names)).with_format("arrow").iter(batch_size=10_000)
        for number, row in rows_of_batches(batches):
            yield number, row | {name: int2str(row[name]) for name, int2str in labels.items()}

    return Rows(place, "row", dataset.column_names, rows)


def choose_splits(place: str, splits: Mapping[str, Any], split: Any) -> list[Any]:
    """Return the splits that are requested, such as ``"train+test"``, or the only one; others are an `LREError`."""
    names = ", ".join(map(repr, splits))
    if split is None:
        if len(splits) != 1:
            first, *others = splits or [""]
            hint = f", or {f'{first}+{others[0]}'!r} for both" if others else ""
            raise LREError(f"{place!r} has the splits {names or 'none'}: give split, such as {first!r}{hint}")
        return list(splits.values())
    chosen = [name.strip() for name in dict.fromkeys(str(split).split("+"))]
    for name in chosen:
        if name not in splits:
            raise LREError(f"{place!r} has no split {name!r}: it has {names}; join several by '+'")
    return [splits[name] for name in chosen]


def open_hub(source: str, options: Mapping[str, Any]) -> Opened:
    """Open a data set of the Hub; the arguments and errors are those of `fetch_hub`."""
    folder, name = fetch_hub(source, options)
    from datasets import load_dataset_builder

    chosen = {key: options[key] for key in ("name", "data_files", "data_dir") if options.get(key) is not None}
    try:
        builder = load_dataset_builder(str(folder), **chosen)
    except Exception as error:  # the files of a stranger may raise anything
        reason = printable(" ".join(str(error).splitlines()[:2]) or type(error).__name__)
        raise LREError(f"the data set {name!r} of the Hub cannot be read: {reason}") from error
    splits = {str(split): list(map(Path, paths)) for split, paths in (builder.config.data_files or {}).items()}
    parts = []
    for path in chain.from_iterable(choose_splits(source, splits, options.get("split"))):
        if not Path(os.path.normpath(path)).is_relative_to(folder.resolve()):  # links lead elsewhere in the cache
            raise LREError(f"the data set {name!r} of the Hub names the file {shown(str(path))}, which is not its own")
        parts.append(open_rows(path))
    return source, name.rpartition("/")[2], parts


def fetch_hub(source: str, options: Mapping[str, Any]) -> tuple[Path, str]:
    """Download the tables of a data set of the Hub, unless they are in the cache.

    Args:
        source: ``hf://datasets/ORG/NAME[@REVISION]`` or ``ORG/NAME``.
        options: Some of `HUB_OPTIONS`.

    Returns:
        The folder of the files, and the data set's name. It is an `LREError` if they cannot be downloaded.
    """
    missing = "" if source.startswith("hf://") else f"there is no file or folder {source!r}, and "
    match = _HUB_NAME.fullmatch(source)
    if not match or not (match[1] or "/" in match[2]):
        raise LREError(
            f"{missing}{source!r} is not the name of a data set of the Hub: give hf://datasets/ORG/NAME or "
            "hf://datasets/ORG/NAME@REVISION; the option data_files chooses among its files"
        )
    name, revision = match[2], unquote(match[3]) if match[3] else options.get("revision")
    from huggingface_hub import errors as hub
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(  # which takes the files from the cache if the Hub cannot be reached
            name,
            repo_type="dataset",
            revision=revision,
            allow_patterns=["README.md", ".huggingface.yaml", *_patterns(options)],
            token=options.get("token"),
        )
        return Path(folder), name
    except hub.RevisionNotFoundError:
        reason = f"has no revision {revision!r}"
    except hub.GatedRepoError:
        reason = "is gated: request access on its page and run `hf auth login`"
    except hub.RepositoryNotFoundError:
        reason = "does not exist: check the name, or run `hf auth login` if it is private"
    except hub.LocalEntryNotFoundError as error:
        why = printable(first_line(error.__cause__ or error))
        reason = (
            f"is not in the cache, and the Hub cannot be reached ({why}): download it once where there is a network, "
            "or save it to a folder and give that"
        )
    except Exception as error:  # whatever else goes wrong on the way
        reason = f"cannot be downloaded: {printable(first_line(error))}; try again"
    raise LREError(f"{missing}the data set {name!r} of the Hub {reason}")


def _patterns(options: Mapping[str, Any]) -> list[str]:
    """Return the files to download as patterns of `huggingface_hub`, in which ``*`` also matches ``/``."""
    folder = f"{str(options['data_dir']).strip('/')}/" if options.get("data_dir") else ""
    given = options.get("data_files")
    if given is None:
        return [f"{folder}*{suffix}" for suffix in (".json", *FORMATS, *(f"{suffix}.gz" for suffix in FORMATS))]
    parts = given.values() if isinstance(given, Mapping) else [given]
    patterns = [str(pattern) for part in parts for pattern in ([part] if isinstance(part, str) else part)]
    return [folder + form for pattern in patterns for form in (pattern, pattern.replace("**/", ""))]
