"""Records of results in files: written, read, merged, and as rows of a data frame."""

import dataclasses
import json
import math

import pytest

from lre_lightning.errors import LREError
from lre_lightning.records.record import COLUMNS, TrialRecord, append_records, read_records, rows, write_records

BARE = TrialRecord("capital", "factual", 0, samples=20, range_size=4, tested=12, known=10)


def full(trial=0, relation="capital", **changes):
    """A record in which every field has a value of its own, and no two counts of a score are equal."""
    fields = {
        "category": "factual",
        "samples": 20,
        "range_size": 4,
        "tested": 12,
        "known": 10,
        "layers": ("emb", 0, 3),
        "betas": (1.0, 2.25),
        "ranks": (4, 8, 16, 32),
        "faithful": ((0, 1), (2, 3), (4, 5)),
        "causal": ((0, 1, 2, 3), (4, 5, 6, 7), (8, 1, 0, 2)),
        "edited": 8,
        "layer": 3,
        "beta": 2.25,
        "rank": 4,
        "model": "gpt2",
        "n_shot": 5,
        "template": "The capital of {} is",
        "template_index": 1,
        "first_tokens": 3,
        "reported": False,
        "faithful_baselines": {"linear regression": (1, 2, 3), "translation": (4, 5, 6), "identity": (7, 8, 9)},
        "faithful_zero_shot": ((9, 8), (7, 6), (5, 4)),
        "zero_shot_baselines": {"linear regression": (3, 2, 1), "translation": (6, 5, 4), "identity": (9, 8, 7)},
        "causal_baselines": {"oracle": (8, 7, 6), "unembedding": (5, 4, 3), "object": (2, 1, 0)},
        "faithful_low_rank": (2, 3, 4, 5),
        "line_integrals": ((1.5, 1.25), (0.1, 1e-9)),
        "train": (("France", "Paris"), ("日本", "東京")),
        "seed": 7,
        "digest": "0a" * 32,
        "prompts": {"separator": "; ", "shots": 2, "chat": False, "system": None, "sampling": "balanced"},
    }
    return TrialRecord(relation=relation, trial=trial, **{**fields, **changes})


def test_a_full_record_has_a_value_for_every_field():
    plain = full().plain()
    assert set(plain) == {field.name for field in dataclasses.fields(TrialRecord)}
    assert [name for name, value in BARE.plain().items() if plain[name] == value] == [
        "relation",
        "category",
        "trial",
        "samples",
        "range_size",
        "tested",
        "known",
    ]


# Scores


def test_scores_are_shares_of_what_was_counted():
    record = full()
    assert record.scored
    assert not BARE.scored
    assert record.random_guess == 0.25
    assert (record.faithfulness("emb", 2.25), record.faithfulness(3, 1.0)) == (0.1, 0.4)
    assert (record.faithfulness("emb", 2.25, zero_shot=True), record.faithfulness(3, 1.0, zero_shot=True)) == (0.8, 0.5)
    assert (record.causality(0, 8), record.causality(3, 4)) == (5 / 8, 1.0)
    assert (record.low_rank_faithfulness(4), record.low_rank_faithfulness(32)) == (0.2, 0.5)
    assert record.faithfulness_baseline("translation", 3) == 0.6
    assert record.faithfulness_baseline("translation", 3, zero_shot=True) == 0.4
    assert record.causality_baseline("oracle", 0) == 7 / 8
    assert record.chosen_scores == (0.5, 1.0)
    assert BARE.chosen_scores is None


def test_a_score_of_nothing_is_nan():
    record = full(edited=0, known=0)
    scores = [
        record.faithfulness(0, 1.0),
        record.causality(0, 8),
        record.low_rank_faithfulness(4),
        record.faithfulness_baseline("identity", 0),
        record.causality_baseline("object", 0),
    ]
    assert all(math.isnan(score) for score in scores)


# Plain data


