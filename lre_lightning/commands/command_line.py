"""Lightning's command line with this project's module, datamodule, defaults and subcommands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import Callback, ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import TensorBoardLogger
from typing_extensions import override

import lre_lightning
import lre_lightning.measures  # which `--model.measures` and reports find
from lre_lightning.callbacks import RelationProgressBar
from lre_lightning.callbacks.log import log_to_console
from lre_lightning.callbacks.loggers import log_text
from lre_lightning.commands.command import Command
from lre_lightning.commands.outline import DESCRIPTION, SUMMARIES
from lre_lightning.commands.parser import Parser, PrintCompletion, ShortHelp, UsageError, named_configs
from lre_lightning.commands.resuming import SECTIONS, explicit_options
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.options import declared, flatten
from lre_lightning.runs.checkpoints import LRETrainer, WholeCheckpointIO, read_hyperparameters
from lre_lightning.runs.folder import RunFolder
from lre_lightning.runs.processes import on_rank_zero, process_index
from lre_lightning.runs.stopping import Stop
from lre_lightning.runs.trainers import check_precision
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.storage.files import write_whole
from lre_lightning.training.module import LREModule

DEFAULT_ROOT_DIR = "lre_runs"


def measure_named(name: str) -> dict[str, str]:
    """Return what the command line takes for one of the suite's measures."""
    return {"class_path": f"lre_lightning.measures.{name}"}


DEFAULT_MEASURES = [measure_named(name) for name in ("Majorities", "LowRank", "Outcomes")]
"""What every fit measures, as it takes no time."""

TRAINER_DEFAULTS: dict[str, Any] = {
    "default_root_dir": DEFAULT_ROOT_DIR,
    "devices": 1,
    "max_epochs": -1,
    "num_sanity_val_steps": 0,
    "reload_dataloaders_every_n_epochs": 1,
    "log_every_n_steps": 1,
    "inference_mode": False,
    "enable_model_summary": False,
}


def links(data: type) -> dict[str, str]:
    """Return the options of a class of datamodules that take their value from options of the model."""
    linked = {f"data.{target}": source for target, source in declared(data, "linked").items()}
    return {"data.tokenizer": "model.name_or_path"} | linked


