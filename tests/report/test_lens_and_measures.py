"""The sections on a Jacobian lens and on measures, of counts and sums whose means are worked out by hand."""

from dataclasses import replace

import pytest

from lre_lightning.records.analysis import by_model
from lre_lightning.records.record import GENERIC, MEASURES
from lre_lightning.report.baselines import LIKENESS, baselines, generic
from lre_lightning.report.chapters import chapters_of
from lre_lightning.report.measures import measures
from tests.report.artists import check_layout
from tests.report.examples import MAIN


def compared(record):
    """The record with counts of the lens at the layers 0 and 1, which grow by one from method to method."""
    counts = {name: tuple((i + layer,) * len(record.betas) for layer in (1, 2)) for i, name in enumerate(GENERIC)}
    edits = {name: ((i,) * len(record.ranks),) * 2 for i, name in enumerate(GENERIC[1:])}
    likeness = ((0.5, 0.25, 0.75), (1.0, 0.5, 0.5))
    return replace(record, generic_layers=(0, 1), generic_faithful=counts, generic_causal=edits, likeness=likeness)


RECORDS = [compared(record) if record.scored else record for record in MAIN]


def test_the_table_has_the_scores_by_layer():
    ((section),) = generic(RECORDS)
    (table,) = section.tables
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (first["layer"], second["layer"]) == (0, 1)
    for i, name in enumerate(GENERIC):
        assert first[f"faithfulness: {name}"][0] == pytest.approx((i + 1) / 10)
        assert second[f"faithfulness: {name}"][0] == pytest.approx((i + 2) / 10)
    assert first["causality: mixed"][0] == pytest.approx(1 / 8)
    assert [first[name][0] for name in LIKENESS] == [0.5, 0.25, 0.75]
    check_layout(section.pictures[0].plot())
    assert generic(MAIN) == ()
    titles = [section.title for chapter in chapters_of(by_model(RECORDS)) for section in chapter.sections]
    assert section.title in titles


def test_a_w_of_zeros_is_like_nothing():
    last = [replace(r, likeness=((0.5, 0.25, 0.75), (0.0, 1.0, 1.0))) if r.scored else r for r in RECORDS]
    (section,) = generic(last)
    first, second = (dict(zip(section.tables[0].columns, row, strict=True)) for row in section.tables[0].rows)
    assert [first[name][0] for name in LIKENESS] == [0.5, 0.25, 0.75]
    assert [second[name] for name in LIKENESS] == [None, None, None]
    lines = {line.get_label(): line for line in section.pictures[0].plot().axes[2].lines}
    assert [list(lines[name].get_xdata()) for name in LIKENESS] == [[0]] * 3


def test_the_methods_stand_beside_the_baselines():
    (faithful, causal, _) = baselines(RECORDS)
    assert set(GENERIC) <= {row[0] for row in faithful.tables[0].rows}
    assert set(GENERIC[1:]) <= {row[0] for row in causal.tables[0].rows}
    for picture in (*faithful.pictures, *causal.pictures):
        check_layout(picture.plot())


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
