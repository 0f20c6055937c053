"""What one process does for all of a run, and how the others learn that it went wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from lightning import Trainer


class RankZeroError(LREError):
    """An error of rank zero, on another rank."""


def on_rank_zero(trainer: Trainer, work: Callable[[], object]) -> None:
    """Do something on rank zero; if it fails there, it fails on all ranks.

    All ranks must call it, once the Trainer's strategy has set up its environment.

    Args:
        trainer: The Trainer.
        work: What to do.

    Raises:
        RankZeroError: On the other ranks, with the message of rank zero's exception.
    """
    error: Exception | None = None
    if trainer.is_global_zero:
        try:
            work()
        except Exception as raised:
            error = raised
    share_error(trainer, error)


def share_error(trainer: Trainer, error: Exception | None) -> None:
    """Raise an exception of rank zero there, and a `RankZeroError` on the other ranks; nothing if there is none."""
    message = None if error is None else str(error) if isinstance(error, LREError) else first_line(error)
    message = trainer.strategy.broadcast(message)
    if error is not None:
        raise error
    if message is not None:
        raise RankZeroError(message)
