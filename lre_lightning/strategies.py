"""How Lightning starts a module that trains nothing on several devices."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy, Strategy

from lre_lightning.errors import LREError
from lre_lightning.ranks import Ranks

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


def check_alike(strategy: Strategy, ranks: Ranks, what: str, digest: str) -> None:
    """Check that something is the same in all processes.

    Args:
        strategy: The Trainer's strategy.
        ranks: The processes.
        what: The thing, as users know it.
        digest: Tells it from others.

    Raises:
        LREError: On every process, if it differs in one.
    """
    if ranks.size == 1:
        return
    (differing,) = ranks.sum(torch.tensor([strategy.broadcast(digest) != digest], dtype=torch.long))
    if differing.item():
        raise LREError(
            f"{what} on {differing.item()} of {ranks.size} processes are not those of the first: give all of them the "
            "same files and options"
        )
