"""Progress of long work on standard error, where it is a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def progress(items: Sequence[T], title: str, transient: bool = False) -> Iterable[T]:
    """Return the items with a bar of how many of them are done; a `transient` one is removed at the end."""
    from rich.console import Console  # imported where something is shown
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, title, console=console, transient=transient, disable=not console.is_terminal)
