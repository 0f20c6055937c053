"""The LightningModule that estimates a Jacobian lens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.jlens.averaging import Averaging
from lre_lightning.jlens.estimator import JacobianLensEstimator, layers_of
from lre_lightning.jlens.files import OWN
from lre_lightning.jlens.lens import JacobianLens, error_text
from lre_lightning.models.frozen import FrozenLMModule, NameOrModel, name_of
from lre_lightning.models.identity import Identity
from lre_lightning.models.loading import Loading
from lre_lightning.options import options_of
from lre_lightning.runs.processes import on_rank_zero

LOGGER = logging.getLogger("lre_lightning")


class JacobianLensModule(FrozenLMModule):
    """Estimates the Jacobian lens of an LM from texts, without gradient training.

    The texts are those of a `TextDataModule`. A training step adds up the Jacobians of a batch of them, and an epoch is
    one batch in each process; at its end the sums of all processes are added up. Checkpoints hold these sums, and a
    resumed fit goes on with the next batch. The Trainer needs `reload_dataloaders_every_n_epochs=1`, and
    `max_epochs=-1` for all texts. The mean over layers of `JacobianLens.standard_error` is logged as
    ``standard_error``. At the end the lens is `lens`, and in the file
    ``<default_root_dir>/jacobian_lens.safetensors``.

    Args:
        name_or_path: The LM: a hub name, a local folder, or ``"demo"`` for the bundled one. In Python also a
            `LanguageModel`; `loading` is then ignored.
        layers: Layers of the lens: ``"emb"`` and block indices. All if None.
        averaging: Which derivatives the lens is the mean of.
        loading: How the LM is loaded and run.

    Raises:
        LREError: If the LM cannot be loaded, or an argument is out of range.
    """

    def __init__(
        self,
        name_or_path: NameOrModel = "demo",
        layers: list[int | Literal["emb"]] | None = None,
        averaging: Averaging = Averaging(),
        loading: Loading = Loading(),
    ) -> None:
        super().__init__(loading)
        self.averaging = options_of(Averaging, averaging, "averaging")
        options = {"averaging": asdict(self.averaging), "loading": asdict(self.loading)}
        self.save_hyperparameters({"name_or_path": name_of(name_or_path), "layers": layers, **options})
        self.load_lm(name_or_path)
        self.lens: JacobianLens | None = None
        self._estimator: JacobianLensEstimator | None = None
        self._restored: dict[str, Any] | None = None

    def take_lm(self) -> None:
        """Check the layers."""
        self.layers = layers_of(self.lm, self.hparams["layers"], self.averaging)

    @property
    def _data(self) -> Any:
        data: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(data, "shortest"):
            raise LREError("a JacobianLensModule needs a TextDataModule: trainer.fit(module, datamodule=...)")
        return data

    @property
    def _origin(self) -> dict[str, Any]:
        """What a resumed fit must find unchanged."""
        how = {"averaging": asdict(self.averaging), "layers": list(self.layers)}
        return {"texts": self._data.digest, **how}

    def setup(self, stage: str) -> None:
        """Find the other processes, and let fit end after the last text."""
        self._data.use(self.find_lm())
        self.find_processes("the texts", self._data.digest)
        self.limit_epochs(len(self._data.schedule))
        if self._data.shortest < self.averaging.shortest:
            raise LREError(
                f"a text may have {self._data.shortest} tokens, and with skip={self.averaging.skip} the shortest that "
                f"leaves a position has {self.averaging.shortest}"
            )

    def on_fit_start(self) -> None:
        """Begin with empty sums, or with those of the checkpoint, which must be of the same LM, texts and options."""
        self._estimator = JacobianLensEstimator(self.lm, self.layers, self.averaging)
        if self._restored is not None:
            other = [name for name, value in self._origin.items() if self._restored.get(name) != value]
            if not Identity(**self._restored["identity"]).fits(self.lm.identity):
                other.insert(0, "hidden states of the LM")
            if other:
                raise LREError(
                    f"the checkpoint is of a Jacobian lens with other {other[0]}: resume it with the same LM, texts "
                    "and options, or give another --trainer.default_root_dir"
                )
            self._estimator.restore(self._restored)

    def on_train_epoch_start(self) -> None:
        """Leave the sums of the epochs before to the first process."""
        if self.processes.index:
            self._sums.clear()

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> None:
        """Add the Jacobians of the texts of a batch, token ids `(positions,)` each."""
        for ids in batch:
            self._sums.update(ids)
        self.count_step()

    def on_train_epoch_end(self) -> None:
        """Add up the sums of all processes, and log how far they have converged."""
        self._sums.add_up(self.processes)
        errors = [error for error in self._sums.standard_errors().values() if error is not None]
        if errors:
            self.log("standard_error", fmean(errors), prog_bar=True, batch_size=1)
        done = f"batch {self.current_epoch + 1} of {len(self._data.schedule)}, {self._sums.count} texts"
        rank_zero_only(LOGGER.info)(done + (f", {error_text(errors)}" if errors else ""))

    def on_fit_end(self) -> None:
        """Make the lens in every process, and let the first one write its file."""
        self.lens = lens = self._sums.lens(self._data.digest, self._data.start_token)
        on_rank_zero(self.trainer, lambda: lens.save(Path(self.trainer.default_root_dir) / OWN))

    @property
    def _sums(self) -> JacobianLensEstimator:
        if self._estimator is None:
            raise LREError("a Jacobian lens is estimated by trainer.fit")
        return self._estimator

    def get_extra_state(self) -> dict[str, Any]:
        """Return the sums as tensors and plain data."""
        return (
            {}
            if self._estimator is None
            else {"identity": asdict(self.lm.identity), **self._origin, **self._estimator.state()}
        )

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Keep the sums of a checkpoint until fit starts."""
        self._restored = state or None
