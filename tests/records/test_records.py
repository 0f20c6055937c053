"""Records of results: scores, files that are written, read and merged, and rows of a data frame."""

import json
import math
import subprocess
import sys
from dataclasses import fields, replace

import pytest
from hypothesis import given

from lre_lightning.errors import LREError
from lre_lightning.records.files import Records, read_records, write_records
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.rows import COLUMNS, rows
from lre_lightning.records.summary import summarize, write_csv
from lre_lightning.report.console import print_results
from lre_lightning.report.relations import relations
from lre_lightning.report.tables import to_csv, to_latex, to_text
from tests.helpers.hostile import PLAIN, changed, little_memory, outcome, recipes, tried
from tests.helpers.records import full_record, low_rank, outcomes, unscored_record, with_measures

BARE = unscored_record()
LINE = json.loads(json.dumps(full_record().plain()))


def test_the_helper_fills_every_field():
    defaults = {entry.name: entry.default for entry in fields(TrialRecord)}
    assert not [name for name, value in full_record().plain().items() if value in (defaults[name], {}, ())]


# Scores


def test_scores_are_fractions_of_the_counts():
    record = full_record()
    assert record.scored
    assert not BARE.scored
    assert (record.random_guess, BARE.random_guess) == (1 / 3, 1 / 20)  # by first tokens, where they are known
    assert record.measured("whole objects", "closed-set faithfulness") == 8 / 9
    assert record.measured("whole objects", "whole-object causality") == 4 / 7
    assert (record.faithfulness("emb", 2.25), record.faithfulness(3, 1.0)) == (0.1, 0.4)
    assert (record.causality(0, 8), record.causality(3, 4)) == (5 / 8, 1.0)
    assert record.chosen_scores == (0.5, 1.0)
    assert BARE.chosen_scores is None
    assert full_record(first_tokens=1).chosen_scores is None


def test_what_measures_found_is_read_at_the_chosen_point_or_another():
    """The chosen layer, beta and rank are 3, 2.25 and 4; the Jacobian lens has no embedding."""
    record = full_record()
    assert record.measured("low rank", "faithfulness") == 0.2
    assert record.measured("low rank", "faithfulness", rank=32, layer=0) == 0.5  # which it has no axis of
    assert record.measured("baselines", "faithfulness: translation") == 0.6
    assert record.measured("baselines", "zero-shot faithfulness: translation", layer=None) == 0.4
    assert record.measured("baselines", "zero-shot faithfulness: LRE", layer="emb", beta=1.0) == 0.9
    assert record.measured("baselines", "zero-shot faithfulness: LRE", layer=0) == 0.6
    oracle = record.measured("baselines", "causality: oracle", layer=0)
    assert (oracle, oracle.total) == (7 / 8, 8)
    assert record.measured("Jacobian lens", "causality: mixed", rank=8) == 3 / 8
    assert record.measured("distributions", "LM's probability of the truth", layer=0) == 0.25 / 12
    assert record.rows_of("line integrals", float, float) == ((1.5, 1.25), (0.1, 1e-9))
    assert BARE.rows_of("line integrals", float, float) == ()
    with pytest.raises(LREError, match=r"a row of 'outcomes' of 'capital' must have .int, str., not .0, 0, -1."):
        record.rows_of("outcomes", int, str)
    assert record.columns == {
        "first-token faithfulness": 6 / 9,
        "closed-set faithfulness": 8 / 9,
        "closed-set faithfulness, b alone": 3 / 9,
        "closed-set faithfulness, another s": 2 / 7,
        "whole-object causality": 4 / 7,
        "closed-set causality": 5 / 7,
        "majority of training": 0.3,
        "majority of data": 0.6,
    }
    nowhere = [
        record.measured("luck", "faithfulness"),
        record.measured("low rank", "causality"),
        record.measured("low rank", "faithfulness", rank=5),
        record.measured("Jacobian lens", "faithfulness: mixed", layer="emb"),
        BARE.measured("baselines", "faithfulness: identity"),
    ]
    assert all(map(math.isnan, nowhere))


