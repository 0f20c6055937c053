"""One run at a time in a folder."""

from __future__ import annotations

import os
import socket
import warnings
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from lre_lightning.errors import LREError
from lre_lightning.storage.files import failures_named, make_folder, write_whole


class FolderLock:
    """A lock that keeps a folder for one process, until it is released or the process ends.

    The operating system holds the lock and releases it however the process ends, so there is nothing to clean up.

    Args:
        folder: The folder; it is made if it does not exist.
        job: The job that the folder is locked for; other jobs can run in it meanwhile.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with FolderLock(Path(folder)):
    ...         try:
    ...             FolderLock(Path(folder)).acquire()
    ...         except LREError as error:
    ...             print("is in use by process" in str(error))
    True
    """

    def __init__(self, folder: Path, job: str = "fit") -> None:
        self.folder, self.job = folder, job
        self._path = folder / f".{job}.lock"
        self._owner = folder / f".{job}.lock.owner"
        self._lock: FileLock | None = None

    def acquire(self) -> None:
        """Lock the folder, unless this object has done so already; an error if another process has."""
        if self._lock is not None:
            return
        with failures_named(self.folder):
            make_folder(self.folder)
        self._lock = self._taken()
        now = datetime.now().isoformat(" ", "minutes")
        write_whole(self._owner, f"process {os.getpid()} on {socket.gethostname()} since {now}")

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def look(self) -> None:
        """Check that no other process has locked the folder, without locking or making it."""
        if self._lock is None and self._path.exists():
            self._taken().release()

    def _taken(self) -> FileLock:
        lock = FileLock(self._path)
        with failures_named(self._path):
            try:
                lock.acquire(timeout=0)
            except NotImplementedError:
                warnings.warn(f"{str(self.folder)!r} cannot be locked: start no other {self.job} there", stacklevel=2)
            except Timeout as error:
                owner = "another process"
                with suppress(OSError):
                    owner = self._owner.read_text(encoding="utf-8")
                raise LREError(
                    f"{str(self.folder)!r} is in use by {owner}: wait until it ends or stop it, or give another folder "
                    "(default_root_dir)"
                ) from error
        return lock

    def release(self) -> None:
        """Unlock the folder."""
        if self._lock is not None:
            lock, self._lock = self._lock, None
            self._owner.unlink(missing_ok=True)
            lock.release()
