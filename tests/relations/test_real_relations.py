"""The 47 relations and the real GPT-2 tokenizer, with an LM that knows none of their facts."""

import csv
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

CLI = Path(__file__).parents[2] / "cli.py"
VARIABLES = ("LRE_RELATIONS_DIR", "LRE_TOKENIZERS_DIR")
needs_both = pytest.mark.skipif(
    not all(os.environ.get(name) for name in VARIABLES),
    reason=f"needs {' and '.join(VARIABLES)}: the 47 relations, and a folder that holds gpt2/",
)


@needs_both
@pytest.mark.timeout(600)
def test_a_fit_reads_all_relations_and_reports_each_as_not_scored(tmp_path):
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = tmp_path / "model"
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2)).save_pretrained(model)
    AutoTokenizer.from_pretrained(Path(os.environ["LRE_TOKENIZERS_DIR"]) / "gpt2").save_pretrained(model)
    options = [f"--model.name_or_path={model}", "--data.trials=1", "--trainer.enable_progress_bar=false"]
    command = [sys.executable, str(CLI), "fit", *options]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=560)
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader((tmp_path / "lre_runs" / "fit_results.csv").open()))
    assert len(rows) == 47
    assert all(row["layer"] == "" and int(row["known"]) < 8 for row in rows)
    samples = Counter()
    for row in rows:
        samples[row["category"]] += int(row["samples"])
    assert samples == {"bias": 213, "commonsense": 374, "factual": 9696, "linguistic": 806}
    assert "Not scored, because the LM knows too few of their facts" in result.stdout
    assert result.stdout.count("not scored") == 2 * 47
    assert "arning" not in result.stdout + result.stderr