def test_scores_over_a_total_of_zero_are_nan():
    record = full_record(tested=0, edited=0, known=0)
    scores = [
        record.faithfulness(0, 1.0),
        record.causality(0, 8),
        # Not on the grid, or not chosen.
        record.faithfulness(7, 1.0),
        record.causality(None, 8),
        *record.columns.values(),
        *(row["score"] for row in rows([record])),
    ]
    assert all(math.isnan(score) for score in scores)


# Plain data


@pytest.mark.parametrize("record", [BARE, full_record(), full_record(layer="emb", template_index=None, measures={})])
def test_plain_data_rebuild_the_record(record):
    again = TrialRecord.from_plain(json.loads(json.dumps(record.plain())))
    assert again == record == TrialRecord.from_plain(record.plain())
    assert hash(again.faithful + again.train) == hash(record.faithful + record.train)  # tuples throughout


def test_a_missing_field_is_refused():
    with pytest.raises(LREError, match="this is not a record: it lacks the key 'relation'"):
        TrialRecord.from_plain({name: value for name, value in LINE.items() if name != "relation"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"known": -1}, "known must be a whole number of 0 to 12, not -1"),
        ({"known": 13}, "known must be a whole number of 0 to 12, not 13"),
        ({"edited": 11}, "edited must be a whole number of 0 to 10"),
        ({"trial": True}, "trial must be a whole number, not True"),
        ({"seed": "7"}, "seed must be a whole number, not '7'"),
        ({"trial": 2**70}, ".* must be a whole number .* not a number of 71 bits"),
        ({"range_size": 0}, "range_size must be a whole number of 1"),
        ({"relation": "\x1b[31m"}, ".*contains the control character '.x1b'"),
        ({"relation": "x" * 10**4}, "relation has 10000 characters, over the limit of 1000"),
        ({"template": "\ud83d"}, ".*contains an unpaired surrogate"),
        ({"train": [["France"]]}, "train.0. has 1 entries, too few"),
        ({"faithful": [[0, 1], [2, 3]]}, "faithful must have 3 x 2 counts"),
        ({"faithful": []}, "it has layers, but no counts"),
        ({"faithful": [[0, 1], [2, 11], [4, 5]]}, "faithful has counts of 0 to 11, and they must be 0 to 10"),
        ({"faithful": [[0, 1], [2, 3], [4]]}, "faithful must have 3 x 2 counts"),
        ({"causal": [[], [], []]}, "causal must have 3 x 4 counts"),
        ({"causal": [[0, 1, 2, None]] * 3}, "causal.0..3. must be a whole number, not None"),
        ({"layers": ["emb", 3, 0]}, "layers must rise"),
        ({"layers": ["emb", 0, "2"]}, "layers.2"),
        ({"betas": [1.0, float("nan")]}, "one of betas must be a number"),
        ({"layer": 7}, "layer 7 is not on the grid"),
        ({"layer": None}, "layer None is not on the grid"),
        ({"beta": 3.0}, "beta 3.0 is not on the grid"),
        ({"identity_layers": [1]}, "identity_layers has 1, which is not on the grid"),
        ({"reported": 1}, "reported must be true or false, not 1"),
        ({"prompts": {"shots": [[[[[[[[[0]]]]]]]]]}}, "the record is nested more than 8 deep"),
        ({"faithful": [[0] * 3000] * 3000}, "the record has more than 1000000 entries"),  # one row, many times
    ],
)
def test_an_invalid_field_is_refused(changes, message):
    with pytest.raises(LREError, match=f"^this is not a record: {message}"):
        TrialRecord.from_plain({**LINE, **changes})


