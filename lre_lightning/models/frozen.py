"""The base of LightningModules around an LM that nothing trains."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from lre_lightning.errors import LREError
from lre_lightning.models.identity import Identity
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.loading import Loading
from lre_lightning.options import options_of
from lre_lightning.runs.checkpoints import restrict
from lre_lightning.runs.folder import RunFolder
from lre_lightning.runs.processes import ONE_PROCESS, Processes, check_alike, check_strategy, without_wrapper
from lre_lightning.runs.trainers import check_trainer

if TYPE_CHECKING:
    NameOrModel = str | LanguageModel
else:
    NameOrModel = str  # the type on the command line

LM_PREFIX = "lm."


def name_of(name_or_path: NameOrModel) -> str:
    """Return the name of an LM that may be loaded."""
    return cast("str", getattr(name_or_path, "name", name_or_path))


class FrozenLMModule(L.LightningModule):
    """An LM that measures and is not trained: no optimizer, no weights in checkpoints or between processes.

    Subclasses call `load_lm` once their options are checked, `find_lm` and `find_processes` in `setup`, and
    `count_step` at the end of each training step. What they make of the LM they make in `take_lm`.

    An LM that processes share is loaded by `find_lm`: before that there are no processes, and no `lm`.
    """

    lm: LanguageModel

    def __init__(self, loading: Loading) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.loading = options_of(Loading, loading, "loading")
        self.processes = ONE_PROCESS

    def load_lm(self, name_or_path: NameOrModel) -> None:
        """Load the LM from a hub name or a local folder, or take one that is loaded."""
        if isinstance(name_or_path, LanguageModel):
            self._take(name_or_path)
            return
        self._load = partial(LanguageModel.from_pretrained, name_or_path, self.loading)
        if not self.loading.shared or torch.distributed.is_initialized():
            self._take(self._load())

    def _take(self, lm: LanguageModel) -> None:
        self.lm = lm
        # Every process loads the LM by itself, so Lightning need not broadcast it.
        tensors = [*self.named_parameters(), *self.named_buffers()]
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in tensors if name.startswith(LM_PREFIX)]
        self.take_lm()

    def take_lm(self) -> None:
        """Check options against the LM, and make what depends on it."""

    @property
    def has_lm(self) -> bool:
        """Whether the LM is loaded; one that processes share is not before they have started."""
        return "lm" in self._modules

    def configure_optimizers(self) -> None:
        """Return nothing: nothing is optimized."""

    def configure_callbacks(self) -> list[Callback]:
        """Check the Trainer, and add the callback that guards the folder of a fit, where it has none."""
        check_trainer(self.trainer)
        there = any(isinstance(callback, RunFolder) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        return [] if there else [RunFolder()]

    def find_lm(self) -> LanguageModel:
        """Return the LM on the device where it will run; one that processes share is loaded here."""
        strategy = self.trainer.strategy
        check_strategy(strategy)
        if not self.has_lm:
            self._take(self._load())
        return self.lm.to(strategy.root_device)

    def find_processes(self, what: str, digest: str) -> None:
        """Find the other processes, and check that they have the same LM and data: `what`, with this digest."""
        strategy = self.trainer.strategy
        members = self.lm.shards.members if self.lm.shards else 1
        self.processes = Processes.of(strategy, self.trainer.global_rank, self.trainer.world_size, members)
        if self.trainer.world_size > 1:
            if self.loading.device_map is not None:
                raise LREError(
                    f"with a device_map one process spreads the LM, and the trainer has {self.processes.count}: "
                    "give it devices=1, or leave the device_map out"
                )
            check_alike(strategy, self.processes, "the LM's hidden states", self.lm.identity, Identity.fits)
            check_alike(strategy, self.processes, what, digest)
        without_wrapper(strategy, self)

    def limit_epochs(self, count: int) -> None:
        """Let fit end after `count` epochs, or earlier if the Trainer's `max_epochs` says so."""
        limit = self.trainer.max_epochs
        self.trainer.fit_loop.max_epochs = count if limit is None or limit < 0 else min(limit, count)

    def count_step(self) -> None:
        """Let the Trainer count a training step; it counts those of optimizers, and has a mock one."""
        optimizer: Any = self.optimizers()
        optimizer.step()

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """Return the module's state without the LM."""
        prefix = kwargs.get("prefix", "")
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        for name in [name for name in state if name.startswith(prefix + LM_PREFIX)]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state from `state_dict`. Weights of an LM in it are never loaded."""
        own = {name: value for name, value in state_dict.items() if not name.startswith(LM_PREFIX)}
        keys = super().load_state_dict(own, strict=False, assign=assign)
        missing = [name for name in keys.missing_keys if not name.startswith(LM_PREFIX)]
        unknown = [*keys.unexpected_keys, *(name for name in state_dict if name not in own)]
        if strict and (missing or unknown):
            raise RuntimeError(f"the checkpoint does not fit: missing {missing}, unknown {unknown}")
        return keys

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Remove from a checkpoint what the Trainer would trust and this module does not need."""
        restrict(checkpoint, self._trainer)