@pytest.mark.parametrize("record", [BARE, full(), full(layer="emb", template_index=None)])
def test_plain_data_becomes_the_same_record_also_from_lists(record):
    assert TrialRecord.from_plain(record.plain()) == record
    again = TrialRecord.from_plain(json.loads(json.dumps(record.plain())))
    assert again == record
    assert type(again.faithful) is type(again.line_integrals) is tuple
    assert all(type(counts) is tuple for counts in (*again.causal, *again.causal_baselines.values()))


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TrialRecord)])
def test_a_missing_field_is_refused(name):
    data = full().plain()
    del data[name]
    with pytest.raises(LREError, match=f"this is not a record of results: KeyError '{name}'"):
        TrialRecord.from_plain(data)


@pytest.mark.parametrize("data", [[], 3, None, "relation"])
def test_other_data_are_refused(data):
    with pytest.raises(LREError, match="this is not a record of results: TypeError"):
        TrialRecord.from_plain(data)


# Files


NAMES = {
    "plain": "capital",
    "not in ASCII": "Hauptstädte, 首都 🏙",
    "escaped": 'with "quotes", tabs\t and\nlines',
    "line ends of Unicode": "\u2028 and \x85 and \x0b end lines elsewhere",
}


@pytest.mark.parametrize("kind", NAMES)
def test_records_survive_in_a_file_one_a_line(tmp_path, kind):
    name = NAMES[kind]
    records = [full(trial, name, template=name + " {}") for trial in range(6)]
    path = tmp_path / "new" / "folder" / "fit_results.jsonl"
    write_records(records[:2], path)
    append_records(records[2:5], path)
    append_records(records[5:], path)
    text = path.read_bytes().decode("utf-8")
    assert text.count("\n") == len(records)
    assert text.endswith("}\n")
    assert ("首都" in text) == (kind == "not in ASCII")
    assert read_records([path]) == records
    assert [entry.name for entry in path.parent.iterdir()] == ["fit_results.jsonl"]


def test_a_file_is_json_without_nan(tmp_path):
    path = tmp_path / "fit_results.jsonl"
    write_records([full(), BARE, full(1, known=0, edited=0)], path)

    def refuse(constant):
        raise AssertionError(constant)

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["trial"] for line in lines] == [0, 0, 1]
    assert all(set(line) == set(full().plain()) for line in lines)


def test_no_records_make_an_empty_file(tmp_path):
    write_records([], tmp_path / "fit_results.jsonl")
    assert read_records([tmp_path]) == []


def test_files_and_folders_are_merged_in_their_order(tmp_path):
    write_records([full(1)], tmp_path / "b" / "deep" / "fit_results.jsonl")
    write_records([full(0), BARE], tmp_path / "a" / "fit_results.jsonl")
    write_records([full(2)], tmp_path / "a" / "validate_results.jsonl")
    write_records([full(3)], tmp_path / "own name.jsonl")
    assert read_records([tmp_path]) == [full(0), BARE, full(1)]
    assert read_records([tmp_path / "b", str(tmp_path / "a")]) == [full(1), full(0), BARE]
    assert read_records([tmp_path / "own name.jsonl", tmp_path / "b"]) == [full(3), full(1)]


def test_equal_records_come_once(tmp_path):
    for name, trials in (("a", (0, 1)), ("b", (1, 2, 0))):
        write_records([full(trial) for trial in trials], tmp_path / name / "fit_results.jsonl")
    assert read_records([tmp_path]) == [full(0), full(1), full(2)]
    path = tmp_path / "a" / "fit_results.jsonl"
    assert read_records([path, tmp_path / "a", path]) == [full(0), full(1)]


@pytest.mark.parametrize(
    "other",
    [{"trial": 1}, {"relation": "mother"}, {"model": "gptj"}, {"n_shot": 8}, {"template": "{}"}, {"template_index": 0}],
)
def test_records_of_other_prompts_stand_beside_each_other(tmp_path, other):
    records = [full(), dataclasses.replace(full(), **other, known=11)]
    write_records(records, tmp_path / "fit_results.jsonl")
    assert read_records([tmp_path]) == records


@pytest.mark.parametrize("other", [{"known": 9}, {"faithful_low_rank": (2, 3, 4, 6)}, {"reported": True}])
def test_different_records_of_the_same_prompts_are_refused(tmp_path, other):
    one, two = tmp_path / "a" / "fit_results.jsonl", tmp_path / "b" / "fit_results.jsonl"
    write_records([full()], one)
    write_records([dataclasses.replace(full(), **other)], two)
    message = rf"'{one}' and '{two}' both have trial 0 of 'capital' \(n = 5, 'The capital of \{{\}} is'\)"
    with pytest.raises(LREError, match=message + ", with different counts: give one of them"):
        read_records([one, two])


