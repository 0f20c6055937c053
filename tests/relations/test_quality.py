"""What is doubtful in relations, and that only what is certain is repaired."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lre_lightning.demo import RELATIONS_DIR
from lre_lightning.errors import LREError
from lre_lightning.relations.json_files import read_folder
from lre_lightning.relations.quality import REPAIRS, find_problems, repair
from lre_lightning.relations.relation import Relation, Sample, check_template
from lre_lightning.relations.schema import check_relation

with_papers_relations = pytest.mark.skipif(
    not os.environ.get("LRE_RELATIONS_DIR"), reason="LRE_RELATIONS_DIR is not set"
)


def relation(*samples, templates=("{} is",), zero_shot=()):
    pairs = tuple(Sample(*sample) if isinstance(sample, tuple) else Sample(sample, "o") for sample in samples)
    return Relation("n", "c", tuple(templates), tuple(zero_shot), "", "", False, pairs)


def repaired(text, kinds=None):
    (sample,) = repair(relation(text), kinds).samples
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


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Bras\\u00edlia", "Brasília"),
        ("Bras\\\\u00EDlia", "Brasília"),
        ("\\xe9t\\xe9", "été"),
        ("\\xc3\\xa9t\\xc3\\xa9", "été"),
        ("\\xe6\\x9d\\xb1\\xe4\\xba\\xac", "東京"),
        ("\\u6771\\u4eac", "東京"),
        ("\\ud83d\\ude00", "😀"),
        ("\\U0001F600", "😀"),
        ("AT&amp;T", "AT&T"),
        ("Caf&#233;", "Café"),
        ("Caf&#xE9;", "Café"),
        ("Caf&eacute;", "Café"),
        ("Caf&amp;amp;eacute;", "Café"),
        ("New\\xa0York&nbsp;", "New\xa0York"),
        ("\\u005cu00e9", "é"),
        ("\\ud83d&#92;ude00", "😀"),
        ("e\\u0301", "é"),
    ],
)
def test_literal_escapes_become_letters(text, right):
    assert certain(relation(text))[0].kind == "escape"
    assert repaired(text) == right
    assert find_problems(repair(relation(text))) == []


@pytest.mark.parametrize(
    "text",
    [
        *("one\\ntwo", "a\\tb", "a\\rb", "a\\u0000", "a\\x07", "a\\x9b", "a&#10;b", "a&#27;b", "a&Tab;b"),
        *("a\\ud83d", "a\\ude00\\ud83d", "a\\U0000d83d", "a\\u007b", "a&#125;", "a&lbrace;", "\\u00a0", "&#32;"),
    ],
)
def test_escapes_of_what_no_text_may_have_are_left_alone_and_reported(text):
    assert [(p.kind, p.repairable) for p in find_problems(relation(text))] == [("escape", False)]
    assert repaired(text) == text


def test_an_escape_is_repaired_beside_one_that_is_not():
    (first, second) = find_problems(relation("\\u00e9\\u0000"))
    assert (first.repairable, second.repairable) == (True, False)
    assert repaired("\\u00e9\\u0000") == "é\\u0000"


@pytest.mark.parametrize(
    "text", ["AT&T;", "R&D;", "&foo;", "\\x", "\\u00g0", "\\xi", "\\U00110000", "\\d", "&;", "&#;"]
)
def test_what_is_no_escape_is_none(text):
    assert find_problems(relation(text)) == []


PLACES = (
    *(
        "Bogotá",
        "José",
        "Pérez",
        "León",
        "Québec",
        "Zürich",
        "Åland",
        "Österreich",
        "Perú",
        "Ñuñoa",
        "São Paulo",
        "SÃO",
    ),
    *(
        "MÉXICO",
        "MÜNCHEN",
        "Über",
        "Straße",
        "España",
        "Côte d\u2019Ivoire",
        "Kovać",
        "İstanbul",
        "Tomé façade",
        "20 °C",
    ),
    *("£5", "5 €", "😀 x", "Αβγδ", "서울", "تهران", "«été»"),
)


@pytest.mark.parametrize("right", PLACES)
def test_utf_8_that_was_read_as_windows_1252_is_put_right(right):
    spoiled = right.encode().decode("cp1252")
    (problem,) = certain(relation(spoiled))
    assert (problem.kind, problem.where) == ("mojibake", 0)
    assert repaired(spoiled) == right
    twice = spoiled.encode().decode("latin-1")
    assert repaired(twice) == right


@pytest.mark.parametrize(
    "text",
    [
        # Valid as UTF-8, byte by byte in Windows-1252, and yet what they seem to be.
        *(
            "CAFÉ®",
            "NESCAFÉ™",
            "Strauß\u2019s",
            "Spaß…",
            "ÚŽAS",
            "JOSÉ\u2019S",
            "IRMÃ®",
            "IRMÃ\u2019s",
            "BARÃ\xb4s",
            "10 Å±1",
            "5 Å³",
        ),
        *("IRMÃ\xa0mãe", "café”…", "MsÚ…", "3\xd7²", "MAÇÃ\u2013", "Ã©", "IRMÃ\u2013chave", "IRMÃ…e"),
        # UTF-8 of a control character.
        "fooÂ€bar",
        # Not even valid.
        *("Bogotá", "Strauß", "SÃO", "ÂNGELA", "naïveté", "Ã", "Bogotá BogotÃ¡", "東京 BogotÃ¡"),
    ],
)
def test_what_may_be_meant_is_no_mojibake(text):
    assert find_problems(relation(text)) == []
    assert repaired(text) == text


@pytest.mark.parametrize(
    ("text", "right"),
    [
        (" a", "a"),
        ("a\n", "a"),
        ("\xa0a\u3000", "a"),
        ("a  b", "a b"),
        ("a \t\xa0b", "a b"),
        ("a\n\nb", "a b"),
    ],
)
def test_stray_white_space_goes(text, right):
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
def test_templates_are_repaired_and_their_line_breaks_are_meant(template, right):
    doubtful = relation("s", templates=["{} is", template], zero_shot=[template])
    assert {(p.part, p.where) for p in certain(doubtful)} == {("prompt_templates", 1), ("prompt_templates_zs", 0)}
    assert repair(doubtful) == relation("s", templates=["{} is", right], zero_shot=[right])


def test_unicode_forms():
    doubtful = relation("Cafe\u0301", ("x", "Café"), ("y", "\u212b"), ("z", "Café"))
    first, second = find_problems(doubtful)
    assert first.what == (
        r"samples[0].subject is 'Cafe\u0301', not in the Unicode form NFC as samples[1].object is; "
        r"repaired it is 'Caf\xe9'"
    )
    assert second.what == r"samples[2].object is '\u212b', not in the Unicode form NFC; repaired it is '\xc5'"
    assert {first.kind, second.kind} == {"unicode form"}
    assert repair(doubtful) == relation("Café", ("x", "Café"), ("y", "\xc5"), ("z", "Café"))


def test_exact_duplicates():
    doubtful = relation(("a", "1"), ("b", "2"), ("a", "1"), ("a", "1"))
    assert [(p.kind, p.where, p.repairable) for p in find_problems(doubtful)] == [
        ("duplicate", 2, True),
        ("duplicate", 3, True),
    ]
    assert find_problems(doubtful)[0].what == "samples[2] is samples[0] again: 'a' and '1'"
    assert repair(doubtful) == relation(("a", "1"), ("b", "2"))


def test_samples_that_are_the_same_only_once_they_are_repaired_are_one():
    doubtful = relation(("Cafe\u0301 ", "1"), ("Caf\\u00e9", "1"), ("CafÃ©", "1"), ("Café", "1"), ("Café", "2"))
    assert repair(doubtful) == relation(("Café", "1"), ("Café", "2"))


def test_subjects_with_several_objects():
    (problem,) = find_problems(relation(("a", "1"), ("b", "1"), ("c", "2"), ("c", "3"), ("c", "4")))
    assert (problem.kind, problem.where, problem.repairable) == ("several objects", 2, False)
    assert problem.what == "the subject 'c' has 3 objects: '2', '3', '4'"
    (problem,) = find_problems(relation(*(("a", str(number)) for number in range(9))))
    assert problem.what == "the subject 'a' has 9 objects: '0', '1', '2', '3', '4' and 4 more"


def test_subjects_that_differ_in_case_only():
    (problem,) = find_problems(relation("x", "NVIDIA", "Nvidia", "NVIDIA!"))
    assert (problem.kind, problem.where, problem.repairable) == ("case", 1, False)
    assert problem.what == "the subjects 'NVIDIA', 'Nvidia' differ in case only"


@pytest.mark.parametrize(
    ("subject", "found"),
    [
        ("the Capital of France", True),
        ("France's capital is", True),
        ("born in", True),
        ("Is", False),
        ("The capitals of France", False),
        ("born into", False),
        ("Isle of Man", False),
    ],
)
def test_subjects_with_the_text_of_a_template(subject, found):
    templates = ["The capital of {} is", "{}'s capital is", "{} born in"]
    assert kinds(subject, templates=templates) == ["template in subject"] * found


def test_a_subject_that_is_the_whole_template():
    assert kinds("x", "IS", templates=["{} is"]) == ["template in subject"]


def test_slots_in_subjects_and_objects():
    assert kinds("a {}", ("b", "{}"), ("{ }", "{x}")) == ["slot in text"] * 2
    assert repaired("a {}") == "a {}"


def test_objects_that_the_subject_gives_away():
    found = find_problems(
        relation(("Mexico City", "Mexico"), ("Panamanian", "Panama"), ("東京都", "東京"), ("Rio 2016", "20"))
    )
    assert [(p.kind, p.where, p.repairable) for p in found] == [
        ("object in prompt", 0, False),
        ("object in prompt", 2, False),
    ]
    assert found[0].what == "samples[0] has its object in its subject: 'Mexico City' and 'Mexico'"


def test_objects_that_a_template_gives_away():
    (problem,) = find_problems(
        relation(("Ann", "Woman"), ("Bob", "man"), ("X", "us"), zero_shot=["{}: a Man or a woman?"])
    )
    assert (problem.kind, problem.part, problem.where) == ("object in prompt", "prompt_templates_zs", 0)
    assert problem.what == (
        "prompt_templates_zs[0] is '{}: a Man or a woman?', which has 2 objects in it: 'Woman', 'man'"
    )


def test_kinds_of_repairs_are_chosen():
    doubtful = relation(("a\\u00e9  ", "e\u0301"), ("a\\u00e9  ", "e\u0301"))
    assert repair(doubtful, []) == doubtful
    assert repair(doubtful, ["escape"]) == relation(*[("aé  ", "e\u0301")] * 2)
    assert repair(doubtful, ["unicode form", "white space"]) == relation(*[("a\\u00e9", "é")] * 2)
    assert repair(doubtful, ["duplicate"]) == relation(("a\\u00e9  ", "e\u0301"))
    templates = relation("s", templates=["caf\\u00e9  {}"])
    assert repair(templates, ["white space"]).template == "caf\\u00e9 {}"
    assert repair(templates, ["escape"]).template == "café  {}"
    with pytest.raises(LREError, match="no repair of 'case', only of escape, mojibake, white space, unicode form, dup"):
        repair(doubtful, ["case"])


PIECES = st.sampled_from(
    [
        *(
            "a",
            "é",
            "e\u0301",
            "Ã©",
            "Ã",
            "¡",
            " ",
            "  ",
            "\n",
            "\xa0",
            "\u3000",
            "\u2028",
            "\u037e",
            "\u212a",
            "\u0958",
        ),
        *(
            "\\",
            "\\u",
            "\\u00e9",
            "\\u0301",
            "\\u0026",
            "\\u005c",
            "\\ud83d",
            "\\ude00",
            "\\x",
            "\\xc3",
            "\\xa9",
            "\\n",
        ),
        *("&", "&amp;", "amp;", "&eacute;", "eacute", ";", "&#", "233", "&#92;", "&#123;", "&nbsp;", "u00e9", "x41"),
        *("😀", "ðŸ\u02dc€", "東", "{", "}", "A\u030a", "\ufb2c", "Â", "€", "â€™"),
    ]
)
TEXTS = st.lists(st.one_of(PIECES, PIECES, st.characters(exclude_categories=("Cs",))), min_size=1, max_size=8).map(
    "".join
)
TEMPLATES = st.builds(
    lambda before, after: before.replace("{", "").replace("}", "") + "{}" + after.replace("{", "").replace("}", ""),
    TEXTS,
    TEXTS,
)


@settings(max_examples=250, deadline=None, derandomize=True, database=None)
@given(
    templates=st.lists(TEMPLATES, max_size=2),
    samples=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4),
    some=st.sets(st.sampled_from(REPAIRS)),
)
def test_a_repaired_relation_has_nothing_left_to_repair(templates, samples, some):
    doubtful = relation(*samples, *samples[:1], templates=templates, zero_shot=templates)
    mended = repair(doubtful)
    assert certain(mended) == []
    assert repair(mended) == mended
    for template in mended.templates:
        check_template(template)
    partly = repair(doubtful, some)
    assert not {problem.kind for problem in certain(partly)} & some
    assert repair(partly, sorted(some)) == partly
    if not certain(doubtful):
        assert mended == doubtful


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
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


def test_many_samples():
    samples = [(f"Subject\\u00e9 {number}", f"Object {number % 1000}") for number in range(5_000)]
    many = relation(*samples, *samples)
    assert len(find_problems(many)) == 15_000
    assert repair(many).samples[-1] == Sample("Subjecté 4999", "Object 999")
    assert len(repair(many).samples) == 5_000


def test_the_bundled_relations_need_no_repair():
    found = [problem for _, bundled in read_folder(RELATIONS_DIR) for problem in find_problems(bundled)]
    assert [problem for problem in found if problem.kind != "object in prompt"] == []


@with_papers_relations
def test_what_the_papers_relations_need():
    found = [problem for _, read in read_folder(Path(os.environ["LRE_RELATIONS_DIR"])) for problem in certain(read)]
    assert [problem.what for problem in found if problem.kind != "duplicate"] == [
        "samples[3].object is 'Bras\\\\u00edlia', with a literal escape in it; repaired it is 'Brasília'",
        "samples[7].object is 'Bogot\\\\u00e1', with a literal escape in it; repaired it is 'Bogotá'",
        "samples[17].object is 'Bon Jovi ', with stray white space; repaired it is 'Bon Jovi'",
        *["samples[14].subject is 'Jimmy Carter ', with stray white space; repaired it is 'Jimmy Carter'"] * 2,
    ]
    assert len(found) == 45
