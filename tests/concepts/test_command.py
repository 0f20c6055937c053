"""`lre concepts` and its section of the report: what is written, resumed, read again, and shown."""

import json
from dataclasses import asdict, replace

import pytest

from lre_lightning.concepts import evaluation, probes
from lre_lightning.concepts.concepts import Concepts
from lre_lightning.concepts.record import (
    CONCEPT_SCORES,
    METHODS,
    ConceptRecord,
    read_concept_records,
    write_concept_records,
)
from lre_lightning.errors import LREError
from lre_lightning.report import page
from lre_lightning.report.chapters import chapters_of
from lre_lightning.report.concepts import concept_tables, concepts, plot_concepts, unscored
from lre_lightning.statistics.intervals import wilson
from tests.helpers.command import lre, without_plots
from tests.helpers.page import Page
from tests.helpers.records import csv_rows
from tests.helpers.toy import write_toy_model, write_toy_relations
from tests.report.examples import MAIN, by_model
from tests.report.test_report_page import write_run


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    root = tmp_path_factory.mktemp("toy")
    model, relations = write_toy_model(root / "model"), write_toy_relations(root / "relations")
    places = [f"--model.name_or_path={model}", f"--data.source={relations}", f"--trainer.default_root_dir={root}"]
    quick = ["--trainer.accelerator=cpu", "--data.n_shot=3", "--data.trials=2", "--rank=4"]
    return ["concepts", *places, *quick], root / "concepts"


def test_the_command_writes_results_and_resumes(command, monkeypatch, capsys):
    arguments, folder = command
    assert lre(*arguments) == 0
    printed = capsys.readouterr().out
    assert "Not scored: wrong colour, the LM knows training samples of fewer than 2 objects." in printed
    records = read_concept_records(folder.parent)
    assert [record.place[1:] for record in records] == [
        (name, trial) for name in ("half colour", "thing colour", "wrong colour") for trial in (0, 1)
    ]
    toy = records[2]
    assert (toy.trained, toy.tested, toy.objects, toy.edited) == (12, 12, 4, 12)
    assert toy.score("accuracy", "concepts") == toy.score("macro F1", "linear SVM") == 1  # the toy is exactly affine
    assert toy.options["rank"] == 4
    assert len(toy.origin["train"]) == 12
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.safetensors"))
    assert files == [f"{name}_colour/trial{i}.safetensors" for name in ("half", "thing") for i in (0, 1)]
    saved = Concepts.load(folder / files[2])
    assert saved.origin.relation == "thing colour"
    assert len(saved.objects) == 4
    rows = csv_rows(folder / "concepts_accuracy.csv")
    assert [row["relation"] for row in rows] == ["half colour", "thing colour", "all"]

    lines = (folder / "concepts.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["origin"]["trial"] == 0]
    (folder / "concepts.jsonl").write_text("\n".join(kept) + "\n")
    done = []
    monkeypatch.setattr(evaluation, "evaluate_trial", lambda *args: done.append(args[1].number) or original(*args))
    assert lre(*arguments) == 0
    assert done == [1, 1, 1]
    assert sorted((folder / "concepts.jsonl").read_text().splitlines()) == sorted(lines)
    done.clear()
    assert lre(*arguments, "--magnitude=1") == 0  # other options: measured again
    assert done == [0, 1] * 3
    assert len(read_concept_records(folder)) == 6


original = evaluation.evaluate_trial


def test_without_scikit_learn_and_with_a_bad_option(command, monkeypatch, capsys):
    assert lre(*command[0], "--magnitude=2", "--control_vectors=true") == 2  # at layer 0, the middle one
    assert "llama.cpp adds control vectors after the blocks from 1 on, not at layer 0" in capsys.readouterr().err
    assert lre(*command[0], "--object_layer=0") == 2
    assert "layer 0 is not below the object layer 0" in capsys.readouterr().err
    monkeypatch.setattr(probes, "find_spec", lambda name: None)
    assert lre(*command[0]) == 2
    assert 'pip install "lre-lightning[probes]"' in capsys.readouterr().err


def record(relation, trial, correct, causal, **changes):
    origin = {"model": "/models/demo", "relation": relation, "category": "factual", "trial": trial}
    """Probes have the same counts on raw and on standardized states."""
    made = ConceptRecord(origin, {}, "", objects=5, trained=20, tested=10, edited=8)
    counts = {"correct": (*correct, *correct[2:]), "causal": (*causal, *causal[2:])}
    each = {name: dict(zip(METHODS, found, strict=True)) for name, found in counts.items()}
    return replace(made, **{**each, "f1": dict.fromkeys(METHODS, 0.5), **changes})


NONE = ConceptRecord(
    {"model": "/models/demo", "relation": "ceo", "category": "factual", "trial": 0}, {}, "", 1, 3, 0, reason="too few"
)
RECORDS = [
    record("Colour", 0, (8, 6, 4, 2), (8, 4, 2, 0)),
    record("Colour", 1, (6, 6, 4, 2), (4, 4, 2, 0)),
    record("capital", 0, (10, 1, 0, 5), (0, 0, 0, 0), edited=0),
    NONE,
]


def test_tables():
    tables = dict(zip(CONCEPT_SCORES, concept_tables(RECORDS), strict=True))
    accuracy, causality = tables["accuracy"].rows, tables["causality"].rows
    assert accuracy[0] == ("capital", 5, 20, 10, (1.0, None), (0.1, None), (0.0, None), (0.5, None))
    assert accuracy[1][:4] == ("Colour", 5, 20, 10)
    assert accuracy[1][4] == (pytest.approx(0.7), pytest.approx(0.1 * 2**0.5))
    assert accuracy[2][0] == "all"
    assert accuracy[2][4] == (pytest.approx(0.85), pytest.approx(0.15 * 2**0.5))
    assert causality[0][4:] == (None,) * 4  # no edit
    assert causality[1][4] == (0.75, pytest.approx(0.25 * 2**0.5))
    assert causality[2][4] == (0.75, None)
    assert tables["macro F1"].rows[0][4] == (0.5, None)
    assert unscored(RECORDS) == "Not scored: ceo, too few."
    assert unscored(RECORDS[:3]) == ""
    assert [table.rows for table in concept_tables([NONE])] == [()] * 3


def test_probes_on_raw_states_are_shown_where_they_differ():
    assert concept_tables(RECORDS)[0].columns[4:] == METHODS[:4]
    for field in ("correct", "causal"):
        other = replace(RECORDS[0], **{field: {**getattr(RECORDS[0], field), "linear SVM": 1}})
        assert concept_tables([other, *RECORDS[1:]])[0].columns[4:] == METHODS[:5]


def test_a_relation_of_few_test_samples_has_scores_and_no_part_in_means():
    few = record("antonym", 0, (1, 1, 1, 1), (1, 1, 1, 1), tested=1, edited=1)
    with_few, without = (concept_tables(records) for records in ([*RECORDS, few], RECORDS))
    assert [table.rows[0][:1] for table in with_few] == [("antonym",)] * 3
    assert [table.rows[-1] for table in with_few] == [table.rows[-1] for table in without]
    assert with_few[0].caption.endswith("over the 2 of 3 relations with at least 5 test samples.")
    assert with_few[0].rows[0][4].interval == wilson(1, 1)
    assert concept_tables([few])[0].rows[-1][4] is None


def test_figure():
    figure = plot_concepts(RECORDS)
    accuracy, causality = figure.axes
    assert [tick.get_text() for tick in accuracy.get_yticklabels()] == ["capital", "Colour"]
    assert [bar.get_width() for bar in accuracy.containers[0]] == [1.0, pytest.approx(0.7)]
    assert [bar.get_width() for bar in causality.containers[0]] == [0.75]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*METHODS[:4], "random guess"]


