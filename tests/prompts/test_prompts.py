"""Prompts in tokens: where the subject is, which tokens are the object's, and how prompts begin."""

import re
import unicodedata
from dataclasses import replace
from importlib.util import find_spec
from itertools import accumulate
from types import SimpleNamespace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from lre_lightning.errors import LREError
from lre_lightning.models.tokenizer import load_tokenizer, own_start, start_tokens
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import Prompt, first_token_coverage, make_prompt, make_prompts, tokenize_text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.prompts.trials import Trial, train_prompts
from lre_lightning.prompts.trials import test_prompts as make_test_prompts
from lre_lightning.relations.relation import Relation, Sample
from lre_lightning.relations.sources import load_relations
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.hostile import tried
from tests.helpers.relations import with_papers_relations

# The subject.


# The byte that each letter of a byte-level token stands for.
PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]
OTHERS = [byte for byte in range(256) if byte not in PRINTABLE]
ALPHABET = {chr(byte): byte for byte in PRINTABLE} | {chr(256 + i): byte for i, byte in enumerate(OTHERS)}


def bytes_of(tokenizer, id_):
    """Return the bytes of the text that a token stands for, read off the token alone."""
    token = tokenizer.convert_ids_to_tokens(id_)
    byte_level = isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel)
    if byte_level and id_ not in tokenizer.added_tokens_decoder:
        return bytes(ALPHABET[letter] for letter in token)
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()


def check_subject(tokenizer, prompt, template):
    """Compare the subject's tokens with those that hold a byte of it."""
    parts = [bytes_of(tokenizer, id_) for id_ in prompt.input_ids[1:]]
    ends = list(accumulate(map(len, parts)))
    text = prompt.text.encode()
    dummy = ends[-1] - len(text)
    assert b"".join(parts) == b" " * dummy + text
    assert 0 <= dummy <= 1
    first, last = (dummy + len(prompt.text[:at].encode()) for at in prompt.subject_chars)
    assert prompt.text[slice(*prompt.subject_chars)] == prompt.subject.strip()
    assert prompt.subject_chars[1] > len(prompt.text) - len(template.replace("{}", prompt.subject, 1))
    holding = [i for i, end in enumerate(ends, 1) if end > first and end - len(parts[i - 1]) < last]
    assert prompt.subject_span == (holding[0], holding[-1] + 1)


CHARACTERS = st.characters(codec="utf-8")
WORDS = ["Paris", "New York City", "the", "capital of", "São Paulo", "北京", "it's", "Is", "is in", "1924", "ris", "xq"]
SIGNS = [".", ", ", "!!", "</", "s>", "<s>", "<work>", "'s", "-", "\u0301", "\u200b", "😀", "👍🏽", "\ufb01", "İ", "▁"]
SPACES = [" ", " ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u3000", "\x00", "\u2028"]
PHRASE = st.lists(
    st.one_of(*map(st.sampled_from, (WORDS, SPACES, SIGNS)), st.text(CHARACTERS, max_size=3)), max_size=5
).map("".join)
TEMPLATE = st.one_of(
    st.sampled_from(["The capital of {} is", "{}", "In {},", "Q: {}?\nA:"]), st.tuples(PHRASE, PHRASE).map("{}".join)
)
DIFFICULT = ["Tesla, Inc.", "x" * 40, "a", "\u200b", "京", "👍🏽 & co", "Café", "{}", "{0.__class__}", r"\1 (C++)"]
ANY = st.text(CHARACTERS, min_size=1, max_size=8)
SUBJECT = st.one_of(PHRASE, st.sampled_from(DIFFICULT), ANY).filter(str.strip)


def outcome(function, *inputs):
    """Return the result of a call, or the message of its error."""
    try:
        return function(*inputs)
    except LREError as error:
        return str(error)


@st.composite
def questions(draw):
    """Draw a template, a sample and examples."""
    template, subject = draw(TEMPLATE), draw(SUBJECT)
    examples = draw(st.lists(st.tuples(st.one_of(st.just(subject), PHRASE), PHRASE), max_size=3))
    return template, Sample(subject, "an object"), [Sample(*example) for example in examples]


