"""Loading relations by name, category or path."""

from collections import Counter
from dataclasses import FrozenInstanceError

import pytest

from lre_lightning.errors import LREError
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.sources import load_relations
from tests.helpers.relations import with_papers_relations, write


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A folder of four relations in two categories."""
    folder = tmp_path / "library"
    for name in ("factual/city in country", "factual/country capital city", "bias/name gender"):
        write(folder / f"{name.replace(' ', '_')}.json", name=name.partition("/")[2])
    write(folder / "bias" / "degree_gender.json", name="univ degree gender")
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    return folder


def names(relations):
    return [relation.name for relation in relations]


def test_a_relation_knows_its_objects_and_function_and_is_frozen():
    def of(*samples):
        return Relation("n", "c", ("{} is",), ("What is {}?",), "", "", False, tuple(Sample(*s) for s in samples))

    relation = of(("France", "Paris"), ("Japan", "Tokyo"), ("Frankreich", "Paris"))
    assert (relation.objects, relation.function) == (("Paris", "Tokyo"), "many-to-one")
    assert (relation.template, relation.templates) == ("{} is", ("{} is", "What is {}?"))
    assert of(("a", "b"), ("c", "d")).function == "one-to-one"
    assert of(("a", "b"), ("a ", "d")).function == "one-to-many"
    assert of(("a", "b"), ("a", "d"), ("c", "d")).function == "many-to-many"
    with pytest.raises(FrozenInstanceError):
        relation.name = "other"


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
def test_relations_are_selected_by_name_or_category(library, selection, expected):
    assert names(load_relations(selection, library)) == expected


def test_relations_are_excluded_by_name(library):
    bias = load_relations("bias", library, exclude=["Name_Gender", "city in country"])
    assert names(bias) == ["univ degree gender"]


def test_relations_are_selected_by_path(library, tmp_path, monkeypatch):
    monkeypatch.chdir(library)
    assert names(load_relations("bias/name_gender.json", tmp_path / "not looked at")) == ["name gender"]
    assert names(load_relations(str(library / "factual"), tmp_path)) == ["city in country", "country capital city"]
    assert len(load_relations(["./", "factual", str(library)], library)) == 4
    write(library / "extra" / "deep" / "er.json", name="deeper")
    assert names(load_relations("extra", library / "factual")) == ["deeper"]


def test_an_environment_variable_names_the_default_source(library, monkeypatch):
    monkeypatch.setattr("lre_lightning.relations.sources.RELATIONS_DIR", library / "bias")
    assert len(load_relations()) == len(load_relations(source="demo")) == 2
    monkeypatch.setenv("LRE_RELATIONS_DIR", str(library))
    assert len(load_relations()) == 4
    assert len(load_relations(source="demo")) == 2
    assert len(load_relations(source=str(library / "factual"))) == 2
    monkeypatch.setenv("LRE_RELATIONS_DIR", "")
    assert len(load_relations()) == 2


@pytest.mark.parametrize(
    ("selection", "options", "message"),
    [
        ("contry capital", {}, "'contry capital': did you mean 'country capital city'.* the categories bias, factual"),
        (["bias", "factul"], {}, "did you mean 'factual'"),
        ("", {}, "no relation, category or path '': .*library has the categories"),
        ("zzzzzz", {}, "no relation, category or path 'zzzzzz': .*library has the categories"),
        ([], {}, "selection of relations is empty"),
        ([3], {}, "by strings, got 3"),
        ("bias", {"exclude": ["nmae gender"]}, "no relation, category or path 'nmae gender': did you mean 'name g"),
        ("name gender", {"exclude": ["name gender"]}, "all selected relations are excluded"),
        (None, {"source": "empty"}, "empty' has no relation in it"),
        ("./empty", {}, "empty' has no relation in it"),
        ("bias", {"source": "nowhere"}, "no such file or folder of relations: .*nowhere"),
        ("./nowhere.json", {}, r"no such file or folder of relations: .*nowhere\.json"),
        ("~nobody-of-that-name/x", {}, "no such file or folder of relations: '~nobody-of-that-name/x'"),
        ("./" + "x" * 5000, {}, "no such file or folder of relations"),
        ("./a\x00b.json", {}, "no such file or folder of relations"),
        ("bias", {"source": "./a\x00b"}, "no such file or folder of relations"),
    ],
)
def test_the_error_of_a_selection_says_what_there_is(library, monkeypatch, selection, options, message):
    monkeypatch.chdir(library.parent)
    (library.parent / "empty").mkdir()
    with pytest.raises(LREError, match=message):
        load_relations(selection, **{"source": library} | options)


def test_two_different_relations_may_not_share_a_name(library):
    write(library / "more" / "again.json", name="Name_Gender")
    with pytest.raises(LREError, match=r"two different relations are named .*name_gender\.json.*again\.json"):
        load_relations(None, library)
    write(library / "more" / "again.json", name="name gender", properties={"relation_type": "bias"})  # the same one
    assert len(load_relations(None, library)) == 4


@with_papers_relations
def test_the_papers_relations():
    relations = load_relations()
    assert Counter(r.category for r in relations) == {"bias": 7, "commonsense": 8, "factual": 26, "linguistic": 6}
    samples = Counter(relation.category for relation in relations for _ in relation.samples)
    assert samples == {"bias": 213, "commonsense": 374, "factual": 9_696, "linguistic": 806}
    assert all(relation.zero_shot_templates for relation in relations)


def test_the_bundled_relations():
    relations = load_relations(source="demo")
    assert len(relations) == 27
    assert all(len({sample.name for sample in relation.samples}) > 5 for relation in relations)
