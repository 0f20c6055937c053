"""The command line: Lightning's own, with this project's module, datamodule and defaults."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightning import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lre_lightning.callbacks import RelationProgressBar, ResultsFigures, ResultsTable
from lre_lightning.checkpoints import read_hyperparameters
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError, first_line
from lre_lightning.evaluation import Setting
from lre_lightning.files import write_whole
from lre_lightning.module import LREModule
from lre_lightning.trainer import LRETrainer

if TYPE_CHECKING:
    from lre_lightning.lens import Lens

DEFAULT_ROOT_DIR = "lre_runs"
EVALUATE, PREDICT, REPORT = "evaluate", "predict", "report"
CONFIGS = Path(__file__).parent / "configs"

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

LINKED = {
    "data.tokenizer": "model.name_or_path",
    "data.tokenizer_revision": "model.revision",
    "data.trust_remote_code": "model.trust_remote_code",
}
"""Options of the data that are those of the model."""

HARMLESS_WARNINGS = (
    # Tokenizing here takes less than starting workers would.
    ".*does not have many workers.*",
    # Checkpoints are meant to be in the run's folder, which a second run or a resumed one finds there.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Nothing is optimized.
    ".*`LightningModule.configure_optimizers` returned `None`.*",
    # The LM is meant to be in eval mode.
    ".*in eval mode at the start of training.*",
    # Lightning's own use of torch.
    r".*isinstance\(treespec, LeafSpec\).*",
    # A fit ends after its last relation.
    ".*`max_epochs` was not set.*",
)


class LRECommandLine(LightningCLI):
    """Lightning's command line with more jobs, the LM named once and what a checkpoint remembers as defaults.

    With ``--ckpt_path`` every option of the model and the data that is not given explicitly, on the command line or
    in a config file, is taken from the checkpoint: explicit options win.
    """

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            LREModule,
            RelationDataModule,
            trainer_class=LRETrainer,
            args=args,
            trainer_defaults=TRAINER_DEFAULTS | {"callbacks": [ResultsFigures(), ResultsTable()]},
            save_config_kwargs={"overwrite": True},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={
                "prog": "lre",
                "description": "Linear relational embeddings of transformer language models.",
            },
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """`fit`, `validate` and `predict` with Lightning's arguments, and `LRETrainer`'s own jobs."""
        inherited = LightningCLI.subcommands()
        own = {name: {"model", "datamodule"} for name in ("dataset", "distract")}
        own["evaluate"] = {"model", "datamodule", "make_trainer"}
        predict = {"predict": inherited["predict"] | {"return_predictions"}}
        return {name: inherited[name] for name in ("fit", "validate")} | predict | own

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Give `predict` its texts as plain arguments, from a file, or from standard input."""
        if subcommand == PREDICT:
            kwargs["description"] = "Show what an LM knows about the subjects of texts: their attribute lenses."
        parser = super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        if subcommand == PREDICT:
            parser.add_argument("texts", nargs="*", type=str, help="texts; standard input, a text a line, if none")
            parser.add_argument("--file", type=str | None, default=None, help="file with a text a line")
            parser.set_defaults({"ckpt_path": "last"})
        return parser

    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        """Add `report` as well, which needs neither an LM nor data."""
        super()._add_subcommands(parser, **kwargs)
        description = "Write the tables and figures of one or several runs as a page, CSV and LaTeX."
        report = LightningArgumentParser(prog="lre report", description=description)
        merged = "jobs that shared the relations of one LM are merged, several LMs are compared"
        report.add_argument(
            "results", nargs="+", type=str, help=f"folders of runs or fit_results.jsonl files; {merged}"
        )
        report.add_argument("--out", type=str, default="lre_report", help="folder for index.html and the files")
        report.add_argument("--title", type=str | None, default=None, help="title of the page; the LMs' names if null")
        assert parser._subcommands_action is not None
        parser._subcommands_action.add_subcommand(REPORT, report, help=description)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Name the LM once, and keep checkpoints in the run's folder under fixed names."""
        for target, source in LINKED.items():
            parser.link_arguments(source, target)
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        # One file, written anew after every pair. `save_last` alone would write it only once the fit has ended.
        parser.set_defaults({"checkpoint.filename": "last", "checkpoint.enable_version_counter": False})
        parser.link_arguments("trainer.default_root_dir", "checkpoint.dirpath", compute_fn=checkpoint_folder)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, then fill in from the checkpoint what was not given explicitly."""
        self._subcommand_parsers["validate"].set_defaults(verbose=False)  # the table of results says it better
        # What the paper's figures and tables need, and a fit alone does not.
        self._subcommand_parsers["evaluate"].set_defaults({"model.baselines": True, "model.line_integrals": 10})
        self._subcommand_parsers["distract"].set_defaults({"ckpt_path": "last"})
        self._parse(args)
        name = self.config["subcommand"]
        config = self.config[name]
        if not config.get("ckpt_path"):
            return
        path = find_checkpoint(config.ckpt_path, Path(config.checkpoint.dirpath))
        if path is None and name == "fit":
            print(f"No checkpoint in {config.checkpoint.dirpath} yet: starting from the first relation.")
            config.ckpt_path = None
            return
        if path is None:
            raise LREError(f"there is no checkpoint in {config.checkpoint.dirpath}: run fit first, or give its path")
        remembered = {
            f"{section}.{key}": value
            for section, arguments in read_hyperparameters(path).items()
            for key, value in arguments.items()
            if f"{section}.{key}" not in LINKED
        }
        self._subcommand_parsers[name].set_defaults(remembered)
        self._parse(args)
        self.config[name].ckpt_path = str(path)

    def _parse(self, args: ArgsType) -> None:
        if isinstance(args, list | None):
            self.config = self.parser.parse_args(named_configs(sys.argv[1:] if args is None else args))
        else:
            self.config = self.parser.parse_object(args)

    def instantiate_classes(self) -> None:
        """Let a checkpoint find its LREs beside it, also where its run's folder was moved."""
        if self.subcommand == REPORT:
            return
        super().instantiate_classes()
        path = self.config[self.subcommand].get("ckpt_path")
        if path:
            self.model.bank.searched += [folder / "lres" for folder in Path(path).absolute().parents[:2]]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add the progress bar that names the relation, unless the user chose another or none."""
        trainer = self._get(self.config_init, "trainer")
        given = trainer.callbacks if isinstance(trainer.callbacks, list) else [trainer.callbacks or []]
        chosen = [callback for callback in given if callback]
        if trainer.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in chosen):
            chosen.append(RelationProgressBar())
        return super().instantiate_trainer(**{"callbacks": chosen, **kwargs})

    def trainer_for(self, setting: Setting) -> Trainer:
        """The Trainer of one fit of an evaluation, in a folder of its own, with the configuration of that fit."""
        root = Path(self.trainer.default_root_dir) / setting.name
        config = self.config[EVALUATE].clone()
        for name in self._subcommand_method_arguments[EVALUATE]:
            del config[name]
        for section, options in (("data", setting.data), ("model", setting.model)):
            for name, value in options.items():
                config[section][name] = value
        config.trainer.default_root_dir, config.checkpoint.dirpath = str(root), checkpoint_folder(root)
        config.ckpt_path = None
        built = self.config_init[EVALUATE].clone()
        built.trainer.default_root_dir, built.checkpoint = str(root), ModelCheckpoint(**vars(config.checkpoint))
        self.config["fit"], self.config_init["fit"], self.subcommand = config, built, "fit"
        try:
            return self.instantiate_trainer()
        finally:
            self.subcommand = EVALUATE

    def before_evaluate(self) -> None:
        """Leave the configuration of the evaluation beside its fits."""
        path = Path(self.trainer.default_root_dir) / "config.yaml"
        write_whole(path, self._subcommand_parsers[EVALUATE].dump(self.config[EVALUATE], skip_unset=False))

    def before_predict(self) -> None:
        """Hand the texts to the datamodule."""
        options = self.config[PREDICT]
        self.datamodule.texts += read_texts(options.texts, options.file)

    def predict(self, **kwargs: Any) -> None:
        """Predict, and write the lenses as pictures, as a page and as data."""
        from lre_lightning.lens import print_lenses
        from lre_lightning.lens_files import write_lenses

        grids = cast("list[list[Lens]]", self.trainer.predict(**kwargs))
        folder = Path(self.trainer.default_root_dir) / "lenses"
        print_lenses(grids)
        write_lenses(grids, folder)
        print(f"Every layer and token: {folder / 'lenses.html'}")

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        more = {"make_trainer": self.trainer_for} if subcommand == EVALUATE else {}
        return super()._prepare_subcommand_kwargs(subcommand) | more

    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand != REPORT:
            super()._run_subcommand(subcommand)
            return
        from lre_lightning.report.page import make_report

        options = self.config[REPORT]
        print(f"Report: {make_report(options.results, options.out, options.title)}")

    def _set_seed(self) -> None:
        """A report draws no random number."""
        if self.subcommand != REPORT:
            super()._set_seed()

    def _parse_ckpt_path(self) -> None:
        """Done in `parse_arguments`; Lightning's own lets a checkpoint override explicit options."""


