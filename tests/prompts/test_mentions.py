"""Mentions of subjects: whole words in any script, the longest of those that overlap, and their tokens."""

import pytest

from lre_lightning.errors import LREError
from lre_lightning.models.tokenizer import token_text
from lre_lightning.prompts.mentions import Mention, mentions
from lre_lightning.prompts.tokenization import tokenize
from tests.helpers import tokenizers_fixtures as fixtures


@pytest.mark.parametrize(
    ("text", "subjects", "found"),
    [
        ("[Peru] and the Peruvian, not iPeru; [Peru]", ["Peru"], 2),  # repeated, and parts of words
        (
            "[Peru]'s, [Peru]\u2019s, ([Peru]), “[Peru]”, [Peru]-born: [Peru].",
            ["Peru"],
            6,
        ),  # possessives and punctuation
        ("[Niger] is not [Nigeria]", ["Niger", "Nigeria"], 2),  # prefixes of others
        ("[Guinea-Bissau] and [Guinea]", ["Guinea", "Guinea-Bissau", "Bissau"], 2),  # the longest wins
        ("[New York City] in [New York]", ["New York", "York", "New York City"], 2),
        ("[São] is not Sãomé, Sa\u0303o", ["São", "Sa"], 1),  # a mark belongs to its letter
        ("पेरू and [पेर]", ["पेर"], 1),
        ("我在[秘鲁]\uff0c[秘鲁]的首都是利马", ["秘鲁"], 2),  # nothing stands between Chinese words
        ("去[北京市]和[北京]的iPhone", ["北京", "北京市", "Phone"], 2),
        ("[日本]の首都は東京、ペルーと[日本]", ["日本", "ルー"], 2),  # katakana are words
        ("首都[ペルー]の", ["ペルー"], 1),
        ("[서울]은 한국의 수도", ["서울"], 1),  # a particle follows
        ("[ไทย]เป็นประเทศ", ["ไทย"], 1),
        ("בירת [פרו] היא, לא פרואן", ["פרו"], 1),  # right to left
        ("عاصمة [بيرو] هي ليما، لا البيروفية", ["بيرو"], 1),
        ("[c++] and [C#]: c++", ["c++ ", " C#"], 3),  # white space is no part of a mention
        ("no_Peru, Peru1, nothing", ["Peru", "", "  "], 0),
    ],
)
def test_mentions_are_whole_words_in_the_order_of_the_text(text, subjects, found):
    if text.endswith("c++"):
        text = text[:-3] + "[c++]"
    expected, plain = [], ""
    for character in text:
        if character == "[":
            expected.append([len(plain)])
        elif character == "]":
            expected[-1].append(len(plain))
        else:
            plain += character
    assert len(expected) == found
    assert [list(mention.span) for mention in mentions(plain, subjects)] == expected
    start = expected[0][1] if expected else 0
    assert [list(mention.span) for mention in mentions(plain, subjects, start)] == expected[1:]


@pytest.mark.parametrize("name", fixtures.LOSSLESS)
@pytest.mark.parametrize("text", ["Peru is not Peruvian", "我在北京住", "Miles Davis, and Miles Davis plays"])
def test_the_tokens_of_a_mention_hold_its_characters_and_no_word_beside_it(name, text):
    tokenizer = fixtures.make(name)
    subject = next(subject for subject in ("Peru", "北京", "Miles Davis") if subject in text)
    mention = mentions(text, [subject])[-1]
    ((ids, spans),) = tokenize(tokenizer, [text])
    first, end = mention.tokens(spans)
    said = "".join(token_text(tokenizer, token) for token in ids[:end]).strip()
    if "\ufffd" not in said and "<" not in said:  # tokens of single bytes are no text by themselves
        assert said == text[: mention.span[1]]
    assert spans[first][0] <= mention.span[0] < spans[first][1]


def test_a_mention_of_which_the_tokenizer_leaves_nothing_is_an_error():
    with pytest.raises(LREError, match=r"leaves nothing of the subject 'b' in 'a b'"):
        Mention("a b", (2, 3)).tokens([(0, 1), (0, 2)])
