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
        subject = "print what is read at this part of each text; by default where the relation's lens is most certain"
        parser.add_argument("--subject", type=str | None, default=None, help=subject)

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, and read the texts."""
        super().check(line)
        options = line.options
        options.texts = [*options.data.loader.texts, *read_texts(options.texts, options.file)]
        for text in options.texts:
            if options.subject is not None and options.subject not in text:
                raise LREError(f"the text {text!r} does not contain the subject {options.subject!r}")

    @override
    def run(self, line: LRECommandLine) -> None:
        """Print the lenses, and write them as pictures, as a page and as data."""
        from lre_lightning.lens.files import write_lenses
        from lre_lightning.lens.lens import print_lenses, subject_token

        options = line.options
        line.datamodule.texts = options.texts
        found = line.trainer.predict(
            line.model,
            datamodule=line.datamodule,
            ckpt_path=options.ckpt_path,
            weights_only=options.weights_only,
        )
        grids = cast("list[list[Lens]]", found)
        folder = Path(line.trainer.default_root_dir) / "lenses"
        subject, tokenizer = options.subject, line.datamodule.tokenizer
        places = None if subject is None else [subject_token(tokenizer, text[0].text, subject) for text in grids]
        print_lenses(grids, places)
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
