"""The datamodule: relations as few-shot prompts, one trial of one relation per epoch."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Union

from lightning import LightningDataModule
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities import rank_zero_only
from torch.utils.data import DataLoader

from lre_lightning.datamodules.loaders import Loader, Portion, load, shapes_of, split_test, split_train
from lre_lightning.datamodules.records import arguments_of, check_repeatable
from lre_lightning.demo import DEMO
from lre_lightning.errors import LREError, check_number
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.sentences import agreed_tokenizer
from lre_lightning.models.tokenizer import check_tokenizer, load_tokenizer, pad_token
from lre_lightning.options import options_of
from lre_lightning.prompts.batch import RelationBatch, collate
from lre_lightning.prompts.options import Prompts, choose_templates
from lre_lightning.prompts.prompt import FirstTokenCoverage, Prompt, first_token_coverage, make_prompts
from lre_lightning.prompts.trials import Trial, draw, test_prompts, train_prompts
from lre_lightning.relations.quality import find_problems
from lre_lightning.relations.relation import SLOT, Relation, Sample
from lre_lightning.relations.selection import Selection, plain_names
from lre_lightning.relations.sources import load_relations, plain_source, prepare
from lre_lightning.runs.processes import turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lre_lightning.records.record import TrialRecord

LOGGER = logging.getLogger("lre_lightning")

PROMPTS_KEPT, TRIALS_KEPT = 4096, 64
"""The largest numbers of prompts in batches, and of trials, that are kept: a fit asks for many of them again."""


class RelationDataModule(LightningDataModule):
    """Relations as few-shot prompts; every epoch of a fit is one trial of one relation, or all of them.

    In epoch e of a fit, training serves the `n_shot` leave-one-out prompts of trial e of the `schedule`, and validation
    serves the prompts of its test samples under the context of all `n_shot` training samples. Outside a fit, validation
    serves the test prompts of all trials one after another; no batch has prompts of two trials. The Trainer of such a
    fit needs ``reload_dataloaders_every_n_epochs=1``. After the last trial there is no batch.

    With ``Loader(epoch="all")``, for modules that are trained by gradients, every epoch serves the training prompts of
    all trials, their batches in an order that is drawn anew each time, and validation serves all test prompts.

    On several devices this class splits the batches itself and Lightning injects no sampler: each test prompt goes to
    one process, subjects of about equally many tokens to the same one; `together` consecutive training prompts go to
    one process. Where a process would have fewer batches, it gets a copy whose `RelationBatch.weight` is 0.

    Attributes:
        together: Number of prompts that keep the device busy; an `LREModule` sets it for its LM.

    Args:
        tokenizer: A model's name on the Hub, its folder, ``"demo"`` for the bundled model, or a fast tokenizer. By
            default that of the LM for which prompts are made, and without an LM that of the demo; see `use`.
        relations: Names, categories or paths of relations; None for all. See `load_relations`.
        source: Where relations come from and names and categories are looked up: ``"demo"``, ``"paper"``, a file or
            folder, a data set's name on the Hub, a `datasets.Dataset`, `Relation` values, or a list of such. By default
            the path in the environment variable ``LRE_RELATIONS_DIR``, else the bundled relations. See
            `lre_lightning.relations.sources`.
        n_shot: The number n of training samples of a trial.
        trials: The number of trials of each relation. The paper has 24.
        seed: The seed of all draws.
        prompts: Options of drawing training samples and of making prompts; see `Prompts`.
        selection: Options of reading the source, and of what is used of it; see `Selection`.
        loader: Options of the tokenizer and of batches; see `Loader`.

    Raises:
        LREError: An argument is invalid; in `setup`, the data or the tokenizer cannot be used.

    >>> data = RelationDataModule(n_shot=5, trials=2, prompts=Prompts(shots=3))
    >>> data.hparams["n_shot"], data.hparams["prompts"]["shots"]
    (5, 3)
    """

    allow_zero_length_dataloader_with_multiple_devices = True  # there may be more processes than test batches

    def __init__(
        self,
        tokenizer: Union[str, "PreTrainedTokenizerBase", None] = None,
        relations: str | list[str] | None = None,
        source: Any = None,
        n_shot: int = 8,
        trials: int = 3,
        seed: int = 0,
        prompts: Prompts = Prompts(),
        selection: Selection = Selection(),
        loader: Loader = Loader(),
    ) -> None:
        super().__init__()
        check_number("n_shot", n_shot, 1)
        check_number("trials", trials, 1)
        check_number("seed", seed, 0)
        self.n_shot, self.trials, self.seed = n_shot, trials, seed
        self.together = 1
        self.prompts = self._given_prompts = options_of(Prompts, prompts, "prompts")
        self.selection = options_of(Selection, selection, "selection")
        self.loader = options_of(Loader, loader, "loader")
        self.texts = list(self.loader.texts)
        if self.selection.max_samples is not None:
            check_number("max_samples", self.selection.max_samples, n_shot + 1)
        if self.prompts.train_samples and trials > 1:
            raise LREError(f"with train_samples all {trials} trials would be the same: give trials=1")
        if not isinstance(tokenizer, str | None):
            check_tokenizer(tokenizer)
        self._given_tokenizer = tokenizer
        self._names = plain_names(relations)
        self._plain_source = plain_source(source)
        self._source = self._plain_source or source
        self._expected: TrialRecord | None = None
        self._is_set_up = False
        self._trials: dict[int, Trial] = {}
        self._batches: dict[tuple[str, Portion], RelationBatch] = {}
        self._coverage: dict[str, FirstTokenCoverage] = {}
        self.save_hyperparameters(self._plain_arguments())

    @classmethod
    def of_record(
        cls, record: "TrialRecord", tokenizer: Union[str, "PreTrainedTokenizerBase", None] = None, **options: Any
    ) -> "RelationDataModule":
        """Make the datamodule that serves one trial again, from the record of its results.

        The `tokenizer` is that of the record's LM, and `options` are `source` and `selection`, which find the relation,
        and `loader`.

        Raises:
            LREError: The record does not say what was drawn; in `setup`, the relation has changed.
        """
        again = cls(tokenizer, **arguments_of(record, options.pop("selection", None)), **options)
        again._expected = record
        return again

    def changed(self, **options: Any) -> "RelationDataModule":
        """Return a datamodule with some arguments changed; a mapping of options changes the fields that it has."""
        given = {**self._plain_arguments(), "tokenizer": self._given_tokenizer, "source": self._source}
        given |= {"prompts": self._given_prompts, "selection": self.selection, "loader": self.loader}
        for name in ("prompts", "selection", "loader"):
            if isinstance(options.get(name), Mapping):
                given[name] = replace(given[name], **options.pop(name))
        return type(self)(**given | options)

    def prepare_data(self) -> None:
        """Fetch what is not on this machine; the Trainer calls it in one process of each machine."""
        prepare(self._source, self.selection.options)

    def setup(self, stage: str | None = None) -> None:
        """Load the tokenizer and the relations, and check that every relation has samples enough.

        The Trainer calls it, or the first use of anything that needs it; a second call does nothing.
        """
        if self._is_set_up:
            return
        relations = self.candidates()
        for name in (self.prompts.train_samples or {}).keys() - self._chosen.keys():
            raise LREError(f"train_samples are given for {name!r}, which is not among the relations")
        if self._expected is not None:
            check_repeatable(self._expected, *self._chosen[relations[0].name])
        for relation in relations:
            self.draw(relation, self.selection.first_trial)
        problems = [problem for relation in relations for problem in find_problems(relation) if problem.repairable]
        if problems and not self.selection.repair:
            rank_zero_only(LOGGER.warning)(
                "--data.selection.repair true corrects mistakes in the relations: %d, such as in %r: %s. "
                "`lre data --check true` lists all",
                *(len(problems), problems[0].relation, problems[0].what),
            )
        if self._given_tokenizer is not None:
            _ = self.tokenizer
        self._is_set_up = True

    def use(self, lm: LanguageModel) -> None:
        """Make prompts for an LM: with its tokenizer, unless one was given, and with the start token that suits it.

        An `LREModule` calls it in its `setup`. The LM has this tokenizer from then on.

        Raises:
            LREError: The tokenizer that was given is not the LM's, or it has not got the start token.
        """
        self.tokenizer = agreed_tokenizer(lm, None if self._given_tokenizer is None else self.tokenizer)
        self.prompts = self._given_prompts.of(lm)
        self._batches.clear()
        self._coverage.clear()

    def candidates(self) -> tuple[Relation, ...]:
        """Return the relations that are selected, at least one, also those that have too few samples for a trial.

        Raises:
            LREError: They cannot be read, none is selected, or there is no template for them.
        """
        return tuple(relation for relation, _ in self._chosen.values())

    @cached_property
    def _chosen(self) -> dict[str, tuple[Relation, tuple[str, ...]]]:
        """The relations that are selected, by name, each with its templates."""
        selection = self.selection
        relations = load_relations(
            self._names, self._source, selection.columns, selection.options, exclude=selection.exclude
        )
        chosen = choose_templates(selection.choose(relations, self.seed), self.prompts.template)
        return {relation.name: (relation, templates) for relation, templates in chosen}

    def draw(self, relation: Relation, number: int) -> Trial:
        """Draw a trial of one of the relations.

        Raises:
            LREError: It has too few samples, or is none of them.
        """
        if relation.name not in self._chosen:
            raise LREError(f"{relation.name!r} is not among the relations")
        _, templates = self._chosen[relation.name]
        train = (self.prompts.train_samples or {}).get(relation.name)
        options = self.prompts.sampling, train, templates, self.prompts.choosing_trials
        return draw(relation, self.n_shot, number, self.seed, *options)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer, which is loaded at first use."""
        given, loader = self._given_tokenizer, self.loader
        options = loader.tokenizer_revision, loader.trust_remote_code, loader.gguf_file
        return load_tokenizer(given or DEMO, *options) if isinstance(given, str | None) else given

    @property
    def relations(self) -> tuple[Relation, ...]:
        """The relations; `RelationBatch.relation` is an index into them."""
        self.setup()
        return self.candidates()

    @cached_property
    def schedule(self) -> list[tuple[int, int]]:
        """(Index of the relation, number of the trial) in serving order: all trials of the first relation first."""
        first = self.selection.first_trial
        numbers = range(first, first + self.trials)
        return [(relation, number) for relation in range(len(self.relations)) for number in numbers]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the relations and of everything that their trials and prompts depend on."""
        relations = [[r.digest, r.category, self._chosen[r.name][1]] for r in self.relations]
        numbers = [self.n_shot, self.trials, self.selection.first_trial, self.seed]
        prompts = asdict(replace(self._given_prompts, template=0))  # the templates themselves are in `relations`
        return hashlib.sha256(json.dumps([relations, numbers, prompts]).encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed fit has to find again."""
        return {"digest": self.digest}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check that a fit is resumed with the relations that it was begun with; other stages may have others.

        Raises:
            LREError: A relation, or something that the trials or prompts depend on, has changed.
        """
        in_fit = self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING
        if in_fit and state_dict.get("digest") != self.digest:
            raise LREError(
                "the relations, their trials or their prompts are not those that the fit was begun with: give the same "
                "ones to resume it, or begin a new fit in another --trainer.default_root_dir"
            )

    def trial(self, index: int) -> Trial:
        """Return a trial by its index in `schedule`; an `LREError` if there is none."""
        if not 0 <= index < len(self.schedule):
            raise LREError(f"there is no trial {index!r}: the schedule has 0 to {len(self.schedule) - 1}")
        if index not in self._trials:
            if len(self._trials) >= TRIALS_KEPT:
                self._trials.clear()
            relation, number = self.schedule[index]
            self._trials[index] = self.draw(self.relations[relation], number)
        return self._trials[index]

    def coverage(self, relation: Relation) -> FirstTokenCoverage:
        """Count the objects of one of the relations that have a first token of their own."""
        if relation.name not in self._coverage:
            self._coverage[relation.name] = first_token_coverage(relation, self.tokenizer, self.prompts)
        return self._coverage[relation.name]

    def train_dataloader(self, index: int | None = None) -> DataLoader[RelationBatch]:
        """Serve the leave-one-out prompts of one trial, or with ``epoch="all"`` of all.

        Args:
            index: The trial's index in `schedule`; by default the Trainer's current epoch, or 0 without a Trainer. In
                an epoch after the last trial there is no batch.

        Raises:
            LREError: The Trainer would serve the prompts of one trial in every epoch.
        """
        indices = self._trials_of_epoch(default=[0]) if index is None else [index]
        portions = [
            portion
            for i in indices
            for portion in split_train(
                i, len(self.trial(i).train_asked), self.loader.batch_size, *self._process, self.together
            )
        ]
        shuffled = index is None and self.loader.epoch == "all"
        return self._load(portions, "train", self.seed if shuffled else None)

    def val_dataloader(self, indices: list[int] | None = None) -> DataLoader[RelationBatch]:
        """Serve test prompts: in a fit those of the epoch's trial, otherwise those of all trials one after another.

        Args:
            indices: The trials' indices in `schedule`, to serve just these.
        """
        if indices is None:
            indices = self._trials_of_epoch(default=list(range(len(self.schedule))))
        shapes: dict[int, Sequence[Any]] = {}
        for index in indices:
            trial, alone = self.trial(index), self._process[1] == 1
            shapes[index] = range(len(trial.test_asked)) if alone else shapes_of(trial, self.tokenizer)
        return self._load(split_test(shapes, self.loader.batch_size, *self._process, self.together), "test")

    def test_dataloader(self) -> DataLoader[RelationBatch]:
        """Serve the test prompts of all trials."""
        return self.val_dataloader()

    def predict_dataloader(self) -> DataLoader[str]:
        """Serve those of the texts that this process has to read, one after another."""
        if not self.texts:
            raise LREError("there is no text to predict from: give texts")
        process, count = self._process
        return load(self.texts[process::count], str)

    def subjects_alone(self, batch: RelationBatch) -> RelationBatch:
        """Return the subjects of a batch in zero-shot prompts that hold nothing else, on the same device."""
        samples = [Sample(prompt.subject, prompt.object) for prompt in batch.prompts]
        prompts = make_prompts(self.tokenizer, SLOT, samples, options=Prompts(start_token=self.prompts.start_token))
        alone = collate(
            prompts,
            relation=int(batch.relation[0]),
            trial=int(batch.trial[0]),
            samples=batch.sample.tolist(),
            pad_id=pad_token(self.tokenizer),
            weights=batch.weight.tolist(),
        )
        return alone.to(batch.input_ids.device)

    def _trials_of_epoch(self, default: list[int]) -> list[int]:
        """Return the indices of the trials of a Trainer's epoch; outside a running fit, the default."""
        trainer, count = self.trainer, len(self.schedule)
        if self.loader.epoch == "all":
            return list(range(count))
        if trainer is None or trainer.state.fn != TrainerFn.FITTING or trainer.state.finished:
            return default
        every: int = trainer.reload_dataloaders_every_n_epochs  # type: ignore[attr-defined]
        if every != 1 and count > 1:
            raise LREError(
                f"every epoch serves another one of the {count} trials: give the Trainer "
                f"reload_dataloaders_every_n_epochs=1, not {every}"
            )
        return [trainer.current_epoch] if trainer.current_epoch < count else []

    @property
    def _process(self) -> tuple[int, int]:
        """The index of this process and the number of processes, or of the groups that share an LM."""
        return turn(self.trainer)

    def _load(self, portions: Sequence[Portion], split: str, seed: int | None = None) -> DataLoader[RelationBatch]:
        return load(portions, partial(self._batch, split), seed, self.loader.pin_memory)

    def _batch(self, split: str, portion: Portion) -> RelationBatch:
        """Make a batch; the last ones are kept, since a fit and Lightning's validation in it ask for them in turn."""
        if (split, portion) not in self._batches:
            make = train_prompts if split == "train" else test_prompts
            prompts = make(self.trial(portion.index), self.tokenizer, portion.samples, self.prompts)
            if sum(map(len, self._batches.values())) + len(prompts) > PROMPTS_KEPT:
                self._batches.clear()
            self._batches[split, portion] = self._collate(portion, prompts)
        return self._batches[split, portion]

    def _collate(self, portion: Portion, prompts: Sequence[Prompt]) -> RelationBatch:
        relation, number = self.schedule[portion.index]
        return collate(
            prompts,
            relation=relation,
            trial=number,
            samples=portion.samples,
            pad_id=pad_token(self.tokenizer),
            weights=portion.weights,
            objects=self.relations[relation].objects,
            padding_side=self.loader.padding_side,
        )

    def _plain_arguments(self) -> dict[str, Any]:
        """Return the arguments as plain data, without texts and secrets, from which the same data are found again."""
        given = self._given_tokenizer
        name = given if isinstance(given, str) else getattr(given, "name_or_path", "")
        if name != DEMO and os.path.exists(os.path.expanduser(name)):
            name = os.path.abspath(os.path.expanduser(name))
        options = self.selection.options and {k: v for k, v in self.selection.options.items() if k != "token"}
        return {
            **({"tokenizer": name} if name else {}),
            **({"source": self._plain_source} if self._plain_source else {}),
            "relations": self._names,
            "n_shot": self.n_shot,
            "trials": self.trials,
            "seed": self.seed,
            "prompts": asdict(self._given_prompts),
            "selection": asdict(replace(self.selection, options=options)),
            "loader": asdict(replace(self.loader, texts=[])),
        }
