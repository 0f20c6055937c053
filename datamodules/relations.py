"""The datamodule: relations as few-shot prompts, one (relation, trial) pair an epoch."""

import hashlib
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args

from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from lre_lightning.datamodules.loaders import Share, loader, share_test, share_train
from lre_lightning.demo import DEMO
from lre_lightning.errors import LREError, check_number
from lre_lightning.prompts.batch import RelationBatch, Side, collate
from lre_lightning.prompts.prompt import (
    FirstTokenCoverage,
    Prompt,
    PromptFormat,
    check_tokenizer,
    first_token_coverage,
    load_tokenizer,
    make_prompts,
    pad_token,
)
from lre_lightning.prompts.trials import Sampling, Trial, check_sampling, draw, test_prompts, train_prompts
from lre_lightning.relations.quality import find_problems, repair
from lre_lightning.relations.relation import SLOT, Relation, Sample
from lre_lightning.relations.selection import Where, cap, check_template_choice, choose_templates
from lre_lightning.relations.sources import is_path, leave_out, load_relations, plain_source, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lre_lightning.records.record import TrialRecord

LOGGER = logging.getLogger("lre_lightning")

Serving: TypeAlias = Literal["pair", "all"]
"""What an epoch of a fit serves."""

KEPT, DRAWS_KEPT = 4096, 64
"""Prompts in batches, and draws, that are kept, since a fit asks for many of them again."""


