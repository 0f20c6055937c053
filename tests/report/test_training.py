"""Scores over a training and beside a user's column, of counts whose means and correlations are worked out by hand."""

import math
from dataclasses import replace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.records.analysis import by_model
from lre_lightning.records.files import write_records
from lre_lightning.report.chapters import chapters_of
from lre_lightning.report.columns import columns, plot_column, read_columns
from lre_lightning.report.page import make_report
from lre_lightning.report.training import plot_training, plot_training_by_relation, series_of, training
from tests.helpers.command import lre
from tests.report.artists import check_layout, curves, titles
from tests.report.examples import MAIN, record, unscored

EARLY = [record("capital", 0, 5, 2), unscored("antonym")]
LATE = [record("capital", 0, 8, 4), record("antonym", 0, 9, 8)]


def named(*names):
    """Models without a difference but their names."""
    return by_model(replace(record("capital", 0, 8, 8), model=name) for name in names)


def checkpoints():
    return by_model(
        replace(one, model=f"run/step-{step}") for step, found in ((300, LATE), (20, EARLY)) for one in found
    )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["p/lm@step1000", "p/lm@step8000", "p/lm@step512"], {"p/lm": [512, 1000, 8000]}),
        (["runs/checkpoint-20", "runs/checkpoint-100"], {"runs": [20, 100]}),
        (["o@stage1-step1000-tokens5B", "o@stage1-step9000-tokens38B"], {"o@stage1--B": [1000, 9000]}),
        (["a-70m@step1", "a-70m@step2", "a-160m@step1", "a-160m@step2"], {"a-70m": [1, 2], "a-160m": [1, 2]}),
        (["o/lm@1000", "o/lm@v2000"], {"o/lm": [1000, 2000]}),
        (["pythia-70m", "pythia-160m", "gpt2"], {}),
        (["lm@step1", "lm@main"], {}),
    ],
)
def test_a_series_is_told_by_its_names(names, expected):
    assert {name: list(series) for name, series in series_of(named(*names)).items()} == expected


def test_curves_and_table_have_the_means_of_the_same_relations_at_every_step():
    (section,) = training(checkpoints())
    (table,) = section.tables
    assert [row[:2] for row in table.rows] == [(20, 1), (300, 2)]
    assert [cell[0] for cell in table.rows[0][2:5]] == pytest.approx([0.5, 0.25, (10 / 12 + 3 / 26) / 2])
    assert [cell[0] for cell in table.rows[1][2:5]] == pytest.approx([0.8, 0.5, 10 / 12])
    more = checkpoints()[::-1]
    more[1].main.append(replace(LATE[1], relation="Colour", model=more[1].model))
    (begun_late,) = training(more)
    assert begun_late.tables[0].rows[0][:4] == (20, 1, None, None)  # three scores there, two from here on
    (series,) = series_of(checkpoints()).values()
    figure = plot_training(series)
    check_layout(figure)
    assert curves(figure.axes[0]) == {
        "faithfulness": {20: 0.5, 300: 0.8},
        "causality": {20: 0.25, 300: 0.5},
        "known": {20: (10 / 12 + 3 / 26) / 2, 300: 10 / 12},
    }
    panels = plot_training_by_relation(series)
    check_layout(panels)
    by_title = dict(zip(titles(panels), panels.axes, strict=True))
    assert curves(by_title["antonym"])["faithfulness"] == {300: 0.9}
    assert curves(by_title["capital"])["causality"] == {20: 0.25, 300: 0.5}


def written(folder, text):
    path = folder / "column.csv"
    path.write_text(text)
    return path


