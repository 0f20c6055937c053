"""The example project beside the built wheel: packages of the same names, and the same training everywhere."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, built_wheel

LIKELIEST = 0.3
"""An accuracy above that of always answering the most frequent object of the example's relation."""

IN_ONE_PROCESS = """
import runpy, sys
import datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks
for module in (datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks): print(module.__file__)
for script in ("probe.py", "plain_loop.py"):
    sys.argv[0] = script
    runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    """Return a function that runs Python in a copy of the project, with the unpacked wheel before other packages."""
    root = tmp_path_factory.mktemp("example")
    with zipfile.ZipFile(built_wheel(tmp_path_factory)) as archive:
        archive.extractall(root / "site")
    ignored = shutil.ignore_patterns("__pycache__")
    project = shutil.copytree(ROOT / "examples/linear_probe", root / "linear_probe", ignore=ignored)
    environment = {key: value for key, value in os.environ.items() if key != "LRE_RELATIONS_DIR"}
    environment |= {"PYTHONPATH": str(root / "site"), "OMP_NUM_THREADS": "1"}

    def run(*arguments):
        command = [sys.executable, *arguments, "--epochs", "4"]
        ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=240)
        assert ended.returncode == 0, ended.stderr
        return root, ended.stdout

    return run


@pytest.mark.slow
def test_the_project_and_the_wheel_have_packages_of_the_same_names_and_train_alike(output):
    root, text = output("-c", IN_ONE_PROCESS)
    files = [Path(line).parent for line in text.splitlines()[:4]]
    folders = ("linear_probe", "linear_probe", "site/lre_lightning", "site/lre_lightning")
    assert files == [
        root / folder / name for folder, name in zip(folders, ("datamodules", "callbacks") * 2, strict=True)
    ]
    with_trainer, without = re.findall(r"accuracy (\d\.\d+)", text)
    assert with_trainer == without  # the same steps
    assert float(with_trainer) > LIKELIEST


@pytest.mark.slow
def test_a_probe_is_trained_on_two_devices(output):
    _, text = output("probe.py", "--devices", "2")
    assert "on 2 device(s)" in text
    (accuracy,) = re.findall(r"accuracy (\d\.\d+)", text)
    assert float(accuracy) > LIKELIEST
