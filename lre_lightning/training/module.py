"""The LightningModule: fit estimates LREs and scores them, validate scores saved ones again."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lre_lightning.errors import LREError
from lre_lightning.grid import DEFAULT_BETAS, check_betas, check_ranks
from lre_lightning.lens.reading import LensGrid, read_lenses
from lre_lightning.lre.jacobian import prompts_in_a_sweep
from lre_lightning.lre.lens import Lens
from lre_lightning.lre.lre import LRE
from lre_lightning.models.backward import check_backward
from lre_lightning.models.frozen import FrozenLMModule, NameOrModel, name_of
from lre_lightning.models.loading import Loading
from lre_lightning.options import declared, options_of
from lre_lightning.records.analysis import SCORES, over_relations
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import Results, summarize
from lre_lightning.runs.checkpoints import read_hyperparameters
from lre_lightning.runs.processes import ONE_PROCESS, Processes, on_rank_zero, share_error
from lre_lightning.scoring.measure import Measure, layers_for, measures_of
from lre_lightning.scoring.scores import grid_metrics
from lre_lightning.training.bank import LREBank, TrialKey, file_of
from lre_lightning.training.forecast import Forecast, forecast
from lre_lightning.training.options import Fitting
from lre_lightning.training.trial import FitTrial, Run, SavedTrials

if TYPE_CHECKING:
    from lre_lightning.prompts.batch import RelationBatch
    from lre_lightning.prompts.source import PromptSource

LOGGER = logging.getLogger("lre_lightning")

NO_LRE = "there is no LRE to look through: fit first, or give a checkpoint (--ckpt_path last)"


class LREModule(FrozenLMModule):
    """Estimates one linear relational embedding (LRE) per relation and trial, without gradient training.

    One epoch of fit is one trial of one relation: training steps accumulate Jacobians and biases, and the validation
    that follows scores the LREs on the grid of layers, betas and ranks. The LRE at the chosen layer is kept for every
    reported trial. Validation alone scores all kept LREs at their chosen layer and rank. Checkpoints hold the records,
    references to the files of the LREs, and the hyperparameters, never the LM.

    On several devices (``ddp`` in any spelling, on any number of nodes) the prompts of a trial are split between the
    processes; sums of Jacobians and counts are reduced, so every process has the numbers of a single one. To fit more
    than one trial, the Trainer needs `reload_dataloaders_every_n_epochs=1`, and `max_epochs=-1` to fit all of them.

    Args:
        name_or_path: The LM: a hub name, a local folder, or ``"demo"`` for the bundled one. In Python also a
            `LanguageModel`; `loading` is then ignored.
        layers: Layers to try: ``"emb"`` and block indices. All if None.
        betas: Betas to try for faithfulness, 0 to 5 in steps of 0.25 if None. `beta` is always among them.
        ranks: Ranks to try for edits. Powers of two from 4 to 256 or the LM's width if None.
        beta: The LM's beta, which the table of results and the LREs use. 1 is the plain first-order approximation;
            the paper uses 2.25 for GPT-J.
        fitting: How layers and ranks are chosen, and where LREs are written.
        measures: What is measured beside faithfulness and causality. Objects such as
            `lre_lightning.measures.Baselines()`, or of a class of your own.
        loading: How the LM is loaded and run.

    Raises:
        LREError: If the LM cannot be loaded, or an argument is out of range.
    """

    def __init__(
        self,
        name_or_path: NameOrModel = "demo",
        layers: list[int | Literal["emb"]] | None = None,
        betas: list[float] | None = None,
        ranks: list[int] | None = None,
        beta: float = 1.0,
        fitting: Fitting = Fitting(),
        loading: Loading = Loading(),
        measures: list[Measure] | None = None,
    ) -> None:
        super().__init__(loading)
        self.fitting = options_of(Fitting, fitting, "fitting")
        self.measures = measures_of(measures)
        self.save_hyperparameters(
            {
                "name_or_path": name_of(name_or_path),
                "layers": layers,
                "betas": betas,
                "ranks": ranks,
                "beta": beta,
                "fitting": asdict(self.fitting),
                "loading": asdict(self.loading),
                "measures": [measure.plain() for measure in self.measures],
            }
        )
        self.faithfulness, self.causality = grid_metrics(["emb"], [1.0], [1])  # those of the trial that is scored
        self.beta = float(beta)
        self.betas = check_betas([*(DEFAULT_BETAS if betas is None else betas), self.beta])
        self.bank = LREBank()
        self.lre_dir = None if self.fitting.lre_dir is None else Path(self.fitting.lre_dir)
        self.bank.searched = [self.lre_dir] if self.lre_dir else []
        self.jacobian_lens: Lens | None = None  # in prediction
        self._rescored: dict[TrialKey, TrialRecord] | None = None
        self._expected: float | None = None
        self._adds = False
        self._kept: frozenset[TrialKey] = frozenset()  # trials of an earlier part of the fit, which are left alone
        self._trial: FitTrial | None = None  # in fit, if the LM knows enough of it
        self._saved: SavedTrials | None = None  # in validation alone
        self._trained = False  # whether the trial has had all its training batches
        self.load_lm(name_or_path)

    def take_lm(self) -> None:
        """Check layers, ranks, choices and measures."""
        layers, ranks = self.hparams["layers"], self.hparams["ranks"]
        self.layers = layers_for(self.lm, layers, self.measures)
        self.ranks = None if ranks is None else check_ranks(ranks, self.lm.hidden_size)
        self.fitting.check_choices(self.lm)
        check_backward(self.lm, self.fitting.backward)
        for measure in self.measures:
            measure.check(self.lm)
            if measure.elements and self.fitting.method == "matrix_free":
                raise LREError(f"the measure {measure.name!r} needs all elements of W: leave method matrix_free out")
        self.bank.lres.check_model(self.lm)

    @property
    def records(self) -> dict[TrialKey, TrialRecord]:
        """The records by relation and trial: those of the last validation alone, else those of fit."""
        return self.bank.records if self._rescored is None else self._rescored

    @property
    def results(self) -> Results:
        """The scores of each relation, over its trials: a table as the last line of a notebook's cell."""
        return Results(summarize(self.records.values()))

    @property
    def lres(self) -> Mapping[TrialKey, LRE]:
        """The LREs that are kept, by relation and trial."""
        return self.bank.lres

    def set_beta(self, beta: float) -> None:
        """Set beta in the records of fit and in the LREs; checkpoints keep it.

        Validation uses it, unless the module's `beta` differs from the one that the fit was begun with.

        Raises:
            LREError: If it is not on the grid of a relation.
        """
        for record in self.bank.records.values():
            if record.scored and beta not in record.betas:
                raise LREError(f"beta {beta} is not on the grid of {record.relation!r}, which has {record.betas}")
        self.bank.tune(self.beta, beta)

    @property
    def _data(self) -> PromptSource:
        datamodule: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(datamodule, "schedule"):
            raise LREError("an LREModule needs a RelationDataModule: trainer.fit(module, datamodule=...)")
        return cast("PromptSource", datamodule)

    @property
    def _run(self) -> Run:
        return self._run_of(self._data, self.processes)

    def _run_of(self, data: PromptSource, processes: Processes) -> Run:
        return Run(
            self.lm,
            data,
            processes,
            layers=self.layers,
            betas=self.betas,
            ranks=self.ranks,
            beta=self.beta,
            fitting=self.fitting,
            measures=self.measures,
        )

    def forecast(self, data: PromptSource, devices: int = 1) -> Forecast:
        """Say what a fit on some data will do, and how long it takes on so many devices, without fitting.

        Up to 24 test prompts of each relation are run, and the work on a few prompts is measured.

        Raises:
            LREError: If the options do not fit the data.
        """
        self.fitting.check_data(data, self.measures)
        data.use(self.lm)
        data.together = prompts_in_a_sweep(self.lm)
        return forecast(self._run_of(data, ONE_PROCESS), devices)

    def expect(self) -> float | None:
        """Measure how many seconds the fit takes from the first trial that is scored on, once; None before that."""
        if self._expected is None and self._trial is not None:
            epochs = self.current_epoch, self.trainer.fit_loop.max_epochs
            self._expected = forecast(self._run, self.processes.count, *epochs, self._trial).seconds
        return self._expected

    def add_to(self, state_dict: Mapping[str, Any]) -> None:
        """Take the trials of an earlier fit, of the same relations but fewer trials; the next fit leaves them alone.

        `state_dict` is that of the earlier fit's checkpoint.
        """
        self.load_state_dict(state_dict)
        self._adds = True

    def setup(self, stage: str) -> None:
        """Choose the folder of the LREs, let fit end after the last trial, and find the other processes.

        The datamodule learns which LM it makes prompts for, and how many prompts keep the device busy.
        """
        self._data.use(self.find_lm())
        self.find_processes("the relations, or their draws,", self._data.digest)
        if getattr(getattr(self._data, "loader", None), "epoch", "trial") == "all":
            raise LREError("an LREModule needs one trial per epoch: leave loader.epoch out of the datamodule")
        self._data.together = prompts_in_a_sweep(self.lm, self.trainer.strategy.root_device)
        self.bank.lres.writes = self.trainer.is_global_zero
        self.bank.lres.folder = self.lre_dir or Path(self.trainer.default_root_dir) / "lres"
        self.bank.searched.insert(0, self.bank.lres.folder)
        if stage == "fit":
            self.fitting.check_data(self._data, self.measures)
            self.limit_epochs(len(self._data.schedule))

    # Fit: one epoch is one trial of one relation.

    def on_fit_start(self) -> None:
        """Forget the records of an earlier validation, and the time that an earlier fit was to take."""
        self._rescored = self._expected = None
        self._kept = frozenset(self.bank.records if self._adds or self.trainer.ckpt_path else ())
        on_rank_zero(self.trainer, lambda: self.bank.lres.refuse_others(self.lm))
        self._adds = False

    def on_train_epoch_start(self) -> None:
        """Begin a trial: run its test prompts, and leave it out if the LM knows too few of its test samples."""
        self._trained = False
        self._check_batches()
        drawn = self._data.trial(self.current_epoch)
        name, number = drawn.relation.name, drawn.number
        self._trial = None
        if (name, number) in self._kept:
            return
        earlier = [r for r in self.bank.records.values() if r.relation == name and r.trial != number and r.scored]
        trial = FitTrial(self._run, drawn, earlier)
        trial.ask(self._test_batches())
        if trial.knows_enough:
            self._trial = trial
            if self.lm.shards and not self.processes.index:
                self.expect()  # here, where all who share the LM are, and not where one asks for it
        elif trial.record is not None:
            self._keep(trial.record)

    def _test_batches(self) -> list[RelationBatch]:
        """Return the epoch's test batches, as many as the Trainer's limit_val_batches says."""
        loader, limit = self._data.val_dataloader(), cast("Any", self.trainer).limit_val_batches
        return list(islice(loader, limit if isinstance(limit, int) else int(limit * len(loader))))

    def _check_batches(self) -> None:
        """Check that a trial is given all its training prompts, and is scored after them."""
        trainer: Any = self.trainer
        served, count = trainer.num_training_batches, len(trainer.train_dataloader)
        if served < count:
            raise LREError(
                f"an LRE is a mean over all training prompts, and the Trainer serves {served} of their {count} "
                "batches: leave limit_train_batches, overfit_batches and fast_dev_run out, or lower --data.n_shot"
            )
        every, at = trainer.check_val_every_n_epoch, trainer.val_check_batch
        if not trainer.enable_validation or every != 1 or at != served:
            raise LREError(
                "a trial is scored in the validation at the end of its epoch: leave limit_val_batches at more than 0, "
                "check_val_every_n_epoch at 1 and val_check_interval at 1.0"
            )

    def training_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Add the Jacobian and bias of each prompt in the batch."""
        if self._trial is not None:
            self._trial.train(batch)
        self._trained = batch_idx + 1 == self.trainer.num_training_batches
        self.count_step()

    def on_train_end(self) -> None:
        """Order the records as those of a fit of all trials, if some were there before others were added."""
        data, records = self._data, self.bank.records
        places = {(data.relations[index].name, trial): at for at, (index, trial) in enumerate(data.schedule)}
        ordered = sorted(records.items(), key=lambda item: places.get(item[0], len(places)))
        records.clear()
        records.update(ordered)

    # Validation: in fit of the trial's LREs, alone of all saved ones.

    def on_validation_start(self) -> None:
        """In fit, make the LREs; alone, forget earlier records, or raise an `LREError` if there is no LRE."""
        self._saved = None
        if self.trainer.state.fn != "fit" or not self._trained:  # a callback has stopped the fit within the trial
            self._trial = None
        if self.trainer.state.fn == "fit":
            if self._trial is not None:
                self._trial.estimate()
                self.faithfulness, self.causality = self._trial.metrics()
            return
        self._say_what_is_missing()
        if not self.bank.lres:
            raise LREError("there is no LRE to validate: fit first, or give a checkpoint (--ckpt_path last)")
        begun_with, tuned = self.bank.tuned or (None, self.beta)
        run = replace(self._run, beta=tuned if begun_with == self.beta else self.beta)
        self.faithfulness, self.causality = metrics = grid_metrics(["emb"], [run.beta], [1])
        self._rescored, self._saved = {}, SavedTrials(run, self.bank.lres, metrics)

    def _say_what_is_missing(self) -> None:
        """Warn of trials that the fit has not come to, or whose LREs it has kept since its last checkpoint."""
        data = self._data
        keys = [(data.relations[index].name, trial) for index, trial in data.schedule]
        begun = {name for name, _ in self.bank.records}
        missing = [key for key in keys if key[0] in begun and key not in self.bank.records]
        missing += [key for key in keys if key[0] not in begun]
        if missing and self.trainer.is_global_zero:
            name, trial = missing[0]
            on_disk = sum((self.bank.lres.folder or Path()).joinpath(file_of(key)).is_file() for key in missing)
            LOGGER.warning(
                "the fit has not finished %d of %d trials, such as trial %d of %r: scores are of the others%s; "
                "resume the fit first (lre fit --ckpt_path last)",
                *(len(missing), len(keys), trial, name),
                f", and {on_disk} LREs on disk are newer than the checkpoint" if on_disk else "",
            )

    def validation_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Alone, score the trials before the one that a batch belongs to; in fit its prompts have been run already."""
        for record in () if self._saved is None else self._saved.test(batch):
            self._keep(record)

    def on_validation_epoch_end(self) -> None:
        """Score the trial of the epoch, or alone the last ones."""
        if self.trainer.sanity_checking:
            return
        if self._trial is not None:
            record, lre = self._trial.finish((self.faithfulness, self.causality))
            if lre is not None:
                self._keep_lre(lre)
            self._keep(record)
        for record in () if self._saved is None else self._saved.finish():
            self._keep(record)
        self._trial = self._saved = None
        for name, score in SCORES.items():  # over the relations so far; `ResultsScalars` has more for loggers
            mean = over_relations(self.records.values(), score)
            if mean is not None or self.trainer.state.fn == "fit":  # callbacks fail without the score they monitor
                value = 0.0 if mean is None else mean[0]
                self.log(name, value, batch_size=1, sync_dist=True, add_dataloader_idx=False)

    def _keep_lre(self, lre: LRE) -> None:
        """Keep an LRE; the first process writes its file, and the others wait for that."""
        error = None
        try:
            self.bank.lres[lre.origin.relation, lre.origin.trial] = lre
        except LREError as raised:
            error = raised
        share_error(self.trainer, error)

    def _keep(self, record: TrialRecord) -> None:
        key = record.relation, record.trial
        fitted = self.bank.records.get(key)
        if self._rescored is not None and fitted is not None:  # its LRE is scored again, where this trial chose
            record = replace(record, chose=fitted.chose)
        self.records[key] = record

    # Prediction: the attribute lens of texts.

    def on_predict_start(self) -> None:
        """Raise an `LREError` if neither an LRE of the data's relations is loaded nor a Jacobian lens."""
        if self.jacobian_lens is None and not {relation for relation, _ in self.lres} & {
            relation.name for relation in self._data.relations
        }:
            raise LREError(NO_LRE)

    def predict_step(self, batch: str, batch_idx: int) -> list[LensGrid]:
        """Read a text through the lens of each relation of the data, the Jacobian lens, if any, and the logit lens."""
        names = [relation.name for relation in self._data.relations]
        return read_lenses(
            self.lm,
            self._data.tokenizer,
            batch,
            self.lres,
            names,
            jacobian_lens=self.jacobian_lens,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state from `state_dict`, made with the same LM. Weights of an LM in it are never loaded."""
        keys = super().load_state_dict(state_dict, strict, assign)
        if self.has_lm:
            self.bank.lres.check_model(self.lm)
        return keys

    @classmethod
    def load_from_checkpoint(
        cls,
        checkpoint_path: Any,
        map_location: Any = None,
        hparams_file: Any = None,
        strict: bool | None = None,
        weights_only: bool | None = True,
        **kwargs: Any,
    ) -> Any:
        """Load a local checkpoint as Lightning does; options that let code run are only taken from `kwargs`.

        Options given as a mapping, as in ``fitting={"lre_dir": "lres"}``, leave the checkpoint's others as they are.

        Raises:
            LREError: If the file is not a checkpoint of this module, or its content cannot be loaded.
        """
        explicit = [f"model.{name}" for name in declared(cls, "explicit")]
        remembered = read_hyperparameters(Path(checkpoint_path), explicit)["model"]
        for name, value in kwargs.items():
            before = remembered.get(name)
            remembered[name] = before | value if isinstance(before, dict) and isinstance(value, dict) else value
        return super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only=weights_only, **remembered
        )
