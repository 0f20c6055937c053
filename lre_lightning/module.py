"""The LightningModule: fit accumulates Jacobians and scores the LREs, validate scores the saved ones again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as dataclass_replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import lightning as L

from lre_lightning.bank import LREBank, Pair
from lre_lightning.errors import LREError
from lre_lightning.estimation import LREEstimator
from lre_lightning.grid import DEFAULT_BETAS, check_betas, check_ranks, default_ranks
from lre_lightning.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.language_model import LanguageModel, Layer
from lre_lightning.lre import LRE, Origin, check_origin
from lre_lightning.results import Criterion, PairRecord, choose, grid_of
from lre_lightning.scoring import Encoded, encode, score

if TYPE_CHECKING:
    from lre_lightning.datamodules import RelationBatch, RelationDataModule
    from lre_lightning.draws import Draw

CRITERIA = get_args(Criterion)
LM_PREFIX = "lm."


class LREModule(L.LightningModule):
    """Estimates one linear relational embedding (LRE) a relation and trial, without gradient training.

    One epoch of fit is one trial of one relation: training steps add Jacobians and biases to running means, the
    validation that follows scores the LREs on the grid of layers, betas and ranks. The first trial of a relation that
    can be scored chooses the relation's layer and rank; the LRE at that layer is kept for every trial. Validation
    alone scores all kept LREs at their chosen layer and rank. Checkpoints hold the LREs, the counts and the
    hyperparameters, never the LM.

    For more than one pair the Trainer must have `reload_dataloaders_every_n_epochs=1`, and `max_epochs=-1` to fit all
    of them, as the command line's has.

    Args:
        name_or_path: The LM: a hub name, a local folder, or ``"demo"`` for the bundled one.
        layers: Layers to try: ``"emb"`` and block indices. All if None.
        betas: Betas to try for faithfulness, 0.25 to 5 in steps of 0.25 if None. `beta` is always among them.
        ranks: Ranks to try for edits. Powers of two from 4 to 256 or the LM's width if None.
        beta: The LM's beta, which the table of results and the LREs use. 1 is the plain first-order approximation;
            the paper takes 2.25 for GPT-J.
        select_by: What chooses layer and rank: ``"causality"``, as in the paper, or ``"faithfulness"``.
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
        name_or_path: str = "demo",
        layers: list[int | Literal["emb"]] | None = None,
        betas: list[float] | None = None,
        ranks: list[int] | None = None,
        beta: float = 1.0,
        select_by: Criterion = "causality",
        dtype: str = "float32",
        attn_implementation: str | None = None,
        device_map: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        chunk_size: int | None = None,
        lre_dir: str | None = None,
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.betas = check_betas([*(DEFAULT_BETAS if betas is None else betas), beta])
        if select_by not in CRITERIA:
            raise LREError(f"select_by {select_by!r} is unknown: use {' or '.join(map(repr, CRITERIA))}")
        if chunk_size is not None and chunk_size < 1:
            raise LREError(f"chunk size {chunk_size} is out of range: it must be at least 1")
        self.beta, self.select_by, self.chunk_size = float(beta), select_by, chunk_size
        self.lm = LanguageModel.from_pretrained(
            name_or_path,
            dtype=dtype,
            attn_implementation=attn_implementation,
            device_map=device_map,
            revision=revision,
            trust_remote_code=trust_remote_code,
        )
        self.layers = self.lm.check_layers(layers)
        self.ranks = check_ranks(default_ranks(self.lm.hidden_size) if ranks is None else ranks, self.lm.hidden_size)
        self.bank = LREBank()
        self.lre_dir = None if lre_dir is None else Path(lre_dir)
        self.bank.searched = [self.lre_dir] if self.lre_dir else []
        self._rescored: dict[Pair, PairRecord] | None = None
        self._estimator = LREEstimator(self.layers)
        self._candidates: Mapping[Layer, LRE] = {}
        self._encoded: list[Encoded] = []
        self._draw: Draw | None = None
        self._enough_known = True

    @property
    def records(self) -> dict[Pair, PairRecord]:
        """The counts by relation and trial: those of the last validation alone, else those of fit."""
        return self.bank.records if self._rescored is None else self._rescored

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
        self._estimator = LREEstimator(self.layers)
        self._enough_known = self._knows_enough()

    def training_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Add the Jacobian and bias of each prompt in the batch to the running means."""
        if self._enough_known:
            for row in range(len(batch)):
                if batch.weight[row]:
                    self._estimator.update(self._jacobian(batch, row))
        optimizer: Any = self.optimizers()
        optimizer.step()

    def _jacobian(self, batch: RelationBatch, row: int) -> PromptJacobian:
        ids = batch.input_ids[row, : int(batch.last_position[row]) + 1]
        return prompt_jacobian(self.lm, ids, int(batch.subject_position[row]), self.layers, self.chunk_size)

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
        self._encoded.append(self._encode(batch, list(self._candidates) or self.layers[-1:]))

    def on_validation_epoch_end(self) -> None:
        """Score the last pair."""
        if self._encoded:
            self._finish_pair()

    def _encode(self, batch: RelationBatch, layers: Any) -> Encoded:
        return encode(self.lm, batch.prompts, batch.input_ids, batch.subject_position, batch.last_position, layers)

    def _candidates_for(self, draw: Draw) -> Mapping[Layer, LRE]:
        """The LREs to score on a draw's test prompts, by layer."""
        if self.trainer.state.fn != "fit":
            saved = self.bank.lres.get((draw.relation.name, draw.trial))
            return {} if saved is None else {saved.layer: saved.to(self.lm.device)}
        origin = self._origin(draw)
        return {
            layer: LRE(self._estimator.weight(layer), self._estimator.bias(layer), layer, origin, self.beta)
            for layer in self.layers
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
            record = self._score(record, draw, encoded, candidates)
        self._keep(record)

    def _record(self, draw: Draw, tested: int, known: int) -> PairRecord:
        """The record of a pair before it is scored."""
        relation = draw.relation
        return PairRecord(
            relation=relation.name,
            category=relation.category,
            trial=draw.trial,
            samples=len(relation.samples),
            range_size=len(relation.objects),
            tested=tested,
            known=known,
            beta=self.beta,
        )

    def _keep(self, record: PairRecord) -> None:
        """Keep a pair's record and log its scores."""
        self.records[record.relation, record.trial] = record
        self.log(f"known/{record.relation}", float(record.known))
        if record.chosen_scores is not None:
            faithfulness, causality = record.chosen_scores
            self.log(f"faithfulness/{record.relation}", faithfulness)
            self.log(f"causality/{record.relation}", causality)

    def _score(
        self, record: PairRecord, draw: Draw, encoded: list[Encoded], candidates: Mapping[Layer, LRE]
    ) -> PairRecord:
        layers = list(candidates)
        in_fit = self.trainer.state.fn == "fit"
        saved = candidates[layers[0]]
        betas = self.betas if in_fit else (self.beta,)
        ranks = self.ranks if in_fit else (saved.rank or self.lm.hidden_size,)
        key = "\x1f".join([draw.relation.name, str(draw.trial), *(sample.subject for sample in draw.train)])
        counts = score(encoded, candidates, betas, ranks, key, self.chunk_size)
        layer, rank = layers[0], ranks[0]
        if in_fit:
            first = self.bank.first_scored(draw.relation.name)
            if first is not None and first.layer is not None and first.rank is not None:
                layer, rank = first.layer, first.rank
            else:
                layer, rank = choose(counts, layers, ranks, betas.index(self.beta), self.select_by)
            kept = dataclass_replace(candidates[layer].to("cpu"), rank=rank)
            self.bank.lres[draw.relation.name, draw.trial] = kept
        return dataclass_replace(record, **grid_of(counts, layers, betas, ranks), layer=layer, rank=rank)

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
