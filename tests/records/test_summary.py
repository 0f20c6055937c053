"""Summaries of results, as a file and as a table, on counts whose answers can be seen by eye."""

import csv
import math
import re
from dataclasses import replace

import pytest

from lre_lightning.measures.whole_objects import WHOLE_OBJECT_SCORES
from lre_lightning.records.files import write_records
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.summary import B_ALONE, CSV_COLUMNS, NOT_KEPT, Results, summarize, write_csv
from lre_lightning.report.console import print_results
from tests.helpers.records import csv_rows, majorities, small_record, unscored_record, whole_objects


def record(trial=0, relation="capital", **changes):
    return small_record(trial, relation, **{"layer": 0, "rank": 4, **changes})


MAJORITIES = ["majority of training", "majority of data"]


def test_answers_that_are_the_same_for_all_subjects_stand_beside_the_scores(tmp_path, capsys, monkeypatch):
    grid = {"betas": (0.0, 2.0), "faithful": ((9, 10), (3, 8)), "measures": {"majorities": majorities(2, 4)}}
    path, records = tmp_path / "results.csv", [record(**grid), record(1, **{**grid, "faithful": ((9, 10), (5, 8))})]
    write_csv(records, path)
    assert [[row[name] for name in (B_ALONE, *MAJORITIES)] for row in csv_rows(path)] == [
        ["0.3", "0.2", "0.4"],
        ["0.5", "0.2", "0.4"],
    ]
    monkeypatch.setenv("COLUMNS", "150")
    print_results(summarize(records))
    head, line = (" ".join(found.split()) for found in capsys.readouterr().out.splitlines()[2:5:2])
    assert head.endswith("random guess b alone majority of training majority of data")
    assert line.endswith("0.25 0.40 0.20 0.40")


def test_a_measure_of_the_users_is_a_column_by_its_tallies_alone(tmp_path, capsys, monkeypatch):
    """No class of it is imported; what is no column, or was not measured, is not in tables."""
    one = Tally((0.5, 3.0), 4, ("layer",), counts=False, column=True)
    found = {"my luck": Measurement({"luck": one, "hidden": replace(one, column=False)}, chosen=("beta",))}
    path, records = tmp_path / "results.csv", [record(measures=found), record(1), record(relation="mother")]
    write_csv(records, path)
    assert [row.get("luck") for row in csv_rows(path)] == ["0.75", "", ""]
    assert "hidden" not in csv_rows(path)[0]
    capital, mother = summarize(records)
    assert (capital.columns, mother.columns) == ({"luck": (0.75, None)}, {})
    monkeypatch.setenv("COLUMNS", "120")
    print_results([capital, mother])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[2].endswith("random guess luck")
    assert (lines[4].endswith("0.25 0.75"), lines[5].endswith("0.25 -")) == (True, True)


