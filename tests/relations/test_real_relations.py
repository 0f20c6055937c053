"""The 47 relations of the paper with the GPT-2 tokenizer and a tiny LM that knows none of their facts."""

import csv
import os
from collections import Counter
from pathlib import Path

import pytest
import torch

from lre_lightning.cli import main

VARIABLES = ("LRE_RELATIONS_DIR", "LRE_TOKENIZERS_DIR")


@pytest.mark.skipif(
    not all(os.environ.get(name) for name in VARIABLES),
    reason=f"needs {' and '.join(VARIABLES)}: the 47 relations, and a folder that contains gpt2/",
)
def test_a_fit_reads_all_relations_and_reports_each_as_not_scored(tmp_path, capfd, monkeypatch):
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=2, n_head=2)).save_pretrained("model")
    AutoTokenizer.from_pretrained(Path(os.environ["LRE_TOKENIZERS_DIR"]) / "gpt2").save_pretrained("model")
    options = ["--data.trials=1", "--data.selection.max_samples=17", "--trainer.enable_progress_bar=false"]
    main(["fit", "--model.name_or_path=model", *options])
    rows = list(csv.DictReader((tmp_path / "lre_runs" / "fit_results.csv").open()))
    assert Counter(row["category"] for row in rows) == {"bias": 7, "commonsense": 8, "factual": 26, "linguistic": 6}
    assert all(row["layer"] == "" and int(row["known"]) < 8 for row in rows)
    shown = capfd.readouterr().out
    assert shown.startswith("None of the 47 relations is scored: the LM knows ")
