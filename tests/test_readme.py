"""What the README tells people to run does run."""

import re
import sys
from pathlib import Path

from lre_lightning.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_python_examples_run_after_a_fit(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lre"])
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    options = ["--data.relations=[country_capital_city]", "--data.trials=1", "--model.layers=[1, 2]"]
    assert main(["fit", *options, "--trainer.enable_progress_bar=false"]) == 0
    capsys.readouterr()
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 4
    exec(examples[0], {})
    asked, edited = capsys.readouterr().out.splitlines()
    assert "->" in asked
    assert asked.split("->")[1].strip() != edited.removeprefix("edited:").strip()
    exec(examples[1], {})
    assert "'metric': 'faithfulness', 'method': 'LRE'" in capsys.readouterr().out
    assert Path("layers.png").is_file()
    assert Path("report/index.html").is_file()
    found = {}
    exec(examples[2], found)
    assert found["rows"].column_names[:3] == ["text", "subject", "object"]
    exec(examples[3], {})
    assert "word sentiment" in capsys.readouterr().out


def test_every_path_in_the_layout_exists():
    layout = README.split("## The layout")[1].split("## ")[0]
    root = Path(__file__).parents[1]
    folder = ""
    for name in re.findall(r"`([\w./]+(?:\.py|/))`", layout.replace("lre_lightning.", "")):
        if name.startswith("lre_lightning/"):
            folder = "lre_lightning/"
        assert (root / name).exists() or (root / folder / name).exists(), name
