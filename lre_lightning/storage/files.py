"""Files that have their name only once they are whole."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from lre_lightning.errors import LREError, first_line

_NO_ROOM = "free some space there"
_NOT_ALLOWED = "give a folder that may be written to"
_IN_THE_WAY = "a file is where a folder should be: move it, or give another folder"
ADVICE = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "a file may not be that large there: give another folder, or raise the limit",
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: _NOT_ALLOWED,
    errno.ENOTDIR: _IN_THE_WAY,
    errno.EEXIST: _IN_THE_WAY,
    errno.EISDIR: "a folder is where the file should be: move it, or give another folder",
}


class NotWritten(LREError):
    """A file or a folder could not be written."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text in UTF-8, under its name only once it is whole.

    Raises:
        LREError: If the file cannot be written.
    """
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; after the context what was written is `path`, also after a power cut.

    If the context is left by an exception, or the process ends within it, what was at `path` before stays there. Two
    processes must not write the same file at once: see `lre_lightning.storage.locks`.

    Raises:
        LREError: If the file cannot be written.
    """
    part = _part_of(path)
    try:
        with failures_named(path):
            make_folder(path.parent)
            part.unlink(missing_ok=True)
            part.touch()
            mode = part.stat().st_mode
            yield part
            part.chmod(mode)  # safetensors makes files that nobody else may read
            _sync(part)
            part.replace(path)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def remove_part(path: Path) -> None:
    """Remove what a process that was killed has left of a file, if it is there and no folder."""
    with suppress(OSError):
        _part_of(path).unlink()


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@contextmanager
def grown_whole(path: Path) -> Iterator[Path]:
    """As `written_whole`, with what is at `path` already copied, to be added to.

    Raises:
        LREError: If the file cannot be written.
    """
    with written_whole(path) as part:
        if path.exists():
            shutil.copyfile(path, part)
        yield part


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """Turn what the system says of a write that failed into an error that names the file or folder.

    Raises:
        NotWritten: If something in the context cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _number_in(str(error))
        reason = first_line(error) if number is None else os.strerror(number)
        advice = ADVICE.get(number or 0)
        raise NotWritten(f"{str(path)!r} cannot be written: {reason}" + (f"; {advice}" if advice else "")) from error


PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)$)[a-z0-9][a-z0-9_-]{0,99}")
"""Names that every system takes for a file or a folder: Windows reserves some."""


def safe_name(name: str) -> str:
    """The name of a file or a folder for something that may have any name.

    A name of lower-case ASCII letters, digits, ``-`` and spaces stays, with ``_`` for spaces. In any other, runs of
    what is no letter or digit become ``_``, and a digest of the name follows: no two names become one, also where a
    file system ignores case or how a letter's accents are written.

    >>> safe_name("country capital city"), safe_name("company CEO")
    ('country_capital_city', 'company_CEO+af1fd86c31aed8fb')
    """
    plain = name.replace(" ", "_")
    if name == plain.replace("_", " ") and PLAIN.fullmatch(plain):
        return plain
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    letters = re.sub(r"[\W_]+", "_", name).strip("_").encode()[:100].decode(errors="ignore")
    return f"{letters}+{digest}"


def check_writable(folder: Path) -> None:
    """Try to write to a folder, or where it is not there yet to the one in which it will be made.

    Raises:
        LREError: If nothing can be written there.
    """
    with failures_named(folder):
        existing = folder.absolute()
        while not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"?")
            file.flush()
            os.fsync(file.fileno())


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that they are there also after a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # what file systems say that cannot
            raise
    finally:
        os.close(descriptor)


def _number_in(message: str) -> int | None:
    found = re.search(r"os error (\d+)", message)
    return int(found[1]) if found else None
