"""A table of one's own and a template, the whole way: every subcommand takes the template for the relation's."""

import re

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
    run("validate", *QUICK, "--ckpt_path=last")
    run("predict", *QUICK, "colour colour thing3")
    run("edit", *QUICK, "colour colour thing3", "--target=thing6", "--samples=0", "--max_new_tokens=1")
    run("report", "lre_runs", "--out=report")
    run("dataset", *fit)
    run("evaluate", *fit, "--n_shots=[2]")
    run("push", "lre_runs", "me/colours")
    assert "colour│colour⟦thing0⟧" in printed["data"]
    assert re.search(r"mine +\w+ +thing3 +white ", printed["predict"])
    assert re.search(r"greedy +white +blue", printed["edit"])
    records = {name: read_records([f"lre_evaluation/{name}"]) for name in ("main", "n2", "bare")}
    assert {name: {(r.template, r.n_shot) for r in some} for name, some in records.items()} == {
        "main": {(TEMPLATE, 4)},
        "n2": {(TEMPLATE, 2)},
        "bare": {("{}", 4)},
    }
    assert csv_rows(table / "report/tables/hyperparameters.csv")[0]["relation"] == "mine"
    assert (table / "lre_evaluation/report/tables/mode_switch.csv").is_file()
    shared = LRECollection.from_pretrained("me/colours")
    assert shared["mine"].origin.template == TEMPLATE
