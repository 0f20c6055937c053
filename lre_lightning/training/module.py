"""The LightningModule: fit accumulates Jacobians and scores the LREs, validate scores the saved ones again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace as dataclass_replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import TypedDict

from lre_lightning.errors import LREError
from lre_lightning.grid import DEFAULT_BETAS, Layer, check_betas, check_ranks, default_ranks
from lre_lightning.lens.lens import Lens, read_lenses
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.placement import DeviceMap
from lre_lightning.models.quantization import Quantization
from lre_lightning.records.record import BETWEEN_TEMPLATES, TrialRecord
from lre_lightning.records.selection import Criterion, choose_after
from lre_lightning.runs.checkpoints import read_hyperparameters, restrict
from lre_lightning.runs.folder import RunFolder
from lre_lightning.runs.processes import (
    ONE_PROCESS,
    Processes,
    check_alike,
    check_strategy,
    share_error,
    without_wrapper,
)
from lre_lightning.scoring.baselines import Examples, with_baselines
from lre_lightning.scoring.line_integrals import with_line_integrals
from lre_lightning.scoring.scores import new_record, with_grid, with_low_rank
from lre_lightning.scoring.states import PromptStates, TrialStates
from lre_lightning.storage.plain import mapping
from lre_lightning.training.bank import LREBank, TrialKey

if TYPE_CHECKING:
    from lre_lightning.prompts.batch import RelationBatch
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial

    NameOrModel = str | LanguageModel
else:
    NameOrModel = str  # what the command line sees

CRITERIA = get_args(Criterion)
LM_PREFIX = "lm."
EXPLICIT = ("model.trust_remote_code", "model.lre_dir", "model.offload_folder", "data.loader.trust_remote_code")
"""Options that let code run or say where to write: a checkpoint cannot set them."""


class Choice(TypedDict):
    """The layer and rank of a relation."""

    layer: int | Literal["emb"]
    rank: int


class LREModule(L.LightningModule):
    """Estimates one linear relational embedding (LRE) a relation and trial, without gradient training.

    One epoch of fit is one trial of one relation: training steps add Jacobians and biases to running means, the
    validation that follows scores the LREs on the grid of layers, betas and ranks. The first trial of a relation that
    can be scored chooses the relation's layer and rank, or the first `selection_trials` do, which are then not
    reported; the LRE at that layer is kept for every reported trial. Validation alone scores all kept LREs at their
    chosen layer and rank. Checkpoints hold the counts, which files have the LREs, and the hyperparameters, never the
    LM.

    On several devices (``ddp`` in any spelling, on any number of nodes) the prompts of a pair are shared out. Sums of
    Jacobians and counts are added up, so that all processes have the same numbers, those that one alone would have.

    For more than one pair the Trainer must have `reload_dataloaders_every_n_epochs=1`, and `max_epochs=-1` to fit all
    of them, as the command line's has.

    Args:
        name_or_path: The LM: a hub name, a local folder, or ``"demo"`` for the bundled one; in Python also a
            `LanguageModel`, and then the options that say how to load one mean nothing.
        layers: Layers to try: ``"emb"`` and block indices. All if None.
        betas: Betas to try for faithfulness, 0 to 5 in steps of 0.25 if None. `beta` is always among them.
        ranks: Ranks to try for edits. Powers of two from 4 to 256 or the LM's width if None.
        beta: The LM's beta, which the table of results and the LREs use. 1 is the plain first-order approximation;
            the paper takes 2.25 for GPT-J.
        select_by: What chooses layer and rank: ``"causality"``, as in the paper, or ``"faithfulness"``.
        selection_trials: How many trials of each relation, the first ones, only serve to choose its layer and rank, by
            their mean, and are not reported, also where `choices` are given. With 0 the first one that can be scored
            chooses and is reported too.
        choices: Layer and rank of relations by name, which are then not searched: only that layer is estimated, and
            edits have that rank, and `ranks` where they are given.
        baselines: Count the baselines of the paper's Section 4 too, at every layer, among which is then ``"emb"``: for
            faithfulness linear regression, translation and identity, and all of them on prompts that hold the subject
            alone; for causality the oracle s', the unembedding's row of o', and o'.
        line_integrals: Between how many pairs of test subjects to integrate the LM's slope in every trial, to compare
            it with W: why beta is above 1 (Appendix on beta).
        dtype: The LM's dtype: auto, float64, float32, bfloat16 or float16.
        attn_implementation: Attention implementation, as in transformers.
        device_map: As in transformers (needs accelerate): ``"auto"``, or places by module name, ``"disk"`` among them.
            The LM then stays where it is put, and the Trainer has to have one device.
        max_memory: With ``"auto"``: how much of each device to use, such as ``{0: "20GiB", "cpu": "60GiB"}``.
        offload_folder: Folder for weights that a device map puts on disk.
        quantization: ``"8bit"`` or ``"4bit"`` to keep weights in bitsandbytes' form; they are multiplied in `dtype`.
        revision: Revision of the LM on the hub.
        trust_remote_code: Run code that comes with the LM.
        chunk_size: Rows of the Jacobians, and patched prompts, that are computed at a time; memory grows with it.
            Chosen for the LM's device and its free memory if None.
        lre_dir: Folder for the LREs' files, which checkpoints refer to; ``<default_root_dir>/lres`` if None.

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
        select_by: Criterion = "causality",
        selection_trials: int = 0,
        choices: dict[str, Choice] | None = None,
        baselines: bool = False,
        line_integrals: int = 0,
        dtype: str = "float32",
        attn_implementation: str | None = None,
        device_map: DeviceMap | None = None,
        max_memory: dict[int | str, int | str] | None = None,
        offload_folder: str | None = None,
        quantization: Quantization | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chunk_size: int | None = None,
        lre_dir: str | None = None,
    ) -> None:
        super().__init__()
        given = name_or_path if isinstance(name_or_path, LanguageModel) else None
        name_or_path = name_or_path.name if isinstance(name_or_path, LanguageModel) else name_or_path
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.betas = check_betas([*(DEFAULT_BETAS if betas is None else betas), beta])
        if select_by not in CRITERIA:
            raise LREError(f"select_by {select_by!r} is unknown: use {' or '.join(map(repr, CRITERIA))}")
        for name, number in (("selection_trials", selection_trials), ("line_integrals", line_integrals)):
            if number < 0:
                raise LREError(f"{name} {number} is out of range: it must be at least 0")
        self.beta, self.select_by = float(beta), select_by
        self.selection_trials, self.baselines, self.line_integrals = selection_trials, baselines, line_integrals
        self.lm = given or LanguageModel.from_pretrained(
            name_or_path,
            dtype=dtype,
            attn_implementation=attn_implementation,
            device_map=device_map,
            max_memory=max_memory,
            offload_folder=offload_folder,
            quantization=quantization,
            revision=revision,
            trust_remote_code=trust_remote_code,
            chunk_size=chunk_size,
        )
        if given is not None and chunk_size is not None:
            given.chunk_size = chunk_size
        embedding: list[Layer] = ["emb"] if baselines else []
        self.layers = self.lm.check_layers(None if layers is None else [*embedding, *layers])
        self.ranks = check_ranks(default_ranks(self.lm.hidden_size) if ranks is None else ranks, self.lm.hidden_size)
        self.choices = self._checked(choices or {})
        self.bank = LREBank()
        self.lre_dir = None if lre_dir is None else Path(lre_dir)
        self.bank.searched = [self.lre_dir] if self.lre_dir else []
        self._rescored: dict[TrialKey, TrialRecord] | None = None
        self._estimator = LREEstimator(self.layers)
        self._examples = Examples(self.lm, self.layers)
        self._enough_known = True
        self._early: dict[
            tuple[int, ...], PromptStates
        ] = {}  # test prompts that were run before the pair, by their samples
        self._pair = 0  # the one whose test prompts are being collected
        self._candidates: Mapping[Layer, LRE] | None = None
        self._states: list[PromptStates] = []
        self._processes = ONE_PROCESS
        # Every process loads the LM by itself: Lightning need not send it around.
        tensors = [*self.named_parameters(), *self.named_buffers()]
        self._ddp_params_and_buffers_to_ignore = [name for name, _ in tensors if name.startswith(LM_PREFIX)]

    def _checked(self, choices: Mapping[str, Choice]) -> dict[str, Choice]:
        for relation, choice in choices.items():
            try:
                self.lm.check_layers([choice["layer"]])
                check_ranks([choice["rank"]], self.lm.hidden_size)
            except LREError as error:
                raise LREError(f"the choice for {relation!r}: {error}") from error
            except KeyError as error:
                raise LREError(f"the choice for {relation!r} lacks its {error}: give layer and rank") from error
        return dict(choices)

    @property
    def records(self) -> dict[TrialKey, TrialRecord]:
        """The counts by relation and trial: those of the last validation alone, else those of fit."""
        return self.bank.records if self._rescored is None else self._rescored

    @property
    def lres(self) -> Mapping[TrialKey, LRE]:
        """The LREs that are kept, by relation and trial."""
        return self.bank.lres

    def set_beta(self, betas: Mapping[str, float]) -> None:
        """Give relations their betas, in the records of fit and in the LREs; checkpoints keep them.

        Validation uses them, unless `beta` is another one than the fit was begun with.

        Args:
            betas: The beta by name of the relation, one of those on its grid.

        Raises:
            LREError: If a beta is not on a relation's grid.
        """
        for record in self.bank.records.values():
            beta = betas.get(record.relation, record.beta)
            if record.scored and beta not in record.betas:
                raise LREError(f"beta {beta} is not on the grid of {record.relation!r}, which has {record.betas}")
        self.bank.tune(self.beta, betas)

    def beta_of(self, relation: str) -> float:
        """The beta of a relation: the tuned one, or `beta` where there is none or another one was asked for."""
        if self.bank.tuned is None or self.bank.tuned[0] != self.beta:
            return self.beta
        return self.bank.tuned[1].get(relation, self.beta)

    def configure_optimizers(self) -> None:
        """Nothing is optimized."""

    def configure_callbacks(self) -> list[Callback]:
        """What keeps the folder of a fit in order, where the Trainer has no such callback."""
        there = any(isinstance(callback, RunFolder) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
        return [] if there else [RunFolder()]

    def setup(self, stage: str) -> None:
        """Choose the LREs' folder, end fit by itself after the last pair, and find the other processes.

        Raises:
            LREError: If the trainer has no `RelationDataModule`, its strategy shards the LM, or processes differ in
                the LM or the data.
        """
        strategy = self.trainer.strategy
        check_strategy(strategy)
        self._processes = Processes.of(strategy, self.trainer.global_rank, self.trainer.world_size)
        if self._processes.count > 1:
            if self.hparams["device_map"] is not None:
                raise LREError(
                    f"with a device_map one process spreads the LM, and the trainer has {self._processes.count}: "
                    "give it devices=1, or leave the device_map out"
                )
            check_alike(strategy, self._processes, "the weights of the LM", self.lm.fingerprint)
            check_alike(strategy, self._processes, "the relations, or their draws,", self._data.digest)
        without_wrapper(strategy, self)
        names = [relation.name for relation in self._data.relations] if stage == "fit" and self.choices else []
        if names and not self.choices.keys() & set(names):
            raise LREError(
                f"layers and ranks are chosen for {len(self.choices)} relations, such as {next(iter(self.choices))!r}, "
                f"and the data has none of them, but {names[0]!r}: is its source the right one?"
            )
        if getattr(getattr(self._data, "loader", None), "epoch", "trial") == "all":
            raise LREError("an LREModule needs one trial per epoch: leave loader.epoch out of the datamodule")
        trials = max((trial for _, trial in self._data.schedule), default=0) + 1
        if stage == "fit" and self.selection_trials >= trials:
            raise LREError(
                f"{self.selection_trials} trials that choose leave none to report: there are {trials} of "
                "each relation; give more trials, or fewer selection_trials"
            )
        self.bank.lres.writes = self.trainer.is_global_zero
        self.bank.lres.folder = self.lre_dir or Path(self.trainer.default_root_dir) / "lres"
        self.bank.searched.insert(0, self.bank.lres.folder)
        if stage == "fit":
            pairs, limit = len(self._data.schedule), self.trainer.max_epochs
            self.trainer.fit_loop.max_epochs = pairs if limit is None or limit < 0 else min(limit, pairs)

    # Fit: one epoch is one trial of one relation.

    def on_fit_start(self) -> None:
        """Forget the counts of an earlier validation."""
        self._rescored = None

    def on_train_epoch_start(self) -> None:
        """Begin a pair; if the LM knows too few of its test samples, that is all there is to find out."""
        draw = self._data.trial(self.current_epoch)
        self._estimator = LREEstimator(self._layers_of(draw.relation.name))
        self._examples, self._early = Examples(self.lm, self._estimator.layers), {}
        self._enough_known = self._knows_enough(draw)

    def _layers_of(self, relation: str) -> tuple[Layer, ...]:
        """The layers at which a relation's LREs are estimated."""
        if relation not in self.choices:
            return self.layers
        embedding: list[Layer] = ["emb"] if self.baselines else []
        return self.lm.check_layers([*embedding, self.choices[relation]["layer"]])

    def _ranks_of(self, relation: str) -> tuple[int, ...]:
        """The ranks at which a relation's edits are scored."""
        if relation not in self.choices:
            return self.ranks
        given = [] if self.hparams["ranks"] is None else self.ranks
        return check_ranks([*given, self.choices[relation]["rank"]], self.lm.hidden_size)

    def training_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Add the Jacobian and bias of each prompt in the batch to the sums."""
        if self._enough_known:
            batch = batch.padded("right")
            for row in range(len(batch)):
                if batch.weight[row]:
                    example = self._jacobian(batch, row)
                    self._estimator.update(example)
                    self._examples.add(int(batch.sample[row]), example)
        optimizer: Any = self.optimizers()
        optimizer.step()

    def _jacobian(self, batch: RelationBatch, row: int) -> PromptJacobian:
        ids = batch.input_ids[row, : int(batch.last_position[row]) + 1]
        return prompt_jacobian(self.lm, ids, int(batch.subject_position[row]), self._estimator.layers)

    def _knows_enough(self, draw: Trial) -> bool:
        """Whether the LM answers at least n test prompts of the pair; stops at the n-th, or keeps the pair's record."""
        loader = self._data.val_dataloader()
        batches, left = iter(loader), len(loader)
        tested = known = more = 0
        while known < self._data.n_shot:
            found = torch.zeros(3, dtype=torch.long)
            if left:
                left -= 1
                batch = next(batches).to(self.device)
                states = self._run(batch, self._estimator.layers, self.baselines)
                self._early[states.samples] = states
                found = torch.tensor([len(states.prompts), int(states.known.sum()), left])
            (found,) = self._processes.sum(found)
            tested, known, more = tested + int(found[0]), known + int(found[1]), int(found[2])
            if not more:
                break
        if known < self._data.n_shot:
            self._keep(self._record(draw, tested, known))
        return known >= self._data.n_shot

    @property
    def _data(self) -> PromptSource:
        datamodule: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(datamodule, "schedule"):
            raise LREError("an LREModule needs a RelationDataModule: trainer.fit(module, datamodule=...)")
        return cast("PromptSource", datamodule)

    # Validation: in fit of the pair's LREs, alone of all saved ones.

    def on_validation_start(self) -> None:
        """In fit, add up what all processes have estimated; alone, forget earlier counts.

        Raises:
            LREError: If validation alone has no LRE.
        """
        self._pair, self._candidates = 0, None
        if self.trainer.state.fn != "fit":
            self._rescored, self._enough_known = {}, True
            if not self.bank.lres:
                raise LREError("there is no LRE to validate: fit first, or give a checkpoint (--ckpt_path last)")
        elif self._enough_known and not self.trainer.sanity_checking:
            self._pair = self.current_epoch
            self._estimator.add_up(self._processes, self.lm)
            origin = self._origin(self._data.trial(self._pair))
            self._candidates = {
                layer: LRE(weight, bias, layer, origin, self.beta) for layer, weight, bias in self._estimator.means()
            }

    def validation_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Run the batch's prompts and keep what scoring needs; score the pairs before, whose prompts have been seen."""
        if not self._enough_known or self.trainer.sanity_checking:
            return
        self._finish_pairs(self._data.schedule.index((int(batch.relation[0]), int(batch.trial[0]))))
        samples = tuple(batch.sample[batch.weight > 0].tolist())
        early = self._early.pop(samples, None) if self._in_fit else None
        self._states.append(early or self._run(batch, self._layers_of_candidates(), self._in_fit and self.baselines))

    def on_validation_epoch_end(self) -> None:
        """Score the last pair."""
        if self._enough_known and not self.trainer.sanity_checking:
            self._finish_pairs(self.current_epoch + 1 if self._in_fit else len(self._data.schedule))

    @property
    def _in_fit(self) -> bool:
        return self.trainer.state.fn == "fit"

    def _finish_pairs(self, end: int) -> None:
        """Score the pairs up to `end`: in the same order in each process, had it prompts of them or not."""
        while self._pair < end:
            self._finish_pair(self._data.trial(self._pair))
            self._pair, self._candidates, self._states = self._pair + 1, None, []

    def _run(self, batch: RelationBatch, layers: Sequence[Layer], zero_shot: bool = False) -> PromptStates:
        """Run the prompts of a batch, and perhaps their subjects alone."""
        return PromptStates.run(self.lm, batch, layers, self._data.subjects_alone(batch) if zero_shot else None)

    def _layers_of_candidates(self) -> Sequence[Layer]:
        """Where s is wanted in the test prompts of the pair."""
        if self._candidates is None:
            draw = self._data.trial(self._pair)
            saved = self.bank.lres.get((draw.relation.name, draw.number))
            if saved is not None:
                saved.check_model(self.lm)
            self._candidates = {} if saved is None else {saved.layer: saved.to(self.lm.device)}
        return list(self._candidates) or self.layers[-1:]

    def _origin(self, draw: Trial) -> Origin:
        relation = draw.relation
        return Origin(
            model=self.lm.name,
            fingerprint=self.lm.fingerprint,
            relation=relation.name,
            revision=self.lm.revision,
            category=relation.category,
            trial=draw.number,
            template=BETWEEN_TEMPLATES.join(draw.asked_with),
            train=tuple((sample.subject, sample.object) for sample in draw.train),
        )

    def _finish_pair(self, draw: Trial) -> None:
        """Score the pair whose prompts have all been seen, keep its record, and in fit its LRE."""
        layers = self._layers_of_candidates()
        candidates = self._candidates or {}
        (tested,) = self._processes.sum(torch.tensor([sum(len(states.prompts) for states in self._states)]))
        if not tested:
            return
        states = self._states or [PromptStates.empty(self.lm, layers, self._in_fit and self.baselines)]
        trial = TrialStates.join(states, draw, self._processes)
        record = self._record(draw, int(tested), trial.all_known)
        if candidates and record.known >= len(draw.train):
            record = self._fitted(record, trial, candidates) if self._in_fit else self._again(record, trial, candidates)
        self._keep(record)

    def _record(self, draw: Trial, tested: int, known: int) -> TrialRecord:
        record = new_record(draw, self._data, tested, known)
        beta = self.beta if self._in_fit else self.beta_of(record.relation)
        return dataclass_replace(record, model=self.lm.name, beta=beta, reported=draw.number >= self.selection_trials)

    def _keep(self, record: TrialRecord) -> None:
        """Keep a pair's record and log its scores."""
        self.records[record.relation, record.trial] = record
        scores = {"known": float(record.known)}
        if record.chosen_scores is not None:
            scores["faithfulness"], scores["causality"] = record.chosen_scores
        for name, score in scores.items():
            self.log(f"{name}/{record.relation}", score, batch_size=1, sync_dist=True, add_dataloader_idx=False)

    def _fitted(self, record: TrialRecord, trial: TrialStates, candidates: Mapping[Layer, LRE]) -> TrialRecord:
        """The record of a pair with all that fit measures; its LRE is kept where the pair is reported."""
        record = with_grid(record, trial, candidates, self.betas, self._ranks_of(record.relation))
        layer, rank = self._chosen(record)
        record = dataclass_replace(record, layer=layer, rank=rank)
        record = with_low_rank(record, trial, candidates[layer])
        if self.baselines:
            record = with_baselines(record, trial, candidates, self._examples)
        if self.line_integrals:
            record = with_line_integrals(record, trial, candidates[layer], self.line_integrals)
        if record.reported:
            kept = dataclass_replace(candidates[layer].to("cpu"), rank=rank)
            error = None
            try:
                self.bank.lres[record.relation, record.trial] = kept
            except LREError as raised:
                error = raised
            share_error(self.trainer, error)  # the others wait for the first one's file
        return record

    def _again(self, record: TrialRecord, trial: TrialStates, candidates: Mapping[Layer, LRE]) -> TrialRecord:
        """The record of a pair whose saved LRE is scored at its own layer and rank."""
        ((layer, saved),) = candidates.items()
        rank = saved.rank or self.lm.hidden_size
        record = with_grid(record, trial, candidates, (record.beta,), (rank,))
        return dataclass_replace(record, layer=layer, rank=rank)

    def _chosen(self, record: TrialRecord) -> tuple[Layer, int]:
        """Layer and rank for a pair: given, or chosen."""
        if record.relation in self.choices:
            choice = self.choices[record.relation]
            return choice["layer"], choice["rank"]
        others = [r for r in self.bank.records.values() if r.relation == record.relation and r.trial != record.trial]
        earlier = [r for r in others if r.scored]
        return choose_after(record, earlier, self.select_by)

    # Prediction: the attribute lens of texts.

    def on_predict_start(self) -> None:
        """Check that there is an LRE to look through.

        Raises:
            LREError: If no LRE of the data's relations is loaded.
        """
        if not {relation for relation, _ in self.lres} & {relation.name for relation in self._data.relations}:
            raise LREError("there is no LRE to look through: fit first, or give a checkpoint (--ckpt_path last)")

    def predict_step(self, batch: str, batch_idx: int) -> list[Lens]:
        """Read a text through the lens of each relation of the data, and through the logit lens."""
        names = [relation.name for relation in self._data.relations]
        return read_lenses(self.lm, self._data.tokenizer, batch, self.lres, names)

    # Checkpoints hold everything but the LM.

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """The module's state without the LM."""
        prefix = kwargs.get("prefix", "")
        state: dict[str, Any] = super().state_dict(*args, **kwargs)
        for name in [name for name in state if name.startswith(prefix + LM_PREFIX)]:
            del state[name]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load what `state_dict` gave; everything in it must fit, and the LM must be the one it was made with.

        Weights of an LM in it are unknown to this module, and never loaded.

        Raises:
            LREError: If an LRE was estimated from another LM, or the state is not that of LREs.
            RuntimeError: If a key is missing or unknown.
        """
        given = mapping(state_dict, "the state of a module")
        own = {name: value for name, value in given.items() if not name.startswith(LM_PREFIX)}
        keys = super().load_state_dict(own, strict=False, assign=assign)
        missing = [name for name in keys.missing_keys if not name.startswith(LM_PREFIX)]
        unknown = [*keys.unexpected_keys, *(name for name in given if name not in own)]
        if strict and (missing or unknown):
            raise RuntimeError(f"the checkpoint does not fit: missing {missing}, unknown {unknown}")
        self.bank.lres.check_model(self.lm)
        return keys

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Leave nothing in a checkpoint that the Trainer would trust and this module does not need."""
        restrict(checkpoint, self._trainer)

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
        """As Lightning's, of a local file; what a stranger's checkpoint may not ask for is taken from `kwargs` alone.

        Raises:
            LREError: If the file is no checkpoint of this module, or what it holds cannot be loaded.
        """
        remembered = read_hyperparameters(Path(checkpoint_path), EXPLICIT)["model"]
        options = {
            name: option.default
            for name, option in signature(cls).parameters.items()
            if name not in remembered and option.default is not Parameter.empty
        }
        return super().load_from_checkpoint(
            checkpoint_path, map_location, hparams_file, strict, weights_only=weights_only, **(options | kwargs)
        )
