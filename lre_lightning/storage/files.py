"""Files that are written atomically, and their names."""

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

from lre_lightning.errors import LREError, first_line

ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space there"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "give a writable folder"),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "a file is where a folder should be: move it, or give another folder"
    ),
    errno.EISDIR: "a folder is where the file should be: move it, or give another folder",
    errno.EFBIG: "files cannot be that large there: give another folder, or raise the limit",
}


class NotWritten(LREError):
    """A file or a folder could not be written."""


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text in UTF-8."""
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path, append: bool = False) -> Iterator[Path]:
    """Write a file atomically: yield a path beside it to write to, which takes its place when the context is left.

    The new content survives a power cut. If the context is left by an exception, or the process ends within it, the
    previous file is left as it was. Two processes must not write the same file at once: see
    `lre_lightning.storage.locks`.

    With `append` the new content begins with a copy of the previous one. A failure is a `NotWritten`.
    """
    part = _part_of(path)
    try:
        with failures_named(path):
            make_folder(path.parent)
            part.unlink(missing_ok=True)
            if append and path.exists():
                shutil.copyfile(path, part)
            yield part
            _sync(part)
            part.replace(path)
            _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


def remove_part(path: Path) -> None:
    """Remove the unfinished copy of a file that a killed process has left, if there is one."""
    with suppress(OSError):
        _part_of(path).unlink()


def _part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@contextmanager
def failures_named(path: Path) -> Iterator[None]:
    """Turn the system's error about a failed write into a `NotWritten` that names the path and says what to do."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else first_line(error)
        advice = ADVICE.get(error.errno or 0)
        raise NotWritten(f"{str(path)!r} cannot be written: {reason}" + (f"; {advice}" if advice else "")) from error


PLAIN = re.compile(r"(?!(con|prn|aux|nul|com\d|lpt\d)$)[a-z0-9][a-z0-9_-]{0,99}")
"""Names of files and folders that every system accepts; Windows reserves some."""


def safe_name(name: str) -> str:
    """Return the name of a file or a folder for something of any name.

    A name of lower-case ASCII letters, digits, ``-`` and spaces is kept, with ``_`` for spaces. In any other, runs of
    other characters become ``_``, and a digest of the name is appended: two names never become one, even where the file
    system ignores case or how a letter's accents are written.

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
    """Try to write to a folder or, if it does not exist yet, to its nearest parent that does."""
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
    """Make a folder and its parents, so that they survive a power cut."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the answer of file systems that cannot
            raise
    finally:
        os.close(descriptor)
