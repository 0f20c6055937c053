"""Text to tokens, and texts with the same beginning, which is tokenized only once.

A tokenizer is not concatenative: what follows a text may change its last tokens, and the first tokens of a text are
made differently from those within it. Both effects are local, though, and tokenizers say where: they split a text into
pieces (roughly words) and tokenize each piece on its own.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, starmap
from operator import eq, ne
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from tokenizers.models import BPE, Unigram

from lre_lightning.errors import LREError

if TYPE_CHECKING:
    from tokenizers import Encoding as Encoded
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
Encoding = tuple[list[int], list[Span]]
"""Token ids, and for each the first character and one past the last character that it stands for."""

FLANK = 3  # pieces on either side of a seam that must be the same in all tokenizations
FEWEST = 4  # with fewer tails a seam costs more than it saves
SPACES = "▁Ġ"  # how tokenizers write a space

_vocabularies: "WeakKeyDictionary[PreTrainedTokenizerBase, str]" = WeakKeyDictionary()


def tokenize(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], controls: bool = False) -> list[Encoding]:
    """Tokenize whole texts, with nothing added.

    Text that looks like a control token, such as ``</s>``, is tokenized as text unless `controls` is set. Offsets are
    corrected: a space that the tokenizer itself adds counts as no character, and a token of a single byte as one.
    """
    return _corrected(tokenizer, texts, [(e.ids, e.offsets) for e in _tokenize(tokenizer, texts, controls)], controls)


def tokenize_after(
    tokenizer: "PreTrainedTokenizerBase", head: str, tails: Sequence[str], controls: bool = False
) -> list[Encoding]:
    """Tokenize texts that all begin with the same head, which is tokenized only once.

    Each tail is tokenized after the head's last words only. The tokens before come from the head's own tokens, up to a
    seam: a place where the tokenizer splits pieces, with the same `FLANK` pieces on both sides, token for token and
    character for character, in the head and in its last words before the tail. Where a tokenizer makes one piece of
    everything (Llama 2, Gemma), a seam is between two characters that no token of its BPE vocabulary holds next to each
    other. A tail without a seam is tokenized after the whole head, and so are a few tails, for which this is cheaper.

    The result is that of tokenizing everything for each tokenizer whose splits depend on at most `FLANK` pieces around
    a place, unless a farther change shows in these pieces too. This holds for the normalizers and pre-tokenizers of the
    library ``tokenizers``, except for patterns that look far ahead. Nothing is assumed between two seams: a model (BPE,
    Unigram, WordPiece) sees one piece at a time.

    Returns:
        The result of `tokenize` for ``head + tail``, for each tail; equal tails are tokenized once.
    """
    distinct = list(dict.fromkeys(tails))
    seam = _find_seam(tokenizer, head, controls) if len(distinct) >= FEWEST else None
    found: dict[str, Encoding] = {}
    if seam is not None:
        windows = _tokenize(tokenizer, [seam.window + tail for tail in distinct], controls)
        joined = zip(distinct, map(seam.join, windows), strict=True)
        found = {tail: encoding for tail, encoding in joined if encoding is not None}
    rest = [tail for tail in distinct if tail not in found]
    whole = _tokenize(tokenizer, [head + tail for tail in rest], controls)
    found |= {tail: (encoded.ids, encoded.offsets) for tail, encoded in zip(rest, whole, strict=True)}
    texts = [head + tail for tail in distinct]
    corrected = _corrected(tokenizer, texts, [found[tail] for tail in distinct], controls)
    encodings = dict(zip(distinct, corrected, strict=True))
    return [encodings[tail] for tail in tails]


@dataclass(frozen=True)
class _Seam:
    """A place in a head where the head's own tokens and those of its last words before a tail are joined.

    Attributes:
        window: The head's last words, which are tokenized before each tail.
        shift: Characters of the head before the window.
        before: The head's tokens before the seam.
        around: The head's tokens that flank the seam.
        after: How many of these come before the seam.
    """

    window: str
    shift: int
    before: Encoding
    around: tuple[list[int], list[Span], list[bool]]
    after: int

    def join(self, window: "Encoded") -> Encoding | None:
        """Join the head's tokens and those of the window before a tail; None if the tail changes those around."""
        ids, offsets = window.ids, [(start + self.shift, stop + self.shift) for start, stop in window.offsets]
        first = bisect_left(offsets, self.around[1][0])
        if _part(ids, offsets, window.word_ids, first, first + len(self.around[0])) != self.around:
            return None
        at = first + self.after
        return self.before[0] + ids[at:], self.before[1] + offsets[at:]


