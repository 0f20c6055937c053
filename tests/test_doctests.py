"""Run the library's doctests, each module under its installed name (`datamodules` is `lre_lightning.datamodules`)."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {
    "lre_lightning": "lre_lightning",
    "datamodules": "lre_lightning.datamodules",
    "callbacks": "lre_lightning.callbacks",
}


def module_names():
    """Name the modules that hold an example, without importing any."""
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if ">>> " in path.read_text(encoding="utf-8"):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                yield ".".join([package, *parts]).removesuffix(".__init__")


def test_there_are_doctests():
    assert list(module_names())


@pytest.mark.parametrize("name", list(module_names()))
def test_doctests(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # examples may write files
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)  # and name bundled relations
    module = importlib.import_module(name)
    failed, attempted = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert attempted, f"{name} holds '>>>' where doctest does not look"
    assert not failed, "see the captured output"
