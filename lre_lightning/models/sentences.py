"""What an LM makes of a few sentences: the start token that suits it, and whether a tokenizer is its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from lre_lightning.errors import LREError
from lre_lightning.models.parts import context_length
from lre_lightning.models.tokenizer import StartToken, own_start, start_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedTokenizerBase

    from lre_lightning.models.language_model import LanguageModel

SENTENCES = (
    "The capital of France is Paris, and the capital of Japan is Tokyo.",
    "Water boils at one hundred degrees, and it freezes at zero degrees.",
    "She opened the door, looked around the room and sat down at the table.",
)

LONGEST = 32
"""Tokens of a sentence that are run at most."""

MARGIN = 1.0
"""Nats per token by which sentences must be less likely with a start token for it to be passed over.

Of LMs whose knowledge a start token leaves as it is, the loss is at most 0.4, and where it destroys knowledge 1.5 and
more (`docs/models.md`).
"""

UNEXPECTED = 4.0
"""Nats per token by which sentences are less likely than an LM expects of any text, where a tokenizer is not its own.

It is below 1 with the LM's own tokenizer and for LMs that have learned nothing, and 7 and more with those of other LMs.
"""


class Likelihood(NamedTuple):
    """How likely an LM finds the sentences' tokens after the first of each, in nats per token.

    Attributes:
        log_probability: Their mean log-probability.
        expected: The mean log-probability that the LM expects there, minus the entropy of its predictions.
    """

    log_probability: float
    expected: float


@torch.no_grad()
def likelihood(lm: LanguageModel, sentences: Sequence[Sequence[int]], start: Sequence[int] = ()) -> Likelihood:
    """Return how likely an LM finds the tokens of sentences after those of `start`.

    Raises:
        LREError: If the LM has no embedding of a token.
    """
    longest = context_length(lm.model) or LONGEST
    rows = [[*start, *ids][: min(LONGEST, longest)] for ids in sentences]
    length = max(map(len, rows))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    lm.check_ids(ids)
    states = lm(ids.to(lm.device))
    found, expected = [], []
    for row, hidden in zip(rows, states, strict=True):
        first = len(start)
        logs = lm.decode(hidden[first : len(row) - 1]).double().log_softmax(-1)
        found.append(logs.gather(1, torch.tensor(row[first + 1 :], device=logs.device)[:, None])[:, 0])
        expected.append((logs.exp() * logs).nansum(-1))
    return Likelihood(*(float(torch.cat(parts).mean()) for parts in (found, expected)))


def suitable_start(lm: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> StartToken:
    """Return what prompts of an LM start with.

    It is what the tokenizer itself puts in front of a text. Where that is nothing, it is the first of EOS, BOS and
    nothing with which the LM finds sentences about as likely as with the best of them.
    """
    own = own_start(tokenizer)
    if own is not None:
        return own
    choices: dict[StartToken, tuple[int, ...]] = {"none": ()}
    for name, token in (("bos", tokenizer.bos_token_id), ("eos", tokenizer.eos_token_id)):
        if token is not None:
            choices = {name: start_tokens(tokenizer, name), **choices}  # type: ignore[dict-item, arg-type]
    sentences = tokenized(tokenizer)
    if len(choices) > 1 and sentences:
        found = {name: likelihood(lm, sentences, tokens).log_probability for name, tokens in choices.items()}
        return next(name for name in found if not max(found.values()) - found[name] >= MARGIN)  # also if it is NaN
    return next(iter(choices))


def agreed_tokenizer(lm: LanguageModel, given: PreTrainedTokenizerBase | None) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a datamodule for an LM: the LM's own, or a given one, which the LM has from then on.

    Raises:
        LREError: If the given one is not the LM's.
    """
    if given is not None:
        check_match(lm, given, "--data.tokenizer")
        lm.tokenizer = given
    return lm.tokenizer


def check_match(lm: LanguageModel, tokenizer: PreTrainedTokenizerBase, option: str) -> None:
    """Check that a tokenizer is the LM's: its tokens of some sentences are those of the LM's own tokenizer.

    Where the LM does not have one, it has as many tokens as the LM, and the special tokens of its configuration, or
    the sentences are not much less likely than the LM expects of any text, as they are where ids mean nothing to it. An
    LM that has learned nothing expects nothing, and takes any tokenizer.

    Args:
        lm: The LM.
        tokenizer: The tokenizer.
        option: What it was given as, for the error.

    Raises:
        LREError: If it is not, or the LM has no embedding of one of the tokens.
    """
    sentences = tokenized(tokenizer)
    hint = f"leave {option} out, or give that of the LM"
    try:
        own = lm.tokenizer
    except LREError:
        own = None
        hint += "; if it is right, assign it to lm.tokenizer"
    if own is tokenizer or (own is not None and tokenized(own) == sentences) or not sentences:
        return
    wrong = own is not None or max(map(max, sentences)) >= lm.num_embeddings
    if not wrong and not _alike(lm, tokenizer):
        found = likelihood(lm, sentences)
        wrong = found.expected - found.log_probability > UNEXPECTED
    if wrong:
        raise LREError(f"the tokenizer {tokenizer.name_or_path!r} is not that of {lm.name!r}: {hint}")


def _alike(lm: LanguageModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer has as many tokens as an LM, and the special tokens that its configuration names."""
    config = getattr(lm.model, "config", None)
    for name in ("bos_token_id", "eos_token_id"):
        said, token = getattr(config, name, None), getattr(tokenizer, name)
        if said is not None and token is not None and token not in (said if isinstance(said, list) else [said]):
            return False
    return len(tokenizer) == lm.vocab_size


def tokenized(tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the token ids of the sentences, of those that have two tokens at least."""
    ids: list[list[int]] = tokenizer(list(SENTENCES), add_special_tokens=False)["input_ids"]
    return [row for row in ids if len(row) > 1]
