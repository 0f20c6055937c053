"""Where relations come from: one option for all of it, by name, category or path, and what is chosen of them."""

import json
from collections import Counter
from dataclasses import FrozenInstanceError, replace
from random import Random
from unittest.mock import Mock

import pytest
from datasets import Dataset, DatasetDict

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.prompts.options import Prompts
from lre_lightning.relations.json_files import write_relations
from lre_lightning.relations.published import Published
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.selection import Selection, cap
from lre_lightning.relations.sources import load_relations, plain_source
from tests.helpers import toy
from tests.helpers.relations import with_papers_relations, write
from tests.relations.test_tables import rows_of

SIX = tuple(Sample(f"country {i}", f"city {i}") for i in range(6))
CAPITALS = Relation("capital", "factual", ("The capital of {} is",), (), "country", "city", False, SIX)
CITIES = replace(CAPITALS, name="largest city", samples=tuple(Sample(f"land {i}", f"town {i % 3}") for i in range(9)))
SPOKEN = (Sample("Belgium", "French"), Sample("Belgium", "Dutch"), Sample("France", "French"))
MANY = replace(CAPITALS, name="language", range_name="language", samples=SPOKEN)
BORDERS = replace(CAPITALS, name="part", samples=(Sample("a", "b"), Sample("a", "c"), Sample("d", "e")), symmetric=True)
ALL = [CAPITALS, CITIES, MANY, BORDERS]


@pytest.fixture
def sources(tmp_path):
    """The same two relations from everywhere."""
    relations, table = [CAPITALS, CITIES], Dataset.from_list(list(rows_of([CAPITALS, CITIES])))
    (file, _) = write_relations(relations, tmp_path / "folder")
    files = [json.loads(path.read_text()) for path in (tmp_path / "folder").rglob("*.json")]
    (tmp_path / "both.json").write_text(json.dumps(files))
    table.to_csv(tmp_path / "table.csv")
    table.save_to_disk(str(tmp_path / "saved"))
    places = {name: tmp_path / name for name in ("folder", "both.json", "table.csv", "saved")}
    parts = {"a list of files": [str(file), tmp_path / "table.csv"], "values": relations}
    return places | parts | {"a data set": table, "several": DatasetDict(train=table)}


def test_all_sources_give_the_same_relations_and_are_found_again(sources):
    for name, source in sources.items():
        data = RelationDataModule(toy.toy_tokenizer(), source=source, n_shot=2)
        assert set(data.relations) == {CAPITALS, CITIES}, name
        if name in ("values", "a data set", "several"):
            assert data.hparams.get("source") is None  # in memory: to be given again
        else:
            assert RelationDataModule(toy.toy_tokenizer(), **data.hparams).digest == data.digest
        assert data.changed(trials=1).relations == data.relations


def test_names_of_sources(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    monkeypatch.delenv("LRE_RELATIONS_DIR", raising=False)
    assert plain_source(None) == "demo"
    for name in ("demo", "paper", "bats", "hf://datasets/a/b@c", "an-organization/a-data-set"):
        assert plain_source(name) == name
    assert plain_source(RELATIONS_DIR) == "demo"
    assert plain_source("here") == plain_source(tmp_path / "here") == str(tmp_path / "here")
    assert plain_source("table.csv") == str(tmp_path / "table.csv")
    assert plain_source(["here", "demo"]) == [str(tmp_path / "here"), "demo"]
    for empty in ("", []):
        with pytest.raises(LREError, match="give a file, a folder or a name"):
            plain_source(empty)


def test_published_relations_are_a_source(monkeypatch, sources):
    for place in ("published", "sources"):
        fetch = Mock(return_value=sources["folder"])
        monkeypatch.setattr(f"lre_lightning.relations.{place}.fetch_published", fetch)
    manifest = sources["folder"].parent / "manifest"
    manifest.write_text(
        "".join(f"{path.relative_to(sources['folder'])} -\n" for path in sources["folder"].rglob("*.json"))
    )
    monkeypatch.setattr(Published, "manifest", manifest)
    assert set(load_relations(source="paper")) == {CAPITALS, CITIES}
    data = RelationDataModule(toy.toy_tokenizer(), "largest city", "paper", n_shot=2)
    data.prepare_data()
    fetch.assert_called_once_with("paper")
    assert data.relations == (CITIES,)


def test_options_of_other_sources_are_refused(sources):
    others = {"saved": "revision", "a data set": "name", "several": "token"}
    for name, option in (dict.fromkeys(("folder", "both.json", "table.csv"), "split") | others).items():
        with pytest.raises(LREError, match=f"takes no option '{option}': {'it may' if name in others else 'leave'}"):
            load_relations(source=sources[name], options={option: "train"})
    for source in (sources["folder"], sources["both.json"], "demo", "paper"):
        with pytest.raises(LREError, match=r"--data\.selection\.columns is for tables and data sets"):
            load_relations(source=source, columns={"subject": "head"})


def test_columns_and_splits_reach_the_table(sources, tmp_path):
    table = sources["a data set"].rename_columns({"subject": "head", "object": "tail"})
    several = DatasetDict(one=table, other=table)
    columns = {"subject": "head", "object": "tail"}
    options = {"n_shot": 2, "selection": {"columns": columns, "options": {"split": "one"}}}
    data = RelationDataModule(toy.toy_tokenizer(), source=several, **options)
    assert data.relations == (CAPITALS, CITIES)
    with pytest.raises(LREError, match="one"):
        RelationDataModule(toy.toy_tokenizer(), source=several, selection={"columns": columns}).setup()


def test_a_table_without_templates_needs_one(tmp_path):
    path = tmp_path / "capital.csv"
    path.write_text("subject,object\n" + "".join(f"s{i},o{i}\n" for i in range(5)))
    with pytest.raises(LREError, match=r"'capital' has no template: give one, .*, as --data\.prompts\.template"):
        RelationDataModule(toy.toy_tokenizer(), source=path, n_shot=2).setup()
    for template in ("the {} is", {"capital": "the {} is"}):
        data = RelationDataModule(toy.toy_tokenizer(), source=path, n_shot=2, prompts=Prompts(template=template))
        assert data.relations[0].template == "the {} is"


def test_a_relation_of_a_name_like_a_path():
    odd = [replace(CAPITALS, name="client/server"), replace(CITIES, name="cities.json")]
    for relation in odd:
        data = RelationDataModule(toy.toy_tokenizer(), relation.name, odd, n_shot=2)
        assert data.relations == (relation,)
        assert data.hparams["relations"] == [relation.name]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["capital", "largest city", "language", "part"]),
        ({"category": "FACTUAL", "range": ["language", "river"]}, ["language"]),
        ({"domain": "country", "function": "one-to-one"}, ["capital"]),
        ({"function": ["many-to-one", "one-to-many"]}, ["largest city", "part"]),
        ({"function": "many-to-many"}, ["language"]),
        ({"symmetric": True}, ["part"]),
        ({"min_size": 4}, ["capital", "largest city"]),
        ({"max_size": 6, "min_size": 4}, ["capital"]),
        ({"max_range_size": 3}, ["largest city", "language", "part"]),
        ({"min_range_size": 3}, ["capital", "largest city", "part"]),
        ({"part": "1/3"}, ["capital", "part"]),
        ({"part": "2/3"}, ["largest city"]),
        ({"part": "3/3"}, ["language"]),
        ({"part": "2/2", "function": ["many-to-one", "one-to-many"]}, ["part"]),
    ],
)
def test_relations_are_chosen_by_what_they_are(options, expected):
    assert names(Selection(**options).choose(ALL, 0)) == expected


