"""The command line within the process of the test."""

import sys

import pytest

from lre_lightning.callbacks import AttributeLens, ResultsFigures
from lre_lightning.cli import main
from lre_lightning.commands.command import Command

QUICK = ["--trainer.accelerator=cpu", "--trainer.enable_progress_bar=false"]
QUIET = [*QUICK, "--trainer.logger=false"]
PLOTS = AttributeLens, ResultsFigures
EMPTY = '<svg xmlns="http://www.w3.org/2000/svg"/>', b"png"


def without_plots(monkeypatch):
    """Leave out figures, which take longer than fits of the toy: callbacks that plot them, and those of pages."""
    monkeypatch.setattr(Command, "callbacks", tuple(kind for kind in Command.callbacks if kind not in PLOTS))
    monkeypatch.setattr("lre_lightning.report.page.plot", lambda picture, salt="": EMPTY)


def lre(*args):
    """Run the command line without figures, and return its status."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(sys, "argv", ["lre"])
        monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
        without_plots(monkeypatch)
        try:
            return main([str(argument) for argument in args])
        except SystemExit as stopped:  # by the parser
            return stopped.code or 0
