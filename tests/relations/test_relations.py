import json
import os
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from random import Random

import pytest

from lre_lightning.errors import LREError
from lre_lightning.prompts import trials as draws
from lre_lightning.prompts.trials import draw, train_prompts
from lre_lightning.relations.json_files import read_json
from lre_lightning.relations.relation import Relation, Sample, check_template
from lre_lightning.relations.sources import load_relations
from tests.helpers import tokenizers_fixtures as tokenizers

CAPITALS = {
    "name": "country capital city",
    "prompt_templates": ["The capital city of {} is", "{}'s capital is"],
    "prompt_templates_zs": ["What is the capital of {}? It is"],
    "properties": {"relation_type": "factual", "domain_name": "country", "range_name": "city", "symmetric": False},
    "samples": [
        {"subject": "France", "object": "Paris"},
        {"subject": "日本", "object": "東京"},
        {"subject": "Frankreich", "object": "Paris"},
        {"subject": "Cafe\u0301 ", "object": "Café"},
    ],
}
with_papers_relations = pytest.mark.skipif(
    not os.environ.get("LRE_RELATIONS_DIR"), reason="LRE_RELATIONS_DIR is not set"
)


def write(path, data, **changes):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data | changes, ensure_ascii=False), encoding="utf-8")
    return path


