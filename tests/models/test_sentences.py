"""What an LM makes of a few sentences: the start token that suits it, and whose tokenizer is its own."""

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.models import sentences
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.sentences import Likelihood, check_match, likelihood, suitable_start, tokenized
from lre_lightning.models.tokenizer import load_tokenizer
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.tiny_models import tiny_model

NONE, BOS, EOS = "none", "bos", "eos"


def random_lm(tokenizer, **options):
    return LanguageModel(tiny_model("llama", vocab_size=len(tokenizer), **options))


def test_likelihood_is_that_of_the_model_itself():
    tokenizer = tokenizers.make("sentencepiece, legacy")
    lm, rows, start = random_lm(tokenizer), [[5, 9, 300, 7], [4, 60]], (1, 2)
    found, expected = [], []
    for row in rows:
        logs = lm.model(torch.tensor([[*start, *row]])).logits[0].log_softmax(-1)
        for place in range(1, len(row)):
            seen = logs[len(start) + place - 1]
            found.append(float(seen[row[place]]))
            expected.append(float((seen.exp() * seen).sum()))
    assert likelihood(lm, rows, start) == pytest.approx((sum(found) / 4, sum(expected) / 4))
    longer = likelihood(lm, [[i % 50 for i in range(500)]], start)  # more than the LM is made for
    assert longer == likelihood(lm, [list(range(30))], start)


@pytest.mark.parametrize(
    ("figures", "chosen"),
    [
        ({NONE: -3.1, BOS: -4.8, EOS: -3.5}, EOS),  # Qwen2.5-Coder-0.5B
        ({NONE: -3.67, BOS: -3.67, EOS: -3.67}, EOS),  # SmolLM2
        ({NONE: -3.1, BOS: -3.5, EOS: -4.8}, BOS),
        ({NONE: -3.1, BOS: -4.8, EOS: -4.8}, NONE),
        ({NONE: -5.6, BOS: -2.5, EOS: -5.4}, BOS),  # Gemma, if its tokenizer did not add BOS
        ({NONE: float("nan"), BOS: float("nan"), EOS: float("nan")}, EOS),  # overflow in 16 bits
    ],
)
def test_where_the_tokenizer_puts_nothing_in_front_the_first_token_that_does_no_harm_is_chosen(
    figures, chosen, monkeypatch
):
    tokenizer = tokenizers.byte_level(bos=tokenizers.START)  # BOS that it does not add
    names = {(): NONE, (tokenizer.bos_token_id,): BOS, (tokenizer.eos_token_id,): EOS}
    monkeypatch.setattr(sentences, "likelihood", lambda lm, rows, start: Likelihood(figures[names[tuple(start)]], 0))
    assert suitable_start(None, tokenizer) == chosen
    added = tokenizers.make("byte-level, bos added")
    assert suitable_start(None, added) == BOS  # the tokenizer's own is the rule, and nothing is measured


def test_the_start_token_is_measured_once_for_a_tokenizer():
    tokenizer, other = tokenizers.make("qwen"), tokenizers.make("wordpiece")
    lm = random_lm(tokenizer)
    calls = []
    lm.model.register_forward_hook(lambda *_: calls.append(1))
    lm.tokenizer = tokenizer
    assert [lm.start_token, lm.start_token] == [EOS, EOS]
    assert len(calls) > 0
    lm.tokenizer, count = other, len(calls)
    assert lm.start_token == "own"
    assert len(calls) == count


def test_a_tokenizer_that_is_not_the_lms_is_refused():
    demo, characters = LanguageModel.from_pretrained("demo"), tokenizers.make("characters")
    check_match(demo, load_tokenizer("demo"), "tokenizer")
    with pytest.raises(LREError, match=r"the tokenizer .* is not that of 'demo': leave tokenizer out, or give that of"):
        check_match(demo, characters, "tokenizer")
    nameless = LanguageModel(demo.model, "fine-tuned")
    check_match(nameless, demo.tokenizer, "tokenizer")  # as many tokens, and the same special ones
    with pytest.raises(LREError, match=r"'fine-tuned': .* if it is right, assign it to lm\.tokenizer"):
        check_match(nameless, characters, "tokenizer")  # these ids mean other words to it
    nameless.tokenizer = characters
    check_match(nameless, characters, "tokenizer")


@pytest.mark.parametrize("name", ["qwen", "sentencepiece, legacy", "unigram", "wordpiece", "tiktoken", "characters"])
def test_an_lm_that_has_learned_nothing_takes_any_tokenizer_whose_ids_it_has(name):
    tokenizer = tokenizers.make(name)
    lm = random_lm(tokenizers.make("characters"))
    check_match(lm, tokenizer, "tokenizer")
    small = LanguageModel(tiny_model("gpt2", vocab_size=max(map(max, tokenized(tokenizer)))))
    with pytest.raises(LREError, match="is not that of 'GPT2LMHeadModel'"):
        check_match(small, tokenizer, "tokenizer")
