"""The subcommand ``jlens``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.datamodules import TextDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.files import OWN, PLAIN, PUBLISHED
from lre_lightning.jlens.lens import JacobianLens, error_text
from lre_lightning.jlens.module import JacobianLensModule
from lre_lightning.runs.checkpoints import read_checkpoint
from lre_lightning.storage.files import check_writable


class JLens(Command):
    """Estimate the Jacobian lens of an LM from texts.

    The lens is a matrix for every layer: how the LM's output changes with the hidden state, on average over texts. It
    goes to ``jacobian_lens.safetensors`` in --trainer.default_root_dir, from where `lre predict --jlens` takes it. The
    same command resumes an estimate that was stopped.
    """

    name = "jlens"
    resumable = True
    module = JacobianLensModule
    data = TextDataModule
    callbacks = ()

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        published = f"write Jacobians of blocks in float16 for others too: {PUBLISHED}, or {PLAIN}"
        parser.add_argument("--published", type=Literal["pt", "safetensors"] | None, help=published)
        parser.set_defaults({"trainer.default_root_dir": "lre_jlens"})

    @override
    def shares_lm(self, options: Any) -> bool:
        return True

    @override
    def check(self, line: LRECommandLine) -> None:
        """Check that the folder can be used, and has no checkpoint of another kind."""
        root, last = Path(line.options.trainer.default_root_dir), _last(line)
        check_writable(root)
        if last.is_file() and list(read_checkpoint(last, mapped=True).get("state_dict", {})) != ["_extra_state"]:
            raise LREError(f"{str(root)!r} has a run of another kind: give another --trainer.default_root_dir")

    @override
    def check_data(self, line: LRECommandLine) -> None:
        TextDataModule(**line.options.data.as_dict()).setup()

    @override
    def run(self, line: LRECommandLine) -> None:
        last, root = _last(line), Path(line.trainer.default_root_dir)
        resumed = str(last) if last.is_file() else None
        line.trainer.fit(line.model, datamodule=line.datamodule, ckpt_path=resumed)
        if not line.trainer.is_global_zero:
            return
        lens = JacobianLens.load(root / OWN)
        if line.options.published:
            lens.save_published(root / (PUBLISHED if line.options.published == "pt" else PLAIN))
        errors = [error for error in map(lens.standard_error, lens.layers) if error is not None]
        spread = f", {error_text(errors)}" if errors else ""
        print(f"Jacobian lens of {lens.n_prompts} texts at {len(lens.layers)} layers{spread}: {root / OWN}")


def _last(line: LRECommandLine) -> Path:
    """Return the path of the last checkpoint."""
    return Path(line.options.checkpoint.dirpath) / "last.ckpt"
