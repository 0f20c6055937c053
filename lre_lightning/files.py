"""Files that have their name only once they are whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, text in UTF-8, under its name only once it is whole."""
    with written_whole(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a path beside `path` to write to; after the context what was written is `path`.

    If the context is left by an exception, what was at `path` before stays there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    yield part
    part.replace(path)
