"""The subcommand ``validate``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import add_ckpt_path, add_weights_only, find_checkpoint
from lre_lightning.demo import COLLECTIONS, DEMO, NOT_INSTALLED, SMOLLM2, smollm2_file
from lre_lightning.errors import LREError
from lre_lightning.lre.lre import first_trials
from lre_lightning.lre.origin import check_origin
from lre_lightning.models.language_model import LanguageModel, label_of
from lre_lightning.relations.selection import plain_names
from lre_lightning.runs.checkpoints import read_checkpoint
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.training.bank import LREStore


class FromCheckpoint(Command):
    """A subcommand that uses the LREs of a checkpoint."""

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, where one is named."""
        config = line.options
        if not config.ckpt_path:
            return
        path = find_checkpoint(config.ckpt_path, Path(config.checkpoint.dirpath))
        if path is None:
            raise LREError(f"there is no checkpoint in {config.checkpoint.dirpath}: run fit first, or give its path")
        line.take_options_of(path)

    @staticmethod
    def restore(line: LRECommandLine) -> LanguageModel:
        """Load the LREs of the checkpoint into the module, and return the LM on its device."""
        line.model.load_state_dict(read_checkpoint(line.options.ckpt_path)["state_dict"])
        return line.placed_lm()


def name_the_lm(collection: LRECollection, option: str) -> LREError:
    """Return the error that a collection's LM is not loaded until the user names it."""
    lm = label_of(collection.model, collection.revision, collection.index.origin["adapter"])
    return LREError(
        f"the collection {str(collection.place)!r} says that its LM is {lm!r}, which is not loaded on its word: name "
        f"the LM yourself, {option}"
    )


class FromLREs(FromCheckpoint):
    """A subcommand that uses the LREs of a checkpoint or of a collection.

    Without either, they are the bundled ones of SmolLM2, or of the demo where that is not installed.
    """

    unused = (
        *("model.layers", "model.betas", "model.ranks", "model.beta", "model.fitting"),
        *("data.n_shot", "data.trials", "data.seed", "data.prompts", "data.loader.epoch", "data.loader.texts"),
    )

    @staticmethod
    def add_lres(parser: LightningArgumentParser, use: str) -> None:
        """Add the arguments that say where LREs come from, and whose help says what they are used for."""
        add_ckpt_path(parser, use)
        help_ = 'collection to use instead: folder, hub name (name its LM too), "smollm2" or "demo"'
        parser.add_argument("--lres", type=str | None, default=None, help=help_)

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, or the LM of the collection."""
        folder = Path(line.options.checkpoint.dirpath)
        source = line.options.lres
        if not source and line.options.ckpt_path == "last" and find_checkpoint("last", folder) is None:
            if smollm2_file() is not None:
                line.take_defaults({"model.name_or_path": SMOLLM2})
            source = line.options.model.name_or_path
            source = source if source in COLLECTIONS else None
            if source == DEMO and smollm2_file() is None:
                print(f"These are answers of the demo, a toy of an LM. {NOT_INSTALLED}")
        if source is None:
            super().check(line)
            return
        collection = LRECollection.from_pretrained(source)
        if not collection.trusted:
            line.take_defaults({"model.name_or_path": ""})
            if not line.options.model.name_or_path:
                raise name_the_lm(collection, "--model.name_or_path")
        line.take_defaults({f"model.{name}": value for name, value in collection.loading.items()})
        line.options.lres, line.options.ckpt_path = source, None
        line.collection = collection

    @override
    def check_data(self, line: LRECommandLine) -> None:
        """Find mistakes in the data, which a collection needs none of."""
        if line.collection is None:
            super().check_data(line)

    def lres_of(self, line: LRECommandLine) -> tuple[LanguageModel, LREStore | LRECollection, list[str]]:
        """Return the LM with the tokenizer of the options, its LREs, and the relations that the options choose."""
        options, data, collection = line.options, line.datamodule, line.collection
        if collection is None and options.ckpt_path is None:
            lm = line.placed_lm()
            lm.tokenizer = data.tokenizer
            return lm, line.model.bank.lres, []
        if collection is None:
            lm = self.restore(line)
            lm.tokenizer = data.tokenizer
            names = [relation.name for relation in data.relations]
            found = len({name for name, _ in line.model.bank.lres} & {*names})
            print(whose(lm, found, f"from the fit {str(options.ckpt_path)!r}"))
            return lm, line.model.bank.lres, names
        lm = line.placed_lm()
        check_origin(collection.index.origin, lm)
        lm.tokenizer = data.tokenizer
        chosen = plain_names(options.data.relations)
        kinds = {entry.key[0]: entry.category for entry in collection.index.entries.values()}
        names = [name for name, kind in kinds.items() if chosen is None or {name, kind} & set(chosen)]
        if not names:
            raise LREError(f"{options.lres!r} has no LRE of {', '.join(map(repr, chosen or []))}: {', '.join(kinds)}")
        where = "that come with the package" if options.lres in COLLECTIONS else f"from {options.lres!r}"
        print(whose(lm, len(names), where))
        return lm, collection, names

    @staticmethod
    def subjects_of(line: LRECommandLine) -> Mapping[str, Collection[str]]:
        """Return the subjects of relations: those that the collection carries, or those of the data of the fit."""
        if line.collection is not None:
            return line.collection.subjects
        if line.options.ckpt_path is None:
            return {}
        return {
            relation.name: [sample.subject for sample in relation.samples] for relation in line.datamodule.candidates()
        }

    @staticmethod
    def faithfulness_of(line: LRECommandLine) -> dict[str, float]:
        """Return the faithfulness of each relation's LRE, where it was scored."""
        if line.collection is not None:
            scores = {key: entry.scores[0] for key, entry in line.collection.index.entries.items()}
        else:
            scores = {key: (one.chosen_scores or (None,))[0] for key, one in line.model.bank.records.items()}
        found = {name: scores[name, trial] for name, trial in first_trials(scores).items()}
        return {name: score for name, score in found.items() if score is not None and score == score}


def whose(lm: LanguageModel, number: int, where: str) -> str:
    """Return a line that says whose answers follow: the LREs of how many relations, of which LM, and from where."""
    others = ", ".join([*(name for name in COLLECTIONS if name != lm.label), "a folder, or org/name on the hub"])
    return f"LREs of {number} relation{'' if number == 1 else 's'} of {lm.label}, {where} (others: --lres {others})"


class Validate(FromCheckpoint):
    """Score saved LREs again, at their layer, beta and rank."""

    name = "validate"

    @override
    def shares_lm(self, options: Any) -> bool:
        return True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "take the LREs from")
        add_weights_only(parser)
        parser.add_argument("--verbose", type=bool, default=False, help="print Lightning's own table too")

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        line.trainer.validate(
            line.model,
            datamodule=line.datamodule,
            ckpt_path=options.ckpt_path,
            verbose=options.verbose,
            weights_only=options.weights_only,
        )