@pytest.mark.parametrize(("cut", "line"), [(-5, 2), (-400, 2), (30, 1)])
def test_a_line_that_was_cut_short_is_named(tmp_path, cut, line):
    path = tmp_path / "fit_results.jsonl"
    write_records([full(0), full(1)], path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(LREError, match=f"fit_results.jsonl', line {line}, is not a record of results"):
        read_records([tmp_path])


def test_a_line_that_was_cut_within_a_character_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "fit_results.jsonl"
    write_records([full(relation="首都")], path)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index("首".encode()) + 1])
    with pytest.raises(LREError, match=r"fit_results\.jsonl"):
        read_records([path])


@pytest.mark.parametrize("line", ["[]", "3", '{"relation": "capital"}', "null", ""])
def test_lines_that_are_not_records_are_named(tmp_path, line):
    path = tmp_path / "fit_results.jsonl"
    path.write_text(json.dumps(full().plain()) + "\n" + line + "\n")
    with pytest.raises(LREError, match="line 2, is not a record of results"):
        read_records([path])


def test_what_is_not_there_is_refused(tmp_path):
    with pytest.raises(LREError, match=r"there is no fit_results.jsonl in '.*nowhere': give a run's folder"):
        read_records([tmp_path / "nowhere"])
    with pytest.raises(LREError, match=r"there is no fit_results.jsonl in"):
        read_records([tmp_path])


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "fit_results.jsonl"
    write_records([BARE], path)

    def broken():
        yield full()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_records(broken(), path)
    assert read_records([path]) == [BARE]


# Rows


def expected_score(record, row):
    layer, few_shot = row["layer"], row["prompt"] == "few-shot"
    if row["method"] == "LRE" and row["metric"] == "faithfulness":
        return record.faithfulness(layer, row["beta"], zero_shot=not few_shot)
    if row["method"] == "LRE":
        return record.causality(layer, row["rank"])
    if row["metric"] == "faithfulness":
        return record.faithfulness_baseline(row["method"], layer, zero_shot=not few_shot)
    return record.causality_baseline(row["method"], layer)


def test_rows_hold_every_count_once_as_the_records_methods_have_it():
    records = {(record.relation, record.trial): record for record in (full(), full(1, edited=4), full(0, "mother"))}
    found = rows([*records.values(), BARE])
    assert len(found) == 3 * 3 * (2 + 2 + 4 + 3 + 3 + 3)  # records, layers, and what there is at each
    names = ("relation", "trial", "metric", "method", "prompt", "layer", "beta", "rank")
    assert len({tuple(row[name] for name in names) for row in found}) == len(found)
    for row in found:
        assert tuple(row) == COLUMNS
        record = records[row["relation"], row["trial"]]
        assert row["score"] == row["count"] / row["total"] == expected_score(record, row)
        assert row["total"] == (10 if row["metric"] == "faithfulness" else record.edited)
        common = ("model", "category", "n_shot", "template", "reported")
        assert [row[name] for name in common] == [getattr(record, name) for name in common]
        on_grid = row["method"] == "LRE"
        assert (row["beta"] in record.betas) == (on_grid and row["metric"] == "faithfulness")
        assert (row["rank"] in record.ranks) == (on_grid and row["metric"] == "causality")
        assert (row["beta"] is None) + (row["rank"] is None) == (1 if on_grid else 2)


def test_rows_of_a_record_without_baselines_are_its_grid():
    record = full(faithful_baselines={}, faithful_zero_shot=(), zero_shot_baselines={}, causal_baselines={})
    found = rows([record])
    assert [row["count"] for row in found if row["metric"] == "faithfulness"] == [0, 1, 2, 3, 4, 5]
    assert [row["count"] for row in found if row["metric"] == "causality"] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 2]
    assert {(row["method"], row["prompt"]) for row in found} == {("LRE", "few-shot")}


def test_scores_of_nothing_are_nan_in_rows():
    assert all(math.isnan(row["score"]) for row in rows([full(known=0, edited=0)]))
