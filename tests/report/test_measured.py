"""The sections on measures, of counts and sums whose means are worked out by hand."""

from dataclasses import replace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.measures import Baselines, Generations, LineIntegrals, Outcomes, WholeObjects
from lre_lightning.measures.distributions import DISTRIBUTION_SCORES, Distributions
from lre_lightning.measures.jacobian_lens import GENERIC, LIKENESS, JacobianLensLREs
from lre_lightning.records.analysis import by_model
from lre_lightning.records.files import read_records, write_records
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.report.chapters import chapters_of, section_of
from tests.helpers.records import distributions, jacobian_lens, with_measures
from tests.report.artists import check_layout
from tests.report.examples import MAIN

ALIKE = ((0.5, 0.25, 0.75), (1.0, 0.5, 0.5))


def compared(record, alike=ALIKE):
    """The record with counts of the lens at the layers 0 and 1, which grow by one from method to method."""
    counts = {name: tuple((i + layer,) * len(record.betas) for layer in (1, 2)) for i, name in enumerate(GENERIC)}
    edits = {name: ((i,) * len(record.ranks),) * 2 for i, name in enumerate(GENERIC[1:])}
    return with_measures(record, {"Jacobian lens": jacobian_lens(counts, edits, alike, (0, 1))})


SCORED = [record for record in MAIN if record.scored]
RECORDS = list(map(compared, SCORED))


def test_the_table_has_the_scores_by_layer():
    (section,) = JacobianLensLREs.sections(RECORDS)
    (table,) = section.tables
    first, second = (dict(zip(table.columns, row, strict=True)) for row in table.rows)
    assert (first["layer"], second["layer"]) == (0, 1)
    for i, name in enumerate(GENERIC):
        assert first[f"faithfulness: {name}"][0] == pytest.approx((i + 1) / 10)
        assert second[f"faithfulness: {name}"][0] == pytest.approx((i + 2) / 10)
    assert first["causality: mixed"][0] == pytest.approx(1 / 8)
    assert [first[name][0] for name in LIKENESS] == [0.5, 0.25, 0.75]
    check_layout(section.pictures[0].plot())
    assert JacobianLensLREs.sections(MAIN) == ()
    titles = [section.title for chapter in chapters_of(by_model(RECORDS)) for section in chapter.sections]
    assert section.title in titles


def test_a_w_of_zeros_is_like_nothing():
    last = [compared(record, (ALIKE[0], (0.0, 1.0, 1.0))) for record in SCORED]
    (section,) = JacobianLensLREs.sections(last)
    first, second = (dict(zip(section.tables[0].columns, row, strict=True)) for row in section.tables[0].rows)
    assert [first[name][0] for name in LIKENESS] == [0.5, 0.25, 0.75]
    assert [second[name] for name in LIKENESS] == [None, None, None]
    lines = {line.get_label(): line for line in section.pictures[0].plot().axes[2].lines}
    assert [list(lines[name].get_xdata()) for name in LIKENESS] == [[0]] * 3


def test_tables_have_the_means_at_the_chosen_point_and_by_layer():
    measured = [with_measures(record, {"distributions": distributions(record, (1.0, 2.0, 3.0))}) for record in SCORED]
    (section,) = Distributions.sections(measured)
    by_relation, truth, by_layer = section.tables
    row, true = (dict(zip(table.columns, table.rows[-1], strict=True)) for table in (by_relation, truth))
    (record, *_) = [one for one in MAIN if one.relation == row["relation"]]
    place = record.layers.index(record.layer)
    assert row["probability"][0] == pytest.approx((1 + place) / record.known)
    assert row["log-odds"][0] == pytest.approx((1 + place) / record.edited)
    assert true["truth on the unknown"][0] == pytest.approx((1 + place) / (record.tested - record.known))
    assert true["LM's probability of the truth"][0] == pytest.approx((1 + place) / record.tested)
    assert {*row, *true} == {"relation", *DISTRIBUTION_SCORES}
    assert [line[1][0] for line in by_layer.rows] == pytest.approx([0.1, 0.2, 0.3])
    check_layout(section.pictures[0].plot())


def lucky(record):
    """The record with a measure of a project of the user's: luck 2 of 4 at layer 0, and a tally that is no column."""
    luck = Tally((1, 2, 3), 4, ("layer",), column=True)
    return with_measures(record, {"my luck": Measurement({"luck": luck, "hidden": replace(luck, column=False)})})


def test_a_measure_whose_class_was_not_imported_has_a_table_of_its_columns():
    measured = [lucky(record) for record in MAIN[:2]]
    (section,) = section_of("my luck", [*measured, *MAIN[2:]])
    (table,) = section.tables
    assert (section.title, table.name, table.columns) == ("My luck", "my_luck", ("relation", "luck"))
    assert table.rows == (("capital", (0.5, 0.0)), ("mean", (0.5, None)))
    assert section_of("my luck", MAIN) == section_of("majorities", measured) == ()
    no_column = with_measures(MAIN[0], {"my luck": Measurement({"hidden": Tally(1, 2)})})
    assert section_of("my luck", [no_column]) == ()


def test_a_report_shows_a_measure_of_the_users_and_imports_nothing_for_it(tmp_path, monkeypatch):
    (tmp_path / "my_project.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    given = replace(MAIN[0], measures={"my_project.Luck": lucky(MAIN[0]).measures["my luck"]})
    write_records([given], tmp_path / "fit_results.jsonl")
    (chapter,) = chapters_of(by_model(read_records(tmp_path)))
    tables = {table.name: table for section in chapter.sections for table in section.tables}
    assert tables["my_project.Luck"].rows[0] == ("capital", (0.5, None))


def strangers(kind, found):
    """Records of two LMs whose measurement of a measure's name is none that the measure makes."""
    strange = [replace(record, measures={kind.name: found}) for record in SCORED]
    return by_model([*strange, *(replace(record, model="other") for record in strange)])


WITH_ROWS = (Generations, JacobianLensLREs, LineIntegrals, Outcomes)
OF_TALLIES = (Baselines, Distributions, WholeObjects)


@pytest.mark.parametrize("kind", [*WITH_ROWS, *OF_TALLIES])
def test_tallies_of_strangers_with_the_name_of_a_measure_are_left_out(kind):
    """Reading does not know what a measure writes; what a section needs is checked where it is read."""
    chapters = chapters_of(strangers(kind, Measurement({"mine": Tally(1, 2)})))
    assert "Findings" in [section.title for chapter in chapters for section in chapter.sections]


@pytest.mark.parametrize("kind", WITH_ROWS)
def test_rows_of_strangers_with_the_name_of_a_measure_are_refused(kind):
    with pytest.raises(LREError, match=f"a row of '{kind.name}' of '.*' must have .*, not .1, 'a'."):
        chapters_of(strangers(kind, Measurement(rows=((1, "a"),), layers=(1,))))
