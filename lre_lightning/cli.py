"""The command line: Lightning's own, with this project's module, datamodule and defaults."""

from __future__ import annotations

import errno
import logging
import os
import re
import signal
import sys
import warnings
from argparse import ArgumentError
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from lightning import LightningModule, Trainer
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.multiprocessing.spawn import ProcessRaisedException
from typing_extensions import override

from lre_lightning.callbacks import RelationLog, RelationProgressBar, ResultsFigures, ResultsTable
from lre_lightning.callbacks.log import log_to_console
from lre_lightning.commands.evaluate import Setting, check_options
from lre_lightning.commands.trainer import LRETrainer
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError, check_number, first_line
from lre_lightning.options import flatten
from lre_lightning.runs.checkpoints import WholeCheckpointIO, finished_trials, read_hyperparameters
from lre_lightning.runs.folder import RunFolder
from lre_lightning.runs.processes import RankZeroError, on_rank_zero
from lre_lightning.runs.stopping import Stop, command_line
from lre_lightning.storage.files import NotWritten, check_writable, write_whole
from lre_lightning.storage.locks import FolderLock
from lre_lightning.storage.plain import mapping, printable
from lre_lightning.training.module import EXPLICIT, LREModule

if TYPE_CHECKING:
    from lre_lightning.lens.lens import Lens

DEFAULT_ROOT_DIR = "lre_runs"
FIT, EVALUATE, DATASET, PREDICT = "fit", "evaluate", "dataset", "predict"
REPORT, DATA = "report", "data"  # jobs without an LM
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

DATA_DESCRIPTION = "List relations with their counts, and show prompts as an LM sees them."

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}

RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK"}
"""Environment variables by which a process that something else has started knows its rank."""

LINKED = {
    "data.tokenizer": "model.name_or_path",
    "data.loader.tokenizer_revision": "model.revision",
    "data.loader.trust_remote_code": "model.trust_remote_code",
}
"""Options of the data that are those of the model."""

LOST = re.compile("Connection (closed|reset) by peer|Broken pipe|remote process exited|NCCL error")
"""What torch.distributed says where another process has ended."""

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


class ConfigFile(SaveConfigCallback):
    """Lightning's ``config.yaml``, under its name only once it is whole."""

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not self.already_saved:
            path = Path(trainer.log_dir or ".") / self.config_filename
            on_rank_zero(trainer, lambda: write_whole(path, self.parser.dump(self.config, skip_unset=False)))
            self.already_saved = True