def _part(ids: list[int], offsets: list[Span], pieces: list[int | None], first: int, end: int) -> Any:
    """Return the ids and the characters of some tokens, and where pieces end between them."""
    return ids[first:end], offsets[first:end], list(starmap(ne, pairwise(pieces[first:end])))


def _find_seam(tokenizer: "PreTrainedTokenizerBase", head: str, controls: bool) -> _Seam | None:
    """Find a seam in the second half of a head, with a flank of pieces to spare on either side."""
    (whole,) = _tokenize(tokenizer, [head], controls)
    seams = _possible_seams(tokenizer, whole)
    if len(seams) < 4 * FLANK:
        return None
    start, first, seam, end = (seams[-i * FLANK] for i in (4, 3, 2, 1))
    ids, offsets = whole.ids, whole.offsets
    shift = offsets[start][0]
    longest_added = max(map(len, tokenizer.get_added_vocab()), default=0)
    if shift < len(head) / 2 or len(head) - shift <= longest_added:
        return None
    around = _part(ids, offsets, whole.word_ids, first, end)
    return _Seam(head[shift:], shift, (ids[:seam], offsets[:seam]), around, seam - first)


def _possible_seams(tokenizer: "PreTrainedTokenizerBase", encoded: "Encoded") -> list[int]:
    """Find the tokens that no text after the next few pieces can join to the token before them."""
    pieces = encoded.word_ids
    tokens = range(1, len(pieces))
    if len(set(pieces)) > 1:
        return [token for token in tokens if pieces[token] != pieces[token - 1]]
    model = tokenizer.backend_tokenizer.model
    if not isinstance(model, BPE) or model.ignore_merges or model.dropout or model.continuing_subword_prefix:
        return []
    # A merge makes a token that holds the last character of one token beside the first character of the next.
    if tokenizer not in _vocabularies:
        _vocabularies[tokenizer] = "\0".join(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False))
    vocabulary, texts = _vocabularies[tokenizer], encoded.tokens
    return [token for token in tokens if texts[token - 1][-1:] + texts[token][:1] not in vocabulary]


def _tokenize(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], controls: bool) -> "list[Encoded]":
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
    return list(batch.encodings or [])


def _corrected(
    tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], encodings: Iterable[Encoding], controls: bool
) -> list[Encoding]:
    """Refuse control tokens where there should be none, and correct the spans of single bytes and of an added space."""
    refused = set() if controls else set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    spaces = {tokenizer.convert_tokens_to_ids(space) for space in SPACES} - {tokenizer.unk_token_id}
    unigram = isinstance(tokenizer.backend_tokenizer.model, Unigram)
    found = []
    for text, (ids, spans) in zip(texts, encodings, strict=True):
        if not refused.isdisjoint(ids):
            token = tokenizer.convert_ids_to_tokens(next(id_ for id_ in ids if id_ in refused))
            raise LREError(f"a prompt has {token!r} in it, which the tokenizer takes for a control token: leave it out")
        corrected = _split_bytes(tokenizer, ids, spans, text) if unigram else spans
        # A space that the tokenizer has added is given the span of the first character.
        if ids and ids[0] in spaces and not text[:1].isspace() and text[:1] not in SPACES:
            corrected = [(0, 0), *corrected[1:]]
        found.append((ids, corrected))
    return found


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
