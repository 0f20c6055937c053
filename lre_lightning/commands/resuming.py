"""Checkpoints on the command line: which file is meant, and whether its fit had the same options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pydoc import locate
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.options import declared, flatten
from lre_lightning.runs.checkpoints import read_hyperparameters
from lre_lightning.training.module import LREModule

SECTIONS: dict[str, type] = {"model": LREModule, "data": RelationDataModule}


def find_checkpoint(ckpt_path: str, folder: Path) -> Path | None:
    """Return the file that ``--ckpt_path`` names: ``last`` is the last one in `folder`, None if there is none yet."""
    if str(ckpt_path) == "last":
        path = folder / "last.ckpt"
        return path if path.is_file() else None
    path = Path(ckpt_path)
    if not path.is_file():
        raise LREError(f"checkpoint {str(ckpt_path)!r} does not exist: give a .ckpt file, or 'last'")
    return path


def explicit_options() -> list[str]:
    """Return the names of the options that a checkpoint must not set: it never says which class is imported."""
    return [
        "model.measures",
        *(f"{section}.{name}" for section, kind in SECTIONS.items() for name in declared(kind, "explicit")),
    ]


def check_options(checkpoint: Path, model: Mapping[str, Any], data: Mapping[str, Any]) -> None:
    """Refuse to resume a fit with other arguments of the module and the datamodule, except those declared harmless."""
    remembered = read_hyperparameters(checkpoint)
    measures = [_plain_measure(one) for one in model.get("measures") or ()]
    now = {"model": {**model, "measures": measures}, "data": data}
    for section, kind in SECTIONS.items():
        before, harmless = flatten(kind, remembered[section]), declared(kind, "harmless")
        for name, value in flatten(kind, now[section]).items():
            if before.get(name) != value and name not in harmless:
                raise LREError(
                    f"{str(checkpoint)!r} is of a fit with {section}.{name} {before.get(name)!r}, not {value!r}: "
                    "resume it with the same options, or give another --trainer.default_root_dir"
                )


def _plain_measure(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a measure as checkpoints hold it, given so or as the command line was told."""
    if "class_path" not in given:
        return given
    kind: Any = locate(given["class_path"])
    plain: dict[str, Any] = kind(**(given.get("init_args") or {})).plain()
    return plain


def add_ckpt_path(parser: LightningArgumentParser, use: str, default: str | None = "last") -> None:
    """Add the argument ``--ckpt_path``, whose help says what a checkpoint is used for."""
    help_ = f'the checkpoint to {use}: a file, or "last" for the last one in --trainer.default_root_dir'
    parser.add_argument("--ckpt_path", type=str | None, default=default, help=help_)


def add_weights_only(parser: LightningArgumentParser) -> None:
    """Add the argument ``--weights_only`` of the Trainer's methods."""
    help_ = "as in torch.load; null for this project's own checks of checkpoints, which let no code run"
    parser.add_argument("--weights_only", type=bool | None, default=None, help=help_)
