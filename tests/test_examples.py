"""The example project: an environment of its own, with the built wheel and top-level packages of the same names."""

import os
import re
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, copy_of_the_tree, run

LIKELIEST = 0.3
"""Above what the most frequent object of the example's relation would get."""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The interpreter of a new environment in which the wheel is installed, beside this one's other packages."""
    tree, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("dist")
    copy_of_the_tree(tree)
    run("-m", "build", "--no-isolation", "--wheel", "--outdir", out, tree, cwd=out)
    (wheel,) = out.glob("*.whl")
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)}))
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", site, wheel, cwd=home)
    # A path in a .pth file is only searched: the editable install of this environment is not in force there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin" / "python"


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project") / "linear_probe"
    return shutil.copytree(ROOT / "examples/linear_probe", folder, ignore=shutil.ignore_patterns("__pycache__"))


def output(python, folder, *arguments):
    hidden = ("PYTHONPATH", "LRE_RELATIONS_DIR")
    environment = {key: value for key, value in os.environ.items() if key not in hidden} | {"OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [python, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_project_has_packages_of_the_same_names_and_the_wheels_beside_them(python, project):
    code = (
        "import datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks\n"
        "for m in (datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks): print(m.__file__)"
    )
    files = [Path(line) for line in output(python, project, "-c", code).splitlines()]
    assert files[:2] == [project / name / "__init__.py" for name in ("datamodules", "callbacks")]
    for file in files[2:]:
        assert file.is_relative_to(python.parents[1])
        assert not file.is_relative_to(ROOT)


@pytest.mark.slow
def test_a_probe_is_trained_alike_on_several_devices_and_without_a_trainer(python, project):
    commands = (["probe.py"], ["probe.py", "--devices", "2"], ["plain_loop.py"])
    found = [output(python, project, *command, "--epochs", "6") for command in commands]
    accuracies = [float(re.search(r"accuracy (\d\.\d+)", text)[1]) for text in found]
    assert "on 2 device(s)" in found[1]
    assert found[1].count("accuracy") == 1
    assert min(accuracies) > LIKELIEST
    assert accuracies[0] == accuracies[2]  # the same steps