@pytest.mark.parametrize("name", tokenizers.LOSSLESS)
@tried(12)
@given(question=questions())
def test_the_subjects_tokens_are_those_that_hold_a_byte_of_it(name, question):
    tokenizer = tokenizers.make(name)
    template, sample, examples = question
    prompt = outcome(make_prompt, tokenizer, template, sample, examples)
    assume(isinstance(prompt, Prompt))
    # These tokenizers do not tell apart other forms of a character (NFC), and their own sign for a space.
    assume(unicodedata.is_normalized("NFC", prompt.text) and "▁" not in prompt.text)
    check_subject(tokenizer, prompt, template)


@pytest.mark.parametrize("name", [*tokenizers.OTHERS, *tokenizers.CHANGING])
@tried(8)
@given(question=questions())
def test_the_subjects_tokens_are_those_that_reach_into_it(name, question):
    tokenizer = tokenizers.make(name)
    template, sample, examples = question
    prompt = outcome(make_prompt, tokenizer, template, sample, examples)
    assume(isinstance(prompt, Prompt))
    ((ids, spans),) = tokenize(tokenizer, [prompt.text])
    assert prompt.input_ids[1:] == tuple(ids)
    (first, last), (start, stop) = prompt.subject_chars, prompt.subject_span
    assert prompt.text[first:last] == sample.subject.strip()
    inside = spans[start - 1 : stop - 1]
    for span in (inside[0], inside[-1]):
        assert max(span[0], first) < min(span[1], last)
    assert all(span[1] <= first for span in spans[: start - 1])
    assert all(span[0] >= last for span in spans[stop - 1 :])


@pytest.mark.parametrize(
    ("template", "subject", "mention"),
    [
        ("{} starts with the letter", "letter", "letter starts with the letter"),  # a later mention: the last
        ("A {} is in the category of a", "cat", "A cat"),  # part of a word is no mention
        ("{}s are", "cat", "cat"),
        ("{} is", "i", "i"),
        ("In Bonn, {} is", "Bonn", "In Bonn, Bonn"),  # an earlier one doesn't count
        ("The opposite of {} is", "Jimmy ", "The opposite of Jimmy"),  # the space at the end isn't the subject
        ("{} and c++ are", "c++", "c++ and c++"),
    ],
)
def test_the_mention_that_counts(template, subject, mention):
    prompt = make_prompt(tokenizers.make("characters"), template, Sample(subject, "x"), [Sample("dog", "like a cat")])
    line = prompt.text.rindex("\n") + 1
    assert prompt.text[line : prompt.subject_chars[1]] == mention
    assert prompt.subject_position == line + len(mention)


@pytest.mark.parametrize("separator", ["\n", "\n\n", ". ", " | ", "; \n", "§", "{}"])
def test_the_separator_is_between_lines(separator):
    context = [Sample("Rome", "Italy"), Sample("{}", "|"), Sample("Paris", "France")]
    for shots in (0, 1, 2, 3, 7, None):
        options = Prompts(separator=separator, shots=shots)
        for subject in ("Paris", "{}"):
            prompt = make_prompt(tokenizers.make("characters"), "In {} is", Sample(subject, "x"), context, options)
            given = [f"In {sample.subject} is {sample.object}" for sample in context[:shots]]
            assert prompt.text == separator.join([*given, f"In {subject} is"])
            begins = len(prompt.text) - len(f"{subject} is")
            assert prompt.subject_chars == (begins, begins + len(subject))


# Start, padding and control tokens.