def test_the_report_finds_records_beside_a_fit(tmp_path, monkeypatch):
    without_plots(monkeypatch)
    folder = write_run(tmp_path / "run", MAIN)
    other = replace(NONE, origin={**NONE.origin, "model": "other"})
    write_concept_records([*RECORDS, other], folder / "concepts.jsonl")
    text = page.make_report([folder, folder], tmp_path / "out").read_text()
    assert "Concepts" in Page(text).texts("h3")
    assert "Not scored: ceo, too few." in text
    assert (tmp_path / "out" / "tables" / "concepts_macro_f1.csv").is_file()
    assert (tmp_path / "out" / "figures" / "concepts.svg").is_file()
    assert "Concepts" not in [section.title for one in chapters_of(by_model(MAIN)) for section in one.sections]
    assert concepts(RECORDS).pictures[0].name == "concepts"


@pytest.mark.parametrize(
    "change",
    [
        {"origin": {}},
        {"tested": -1, "correct": {"concepts": 0}},
        {"correct": {"magic": 1}},
        {"correct": {"concepts": 11}},
        {"f1": {"concepts": 2.0}, "correct": {"concepts": 1}},
        {"objects": "many"},
    ],
)
def test_records_of_strangers(tmp_path, change):
    path = tmp_path / "concepts.jsonl"
    write_concept_records(RECORDS, path)
    assert read_concept_records(path) == read_concept_records(tmp_path) == RECORDS
    path.write_text(json.dumps(asdict(RECORDS[0]) | change) + "\n")
    with pytest.raises(LREError, match="has a line that is not a record of concepts"):
        read_concept_records(path)
