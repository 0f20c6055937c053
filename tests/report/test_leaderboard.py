"""The leaderboard: LMs in the order of their linearity over shared relations, and relations by LM."""

import csv

import pytest

from lre_lightning.errors import LREError
from lre_lightning.records.files import write_records
from lre_lightning.report.leaderboard import make_leaderboard
from tests.helpers.page import Page
from tests.helpers.records import full_record, unscored_record

FAITHFUL = {  # out of 10 known, by LM and relation, over trials
    "org/good": {"a": (8, 10), "b": (6,), "only": (0,)},
    "org/better": {"a": (9,), "b": (8, 8)},
    "org/fair": {"a": (7,), "b": (1,), "c": (10,)},
}


def rows_of(folder, name):
    with (folder / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_lms_are_ranked_over_the_relations_that_all_have(tmp_path):
    for model, relations in FAITHFUL.items():
        given = {"model": model, "backward": "exact", "template_index": 0, "reported": True}
        counts = [(name, trial, count) for name, some in relations.items() for trial, count in enumerate(some)]
        records = [full_record(i, name, faithful=((0, 0), (0, 0), (0, n)), **given) for name, i, n in counts]
        write_records(records, tmp_path / model / "fit_results.jsonl")
    page, tables = make_leaderboard([tmp_path / model for model in FAITHFUL], tmp_path / "out")
    rows = rows_of(tmp_path / "out", "leaderboard")
    assert [(row["place"], row["LM"], row["relations scored"]) for row in rows] == [
        ("1", "better", "2"),
        ("2", "good", "3"),
        ("3", "fair", "3"),
    ]
    assert [float(row["faithfulness, shared"]) for row in rows] == pytest.approx([0.85, 0.75, 0.4])
    assert [float(row["faithfulness"]) for row in rows] == pytest.approx([0.85, 0.5, 0.6])
    relations = rows_of(tmp_path / "out", "relations_faithfulness")
    assert [row["relation"] for row in relations] == ["c", "a", "b", "only"]
    assert float(relations[1]["mean"]) == pytest.approx((0.9 + 0.9 + 0.7) / 3)
    assert [relations[1][name] for name in ("LMs", "better", "good", "fair")] == ["3", "0.9", "0.9", "0.7"]
    assert [relations[3][name] for name in ("LMs", "better", "good", "fair")] == ["1", "", "0.0", ""]
    # The most frequent objects are right for 3 and 6 of 10, in every record.
    assert [(row["majority of training"], row["majority of data"]) for row in rows] == [("0.3", "0.6")] * 3
    assert {(row["majority of training"], row["majority of data"]) for row in relations} == {("0.3", "0.6")}
    assert "b alone" not in rows[0]  # beta 0 is not on the grid
    causality = rows_of(tmp_path / "out", "relations_causality")
    assert "majority of data" not in causality[0]
    assert "the most frequent first token" in tables[0].caption
    found = Page(page.read_text())
    assert found.texts("h3")[:2] == ["LMs", "Relations"]
    assert (tmp_path / "out" / "figures" / "linearity.svg").exists()
    assert {table.name for table in tables} == {"leaderboard", "relations_faithfulness", "relations_causality"}


def test_without_scored_relations_there_is_no_leaderboard(tmp_path):
    write_records([unscored_record()], tmp_path / "fit_results.jsonl")
    with pytest.raises(LREError, match="there is no scored relation in the results"):
        make_leaderboard([tmp_path], tmp_path / "out")
    assert not (tmp_path / "out").exists()
