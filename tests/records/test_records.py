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
from lre_lightning.records.record import CLOSED_SET_CONTROLS, MEASURES, WHOLE_OBJECTS, TrialRecord
from lre_lightning.records.rows import COLUMNS, rows
from lre_lightning.records.summary import summarize, write_csv
from lre_lightning.report.console import print_results
from lre_lightning.report.relations import relations
from lre_lightning.report.tables import to_csv, to_latex, to_text
from tests.helpers.hostile import PLAIN, changed, little_memory, outcome, recipes, tried
from tests.helpers.records import full_record, unscored_record

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
    assert record.on_whole_objects("closed-set faithfulness") == 8 / 9
    assert record.on_whole_objects("whole-object causality") == 4 / 7
    assert (record.faithfulness("emb", 2.25), record.faithfulness(3, 1.0)) == (0.1, 0.4)
    assert (record.faithfulness("emb", 2.25, zero_shot=True), record.faithfulness(3, 1.0, zero_shot=True)) == (0.8, 0.5)
    assert (record.causality(0, 8), record.causality(3, 4)) == (5 / 8, 1.0)
    assert (record.score("faithful_low_rank", 4), record.score("faithful_low_rank", 32)) == (0.2, 0.5)
    assert record.score("faithful_baselines", 3, method="translation") == 0.6
    assert record.score("zero_shot_baselines", 3, method="translation") == 0.4
    assert record.score("causal_baselines", 0, method="oracle") == 7 / 8
    assert record.score("generic_causal", 3, 8, method="mixed") == 3 / 8
    assert record.chosen_scores == (0.5, 1.0)
    assert BARE.chosen_scores is None
    assert full_record(first_tokens=1).chosen_scores is None


def test_scores_over_a_total_of_zero_are_nan():
    record = full_record(tested=0, edited=0, known=0, whole_objects=dict.fromkeys(LINE["whole_objects"], 0))
    scores = [
        record.faithfulness(0, 1.0),
        record.causality(0, 8),
        record.score("faithful_low_rank", 4),
        record.score("faithful_baselines", 0, method="identity"),
        record.score("causal_baselines", 0, method="object"),
        # Not on the grid, not chosen, or not measured.
        record.score("faithful", 7, 1.0),
        record.score("causal", None, 8),
        record.score("generic_faithful", "emb", 1.0, method="mixed"),
        BARE.score("faithful_baselines", 0, method="identity"),
        *(row["score"] for row in rows([record])),
    ]
    assert all(math.isnan(score) for score in scores)


# Plain data


@pytest.mark.parametrize(
    "record", [BARE, full_record(), full_record(layer="emb", template_index=None, whole_objects={}, generations=())]
)
def test_plain_data_rebuild_the_record(record):
    assert ({"whole_objects", "generations"} <= record.plain().keys()) == bool(record.generations)
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
        ({"faithful_low_rank": [1, 2, 3, 2**53]}, "faithful_low_rank has counts of 1 to 9007199254740992"),
        ({"layers": ["emb", 3, 0]}, "layers must rise"),
        ({"layers": ["emb", 0, "2"]}, "layers.2"),
        ({"betas": [1.0, float("nan")]}, "one of betas must be a number"),
        ({"layer": 7}, "layer 7 is not on the grid"),
        ({"layer": None}, "layer None is not on the grid"),
        ({"beta": 3.0}, "beta 3.0 is not on the grid"),
        ({"causal_baselines": {"magic": [1, 2, 3]}}, "causal_baselines has 'magic', and the baselines are oracle"),
        ({"likeness": []}, "likeness must have 2 entries, one per generic layer"),
        ({"generic_causal": {"mixed": [[1, 2, 3, 4]]}}, "generic_causal must have 2 x 4 counts"),
        ({"whole_objects": {"known": 9}}, "whole_objects must count known, edited, first-token faithfulness, .*, not"),
        ({"whole_objects": {**LINE["whole_objects"], "known": 11}}, "known of whole_objects must be .* of 0 to 10"),
        ({"whole_objects": {**LINE["whole_objects"], "edited": 10}}, "edited of whole_objects must be .* of 0 to 9"),
        (
            {"whole_objects": {**LINE["whole_objects"], "closed-set causality": 8}},
            "closed-set causality of whole_objects must be .* of 0 to 7",
        ),
        ({"measures": {"luck": []}}, "measures has 'luck', and the measures are probability, token rank, "),
        ({"measures": {"KL": [[1.0, 2.0]]}}, "the measure 'KL' must have 3 x 2 sums"),
        ({"identity_layers": [1]}, "identity_layers has 1, which is not on the grid"),
        ({"outcomes": [[0, 1, 1], [0, 1, 1]]}, "outcomes must be of at most 10 test prompts, in order"),
        ({"outcomes": [[-1, 1, 1]]}, "outcomes must be of at most 10 test prompts, in order"),
        ({"outcomes": [[0, 1, 2]]}, "outcomes must be 0 or 1, or -1 without an edit"),
        ({"line_integrals": [[1.0]]}, "line_integrals.0. has 1 entries"),
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


