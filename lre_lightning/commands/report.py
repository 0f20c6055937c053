"""The subcommand ``report``."""

from __future__ import annotations

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.report.page import make_report


class Report(Command):
    """Write tables and figures of one or several runs."""

    name = "report"
    needs_lm = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        results = (
            "folders of runs or fit_results.jsonl files; runs of one LM are merged, and those of several LMs are "
            "compared"
        )
        parser.add_argument("results", nargs="+", type=str, help=results)
        parser.add_argument("--out", type=str, default="lre_report", help="folder for index.html and the files")
        parser.add_argument("--title", type=str | None, default=None, help="title of the page; the LMs' names if null")
        column = (
            "tables, such as CSV files, with columns relation, subject or object, and columns of numbers, such as "
            "frequencies; these are set beside the scores, and beside single facts if the fit has the measure Facts"
        )
        parser.add_argument("--column", nargs="+", type=str, default=[], help=column)

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        print(f"Report: {make_report(options.results, options.out, options.title, options.column)}")