def read_texts(texts: Sequence[str], file: str | None) -> list[str]:
    """The texts given, those in a file, and where there are neither those of standard input, a text a line.

    Raises:
        LREError: If there is none, or the file cannot be read.
    """
    found = list(texts)
    try:
        if file is not None:
            found += Path(file).read_text(encoding="utf-8").splitlines()
        elif not texts and not sys.stdin.isatty():
            found += sys.stdin.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LREError(f"the texts in {file or 'standard input'!r} cannot be read: {first_line(error)}") from error
    found = [text for text in found if text.strip()]
    if not found:
        raise LREError("there is no text: give it as an argument, in a --file, or on standard input")
    return found


def named_configs(args: Sequence[str]) -> list[str]:
    """Arguments in which ``--config NAME`` has become the file of a bundled configuration of that name."""
    found = list(args)
    for i, argument in enumerate(args):
        if argument.startswith("--config="):
            found[i] = f"--config={config_file(argument.removeprefix('--config='))}"
        elif argument == "--config" and i + 1 < len(args):
            found[i + 1] = config_file(args[i + 1])
    return found


def config_file(name: str) -> str:
    """The bundled configuration of a name, such as ``gptj``; anything else unchanged."""
    path = CONFIGS / f"{name}.yaml"
    return str(path) if path.is_file() and not Path(name).exists() else name


def checkpoint_folder(root_dir: Any) -> str:
    """Where a run in `root_dir` keeps its checkpoints."""
    return str(Path(str(root_dir or DEFAULT_ROOT_DIR)) / "checkpoints")


def find_checkpoint(ckpt_path: str, folder: Path) -> Path | None:
    """The file that ``--ckpt_path`` means: ``last`` is the last one in `folder`, None if there is none yet.

    Raises:
        LREError: If a file is named that does not exist.
    """
    if str(ckpt_path) == "last":
        path = folder / "last.ckpt"
        return path if path.is_file() else None
    path = Path(ckpt_path)
    if not path.is_file():
        raise LREError(f"checkpoint {str(ckpt_path)!r} does not exist: give a .ckpt file, or 'last'")
    return path


def quiet() -> None:
    """Leave out warnings and tips that a user of this command line can do nothing about."""
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)


def main(args: ArgsType = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0, or 2 after a user's mistake, which is printed as one line without a traceback.
    """
    quiet()
    try:
        LRECommandLine(args)
    except LREError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