def test_a_column_by_relation(tmp_path):
    """Causality is 0.875, 0.75 and 0.375 of relations with 1000, 100 and 1, and faithfulness 0.7, 0.9 and 0.45."""
    path = written(tmp_path, "relation,count,note\ncapital,1000,1\nantonym,100,\nColour,1,3\nother,7,7\n")
    count, note = read_columns(path)
    section, _ = columns(by_model(MAIN), [count, note])
    x, c, f = ([1000, 100, 1], [0.875, 0.75, 0.375], [0.7, 0.9, 0.45])

    def pearson(x, y):
        dx, dy = ([value - sum(values) / 3 for value in values] for values in (x, y))
        return sum(a * b for a, b in zip(dx, dy, strict=True)) / math.dist(dx, [0] * 3) / math.dist(dy, [0] * 3)

    rows = {row[1]: row[2:] for row in section.tables[0].rows}
    assert rows["causality"] == (3, (pytest.approx(pearson(x, c)), None), (pytest.approx(1), None))
    assert rows["faithfulness"] == (3, (pytest.approx(pearson(x, f)), None), (pytest.approx(0.5), None))
    figure = plot_column(by_model(MAIN), count)
    check_layout(figure)
    shown = [tuple(point) for found in figure.axes[1].collections for point in found.get_offsets().tolist()]
    assert sorted(shown) == [(1, 0.375), (100, 0.75), (1000, 0.875)]
    assert [axes.get_xscale() for axes in figure.axes] == ["log", "log"]
    assert plot_column(by_model(MAIN), note).axes[0].get_xscale() == "linear"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("subject,n\nFrance,2\nItaly,4\nOman,100\n", {"capital": 3, "antonym": 2}),
        ("relation,subject,n\ncapital,France,2\nantonym,France,7\ncapital,Italy,\n", {"capital": 2, "antonym": 7}),
    ],
)
def test_a_column_by_subject_is_averaged_over_training_samples(tmp_path, text, expected):
    train = {"capital": (("France", "Paris"), ("Italy", "Rome"), ("Chad", "x")), "antonym": (("France", "y"),)}
    records = [replace(one, train=train.get(one.relation, ())) for one in MAIN]
    (column,) = read_columns(written(tmp_path, text))
    assert {name: mean for name, (mean, _) in column.by_relation(records).items()} == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,n\na,1\n", "must have a column 'relation', 'subject' or 'object', and one of numbers: it has name, n"),
        ("relation\na\n", "must have a column 'relation', 'subject' or 'object', and one of numbers: it has relation"),
        ("relation,n\ncapital,many\n", "line 2, column 'n' is 'many', not a number"),
        ("relation,n\ncapital,nan\n", "line 2, column 'n' is 'nan', not a number"),
        ("relation,n\ncapital,1\ncapital,2\n", "line 3 has 'capital' a second time"),
        ("relation,n\nKapital,1\n", "no number for a scored relation of the results: its relation must be one of"),
        ("subject,n\nFrance,1\n", "its subject must be one of theirs, such as a training sample"),
    ],
)
def test_mistakes_in_columns_are_named(tmp_path, text, message):
    with pytest.raises(LREError, match=message):
        columns(by_model(MAIN), read_columns(written(tmp_path, text)))


def test_a_report_takes_columns(tmp_path):
    write_records(MAIN, tmp_path / "fit_results.jsonl")
    path = written(tmp_path, "relation,frequency\ncapital,10\nColour,1\n")
    given = ["report", str(tmp_path / "fit_results.jsonl"), "--column", str(path), "--out", str(tmp_path / "out")]
    assert lre(*given) == 0
    page = (tmp_path / "out" / "index.html").read_text()
    assert "By frequency" in page
    assert f"--column {path}" in page
    with pytest.raises(LREError, match=r"none\.csv cannot be read"):
        make_report([tmp_path], tmp_path / "none", columns=[tmp_path / "none.csv"])
    assert not (tmp_path / "none").exists()


def test_many_lms_are_compared_in_tables_and_not_side_by_side():
    first, *_ = chapters_of(named(*(f"run/step-{step}" for step in range(1, 8))))
    pictures = [picture.name for section in first.sections for picture in section.pictures]
    assert pictures == ["training", "training_by_relation"]
    tables = [table.name for section in first.sections for table in section.tables if table.rows]
    assert tables[:6] == ["paired", "training", "models", "model_agreement", "dataset", "full_dataset"]
