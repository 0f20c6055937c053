"""Where the files of a collection are: a folder, or a repository on the Hugging Face hub, fetched file by file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lre_lightning.demo import COLLECTIONS
from lre_lightning.errors import LREError
from lre_lightning.sharing.index import INDEX, LRES

REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Folder:
    """A folder on this machine."""

    path: Path

    def fetch(self, file: str) -> Path:
        """Return the path of a file, given relative to the folder."""
        root = self.path.resolve()
        if root.parent.name == "snapshots":  # of the hub's cache, whose files are links to those beside it
            root = root.parents[1]
        try:
            inside = (self.path / file).resolve().is_relative_to(root)
        except (OSError, RuntimeError):  # a link to itself
            inside = False
        if not inside:
            raise LREError(
                f"{str(self.path / file)!r} is a link that leads out of the collection: replace it by a file"
            )
        return self.path / file

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class Repository:
    """A repository on the hub at one commit; files are downloaded when they are asked for, and kept in the cache."""

    name: str
    commit: str | None
    token: str | bool | None = None
    cache_dir: str | Path | None = None

    def fetch(self, file: str) -> Path:
        """Return the path of a file in the cache, downloaded if it is not there."""
        from huggingface_hub import hf_hub_download

        options = {"revision": self.commit, "token": self.token, "cache_dir": self.cache_dir}
        with hub_errors(f"{file!r} of {self.name!r} cannot be downloaded"):
            return Path(hf_hub_download(self.name, file, **options))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.name


Place = Folder | Repository


def find(
    source: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
) -> tuple[Place, bool]:
    """Find a collection by its folder, that of a run, or its name on the hub.

    Returns:
        Its place, at the revision's current commit, and whether it has an index.
    """
    path = COLLECTIONS.get(str(source)) or Path(source).expanduser()
    if path.is_dir():
        if not ((path / INDEX).exists() or (path / LRES).is_dir()):
            main = path / "main"
            hint = f"; the main fit of this evaluation is {str(main)!r}" if (main / LRES).is_dir() else ""
            raise LREError(
                f"{str(path)!r} is neither a collection of LREs nor one fit: it has no {INDEX} and no {LRES}{hint}"
            )
        return Folder(path), (path / INDEX).exists()
    if not REPOSITORY.fullmatch(str(source)):
        raise LREError(f"there is no collection {str(source)!r}: give a folder, a run's folder, or a hub name org/name")
    index = Repository(str(source), revision, token, cache_dir).fetch(INDEX)
    return Repository(str(source), index.parent.name, token, cache_dir), True


def check_repository(name: str) -> None:
    """Check that a name is that of a repository on the hub."""
    if not REPOSITORY.fullmatch(name):
        raise LREError(f"{name!r} is not a name on the hub: give org/name or user/name")


def upload(
    folder: Path,
    files: Sequence[str],
    name: str,
    revision: str | None,
    token: str | bool | None,
    private: bool | None,
    *,
    message: str,
    kind: Literal["model", "dataset"] = "model",
) -> str:
    """Make a repository on the hub if need be, and commit some files of a folder to it, and the removal of other LREs.

    It is one commit, so nobody sees half of it. The same call resumes an upload: large files that have arrived are not
    sent again.

    Returns:
        The address of the commit.
    """
    from huggingface_hub import HfApi

    check_repository(name)
    api = HfApi(token=token)
    with hub_errors(f"{name!r} cannot be pushed to"):
        api.create_repo(name, repo_type=kind, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, repo_type=kind, branch=revision, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name,
            repo_type=kind,
            folder_path=folder,
            allow_patterns=[*files],
            delete_patterns=f"{LRES}/*",
            commit_message=message,
            revision=revision,
        )
    return str(commit.commit_url)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn what the hub's client raises into an `LREError` that begins with `what`."""
    try:
        yield
    except Exception as error:  # of the hub, of the network
        raise LREError(f"{what}: {' '.join(str(error).split()) or type(error).__name__}") from error
