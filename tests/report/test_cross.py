"""The matrix of relations and the controls, of counts whose means are worked out by hand."""

import numpy as np
import pytest

from lre_lightning.report.cross import (
    controls_table,
    matrix,
    matrix_table,
    plot_cross,
    similar_first,
)
from lre_lightning.report.tables import to_text
from lre_lightning.scoring.cross import CONTROLS, CrossScore
from tests.report.artists import check_layout

NAMES = ("capital", "currency", "antonym")
FAITHFUL = {"capital": (8, 6, 0), "currency": (5, 10, 1), "antonym": (0, 2, 9)}  # of 10, by the reader in `NAMES`


def scores():
    found = []
    for relation, counts in FAITHFUL.items():
        category = "linguistic" if relation == "antonym" else "factual"
        for reader, count in [*zip(NAMES, counts, strict=True), *((control, 3) for control in CONTROLS)]:
            found += [
                CrossScore("toy", relation, category, trial, reader, 10, count, 5, count // 2) for trial in (0, 1)
            ]
    return found


def test_the_matrix_has_the_samples_in_rows_and_the_lres_in_columns():
    names, cells = matrix(scores(), "faithfulness")
    assert names == ["antonym", "capital", "currency"]
    np.testing.assert_allclose(cells, [[0.9, 0, 0.2], [0, 0.8, 0.6], [0.1, 0.5, 1]])
    table = matrix_table([one for one in scores() if one.relation == "capital"], "causality")
    assert (table.columns, to_text(table)) == (("relation", "capital"), [["capital", "0.80"]])


def test_controls_stand_beside_other_relations():
    shown = to_text(controls_table(scores()))
    assert [row[0] for row in shown][:4] == ["its own LRE", *CONTROLS]
    assert shown[0][1].startswith("0.90")
    assert shown[1][1].startswith("0.30")
    assert [row[2] == "-" for row in shown] == [False, True, True, False, False, False]  # they are known beforehand
    kept = [one for one in scores() if one.reader != "shuffled examples"]
    assert [row[0] for row in to_text(controls_table(kept))][:4] == ["its own LRE", *CONTROLS[:2], shown[4][0]]
    assert shown[4][1].startswith("0.55")  # capital by currency and back
    assert shown[5][1].startswith("0.07")  # (0 + 0.1 + (0 + 0.2) / 2) / 3


def test_relations_that_work_for_each_other_are_neighbours():
    blocks = np.zeros((6, 6))
    for group in ([0, 2, 4], [1, 3, 5]):
        blocks[np.ix_(group, group)] = 0.8
    order = similar_first(blocks + 0.01)
    assert {frozenset(order[:3]), frozenset(order[3:])} == {frozenset([0, 2, 4]), frozenset([1, 3, 5])}


@pytest.mark.parametrize("count", [1, 3])
def test_the_heat_map_shows_every_relation(count):
    kept = [one for one in scores() if one.relation in NAMES[:count]]
    figure = plot_cross(kept)
    check_layout(figure)
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == set(NAMES[:count])