class ConfigFile(SaveConfigCallback):
    """Lightning's ``config.yaml``, written atomically, and the same in the Trainer's loggers."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not self.already_saved and stage != "predict":  # the folder has the fit's
            path = Path(trainer.log_dir or ".") / self.config_filename
            text = self.parser.dump(self.config, skip_unset=False)
            on_rank_zero(trainer, lambda: write_whole(path, text))
            on_rank_zero(trainer, lambda: log_text(trainer, "configuration", f"```yaml\n{text}\n```"))
            self.already_saved = True


class LRECommandLine(LightningCLI):
    """Lightning's command line with subcommands.

    The LM is named once. With ``--ckpt_path`` every option of the model and the data that is not given explicitly, on
    the command line or in a configuration file, is taken from the checkpoint: explicit options override it. A fit can
    only be resumed with the options that it was begun with.

    Attributes:
        collection: The collection that the LREs are taken from, if any.
    """

    collection: LRECollection | None = None

    def __init__(self, commands: Mapping[str, Command], args: ArgsType, stop: Stop) -> None:
        self.commands, self.stop, self._args = commands, stop, args
        super().__init__(
            LREModule,
            RelationDataModule,
            trainer_class=LRETrainer,
            args=args,
            trainer_defaults=TRAINER_DEFAULTS,
            save_config_callback=ConfigFile,
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_class=Parser,
            parser_kwargs={
                "prog": "lre",
                "description": DESCRIPTION,
                "version": lre_lightning.__version__,
            },
        )

    @property
    def command(self) -> Command:
        """The subcommand that was given."""
        return self.commands[self.config["subcommand"]]

    @property
    def options(self) -> Any:
        """The parsed options of the subcommand."""
        return self.config[self.config["subcommand"]]

    # Parsers.

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Add all subcommands, but the arguments of the given one only: collecting them takes as long as parsing."""
        given = given_command(self._args, self.commands)
        completion = "--print_completion"
        parser.add_argument(completion, action=PrintCompletion, help="Print a script that completes in a shell.")
        every = isinstance(self._args, list | None) and completion in (sys.argv if self._args is None else self._args)
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        added = parser.add_subcommands()
        for name, command in self.commands.items():
            description = type(command).__doc__ or ""
            subparser = (self.init_parser if command.needs_lm else Parser)(description=description, add_help=False)
            self._model_class, self._datamodule_class = command.module, command.data
            if every or name == given or (name == "fit" and given == "evaluate"):  # an evaluation is made of fits
                if command.needs_lm:
                    self._add_arguments(subparser)
                command.add_arguments(subparser)
            self._subcommand_parsers[name] = subparser
            added.add_subcommand(name, subparser, help=SUMMARIES[name])
            subparser.prog = f"lre {name} [options]"
            subparser.formatter_class = partial(ShortHelp, unused=command.unused)  # type: ignore[assignment]

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Name the LM once, and keep checkpoints in the run's folder under fixed names."""
        for target, source in links(self._datamodule_class).items():  # type: ignore[arg-type]
            parser.link_arguments(source, target)
        if issubclass(self._model_class, LREModule):  # type: ignore[arg-type]
            parser.set_defaults({"model.measures": DEFAULT_MEASURES})
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        # One file, rewritten after every trial; `save_last` alone would write it only after the fit.
        parser.set_defaults({"checkpoint.filename": "last", "checkpoint.enable_version_counter": False})
        parser.link_arguments("trainer.default_root_dir", "checkpoint.dirpath", compute_fn=checkpoint_folder)

    # Options.

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, and let the subcommand check the options and take others from a checkpoint."""
        self._parse()
        shared = self.command.needs_lm and self.options.model.loading.tensor_parallel
        if shared and not self.command.shares_lm(self.options):
            raise LREError(
                "one process does this work: leave model.loading.tensor_parallel out, and for an LM larger than a "
                "device give model.loading.device_map"
            )
        if self.command.needs_lm:
            check_precision(self.options.trainer.precision)  # before an LM is loaded
            if self.options.trainer.barebones:
                raise LREError(
                    "barebones is for measuring a trainer alone: give --trainer.logger false, "
                    "--trainer.enable_checkpointing false and --trainer.enable_progress_bar false"
                )
        self.command.check(self)

    def _parse(self) -> None:
        if isinstance(self._args, list | None):
            given = sys.argv[1:] if self._args is None else self._args
            self.config = self.parser.parse_args(named_configs(given))
        else:
            self.config = self.parser.parse_object(self._args)

    def take_options_of(self, path: Path) -> None:
        """Take what was not given explicitly from a checkpoint, and name it in ``ckpt_path``."""
        saved = read_hyperparameters(path, [*explicit_options(), *links(RelationDataModule)])
        flat = {
            f"{section}.{name}": value
            for section, kind in SECTIONS.items()
            for name, value in flatten(kind, saved[section]).items()
        }
        parser = self._subcommand_parsers[self.config["subcommand"]]
        try:
            parser.parse_object(saved, self.options)  # checks the types, which `set_defaults` does not
        except UsageError as error:
            raise LREError(f"checkpoint {str(path)!r} does not fit: {error.lines[0]}") from error
        for key, value in flat.items():
            if value is None and parser.get_default(key) is not None:
                raise LREError(f"checkpoint {str(path)!r} has no value for {key}")
        self.take_defaults(flat)
        self.options.ckpt_path = str(path.absolute())

    def take_defaults(self, values: dict[str, Any]) -> None:
        """Take options, by their dotted names, that are not given explicitly."""
        self._subcommand_parsers[self.config["subcommand"]].set_defaults(values)
        self._parse()

    def _parse_ckpt_path(self) -> None:
        """Do nothing: Lightning's own method lets a checkpoint override explicit options."""

    def dump(self) -> str:
        """Return the options of the subcommand as YAML."""
        dumped: str = self._subcommand_parsers[self.config["subcommand"]].dump(self.options, skip_unset=False)
        return dumped

    # Objects.

    def _set_seed(self) -> None:
        if self.command.needs_lm:
            super()._set_seed()

    def before_instantiate_classes(self) -> None:
        """Find mistakes in the relations before an LM is loaded."""
        if self.command.needs_lm and process_index() == 0:
            self.command.check_data(self)

    def instantiate_classes(self) -> None:
        """Build the Trainer, the module and the datamodule, and look for LREs beside the checkpoint as well."""
        if not self.command.needs_lm:
            return
        super().instantiate_classes()
        path = self.options.get("ckpt_path")
        if path:
            self.model.bank.searched += [folder / "lres" for folder in Path(path).absolute().parents[:2]]

    def instantiate_trainer(self, begin: Callable[[], None] | None = None, **kwargs: Any) -> Trainer:
        """Add the callbacks that guard the run's folder and show progress and results.

        What the user chose is kept: callbacks of these types, no progress bar, a logger, a checkpoint plugin. On the
        first process, `begin` is called before a fit begins.
        """
        trainer = self._get(self.config_init, "trainer")
        given = trainer.callbacks if isinstance(trainer.callbacks, list) else [trainer.callbacks or []]
        chosen = [callback for callback in given if callback]
        if trainer.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in chosen):
            chosen.append(RelationProgressBar())
        chosen += [kind() for kind in self.command.callbacks if not any(isinstance(c, kind) for c in chosen)]
        if trainer.logger in (None, True):  # Lightning's own would show a placeholder beside the hyperparameters
            board = partial(TensorBoardLogger, version=SLURMEnvironment.job_id(), default_hp_metric=False)
            kwargs["logger"] = board(trainer.default_root_dir) if self.command.logs else False
        try:
            made = super().instantiate_trainer(**{"callbacks": [RunFolder(begin), self.stop, *chosen], **kwargs})
        except (MisconfigurationException, ValueError, TypeError, ImportError) as error:
            raise LREError(" ".join(str(error).split())) from error
        if type(made.strategy.checkpoint_io) is TorchCheckpointIO:
            made.strategy.checkpoint_io = WholeCheckpointIO()
        self.stop.trainers.append(made)
        bar = made.progress_bar_callback
        log_to_console(bar is None or not getattr(bar, "is_enabled", True))
        return made

    @override
    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        return super()._instantiate_trainer(config, [] if config["enable_checkpointing"] is False else callbacks)

    def trainer_for(
        self, folder: Path, model: dict[str, Any], data: dict[str, Any], begin: Callable[[], None]
    ) -> Trainer:
        """Build the Trainer of one fit among several, in a folder of its own with the configuration of that fit.

        `model` and `data` are the options that differ, by their dotted names.
        """
        name = self.subcommand
        known = vars(self._subcommand_parsers["fit"].get_defaults())
        config = self.options.clone()
        for key in [key for key in vars(config) if key not in known]:
            del config[key]
        for section, changes in (("model", model), ("data", data)):
            for key, value in changes.items():
                config[f"{section}.{key}"] = value
        config.trainer.default_root_dir, config.checkpoint.dirpath = str(folder), checkpoint_folder(folder)
        config.ckpt_path = None
        built = self.config_init[name].clone()
        built.trainer.default_root_dir, built.checkpoint = str(folder), ModelCheckpoint(**vars(config.checkpoint))
        self.config["fit"], self.config_init["fit"], self.subcommand = config, built, "fit"
        try:
            return self.instantiate_trainer(begin)
        finally:
            self.subcommand = name

    def placed_lm(self) -> LanguageModel:
        """Return the LM on the Trainer's device, or where a device map has put it."""
        lm: LanguageModel = self.model.lm
        return lm if self.model.loading.device_map else lm.to(self.trainer.strategy.root_device)

    # Work.

    def _run_subcommand(self, subcommand: str) -> None:
        self.command.run(self)


def given_command(args: ArgsType, names: Iterable[str]) -> str | None:
    """Return the name of the subcommand in the arguments of the command line; None if there is none."""
    if isinstance(args, list | None):
        return next((argument for argument in (sys.argv[1:] if args is None else args) if argument in names), None)
    name: str | None = args.get("subcommand")
    return name


def checkpoint_folder(root_dir: Any) -> str:
    """Return the folder for the checkpoints of a run in `root_dir`."""
    return str(Path(str(root_dir or DEFAULT_ROOT_DIR)) / "checkpoints")
