"""The 47 relations of Hernandez et al. (ICLR 2024), fetched once from their authors' public repository.

They are under the MIT licence (https://github.com/evandez/relations), and no part of this package, which has only
their names and SHA-256 checksums (``paper.sha256``, as pooch reads it), at one revision of the repository.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from filelock import FileLock, Timeout

from lre_lightning.errors import LREError, first_line
from lre_lightning.storage.files import NotWritten, check_writable, failures_named, make_folder

REPOSITORY = "https://github.com/evandez/relations"
REVISION = "1b9ec3cf2b8368e42bde7e80fcef384312a6ec07"
ADDRESS = f"https://raw.githubusercontent.com/evandez/relations/{REVISION}/data/"
MANIFEST = Path(__file__).with_name("paper.sha256")
CACHE_DIR_VARIABLE = "LRE_CACHE_DIR"
ADDRESS_VARIABLE = "LRE_PAPER_RELATIONS_URL"
PAUSES = (0.5, 2.0)
"""Seconds before each new try of a file after trouble that may pass."""
LONGEST_CONNECTING = 5.0
"""Seconds in which each of a server's addresses must take the connection."""


class NotFetched(LREError):
    """The relations are not in the cache and could not be fetched."""


def fetch_paper_relations(timeout: float = 20.0) -> Path:
    """Fetch the relations of the paper, unless they are in the cache already.

    The cache is the folder that the environment variable ``LRE_CACHE_DIR`` names, else the user's cache folder. Its
    files are compared with their checksums each time; if all are right no request is made and nothing is written.
    ``LRE_PAPER_RELATIONS_URL`` names a mirror of the repository's folder ``data`` (an http, https or file address),
    which must hold the same bytes.

    Args:
        timeout: Seconds of silence after which a server is given up; one that is slow but keeps sending is not. It
            also bounds the connecting, which may take 5 seconds at most.

    Returns:
        The folder, which holds one folder a category, with one JSON file a relation, and no other JSON file.

    Raises:
        LREError: A file could not be fetched, or had another content than the paper's, or the cache can't be written.
    """
    import pooch  # type: ignore[import-untyped]

    folder = _cache() / REVISION
    known = _known()
    if _is_whole(folder, known):
        return folder
    with _explained(folder, known), failures_named(folder.parent):
        address = _address()
        check_writable(folder.parent)
        make_folder(folder.parent)
        with _alone(folder), _quiet(pooch.get_logger()):
            if not _is_whole(folder, known):
                _fetch(folder, known, address, timeout)
    return folder


def _cache() -> Path:
    import pooch

    named = os.environ.get(CACHE_DIR_VARIABLE) or pooch.os_cache("lre-lightning")
    return Path(os.path.expanduser(named)).absolute()


def _known() -> dict[str, str]:
    """The SHA-256 of each file, by its path below the folder."""
    import pooch

    files = pooch.create(path="", base_url="")
    files.load_registry(MANIFEST)
    return dict(files.registry)


def _address() -> str:
    """The address below which the files are.

    Raises:
        LREError: It is none that files can be fetched from, or the user wants no request to the network.
    """
    named = os.environ.get(ADDRESS_VARIABLE)
    if named:
        with suppress(ValueError):
            if urlsplit(named).scheme in ("http", "https", "file"):
                return named.rstrip("/") + "/"
        raise LREError(
            f"{ADDRESS_VARIABLE} is {named!r}; it must be an address that begins with http://, https:// or file://"
        )
    from huggingface_hub import is_offline_mode

    if is_offline_mode():
        raise _not_fetched(ADDRESS, "is not asked because HF_HUB_OFFLINE is set")
    return ADDRESS


def _is_whole(folder: Path, known: dict[str, str]) -> bool:
    """Say whether a folder has all files and no other relation.

    Raises:
        LREError: It has a JSON file that is not one of them.
    """
    foreign = sorted({path.relative_to(folder).as_posix() for path in folder.rglob("*.json")} - known.keys())
    if foreign:
        raise LREError(
            f"{str(folder / foreign[0])!r} is none of the paper's relations, which that folder is kept for: move it "
            "elsewhere"
        )
    return not _missing(folder, known)


def _missing(folder: Path, known: dict[str, str]) -> list[str]:
    """The files that a folder lacks, or has with another content."""
    return [name for name, checksum in known.items() if _checksum(folder / name) != checksum]


def _checksum(path: Path) -> str | None:
    import pooch

    with suppress(OSError):
        return str(pooch.file_hash(str(path)))
    return None


def _fetch(folder: Path, known: dict[str, str], address: str, timeout: float) -> None:
    """Bring what a folder lacks into one beside it, and from there to its place once all is there."""
    import pooch

    part = folder.with_name(folder.name + ".part")
    _remove_others(part, known)
    missing = _missing(folder, known)
    files = pooch.create(path=part, base_url=address, registry=known)
    with _Downloader(timeout) as downloader:
        for name in _shown(missing, part, address):
            _fetch_file(files, name, downloader)  # what is there already stays
    if folder.exists():
        for name in missing:
            make_folder((folder / name).parent)
            (part / name).replace(folder / name)
        shutil.rmtree(part)
    else:
        part.rename(folder)


