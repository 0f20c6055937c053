"""Relations in plain data and in JSON files, and the errors that list everything wrong with invalid ones."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.relations.json_files import read_folder, read_json, write_relations
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.schema import Problems, check_relation
from lre_lightning.storage.plain import LONGEST_NAME
from tests.helpers import relations
from tests.helpers.hostile import tried
from tests.helpers.relations import write

CAPITALS = relations.CAPITALS | {
    "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": True},
    "samples": [{"subject": "France", "object": "Paris"}, {"subject": "日本 ", "object": "東京"}],
}
FEW = {key: CAPITALS[key] for key in ("name", "prompt_templates", "samples")}
FEW_SHOT, ZERO_SHOT = ("The capital city of {} is", "{}'s capital is"), ("What is the capital of {}? It is",)
SAMPLES = (Sample("France", "Paris"), Sample("日本 ", "東京"))
RELATION = Relation("country capital city", "factual", FEW_SHOT, ZERO_SHOT, "country", "city", True, SAMPLES)
LETTERS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=12).filter(str.strip)


def checked(data, at="x.json", **options):
    problems = Problems()
    relation = check_relation(data, at, problems, **options)
    problems.raise_all()
    return relation


def message(data, **options):
    with pytest.raises(LREError) as caught:
        checked(data, **options)
    return str(caught.value)


def test_data_that_follow_the_schema_are_a_relation_and_other_keys_are_ignored():
    assert checked(CAPITALS) == RELATION
    noted = CAPITALS | {
        "source": {"url": 3},
        "properties": CAPITALS["properties"] | {"notes": []},
        "samples": [sample | {"id": None} for sample in CAPITALS["samples"]],
    }
    assert checked(noted) == RELATION


def test_optional_keys_have_defaults():
    without = {"zero_shot_templates": (), "domain_name": "", "range_name": "", "symmetric": False}
    assert checked(FEW, category="geography") == replace(RELATION, category="geography", **without)
    assert checked(FEW | {"properties": {"relation_type": ""}}, category="geography").category == ""
    untemplated = {"name": "n", "samples": CAPITALS["samples"]}
    assert checked(untemplated, templates_required=False).templates == ()
    assert message(untemplated) == "x.json lacks the key 'prompt_templates'"
    assert checked(FEW | {"name": "x" * LONGEST_NAME}).name == "x" * LONGEST_NAME


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": 3}, "name must be a string, not 3"),
        ({"name": " "}, "name is ' '; it must not be empty"),
        (
            {"name": "x" * 1001},
            f"name has 1001 characters, over the limit of {LONGEST_NAME}: it begins with '{'x' * 47}",
        ),
        ({"name": "\x1b[31m"}, "name is '\\x1b[31m', which contains the control character '\\x1b'"),
        ({"prompt_templates": "The {} is"}, "prompt_templates must be a list, not 'The {} is'"),
        ({"prompt_templates": []}, "prompt_templates is empty; it must hold at least one entry"),
        ({"prompt_templates": ["{} is", "{} {a}"]}, "prompt_templates[1] is '{} {a}'; it must have exactly one {}"),
        ({"prompt_templates": ["{}" + "x" * 10_000]}, "prompt_templates[0] has 10002 characters, over the limit"),
        ({"prompt_templates_zs": None}, "prompt_templates_zs must be a list, not None"),
        ({"prompt_templates_zs": [3]}, "prompt_templates_zs[0] must be a string, not 3"),
        ({"properties": []}, "properties must be an object with names for keys, not a list"),
        ({"properties": {"symmetric": 1}}, "properties.symmetric must be true or false, not 1"),
        ({"properties": {"relation_type": None}}, "properties.relation_type must be a string, not None"),
        ({"samples": []}, "samples is empty; it must hold at least one entry"),
        ({"samples": ["c"]}, "samples[0] must be an object with names for keys, not 'c'"),
        ({"samples": [{"subject": "a", "object": "b"}, {"subject": "a"}]}, "samples[1] lacks the key 'object'"),
        ({"samples": [{"subject": "a", "object": 1924}]}, "samples[0].object must be a string, not 1924"),
        ({"samples": [{"subject": "\ud83d", "object": "b"}]}, "samples[0].subject is '\\ud83d', which contains an u"),
    ],
)
def test_a_problem_names_its_place_the_value_and_what_would_be_right(changes, problem):
    found = message(CAPITALS | changes)
    assert found.startswith(f"x.json: {problem}")
    assert len(found) < 300


def test_all_problems_are_in_one_message():
    samples = [{"subject": 1, "object": ""}, {"subject": "s", "object": "o"}, 7, {}]
    data = {"prompt_templates": ["{", "{}", 3], "properties": {"symmetric": 0}, "samples": samples}
    assert message(data).split("\n") == [
        "the relations have 9 problems:",
        "  x.json lacks the key 'name'",
        "  x.json: properties.symmetric must be true or false, not 0",
        "  x.json: prompt_templates[0] is '{'; it must have exactly one {} for the subject, and no other brace",
        "  x.json: prompt_templates[2] must be a string, not 3",
        "  x.json: samples[0].subject must be a string, not 1",
        "  x.json: samples[0].object is ''; it must not be empty",
        "  x.json: samples[2] must be an object with names for keys, not 7",
        "  x.json: samples[3] lacks the key 'subject'",
        "  x.json: samples[3] lacks the key 'object'",
    ]
    for data, kind in (([], "a list"), (None, "None"), ("x", "'x'")):
        assert message(data) == f"x.json must hold an object with name, prompt_templates and samples, not {kind}"
    with pytest.raises(ZeroDivisionError), Problems():
        _ = 1 / 0


@pytest.mark.parametrize(
    ("count", "last"), [(20, "  x.json: samples[19].subject must be a string, not 1"), (100_000, "  and 99980 more")]
)
def test_a_message_does_not_list_all_of_many_problems(count, last):
    lines = message(CAPITALS | {"samples": [{"subject": 1, "object": "o"}] * count}).split("\n")
    assert (lines[0], lines[-1]) == (f"the relations have {count} problems:", last)


def test_a_message_is_printable():
    data = CAPITALS | {"name": "\n\x1b[31m", "samples": [{"subject": "\u202e\n", "object": "\r"}, {"subject": " \n"}]}
    lines = message(data, at="a\nb\x1b.json").split("\n")
    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)


def test_a_file_may_hold_one_relation_or_a_list_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "one.json"
    path.write_text(json.dumps(CAPITALS), encoding="utf-8-sig")
    assert read_json(path) == [(path, RELATION)]
    two = read_json(write(tmp_path / "geography" / "two.json", [CAPITALS, FEW | {"name": "other"}]))
    assert [(r.name, r.category) for _, r in two] == [("country capital city", "factual"), ("other", "geography")]


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path):
    for name in ("b/a.json", "a.json", "b.json", "B/z/y.json"):
        write(tmp_path / name, FEW, name=name)
    (tmp_path / "b" / "notes.txt").write_text("{")
    found = read_folder(str(tmp_path))
    assert [relation.name for _, relation in found] == ["B/z/y.json", "a.json", "b/a.json", "b.json"]
    assert [path.relative_to(tmp_path).as_posix() for path, _ in found] == [relation.name for _, relation in found]
    assert [relation.category for _, relation in found] == ["z", tmp_path.name, "b", tmp_path.name]


def test_the_problems_of_all_files_of_a_folder_are_in_one_message(tmp_path):
    write(tmp_path / "a" / "one.json", CAPITALS, name=1)
    write(tmp_path / "a" / "two.json", CAPITALS)
    write(tmp_path / "d.json", [CAPITALS, 3, FEW | {"samples": []}])
    (tmp_path / "c.json").mkdir()
    (tmp_path / "e.json").write_text("[]")
    with pytest.raises(LREError) as caught:
        read_folder(tmp_path)
    assert str(caught.value).replace(f"{tmp_path}/", "").split("\n") == [
        "the relations have 5 problems:",
        "  a/one.json: name must be a string, not 1",
        "  c.json cannot be read: it is not an ordinary file",
        "  d.json[1] must hold an object with name, prompt_templates and samples, not 3",
        "  d.json[2]: samples is empty; it must hold at least one entry",
        "  e.json must hold at least one relation, not an empty list",
    ]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not a JSON file in UTF-8: "),
        (b"\xff\xfe", "is not a JSON file in UTF-8: "),
        (b'{"name": "a", "x": {"b": 1, "c": 1, "b": 2}}', "is not a JSON file in UTF-8: it has the key 'b' twice"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_files_that_are_not_json_are_refused(tmp_path, content, reason):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(LREError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path} {reason}")


NAMES = ["country capital city", "..", "a/b", "CON", "con", "\u202e", "é", "e\u0301", "x" * 999]


@tried(25)
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
    paths = write_relations([replace(RELATION, name=name) for name in NAMES], tmp_path / "new" / "folder")
    assert paths[0] == tmp_path / "new" / "folder" / "factual" / "country_capital_city.json"
    assert len({str(path).casefold() for path in paths}) == len(NAMES)
    assert {relation.name for _, relation in read_folder(tmp_path / "new")} == set(NAMES)
    assert '"object": "東京"' in paths[0].read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"prompt_templates": ()}, "the relation 'b': prompt_templates is empty"),
        ({"samples": (Sample("s", "\ud83d"),)}, r"the relation 'b': samples\[0\].object is '\\ud83d', which contains"),
        ({"name": "country capital city"}, "two relations of the category 'factual' are named 'country capital city'"),
    ],
)
def test_nothing_is_written_if_a_relation_is_invalid(tmp_path, changes, problem):
    with pytest.raises(LREError, match=problem):
        write_relations([RELATION, replace(RELATION, **{"name": "b"} | changes)], tmp_path)
    assert list(tmp_path.iterdir()) == []