@pytest.mark.parametrize("name", [*tokenizers.LOSSLESS, *tokenizers.OTHERS])
def test_there_is_exactly_one_start_token_and_no_end_token(name):
    tokenizer = tokenizers.make(name)
    added = "no bos" not in name and any(kind in name for kind in ("sentencepiece", "one piece", "bos"))
    usual = tokenizer.bos_token if added or tokenizer.eos_token is None else tokenizer.eos_token
    expected = "[CLS]" if name == "wordpiece" else usual
    prompt = make_prompt(tokenizer, "{} is", Sample("Paris", "in"), [Sample("Rome", "is in")])
    unknown = tokenizer.unk_token_id if tokenizer.bos_token != "<|endoftext|>" else None
    assert tokenizer.convert_ids_to_tokens(prompt.input_ids[0]) == expected
    assert not (set(tokenizer.all_special_ids) - {unknown}) & set(prompt.input_ids[1:])
    assert tokenizer.decode(prompt.input_ids[1:]).split() == prompt.text.split()
    bare = make_prompt(
        tokenizer, "{} is", Sample("Paris", "in"), [Sample("Rome", "is in")], Prompts(start_token="none")
    )
    first, end = prompt.subject_span
    assert bare == replace(prompt, input_ids=prompt.input_ids[1:], subject_span=(first - 1, end - 1), start=0)
    alone = make_prompt(tokenizer, "{}", Sample("Paris", "in"), (), Prompts(start_token="none"))
    assert alone.subject_span[1] == len(alone.input_ids)
    assert tokenizer.decode(alone.input_ids).split() == ["Paris"]
    assert tokenize_text(tokenizer, "Paris", "none") == (alone.input_ids, 0)


def test_the_start_token_is_the_one_that_is_asked_for():
    tokenizer = tokenizers.byte_level(bos=tokenizers.START)  # which it does not add itself
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    asked = {"auto": (eos,), "eos": (eos,), "bos": (bos,), "none": (), "own": ()}
    for choice, expected in asked.items():
        prompt = make_prompt(tokenizer, "{} is", Sample("Rome", "big"), (), Prompts(start_token=choice))
        assert prompt.input_ids[: prompt.start] == start_tokens(tokenizer, choice) == expected
        ids, first = tokenize_text(tokenizer, "Rome is", choice)
        assert (ids, first) == (prompt.input_ids, len(expected))
    two = tokenizers.processors.TemplateProcessing(
        single="<s> <|end|> $A", special_tokens=[("<s>", bos), ("<|end|>", eos)]
    )
    tokenizer.backend_tokenizer.post_processor = two  # ChatGLM: two tokens in front
    assert start_tokens(tokenizer) == start_tokens(tokenizer, "own") == (bos, eos)
    assert own_start(tokenizer) == "own"
    assert make_prompt(tokenizer, "{} is", Sample("Rome", "big")).start == 2


def test_a_tokenizer_without_special_tokens_starts_prompts_with_none_and_does_not_take_another():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    assert start_tokens(tokenizer) == ()
    with pytest.raises(LREError, match=r"has no BOS token to start prompts with: leave start_token out, or .* none"):
        start_tokens(tokenizer, "bos")
    with pytest.raises(LREError, match="start_token must be"):
        Prompts(start_token="sos")


def test_text_that_looks_like_a_special_token_is_text():
    tokenizer = tokenizers.make("byte-level, bos and eos added")
    for subject in ("<s>", "</s>", "a </s> b"):
        for template, context in (("{} is", ()), ("{} is", [Sample(subject, subject)]), (subject + " {} is", ())):
            prompt = make_prompt(tokenizer, template, Sample(subject, subject), context)
            assert prompt.input_ids[0] == tokenizer.bos_token_id
            assert not {*prompt.input_ids[1:], prompt.object_token} & set(tokenizer.all_special_ids)
            assert tokenizer.decode(prompt.input_ids[1:]) == prompt.text


def test_the_tokenizers_own_truncation_and_padding_are_not_used():
    tokenizer = tokenizers.byte_level()
    samples = [Sample("Paris", "in"), Sample("New York City", "in")]
    plain = make_prompts(tokenizer, "{} is", samples)
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding(length=50)
    assert make_prompts(tokenizer, "{} is", samples) == plain


# The object.


