"""Summaries of results, as a file and as a table, on counts whose answers can be seen by eye."""

import csv
import math
from dataclasses import replace

import pytest

from lre_lightning.records.files import write_records
from lre_lightning.records.record import WHOLE_OBJECTS
from lre_lightning.records.summary import CSV_COLUMNS, summarize, write_csv
from lre_lightning.report.console import print_results
from tests.helpers.records import small_record, unscored_record


def record(trial=0, relation="capital", **changes):
    return small_record(trial, relation, **{"layer": 0, "rank": 4, **changes})


BLIND = dict.fromkeys(("b_alone", "majority_of_training", "majority_of_data"), "")


def test_answers_that_are_the_same_for_all_subjects_stand_beside_the_scores(tmp_path, capsys):
    grid = {"betas": (0.0, 2.0), "faithful": ((9, 10), (3, 8)), "majority": {"training": 2, "data": 4}}
    path, records = tmp_path / "results.csv", [record(**grid), record(1, **{**grid, "faithful": ((9, 10), (5, 8))})]
    write_csv(records, path)
    with path.open(newline="", encoding="utf-8") as file:
        assert [[row[name] for name in BLIND] for row in csv.DictReader(file)] == [
            ["0.3", "0.2", "0.4"],
            ["0.5", "0.2", "0.4"],
        ]
    print_results(summarize(records))
    head, line = (" ".join(found.split()) for found in capsys.readouterr().out.splitlines()[2:5:2])
    assert head.endswith("random guess b alone majority of training majority of data")
    assert line.endswith("0.25 0.40 0.20 0.40")


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
    counts = {"relation": "capital", "known": "10", "range_size": "4", "random_guess": "0.25", **BLIND}
    assert scored == common | place | prompts | counts
    place = dict.fromkeys(place, "") | {"edited": "0"}
    prompts = {"model": "", "n_shot": "0", "template": ""}
    counts = {"relation": "ceo", "known": "3", "range_size": "20", "random_guess": "0.05", **BLIND}
    assert other == common | place | prompts | counts


WHOLE = dict(zip(("known", "edited", *WHOLE_OBJECTS), (8, 5, 4, 6, 2, 3, 1, 0), strict=True))


def test_whole_objects_are_columns_where_they_were_scored(tmp_path):
    path, scored = tmp_path / "results.csv", record(whole_objects=WHOLE)
    write_csv([unscored_record(), scored], path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        other, row = reader
    assert reader.fieldnames == [*CSV_COLUMNS, *WHOLE_OBJECTS]
    assert [row[name] for name in WHOLE_OBJECTS] == ["0.5", "0.75", "0.25", "0.6", "0.2", "0.0"]
    assert {other[name] for name in WHOLE_OBJECTS} == {""}
    write_csv([], path)
    write_csv([scored], path, append=True)  # the columns are those of the file
    assert path.read_text().startswith(",".join(CSV_COLUMNS) + "\n")
    assert len(path.read_text().splitlines()[1].split(",")) == len(CSV_COLUMNS)


def test_a_relation_whose_objects_begin_alike_is_not_scored_by_first_token(capsys):
    alike = summarize([record(first_tokens=1, whole_objects=WHOLE), record(1, first_tokens=1)])
    assert (alike[0].trials, alike[0].faithfulness, alike[0].random_guess) == (0, None, 1)
    assert alike[0].whole_objects["closed-set faithfulness"] == (0.75, None)
    name = "[red]:smile:[/red]"  # printed as it is
    others = [record(relation=name), record(1, relation=name, known=9), replace(unscored_record("[b]ceo"), n_shot=8)]
    print_results([*alike, *summarize(others)])
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    faithful = "0.50 [0.22, 0.78] 0.75 [0.41, 0.93] 0.25 [0.07, 0.59] 0.60 [0.23, 0.88]"
    whole = f"{faithful} 0.20 [0.04, 0.62] 0.00 [0.00, 0.43]"
    assert f"capital factual 10 of 12 - - - not scored not scored 1.00 {whole}" in lines
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
