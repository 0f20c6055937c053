"""A table of one's own and a template, the whole way: every subcommand takes the template for the relation's."""

import re
from pathlib import Path

import pytest

from lre_lightning.records.files import read_records
from lre_lightning.sharing.collection import LRECollection
from tests.helpers.command import QUICK, lre
from tests.helpers.records import csv_rows
from tests.helpers.toy import OBJECTS, SUBJECTS, write_toy_model

TEMPLATE = "colour colour {}"


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A folder with a table of twelve facts without templates, and the toy that knows them."""
    root = tmp_path_factory.mktemp("own")
    write_toy_model(root / "model")
    rows = [f"{subject},{OBJECTS[i % 4]}" for i, subject in enumerate(SUBJECTS[:12])]
    (root / "mine.csv").write_text("\n".join(["subject,object", *rows]) + "\n")
    return root


def test_a_given_template_is_the_relations_everywhere(table, hub, monkeypatch, capsys):
    monkeypatch.chdir(table)
    data = ["--data.source=mine.csv", f"--data.prompts.template={TEMPLATE}", "--data.n_shot=4"]
    fit = [*QUICK, "--model.name_or_path=model", *data, "--data.trials=1", "--model.betas=[1.0]"]
    printed = {}

    def run(name, *args):
        assert lre(name, *args) == 0, capsys.readouterr().err
        printed[name] = capsys.readouterr().out

    run("data", *data, "--data.tokenizer=model", "--prompts=1")
    run("fit", *fit)
    run("validate", *QUICK)
    run("predict", *QUICK, "colour colour thing3")
    run("edit", *QUICK, "colour colour thing3", "--target=thing6", "--samples=0", "--max_new_tokens=1")
    run("report", "lre_runs", "--out=report")
    run("dataset", *fit)
    run("evaluate", *fit, "--n_shots=[2]")
    run("push", "lre_runs", "me/colours")
    assert "colour│colour⟦thing0⟧" in printed["data"]
    assert re.search(r"thing3 +mine +\w+ +1\.00 +white ", printed["predict"])
    assert re.search(r"greedy +white +blue", printed["edit"])
    records = {name: read_records([f"lre_evaluation/{name}"]) for name in ("main", "n2", "bare")}
    assert {name: {(r.template, r.n_shot) for r in some} for name, some in records.items()} == {
        "main": {(TEMPLATE, 4)},
        "n2": {(TEMPLATE, 2)},
        "bare": {("{}", 4)},
    }
    assert "1 LRE, " in printed["push"]
    assert len([*Path("lre_runs/lightning_logs").iterdir()]) == 2  # of fit and validate
    assert not Path("lre_runs/config.yaml").exists()
    assert not (table / "report/tables/categories.csv").exists()  # there is none
    assert csv_rows(table / "report/tables/hyperparameters.csv")[0]["relation"] == "mine"
    assert (table / "lre_evaluation/report/tables/mode_switch.csv").is_file()
    shared = LRECollection.from_pretrained("me/colours")
    assert shared["mine"].origin.template == TEMPLATE
    assert "1 linear relational embedding (LRE) of the language model" in shared.card


def test_too_few_facts_are_counted_before_the_lm_is_loaded_and_after_a_count(table, monkeypatch, capsys):
    monkeypatch.chdir(table)
    options = ["--model.name_or_path=model", "--data.source=mine.csv", f"--data.prompts.template={TEMPLATE}"]
    few = "mine: 12 samples, 8 of them examples, 4 left to test"
    assert lre("dataset", *QUICK, *options, "--trainer.default_root_dir=few") == 0
    assert f"Not scored: {few}, 4 known: 8 that the LM knows are needed; lower --data.n_shot" in capsys.readouterr().out
    assert lre("dataset", *QUICK, *options, "--data.n_shot=6", "--trainer.default_root_dir=few") == 0
    assert "Not scored" not in capsys.readouterr().out
    monkeypatch.setattr("lre_lightning.models.frozen.LanguageModel.from_pretrained", None)  # it would be called
    for command in ("fit", "evaluate"):
        assert lre(command, *QUICK, *options, "--trainer.default_root_dir=unused") == 2
        assert f"error: no relation can be scored, such as {few}: 8 that the LM knows" in capsys.readouterr().err
