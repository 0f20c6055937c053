"""The command line: Lightning's own, with this project's module, datamodule and defaults."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import ArgsType, LightningArgumentParser, LightningCLI

from lre_lightning.callbacks import LREFiles, RelationProgressBar, ResultsTable
from lre_lightning.checkpoints import read_hyperparameters
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.module import LREModule

DEFAULT_ROOT_DIR = "lre_runs"

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

HARMLESS_WARNINGS = (
    # Tokenizing here takes less than starting workers would.
    ".*does not have many workers.*",
    # Checkpoints are meant to be in the run's folder, which a second run or a resumed one finds there.
    ".*Checkpoint directory .* exists and is not empty.*",
    # Nothing is optimized.
    ".*`LightningModule.configure_optimizers` returned `None`.*",
    # A fit ends after its last relation.
    ".*`max_epochs` was not set.*",
)


class LRECommandLine(LightningCLI):
    """`fit` and `validate`, with the LM named once and what a checkpoint remembers as defaults.

    With ``--ckpt_path`` every option of the model and the data that is not given explicitly, on the command line or
    in a config file, is taken from the checkpoint: explicit options win.
    """

    def __init__(self, args: ArgsType = None) -> None:
        super().__init__(
            LREModule,
            RelationDataModule,
            args=args,
            trainer_defaults=TRAINER_DEFAULTS
            | {"callbacks": [RelationProgressBar(leave=False), ResultsTable(), LREFiles()]},
            save_config_kwargs={"overwrite": True},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"prog": "lre", "description": "Linear relational embeddings of transformer language models."},
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """`fit` and `validate` with Lightning's arguments."""
        inherited = LightningCLI.subcommands()
        return {name: inherited[name] for name in ("fit", "validate")}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Name the LM once, and keep checkpoints in the run's folder under fixed names."""
        parser.link_arguments("model.name_or_path", "data.tokenizer")
        parser.link_arguments("model.revision", "data.tokenizer_revision")
        parser.link_arguments("model.trust_remote_code", "data.trust_remote_code")
        parser.add_lightning_class_args(ModelCheckpoint, "checkpoint")
        parser.set_defaults(
            {"checkpoint.save_last": True, "checkpoint.save_top_k": 0, "checkpoint.enable_version_counter": False}
        )
        parser.link_arguments("trainer.default_root_dir", "checkpoint.dirpath", compute_fn=checkpoint_folder)

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        """Parse, then fill in from the checkpoint what was not given explicitly."""
        super().parse_arguments(parser, args)
        name = self.config["subcommand"]
        config = self.config[name]
        if not config.ckpt_path:
            return
        path = find_checkpoint(config.ckpt_path, Path(config.checkpoint.dirpath))
        if path is None and name == "fit":
            print(f"No checkpoint in {config.checkpoint.dirpath} yet: starting from the first relation.")
            config.ckpt_path = None
            return
        if path is None:
            raise LREError(f"there is no checkpoint in {config.checkpoint.dirpath}: run fit first, or give its path")
        explicit = parser.parse_args(args, defaults=False)[name]
        remembered = read_hyperparameters(path)
        for section in ("model", "data"):
            given = vars(explicit.get(section) or {})
            config[section].update({key: value for key, value in remembered[section].items() if key not in given})
        config.data.tokenizer = config.model.name_or_path
        config.ckpt_path = str(path)

    def _parse_ckpt_path(self) -> None:
        """Done in `parse_arguments`; Lightning's own lets a checkpoint override explicit options."""


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
