"""What the command line puts in place before its imports."""

import importlib
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lre_lightning import cli
from lre_lightning.openmp import BRIEF, SAID


@pytest.mark.parametrize(
    "given", [{}, {"OMP_WAIT_POLICY": "active"}, {"KMP_BLOCKTIME": "200"}, {"GOMP_SPINCOUNT": "9"}], ids=str
)
def test_the_command_line_lets_threads_spin_briefly_unless_told_otherwise(monkeypatch, given):
    for name in SAID:
        monkeypatch.setenv(name, "")  # so that what is set below is undone
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    commands = SimpleNamespace(main=lambda args: {name: os.environ[name] for name in SAID if name in os.environ})
    monkeypatch.setitem(sys.modules, "lre_lightning.commands.main", commands)
    assert cli.main(["fit"]) == (given or BRIEF)


def test_the_command_line_loads_torch_after_that():
    code = "import sys, lre_lightning.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_stand_in_for_a_module_gives_way_when_something_of_it_is_used(monkeypatch):
    later = cli.Later("colorsys")
    monkeypatch.setitem(sys.modules, "colorsys", later)
    assert importlib.import_module("colorsys") is later
    assert later.hamming is None
    assert not hasattr(later, "__file__")
    from colorsys import hsv_to_rgb

    assert hsv_to_rgb(0, 0, 1) == (1, 1, 1)
    assert sys.modules["colorsys"] is not later
