"""Relations in plain data and in JSON files, and the errors that list everything wrong with invalid ones."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.relations import json_files
from lre_lightning.relations.json_files import read_folder, read_json, write_relations
from lre_lightning.relations.relation import LONGEST, Relation, Sample
from lre_lightning.relations.schema import InvalidRelation, Problem, check_relation
from lre_lightning.storage.plain import CONTROLS, LONGEST_NAME
from tests.helpers.relations import write

CAPITALS = {
    "name": "country capital city",
    "prompt_templates": ["The capital city of {} is", "{}'s capital is"],
    "prompt_templates_zs": ["What is the capital of {}? It is"],
    "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": True},
    "samples": [{"subject": "France", "object": "Paris"}, {"subject": "日本 ", "object": "東京"}],
}
FEW = {key: CAPITALS[key] for key in ("name", "prompt_templates", "samples")}
RELATION = Relation(
    name="country capital city",
    category="factual",
    prompt_templates=("The capital city of {} is", "{}'s capital is"),
    zero_shot_templates=("What is the capital of {}? It is",),
    domain_name="country",
    range_name="city",
    symmetric=True,
    samples=(Sample("France", "Paris"), Sample("日本 ", "東京")),
)
LETTERS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)


def problems(data, **options):
    with pytest.raises(InvalidRelation) as caught:
        check_relation(data, "x.json", **options)
    return [str(problem) for problem in caught.value.problems]


def samples_with(number, **changes):
    samples = [{"subject": f"s{i}", "object": f"o{i}"} for i in range(20)]
    samples[number] |= changes
    return samples


def test_data_that_follow_the_schema_are_a_relation_and_other_keys_are_ignored():
    assert check_relation(CAPITALS, "x") == RELATION
    noted = CAPITALS | {
        "source": {"url": 3},
        "properties": CAPITALS["properties"] | {"notes": []},
        "samples": [sample | {"id": None} for sample in CAPITALS["samples"]],
    }
    assert check_relation(noted, "x") == RELATION


def test_optional_keys_have_defaults():
    relation = check_relation(FEW, "x", category="geography")
    assert relation == replace(
        RELATION, category="geography", zero_shot_templates=(), domain_name="", range_name="", symmetric=False
    )
    assert check_relation(FEW | {"properties": {"relation_type": ""}}, "x", category="geography").category == ""


def test_a_relation_of_a_table_needs_no_template():
    untemplated = {"name": "n", "samples": CAPITALS["samples"]}
    assert check_relation(untemplated, "x", templates_required=False).prompt_templates == ()
    assert check_relation(untemplated | {"prompt_templates": []}, "x", templates_required=False).templates == ()
    assert problems(untemplated) == ["lacks the key 'prompt_templates', which must be a list"]
    assert len(problems(untemplated | {"prompt_templates": ["no slot"]}, templates_required=False)) == 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": 3}, "name must be a string, not 3"),
        ({"name": " "}, "name is ' '; it must not be empty"),
        ({"name": "x" * 1001}, f"name has 1001 characters, and may have {LONGEST_NAME}: it begins with '{'x' * 47}"),
        ({"name": "\x1b[31m"}, "name is '\\x1b[31m', which contains the control character '\\x1b'"),
        ({"prompt_templates": "The {} is"}, "prompt_templates must be a list, not 'The {} is'"),
        ({"prompt_templates": []}, "prompt_templates is empty; it must hold at least one template such as 'The "),
        ({"prompt_templates": ["{} is", "{a}"]}, "prompt_templates[1] is '{a}'; it must have exactly one {} for the"),
        (
            {"prompt_templates": ["{}" + "x" * 10_000]},
            f"prompt_templates[0] has 10002 characters, and may have {LONGEST}",
        ),
        ({"prompt_templates_zs": None}, "prompt_templates_zs must be a list, not None"),
        ({"prompt_templates_zs": ["{"]}, "prompt_templates_zs[0] is '{'; it must have exactly one {}"),
        ({"properties": []}, "properties must be an object, not a list"),
        ({"properties": {"symmetric": 1}}, "properties.symmetric must be true or false, not 1"),
        ({"properties": {"relation_type": None}}, "properties.relation_type must be a string, not None"),
        ({"samples": []}, "samples is empty; it must hold at least one subject and object"),
        ({"samples": ["c"]}, "samples[0] must be an object with subject and object, not 'c'"),
        ({"samples": [{"subject": "a"}]}, "samples[0] lacks the key 'object', which must be a string"),
        ({"samples": samples_with(17, object=1924)}, "samples[17].object must be a string, not 1924"),
        (
            {"samples": samples_with(17, subject="\ud83d")},
            "samples[17].subject is '\\ud83d', which contains an unpaired surrogate",
        ),
    ],
)
def test_a_problem_names_its_place_the_value_and_what_would_be_right(changes, problem):
    with pytest.raises(InvalidRelation) as caught:
        check_relation(CAPITALS | changes, "x.json")
    (found,) = map(str, caught.value.problems)
    assert found.startswith(problem)
    assert str(caught.value) == f"x.json: {found}"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("data", "kind"), [([], "a list"), (None, "None"), ("x", "'x'")])
def test_data_that_are_not_an_object_are_refused(data, kind):
    message = f"x.json must hold a JSON object with name, prompt_templates and samples, not {kind}"
    with pytest.raises(LREError, match=message):
        check_relation(data, "x.json")


def test_all_problems_are_in_one_message():
    samples = [{"subject": 1, "object": ""}, {"subject": "s", "object": "o"}, 7, {}]
    data = {"prompt_templates": ["{", "{}", 3], "properties": {"symmetric": 0, "domain_name": 1}, "samples": samples}
    with pytest.raises(InvalidRelation) as caught:
        check_relation(data, "capitals.json")
    assert str(caught.value).split("\n") == [
        "'capitals.json' has 10 problems:",
        "  lacks the key 'name', which must be a string",
        "  prompt_templates[0] is '{'; it must have exactly one {} for the subject, and no other brace",
        "  prompt_templates[2] must be a string, not 3",
        "  properties.domain_name must be a string, not 1",
        "  properties.symmetric must be true or false, not 0",
        "  samples[0].subject must be a string, not 1",
        "  samples[0].object is ''; it must not be empty",
        "  samples[2] must be an object with subject and object, not 7",
        "  samples[3] lacks the key 'subject', which must be a string",
        "  samples[3] lacks the key 'object', which must be a string",
    ]


@pytest.mark.parametrize(
    ("count", "first", "last"),
    [
        (20, "'x.json' has 20 problems:", "  samples[19].subject must be a string, not 1"),
        (32, "'x.json' has 32 problems:", "  and 12 more"),
        (100_000, "'x.json' has at least 1000 problems:", "  and at least 980 more"),
    ],
)
def test_a_message_does_not_list_all_of_many_problems(count, first, last):
    with pytest.raises(InvalidRelation) as caught:
        check_relation(CAPITALS | {"samples": [{"subject": 1, "object": "o"}] * count}, "x.json")
    lines = str(caught.value).split("\n")
    assert (lines[0], lines[-1]) == (first, last)
    assert len(caught.value.problems) == min(count, 1000)


def test_problems_far_apart_in_a_list_are_all_found():
    samples = [{"subject": "s", "object": "o"}] * 5000
    for number in (7, 1006, 4999):
        samples[number] = {"subject": "", "object": "o"}
    found = [problem.split(".")[0] for problem in problems(CAPITALS | {"samples": samples})]
    assert found == ["samples[7]", "samples[1006]", "samples[4999]"]


def test_a_message_is_printable():
    data = CAPITALS | {"name": "\n\x1b[31m", "samples": [{"subject": "\u202e\n", "object": "\r"}, {"subject": " \n"}]}
    with pytest.raises(InvalidRelation) as caught:
        check_relation(data, "a\nb\x1b.json")
    assert len(str(caught.value).split("\n")) == 5
    assert all(line.isprintable() for line in str(caught.value).split("\n"))


def test_an_error_can_be_pickled():
    error = InvalidRelation("x.json", [Problem("must be a string", ("name",)), Problem("is empty", ("samples", 3))])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.place, copy.problems) == (str(error), "x.json", error.problems)


ANY_TEXT = st.one_of(
    st.text(max_size=8),
    st.text("{} a\x85\x1c\n\xa0\u2028\u200b\x00\ud83d\ude00", max_size=6),
    st.sampled_from(["x" * LONGEST, "x" * (LONGEST + 1), "é" * LONGEST]),
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(text=ANY_TEXT)
def test_a_text_is_accepted_if_it_has_letters_and_no_control_character(text):
    data = FEW | {"samples": [{"subject": text, "object": "o"}, {"subject": "s", "object": text}]}
    if text.strip() and not CONTROLS.search(text) and len(text) <= LONGEST:
        assert check_relation(data, "x").samples == (Sample(text, "o"), Sample("s", text))
    else:
        assert len(problems(data)) == 2


def test_a_file_may_hold_one_relation_or_a_list_and_a_byte_order_mark(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(CAPITALS), encoding="utf-8-sig")
    assert read_json(tmp_path / "one.json") == [RELATION]
    two = read_json(str(write(tmp_path / "geography" / "two.json", [CAPITALS, FEW | {"name": "other"}])))
    assert [(relation.name, relation.category) for relation in two] == [
        ("country capital city", "factual"),
        ("other", "geography"),
    ]


def test_a_list_names_the_problems_of_all_its_relations(tmp_path):
    path = write(tmp_path / "x.json", [CAPITALS, CAPITALS | {"name": 1}, 3, FEW | {"samples": []}])
    with pytest.raises(InvalidRelation) as caught:
        read_json(path)
    assert list(map(str, caught.value.problems)) == [
        "[1]: name must be a string, not 1",
        "[2] must hold a JSON object with name, prompt_templates and samples, not 3",
        "[3]: samples is empty; it must hold at least one subject and object",
    ]
    assert caught.value.place == str(path)
    with pytest.raises(LREError, match=r"x\.json must hold at least one relation, not an empty list"):
        read_json(write(path, []))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a JSON file in UTF-8: "),
        (b"\xff\xfe", "is not a JSON file in UTF-8: "),
        (b'{"name": "a", "x": {"b": 1, "c": 1, "b": 2}}', "is not a JSON file in UTF-8: it has the key 'b' twice"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_not_json_are_refused(tmp_path, content, message):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LREError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} {message}")


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ("b/a.json", "a.json", "b.json", "B/z/y.json"):
        write(tmp_path / name, FEW, name=name)
    (tmp_path / "b" / "notes.txt").write_text("{")
    found = read_folder(str(tmp_path))
    assert [relation.name for _, relation in found] == ["B/z/y.json", "a.json", "b/a.json", "b.json"]
    assert [path.relative_to(tmp_path).as_posix() for path, _ in found] == [relation.name for _, relation in found]
    assert [relation.category for _, relation in found] == ["z", tmp_path.name, "b", tmp_path.name]


def test_a_folder_names_the_problems_of_all_its_files(tmp_path):
    write(tmp_path / "a" / "one.json", CAPITALS, name=1, samples=[{}] * 600)
    write(tmp_path / "a" / "two.json", CAPITALS)
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").mkdir()
    write(tmp_path / "d.json", [CAPITALS, {}])
    with pytest.raises(InvalidRelation) as caught:
        read_folder(tmp_path)
    message = str(caught.value).split("\n")
    assert message[0] == f"{str(tmp_path)!r} has at least 1000 problems:"
    assert message[1] == "  a/one.json: name must be a string, not 1"
    assert message[2].startswith("  b.json is not a JSON file in UTF-8: Expecting")
    assert message[3] == "  c.json cannot be read: it is not an ordinary file"
    assert message[4] == "  d.json: [1] lacks the key 'name', which must be a string"
    assert message[5] == "  a/one.json: samples[0] lacks the key 'subject', which must be a string"
    assert len(message) == 22


def test_a_single_invalid_file_of_a_folder_is_named_with_its_path(tmp_path):
    write(tmp_path / "a.json", CAPITALS)
    path = write(tmp_path / "b.json", CAPITALS, name=1)
    with pytest.raises(InvalidRelation) as caught:
        read_folder(tmp_path)
    assert str(caught.value) == f"{path}: name must be a string, not 1"


NAMES = ["country capital city", "..", "a/b", "CON", "con", "\u202e", "é", "e\u0301", "x" * 999]


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    relation=st.builds(
        Relation,
        name=st.one_of(LETTERS, st.sampled_from(NAMES)),
        category=st.one_of(LETTERS, st.just(""), st.sampled_from(NAMES)),
        prompt_templates=st.sampled_from([("{}",), ("{} is\n", "Ist {}\u2028é")]),
        zero_shot_templates=st.sampled_from([(), ("What of {}?",)]),
        domain_name=st.one_of(st.just(""), LETTERS),
        range_name=st.one_of(st.just(""), LETTERS),
        symmetric=st.booleans(),
        samples=st.lists(st.builds(Sample, LETTERS, LETTERS), min_size=1, max_size=4).map(tuple),
    )
)
def test_written_relations_are_read_back(tmp_path_factory, relation):
    folder = tmp_path_factory.mktemp("written")
    (path,) = write_relations([relation], folder)
    assert read_folder(folder) == [(path, relation)]


def test_files_are_named_after_their_relations_and_are_distinct(tmp_path):
    relations = [replace(RELATION, name=name) for name in NAMES]
    paths = write_relations(relations, tmp_path / "new" / "folder")
    assert paths[0] == tmp_path / "new" / "folder" / "factual" / "country_capital_city.json"
    assert len({str(path).casefold() for path in paths}) == len(NAMES)
    assert {relation.name for _, relation in read_folder(tmp_path / "new")} == set(NAMES)
    assert '"object": "東京"' in paths[0].read_text(encoding="utf-8")
    assert write_relations([replace(RELATION, category="")], tmp_path) == [tmp_path / "country_capital_city.json"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_templates": ()}, "the relation 'b': prompt_templates is empty"),
        (
            {"samples": (Sample("s", "\ud83d"),)},
            r"the relation 'b': samples\[0\].object is '\\ud83d', which contains an unpaired",
        ),
        ({"name": "country capital city"}, "two relations of the category 'factual' are named 'country capital city'"),
        ({"samples": (Sample("s" * 9000, "o" * 9000),)}, "the relation 'b' takes 18[0-9]* bytes, and a file may have"),
    ],
)
def test_nothing_is_written_if_a_relation_is_invalid(tmp_path, monkeypatch, changes, message):
    monkeypatch.setattr(json_files, "LARGEST_FILE", 15_000)
    with pytest.raises(LREError, match=message):
        write_relations([RELATION, replace(RELATION, **{"name": "b"} | changes)], tmp_path)
    assert list(Path(tmp_path).iterdir()) == []
