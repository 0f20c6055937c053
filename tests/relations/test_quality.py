"""Likely mistakes in relations are found, and only certain ones are repaired."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.quality import find_problems, repair
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.schema import Problems, check_relation
from tests.helpers.hostile import tried
from tests.helpers.relations import PAPERS, with_papers_relations


def relation(*samples, templates=("{} is",), zero_shot=()):
    pairs = tuple(Sample(*sample) if isinstance(sample, tuple) else Sample(sample, "answer") for sample in samples)
    return Relation("n", "c", tuple(templates), tuple(zero_shot), "", "", False, pairs)


def certain(found):
    return [problem for problem in find_problems(found) if problem.repairable]


CLEAN = ["AT&T; R&D", "Côte d\u2019Ivoire", "東京", "C:\\users", "e.g. & Co.", "1 < 2 {x}", "one\\ntwo", "&foo;", "ﬁn"]
# Valid UTF-8, byte by byte in Windows-1252, which means what it says, and escapes of what a text cannot have.
CLEAN += ["CAFÉ®", "NESCAFÉ™", "Strauß\u2019s", "Spaß…", "ÚŽAS", "IRMÃ\u2019s", "IRMÃ mãe", "café”…", "MAÇÃ\u2013"]
CLEAN += ["SÃO", "naïveté", "Ã", "Bogotá BogotÃ¡", "東京 BogotÃ¡", "a\\u0000", "a\\ud83d", "\\u00g0", "\\u00a0"]
SPOILED = {
    "Bras\\u00edlia": "Brasília",
    "Bras\\\\u00EDlia": "Brasília",
    "\\u6771\\u4eac": "東京",
    "\\ud83d\\ude00": "😀",
    "AT&amp;T": "AT&T",
    "Caf&#233;": "Café",
    "Caf&amp;amp;eacute;": "Café",
    "New\\u00a0York&nbsp;": "New York",
    "\\u005cu00e9": "é",
    "Cafe\u0301": "Café",
    " a": "a",
    "a\n": "a",
    "\xa0a\u3000": "a",
    "a \t\xa0b": "a b",
    "a\n\nb": "a b",
}
PLACES = ["Bogotá", "Pérez", "Zürich", "Österreich", "Perú", "Ñuñoa", "MÉXICO", "Straße", "Kovać", "İstanbul"]
PLACES += ["São Paulo", "Côte d\u2019Ivoire", "20 °C", "5 €", "😀 x", "Αβγδ", "서울", "تهران", "«été»"]
SPOILED |= {place.encode().decode("cp1252"): place for place in PLACES}
SPOILED |= {place.encode().decode("latin-1"): place for place in PLACES}


@pytest.mark.parametrize("text", SPOILED)
def test_texts_that_are_certainly_wrong_are_repaired(text):
    (problem,) = find_problems(relation(text))
    assert (problem.kind, problem.repairable) == ("stray characters", True)
    assert repair(relation(text)) == relation(SPOILED[text])


def test_other_texts_are_left_alone():
    clean = relation(*CLEAN, templates=["The capital of {} is", "Q: {}\n\n  A:", "\n{}\n", "{}&lbrace;"])
    assert find_problems(clean) == []
    assert repair(clean) == clean


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
    ],
)
def test_templates_are_repaired_and_keep_their_line_breaks(template, right):
    doubtful = relation("s", templates=["{} is", template], zero_shot=[template])
    found = [problem.what.split(" is ")[0] for problem in certain(doubtful)]
    assert found == ["prompt_templates[1]", "prompt_templates_zs[0]"]
    assert repair(doubtful) == relation("s", templates=["{} is", right], zero_shot=[right])


def test_repeated_samples_are_removed_also_if_they_become_equal_by_repair():
    doubtful = relation(("a", "1"), ("b", "2"), ("a", "1"), ("a ", "1"))
    assert [problem.kind for problem in certain(doubtful)] == ["stray characters", "duplicate"]
    assert repair(doubtful) == relation(("a", "1"), ("b", "2"))


@pytest.mark.parametrize(
    ("samples", "templates", "problems"),
    [
        (["Cafe\u0301"], [], [r"samples[0].subject is 'Cafe\u0301'; repaired it is 'Caf\xe9'"]),
        ([("a", "1"), ("a", "2"), ("a", "1")], [],
         ["samples[2] repeats samples[0] of the subject 'a'", "the subject 'a' has 2 objects: '1', '2'"]),
        ([("a", str(i)) for i in range(9)], [], ["the subject 'a' has 9 objects: '0', '1', '2', '3', '4' and 4 more"]),
        (["the Capital of France", "The capitals of France", "Is", "Isle of Man"], ["The capital of {} is"],
         ["samples[0].subject is 'the Capital of France', which contains words of a template"]),
        ([("Mexico City", "Mexico"), ("Panamanian", "Panama"), ("Rio 2016", "20")], [],
         ["samples[0].subject is 'Mexico City', which contains its object 'Mexico'"]),
        ([("Ann", "Woman"), ("Bob", "man"), ("X", "us")], ["{}: a Man or a woman?"],
         ["the template '{}: a Man or a woman?' contains objects: 'Woman', 'man'"]),
    ],
)  # fmt: skip
def test_problems_are_told_with_their_place(samples, templates, problems):
    assert [problem.what for problem in find_problems(relation(*samples, templates=templates))] == problems


WHITE = ["a", " ", "  ", "\n", "\xa0", "\u3000", "\u2028", "{", "}"]
LETTERS = ["é", "e\u0301", "\u037e", "\u212a", "\u0958", "😀", "東", "A\u030a", "€"]
HALVES = ["Ã©", "Ã", "¡", "ðŸ\u02dc€", "Â", "â€™", "\\", "\\n", "\\u", "\\x", "\\u00e9", "\\u0301", "\\u0026"]
HALVES += ["\\ud83d", "\\ude00", "&", "&amp;", "amp;", "&eacute;", "eacute", ";", "&#", "233", "&#92;", "&#123;"]
PIECES = WHITE + LETTERS + HALVES + ["\\u005c", "u00e9"]
PIECE = st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=("Cs",)))
TEXTS = st.lists(PIECE, min_size=1, max_size=8).map("".join)
TEMPLATES = st.tuples(TEXTS, TEXTS).map(lambda parts: "{}".join(re.sub("[{}]", "", part) for part in parts))


@tried(150)
@given(templates=st.lists(TEMPLATES, max_size=2), samples=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_a_repaired_relation_is_valid_and_has_nothing_left_to_repair(templates, samples):
    def valid(found):
        problems = Problems()
        pairs = [{"subject": sample.subject, "object": sample.object} for sample in found.samples]
        data = {"name": "n", "prompt_templates": list(found.prompt_templates), "samples": pairs}
        check_relation(data, "", problems, templates_required=False)
        problems.raise_all()

    doubtful = relation(*samples, *samples[:1], templates=templates)
    mended = repair(doubtful)
    assert certain(mended) == []
    assert repair(mended) == mended
    try:
        valid(doubtful)
    except LREError:
        return
    valid(mended)


def test_the_bundled_relations_need_no_repair():
    found = [problem.kind for _, bundled in read_folder(RELATIONS_DIR) for problem in find_problems(bundled)]
    assert set(found) == {"object in prompt"}


@with_papers_relations
def test_the_certain_mistakes_in_the_papers_relations():
    found = [problem for _, read in read_folder(PAPERS) for problem in certain(read)]
    assert [problem.what for problem in found if problem.kind != "duplicate"] == [
        "samples[3].object is 'Bras\\\\u00edlia'; repaired it is 'Brasília'",
        "samples[7].object is 'Bogot\\\\u00e1'; repaired it is 'Bogotá'",
        "samples[17].object is 'Bon Jovi '; repaired it is 'Bon Jovi'",
        *["samples[14].subject is 'Jimmy Carter '; repaired it is 'Jimmy Carter'"] * 2,
    ]
    assert len(found) == 45
