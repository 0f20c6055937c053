"""The subcommand ``predict``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from lre_lightning.commands.resuming import add_ckpt_path, add_weights_only
from lre_lightning.commands.validate import FromCheckpoint
from lre_lightning.errors import LREError, first_line

if TYPE_CHECKING:
    from lightning.pytorch.cli import LightningArgumentParser

    from lre_lightning.commands.command_line import LRECommandLine
    from lre_lightning.lens.lens import Lens


class Predict(FromCheckpoint):
    """Show what an LM knows about the subjects of texts."""

    name = "predict"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        add_ckpt_path(parser, "take the LREs from")
        add_weights_only(parser)
        parser.add_argument("texts", nargs="*", type=str, help="texts; one per line of standard input if none")
        parser.add_argument("--file", type=str | None, default=None, help="file with one text per line")

    @override
    def run(self, line: LRECommandLine) -> None:
        """Print the lenses, and write them as pictures, as a page and as data."""
        from lre_lightning.lens.files import write_lenses
        from lre_lightning.lens.lens import print_lenses

        options = line.options
        line.datamodule.texts += read_texts(options.texts, options.file)
        found = line.trainer.predict(
            line.model,
            datamodule=line.datamodule,
            ckpt_path=options.ckpt_path,
            weights_only=options.weights_only,
        )
        grids = cast("list[list[Lens]]", found)
        folder = Path(line.trainer.default_root_dir) / "lenses"
        print_lenses(grids)
        write_lenses(grids, folder)
        print(f"Every layer and token: {folder / 'lenses.html'}")


def read_texts(texts: Sequence[str], file: str | None) -> list[str]:
    """Return the given texts and those in a file, or if there are neither those of standard input.

    Args:
        texts: Texts.
        file: A file with one text per line; blank lines are left out.

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
