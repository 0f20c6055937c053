"""The processes of a run: sums over them, work for the first one alone, and the strategies that start them.

Processes exchange nothing but sums. Values of all samples are a sum, too: every process fills in the rows of its own
samples and leaves the others zero.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from lightning import LightningModule, Trainer

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as seen from one of them.

    Where several processes share an LM, they run the same passes and hold the same numbers, and count as one: its
    first member alone adds to sums.

    `sum` and `rows` are collective: every process must call them, in the same order, with tensors of the same shapes.

    Attributes:
        index: The index of this process, or of the group that it shares an LM with, from 0.
        count: The number of processes, or of such groups.
        device: The device that tensors must be on to be summed; None if they may be on any.
        member: The index of this process in its group.
        members: The number of processes in a group.

    >>> Processes().sum(torch.tensor([1, 2]))[0].tolist()
    [1, 2]
    """

    index: int = 0
    count: int = 1
    device: torch.device | None = None
    member: int = 0
    members: int = 1

    @classmethod
    def of(cls, strategy: Strategy, index: int, count: int, members: int = 1) -> Processes:
        """Return the processes of a Trainer's strategy, once it has set up its environment."""
        if count == 1:
            return ONE_PROCESS
        anywhere = torch.distributed.get_backend() == "gloo"
        device = None if anywhere else strategy.root_device
        return cls(index // members, count // members, device, index % members, members)

    @property
    def first(self) -> bool:
        """Whether this is the first process of all, which writes and logs."""
        return self.index == self.member == 0

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sum contiguous tensors over all processes, in place unless a tensor has to be copied to `device`.

        The sums are on the devices of their tensors, and exact for whole numbers.
        """
        if self.count == self.members == 1:
            return list(tensors)
        sent = [tensor.to(self.device or tensor.device) for tensor in tensors]
        if self.member:
            sent = [tensor.zero_() for tensor in sent]
        for work in [torch.distributed.all_reduce(tensor, async_op=True) for tensor in sent]:
            work.wait()
        return [total.to(tensor.device) for total, tensor in zip(sent, tensors, strict=True)]

    def rows(self, mine: Tensor, places: Sequence[int], total: int) -> Tensor:
        """Gather this process's rows, `(rows, ...)`, and those of the others, `(total, ...)`, zero where none has one.

        `places` are the indices of `mine` among all rows; no two processes have the same index.
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


def process_index() -> int:
    """Return the index of this process, as far as Lightning knows it yet."""
    return getattr(rank_zero_only, "rank", None) or 0


class RankZeroError(LREError):
    """An error of the first process, raised in another one."""


def turn(trainer: Trainer | None) -> tuple[int, int]:
    """Return the index and number of those that take turns in serving data: processes, or groups that share an LM."""
    if trainer is None:
        return 0, 1
    members = getattr(getattr(trainer, "lightning_module", None), "processes", ONE_PROCESS).members
    return trainer.global_rank // members, trainer.world_size // members


def on_rank_zero(trainer: Trainer, work: Callable[[], object]) -> None:
    """Call a function in the first process; its exception is raised there, and as a `RankZeroError` in the others.

    All processes must call this, once the Trainer's strategy has set up its environment.
    """
    error: Exception | None = None
    if trainer.is_global_zero:
        try:
            work()
        except Exception as raised:
            error = raised
    share_error(trainer, error)


def share_error(trainer: Trainer, error: Exception | None) -> None:
    """Raise the exception of the first process, if any, there, and as a `RankZeroError` in the other processes."""
    message = None if error is None else str(error) if isinstance(error, LREError) else first_line(error)
    message = trainer.strategy.broadcast(message)
    if error is not None:
        raise error
    if message is not None:
        raise RankZeroError(message)


def check_strategy(strategy: Strategy) -> None:
    """Refuse strategies that split weights: for a frozen LM `Loading.tensor_parallel` does."""
    if isinstance(strategy, (FSDPStrategy, DeepSpeedStrategy, ModelParallelStrategy)):
        raise LREError(
            f"{type(strategy).__name__} splits the weights of an LM that is trained: use the strategy 'ddp', and for "
            "an LM larger than a device --model.loading.tensor_parallel, the number of processes that share it"
        )


def without_wrapper(strategy: Strategy, module: LightningModule) -> None:
    """Let a DDP strategy start a module without trainable parameters, once.

    `DistributedDataParallel`, which adds up gradients, refuses such a module and is not needed.
    """
    if not isinstance(strategy, DDPStrategy):
        return
    overridden: Any = vars(strategy)

    def configure_ddp() -> None:
        del overridden["configure_ddp"]
        if strategy.lightning_module is not module:  # the setup of `module` failed, and the strategy serves another
            strategy.configure_ddp()

    overridden["configure_ddp"] = configure_ddp


def check_alike(
    strategy: Strategy, processes: Processes, what: str, mine: T, same: Callable[[T, T], bool] = operator.eq
) -> None:
    """Check that `mine`, which identifies `what`, is the same in all processes; the error is raised in all."""
    count = processes.count * processes.members
    if count == 1:
        return
    (differing,) = replace(processes, member=0).sum(torch.tensor([not same(strategy.broadcast(mine), mine)]).long())
    if differing.item():
        raise LREError(
            f"{what} on {differing.item()} of {count} processes differ from the first: give all of them the "
            "same files and options"
        )
