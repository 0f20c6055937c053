"""The Python examples and the links of the README and the docs."""

import re
import sys
from pathlib import Path

from lre_lightning.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_python_examples_run_after_a_fit(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lre"])
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    options = ["--data.relations=[country_capital_city]", "--data.trials=1", "--model.layers=[1, 2]"]
    assert main(["fit", *options, "--trainer.enable_progress_bar=false"]) == 0
    capsys.readouterr()
    examples = [code for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]
    assert len(examples) == 4
    exec(examples[0], {})
    asked, edited = capsys.readouterr().out.splitlines()
    assert "->" in asked
    assert asked.split("->")[1].strip() != edited.removeprefix("edited:").strip()
    exec(examples[1], {})
    assert "'metric': 'faithfulness', 'method': 'LRE'" in capsys.readouterr().out
    assert Path("layers.png").is_file()
    assert Path("report/index.html").is_file()
    exec(examples[2], {})
    assert "word sentiment" in capsys.readouterr().out
    found = {}
    exec(examples[3], found)
    assert found["rows"].column_names[:3] == ["text", "subject", "object"]


def test_links_and_paths_exist():
    for page in PAGES:
        for link in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), (page.name, link)
    architecture = (ROOT / "docs" / "architecture.md").read_text()
    for path in re.findall(r"`([\w/]+(?:/|\.py))`", architecture):
        assert (ROOT / path).exists() or (ROOT / "lre_lightning" / path).exists(), path