def test_whole_objects_of_earlier_versions_have_no_controls_and_another_name():
    now = full_record()
    earlier = {name: count for name, count in now.whole_objects.items() if name not in CLOSED_SET_CONTROLS}
    line = {**LINE, "whole_objects": {name.replace("first-token", "whole-object"): n for name, n in earlier.items()}}
    found = TrialRecord.from_plain(line)
    assert found == replace(now, whole_objects=earlier)
    assert found.on_whole_objects("first-token faithfulness") == 6 / 9
    assert all(math.isnan(found.on_whole_objects(name)) for name in CLOSED_SET_CONTROLS)


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


@pytest.mark.parametrize("other", [{"known": 9}, {"faithful_low_rank": (2, 3, 4, 6)}, {"reported": True}])
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


GRID_ROWS = {  # by the field of counts: metric, prompt, axis beside the layer, and what the counts are out of
    "faithful": ("faithfulness", "few-shot", "beta", 10),
    "faithful_zero_shot": ("faithfulness", "zero-shot", "beta", 10),
    "causal": ("causality", "few-shot", "rank", 4),
    "faithful_baselines": ("faithfulness", "few-shot", None, 10),
    "zero_shot_baselines": ("faithfulness", "zero-shot", None, 10),
    "causal_baselines": ("causality", "few-shot", None, 4),
    "generic_faithful": ("faithfulness", "few-shot", "beta", 10),
    "generic_causal": ("causality", "few-shot", "rank", 4),
}


def test_rows_hold_every_count_once_with_its_score():
    record, expected = full_record(1, edited=4), {}
    for field, (metric, prompt, axis, total) in GRID_ROWS.items():
        counts, layers = getattr(record, field), record.generic_layers if "generic" in field else record.layers
        for method, grid in counts.items() if isinstance(counts, dict) else [("LRE", counts)]:
            for layer, cells in zip(layers, grid, strict=True):
                for point, count in zip(getattr(record, f"{axis}s"), cells, strict=True) if axis else [(None, cells)]:
                    expected[metric, method, prompt, layer, axis, point] = count, total, count / total
    for name, (axes, over) in MEASURES.items():
        for layer, sums in zip(record.layers, record.measures[name], strict=True):
            for point, total in zip(getattr(record, axes) if axes else [None], sums, strict=True):
                score = total / getattr(record, over)
                expected[name, "LRE", "few-shot", layer, axes[:-1] or None, point] = None, getattr(record, over), score
    for name, count, total in zip(WHOLE_OBJECTS, (6, 8, 3, 2, 4, 5), (9, 9, 9, 7, 7, 7), strict=True):
        axis, point = ("beta", 2.25) if "faithfulness" in name else ("rank", 4)
        expected[name, "LRE", "few-shot", 3, axis, point] = count, total, count / total
    for name, count in (("training", 3), ("data", 6)):
        expected["faithfulness", f"majority of {name}", "few-shot", None, None, None] = count, 10, count / 10
    found = rows([record, BARE])
    assert len(found) == len(expected)
    for row in found:
        assert tuple(row) == COLUMNS
        axis = next((axis for axis in ("beta", "rank") if row[axis] is not None), None)
        place = *(row[name] for name in ("metric", "method", "prompt", "layer")), axis, axis and row[axis]
        assert expected[place] == (row["count"], row["total"], row["score"])
        assert row["identity"] == (None if row["layer"] is None else row["layer"] == 0)
        at = (row[name] in (None, getattr(record, name)) for name in ("layer", "beta", "rank"))
        assert row["chosen"] == (all(at) and row["layer"] is not None)
        common = ("relation", "trial", "model", "category", "n_shot", "template", "reported")
        assert [row[name] for name in common] == [getattr(record, name) for name in common]


def test_a_data_frame_has_all_scores():
    records = Records([full_record(), full_record(1), BARE])
    frame = records.to_pandas()
    assert list(frame.columns) == list(COLUMNS)
    assert len(frame) == len(rows(records)) == len(records.to_dataset())


def test_records_show_themselves_as_the_table_of_results(tmp_path):
    write_records([full_record(0), full_record(1)], tmp_path / "fit_results.jsonl")
    shown = read_records(tmp_path)._repr_html_()
    assert shown.count("<tr>") == 2
    assert f"<td>{full_record(0).relation}</td>" in shown


def test_a_trial_that_stopped_at_max_known_is_read_back():
    """Its outcomes are of samples in a drawn order, of which it has not asked all."""
    record = full_record(tested=12, outcomes=((3, 1, 1), (40, 0, -1)))
    assert TrialRecord.from_plain(record.plain()).outcomes == record.outcomes
