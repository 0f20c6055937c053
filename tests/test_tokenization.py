"""Texts that begin alike: tokenized after their head, they are what they are tokenized whole, with any tokenizer.

``LRE_EXAMPLES=n`` tries n new inputs for each kind of tokenizer, in place of a few that are the same in every run.
"""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.tokenization import encode, encode_after
from tests import tokenizers_fixtures as tokenizers

EXAMPLES = int(os.environ.get("LRE_EXAMPLES", "0"))
KINDS = [*tokenizers.LOSSLESS, *tokenizers.OTHERS, *tokenizers.CHANGING]

WORDS = ["Paris", "New York City", "the", "capital of", "São Paulo", "北京", "it's", "Is", "is in", "1924", "ris", "xq"]
SIGNS = [
    ".",
    ", ",
    "!!",
    "</",
    "s>",
    "<s>",
    "<work>",
    "'s",
    "-",
    "\u0301",
    "\u200b",
    "😀",
    "👍🏽",
    "\ufb01",
    "İ",
    "ß",
    "▁",
]
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x00", "\u2028"]
LONG = ["x" * 70, " " * 50, "1" * 45, "\n" * 40, "the word " * 30, "é" * 40, "ab" * 30, "e\u0301" * 30, "ris" * 30]
ANY = st.text(st.characters(codec="utf-8"), max_size=3)
PHRASE = st.lists(st.one_of(*map(st.sampled_from, (WORDS, SPACES, SIGNS)), ANY), max_size=5).map("".join)
TEMPLATE = st.one_of(
    st.sampled_from(["The capital of {} is", "{}", "In {},", "Q: {}?\nA:"]),
    st.tuples(PHRASE, PHRASE).map("{}".join),
)
SEPARATOR = st.sampled_from(["\n", "\n", "\n\n", " ", ". ", "", "\t", " \n "])


def tried(examples):
    """Settings of a property that is tried on so many inputs."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def context(template, separator, facts):
    return "".join(template.replace("{}", subject, 1) + f" {answer}" + separator for subject, answer in facts)


@st.composite
def heads_and_tails(draw):
    """A context of lines, sometimes with something long in it or cut off, and what a last line may be."""
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
    """What comes of a call: its result, or what it refuses."""
    try:
        return function(*inputs)
    except LREError as error:
        return str(error)


@pytest.mark.parametrize("name", KINDS)
@tried(30)
@given(texts=heads_and_tails())
def test_what_is_tokenized_after_a_head_is_what_is_tokenized_whole(name, texts):
    tokenizer = tokenizers.make(name)
    head, tails = texts
    for group in ([tail] for tail in tails):
        pass
    after = outcome(encode_after, tokenizer, head, tails)
    assert after == outcome(encode, tokenizer, [head + tail for tail in tails])
