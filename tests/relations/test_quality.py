"""Likely mistakes in relations are found, and only certain ones are repaired."""

import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.quality import find_problems, repair
from lre_lightning.relations.relation import Relation, Sample, check_template
from lre_lightning.relations.schema import check_relation

with_papers_relations = pytest.mark.skipif(
    not os.environ.get("LRE_RELATIONS_DIR"), reason="LRE_RELATIONS_DIR is not set"
)


def relation(*samples, templates=("{} is",), zero_shot=()):
    pairs = tuple(Sample(*sample) if isinstance(sample, tuple) else Sample(sample, "o") for sample in samples)
    return Relation("n", "c", tuple(templates), tuple(zero_shot), "", "", False, pairs)


def repaired(text):
    (sample,) = repair(relation(text)).samples
    return sample.subject


def kinds(*samples, **options):
    return [problem.kind for problem in find_problems(relation(*samples, **options))]


def certain(found):
    return [problem for problem in find_problems(found) if problem.repairable]


def test_clean_texts_are_left_alone():
    clean = relation(
        ("Canada", "Ottawa"),
        ("Côte d\u2019Ivoire", "AT&T; R&D"),
        ("東京", "C:\\users"),
        ("e.g. & Co.", "1 < 2 {x}"),
        templates=["The capital of {} is", "Q: {}\n\n  A:", "\n{}\n"],
    )
    assert find_problems(clean) == []
    assert repair(clean) == clean


ESCAPES = {
    "Bras\\u00edlia": "Brasília",
    "Bras\\\\u00EDlia": "Brasília",
    "\\xe9t\\xe9": "été",
    "\\xe6\\x9d\\xb1\\xe4\\xba\\xac": "東京",
    "\\u6771\\u4eac": "東京",
    "\\ud83d\\ude00": "😀",
    "\\U0001F600": "😀",
    "AT&amp;T": "AT&T",
    "Caf&#233;": "Café",
    "Caf&#xE9;": "Café",
    "Caf&amp;amp;eacute;": "Café",
    "New\\xa0York&nbsp;": "New\xa0York",
    "\\u005cu00e9": "é",
    "\\ud83d&#92;ude00": "😀",
    "e\\u0301": "é",
}


