"""The subcommand ``leaderboard``."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.report.console import show_tables
from lre_lightning.report.leaderboard import make_leaderboard
from lre_lightning.sharing.index import RECORDS
from lre_lightning.sharing.places import find


class Leaderboard(Command):
    """Compare how linear the relations of several LMs are.

    A page and CSV files of LMs by the scores of their LREs, and of relations by LM, from collections and runs.
    """

    name = "leaderboard"
    needs_lm = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        places = "collections: folders, hub names, or 'demo'; or folders of runs"
        parser.add_argument("collections", nargs="+", type=str, help=places)
        parser.add_argument("--out", type=str, default="lre_leaderboard", help="folder for index.html and the files")
        parser.add_argument("--title", type=str | None, default=None, help="title of the page")

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        given = [source if Path(source).exists() else find(source)[0].fetch(RECORDS) for source in options.collections]
        page, tables = make_leaderboard(given, options.out, options.title)
        show_tables(tables[:1], page.parent / "tables")
        print(f"Leaderboard: {page}")
