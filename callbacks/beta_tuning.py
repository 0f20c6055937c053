"""The choice of beta after a fit, from the counts that are already there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from typing_extensions import override

from lre_lightning.errors import LREError
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.analysis import best_beta, beta_scores, categories, counted, most_faithful_beta
from lre_lightning.report.sweeps import plot_beta
from lre_lightning.training.protocols import HasRecords, require

Criterion = Literal["correlation", "faithfulness"]


class BetaTuning(Callback):
    """Choose beta at the end of a fit (Appendix "Selecting beta"), without running the LM again.

    The choice goes into the module, its LREs and checkpoints, and the table of results; validation uses it. The curve
    goes to TensorBoard as a figure, and as scalars over beta in hundredths. If there are trials that only serve to
    choose layer and rank, these alone choose beta too.

    Works with any LightningModule that is a `HasRecords`. On several devices the choice of rank zero holds for all.

    Args:
        criterion: ``"correlation"``, the paper's choice, takes the beta at which faithfulness and causality (which does
            not depend on beta) correlate best over relations; ``"faithfulness"`` the one of the highest mean
            faithfulness, which also replaces the former, with a warning, if the relations are too few to correlate.
        per_relation: Choose one beta for each relation, by its mean faithfulness, instead of one for the LM.

    Raises:
        LREError: If the criterion is unknown or `per_relation` is not a bool; in setup, if the module has no records.
    """

    def __init__(self, criterion: Criterion = "correlation", per_relation: bool = False) -> None:
        if criterion not in get_args(Criterion):
            raise LREError(f"criterion {criterion!r} is unknown: use {' or '.join(map(repr, get_args(Criterion)))}")
        if not isinstance(per_relation, bool):
            raise LREError(f"per_relation must be True or False, got {per_relation!r}")
        self.criterion, self.per_relation = criterion, per_relation
        self.betas: dict[str, float] = {}
        self._tuned = False

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        require(HasRecords, pl_module, self)

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._tuned = False

    @override
    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._tune(trainer, pl_module)

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._tuned:  # no epoch was left: the fit was stopped after its last one
            self._tune(trainer, pl_module)

    def _tune(self, trainer: L.Trainer, module: Any) -> None:
        self._tuned = True
        records = list(module.records.values())
        choosing = [replace(record, reported=True) for record in records if record.scored and not record.reported]
        records = choosing or records
        self.betas = trainer.strategy.broadcast(self.choose(records))
        if not self.betas:
            return
        module.set_beta(self.betas)
        for callback in trainer.checkpoint_callbacks:
            path = isinstance(callback, ModelCheckpoint) and (callback.last_model_path or callback.best_model_path)
            if path and Path(path).exists():
                trainer.save_checkpoint(path)
        if trainer.is_global_zero:
            self._log(trainer, records)

    def choose(self, records: Sequence[TrialRecord]) -> dict[str, float]:
        """Choose beta, from records of one LM, for every relation that was scored."""
        relations = categories(counted(records))
        if self.per_relation:
            own = {name: [record for record in records if record.relation == name] for name in relations}
            found = {name: most_faithful_beta(beta_scores(group)) for name, group in own.items()}
            return {name: beta for name, beta in found.items() if beta is not None}
        scores = beta_scores(records)
        beta = best_beta(scores) if self.criterion == "correlation" else None
        if beta is None:
            if scores and self.criterion == "correlation":
                rank_zero_warn(
                    f"{len(relations)} relations are too few for a correlation of faithfulness and causality, or do "
                    "not vary: beta is chosen by mean faithfulness"
                )
            beta = most_faithful_beta(scores)
        return {} if beta is None else dict.fromkeys(relations, beta)

    def _log(self, trainer: L.Trainer, records: Sequence[TrialRecord]) -> None:
        scores = beta_scores(records)
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger) and len(scores) > 1:
                figure = plot_beta(records)
                logger.experiment.add_figure("beta_tuning/curve", figure, trainer.global_step, close=False)
                for score in scores:
                    causality = None if score.causality is None else score.causality[0]
                    named = {"faithfulness": score.faithfulness[0], "causality": causality}
                    for name, value in (named | {"correlation": score.correlation}).items():
                        if value is not None:
                            logger.experiment.add_scalar(f"beta_tuning/{name}", value, round(100 * score.beta))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"betas": self.betas}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.betas = dict(state_dict["betas"])