@given(recipe=recipes(PLAIN))
@tried(120)
def test_any_line_is_a_record_that_tables_are_made_of_or_an_error(tmp_path, recipe):
    path = tmp_path / "fit_results.jsonl"
    path.write_text(json.dumps(changed(LINE, recipe)) + "\n" + json.dumps(full_record(1).plain()) + "\n")
    records = outcome(read_records, [path])
    if records:
        rows(records)
        print_results(summarize(records))
        write_csv(records, tmp_path / "x.csv")
        (table,) = relations(records).tables
        to_csv(table), to_latex(table), to_text(table)


def own(*sums, **changes):
    """Changes of a record that has one tally, `mine` of the measure `own`, and the sums given."""
    return {"measures": {"own": {"tallies": {"mine": {"sums": sums, "total": 9, "axes": ["layer"], **changes}}}}}


def test_what_is_at_its_default_is_left_out_of_a_measurement():
    assert Measurement({"mine": Tally(3, 4)}).plain() == {"tallies": {"mine": {"sums": 3, "total": 4}}}
    found = Measurement(
        {"mine": Tally((0.5,), 4, ("rank",), counts=False, column=True)}, ((1, "a", None),), (0,), ("beta",)
    )
    tally = {"sums": (0.5,), "total": 4, "axes": ("rank",), "counts": False, "column": True}
    assert found.plain() == {"tallies": {"mine": tally}, "rows": ((1, "a", None),), "layers": (0,), "chosen": ("beta",)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (own(1, 2), "measures.own.mine must have 3 entries along an axis, not 2"),
        (own([1], [2], [3]), "measures.own.mine must have a number for each point of its axes, not 1 of them"),
        (own(1, 2, 3, axes=["layer", "rank"]), "measures.own.mine must have 4 entries along an axis, not 1"),
        (own(1, 2, 10), "measures.own.mine must be a whole number of 0 to 9, not 10"),
        (own(1, 2, -1), "measures.own.mine must be a whole number of 0 to 9, not -1"),
        (own(1, 2, 0.5), "measures.own.mine must be a whole number of 0 to 9, not 0.5"),
        (own(1, 2, 3, total=13), "measures.own.mine.total must be a whole number of 0 to 12, not 13"),
        (own(1, 2, 3, axes=["n"]), "measures.own.mine has the axis 'n', and the axes are layer, beta, rank"),
        (own(1, 2, float("inf"), counts=False), "measures.own.mine must be a number of .*, not inf"),
        (own(1, 2, float("nan"), counts=False), "measures.own.mine must be a number of .*, not nan"),
        (own(1, 2, 1e13, counts=False), "measures.own.mine must be a number of -1e.12 to 1e.12, not 1"),
        (own(1, 2, "3"), "measures.own"),
        ({"measures": {"own": {"chosen": ["n"]}}}, "measures.own depends on 'n', and the axes are layer, beta, rank"),
        ({"measures": {"own": {"layers": [3, 0]}}}, "layers of own must rise"),
        ({"measures": {"own": {"rows": [[[1]]]}}}, "measures.own.rows"),
        ({"measures": {"x" * 1001: {}}}, "the name of a measure has 1001 characters, over the limit of 1000"),
        ({"measures": []}, "measures must be "),
    ],
)
def test_an_invalid_measurement_is_refused(changes, message):
    with pytest.raises(LREError, match=f"^this is not a record: {message}"):
        TrialRecord.from_plain({**LINE, **changes})


def test_a_measurement_may_have_layers_of_its_own():
    found = TrialRecord.from_plain({**LINE, "measures": {"own": {**own(1, 9)["measures"]["own"], "layers": [1, 3]}}})
    assert (found.measured("own", "mine"), found.measured("own", "mine", layer=1)) == (1.0, 1 / 9)
    assert math.isnan(found.measured("own", "mine", layer=0))


# Files


