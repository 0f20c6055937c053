"""The processes of a run: sums over them, work for the first one alone, and the strategies that start them.

Only sums travel between processes. What has to be known of all samples is a sum too: every process fills in the rows
of its own samples and leaves zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor

from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer


@dataclass(frozen=True)
class Processes:
    """This process among all processes of a run.

    `sum` and `rows` are collective: each process has to call them, in the same order, with tensors of the same shapes.

    Attributes:
        index: This process, from 0.
        count: The number of processes.
        device: Where tensors must lie to travel; None where they may lie anywhere.

    >>> Processes().sum(torch.tensor([1, 2]))[0].tolist()
    [1, 2]
    """

    index: int = 0
    count: int = 1
    device: torch.device | None = None

    @classmethod
    def of(cls, strategy: Strategy, index: int, count: int) -> Processes:
        """The processes of a Trainer's strategy, once it has set up its environment."""
        if count == 1:
            return ONE_PROCESS
        anywhere = torch.distributed.get_backend() == "gloo"
        return cls(index, count, None if anywhere else strategy.root_device)

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sums of tensors over all processes, in place where a tensor can travel as it is.

        Args:
            tensors: Contiguous tensors of any number type.

        Returns:
            The sums, each on the device of its tensor, and exact for whole numbers.
        """
        if self.count == 1:
            return list(tensors)
        sent = [tensor.to(self.device or tensor.device) for tensor in tensors]
        for work in [torch.distributed.all_reduce(tensor, async_op=True) for tensor in sent]:
            work.wait()
        return [total.to(tensor.device) for total, tensor in zip(sent, tensors, strict=True)]

    def rows(self, mine: Tensor, places: Sequence[int], total: int) -> Tensor:
        """The rows of all processes.

        Args:
            mine: This process's rows, `(rows, ...)`.
            places: Where they belong among all; each place belongs to one process.
            total: Number of rows of all processes.

        Returns:
            All rows, `(total, ...)`, with zeros where no process has one, in the dtype and on the device of `mine`.
        """
        if self.count == 1 and list(places) == list(range(total)):
            return mine
        wide = torch.promote_types(mine.dtype, torch.float32) if mine.is_floating_point() else mine.dtype
        rows = torch.zeros(total, *mine.shape[1:], dtype=wide, device=mine.device)
        rows[torch.tensor(list(places), dtype=torch.long, device=mine.device)] = mine.to(wide)
        (summed,) = self.sum(rows)
        return summed.to(mine.dtype)


ONE_PROCESS = Processes()
"""A run of one process."""


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


SHARDED = (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)


def check_strategy(strategy: Strategy) -> None:
    """Refuse strategies that keep only a part of the LM on each device.

    Raises:
        LREError: If the strategy is one of them.
    """
    if isinstance(strategy, SHARDED):
        raise LREError(
            f"{type(strategy).__name__} keeps a part of the LM's weights on each device, and Jacobians need them "
            "whole: use the strategy 'ddp', or for an LM larger than a device one process with device_map='auto'"
        )


def without_wrapper(strategy: Strategy, module: LightningModule) -> None:
    """Let a DDP strategy start a module that has nothing to train, once.

    `DistributedDataParallel` refuses such a module, and nothing here needs what it does: it adds up gradients.
    """
    if not isinstance(strategy, DDPStrategy):
        return
    overridden: Any = vars(strategy)

    def configure_ddp() -> None:
        del overridden["configure_ddp"]
        if strategy.lightning_module is not module:  # this one's setup failed, and the strategy serves another
            strategy.configure_ddp()

    overridden["configure_ddp"] = configure_ddp


def check_alike(strategy: Strategy, processes: Processes, what: str, digest: str) -> None:
    """Check that something is the same in all processes.

    Args:
        strategy: The Trainer's strategy.
        processes: The processes.
        what: The thing, as users know it.
        digest: Tells it from others.

    Raises:
        LREError: On every process, if it differs in one.
    """
    if processes.count == 1:
        return
    (differing,) = processes.sum(torch.tensor([strategy.broadcast(digest) != digest], dtype=torch.long))
    if differing.item():
        raise LREError(
            f"{what} on {differing.item()} of {processes.count} processes differ from the first: give all of them the "
            "same files and options"
        )
