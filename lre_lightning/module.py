"""The LightningModule: fit accumulates Jacobians and scores the LREs, validate scores the saved ones again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import lightning as L
from typing_extensions import TypedDict

from lre_lightning.bank import LREBank, Pair
from lre_lightning.baselines import Example
from lre_lightning.errors import LREError
from lre_lightning.estimation import LREEstimator
from lre_lightning.grid import DEFAULT_BETAS, check_betas, check_ranks, default_ranks
from lre_lightning.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.language_model import LanguageModel, Layer
from lre_lightning.lens import FirstTrials, Lens, read_lenses
from lre_lightning.lre import LRE, Origin, check_origin
from lre_lightning.measurements import new_record, with_baselines, with_grid, with_line_integrals, with_low_rank
from lre_lightning.patching import PromptBatch
from lre_lightning.records import PairRecord
from lre_lightning.scoring import Encoded, EncodedTrial, encode
from lre_lightning.selection import Criterion, choose_after

if TYPE_CHECKING:
    from lre_lightning.datamodules import RelationBatch, RelationDataModule
    from lre_lightning.draws import Draw

    NameOrModel = str | LanguageModel
else:
    NameOrModel = str  # what the command line sees

CRITERIA = get_args(Criterion)
LM_PREFIX = "lm."


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
        device_map: As in transformers (needs accelerate).
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
        device_map: str | None = None,
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
        if chunk_size is not None and chunk_size < 1:
            raise LREError(f"chunk size {chunk_size} is out of range: it must be at least 1")
        for name, number in (("selection_trials", selection_trials), ("line_integrals", line_integrals)):
            if number < 0:
                raise LREError(f"{name} {number} is out of range: it must be at least 0")
        self.beta, self.select_by, self.chunk_size = float(beta), select_by, chunk_size
        self.selection_trials, self.baselines, self.line_integrals = selection_trials, baselines, line_integrals
        self.lm = given or LanguageModel.from_pretrained(
            name_or_path,
            dtype=dtype,
            attn_implementation=attn_implementation,
            device_map=device_map,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        embedding: list[Layer] = ["emb"] if baselines else []
        self.layers = self.lm.check_layers(None if layers is None else [*embedding, *layers])
        self.ranks = check_ranks(default_ranks(self.lm.hidden_size) if ranks is None else ranks, self.lm.hidden_size)
        self.choices = self._checked(choices or {})
        self.bank = LREBank()
        self.lre_dir = None if lre_dir is None else Path(lre_dir)
        self.bank.searched = [self.lre_dir] if self.lre_dir else []
        self._rescored: dict[Pair, PairRecord] | None = None
        self._estimator = LREEstimator(self.layers)
        self._examples: list[Example] = []
        self._candidates: Mapping[Layer, LRE] = {}
        self._encoded: list[Encoded] = []
        self._draw: Draw | None = None
        self._enough_known = True

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
    def records(self) -> dict[Pair, PairRecord]:
        """The counts by relation and trial: those of the last validation alone, else those of fit."""
        return self.bank.records if self._rescored is None else self._rescored

    @property
    def lres(self) -> Mapping[Pair, LRE]:
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

    def setup(self, stage: str) -> None:
        """Choose the LREs' folder, and end fit by itself after the last pair.

        Raises:
            LREError: If the trainer runs on several devices, or has no `RelationDataModule`.
        """
        if self.trainer.world_size > 1:
            raise LREError(
                f"LREs are estimated on one device, and the trainer has {self.trainer.world_size}: give it devices=1"
            )
        names = [relation.name for relation in self._data.relations] if stage == "fit" and self.choices else []
        if names and not self.choices.keys() & set(names):
            raise LREError(
                f"layers and ranks are chosen for {len(self.choices)} relations, such as {next(iter(self.choices))!r}, "
                f"and the data has none of them, but {names[0]!r}: is its relations_dir the right one?"
            )
        if stage == "fit" and self.selection_trials >= self._data.trials:
            raise LREError(
                f"{self.selection_trials} trials that choose leave none to report: there are {self._data.trials} of "
                "each relation; give more trials, or fewer selection_trials"
            )
        self.bank.lres.folder = self.lre_dir or Path(self.trainer.default_root_dir) / "lres"
        self.bank.searched.insert(0, self.bank.lres.folder)
        if stage == "fit":
            pairs, limit = len(self._data.pairs), self.trainer.max_epochs
            self.trainer.fit_loop.max_epochs = pairs if limit is None or limit < 0 else min(limit, pairs)

    # Fit: one epoch is one trial of one relation.

    def on_fit_start(self) -> None:
        """Forget the counts of an earlier validation."""
        self._rescored = None

    def on_train_epoch_start(self) -> None:
        """Begin a pair; if the LM knows too few of its test samples, that is all there is to find out."""
        relation, _ = self._data.pairs[self.current_epoch]
        self._estimator = LREEstimator(self._layers_of(self._data.relations[relation].name))
        self._examples = []
        self._enough_known = self._knows_enough()

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
        """Add the Jacobian and bias of each prompt in the batch to the running means."""
        if self._enough_known:
            for row in range(len(batch)):
                if batch.weight[row]:
                    example = self._jacobian(batch, row)
                    self._estimator.update(example)
                    self._examples.append(Example.of(example))
        optimizer: Any = self.optimizers()
        optimizer.step()

    def _jacobian(self, batch: RelationBatch, row: int) -> PromptJacobian:
        ids = batch.input_ids[row, : int(batch.last_position[row]) + 1]
        return prompt_jacobian(self.lm, ids, int(batch.subject_position[row]), self._estimator.layers, self.chunk_size)

    def _knows_enough(self) -> bool:
        """Whether the LM answers at least n test prompts of the pair; stops at the n-th, or keeps the pair's record."""
        tested = known = 0
        batch = None
        for batch in self._data.val_dataloader():
            tested += len(batch)
            known += int(self._encode(batch.to(self.device), self.layers[-1:]).known.sum())
            if known >= self._data.n_shot:
                return True
        if batch is not None:
            self._keep(self._record(self._draw_of(batch), tested, known))
        return False

    @property
    def _data(self) -> RelationDataModule:
        datamodule: Any = getattr(self.trainer, "datamodule", None)
        if not hasattr(datamodule, "draws"):
            raise LREError("an LREModule needs a RelationDataModule: trainer.fit(module, datamodule=...)")
        return cast("RelationDataModule", datamodule)

    def _draw_of(self, batch: RelationBatch) -> Draw:
        return self._data.draws(self._data.pairs.index((int(batch.relation[0]), int(batch.trial[0]))))

    # Validation: in fit of the pair's LREs, alone of all saved ones.

    def on_validation_start(self) -> None:
        """Alone, forget earlier counts and check that there is something to score.

        Raises:
            LREError: If no LRE is loaded.
        """
        if self.trainer.state.fn == "fit":
            return
        self._rescored, self._enough_known = {}, True
        if not self.bank.lres:
            raise LREError("there is no LRE to validate: fit first, or give a checkpoint (--ckpt_path last)")

    def validation_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Run the batch's prompts and keep what scoring needs; score a pair once all its prompts have been seen."""
        if not self._enough_known or self.trainer.sanity_checking:
            return
        draw = self._draw_of(batch)
        if self._encoded and draw != self._draw:
            self._finish_pair()
        if not self._encoded:
            self._draw = draw
            self._candidates = self._candidates_for(draw)
        alone = self._alone(batch) if self.baselines and self.trainer.state.fn == "fit" else None
        self._encoded.append(self._encode(batch, list(self._candidates) or self.layers[-1:], alone))

    def on_validation_epoch_end(self) -> None:
        """Score the last pair."""
        if self._encoded:
            self._finish_pair()

    def _encode(self, batch: RelationBatch, layers: Any, alone: PromptBatch | None = None) -> Encoded:
        positions = batch.subject_position, batch.last_position
        return encode(self.lm, batch.prompts, batch.input_ids, *positions, layers, alone)

    def _alone(self, batch: RelationBatch) -> PromptBatch:
        """Zero-shot prompts that hold the subjects of a batch and nothing else."""
        alone = self._data.subjects_alone(batch)
        return PromptBatch(self.lm, alone.input_ids, alone.subject_position, alone.last_position)

    def _candidates_for(self, draw: Draw) -> Mapping[Layer, LRE]:
        """The LREs to score on a draw's test prompts, by layer."""
        if self.trainer.state.fn != "fit":
            saved = self.bank.lres.get((draw.relation.name, draw.trial))
            return {} if saved is None else {saved.layer: saved.to(self.lm.device)}
        origin = self._origin(draw)
        return {
            layer: LRE(self._estimator.weight(layer), self._estimator.bias(layer), layer, origin, self.beta)
            for layer in self._estimator.layers
        }

    def _origin(self, draw: Draw) -> Origin:
        relation = draw.relation
        return Origin(
            model=self.lm.name,
            fingerprint=self.lm.fingerprint,
            relation=relation.name,
            revision=self.lm.revision,
            category=relation.category,
            trial=draw.trial,
            template=relation.template,
            train=tuple((sample.subject, sample.object) for sample in draw.train),
        )

    def _finish_pair(self) -> None:
        """Score the pair whose prompts have all been seen, keep its record, and in fit its LRE."""
        draw, encoded, candidates = self._draw, self._encoded, self._candidates
        self._encoded, self._candidates = [], {}
        assert draw is not None
        tested = sum(len(batch.prompts) for batch in encoded)
        record = self._record(draw, tested, sum(int(batch.known.sum()) for batch in encoded))
        if candidates and record.known >= len(draw.train):
            key = "\x1f".join([draw.relation.name, str(draw.trial), *(sample.subject for sample in draw.train)])
            trial = EncodedTrial.join(encoded, key)
            in_fit = self.trainer.state.fn == "fit"
            record = self._fitted(record, trial, candidates, key) if in_fit else self._again(record, trial, candidates)
        self._keep(record)

    def _record(self, draw: Draw, tested: int, known: int) -> PairRecord:
        record = new_record(draw, self._data.tokenizer, tested, known)
        beta = self.beta if self.trainer.state.fn == "fit" else self.beta_of(record.relation)
        index = self._data.template if isinstance(self._data.template, int) else None
        return dataclass_replace(
            record, model=self.lm.name, beta=beta, template_index=index, reported=draw.trial >= self.selection_trials
        )

    def _keep(self, record: PairRecord) -> None:
        """Keep a pair's record and log its scores."""
        self.records[record.relation, record.trial] = record
        self.log(f"known/{record.relation}", float(record.known))
        if record.chosen_scores is not None:
            faithfulness, causality = record.chosen_scores
            self.log(f"faithfulness/{record.relation}", faithfulness)
            self.log(f"causality/{record.relation}", causality)

    def _fitted(self, record: PairRecord, trial: EncodedTrial, candidates: Mapping[Layer, LRE], key: str) -> PairRecord:
        """The record of a pair with all that fit measures; its LRE is kept where the pair is reported."""
        record = with_grid(record, trial, candidates, self.betas, self._ranks_of(record.relation), self.chunk_size)
        layer, rank = self._chosen(record)
        record = dataclass_replace(record, layer=layer, rank=rank)
        record = with_low_rank(record, trial, candidates[layer])
        if self.baselines:
            record = with_baselines(record, trial, candidates, self._examples, self.chunk_size)
        if self.line_integrals:
            record = with_line_integrals(record, trial, candidates[layer], self.line_integrals, key, self.chunk_size)
        if record.reported:
            kept = dataclass_replace(candidates[layer].to("cpu"), rank=rank)
            self.bank.lres[record.relation, record.trial] = kept
        return record

    def _again(self, record: PairRecord, trial: EncodedTrial, candidates: Mapping[Layer, LRE]) -> PairRecord:
        """The record of a pair whose saved LRE is scored at its own layer and rank."""
        ((layer, saved),) = candidates.items()
        rank = saved.rank or self.lm.hidden_size
        record = with_grid(record, trial, candidates, (record.beta,), (rank,), self.chunk_size)
        return dataclass_replace(record, layer=layer, rank=rank)

    def _chosen(self, record: PairRecord) -> tuple[Layer, int]:
        """Layer and rank for a pair: given, or chosen."""
        if record.relation in self.choices:
            choice = self.choices[record.relation]
            return choice["layer"], choice["rank"]
        earlier = [r for r in self.bank.records.values() if r.relation == record.relation and r.scored]
        return choose_after(record, earlier, self.select_by)

    # Prediction: the attribute lens of texts.

    def on_predict_start(self) -> None:
        """Check that there is an LRE to look through.

        Raises:
            LREError: If no LRE of the data's relations is loaded.
        """
        if not FirstTrials(self.lres, [relation.name for relation in self._data.relations]):
            raise LREError("there is no LRE to look through: fit first, or give a checkpoint (--ckpt_path last)")

    def predict_step(self, batch: str, batch_idx: int) -> list[Lens]:
        """Read a text through the lens of each relation of the data, and through the logit lens."""
        lres = FirstTrials(self.lres, [relation.name for relation in self._data.relations])
        return read_lenses(self.lm, self._data.tokenizer, batch, lres)

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

        Raises:
            LREError: If an LRE was estimated from another LM.
            RuntimeError: If a key is missing or unknown.
        """
        keys = super().load_state_dict(state_dict, strict=False, assign=assign)
        missing = [name for name in keys.missing_keys if not name.startswith(LM_PREFIX)]
        if strict and (missing or keys.unexpected_keys):
            raise RuntimeError(f"the checkpoint does not fit: missing {missing}, unknown {keys.unexpected_keys}")
        for metadata in self.bank.lres.metadata.values():
            check_origin(metadata["origin"], self.lm)
        return keys