def load_relation(path):
    (relation,) = read_json(path)
    return relation


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A folder of four relations in two categories."""
    folder = tmp_path / "library"
    for category, names in {"factual": ["city in country", "country capital city"], "bias": ["name gender"]}.items():
        for name in names:
            properties = {"relation_type": category}
            write(folder / category / f"{name.replace(' ', '_')}.json", CAPITALS, name=name, properties=properties)
    write(folder / "bias" / "degree_gender.json", CAPITALS, name="univ degree gender", properties={})
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    return folder


def names(relations):
    return [relation.name for relation in relations]


def test_load_relation(tmp_path):
    relation = load_relation(write(tmp_path / "capitals.json", CAPITALS))
    assert relation == Relation(
        name="country capital city",
        category="factual",
        prompt_templates=("The capital city of {} is", "{}'s capital is"),
        zero_shot_templates=("What is the capital of {}? It is",),
        domain_name="country",
        range_name="city",
        symmetric=False,
        samples=(
            Sample("France", "Paris"),
            Sample("日本", "東京"),
            Sample("Frankreich", "Paris"),
            Sample("Cafe\u0301 ", "Café"),
        ),
    )
    assert relation.objects == ("Paris", "東京", "Café")
    assert relation.template == "The capital city of {} is"
    with pytest.raises(FrozenInstanceError):
        relation.name = "other"


def test_what_may_be_left_out(tmp_path):
    few = {key: CAPITALS[key] for key in ("name", "prompt_templates", "samples")}
    relation = load_relation(write(tmp_path / "geography" / "capitals.json", few))
    assert (relation.category, relation.zero_shot_templates, relation.symmetric) == ("geography", (), False)
    assert (relation.domain_name, relation.range_name) == ("", "")


def test_byte_order_mark(tmp_path):
    path = tmp_path / "capitals.json"
    path.write_text(json.dumps(CAPITALS), encoding="utf-8-sig")
    assert load_relation(path).name == "country capital city"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 3}, "name must be a string, not 3"),
        ({"name": " "}, "name is ' '; it must not be empty"),
        ({"name": None}, "name must be a string, not None"),
        ({"prompt_templates": "The {} is"}, "prompt_templates must be a list, not a string"),
        ({"prompt_templates": []}, "prompt_templates is empty"),
        (
            {"prompt_templates": ["{} is", "no slot"]},
            "prompt_templates[1]: template 'no slot' must have exactly one {}",
        ),
        ({"prompt_templates": ["{} and {}"]}, "prompt_templates[0]: template '{} and {}' must have exactly one {}"),
        ({"prompt_templates": ["{subject} is"]}, "template '{subject} is' must have exactly one {}"),
        ({"prompt_templates": ["{0.__class__} {}"]}, "template '{0.__class__} {}' must have exactly one {}"),
        ({"prompt_templates": [None]}, "prompt_templates[0] must be a string, not None"),
        ({"prompt_templates_zs": ["{"]}, "prompt_templates_zs[0]: template '{' must"),
        ({"properties": []}, "properties must be an object, not a list"),
        ({"properties": {"symmetric": "no"}}, "properties.symmetric must be true or false, not a string"),
        ({"properties": {"relation_type": 1}}, "properties.relation_type must be a string, not 1"),
        ({"samples": {}}, "samples must be a list, not an object"),
        ({"samples": []}, "samples is empty"),
        ({"samples": [{"subject": "a", "object": "b"}, "c"]}, "samples[1] must be an object with subject and object"),
        ({"samples": [{"subject": "a"}]}, "lacks the key 'samples[0].object', which must be a string"),
        ({"samples": [{"subject": "", "object": "b"}]}, "samples[0].subject is ''; it must not be empty"),
        ({"samples": [{"subject": "a", "object": " \n"}]}, r"samples[0].object is ' \n'; it must not be empty"),
        ({"samples": [{"subject": "a", "object": 1924}]}, "samples[0].object must be a string, not 1924"),
    ],
)
def test_broken_relations(tmp_path, changes, message):
    path = write(tmp_path / "broken.json", CAPITALS, **changes)
    with pytest.raises(LREError) as caught:
        load_relation(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("key", ["name", "prompt_templates", "samples"])
def test_missing_keys(tmp_path, key):
    path = write(tmp_path / "broken.json", {k: v for k, v in CAPITALS.items() if k != key})
    with pytest.raises(LREError, match=f"broken.json lacks the key '{key}'"):
        load_relation(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not a JSON file"),
        (b"", "is not a JSON file"),
        (b"\xff\xfe", "is not a JSON file in UTF-8"),
        (b"[" * 100_000, "is not a JSON file"),
        (b"[]", "must hold a JSON object with name, prompt_templates and samples, not a list"),
        (b"null", "must hold a JSON object with name, prompt_templates and samples, not None"),
    ],
)
def test_files_that_are_no_relation(tmp_path, content, message):
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(LREError, match=message) as caught:
        load_relation(path)
    assert str(path) in str(caught.value)


def test_half_a_surrogate_pair(tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(json.dumps(CAPITALS | {"samples": [{"subject": "\ud83d", "object": "b"}]}), encoding="ascii")
    with pytest.raises(LREError, match=r"samples\[0\].subject is '\\ud83d', which has half a surrogate pair"):
        load_relation(path)


def test_files_that_can_not_be_read(tmp_path):
    with pytest.raises(LREError, match=r"can't read the relation .*nowhere.json.*No such file"):
        load_relation(tmp_path / "nowhere.json")
    with pytest.raises(LREError, match=r"can't read the relation .*directory"):
        load_relation(tmp_path)


def test_templates_are_never_formatted():
    check_template("What is the capital of {}?")
    for template in ("{!r}", "{:>9}", "{}{", "}{}", "{{}}", "{} {}"):
        with pytest.raises(LREError, match="exactly one"):
            check_template(template)


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (None, ["univ degree gender", "name gender", "city in country", "country capital city"]),
        ("country capital city", ["country capital city"]),
        ("Country_Capital_CITY", ["country capital city"]),
        ("degree_gender", ["univ degree gender"]),
        ("factual", ["city in country", "country capital city"]),
        ("Bias", ["univ degree gender", "name gender"]),
        (["name gender", "city in country"], ["name gender", "city in country"]),
        (("city in country", "factual"), ["city in country", "country capital city"]),
    ],
)
def test_selecting(library, selection, expected):
    assert names(load_relations(selection, library)) == expected


def test_selecting_by_path(library, tmp_path, monkeypatch):
    monkeypatch.chdir(library)
    assert names(load_relations("bias/name_gender.json", tmp_path / "not looked at")) == ["name gender"]
    assert names(load_relations(str(library / "factual"), tmp_path)) == ["city in country", "country capital city"]
    assert len(load_relations(["./", "factual", str(library)], library)) == 4
    write(library / "extra" / "deep" / "er.json", CAPITALS, name="deeper")
    assert names(load_relations("extra", library / "factual")) == ["deeper"]


def test_where_relations_come_from(library, monkeypatch):
    monkeypatch.setattr("lre_lightning.relations.sources.RELATIONS_DIR", library / "bias")
    assert len(load_relations()) == len(load_relations(source="demo")) == 2
    monkeypatch.setenv("LRE_RELATIONS_DIR", str(library))
    assert len(load_relations()) == 4
    assert len(load_relations(source="demo")) == 2
    assert len(load_relations(source=library / "factual")) == 2
    monkeypatch.setenv("LRE_RELATIONS_DIR", "")
    assert len(load_relations()) == 2


def test_unknown_names(library):
    with pytest.raises(LREError) as caught:
        load_relations("contry capital", library)
    message = str(caught.value)
    assert "'contry capital': did you mean 'country capital city'" in message
    assert "bias, factual" in message
    with pytest.raises(LREError, match="did you mean 'factual'"):
        load_relations(["bias", "factul"], library)
    for bad in ("", "zzzzzz"):
        with pytest.raises(LREError, match=f"no relation, category or path '{bad}': .*library has 4"):
            load_relations(bad, library)
    with pytest.raises(LREError, match="selection of relations is empty"):
        load_relations([], library)
    with pytest.raises(LREError, match="by strings, got 3"):
        load_relations([3], library)


def test_missing_and_empty_folders(library, tmp_path):
    (tmp_path / "empty").mkdir()
    for call in (lambda: load_relations(None, tmp_path / "empty"), lambda: load_relations(str(tmp_path / "empty"))):
        with pytest.raises(LREError, match="empty' has no relation in it"):
            call()
    with pytest.raises(LREError, match=r"no such file or folder of relations: .*nowhere"):
        load_relations("bias", tmp_path / "nowhere")
    with pytest.raises(LREError, match=r"no such file or folder of relations: .*nowhere\.json"):
        load_relations(str(tmp_path / "nowhere.json"), library)


def test_two_relations_of_one_name(library):
    write(library / "more" / "again.json", CAPITALS, name="Name_Gender", properties={"relation_type": "bias"})
    with pytest.raises(LREError, match=r"two different relations are named .*name_gender\.json.*again\.json"):
        load_relations(None, library)
    # The very same one is no harm.
    write(library / "more" / "again.json", CAPITALS, name="name gender", properties={"relation_type": "bias"})
    assert len(load_relations(None, library)) == 4


@with_papers_relations
def test_the_papers_relations():
    relations = load_relations()
    assert len(relations) == 47
    assert Counter(r.category for r in relations) == {"bias": 7, "commonsense": 8, "factual": 26, "linguistic": 6}
    samples = Counter()
    for relation in relations:
        samples[relation.category] += len(relation.samples)
    assert samples == {"bias": 213, "commonsense": 374, "factual": 9_696, "linguistic": 806}
    assert samples.total() == 11_089
    assert all(relation.zero_shot_templates for relation in relations)


def test_the_bundled_relations():
    relations = load_relations(source="demo")
    assert relations
    for relation in relations:
        draw(relation, n_shot=5, trial=0, seed=0)


def numbers(count, copies=1):
    samples = tuple(Sample(f"s{i}", f"o{i}.{copy}") for i in range(count) for copy in range(copies))
    return Relation("numbers", "toy", ("{} is",), (), "", "", False, samples)


def test_a_draw_is_the_same_for_ever():
    assert [sample.subject for sample in draw(numbers(12), n_shot=4, trial=1, seed=7).train] == [
        "s3",
        "s9",
        "s10",
        "s11",
    ]


def test_train_and_test_share_no_subject():
    relation = numbers(10, copies=3)
    for trial in range(20):
        drawn = draw(relation, n_shot=4, trial=trial, seed=0)
        subjects = [sample.subject for sample in drawn.train]
        assert len(set(subjects)) == len(subjects) == 4
        assert drawn.test == tuple(sample for sample in relation.samples if sample.subject not in subjects)
        assert len(drawn.test) == 18
        assert (drawn.relation, drawn.trial) == (relation, trial)


def test_white_space_makes_no_other_subject():
    relation = replace(numbers(3), samples=(Sample("a", "1"), Sample("a ", "2"), Sample("b", "3")))
    for trial in range(10):
        drawn = draw(relation, n_shot=1, trial=trial, seed=0)
        assert {s.subject.strip() for s in drawn.train}.isdisjoint(s.subject.strip() for s in drawn.test)


def test_a_draw_depends_on_the_samples_and_not_on_their_order():
    relation = numbers(20, copies=2)
    shuffled = list(relation.samples)
    Random(3).shuffle(shuffled)
    other = replace(relation, samples=tuple(shuffled))
    assert draw(relation, 5, 2, 0).train == draw(other, 5, 2, 0).train
    assert set(draw(relation, 5, 2, 0).test) == set(draw(other, 5, 2, 0).test)
    # Samples that aren't drawn have no influence either.
    train = draw(relation, 5, 2, 0).train
    fewer = replace(relation, samples=(*train, draw(relation, 5, 2, 0).test[0]))
    assert draw(fewer, 5, 2, 0).train == train


def test_draws_differ_by_trial_seed_and_relation():
    relation = numbers(50)
    keys = [(relation, 8, 0, 0), (relation, 8, 1, 0), (relation, 8, 0, 1), (replace(relation, name="x"), 8, 0, 0)]
    assert len({draw(*key).train for key in keys}) == len(keys)
    assert draw(relation, 8, 0, 0).train[:3] == draw(relation, 3, 0, 0).train


def test_every_sample_is_drawn_about_equally_often():
    relation = numbers(10)
    drawn = Counter(sample for trial in range(400) for sample in draw(relation, 3, trial, 0).train)
    assert len(drawn) == 10
    assert all(90 <= count <= 150 for count in drawn.values()), drawn  # 120, standard deviation 9


def test_too_few_samples():
    with pytest.raises(LREError) as caught:
        draw(numbers(8, copies=2), n_shot=8, trial=0, seed=0)
    assert "'numbers' has 8 distinct subjects, but n_shot=8 needs at least 9" in str(caught.value)
    assert len(draw(numbers(9), n_shot=8, trial=0, seed=0).test) == 1


@pytest.mark.parametrize(
    ("numbers_given", "message"),
    [
        ((0, 0, 0), "n_shot must be a whole number of at least 1, got 0"),
        ((2, -1, 0), "trial must be a whole number of at least 0, got -1"),
        ((2, 0, -3), "seed must be a whole number of at least 0, got -3"),
        ((2.0, 0, 0), r"n_shot must be a whole number of at least 1, got 2\.0"),
        ((True, 0, 0), "n_shot must be a whole number of at least 1, got True"),
        ((2, 0, "0"), "seed must be a whole number of at least 0, got '0'"),
    ],
)
def test_bad_numbers(numbers_given, message):
    with pytest.raises(LREError, match=message):
        draw(numbers(9), *numbers_given)


def test_prompts_of_a_draw():
    tokenizer = tokenizers.make("characters")
    relation = replace(numbers(6), name="x")
    drawn = draw(relation, n_shot=3, trial=0, seed=0)
    a, b, c = drawn.train
    texts = [prompt.text for prompt in train_prompts(drawn, tokenizer)]
    assert texts == [
        f"{b.subject} is {b.object}\n{c.subject} is {c.object}\n{a.subject} is",
        f"{a.subject} is {a.object}\n{c.subject} is {c.object}\n{b.subject} is",
        f"{a.subject} is {a.object}\n{b.subject} is {b.object}\n{c.subject} is",
    ]
    context = "".join(f"{s.subject} is {s.object}\n" for s in drawn.train)
    test = draws.test_prompts(drawn, tokenizer)
    assert [prompt.text for prompt in test] == [f"{context}{sample.subject} is" for sample in drawn.test]
    assert [prompt.object for prompt in test] == [sample.object for sample in drawn.test]


def test_one_shot_has_an_empty_context():
    drawn = draw(numbers(3), n_shot=1, trial=0, seed=0)
    (prompt,) = train_prompts(drawn, tokenizers.make("characters"))
    assert prompt.text == f"{drawn.train[0].subject} is"


def test_a_relations_folder_may_be_a_path_or_a_string(library):
    assert load_relations("bias", str(library)) == load_relations("bias", Path(library))
