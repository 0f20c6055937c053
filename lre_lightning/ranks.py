"""The processes of a run, and what they add up among them.

Only sums travel between processes. What has to be known of all samples is a sum too: every process fills in the rows
of its own samples and leaves zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from lightning.pytorch.strategies import Strategy


@dataclass(frozen=True)
class Ranks:
    """This process among all processes of a run.

    `sum` and `rows` are collective: each process has to call them, in the same order, with tensors of the same shapes.

    Attributes:
        rank: This process, from 0.
        size: How many there are.
        device: Where tensors must lie to travel; None where they may lie anywhere.

    >>> Ranks().sum(torch.tensor([1, 2]))[0].tolist()
    [1, 2]
    """

    rank: int = 0
    size: int = 1
    device: torch.device | None = None

    @classmethod
    def of(cls, strategy: Strategy, rank: int, size: int) -> Ranks:
        """The processes of a Trainer's strategy, once it has set up its environment."""
        if size == 1:
            return ALONE
        anywhere = torch.distributed.get_backend() == "gloo"
        return cls(rank, size, None if anywhere else strategy.root_device)

    def sum(self, *tensors: Tensor) -> list[Tensor]:
        """Sums of tensors over all processes, in place where a tensor can travel as it is.

        Args:
            tensors: Contiguous tensors of any number type.

        Returns:
            The sums, each on the device of its tensor, and exact for whole numbers.
        """
        if self.size == 1:
            return list(tensors)
        sent = [tensor.to(self.device or tensor.device) for tensor in tensors]
        for work in [torch.distributed.all_reduce(tensor, async_op=True) for tensor in sent]:
            work.wait()
        return [total.to(tensor.device) for total, tensor in zip(sent, tensors, strict=True)]

    def rows(self, mine: Tensor, places: Sequence[int], count: int) -> Tensor:
        """The rows of all processes.

        Args:
            mine: This process's rows, `(rows, ...)`.
            places: Where they belong among all; each place belongs to one process.
            count: Number of rows of all processes.

        Returns:
            All rows, `(count, ...)`, with zeros where no process has one, in the dtype and on the device of `mine`.
        """
        if self.size == 1 and list(places) == list(range(count)):
            return mine
        wide = torch.promote_types(mine.dtype, torch.float32) if mine.is_floating_point() else mine.dtype
        rows = torch.zeros(count, *mine.shape[1:], dtype=wide, device=mine.device)
        rows[torch.tensor(list(places), dtype=torch.long, device=mine.device)] = mine.to(wide)
        (total,) = self.sum(rows)
        return total.to(mine.dtype)


ALONE = Ranks()
"""A run of one process."""