class RelationDataModule(LightningDataModule):
    """Relations as few-shot prompts; every epoch of a fit is one trial of one relation, or all of them.

    In epoch e of a fit, training serves the `n_shot` leave-one-out prompts of pair e and validation serves the prompts
    of its test samples under the context of all `n_shot` training samples. Outside a fit, validation serves the test
    prompts of all pairs one after another; no batch has prompts of two pairs. The Trainer of such a fit needs
    ``reload_dataloaders_every_n_epochs=1``. After the last pair there is no batch. With ``epoch="all"``, for modules
    that are trained by gradients, every epoch serves the training prompts of all pairs, their batches in an order that
    is drawn anew each time, and validation serves all test prompts.

    On several devices the batches are shared out here and Lightning injects no sampler: test prompts go to one process
    each, subjects of like length to the same one; training prompts are filled up to equal numbers by copies whose
    `RelationBatch.weight` is 0, and so is the share of a process for which there is no test prompt.

    Args:
        tokenizer: A model's name on the Hub, its folder, ``"demo"`` for the bundled model, or a fast tokenizer.
        relations: Names, categories or paths of relations; None for all. See `load_relations`.
        source: Where relations come from, and names and categories are looked up: ``"demo"``, ``"paper"``, a file or
            folder, a data set's name on the Hub, a `datasets.Dataset`, `Relation` values, or a list of such. By default
            what the environment variable ``LRE_RELATIONS_DIR`` names, else the bundled ones. See
            `lre_lightning.relations.sources`.
        exclude: Names of relations to leave out of those.
        n_shot: Number n of training samples of a trial.
        trials: Number of trials of each relation. The paper has 24.
        seed: Seed of the draws.
        batch_size: Number of prompts in a batch, in training and in validation.
        template: Which template prompts are made with: an index into each relation's own distinct templates, few-shot
            ones first (relations that have fewer are left out); one template for all relations, or a dictionary of
            templates by relation; ``"bare"`` for ``"{}"``, a prompt without relation-specific text. With
            ``"few-shot"``, ``"zero-shot"`` or ``"all"`` each sample is asked for with each of these templates.
        texts: Free texts, which predict shows through the attribute lens of each relation.
        tokenizer_revision: The tokenizer's branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code that the tokenizer's repository brings along.
        columns: The names of a table's columns by what they hold, as in ``{"subject": "head", "object": "tail"}``.
        source_options: Options of `datasets.load_dataset` for a data set, as in ``{"split": "train"}``.
        where: What relations are chosen for: domain, range, function type, size.
        max_samples: The most samples that a relation keeps, by a seeded choice.
        repair: Whether to mend what is certainly a mistake in the data: see `lre_lightning.relations.quality`.
        shots: Number of examples before the question; None for all: n - 1 in training, n in validation.
        separator: What stands between two lines of a prompt.
        chat: Whether prompts are conversations in the tokenizer's chat template.
        system: What conversations begin with.
        sampling: Whether training samples are drawn at ``"random"`` or ``"balanced"`` over objects.
        train_samples: Training samples by relation, where they are not to be drawn: n subjects each, or [subject,
            object] where a subject has several.
        first_trial: Number of the first trial, so that jobs can share trials out.
        padding_side: ``"right"``, as `LREModule` pads, or ``"left"``.
        epoch: What an epoch of a fit serves: the next ``"pair"``, or ``"all"``.
        pin_memory: Whether loaders put batches in page-locked memory.

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
        source: Any = None,
        exclude: list[str] | None = None,
        n_shot: int = 8,
        trials: int = 3,
        seed: int = 0,
        batch_size: int = 32,
        template: int | str | dict[str, str] = 0,
        texts: list[str] | None = None,
        tokenizer_revision: str | None = None,
        trust_remote_code: bool = False,
        columns: dict[str, str] | None = None,
        source_options: dict[str, Any] | None = None,
        where: Where | None = None,
        max_samples: int | None = None,
        repair: bool = False,
        shots: int | None = None,
        separator: str = "\n",
        chat: bool = False,
        system: str | None = None,
        sampling: Sampling = "random",
        train_samples: dict[str, list[str | list[str]]] | None = None,
        first_trial: int = 0,
        padding_side: Side = "right",
        epoch: Serving = "pair",
        pin_memory: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("n_shot", n_shot), ("trials", trials), ("batch_size", batch_size)):
            check_number(name, value, 1)
        for name, value in (("seed", seed), ("first_trial", first_trial)):
            check_number(name, value, 0)
        if max_samples is not None:
            check_number("max_samples", max_samples, n_shot + 1)
        check_sampling(sampling)
        _check_choice("padding_side", padding_side, get_args(Side))
        _check_choice("epoch", epoch, get_args(Serving))
        check_template_choice(template)
        self.template, self.texts = template, list(texts or [])
        self.n_shot, self.trials, self.seed, self.batch_size = n_shot, trials, seed, batch_size
        self.form = PromptFormat(separator, shots, chat, system)
        if train_samples is not None and not isinstance(train_samples, Mapping):
            raise LREError(f"train_samples must be lists by relation, got {train_samples!r}")
        if train_samples and trials > 1:
            raise LREError(f"with train_samples all {trials} trials would be the same: give trials=1")
        self.sampling, self.train_samples, self.first_trial = sampling, dict(train_samples or {}), first_trial
        self.padding_side, self.epoch, self.pin_memory = padding_side, epoch, pin_memory
        self.selection = _plain_selection(relations)
        self.exclude = list(exclude or [])
        self.columns, self.source_options = columns, source_options
        self.where = Where.of(where) if isinstance(where, Mapping) else where
        self.max_samples, self.repair = max_samples, repair
        self.plain_source = plain_source(source)
        self._given_source = self.plain_source or source
        self.tokenizer_revision, self.trust_remote_code = tokenizer_revision, trust_remote_code
        if not isinstance(tokenizer, str):
            check_tokenizer(tokenizer)
        self._given_tokenizer = tokenizer
        self._tokenizer: PreTrainedTokenizerBase | None = None
        self._relations: tuple[Relation, ...] | None = None
        self._candidates: tuple[Relation, ...] | None = None
        self._templates: dict[str, tuple[str, ...]] = {}
        self._draws: OrderedDict[int, Trial] = OrderedDict()
        self._made: OrderedDict[tuple[str, bool, Share], RelationBatch] = OrderedDict()
        self._coverage: dict[str, FirstTokenCoverage] = {}
        self.save_hyperparameters(self._plain_arguments())

    @classmethod
    def of_record(
        cls, record: "TrialRecord", tokenizer: Union[str, "PreTrainedTokenizerBase"] = "demo", **options: Any
    ) -> "RelationDataModule":
        """The datamodule that serves one trial again, from the record of its results.

        Args:
            record: The counts of the trial.
            tokenizer: The tokenizer of the record's LM.
            options: Where the relation is to be found: `source` and what belongs to it; and `batch_size` and the like.

        Raises:
            LREError: The record is of a version that does not know its draw; in `setup`, the relation has changed.
        """
        if not record.train:
            raise LREError(f"the record of {record.relation!r}, trial {record.trial}, does not say what was drawn")
        again = cls(
            tokenizer,
            [record.relation],
            n_shot=record.n_shot,
            trials=1,
            first_trial=record.trial,
            seed=record.seed,
            train_samples={record.relation: [list(pair) for pair in record.train]},
            **{"template": record.template, **record.prompts, **options},
        )
        again._expected = record
        return again

    def prepare_data(self) -> None:
        """Fetch what is not on this machine; the Trainer calls it in one process of each machine."""
        prepare(self._given_source, self.source_options)

    def setup(self, stage: str | None = None) -> None:
        """Load the tokenizer and the relations, and check that every relation has samples enough.

        Called by the Trainer, or by the first use of anything that needs it; the second call does nothing.
        """
        if self._relations is not None:
            return
        relations = self.candidates()
        self._check_named(relations)
        for relation in relations:
            self.draw(relation, self.first_trial)
        if not self.repair:
            _warn_of_mistakes(relations)
        _ = self.tokenizer
        self._relations = relations

    def candidates(self) -> tuple[Relation, ...]:
        """The relations that are chosen, also where some have too few samples for a trial.

        Raises:
            LREError: They can't be read, none is chosen, or there is no template for them.
        """
        if self._candidates is None:
            relations, templates = choose_templates(self._chosen(), self.template)
            self._templates = {relation.name: found for relation, found in zip(relations, templates, strict=True)}
            self._candidates = relations
        return self._candidates

    def draw(self, relation: Relation, trial: int) -> Trial:
        """Draw a trial of one of the relations.

        Raises:
            LREError: It has too few samples, or is none of them.
        """
        count = len(self.candidates())
        if relation.name not in self._templates:
            raise LREError(f"{relation.name!r} is none of the {count} relations")
        train, templates = self.train_samples.get(relation.name), self._templates[relation.name]
        return draw(relation, self.n_shot, trial, self.seed, self.sampling, train, templates)

    def _chosen(self) -> tuple[Relation, ...]:
        """The relations, before templates are chosen."""
        place = (self._given_source, self.columns, self.source_options)
        relations = leave_out(load_relations(self.selection, *place), self.exclude, *place)
        if self.repair:
            relations = tuple(repair(relation) for relation in relations)
        if self.where is not None:
            relations = self.where.choose(relations)
        if self.max_samples is not None:
            relations = tuple(cap(relation, self.max_samples, self.seed) for relation in relations)
        return relations

    def _check_named(self, relations: Sequence[Relation]) -> None:
        """Check what is given by the names of relations."""
        names = {relation.name for relation in relations}
        for name in self.train_samples.keys() - names:
            raise LREError(f"train_samples are given for {name!r}, which is none of the {len(names)} relations")
        if self._expected is not None:
            self._check_expected(self._expected, relations[0])

    def _check_expected(self, record: "TrialRecord", relation: Relation) -> None:
        """Check that a relation is the one of a record."""
        from lre_lightning.records.record import BETWEEN_TEMPLATES

        if relation.digest != record.digest:
            raise LREError(
                f"the relation {relation.name!r} has other samples than the one of the record: give the source, and "
                "the options on its samples, of that fit"
            )
        templates = BETWEEN_TEMPLATES.join(self._templates[relation.name])
        if templates != record.template:
            raise LREError(
                f"the templates of {relation.name!r} are {templates!r}, and those of the record {record.template!r}: "
                "give the source of that fit"
            )

    _expected: "TrialRecord | None" = None

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer.

        Raises:
            LREError: It can't be loaded.
        """
        if self._tokenizer is None:
            given = self._given_tokenizer
            options = self.tokenizer_revision, self.trust_remote_code
            self._tokenizer = load_tokenizer(given, *options) if isinstance(given, str) else given
        return self._tokenizer

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations; `RelationBatch.relation` is an index into them."""
        self.setup()
        assert self._relations is not None
        return self._relations

    @property
    def schedule(self) -> list[tuple[int, int]]:
        """The (index of the relation, trial) pairs: all trials of the first relation, then those of the second, ..."""
        trials = range(self.first_trial, self.first_trial + self.trials)
        return [(relation, trial) for relation in range(len(self.relations)) for trial in trials]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the relations and of what their draws depend on: tells these prompts from others."""
        relations = [[r.digest, r.category, self._templates[r.name]] for r in self.relations]
        draws = [self.n_shot, self.trials, self.first_trial, self.seed, self.sampling, self.train_samples]
        return hashlib.sha256(json.dumps([relations, draws, asdict(self.form)]).encode()).hexdigest()

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
                "the relations, their draws or their prompts are not those that the fit was begun with, so that it "
                "cannot go on: give those, or begin a new fit in another --trainer.default_root_dir"
            )

    def trial(self, pair: int) -> Trial:
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
        if pair not in self._draws:
            relation, trial = divmod(pair, self.trials)
            self._draws[pair] = self.draw(self.relations[relation], self.first_trial + trial)
            if len(self._draws) > DRAWS_KEPT:
                self._draws.popitem(last=False)
        return self._draws[pair]

    def coverage(self, relation: Relation) -> FirstTokenCoverage:
        """How many objects of one of the relations have a first token of their own."""
        if relation.name not in self._coverage:
            self._coverage[relation.name] = first_token_coverage(relation, self.tokenizer, self.form)
        return self._coverage[relation.name]

    def train_dataloader(self, pair: int | None = None) -> DataLoader[RelationBatch]:
        """Serve the leave-one-out prompts of one pair, or with ``epoch="all"`` of all.

        Args:
            pair: Index in `pairs`; by default the Trainer's current epoch, or 0 without a Trainer. In an epoch after
                the last pair there is no batch.

        Raises:
            LREError: The Trainer would serve one pair's prompts in every epoch.
        """
        every = self.epoch == "all" and pair is None
        pairs = self._epoch_pairs(default=[0]) if pair is None else [pair]
        shares = [
            share
            for p in pairs
            for share in share_train(p, len(self.trial(p).train_asked), self.batch_size, *self._place())
        ]
        return loader(shares, self._train_batch, self.seed if every else None, self.pin_memory)

    def val_dataloader(self, pairs: list[int] | None = None) -> DataLoader[RelationBatch]:
        """Serve test prompts: in a fit those of the epoch's pair, otherwise those of all pairs one after another.

        Args:
            pairs: Indices in `pairs`, to serve just these.
        """
        if pairs is None:
            pairs = self._epoch_pairs(default=list(range(len(self.schedule))))
        sizes = [(pair, len(self.trial(pair).test_asked)) for pair in pairs]
        return loader(share_test(sizes, self.batch_size, *self._place()), self._test_batch, None, self.pin_memory)

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
        return type(self)(
            **{**self._plain_arguments(), "tokenizer": self._given_tokenizer, "source": self._given_source, **options}
        )

    def subjects_alone(self, batch: RelationBatch) -> RelationBatch:
        """The subjects of a batch in zero-shot prompts that hold them and nothing else, on the same device."""
        samples = [Sample(prompt.subject, prompt.object) for prompt in batch.prompts]
        prompts = make_prompts(self.tokenizer, SLOT, samples)
        place = int(batch.relation[0]), int(batch.trial[0]), batch.sample.tolist()
        return collate(prompts, *place, pad_token(self.tokenizer)).to(batch.input_ids.device)

    def _epoch_pairs(self, default: list[int]) -> list[int]:
        """Return the pair of the epoch that a Trainer is in; outside a running fit, the default."""
        trainer = self.trainer
        if self.epoch == "all":
            return list(range(len(self.schedule)))
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or trainer.state.finished:
            return default
        every: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if every != 1 and len(self.schedule) > 1:
            raise LREError(
                f"every epoch serves another one of the {len(self.schedule)} (relation, trial) pairs: give the Trainer "
                f"reload_dataloaders_every_n_epochs=1, not {every}"
            )
        return [trainer.current_epoch] if trainer.current_epoch < len(self.schedule) else []

    def _place(self) -> tuple[int, int]:
        """Return this process's rank and the number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)

    def _train_batch(self, share: Share) -> RelationBatch:
        return self._batch(share, "train")

    def _test_batch(self, share: Share) -> RelationBatch:
        return self._batch(share, "test")

    def _batch(self, share: Share, split: str) -> RelationBatch:
        """Make a batch; the last ones are kept, since a fit asks for the first ones of a pair twice."""
        by_length = split == "test" and self._place()[1] > 1
        key = (split, by_length, share)
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        draw, samples = self.trial(share.pair), share.samples
        if by_length:
            # Prompts of one shape run together, so that they belong to one process.
            lengths = [len(sample.subject) for sample in draw.test_asked]
            order = sorted(range(len(lengths)), key=lengths.__getitem__)
            samples = tuple(order[i] for i in samples)
        prompts = (train_prompts if split == "train" else test_prompts)(draw, self.tokenizer, samples, self.form)
        self._made[key] = self._collate(share, prompts, samples)
        kept = sum(map(len, self._made.values()))
        while kept > KEPT and len(self._made) > 1:
            kept -= len(self._made.popitem(last=False)[1])
        return self._made[key]

    def _collate(self, share: Share, prompts: Sequence[Prompt], samples: Sequence[int]) -> RelationBatch:
        relation, trial = divmod(share.pair, self.trials)
        place = relation, self.first_trial + trial, samples, pad_token(self.tokenizer), share.weights
        return collate(prompts, *place, self.relations[relation].objects, self.padding_side)

    def _plain_arguments(self) -> dict[str, Any]:
        """Return the arguments as strings, numbers and lists, with which a checkpoint finds the same data again."""
        given = self._given_tokenizer
        name = _plain_tokenizer(given if isinstance(given, str) else given.name_or_path or "")
        return {
            **({"tokenizer": name} if name else {}),
            **({"source": self.plain_source} if self.plain_source else {}),
            "relations": self.selection,
            "exclude": self.exclude,
            "n_shot": self.n_shot,
            "trials": self.trials,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "template": self.template,
            "tokenizer_revision": self.tokenizer_revision,
            "trust_remote_code": self.trust_remote_code,
            "columns": self.columns,
            "source_options": _without_secrets(self.source_options),
            "where": None if self.where is None else self.where.plain(),
            "max_samples": self.max_samples,
            "repair": self.repair,
            **asdict(self.form),
            "sampling": self.sampling,
            "train_samples": self.train_samples or None,
            "first_trial": self.first_trial,
            "padding_side": self.padding_side,
            "epoch": self.epoch,
            "pin_memory": self.pin_memory,
        }


def _warn_of_mistakes(relations: Sequence[Relation]) -> None:
    """Say, once for all processes, how many certain mistakes the data have."""
    found = [problem for relation in relations for problem in find_problems(relation) if problem.repairable]
    if found:
        rank_zero_only(LOGGER.warning)(
            "the relations have %d mistakes that the option repair mends, such as in %r: %s. `lre data --check true` "
            "lists all",
            *(len(found), found[0].relation, found[0].what),
        )


def _without_secrets(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if options is None else {name: value for name, value in options.items() if name != "token"}


def _check_choice(name: str, value: object, known: Sequence[str]) -> None:
    if value not in known:
        raise LREError(f"{name} must be {' or '.join(map(repr, known))}, got {value!r}")


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
    return [_plain_item(item) for item in items]


def _plain_item(item: str) -> str:
    path = os.path.expanduser(item)
    return os.path.abspath(path) if is_path(item) and os.path.exists(path) else item