@pytest.mark.parametrize(
    ("name", "answer", "token"),
    [
        ("gpt2", "Paris", "ĠParis"),
        ("gpt2", "New York", "ĠNew"),
        ("gpt2", "北京", "Ġå"),
        ("byte-level", "Paris", "ĠParis"),
        ("sentencepiece, prepend first", "Paris", "▁Paris"),
        ("sentencepiece, legacy", "Paris", "▁Paris"),
        ("sentencepiece, legacy", "東京", "▁"),  # falls back on bytes; the model has to predict the space first
        ("wordpiece", "Paris", "Paris"),
        ("characters", "Paris", " "),
    ],
)
def test_the_objects_first_token_by_hand(name, answer, token):
    tokenizer = tokenizers.make(name)
    prompt = make_prompt(tokenizer, "{} is", Sample("Rome", answer))
    assert tokenizer.convert_ids_to_tokens(prompt.object_token) == token


def test_object_token_where_prompt_and_object_run_together():
    """Use a tokenizer in which "is a" is one token: the first token that reaches into the object counts."""
    vocabulary = {"<s>": 0} | {letter: i for i, letter in enumerate("Rome isab", 1)}
    vocabulary |= {" i": 20, " is": 21, " a": 22, " is a": 23}
    merges = [(" ", "i"), (" i", "s"), (" ", "a"), (" is", " a")]
    model = models.BPE(vocabulary, merges)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(model), bos_token="<s>")
    prompt = make_prompt(tokenizer, "{} is", Sample("Rome", "ab"))
    assert prompt.input_ids[-1] == 21
    assert prompt.object_token == 23
    assert make_prompt(tokenizer, "{} is", Sample("Rome", "b")).object_token == vocabulary[" "]


def test_first_token_coverage_by_hand():
    objects = ["Rome", "New York", "Rome", "New Delhi", "Tokyo"]
    samples = tuple(Sample(f"s{i}", text) for i, text in enumerate(objects))
    relation = Relation("toy", "toy", ("{} is",), (), "", "", False, samples)
    coverage = first_token_coverage(relation, tokenizers.make("sentencepiece, prepend first"))
    assert (coverage.relation, coverage.range_size, coverage.unique_first_tokens) == ("toy", 4, 3)
    assert (coverage.fraction, coverage.collisions) == (0.75, (("New York", "New Delhi"),))


YEARS = [Sample(f"president {i}", year) for i, year in enumerate(["1980", "1984", "2008", "1932"] * 2)]


def years(*more):
    samples = (*YEARS, *more)
    relation = Relation("election year", "toy", ("{} was elected in",), (), "", "", False, samples)
    return Trial(relation, 0, samples[:3], samples[3:])


@pytest.mark.parametrize("name", ["sentencepiece, prepend first", "sentencepiece, one piece", "tiktoken", "qwen"])
def test_a_blank_that_all_objects_begin_with_ends_the_prompt(name):
    """Llama's and Qwen's tokenizers begin every number with a bare space."""
    tokenizer, trial = tokenizers.make(name), years()
    before = make_prompts(tokenizer, trial.template, trial.test, trial.train)
    after = make_test_prompts(trial, tokenizer)
    (blank,) = {prompt.object_tokens[0] for prompt in before}
    assert tokenizer.convert_ids_to_tokens(blank) in ("▁", "Ġ")
    for one, other in zip(before, after, strict=True):
        ids, tokens = (*one.input_ids, blank), one.object_tokens[1:]
        assert other == replace(one, input_ids=ids, object_tokens=tokens)
    assert {prompt.input_ids[-1] for prompt in train_prompts(trial, tokenizer)} == {blank}
    coverage = first_token_coverage(trial.relation, tokenizer)
    assert (coverage.range_size, coverage.unique_first_tokens) == (4, 2)  # "1" and "2"
    assert [coverage.tokens[prompt.object] for prompt in after] == [prompt.object_tokens for prompt in after]
    # A blank that some objects begin with is part of them: a prompt that ends with it would tell which ones.
    mixed = years(Sample("no president", "Rome"))
    prompts = make_test_prompts(mixed, tokenizer)
    assert prompts == make_prompts(tokenizer, mixed.template, mixed.test, mixed.train)
    assert prompts[0].object_token == blank != prompts[-1].object_token