@pytest.mark.parametrize("text", ESCAPES)
def test_literal_escapes_become_characters(text):
    assert certain(relation(text))[0].kind == "escape"
    assert repaired(text) == ESCAPES[text]
    assert find_problems(repair(relation(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        *("one\\ntwo", "a\\u0000", "a\\x9b", "a&#10;b", "a&Tab;b", "a\\ud83d", "a\\ude00\\ud83d", "a\\U0000d83d"),
        *("a\\u007b", "a&#125;", "a&lbrace;", "\\u00a0", "&#32;"),
    ],
)
def test_escapes_of_invalid_characters_are_reported_and_left_alone(text):
    assert [(p.kind, p.repairable) for p in find_problems(relation(text))] == [("escape", False)]
    assert repaired(text) == text


def test_an_escape_is_repaired_beside_one_that_is_not():
    (first, second) = find_problems(relation("\\u00e9\\u0000"))
    assert (first.repairable, second.repairable) == (True, False)
    assert repaired("\\u00e9\\u0000") == "é\\u0000"


@pytest.mark.parametrize("text", ["AT&T;", "&foo;", "\\x", "\\u00g0", "\\xi", "\\U00110000", "\\d", "&;", "&#;"])
def test_other_backslashes_and_ampersands_are_not_escapes(text):
    assert find_problems(relation(text)) == []


PLACES = ["Bogotá", "Pérez", "Zürich", "Österreich", "Perú", "Ñuñoa", "MÉXICO", "Straße", "Kovać", "İstanbul"]
PLACES += ["São Paulo", "Côte d\u2019Ivoire", "20 °C", "5 €", "😀 x", "Αβγδ", "서울", "تهران", "«été»"]


@pytest.mark.parametrize("right", PLACES)
def test_utf_8_decoded_as_windows_1252_is_repaired(right):
    spoiled = right.encode().decode("cp1252")
    (problem,) = certain(relation(spoiled))
    assert (problem.kind, problem.where) == ("mojibake", 0)
    assert repaired(spoiled) == right
    assert repaired(spoiled.encode().decode("latin-1")) == right


# The first line is valid UTF-8, byte by byte in Windows-1252, and means what it says.
INTENDED = ["CAFÉ®", "NESCAFÉ™", "Strauß\u2019s", "Spaß…", "ÚŽAS", "IRMÃ\u2019s", "IRMÃ\xa0mãe", "café”…", "MAÇÃ\u2013"]
INTENDED += ["Bogotá", "SÃO", "ÂNGELA", "naïveté", "Ã", "Bogotá BogotÃ¡", "東京 BogotÃ¡"]


@pytest.mark.parametrize("text", INTENDED)
def test_what_may_be_intended_is_not_taken_for_mojibake(text):
    assert find_problems(relation(text)) == []
    assert repaired(text) == text


@pytest.mark.parametrize(
    ("text", "right"),
    [(" a", "a"), ("a\n", "a"), ("\xa0a\u3000", "a"), ("a  b", "a b"), ("a \t\xa0b", "a b"), ("a\n\nb", "a b")],
)
def test_stray_white_space_is_removed(text, right):
    assert [(p.kind, p.repairable) for p in find_problems(relation(text))] == [("white space", True)]
    assert repaired(text) == right


@pytest.mark.parametrize(
    ("template", "right"),
    [
        ("{} is ", "{} is"),
        (" The  capital of {} is", "The capital of {} is"),
        ("{}\u3000", "{}"),
        ("Q:  {}\n\n  A: ", "Q: {}\n\n  A:"),
        ("  \nQ: {}\n", "\nQ: {}\n"),
        ("The caf\\u00e9 of {} is", "The café of {} is"),
        ("{}&apos;s", "{}'s"),
        ("The cafÃ© of {} is", "The café of {} is"),
        ("The cafe\u0301 of {} is", "The café of {} is"),
    ],
)
def test_templates_are_repaired_and_keep_their_line_breaks(template, right):
    doubtful = relation("s", templates=["{} is", template], zero_shot=[template])
    assert {(p.part, p.where) for p in certain(doubtful)} == {("prompt_templates", 1), ("prompt_templates_zs", 0)}
    assert repair(doubtful) == relation("s", templates=["{} is", right], zero_shot=[right])


def test_texts_that_are_not_in_nfc_are_shown_in_ascii_and_repaired():
    doubtful = relation("Cafe\u0301", ("x", "Café"), ("z", "Café"))
    (problem,) = find_problems(doubtful)
    assert problem.kind == "unicode form"
    assert problem.what == (
        r"samples[0].subject is 'Cafe\u0301', not in the Unicode form NFC; repaired it is 'Caf\xe9'"
    )
    assert repair(doubtful) == relation("Café", ("x", "Café"), ("z", "Café"))


def test_repeated_samples_are_removed():
    doubtful = relation(("a", "1"), ("b", "2"), ("a", "1"), ("a", "1"))
    assert [(p.kind, p.where, p.repairable) for p in find_problems(doubtful)] == [
        ("duplicate", 2, True),
        ("duplicate", 3, True),
    ]
    assert find_problems(doubtful)[0].what == "samples[2] repeats samples[0] of the subject 'a'"
    assert repair(doubtful) == relation(("a", "1"), ("b", "2"))
    doubtful = relation(("Cafe\u0301 ", "1"), ("Caf\\u00e9", "1"), ("CafÃ©", "1"), ("Café", "1"), ("Café", "2"))
    assert repair(doubtful) == relation(("Café", "1"), ("Café", "2"))


def test_samples_that_become_equal_by_repair_are_merged():
    doubtful = relation(("Cafe\u0301 ", "1"), ("Caf\\u00e9", "1"), ("CafÃ©", "1"), ("Café", "1"), ("Café", "2"))
    assert repair(doubtful) == relation(("Café", "1"), ("Café", "2"))


def test_subjects_with_several_objects_are_reported():
    (problem,) = find_problems(relation(("a", "1"), ("b", "1"), ("c", "2"), ("c", "3"), ("c", "4")))
    assert (problem.kind, problem.where, problem.repairable) == ("several objects", 2, False)
    assert problem.what == "the subject 'c' has 3 objects: '2', '3', '4'"
    (problem,) = find_problems(relation(*(("a", str(number)) for number in range(9))))
    assert problem.what == "the subject 'a' has 9 objects: '0', '1', '2', '3', '4' and 4 more"


def test_subjects_that_differ_only_in_case_are_reported():
    (problem,) = find_problems(relation("x", "NVIDIA", "Nvidia", "NVIDIA!"))
    assert (problem.kind, problem.where, problem.repairable) == ("case", 1, False)
    assert problem.what == "the subjects 'NVIDIA', 'Nvidia' differ only in case"


@pytest.mark.parametrize("subject", ["the Capital of France", "France's capital is", "born in"])
def test_subjects_that_contain_words_of_a_template_are_reported(subject):
    templates = ["The capital of {} is", "{}'s capital is", "{} born in"]
    assert kinds(subject, templates=templates) == ["template in subject"]
    assert kinds("Is", "The capitals of France", "born into", "Isle of Man", templates=templates) == []
    assert kinds("x", "IS", templates=["{} is"]) == ["template in subject"]  # it equals the template


def test_slots_in_subjects_and_objects_are_reported():
    assert kinds("a {}", ("b", "{}"), ("{ }", "{x}")) == ["slot in text"] * 2
    assert repaired("a {}") == "a {}"


def test_objects_contained_in_their_subject_are_reported():
    found = find_problems(
        relation(("Mexico City", "Mexico"), ("Panamanian", "Panama"), ("東京都", "東京"), ("Rio 2016", "20"))
    )
    assert [(p.kind, p.where, p.repairable) for p in found] == [
        ("object in prompt", 0, False),
        ("object in prompt", 2, False),
    ]
    assert found[0].what == "samples[0].subject is 'Mexico City', which contains its object 'Mexico'"


def test_objects_contained_in_a_template_are_reported():
    (problem,) = find_problems(
        relation(("Ann", "Woman"), ("Bob", "man"), ("X", "us"), zero_shot=["{}: a Man or a woman?"])
    )
    assert (problem.kind, problem.part, problem.where) == ("object in prompt", "prompt_templates_zs", 0)
    assert problem.what == (
        "prompt_templates_zs[0] is '{}: a Man or a woman?', which contains 2 objects: 'Woman', 'man'"
    )


WHITE = ["a", " ", "  ", "\n", "\xa0", "\u3000", "\u2028", "{", "}"]
LETTERS = ["é", "e\u0301", "\u037e", "\u212a", "\u0958", "😀", "東", "A\u030a", "€"]
SPOILED = ["Ã©", "Ã", "¡", "ðŸ\u02dc€", "Â", "â€™"]
BACKSLASHES = ["\\", "\\n", "\\u", "\\x", "\\xc3", "\\xa9"]
BACKSLASHES += ["\\u00e9", "\\u0301", "\\u0026", "\\u005c", "\\ud83d", "\\ude00"]
ENTITIES = ["&", "&amp;", "amp;", "&eacute;", "eacute", ";", "&#", "233", "&#92;", "&#123;", "&nbsp;", "u00e9", "x41"]
PIECES = st.sampled_from(WHITE + LETTERS + SPOILED + BACKSLASHES + ENTITIES)
LETTER = st.characters(exclude_categories=("Cs",))
TEXTS = st.lists(st.one_of(PIECES, PIECES, LETTER), min_size=1, max_size=8).map("".join)
TEMPLATES = st.tuples(TEXTS, TEXTS).map(lambda parts: "{}".join(re.sub("[{}]", "", part) for part in parts))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(
    templates=st.lists(TEMPLATES, max_size=2),
    samples=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4),
)
def test_a_repaired_relation_has_nothing_left_to_repair(templates, samples):
    doubtful = relation(*samples, *samples[:1], templates=templates, zero_shot=templates)
    mended = repair(doubtful)
    assert certain(mended) == []
    assert repair(mended) == mended
    for template in mended.templates:
        check_template(template)
    if not certain(doubtful):
        assert mended == doubtful


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(subject=TEXTS, object=TEXTS, template=TEMPLATES)
def test_a_repaired_relation_is_still_valid(subject, object, template):
    data = {"name": "n", "prompt_templates": [template], "samples": [{"subject": subject, "object": object}]}
    try:
        valid = check_relation(data, "x")
    except LREError:
        return
    mended = repair(valid)
    (sample,) = mended.samples
    pair = {"subject": sample.subject, "object": sample.object}
    data = {"name": "n", "prompt_templates": list(mended.prompt_templates), "samples": [pair]}
    assert check_relation(data, "x") == mended


def test_the_bundled_relations_need_no_repair():
    found = [problem for _, bundled in read_folder(RELATIONS_DIR) for problem in find_problems(bundled)]
    assert [problem for problem in found if problem.kind != "object in prompt"] == []


@with_papers_relations
def test_the_certain_mistakes_in_the_papers_relations():
    found = [problem for _, read in read_folder(Path(os.environ["LRE_RELATIONS_DIR"])) for problem in certain(read)]
    assert [problem.what for problem in found if problem.kind != "duplicate"] == [
        "samples[3].object is 'Bras\\\\u00edlia', with a literal escape in it; repaired it is 'Brasília'",
        "samples[7].object is 'Bogot\\\\u00e1', with a literal escape in it; repaired it is 'Bogotá'",
        "samples[17].object is 'Bon Jovi ', with stray white space; repaired it is 'Bon Jovi'",
        *["samples[14].subject is 'Jimmy Carter ', with stray white space; repaired it is 'Jimmy Carter'"] * 2,
    ]
    assert len(found) == 45
