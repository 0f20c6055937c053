"""The examples: a project beside the built wheel, scripts, and notebooks, whose outputs are those that they show."""

import ast
import io
import json
import logging
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, built_wheel

LIKELIEST = 0.3
"""An accuracy above that of always answering the most frequent object of the example's relation."""

IN_ONE_PROCESS = """
import gc, runpy, sys
gc.disable()  # among what stays
import lightning
before = set(sys.modules)
import lre_lightning.datamodules
assert not {"transformers", "matplotlib"} & {name.split(".")[0] for name in set(sys.modules) - before}
import datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks
for module in (datamodules, callbacks, lre_lightning.datamodules, lre_lightning.callbacks): print(module.__file__)
for script in ("probe.py", "plain_loop.py"):
    sys.argv[0] = script
    runpy.run_path(script, run_name="__main__")
"""

ON_TWO_DEVICES = """
import runpy, sys
import lightning
trainer = lightning.Trainer
lightning.Trainer = lambda **options: trainer(**options | {"strategy": "ddp_fork"})  # processes without new imports
sys.path.insert(0, ".")
sys.argv = ["probe.py", "--epochs", "4", "--devices", "2"]
runpy.run_path("probe.py", run_name="__main__")
"""


@pytest.mark.slow
def test_the_project_and_the_wheel_have_packages_of_the_same_names_and_train_alike(tmp_path, tmp_path_factory):
    """In a copy of the project, with the unpacked wheel before other packages."""
    with zipfile.ZipFile(built_wheel(tmp_path_factory)) as archive:
        archive.extractall(tmp_path / "site")
    project = shutil.copytree(
        ROOT / "examples/linear_probe", tmp_path / "linear_probe", ignore=shutil.ignore_patterns("__pycache__")
    )
    environment = {key: value for key, value in os.environ.items() if key != "LRE_RELATIONS_DIR"}
    environment |= {"PYTHONPATH": str(tmp_path / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", IN_ONE_PROCESS, "--epochs", "4"]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    files = [Path(line).parent for line in ended.stdout.splitlines()[:4]]
    folders = ("linear_probe", "linear_probe", "site/lre_lightning", "site/lre_lightning")
    assert files == [
        tmp_path / folder / name for folder, name in zip(folders, ("datamodules", "callbacks") * 2, strict=True)
    ]
    with_trainer, without = re.findall(r"accuracy (\d\.\d+)", ended.stdout)
    assert with_trainer == without  # the same steps
    assert float(with_trainer) > LIKELIEST


@pytest.mark.slow
def test_a_probe_is_trained_on_two_devices(launch, tmp_path):
    project = shutil.copytree(ROOT / "examples/linear_probe", tmp_path / "linear_probe")
    ended = launch(project, code=ON_TWO_DEVICES)
    assert ended.status == 0, ended.error
    assert "on 2 device(s)" in ended.output
    (accuracy,) = re.findall(r"accuracy (\d\.\d+)", ended.output)
    assert float(accuracy) > LIKELIEST


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """An empty folder to work in, the bundled relations, and the logging of before afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    yield
    logger.setLevel(level)


@pytest.fixture
def printed(alone, monkeypatch, capsys):
    """Return a function that runs a script and returns what it prints."""

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def numbers(line):
    return [float(number) for number in re.findall(r"\d+\.\d+|nan", line)]


@pytest.mark.real
def test_adjectives_of_countries_give_capitals_and_their_names_in_capitals_do_not(printed):
    rows = printed("other_names/read.py").splitlines()[2:]
    name, adjective, french, capitals, city = (list(map(int, re.findall(r"\d+", row))) for row in rows)
    assert (name[0], max(name[1:])) == (14, max(adjective[1:]))
    assert max(adjective[1:]) > 2 * max(capitals[1:])
    assert french[0] < 14
    assert max(city[1:]) < max(adjective[1:]) - 4


def test_lres_of_an_lm_with_rounded_weights(printed):
    _, whole, eight, two = printed("rounded_weights/compare.py", "--bits", "8", "2").splitlines()
    assert numbers(whole)[0] > 0.8
    assert numbers(whole)[2] == 1.0
    assert numbers(eight) == pytest.approx(numbers(whole), abs=0.1)
    assert "not scored" in two  # the LM knows too little


def test_an_edit_of_full_strength_reaches_its_target(printed):
    tables = printed("steering/steer.py").strip().split("\n\n")
    assert len(tables) == 2
    for table in tables:
        _, strengths, own, reached, another = table.splitlines()
        whole = numbers(strengths).index(1.0)
        assert numbers(own)[0] == 1.0
        assert numbers(reached)[whole] > 0.6
        assert [sum(found) for found in zip(*map(numbers, (own, reached, another)), strict=True)] == pytest.approx(
            [1.0] * 7, abs=0.02
        )


def test_facts_that_are_learned_are_watched(printed):
    true, first, second = printed("learned_facts/train.py", "--epochs", "2").splitlines()
    assert min(numbers(true)) > 0.6
    assert first.startswith("epoch  1")
    assert second.startswith("epoch  2")
    assert numbers(second)[0] < 0.5  # of the false facts, so far


def shown_by(code, namespace):
    """Run a cell, and return what it prints and the value of its last expression as text."""
    tree = ast.parse(code)
    last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
    with redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "cell", "exec"), namespace)
        value = None if last is None else eval(compile(last, "cell", "eval"), namespace)
    return out.getvalue() + ("" if value is None else repr(value))


def words(text):
    """Leave out of a text what differs between machines: numbers and sizes of figures."""
    return re.sub(r"<(?:Figure|Picture).*?>|[\d.\s]+", " ", text).split()


def notebooks():
    for path in sorted((ROOT / "examples/notebooks").glob("*.ipynb")):
        marks = [pytest.mark.real] if "smollm2" in path.read_text(encoding="utf-8") else []
        yield pytest.param(path, id=path.stem, marks=marks)


@pytest.mark.parametrize("path", notebooks())
def test_notebooks_show_what_they_print(path, alone):
    namespace = {}
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    for cell in cells:
        texts = [output.get("text") or output["data"]["text/plain"] for output in cell["outputs"]]
        assert words(shown_by("".join(cell["source"]), namespace)) == words("".join("".join(text) for text in texts))