def test_a_choice_of_nothing_says_what_there_is():
    with pytest.raises(LREError) as caught:
        Selection(range="colour", min_size=2).choose(ALL, 0)
    assert str(caught.value) == ("no relation has range 'colour', min_size 2: `lre data` lists the properties of all")
    with pytest.raises(LREError, match=r"function must be 'one-to-one' or 'many-to-one' or .*, got 'injective'"):
        Selection(function="injective")
    with pytest.raises(LREError, match="min_size must be a whole number of at least 0, got '3'"):
        Selection(min_size="3")
    with pytest.raises(LREError, match="part '5/5' has no relation: there are 4"):
        Selection(part="5/5").choose(ALL, 0)
    for part in ("0/2", "3/2", "2", "a/b"):
        with pytest.raises(LREError, match=f"part must be one of several, such as '2/8', .*, got '{part}'"):
            Selection(part=part)


def test_a_cap_depends_on_the_samples_and_not_on_their_order():
    large = replace(CAPITALS, samples=tuple(Sample(f"s{i}", f"o{i % 7}") for i in range(100)))
    some, more = cap(large, 10, seed=3), cap(large, 30, seed=3)
    assert len(some.samples) == 10
    assert set(some.samples) < set(more.samples) < set(large.samples)
    assert list(some.samples) == [sample for sample in large.samples if sample in set(some.samples)]
    shuffled = list(large.samples)
    Random(0).shuffle(shuffled)
    assert set(cap(replace(large, samples=tuple(shuffled)), 10, 3).samples) == set(some.samples)
    assert set(cap(large, 10, 4).samples) != set(some.samples)
    assert cap(large, 100, 0) is large
    assert [sample.subject for sample in cap(large, 4, 0).samples] == ["s31", "s46", "s53", "s89"]  # in all releases


def test_a_selection_is_an_option(sources):
    selection = Selection(function="many-to-one", max_samples=4)
    data = RelationDataModule(toy.toy_tokenizer(), source=sources["folder"], n_shot=2, selection=selection, seed=1)
    assert [(relation.name, len(relation.samples)) for relation in data.relations] == [("largest city", 4)]
    assert data.hparams["selection"]["function"] == "many-to-one"
    assert RelationDataModule(toy.toy_tokenizer(), **data.hparams).relations == data.relations


def test_repair_on_request(caplog):
    odd = replace(CAPITALS, samples=(Sample("Colombia ", r"Bogot\u00e1"), *CAPITALS.samples))
    as_it_is = RelationDataModule(toy.toy_tokenizer(), source=odd, n_shot=2)
    as_it_is.setup()
    assert "--data.selection.repair true corrects mistakes in the relations: 2, such as in 'capital'" in caplog.text
    caplog.clear()
    mended = RelationDataModule(toy.toy_tokenizer(), source=odd, n_shot=2, selection=Selection(repair=True))
    mended.setup()
    assert caplog.text == ""
    assert as_it_is.relations[0].samples[0] == Sample("Colombia ", r"Bogot\u00e1")
    assert mended.relations[0].samples[0] == Sample("Colombia", "Bogotá")
    assert mended.hparams["selection"]["repair"]
    assert mended.digest != as_it_is.digest


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
