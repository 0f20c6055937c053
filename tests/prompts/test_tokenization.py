"""Texts with the same beginning have the same tokens after it as when they are tokenized whole, with any tokenizer."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.errors import LREError
from lre_lightning.prompts.tokenization import tokenize, tokenize_after
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.hostile import tried
from tests.helpers.toy import toy_tokenizer

KINDS = [*tokenizers.LOSSLESS, *tokenizers.OTHERS, *tokenizers.CHANGING]

WORDS = ["Paris", "New York City", "the", "capital of", "São Paulo", "北京", "it's", "Is", "is in", "1924", "ris", "xq"]
SIGNS = [".", ", ", "!!", "</", "s>", "<s>", "<work>", "'s", "-", "\u0301", "\u200b", "😀", "👍🏽", "\ufb01", "İ", "▁"]
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x00", "\u2028"]
LONG = ["x" * 70, " " * 50, "1" * 45, "\n" * 40, "the word " * 30, "é" * 40, "ab" * 30, "e\u0301" * 30, "ris" * 30]
ANY = st.text(st.characters(codec="utf-8"), max_size=3)
PHRASE = st.lists(st.one_of(*map(st.sampled_from, (WORDS, SPACES, SIGNS)), ANY), max_size=5).map("".join)
TEMPLATE = st.one_of(
    st.sampled_from(["The capital of {} is", "{}", "In {},", "Q: {}?\nA:"]), st.tuples(PHRASE, PHRASE).map("{}".join)
)
SEPARATOR = st.sampled_from(["\n", "\n", "\n\n", " ", ". ", "", "\t", " \n "])


def context(template, separator, facts):
    return "".join(template.replace("{}", subject, 1) + f" {answer}" + separator for subject, answer in facts)


@st.composite
def heads_and_tails(draw):
    """Draw a context of lines, sometimes cut off or with something long in it, and possible last lines."""
    template, separator = draw(TEMPLATE), draw(SEPARATOR)
    facts = draw(st.lists(st.tuples(PHRASE, PHRASE), min_size=1, max_size=6))
    head = context(template, separator, facts * draw(st.integers(1, 3)))
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(head)))
        head = head[:at] + draw(st.sampled_from(LONG)) + head[at:]
    if draw(st.integers(0, 3)) == 0:
        head = head[: draw(st.integers(0, len(head)))]
    asked = [template.replace("{}", subject, 1) for subject, _ in draw(st.lists(st.tuples(PHRASE, PHRASE), max_size=3))]
    tails = [*asked, *(f"{line} {draw(PHRASE)}" for line in asked), *draw(st.lists(PHRASE, min_size=4, max_size=6))]
    return head, tails


def outcome(function, *inputs):
    """Return the result of a call, or the message of its error."""
    try:
        return function(*inputs)
    except LREError as error:
        return str(error)


@pytest.mark.parametrize("name", KINDS)
@tried(6)
@given(texts=heads_and_tails())
def test_tokens_after_a_head_are_those_of_the_whole_text(name, texts):
    tokenizer = tokenizers.make(name)
    head, tails = texts
    whole = outcome(tokenize, tokenizer, [head + tail for tail in tails])
    assert outcome(tokenize_after, tokenizer, head, tails) == whole


class Listening:
    """A tokenizer that remembers what it was given."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.given = []

    def __call__(self, texts, **options):
        self.given += texts
        return self.tokenizer(texts, **options)

    def __getattr__(self, name):
        return getattr(self.tokenizer, name)


CITIES = ["Paris", "Rome", "Tokyo", "New York City", "São Paulo", "Москва", "北京", "Bonn"]
HEAD = context("The capital city of {} is", "\n", [(f"the land {i}", city) for i, city in enumerate(CITIES)])
ASKED = [f"The capital city of {land} is" for land in ("Italy", "Japan", "'s", "\u0301x", "  of", "日本", "the land 3")]
TAILS = [*ASKED, *(f"{line} {city}" for line in ASKED for city in CITIES)]
# The first joins words, and most pieces of the second are longer than a word: there is no safe place to join at.
TOKENIZED_WHOLE = ("sentencepiece, one piece of joined words", "added, one piece")


@pytest.mark.parametrize("name", [name for name in KINDS if name not in TOKENIZED_WHOLE])
def test_a_head_and_equal_tails_are_tokenized_once(name):
    tokenizer = Listening(tokenizers.make(name))
    after = tokenize_after(tokenizer, HEAD, [*TAILS, *TAILS])
    assert [text for text in tokenizer.given if text.startswith(HEAD)] == [HEAD]
    assert sum(map(len, tokenizer.given)) < sum(len(HEAD + tail) for tail in TAILS) / 2
    assert after == 2 * tokenize(tokenizer, [HEAD + tail for tail in TAILS])


def test_nothing_to_tokenize():
    tokenizer = tokenizers.make("byte-level")
    assert tokenize(tokenizer, []) == tokenize_after(tokenizer, HEAD, []) == []
    for head, tails in ((HEAD, [""] * 5), ("", TAILS), ("", ["", "a"]), (HEAD, ["", *TAILS])):
        assert tokenize_after(tokenizer, head, tails) == tokenize(tokenizer, [head + tail for tail in tails])


def grouped_from_the_right():
    """Group digits by three from the end of the number, so that a tail changes all of a head of digits."""
    vocabulary = {str(number): number for number in range(1000)} | {"<unk>": 1000}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "<unk>"))
    pattern = Regex(r"\p{N}{1,3}?(?=(?:\p{N}{3})*(?!\p{N}))")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def counted_from_the_start():
    """Make pieces of five characters, one of which is put in front of the text."""
    tokenizer = tokenizers.sentencepiece(legacy=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.FixedLength(5)
    return tokenizer


@pytest.mark.parametrize("make", [grouped_from_the_right, counted_from_the_start])
def test_splits_that_depend_on_a_far_place(make):
    tokenizer = make()
    for head in ("123456789" * 20, HEAD):
        tails = [*map(str, range(0, 100000, 4321)), *ASKED]
        assert tokenize_after(tokenizer, head, tails) == tokenize(tokenizer, [head + tail for tail in tails])


@pytest.mark.parametrize(("name", "token"), [("unigram", "</s>"), ("toy", "[BOS]")])
@pytest.mark.parametrize(
    ("head", "tail"), [(HEAD + "{} ", "x"), ("{} " + HEAD, "x"), (HEAD, "a {}"), (HEAD + "{}", " is"), (HEAD, "{}")]
)
def test_control_tokens_are_refused_wherever_they_are(name, token, head, tail):
    tokenizer = toy_tokenizer() if name == "toy" else tokenizers.make(name)
    head, tail = head.replace("{}", token), tail.replace("{}", token)
    for tails in ([tail], [*ASKED, tail]):
        with pytest.raises(LREError, match=rf"has '{re.escape(token)}' in it, which the tokenizer takes for a control"):
            tokenize_after(tokenizer, head, tails)


def test_bytes_of_unknown_characters_stand_for_one_each():
    """A Unigram model gives each byte the place of all unknown characters around it."""
    tokenizer = tokenizers.make("unigram, no dummy prefix")
    assert isinstance(tokenizer.backend_tokenizer.model, models.Unigram)
    ((ids, spans),) = tokenize(tokenizer, ["is ?Ж\u0301😀!"])
    assert tokenizer.convert_ids_to_tokens(ids)[2] == "<0x3F>"
    assert spans == [(0, 2), (2, 3), (3, 4), (4, 5), (4, 5), (5, 6), (5, 6), (6, 7), (7, 8)]