def test_records_are_written_one_per_line_and_read_again(tmp_path):
    names = ["Hauptstädte, 首都 🏙", 'with "quotes", tabs\t and\nlines', "line ends: \u2028 \x85 \x0b"]
    records = [full_record(trial, name, template=name + " {}") for trial in range(2) for name in names]
    path = tmp_path / "new" / "folder" / "fit_results.jsonl"
    write_records(records[:2], path)
    write_records(records[2:5], path, append=True)
    write_records(records[5:], path, append=True)
    text = path.read_bytes().decode("utf-8")
    assert text.count("\n") == len(records)
    assert text.endswith("}\n")
    assert "首都" in text
    assert read_records([path]) == records
    assert [entry.name for entry in path.parent.iterdir()] == ["fit_results.jsonl"]
    write_records([], path)
    assert read_records([path.parent]) == []


def test_records_are_read_without_torch(tmp_path):
    write_records([full_record()], tmp_path / "fit_results.jsonl")
    code = "import sys; from lre_lightning.records.files import read_records; before = set(sys.modules); "
    code += "print(len(read_records(sys.argv[1:])), 'torch' in sys.modules, 'pydantic' in before)"
    result = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert result.stdout == "1 False False\n", result.stderr


def test_files_and_folders_are_merged_in_their_order(tmp_path):
    write_records([full_record(1)], tmp_path / "b" / "deep" / "fit_results.jsonl")
    write_records([full_record(0), BARE], tmp_path / "a" / "fit_results.jsonl")
    write_records([full_record(2)], tmp_path / "a" / "validate_results.jsonl")
    write_records([full_record(3)], tmp_path / "own name.jsonl")
    assert read_records([tmp_path]) == [full_record(0), BARE, full_record(1)]
    assert read_records([tmp_path / "b", str(tmp_path / "a")]) == [full_record(1), full_record(0), BARE]
    assert read_records([tmp_path / "own name.jsonl", tmp_path / "b"]) == [full_record(3), full_record(1)]
    assert read_records([tmp_path / "own name.jsonl"] * 2) == [full_record(3)]  # equal records come once


@pytest.mark.parametrize(
    "other",
    [{"trial": 1}, {"relation": "mother"}, {"model": "gptj"}, {"n_shot": 8}, {"template": "{}"}, {"template_index": 0}],
)
def test_records_of_other_prompts_are_kept_beside_each_other(tmp_path, other):
    records = [full_record(), replace(full_record(), **other, known=11)]
    write_records(records, tmp_path / "fit_results.jsonl")
    assert read_records([tmp_path]) == records


OTHER_COUNT = with_measures(full_record(), {"low rank": low_rank(2, 3, 4, 6)}).measures


@pytest.mark.parametrize("other", [{"known": 9}, {"measures": OTHER_COUNT}, {"reported": True}])
def test_different_records_of_the_same_prompts_are_refused(tmp_path, other):
    one, two = tmp_path / "a" / "fit_results.jsonl", tmp_path / "b" / "fit_results.jsonl"
    write_records([full_record()], one)
    write_records([replace(full_record(), **other)], two)
    message = rf"'{one}' and '{two}' both have trial 0 of 'capital' \(n = 5, 'The capital of \{{\}} is'\)"
    with pytest.raises(LREError, match=message + ", with different counts: give one of them"):
        read_records([one, two])


GOOD = json.dumps(LINE).encode() + b"\n"
BROKEN_LINES = {
    "cut short": GOOD[:-5],
    "cut within a character": GOOD[:30] + "首".encode()[:1],
    "empty": b"\n",
    "a list": b"[]",
    "null": b"null",
    "deep": b"[" * 10**6,
    "deep and closed": b"[" * 900 + b"]" * 900,
    "a long number": b'{"relation": ' + b"1" * 5000 + b"}",
}


@pytest.mark.parametrize("kind", BROKEN_LINES)
def test_a_line_that_is_not_a_record_is_named(tmp_path, kind):
    path = tmp_path / "fit_results.jsonl"
    path.write_bytes(GOOD + BROKEN_LINES[kind])
    with little_memory(), pytest.raises(LREError, match=r"fit_results.jsonl', line 2, is not a record of results"):
        read_records([tmp_path])


