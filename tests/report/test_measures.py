"""The section on measures beyond the argmax, of sums whose means are worked out by hand."""

from dataclasses import replace

import pytest

from lre_lightning.records.record import MEASURES
from lre_lightning.report.measures import measures
from tests.report.artists import check_layout
from tests.report.examples import MAIN


def measured(record):
    sums = {
        name: tuple((1.0 + i,) * {"betas": 2, "ranks": 2, "": 1}[axis] for i in range(3))
        for name, (axis, _) in MEASURES.items()
    }
    return replace(record, measures=sums)


def test_tables_have_the_means_at_the_chosen_point_and_by_layer():
    section = measures([measured(record) if record.scored else record for record in MAIN])
    by_relation, truth, by_layer = section.tables
    row, true = (dict(zip(table.columns, table.rows[-1], strict=True)) for table in (by_relation, truth))
    (record, *_) = [one for one in MAIN if one.relation == row["relation"]]
    place = record.layers.index(record.layer)
    assert row["probability"][0] == pytest.approx((1 + place) / record.known)
    assert row["log-odds"][0] == pytest.approx((1 + place) / record.edited)
    assert true["truth on the unknown"][0] == pytest.approx((1 + place) / (record.tested - record.known))
    assert true["LM's probability of the truth"][0] == pytest.approx((1 + place) / record.tested)
    assert {*row, *true} == {"relation", *MEASURES}
    assert [line[1][0] for line in by_layer.rows] == pytest.approx([0.1, 0.2, 0.3])
    check_layout(section.pictures[0].plot())


def test_a_note_says_how_to_measure_them():
    assert "--model.fitting.measures true" in measures(MAIN).note
