"""Text to tokens, with the characters that each token stands for."""

from collections.abc import Sequence
from operator import eq
from typing import TYPE_CHECKING

from tokenizers.models import Unigram

from lre_lightning.errors import LREError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
Encoding = tuple[list[int], list[Span]]
"""Token ids, and for each the first character and one past the last character that it stands for."""

SPACES = "▁Ġ"  # how tokenizers write a space


def tokenize(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], controls: bool = False) -> list[Encoding]:
    """Tokenize whole texts, with nothing added.

    Text that looks like a control token, such as ``</s>``, is tokenized as text unless `controls` is set, and refused
    where that leaves a control token. Offsets are corrected: a space that the tokenizer itself adds counts as no
    character, and a token of a single byte as one.
    """
    if not texts:
        return []
    batch = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=not controls,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    refused = set() if controls else set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    spaces = {tokenizer.convert_tokens_to_ids(space) for space in SPACES} - {tokenizer.unk_token_id}
    unigram = isinstance(tokenizer.backend_tokenizer.model, Unigram)
    encodings = []
    for text, encoded in zip(texts, batch.encodings or (), strict=True):
        ids, spans = encoded.ids, encoded.offsets
        if not refused.isdisjoint(ids):
            token = tokenizer.convert_ids_to_tokens(next(id_ for id_ in ids if id_ in refused))
            raise LREError(f"a prompt has {token!r} in it, which the tokenizer takes for a control token: leave it out")
        corrected = _split_bytes(tokenizer, ids, spans, text) if unigram else spans
        # A space that the tokenizer has added is given the span of the first character.
        if ids and ids[0] in spaces and not text[:1].isspace() and text[:1] not in SPACES:
            corrected = [(0, 0), *corrected[1:]]
        encodings.append((ids, corrected))
    return encodings


def _split_bytes(tokenizer: "PreTrainedTokenizerBase", ids: list[int], spans: list[Span], text: str) -> list[Span]:
    """Let the token of a byte span one character: in Unigram models it spans all unknown characters around it."""
    if not any(map(eq, spans, spans[1:])):
        return spans
    tokens = tokenizer.convert_ids_to_tokens(ids)
    split = list(spans)
    i = 0
    while i < len(ids):
        start, stop = spans[i]
        characters = range(start, stop) if stop - start > 1 and tokens[i].startswith("<0x") else ()
        bytes_ = [(f"<0x{byte:02X}>", (at, at + 1)) for at in characters for byte in text[at].encode()]
        if bytes_ and tokens[i : i + len(bytes_)] == [token for token, _ in bytes_]:
            split[i : i + len(bytes_)] = [span for _, span in bytes_]
        i += max(len(bytes_), 1)
    return split