class LRECommandLine(LightningCLI):
    """Lightning's command line with more jobs, the LM named once and what a checkpoint remembers as defaults.

    With ``--ckpt_path`` every option of the model and the data that is not given explicitly, on the command line or
    in a config file, is taken from the checkpoint: explicit options win. A fit that goes on needs the options that it
    was begun with.
    """

    def __init__(self, args: ArgsType = None, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()
        self._evaluation: FolderLock | None = None
        self._dumped = ""
        super().__init__(
            LREModule,
            RelationDataModule,
            trainer_class=LRETrainer,
            args=args,
            trainer_defaults=TRAINER_DEFAULTS | {"callbacks": [ResultsFigures(), ResultsTable(), RelationLog()]},
            save_config_callback=ConfigFile,
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
        own = {name: {"model", "datamodule"} for name in (DATASET, "distract")}
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
        """Add `report` and `data` as well, which need no LM."""
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
        parser._subcommands_action.add_subcommand(DATA, data_parser(), help=DATA_DESCRIPTION)

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
        if name in (FIT, EVALUATE):
            try_folders(Path(config.trainer.default_root_dir or "."), config.model.lre_dir)
        if name == FIT and not config.ckpt_path and queued_again():
            config.ckpt_path = "last"
        given = config.get("ckpt_path")
        path = find_checkpoint(given, Path(config.checkpoint.dirpath)) if given else None
        if name == FIT:
            refuse_to_overwrite(Path(config.checkpoint.dirpath) / "last.ckpt", path)
        if not given:
            return
        if path is None and name == FIT:
            if rank() == 0:
                print(f"No checkpoint in {config.checkpoint.dirpath} yet: starting from the first relation.")
            config.ckpt_path = None
            return
        if path is None:
            raise LREError(f"there is no checkpoint in {config.checkpoint.dirpath}: run fit first, or give its path")
        self._remember(path, name)
        self._parse(args)
        self.config[name].ckpt_path = str(path.absolute())
        if name == FIT:
            data = RelationDataModule(**self.config[name].data.as_dict())
            check_options(path, {"model": self.config[name].model.as_dict(), "data": dict(data.hparams)})

    def _remember(self, path: Path, name: str) -> None:
        """Make defaults of what a checkpoint remembers, of which the parser would not check the types otherwise."""
        found = read_hyperparameters(path, [*EXPLICIT, *LINKED])
        for group in ("prompts", "selection", "loader"):  # text would be read as the name of a file
            mapping(found["data"].get(group, {}), f"data.{group} of checkpoint {str(path)!r}")
        parser, checking = self._subcommand_parsers[name], self._subcommand_parsers["validate"]
        checking.exit_on_error = False
        try:
            checking.parse_object(found)
        except ArgumentError as error:
            raise LREError(f"checkpoint {str(path)!r} does not fit: {' '.join(str(error).split())}") from error
        finally:
            checking.exit_on_error = True
        kinds = {"model": LREModule, "data": RelationDataModule}
        flat = {section: flatten(kinds[section], given) for section, given in found.items()}
        remembered = {f"{section}.{key}": value for section, given in flat.items() for key, value in given.items()}
        for key, value in remembered.items():
            if value is None and parser.get_default(key) is not None:
                raise LREError(f"checkpoint {str(path)!r} has no value for {key}")
        parser.set_defaults(remembered)

    def _parse(self, args: ArgsType) -> None:
        if isinstance(args, list | None):
            self.config = self.parser.parse_args(named_configs(sys.argv[1:] if args is None else args))
        else:
            self.config = self.parser.parse_object(args)

    def before_instantiate_classes(self) -> None:
        """Find mistakes in the relations before an LM is loaded."""
        if self.subcommand not in (REPORT, DATA) and rank() == 0:
            RelationDataModule(**self.config[self.subcommand].data.as_dict()).candidates()

    def instantiate_classes(self) -> None:
        """Let a checkpoint find its LREs beside it, also where its run's folder was moved."""
        if self.subcommand in (REPORT, DATA):
            return
        super().instantiate_classes()
        path = self.config[self.subcommand].get("ckpt_path")
        if path:
            self.model.bank.searched += [folder / "lres" for folder in Path(path).absolute().parents[:2]]

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add what keeps the run's folder in order, and the progress bar that names the relation.

        There is no such bar where the user chose another or none, and a way to write checkpoints of the user's own
        stays.

        Raises:
            LREError: If there cannot be such a Trainer.
        """
        trainer = self._get(self.config_init, "trainer")
        given = trainer.callbacks if isinstance(trainer.callbacks, list) else [trainer.callbacks or []]
        chosen = [callback for callback in given if callback]
        if trainer.enable_progress_bar is not False and not any(isinstance(c, ProgressBar) for c in chosen):
            chosen.append(RelationProgressBar())
        begin = None if self._evaluation is None else partial(begin_evaluation, self._evaluation, self._dumped)
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

    def trainer_for(self, setting: Setting) -> Trainer:
        """The Trainer of one fit of an evaluation, in a folder of its own, with the configuration of that fit."""
        root = Path(self.trainer.default_root_dir) / setting.name
        config = self.config[EVALUATE].clone()
        for name in self._subcommand_method_arguments[EVALUATE]:
            del config[name]
        for section, options in (("data", setting.data), ("model", setting.model)):
            for name, value in flatten({"data": RelationDataModule, "model": LREModule}[section], options).items():
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
        """Let the first fit take the evaluation's folder."""
        self._evaluation = FolderLock(Path(self.trainer.default_root_dir))
        self._dumped = self._subcommand_parsers[EVALUATE].dump(self.config[EVALUATE], skip_unset=False)

    def before_predict(self) -> None:
        """Hand the texts to the datamodule."""
        options = self.config[PREDICT]
        self.datamodule.texts += read_texts(options.texts, options.file)

    def predict(self, **kwargs: Any) -> None:
        """Predict, and write the lenses as pictures, as a page and as data."""
        from lre_lightning.lens.files import write_lenses
        from lre_lightning.lens.lens import print_lenses

        grids = cast("list[list[Lens]]", self.trainer.predict(**kwargs))
        folder = Path(self.trainer.default_root_dir) / "lenses"
        print_lenses(grids)
        write_lenses(grids, folder)
        print(f"Every layer and token: {folder / 'lenses.html'}")

    def _prepare_subcommand_kwargs(self, subcommand: str) -> dict[str, Any]:
        more = {"make_trainer": self.trainer_for} if subcommand == EVALUATE else {}
        return super()._prepare_subcommand_kwargs(subcommand) | more

    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand == DATA:
            show_data(self.config[DATA])
            return
        if subcommand != REPORT:
            try:
                super()._run_subcommand(subcommand)
            finally:
                if self._evaluation is not None:
                    self._evaluation.release()
            return
        from lre_lightning.report.page import make_report

        options = self.config[REPORT]
        print(f"Report: {make_report(options.results, options.out, options.title)}")

    def _set_seed(self) -> None:
        """Jobs without an LM draw no random number."""
        if self.subcommand not in (REPORT, DATA):
            super()._set_seed()

    def _parse_ckpt_path(self) -> None:
        """Done in `parse_arguments`; Lightning's own lets a checkpoint override explicit options."""


def data_parser() -> LightningArgumentParser:
    """The arguments of `data`."""
    parser = LightningArgumentParser(prog="lre data", description=DATA_DESCRIPTION)
    parser.add_argument("relations", nargs="*", type=str, help="names, categories or paths of relations; all if none")
    parser.add_argument("--prompts", type=int, default=0, help="how many prompts of each relation to show")
    parser.add_argument("--check", type=bool, default=False, help="whether to list what is odd in the data")
    parser.add_argument("--out", type=str | None, default=None, help="folder to write the relations to, as JSON files")
    parser.add_class_arguments(RelationDataModule, "data")
    return parser


def show_data(options: Any) -> None:
    """Print the relations of a datamodule, and write them to a folder if that is asked for.

    Raises:
        LREError: If they cannot be used, or the folder cannot be written to.
    """
    from lre_lightning.commands.data import print_data
    from lre_lightning.relations.json_files import write_relations

    check_number("prompts", options.prompts, 0)
    given = options.data.as_dict()
    data = RelationDataModule(**(given | ({"relations": options.relations} if options.relations else {})))
    print_data(data, options.prompts, options.check)
    if options.out is not None:
        print(f"{len(write_relations(data.candidates(), options.out))} relations written to {options.out}")


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


def begin_evaluation(lock: FolderLock, config: str) -> None:
    """Take an evaluation's folder, and leave its configuration beside its fits."""
    lock.acquire()
    write_whole(lock.folder / "config.yaml", config)


def try_folders(root: Path, lre_dir: str | None) -> None:
    """See before an LM is loaded whether a fit can be in a folder.

    Args:
        root: The folder.
        lre_dir: The one for LREs, if that is another.

    Raises:
        LREError: If another fit is there, or nothing can be written to one of the folders.
    """
    for folder in (root, *([] if lre_dir is None else [Path(lre_dir)])):
        check_writable(folder)
    if not RANK_VARIABLES & os.environ.keys():  # else rank zero might be the one that has the folder
        FolderLock(root).look()


def refuse_to_overwrite(last: Path, resumed: Path | None) -> None:
    """Refuse a fit where there is another one that has finished pairs.

    Args:
        last: Where the last checkpoint of a fit would be.
        resumed: The checkpoint that the fit goes on from, if it does.

    Raises:
        LREError: If there is one, it is not that, and it has finished a pair.
    """
    if not last.is_file() or (resumed is not None and last.samefile(resumed)):
        return
    done, total, model = finished_trials(last)
    if done:
        trials = f"{done} trials" if total is None else f"{done} of {total} trials"
        raise LREError(
            f"{str(last.parents[1])!r} has a fit of {model!r} with {trials} finished: resume it with "
            "--ckpt_path last, give another --trainer.default_root_dir, or remove that folder"
        )


def queued_again() -> bool:
    """Whether this is a job that SLURM has started once more, as Lightning asks it to when its time is up."""
    return SLURMEnvironment.detect() and int(os.environ.get("SLURM_RESTART_COUNT", 0)) > 0


def rank() -> int:
    """This process among those of the run, as far as that is known."""
    return getattr(rank_zero_only, "rank", None) or 0


def quiet() -> None:
    """Leave out warnings and tips that a user of this command line can do nothing about."""
    for message in HARMLESS_WARNINGS:
        warnings.filterwarnings("ignore", message=message)
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)


def main(args: ArgsType = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0; 2 after a user's mistake or a write that failed, which is printed as one line without a
        traceback; 130 or 143 after Ctrl-C or SIGTERM, with a line that says how to go on.
    """
    quiet()
    command = next_command(args)
    stop = Stop(f"stopped; resume with: {command}" if command else "stopped")
    try:
        with stop:
            LRECommandLine(args, stop)
    except BaseException as error:
        stop.end_processes()
        if isinstance(error, SIGTERMException):  # Lightning's, under SLURM
            stop.signum = signal.SIGTERM
        if stop.signum is not None:
            stop.say()
            return stop.status
        message = message_of(error)
        if message is None:
            raise
        if not isinstance(error, RankZeroError):
            print(f"error: {message}" + (f" (rank {rank()})" if rank() else ""), file=sys.stderr)
        if command and rank() == 0 and isinstance(error, NotWritten | OSError):
            print(f"after that, resume with: {command}", file=sys.stderr)
        return 2
    return 0


def next_command(args: ArgsType) -> str | None:
    """The command that goes on with a job that has ended early; None if there is nothing to go on with."""
    if not isinstance(args, list | None):
        return None
    job = next((a for a in (sys.argv[1:] if args is None else args) if a in (FIT, EVALUATE, DATASET)), None)
    return None if job is None else command_line(args, resume=job == FIT)


def message_of(error: BaseException) -> str | None:
    """What to print of an exception; None where it is no mistake of the user's, nor a write that failed."""
    if isinstance(error, LREError):
        return "\n".join(map(printable, getattr(error, "lines", (str(error),))))
    if isinstance(error, MisconfigurationException):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{repr(error.filename) if error.filename else 'a file'} cannot be written: {error.strerror}"
    if isinstance(error, RuntimeError) and LOST.search(str(error)):
        return "another process of this run has ended: its own error is the reason"
    if isinstance(error, ProcessRaisedException):  # by a process that Lightning has forked or spawned
        lines = str(error).strip().splitlines()
        raised = max((i for i, line in enumerate(lines) if line.startswith("lre_lightning.")), default=None)
        return None if raised is None else "\n".join(lines[raised:]).partition(": ")[2]
    return None