# Table "first_token_filter" of the paper: the ranges in which first tokens collide under GPT-J, by their size and their
# number of distinct first tokens.
PAPER = {
    "adjective superlative": (79, 77),
    "city in country": (21, 20),
    "company CEO": (287, 208),
    "person father": (968, 400),
    "person lead singer of band": (21, 18),
    "person mother": (962, 380),
    "person university": (69, 37),
    "pokemon evolution": (44, 40),
    "president birth year": (15, 9),
    "president election year": (18, 14),
    "star constellation name": (31, 29),
    "superhero archnemesis": (90, 76),
    "superhero person": (100, 89),
    "task done by tool": (51, 50),
}


@with_papers_relations
def test_first_token_coverage_is_the_papers_table():
    tokenizer = tokenizers.make("gpt2")
    found = [first_token_coverage(relation, tokenizer) for relation in load_relations()]
    assert {one.relation: (one.range_size, one.unique_first_tokens) for one in found if one.fraction < 1} == PAPER
    assert f"{100 * sum(coverage.fraction for coverage in found) / 47:.2f}" == "93.17"


# Mistakes.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": ""}, "separator is '': lines must be kept apart"),
        ({"separator": None}, "separator is None"),
        ({"shots": -1}, "shots must be a whole number of at least 0, got -1"),
        ({"system": "Be brief."}, "system is a message of conversations: set chat, or leave system out"),
        ({"system": 3, "chat": True}, "system must be a text, got 3"),
        ({"sampling": "even"}, "sampling must be 'random' or 'balanced', got 'even'"),
        ({"template": "few"}, r"template is 'few'; it must have exactly one \{\}"),
        ({"template": {"country capital city": "no slot"}}, r"template is 'no slot'; it must have exactly one \{\}"),
        ({"template": "{subject} is"}, r"template is '{subject} is'; it must have exactly one"),
        ({"template": -1}, "template must be a whole number of at least 0, got -1"),
        ({"template": None}, "template must be a whole number of at least 0, got None"),
        ({"train_samples": ["a"]}, r"train_samples must be lists by relation, got \['a'\]"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(LREError, match=message):
        Prompts(**options)


def test_slow_tokenizers_are_refused():
    with pytest.raises(LREError, match=r"SimpleNamespace .* use the fast tokenizer"):
        make_prompts(SimpleNamespace(is_fast=False), "{}", [])


def test_a_subject_or_object_that_the_tokenizer_drops_is_refused():
    tokenizer = tokenizers.byte_level()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("#", "")
    with pytest.raises(LREError, match="nothing of the subject '##' in '## is'"):
        make_prompt(tokenizer, "{} is", Sample("##", "a"))
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(" #", "")
    with pytest.raises(LREError, match="nothing of the object '#' after 'a is'"):
        make_prompt(tokenizer, "{} is", Sample("a", "#"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("/no/where", "does not exist"),
        ("nobody/nothing", "there is no folder 'nobody/nothing' here, and the hub cannot be asked"),
        ("a folder without one", "cannot load the tokenizer"),
        pytest.param(
            "a folder with tokenizer.model",
            r"needs sentencepiece and protobuf: pip install 'lre-lightning\[sentencepiece\]'",
            marks=pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="sentencepiece is installed"),
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_loaded_is_one_line(tmp_path, name, message):
    if name.startswith("a folder"):
        (tmp_path / "config.json").write_text('{"model_type": "llama"}')
        if "tokenizer.model" in name:
            (tmp_path / "tokenizer.model").write_bytes(b"\x0a\x0e")
        name = str(tmp_path)
    with pytest.raises(LREError, match=message) as caught:
        load_tokenizer(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
