"""The subcommand ``fit``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import add_ckpt_path, add_weights_only, check_options, find_checkpoint
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.runs.checkpoints import finished_trials, read_checkpoint, read_hyperparameters
from lre_lightning.runs.processes import process_index
from lre_lightning.storage.files import check_writable
from lre_lightning.storage.locks import FolderLock
from lre_lightning.training.options import check_enough

PROCESS_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK", "OMPI_COMM_WORLD_RANK"}
"""Environment variables that tell a process which something else has started its index."""

WRITTEN = (
    "fit.log",
    "fit_results.csv",
    "fit_results.jsonl",
    "validate_results.csv",
    "validate_results.jsonl",
    "fit_facts.csv",
    "fit_facts.parquet",
    "validate_facts.csv",
    "validate_facts.parquet",
    "subjects.json",
    "figures/layers.png",
    "figures/relations.png",
    "lenses/text*.png",
    "lenses/lenses.html",
    "lenses/lenses.json",
    "predictions/text*.png",
    "predictions/lenses.html",
    "predictions/lenses.json",
    "lres/*/trial*.safetensors",
    "lightning_logs/version_*/config.yaml",
    "lightning_logs/version_*/hparams.yaml",
    "lightning_logs/version_*/metrics.csv",
    "lightning_logs/version_*/events.out.tfevents.*",
    "checkpoints/last.ckpt",
)
"""The files that a fit, and commands that use it, write to its folder, in the order in which they are removed."""


class Fit(Command):
    """Estimate one LRE per relation and trial, and score it."""

    name = "fit"
    resumable = True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "resume the fit from", None)
        add_weights_only(parser)
        overwrite = "replace the earlier fit in the folder: remove the files that it wrote, and no others"
        parser.add_argument("--overwrite", action="store_true", help=overwrite)
        dry_run = "print what the fit will do and how long it takes, from a few prompts that are measured, and stop"
        parser.add_argument("--dry_run", action="store_true", help=dry_run)

    @override
    def shares_lm(self, options: Any) -> bool:
        return not options.dry_run

    @override
    def check(self, line: LRECommandLine) -> None:
        """Check that the folder can be used, and take the options of the checkpoint that the fit resumes from."""
        config = line.options
        if not config.dry_run:
            try_folders(Path(config.trainer.default_root_dir or "."), config.model.fitting.lre_dir)
        if not config.ckpt_path and SLURMEnvironment.detect() and int(os.environ.get("SLURM_RESTART_COUNT", 0)) > 0:
            config.ckpt_path = "last"  # SLURM has started the job again, as Lightning asks it to when its time is up
        folder = Path(config.checkpoint.dirpath)
        path = find_checkpoint(config.ckpt_path, folder) if config.ckpt_path else None
        if path is not None:
            line.take_options_of(path)
            data = RelationDataModule(**line.options.data.as_dict())
            fewer = fewer_trials(path, data)
            check_options(path, line.options.model.as_dict(), fewer.hparams)
        elif config.ckpt_path:
            if process_index() == 0:
                print(f"No checkpoint in {folder} yet: starting from the first relation.")
            config.ckpt_path = None

    @override
    def check_data(self, line: LRECommandLine) -> None:
        """Find mistakes in the data, and data of which nothing could be scored."""
        check_trials(line)

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        if options.dry_run:
            line.placed_lm()
            if line.trainer.is_global_zero:
                print(line.model.forecast(line.datamodule, line.trainer.world_size))
            return
        last, resumed = Path(options.checkpoint.dirpath) / "last.ckpt", options.ckpt_path
        if last.is_file() and not (resumed and last.samefile(resumed)):
            line.model.fitting.check_data(line.datamodule, line.model.measures)  # so that all options have been checked
            if options.overwrite:
                remove_fit(Path(line.trainer.default_root_dir))
            else:
                refuse_to_overwrite(last)
        options.overwrite = False  # in the run's config.yaml
        if resumed is not None and (fewer := fewer_trials(Path(resumed), line.datamodule)) is not line.datamodule:
            checkpoint = read_checkpoint(resumed)
            fewer.load_state_dict(checkpoint.get("RelationDataModule", {}))
            line.model.add_to(checkpoint["state_dict"])
            options.ckpt_path = None
        line.trainer.fit(
            line.model,
            datamodule=line.datamodule,
            ckpt_path=options.ckpt_path,
            weights_only=options.weights_only,
        )


def fewer_trials(checkpoint: Path, data: RelationDataModule) -> RelationDataModule:
    """Return the datamodule with the trials of a checkpoint's fit if they are fewer, to which the others are added."""
    trials = read_hyperparameters(checkpoint)["data"].get("trials")
    return data.changed(trials=trials) if isinstance(trials, int) and trials < data.trials else data


def check_trials(line: LRECommandLine) -> None:
    """Draw a trial of each relation before an LM is loaded."""
    data = RelationDataModule(**line.options.data.as_dict())
    check_enough([data.draw(relation, data.selection.first_trial) for relation in data.candidates()])


def try_folders(root: Path, lre_dir: str | None) -> None:
    """Check before an LM is loaded that a fit can run in a folder, and write LREs to another one if it is given."""
    for folder in (root, *([] if lre_dir is None else [Path(lre_dir)])):
        check_writable(folder)
    if not PROCESS_VARIABLES & os.environ.keys():  # otherwise the first process may hold the lock already
        FolderLock(root).look()


def refuse_to_overwrite(last: Path) -> None:
    """Refuse to fit beside the last checkpoint of another fit that has finished a trial."""
    done, total, model = finished_trials(last)
    if done and done == total:
        raise LREError(
            f"{str(last.parents[1])!r} has a fit of {model!r} whose {done} trials are all finished: replace it with "
            "--overwrite, add to it by more --data.trials and --ckpt_path last, or give another "
            "--trainer.default_root_dir"
        )
    if done:
        trials = f"{done} trials" if total is None else f"{done} of {total} trials"
        raise LREError(
            f"{str(last.parents[1])!r} has a fit of {model!r} with {trials} finished: resume it with --ckpt_path last, "
            "replace it with --overwrite, or give another --trainer.default_root_dir"
        )


def remove_fit(root: Path) -> None:
    """Remove the files that a fit has written to its folder, on the first process.

    The checkpoint is removed last: a folder where only some files have been removed still has a fit.
    """
    if process_index() != 0:
        return
    with FolderLock(root):
        for path in [path for pattern in WRITTEN for path in sorted(root.glob(pattern))]:
            path.unlink()
            for folder in path.relative_to(root).parents:
                if folder.name and not any((root / folder).iterdir()):
                    (root / folder).rmdir()
