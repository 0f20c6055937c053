"""The datamodule: relations as few-shot prompts, one (relation, trial) pair an epoch."""

import hashlib
import json
import os
from dataclasses import astuple, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Union

from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from torch.utils.data import DataLoader

from lre_lightning.datamodules.batch import RelationBatch, collate
from lre_lightning.datamodules.loaders import Share, loader, share_test, share_train
from lre_lightning.demo import DEMO, RELATIONS_DIR
from lre_lightning.draws import Draw, check_number, draw, test_prompts, train_prompts
from lre_lightning.errors import LREError
from lre_lightning.prompts import check_tokenizer, load_tokenizer, make_prompts, pad_token
from lre_lightning.relations import (
    SLOT,
    Relation,
    Sample,
    check_template,
    is_path,
    leave_out,
    load_relations,
    resolve_relations_dir,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RelationDataModule(LightningDataModule):
    """Relations as few-shot prompts; every epoch of a fit is one trial of one relation.

    In epoch e of a fit, training serves the `n_shot` leave-one-out prompts of pair e and validation serves the prompts
    of its test samples under the context of all `n_shot` training samples. Outside a fit, validation serves the test
    prompts of all pairs one after another; no batch has prompts of two pairs. The Trainer of a fit needs
    ``reload_dataloaders_every_n_epochs=1``. After the last pair there is no batch.

    On several devices the batches are shared out here and Lightning injects no sampler: test prompts go to one process
    each, subjects of like length to the same one; training prompts are filled up to equal numbers by copies whose
    `RelationBatch.weight` is 0, and so is the share of a process for which there is no test prompt.

    Args:
        tokenizer: A model's name on the Hub, its folder, ``"demo"`` for the bundled model, or a fast tokenizer.
        relations: Names, categories or paths of relations; None for all. See `lre_lightning.relations.load_relations`.
        exclude: Names of relations to leave out of those.
        relations_dir: Folder in which names and categories are looked up; by default the one that the environment
            variable ``LRE_RELATIONS_DIR`` names, else the bundled relations.
        n_shot: Number n of training samples of a trial.
        trials: Number of trials of each relation. The paper has 24.
        seed: Seed of the draws.
        batch_size: Number of prompts in a batch, in training and in validation.
        template: Which template prompts are made with: an index into each relation's own distinct templates, few-shot
            ones first (relations that have fewer are left out), or one template for all relations, such as ``"{}"``
            for prompts without relation-specific text.
        texts: Free texts, which predict shows through the attribute lens of each relation.
        tokenizer_revision: The tokenizer's branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code that the tokenizer's repository brings along.

    Raises:
        LREError: An argument is out of range; in `setup`, the data or the tokenizer can't be used.

    >>> data = RelationDataModule(n_shot=5, trials=2)
    >>> data.hparams["n_shot"], data.hparams["tokenizer"]
    (5, 'demo')
    """

    allow_zero_length_dataloader_with_multiple_devices = True  # more processes than test batches are no mistake

    def __init__(
        self,
        tokenizer: Union[str, "PreTrainedTokenizerBase"] = "demo",
        relations: str | list[str] | None = None,
        relations_dir: str | None = None,
        exclude: list[str] | None = None,
        n_shot: int = 8,
        trials: int = 3,
        seed: int = 0,
        batch_size: int = 32,
        template: int | str = 0,
        texts: list[str] | None = None,
        tokenizer_revision: str | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("n_shot", n_shot), ("trials", trials), ("batch_size", batch_size)):
            check_number(name, value, 1)
        check_number("seed", seed, 0)
        if isinstance(template, str):
            check_template(template)
        else:
            check_number("template", template, 0)
        self.template, self.texts = template, list(texts or [])
        self.n_shot, self.trials, self.seed, self.batch_size = n_shot, trials, seed, batch_size
        self.selection = _plain_selection(relations)
        self.exclude = list(exclude or [])
        self.relations_dir = _plain_dir(relations_dir)
        self.tokenizer_revision, self.trust_remote_code = tokenizer_revision, trust_remote_code
        if not isinstance(tokenizer, str):
            check_tokenizer(tokenizer)
        self._given_tokenizer = tokenizer
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._relations: tuple[Relation, ...] | None = None
        self._made: dict[str, tuple[int, dict[Share, RelationBatch]]] = {}
        self.save_hyperparameters(self._plain_arguments())

    def setup(self, stage: str | None = None) -> None:
        """Load the tokenizer and the relations, and check that every relation has samples enough.

        Called by the Trainer, or by the first use of anything that needs it; the second call does nothing.
        """
        if self._relations is not None:
            return
        given = self._given_tokenizer
        self._tokenizer = (
            load_tokenizer(given, self.tokenizer_revision, self.trust_remote_code) if isinstance(given, str) else given
        )
        relations = leave_out(load_relations(self.selection, self.relations_dir), self.exclude, self.relations_dir)
        relations = _with_template(relations, self.template)
        for relation in relations:
            draw(relation, self.n_shot, trial=0, seed=self.seed)
        self._relations = relations

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer."""
        self.setup()
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations; `RelationBatch.relation` is an index into them."""
        self.setup()
        assert self._relations is not None
        return self._relations

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The (index of the relation, trial) pairs: all trials of the first relation, then those of the second, ..."""
        return [(relation, trial) for relation in range(len(self.relations)) for trial in range(self.trials)]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the relations and of what their draws depend on: tells these prompts from others."""
        given = [astuple(relation) for relation in self.relations]
        return hashlib.sha256(json.dumps([given, self.n_shot, self.trials, self.seed]).encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """What a fit has to find again when it is resumed."""
        return {"digest": self.digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a fit is resumed with the relations that it was begun with; other jobs may have others.

        Raises:
            LREError: If a relation, or what the draws depend on, has changed.
        """
        in_fit = self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING
        if in_fit and state_dict.get("digest") != self.digest:
            raise LREError(
                "the relations, or n_shot, trials or seed, are not those that the fit was begun with, so that it "
                "cannot go on: give those, or begin a new fit in another --trainer.default_root_dir"
            )

    def draws(self, pair: int) -> Draw:
        """Return the training and test samples of a pair, given by its index in `pairs`.

        Raises:
            LREError: There is no such pair.
        """
        count = len(self.relations) * self.trials
        if not 0 <= pair < count:
            raise LREError(
                f"there is no pair {pair!r}: {len(self.relations)} relations and {self.trials} trials of each "
                f"make the pairs 0 to {count - 1}"
            )
        return draw(self.relations[pair // self.trials], self.n_shot, pair % self.trials, self.seed)

    def train_dataloader(self, pair: int | None = None) -> DataLoader[RelationBatch]:
        """Serve the leave-one-out prompts of one pair.

        Args:
            pair: Index in `pairs`; by default the Trainer's current epoch, or 0 without a Trainer. In an epoch after
                the last pair there is no batch.

        Raises:
            LREError: The Trainer would serve one pair's prompts in every epoch.
        """
        pairs = self._epoch_pairs(default=[0]) if pair is None else [pair]
        shares = [
            share for p in pairs for share in share_train(p, len(self.draws(p).train), self.batch_size, *self._place())
        ]
        return loader(shares, self._train_batch)

    def val_dataloader(self, pairs: list[int] | None = None) -> DataLoader[RelationBatch]:
        """Serve test prompts: in a fit those of the epoch's pair, otherwise those of all pairs one after another.

        Args:
            pairs: Indices in `pairs`, to serve just these.
        """
        if pairs is None:
            pairs = self._epoch_pairs(default=list(range(len(self.pairs))))
        sizes = [(pair, len(self.draws(pair).test)) for pair in pairs]
        return loader(share_test(sizes, self.batch_size, *self._place()), self._test_batch)

    def test_dataloader(self) -> DataLoader[RelationBatch]:
        """Serve the test prompts of all pairs."""
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader[str]:
        """Serve this process's share of the texts, one after another.

        Raises:
            LREError: There is no text.
        """
        if not self.texts:
            raise LREError("there is no text to predict from: give texts")
        rank, world_size = self._place()
        return DataLoader(self.texts[rank::world_size], batch_size=None)  # type: ignore[arg-type]

    def changed(self, **options: Any) -> "RelationDataModule":
        """A datamodule with the same tokenizer and arguments, but for those given."""
        return type(self)(**{**self._plain_arguments(), "tokenizer": self._given_tokenizer, **options})

    def subjects_alone(self, batch: RelationBatch) -> RelationBatch:
        """The subjects of a batch in zero-shot prompts that hold them and nothing else, on the same device."""
        samples = [Sample(prompt.subject, prompt.object) for prompt in batch.prompts]
        prompts = make_prompts(self.tokenizer, SLOT, samples)
        place = int(batch.relation[0]), int(batch.trial[0]), batch.sample.tolist()
        return collate(prompts, *place, pad_token(self.tokenizer)).to(batch.input_ids.device)

    def _epoch_pairs(self, default: list[int]) -> list[int]:
        """Return the pair of the epoch that a Trainer is in; outside a running fit, the default."""
        trainer = self.trainer
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or trainer.state.finished:
            return default
        every: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if every != 1 and len(self.pairs) > 1:
            raise LREError(
                f"every epoch serves another one of the {len(self.pairs)} (relation, trial) pairs: give the Trainer "
                f"reload_dataloaders_every_n_epochs=1, not {every}"
            )
        return [trainer.current_epoch] if trainer.current_epoch < len(self.pairs) else []

    def _place(self) -> tuple[int, int]:
        """Return this process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _train_batch(self, share: Share) -> RelationBatch:
        return self._batch(share, "train")

    def _test_batch(self, share: Share) -> RelationBatch:
        return self._batch(share, "test")

    def _batch(self, share: Share, split: str) -> RelationBatch:
        """Make a batch; those of the last pair are kept, since a fit asks for the first ones twice."""
        pair, made = self._made.get(split, (None, {}))
        if pair != share.pair:
            made = {}
            self._made[split] = share.pair, made
        if share not in made:
            draw, samples = self.draws(share.pair), share.samples
            if split == "test" and self._place()[1] > 1:
                # Prompts of one shape run together, so that they belong to one process.
                by_length = sorted(range(len(draw.test)), key=lambda i: len(draw.test[i].subject))
                samples = tuple(by_length[i] for i in samples)
            prompts = (train_prompts if split == "train" else test_prompts)(draw, self.tokenizer, samples)
            place = *self.pairs[share.pair], samples
            made[share] = collate(prompts, *place, pad_token(self.tokenizer), share.weights)
        return made[share]

    def _plain_arguments(self) -> dict[str, Any]:
        """Return the arguments as strings, numbers and lists, with which a checkpoint finds the same data again."""
        given = self._given_tokenizer
        name = _plain_tokenizer(given if isinstance(given, str) else given.name_or_path or "")
        return {
            **({"tokenizer": name} if name else {}),
            "relations": self.selection,
            "relations_dir": self.relations_dir,
            "exclude": self.exclude,
            "n_shot": self.n_shot,
            "trials": self.trials,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "template": self.template,
            "tokenizer_revision": self.tokenizer_revision,
            "trust_remote_code": self.trust_remote_code,
        }


def _with_template(relations: tuple[Relation, ...], template: int | str) -> tuple[Relation, ...]:
    """The relations whose prompts are made with another template, without those that have none of that index."""
    if template == 0:
        return relations
    if isinstance(template, str):
        return tuple(replace(relation, prompt_templates=(template,)) for relation in relations)
    chosen = tuple(
        replace(relation, prompt_templates=(relation.templates[template],))
        for relation in relations
        if template < len(relation.templates)
    )
    if not chosen:
        most = max(len(relation.templates) for relation in relations)
        raise LREError(f"no relation has a template {template}: the most that one has are {most}, from 0 on")
    return chosen


def _plain_tokenizer(name_or_path: str) -> str:
    """Return a folder's absolute path, and anything else unchanged."""
    folder = os.path.expanduser(name_or_path)
    return os.path.abspath(folder) if name_or_path != DEMO and os.path.isdir(folder) else name_or_path


def _plain_selection(relations: str | list[str] | None) -> list[str] | None:
    """Return the selection as a list of strings in which paths are absolute."""
    if relations is None:
        return None
    items = [relations] if isinstance(relations, str) else relations
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise LREError(f"relations must be None, a string or a list of strings, got {relations!r}")
    return [os.path.abspath(os.path.expanduser(item)) if is_path(item) else item for item in items]


def _plain_dir(relations_dir: str | None) -> str:
    """Return the folder of relations as an absolute path, or ``"demo"`` for the bundled one, wherever it is."""
    if relations_dir == "":
        raise LREError("relations_dir is ''; give a folder, or leave it out")
    folder = resolve_relations_dir(relations_dir)
    return DEMO if folder == RELATIONS_DIR else os.path.abspath(folder)
