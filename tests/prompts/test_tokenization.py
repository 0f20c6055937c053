"""Tokens stand for characters, with any tokenizer."""

import re

import pytest
from tokenizers import models

from lre_lightning.errors import LREError
from lre_lightning.prompts.tokenization import tokenize
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.toy import toy_tokenizer


@pytest.mark.parametrize(("name", "token"), [("unigram", "</s>"), ("toy", "[BOS]")])
@pytest.mark.parametrize("text", ["Rome is {} x", "{} is", "Rome {}", "{}"])
def test_control_tokens_are_refused_wherever_they_are(name, token, text):
    tokenizer = toy_tokenizer() if name == "toy" else tokenizers.make(name)
    with pytest.raises(LREError, match=rf"has '{re.escape(token)}' in it, which the tokenizer takes for a control"):
        tokenize(tokenizer, ["Rome is", text.replace("{}", token)])


def test_nothing_to_tokenize():
    assert tokenize(tokenizers.make("byte-level"), []) == []


def test_bytes_of_unknown_characters_stand_for_one_each():
    """A Unigram model gives each byte the place of all unknown characters around it."""
    tokenizer = tokenizers.make("unigram, no dummy prefix")
    assert isinstance(tokenizer.backend_tokenizer.model, models.Unigram)
    ((ids, spans),) = tokenize(tokenizer, ["is ?Ж\u0301😀!"])
    assert tokenizer.convert_ids_to_tokens(ids)[2] == "<0x3F>"
    assert spans == [(0, 2), (2, 3), (3, 4), (4, 5), (4, 5), (5, 6), (5, 6), (6, 7), (7, 8)]
