"""The user's cache: what was slow to make, kept in folders that are checked when they are used, up to a size."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from filelock import FileLock

from lre_lightning.errors import first_line
from lre_lightning.storage.files import failures_named

LOGGER = logging.getLogger("lre_lightning")

T = TypeVar("T")

LIMIT = 16 * 2**30
"""Bytes of all folders together; those that were not used for longest are removed."""

CHECKSUMS = "checksums.json"


def cache_folder() -> Path:
    """Return the folder named by the environment variable ``LRE_CACHE_DIR``, else the user's cache folder."""
    import pooch  # type: ignore[import-untyped]

    named = os.environ.get("LRE_CACHE_DIR")
    return Path(os.path.expanduser(named or pooch.os_cache("lre-lightning"))).absolute()


def converted_folder() -> Path:
    """Return the folder of what `kept` keeps, in the user's cache."""
    return cache_folder() / "converted"


def kept(key: str, make: Callable[[], T], save: Callable[[T, Path], object], load: Callable[[Path], T]) -> T:
    """Load what is in the cache under a key; else make it, and save it there if that is possible.

    The files of a folder are compared with their sizes and checksums each time, and made again if they differ. One
    process makes them while others that want the same wait.

    Args:
        key: All that it depends on.
        make: Makes it.
        save: Saves it in an empty folder, or leaves that empty.
        load: Loads it from such a folder.
    """
    entry = converted_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    lock = FileLock(entry.with_suffix(".lock"))
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except (OSError, NotImplementedError):  # where nothing can be written or locked
        return load(entry) if _whole(entry) else make()
    try:
        if not _whole(entry):
            made = make()
            _save(entry, partial(save, made))
            return made
        os.utime(entry)
    finally:
        lock.release()
    return load(entry)


def clear() -> None:
    """Remove all that is kept; an error if it cannot be removed."""
    folder = converted_folder()
    with failures_named(folder):
        if folder.exists():
            shutil.rmtree(folder)


def checksum(path: str | Path) -> str:
    """Return the XXH128 sum of a file, which finds damage, but no forgery, in an eighth of the time of SHA-256."""
    import pooch

    return str(pooch.file_hash(str(path), alg="xxh128"))


def _whole(entry: Path) -> bool:
    """Return whether all files of a folder are there, and are those that were saved."""
    try:
        sums = json.loads((entry / CHECKSUMS).read_text(encoding="utf-8"))
        sizes = all((entry / name).stat().st_size == size for name, (size, _) in sums.items())
        return sizes and all(checksum(entry / name) == digest for name, (_, digest) in sums.items())
    except (OSError, ValueError, TypeError, AttributeError):
        return False


def _save(entry: Path, save: Callable[[Path], object]) -> None:
    """Save a folder whole or not at all, and make room for it."""
    part = entry.with_suffix(".part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a killed process
        part.mkdir()
        save(part)
        sums = {path.name: (path.stat().st_size, checksum(path)) for path in part.iterdir()}
        if sums:
            (part / CHECKSUMS).write_text(json.dumps(sums), encoding="utf-8")
            shutil.rmtree(entry, ignore_errors=True)
            part.rename(entry)
            _make_room(entry.parent)
    except Exception as error:  # of a full disk, or of what cannot be saved
        LOGGER.info("nothing is kept in %s: %s", entry.parent, first_line(error))
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _make_room(folder: Path) -> None:
    """Remove the folders that were used longest ago, as far as all together have more than `LIMIT` bytes."""
    size = 0
    for entry in sorted(filter(Path.is_dir, folder.iterdir()), key=lambda path: path.stat().st_mtime, reverse=True):
        size += sum(path.stat().st_size for path in entry.iterdir())
        if size > LIMIT:
            shutil.rmtree(entry, ignore_errors=True)
