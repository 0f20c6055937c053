"""How threads wait is said before torch is loaded, unless the user has said it."""

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