def test_a_file_has_one_row_per_relation_and_trial(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([record(model="demo", n_shot=8, template="{} is\n")], path)
    write_csv([unscored_record()], path, append=True)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        scored, other = reader
    assert reader.fieldnames == CSV_COLUMNS
    common = {"category": "factual", "trial": "0", "samples": "20", "tested": "12", "reported": "True"}
    common["chose"] = "False"
    place = {"layer": "0", "beta": "2.0", "rank": "4", "edited": "8", "faithfulness": "0.8", "causality": "0.875"}
    prompts = {"model": "demo", "n_shot": "8", "template": "{} is\n"}
    counts = {"relation": "capital", "known": "10", "range_size": "4", "random_guess": "0.25", B_ALONE: ""}
    assert scored == common | place | prompts | counts
    place = dict.fromkeys(place, "") | {"edited": "0"}
    prompts = {"model": "", "n_shot": "0", "template": ""}
    counts = {"relation": "ceo", "known": "3", "range_size": "20", "random_guess": "0.05", B_ALONE: ""}
    assert other == common | place | prompts | counts


WHOLE = {"whole objects": whole_objects(8, 5, 4, 6, 2, 3, 1, 0)}


def test_whole_objects_are_columns_where_they_were_scored(tmp_path):
    path, scored = tmp_path / "results.csv", record(measures=WHOLE)
    write_csv([unscored_record(), scored], path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        other, row = reader
    assert reader.fieldnames == [*CSV_COLUMNS, *WHOLE_OBJECT_SCORES]
    assert [row[name] for name in WHOLE_OBJECT_SCORES] == ["0.5", "0.75", "0.25", "0.6", "0.2", "0.0"]
    assert {other[name] for name in WHOLE_OBJECT_SCORES} == {""}
    write_csv([], path)
    write_csv([scored], path, append=True)  # the columns are those of the file
    assert path.read_text().startswith(",".join(CSV_COLUMNS) + "\n")
    assert len(path.read_text().splitlines()[1].split(",")) == len(CSV_COLUMNS)


def test_a_relation_whose_objects_begin_alike_is_not_scored_by_first_token(capsys, monkeypatch):
    alike = summarize([record(first_tokens=1, measures=WHOLE), record(1, first_tokens=1)])
    assert (alike[0].trials, alike[0].faithfulness, alike[0].random_guess) == (0, None, 1)
    assert alike[0].columns["closed-set faithfulness"] == (0.75, None)
    name = "[red]:smile:[/red]"  # printed as it is
    others = [record(relation=name), record(1, relation=name, known=9), replace(unscored_record("[b]ceo"), n_shot=8)]
    monkeypatch.setenv("COLUMNS", "320")
    print_results([*alike, *summarize(others)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    whole = "0.50 0.75 0.25 0.60 0.20 0.00"
    (alone,) = (re.sub(r" \[.*?\]", "", line) for line in lines if line.startswith("capital "))
    assert alone == f"capital factual 10 of 12 - - - not scored not scored 1.00 {whole}"
    scored = "0.84 ± 0.06 [0.50, 0.97] 0.88 ± 0.00 [0.53, 0.98] 0.25 - - - - - -"
    assert f"{name} factual 9.5 of 12 0 4 2.0 {scored}" in lines
    assert "[b]ceo factual 3 of 12 - - - not scored not scored 0.05 - - - - - -" in lines
    assert lines[-2:] == [
        "Not scored: capital: all of its objects begin with the same token",
        "Not scored: [b]ceo: 20 samples, 8 of them examples, 12 left to test, 3 known: 8 that the LM knows are needed; "
        "lower --data.n_shot",
    ]
    print_results(summarize(others))
    assert "whole-object" not in capsys.readouterr().out


def test_a_summary_has_means_and_deviations_over_scored_trials():
    first, second = record(0), record(1, faithful=((9, 10), (3, 6)))
    capital, ceo = summarize([first, second, unscored_record()])
    assert (capital.layer, capital.rank, capital.beta, capital.trials) == (0, 4, 2.0, 2)
    assert capital.faithfulness == pytest.approx((0.7, 0.1 * math.sqrt(2)))
    assert capital.causality == pytest.approx((7 / 8, 0.0))
    assert (ceo.trials, ceo.faithfulness, ceo.known) == (0, None, 3)
    assert summarize([first])[0].faithfulness == (0.8, None)


def test_trials_that_only_choose_contribute_to_known_alone():
    chosen_on = record(0, reported=False, known=4, faithful=((0, 0), (0, 0)), layer="emb", rank=8)
    (capital,) = summarize([chosen_on, record(1)])
    assert (capital.trials, capital.known, capital.layer, capital.rank) == (1, 7, 0, 4)
    assert (capital.faithfulness, capital.causality) == ((0.8, None), (7 / 8, None))
    assert summarize([chosen_on])[0].faithfulness is None


def test_scores_are_of_trials_that_took_no_part_in_the_choice(capsys):
    chose = record(0, chose=True, faithful=((0, 0), (0, 10)))
    (capital,) = summarize([chose, record(1), record(2, faithful=((0, 0), (0, 6)))])
    assert (capital.trials, capital.chose, capital.faithfulness[0]) == (2, False, 0.7)
    print_results([capital])
    assert "*" not in capsys.readouterr().out
    (alone,) = summarize([chose, unscored_record("capital")])
    assert (alone.trials, alone.chose, alone.faithfulness[0]) == (1, True, 1)
    print_results([alone])
    out = capsys.readouterr().out
    assert " 0* " in out
    assert "* Scores of the trials that chose" in out


def test_trials_without_an_edit_have_no_causality():
    """If all known samples have one object, there is no other object to change it into."""
    none = {"edited": 0, "causal": ((0, 0), (0, 0))}
    capital, mother = summarize([record(0, **none), record(1, **none), record(0, "mother"), record(1, "mother")])
    assert (capital.trials, capital.faithfulness, capital.causality) == (2, (0.8, 0.0), None)
    assert mother.causality == (7 / 8, 0.0)


def broken_at_the_second():
    yield unscored_record()
    raise ZeroDivisionError


@pytest.mark.parametrize("append", [False, True])
@pytest.mark.parametrize("write", [write_csv, write_records])
def test_a_failed_write_leaves_the_old_file(tmp_path, write, append):
    path = tmp_path / "results"
    write([record()], path)
    before = path.read_text()
    with pytest.raises(ZeroDivisionError):
        write(broken_at_the_second(), path, append)
    assert [file.name for file in tmp_path.iterdir()] == ["results"]
    assert path.read_text() == before


@pytest.mark.parametrize(
    ("width", "columns", "score"),
    [
        (80, "relation known layer faithfulness causality", "0.84 [0.50, 0.97]"),
        (86, "relation known layer rank faithfulness causality", "0.84 [0.50, 0.97]"),
        (
            200,
            "relation category known layer rank beta faithfulness causality random guess",
            "0.84 ± 0.06 [0.50, 0.97]",
        ),
    ],
)
def test_the_table_fits_the_terminal(capsys, monkeypatch, width, columns, score):
    monkeypatch.setenv("COLUMNS", str(width))
    name = "state capital city"
    print_results(summarize([record(relation=name), record(1, relation=name, known=9)]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert " ".join(lines[2].split()).startswith(columns)
    assert score in lines[4]
    assert ("Not shown, for want of room" in lines[-1]) == (width < 200)


@pytest.mark.parametrize("between", " _")
def test_long_names_of_relations_wrap(capsys, monkeypatch, between):
    monkeypatch.setenv("COLUMNS", "80")
    name = between.join(["name", "of", "the", "person", "who", "sings", "in", "a", "band"])
    print_results(summarize([record(relation=name)]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[4].split()[-3:] == ["0.88", "[0.53,", "0.98]"]
    first, second = lines[4].split("  ")[0].strip(), lines[5].strip()
    assert name in (first + second, f"{first} {second}")


def test_results_show_themselves_as_a_table():
    results = Results(summarize([record(relation="city <b>"), unscored_record()]))
    first, second, third = (line.split() for line in repr(results).splitlines())
    assert first == ["relation", "known", "layer", "faithfulness", "causality"]
    assert second == ["city", "<b>", "10", "of", "12", "0", "0.80", "[0.49,", "0.94]", "0.88", "[0.53,", "0.98]"]
    assert third[-4:] == ["not", "scored", "not", "scored"]
    assert "<td>city &lt;b&gt;</td><td>10 of 12</td><td>0</td><td>0.80 [0.49, 0.94]</td>" in results._repr_html_()


def test_an_lm_that_knows_nothing_gets_one_line(capsys):
    print_results(summarize([replace(unscored_record(name), n_shot=8) for name in ("ceo", "mother")]))
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("None of the 2 relations is scored: the LM knows 6 of 24 test prompts")


def test_a_stopped_fit_that_has_only_chosen_does_not_lack_known_samples():
    chose = record(reported=False, n_shot=8)
    (summary,) = summarize([chose])
    assert summary.unscored == NOT_KEPT
    (summary,) = summarize([chose, replace(unscored_record(chose.relation), trial=1, n_shot=8)])
    assert "8 that the LM knows are needed" in summary.unscored