def _remove_others(part: Path, known: dict[str, str]) -> None:
    """Remove what a process that was killed has left half done."""
    for path in list(part.rglob("*")):
        if path.is_file() and path.relative_to(part).as_posix() not in known:
            path.unlink()


def _fetch_file(files: Any, name: str, downloader: _Downloader) -> None:
    """Fetch one file, again after trouble that may pass.

    Raises:
        NotFetched: It can't be fetched, or is not the paper's.
    """
    for pause in (*PAUSES, None):
        try:
            files.fetch(name, downloader=downloader)
        except _Trouble as trouble:
            if pause is None or not trouble.passing:
                tries = f" in {1 + len(PAUSES)} tries" if trouble.passing else ""
                raise _not_fetched(files.get_url(name), trouble.reason + tries) from trouble
            time.sleep(pause)
        except ValueError as error:
            raise _not_fetched(
                files.get_url(name), "sent something else than the paper's relation (SHA-256)"
            ) from error
        else:
            return


def _not_fetched(address: str, reason: str) -> NotFetched:
    return NotFetched(
        f"the paper's relations can't be fetched: {_without_password(address)} {reason}. Try again, or set "
        f"{ADDRESS_VARIABLE} to a mirror, or get the folder `data` of the repository in another way "
        f"(git clone {REPOSITORY}) and give it as `source` or by LRE_RELATIONS_DIR"
    )


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class _Trouble(Exception):
    """A file could not be fetched.

    Attributes:
        reason: What its address did, as in ``"answers 404 Not Found"``.
        passing: Whether it may go better the next time.
    """

    def __init__(self, reason: str, passing: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.passing = reason, passing


class _Downloader:
    """What pooch fetches a file with: over one connection for all of them, or from the disk."""

    def __init__(self, timeout: float) -> None:
        import requests

        self._timeout = timeout
        self._session = requests.Session()

    def __enter__(self) -> _Downloader:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    def __call__(self, url: str, output_file: str, pooch: Any) -> None:
        content = _read(url) if url.startswith("file:") else self._received(url)
        # pooch makes files that nobody else may read; made anew it has the user's usual mode.
        os.unlink(output_file)
        Path(output_file).write_bytes(content)

    def _received(self, url: str) -> bytes:
        import requests

        try:
            answer = self._session.get(url, timeout=(min(self._timeout, LONGEST_CONNECTING), self._timeout))
        except (requests.RequestException, ValueError) as error:
            raise _trouble_of(error, self._timeout) from error
        if not answer.ok:
            passing = answer.status_code >= 500 or answer.status_code == 429
            raise _Trouble(f"answers {answer.status_code} {answer.reason}", passing)
        return answer.content


def _read(url: str) -> bytes:
    path = Path(url2pathname(urlsplit(url).path))
    try:
        return path.read_bytes()
    except OSError as error:
        raise _Trouble(f"can't be read ({error.strerror or error})") from error


def _trouble_of(error: Exception, timeout: float) -> _Trouble:
    """Say what went wrong in a request that got no whole answer."""
    import requests
    from urllib3.exceptions import ProtocolError, ReadTimeoutError

    causes = list(_causes(error))
    if isinstance(error, requests.ConnectTimeout):
        return _Trouble("can't be reached: nothing takes the connection")
    if any(isinstance(cause, (ReadTimeoutError, requests.ReadTimeout)) for cause in causes):
        return _Trouble(f"sent nothing for {timeout:g} seconds", passing=True)
    if any(isinstance(cause, ProtocolError) for cause in causes):
        return _Trouble("broke the connection off", passing=True)
    return _Trouble(f"can't be reached ({first_line(causes[-1])})")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """An exception and those that it came of, the first last."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


def _shown(names: list[str], part: Path, address: str) -> Iterable[str]:
    """Show the progress over files: a bar in a terminal, else a line."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    if console.is_terminal:
        return track(names, "Fetching the paper's relations", console=console)
    print(f"fetching {len(names)} relations from {_without_password(address)} to {part.parent}", file=sys.stderr)
    return names


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process fetches to a folder, and keep others waiting meanwhile."""
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except NotImplementedError:
        warnings.warn(f"{str(folder.parent)!r} cannot be locked: fetch with one process at a time", stacklevel=2)
    except Timeout:
        print("another process fetches the paper's relations: waiting for it", file=sys.stderr)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _quiet(logger: Any) -> Iterator[None]:
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _explained(folder: Path, known: dict[str, str]) -> Iterator[None]:
    """Say also which file of the cache is damaged, and how to have another cache where it can't be written."""
    try:
        yield
    except (NotFetched, NotWritten) as error:
        damaged = [folder / name for name in _missing(folder, known) if (folder / name).exists()]
        before = f"{str(damaged[0])!r} is damaged, and " if damaged else ""
        after = f" ({CACHE_DIR_VARIABLE} names the cache)" if isinstance(error, NotWritten) else ""
        raise type(error)(f"{before}{error}{after}") from error
