"""The subcommand ``cache``: what was converted for a faster start."""

from __future__ import annotations

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.storage.cache import clear, converted_folder


class Cache(Command):
    """Show how much is kept of converted LMs, or remove it."""

    name = "cache"
    needs_lm = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--clear", type=bool, default=False, help="remove it")

    @override
    def run(self, line: LRECommandLine) -> None:
        folder = converted_folder()
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        if line.options.clear:
            clear()
        print(f"{'removed' if line.options.clear else 'kept'}: {size / 1e6:.1f} MB in {folder}")