def test_a_path_without_records_is_refused(tmp_path):
    (tmp_path / "run" / "fit_results.jsonl").mkdir(parents=True)
    for path in (tmp_path / "nowhere", tmp_path, "x" * 5000, "a\x00b"):
        with pytest.raises(LREError, match=r"there is no fit_results.jsonl in .*: give a run's folder"):
            read_records([path])


# Rows


def test_rows_hold_every_count_once_with_its_score():
    record, expected = full_record(1, edited=4), {}
    grids = [(None, "faithfulness", record.faithful, "beta", 10), (None, "causality", record.causal, "rank", 4)]
    for measure, metric, grid, axis, total in grids:
        for layer, cells in zip(record.layers, grid, strict=True):
            for point, count in zip(getattr(record, f"{axis}s"), cells, strict=True):
                expected[measure, metric, "LRE", layer, axis, point] = count, total, count / total
    for measure, found in record.measures.items():
        for name, tally in found.tallies.items():
            metric, method = name.split(": ") if ": " in name else (name, "LRE")
            by_layer = [(None, tally.sums)]
            if "layer" in tally.axes:
                by_layer = zip(found.layers or record.layers, tally.sums, strict=True)
            (axis,) = {*tally.axes} - {"layer"} or [None]
            for layer, cells in by_layer:
                points = zip(getattr(record, f"{axis}s"), cells, strict=True) if axis else [(None, cells)]
                for point, total in points:
                    count = total if tally.counts else None
                    expected[measure, metric, method, layer, axis, point] = count, tally.total, total / tally.total
    assert expected["baselines", "causality", "oracle", 0, None, None] == (7, 4, 7 / 4)
    assert expected["Jacobian lens", "faithfulness", "mixed", 3, "beta", 2.25] == (4, 10, 0.4)
    assert expected["distributions", "KL", "LRE", 0, "beta", 1.0] == (None, 10, 0.025)
    found = rows([record, BARE])
    assert len(found) == len(expected)
    for row in found:
        assert tuple(row) == COLUMNS
        axis = next((axis for axis in ("beta", "rank") if row[axis] is not None), None)
        place = *(row[name] for name in ("measure", "metric", "method", "layer")), axis, axis and row[axis]
        assert expected[place] == (row["count"], row["total"], row["score"])
        assert row["identity"] == (None if row["layer"] is None else row["layer"] == 0)
        assert row["chosen"] == all(row[name] in (None, getattr(record, name)) for name in ("layer", "beta", "rank"))
        common = ("relation", "trial", "model", "category", "n_shot", "template", "reported")
        assert [row[name] for name in common] == [getattr(record, name) for name in common]


def test_a_data_frame_has_all_scores():
    records = Records([full_record(), full_record(1), BARE])
    frame, found = records.to_pandas(), rows(records)
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == len(found)
    chosen = frame[frame.chosen & (frame.metric == "causality") & (frame.method == "oracle")]
    assert list(chosen.score) == [6 / 8] * 2
    assert records.to_dataset()["layer"][:6] == ["emb", "emb", "0", "0", "3", "3"]


def test_records_show_themselves_as_the_table_of_results(tmp_path):
    write_records([full_record(0), full_record(1)], tmp_path / "fit_results.jsonl")
    shown = read_records(tmp_path)._repr_html_()
    assert shown.count("<tr>") == 2
    assert f"<td>{full_record(0).relation}</td>" in shown


def test_a_trial_that_stopped_at_max_known_is_read_back():
    """Its outcomes are of samples in a drawn order, of which it has not asked all."""
    record = full_record(tested=12, measures={"outcomes": outcomes((3, 1, 1), (40, 0, -1))})
    assert TrialRecord.from_plain(record.plain()).rows_of("outcomes", int, int, int) == ((3, 1, 1), (40, 0, -1))
