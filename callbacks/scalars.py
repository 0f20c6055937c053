"""The scores of a fit as curves, for every logger."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lre_lightning.callbacks.beta_tuning import BetaTuning
from lre_lightning.callbacks.loggers import log_final, log_scalars
from lre_lightning.callbacks.needs import require_trials
from lre_lightning.grid import Layer, place_of
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.analysis import SCORES, layers_of, over_relations, per_category
from lre_lightning.runs.processes import on_rank_zero


class ResultsScalars(Callback):
    """Log the scores of a fit to the Trainer's loggers, each time that a relation has had its last trial.

    - ``faithfulness/<category>`` and ``faithfulness/all relations``, and the same of causality: the mean over the
      relations that are finished; the step is their number.
    - ``faithfulness by layer/<relation>`` and ``causality by layer/<relation>``, at the relation's beta and rank: the
      step is the layer, -1 for the embedding.
    - at the end, ``final/faithfulness``, ``final/causality`` and, from `BetaTuning`, ``final/best beta``. They are the
      run's row under HParams in TensorBoard, provided that its logger was made with ``default_hp_metric=False``.

    A resumed fit logs the relations that it finds finished again, at the same steps. Works with the modules and
    datamodules that `RelationLog` works with.
    """

    def __init__(self) -> None:
        self._logged = 0

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage == "fit":
            require_trials(self, trainer, pl_module)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._logged = 0

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._log(trainer, pl_module, trainer.current_epoch + 1))

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        on_rank_zero(trainer, lambda: self._finish(trainer, pl_module))

    def _log(self, trainer: Any, module: Any, trials: int) -> None:
        """Log the relations that are finished after some trials and have not been logged."""
        last = {relation: index for index, (relation, _) in enumerate(trainer.datamodule.schedule)}
        ended = [relation for relation in sorted(last, key=last.__getitem__) if last[relation] < trials]
        names = [trainer.datamodule.relations[relation].name for relation in ended]
        for count in range(self._logged + 1, len(names) + 1):
            records = [record for record in module.records.values() if record.relation in names[:count]]
            means = {
                f"{score}/{category}": mean
                for score, function in SCORES.items()
                for category, (mean, _) in per_category(records, function).items()
            }
            log_scalars(trainer, means, count)
            own = [record for record in records if record.relation == names[count - 1]]
            for layer in layers_of(own):
                log_scalars(trainer, _means(own, "", f" by layer/{names[count - 1]}", layer=layer), place_of(layer))
        self._logged = len(names)

    def _finish(self, trainer: Any, module: Any) -> None:
        self._log(trainer, module, trainer.current_epoch)
        final = _means(module.records.values(), "final/")
        for callback in trainer.callbacks:
            if isinstance(callback, BetaTuning) and callback.beta is not None:
                final["final/best beta"] = callback.beta
        if final:
            log_final(trainer, final, self._logged, {**module.hparams, **getattr(trainer.datamodule, "hparams", {})})


def _means(records: Iterable[TrialRecord], before: str, after: str = "", **point: Layer) -> dict[str, float]:
    """Return the mean scores over relations, at a point of the grid, by their names with something around them."""
    found = {name: over_relations(records, partial(score, **point)) for name, score in SCORES.items()}
    return {f"{before}{name}{after}": mean[0] for name, mean in found.items() if mean is not None}
