"""The choice of beta after a fit, from the counts that are already there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import lightning as L
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from typing_extensions import override

from lre_lightning.callbacks.log import CONSOLE, LOGGER, RelationLog
from lre_lightning.callbacks.loggers import CARD_WIDTH, log_image, log_scalars, log_text
from lre_lightning.callbacks.needs import require
from lre_lightning.errors import LREError, check_choice
from lre_lightning.records.analysis import FEW_RELATIONS, categories, counted
from lre_lightning.records.choices import BetaCriterion, as_good_betas, best_beta, beta_scores, most_faithful_beta
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.plotting import narrowed, number_of, r_of
from lre_lightning.report.sweeps import plot_beta
from lre_lightning.report.tables import cell_text
from lre_lightning.runs.processes import share_error


class BetaTuning(Callback):
    """Find the best beta at the end of a fit (Appendix "Selecting beta"), without running the LM again.

    It is named with the reason on standard output, in the log of `RelationLog` and in the Trainer's loggers, which also
    get the curve, as a picture and as scalars ``by 100 beta/…``, whose step is beta in hundredths. Only with `apply`
    does it go into the module, its LREs and checkpoints and the table of results, and validation uses it. If there are
    trials that only serve to choose layer and rank, these alone choose beta too.

    Works with any LightningModule that has `records`, a mapping whose values are `TrialRecord`, and to apply the choice
    `set_beta`, which takes it. On several devices the choice of rank zero holds for all.

    Args:
        criterion: ``"correlation"``, the paper's choice, takes the beta at which faithfulness and causality (which does
            not depend on beta) correlate best over relations; ``"faithfulness"`` the one of the highest mean
            faithfulness. That replaces the former where the relations cannot tell: below `FEW_RELATIONS` of them, or
            if no beta's correlation differs from the best one's.
        apply: Use the best beta instead of the module's.

    Attributes:
        beta: The best beta; None before the fit has ended, or without several to choose from.

    Raises:
        LREError: If the criterion is unknown; in setup, if the module lacks something.
    """

    def __init__(self, criterion: BetaCriterion = "correlation", apply: bool = False) -> None:
        check_choice("criterion", criterion, get_args(BetaCriterion))
        self.criterion, self.apply = criterion, apply
        self.beta: float | None = None
        self._tuned = False

    @override
    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        require(self, "module", pl_module, "records", *(["set_beta"] if self.apply else []))

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
        self.beta, why = trainer.strategy.broadcast(self.choose(records))
        if self.beta is None:
            return
        if self.apply:
            self._apply(trainer, module, self.beta)
        if trainer.is_global_zero:
            self._log(trainer, records, f"{why}; {'' if self.apply else 'not '}applied")

    def _apply(self, trainer: L.Trainer, module: Any, beta: float) -> None:
        error = None
        try:
            module.set_beta(beta)
        except LREError as raised:  # of the first process's files
            error = raised
        share_error(trainer, error)
        for callback in trainer.checkpoint_callbacks:
            if not isinstance(callback, ModelCheckpoint):
                continue
            path = callback.last_model_path or callback.best_model_path
            if trainer.strategy.broadcast(bool(path and Path(path).exists())):  # other nodes may not see the file
                trainer.save_checkpoint(path)

    def choose(self, records: Sequence[TrialRecord]) -> tuple[float | None, str]:
        """Choose beta, from records of one LM, and say why, and which betas the data cannot tell from it.

        There is no choice unless the grid has several betas and, to correlate scores, the records several relations.
        """
        scores = beta_scores(records)
        count, best, doubt = len(categories(counted(records))), None, ""
        if len(scores) < 2 or (count < 2 and self.criterion == "correlation"):
            return None, ""
        if self.criterion == "correlation":
            best, doubt = best_beta(scores), "the relations cannot tell which beta agrees best with causality: "
            defined = [score.beta for score in scores if score.correlation is not None]
            if best is None or count < FEW_RELATIONS:
                doubt += f"fewer than {FEW_RELATIONS} relations, or scores that do not vary"
            elif as_good_betas(records, best, "correlation") == defined:
                doubt += f"no beta's correlation differs from the best one's, at {best:g}"
            else:
                doubt = ""
        by: BetaCriterion = "faithfulness" if doubt or best is None else "correlation"
        beta = most_faithful_beta(scores) if by == "faithfulness" else best
        assert beta is not None  # there are scores
        (at,) = (score for score in scores if score.beta == beta)
        over, good = number_of(count), as_good_betas(records, beta, by)
        if by == "correlation":
            why = f"correlation of faithfulness and causality over {over}, {r_of(at.correlation)}"
        else:
            why = f"mean faithfulness over {over}, {cell_text(at.faithfulness)}"
        others = f"as good: {good[0]:g} to {good[-1]:g}" if len(good) > 1 else "no other is as good"
        return beta, "; ".join(filter(None, [f"beta {beta:g} has the best {why}", others, doubt]))

    def _log(self, trainer: L.Trainer, records: Sequence[TrialRecord], line: str) -> None:
        logs = [callback for callback in trainer.callbacks if isinstance(callback, RelationLog)]  # type: ignore[attr-defined]
        for log in logs:
            log.write(trainer, line)
        if not (logs and CONSOLE in LOGGER.handlers):  # otherwise the log's line is on the console
            print(line)
        log_text(trainer, "beta_tuning", line)
        log_image(trainer, "beta_tuning/curve", narrowed(plot_beta(records), CARD_WIDTH))
        for score in beta_scores(records):
            causality = None if score.causality is None else score.causality[0]
            correlation = None if score.correlation is None else score.correlation.value
            scores = {"faithfulness": score.faithfulness.value, "causality": causality, "correlation": correlation}
            scalars = {f"by 100 beta/{name}": value for name, value in scores.items() if value is not None}
            log_scalars(trainer, scalars, round(100 * score.beta))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"beta": self.beta}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.beta = state_dict["beta"]
