"""The attribute lens: what hidden states say about an attribute of a subject, at every layer and token of a text.

Given the LRE of a relation, each hidden state h is decoded as D(LRE(h)) (Section 5 of the paper). With the identity in
place of the LRE that is the logit lens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.language_model import LOGIT_BYTES, LanguageModel, Layer
from lre_lightning.lre import LRE
from lre_lightning.prompts import encode_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGIT_LENS = "logit lens"


@dataclass(frozen=True)
class Lens:
    """A grid of layers by tokens: the most likely tokens of D(LRE(h)) for every hidden state h of a text.

    Attributes:
        name: The relation, or ``"logit lens"``.
        text: The text.
        tokens: Its tokens, as `token_text` shows them, without the start token.
        layers: The layers, from the embedding up.
        top: For every layer and token the most likely tokens, best first, `[layer][token][k]`.
        probabilities: Their probabilities, likewise.
    """

    name: str
    text: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    top: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: tuple[tuple[tuple[float, ...], ...], ...]

    def plain(self) -> dict[str, Any]:
        """The grid as plain data."""
        return asdict(self)


def read_lenses(
    lm: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    lres: Mapping[str, LRE],
    top_k: int = 5,
    layers: Sequence[Layer] | None = None,
) -> list[Lens]:
    """Read a text through the lens of each relation, and through the logit lens.

    Every LRE is applied to the hidden states of all layers, with its own beta, whatever layer it was estimated at.

    Args:
        lm: The LM that the LREs were estimated from.
        tokenizer: Its tokenizer.
        text: The text; the start token is put in front.
        lres: The LREs by the names of their grids.
        top_k: How many tokens to keep for each hidden state.
        layers: The layers to show; all if None.

    Returns:
        One grid a relation, in their order, and the logit lens at last.

    Raises:
        LREError: If the text is empty or too long, an LRE is of another LM, or a number is out of range.
    """
    if not 1 <= top_k <= lm.vocab_size:
        raise LREError(f"top_k {top_k} is out of range: it must be 1 to {lm.vocab_size}, the LM's vocabulary")
    chosen = lm.check_layers(layers)
    for lre in lres.values():
        lre.check_model(lm)
    ids = encode_text(tokenizer, text)
    lm.check_ids(torch.tensor([ids]))
    with torch.no_grad():
        found = lm.hidden_states(torch.tensor([ids], device=lm.device), chosen)
        hidden = torch.stack([found[layer][0, 1:].to(lm.device) for layer in chosen])
        grids = {name: _top(lm, lre, hidden, top_k) for name, lre in lres.items()}
        grids[LOGIT_LENS] = _top(lm, None, hidden, top_k)
    tokens = tuple(token_text(tokenizer, token) for token in ids[1:])
    return [
        Lens(name, text, tokens, chosen, _texts(tokenizer, best), _tuples(probabilities.tolist()))
        for name, (best, probabilities) in grids.items()
    ]


def _top(lm: LanguageModel, lre: LRE | None, hidden: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Most likely tokens of hidden states `(layers, tokens, hidden)` and their probabilities, `(layers, tokens, k)`."""
    flat = hidden.flatten(0, 1)
    rows = max(1, LOGIT_BYTES // (lm.vocab_size * 4))
    best, probabilities = [], []
    for states in flat.split(rows):
        logits = lm.decode(states if lre is None else lre(states)).float()
        found = logits.softmax(-1).topk(top_k)
        best.append(found.indices.cpu())
        probabilities.append(found.values.cpu())
    shape = (*hidden.shape[:2], top_k)
    return torch.cat(best).reshape(shape), torch.cat(probabilities).reshape(shape)


def _texts(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> Any:
    known = {token: token_text(tokenizer, token) for token in ids.unique().tolist()}
    return tuple(tuple(tuple(known[token] for token in cell) for cell in row) for row in ids.tolist())


def _tuples(values: Any) -> Any:
    return tuple(map(_tuples, values)) if isinstance(values, list) else values


def token_text(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """The text that one token stands for, with its spaces.

    Bytes that are no character by themselves, as byte-level tokens may be, come as ``<0xE4><0xB8>``, and an id that the
    tokenizer does not have, as in padded vocabularies, as ``<50300>``.
    """
    piece: Any = tokenizer.convert_ids_to_tokens(token)
    if piece is None:
        return f"<{token}>"
    text = str(tokenizer.decode([token], clean_up_tokenization_spaces=False))
    if "\ufffd" in text:
        data = [_BYTES[character] for character in piece if character in _BYTES]
        if len(data) == len(piece):
            return "".join(chr(byte) if 0x20 <= byte < 0x7F else f"<0x{byte:02X}>" for byte in data)
        return str(piece)
    if piece.startswith("\u2581") and not text.startswith(" "):
        return " " + text  # SentencePiece: the space before a word is dropped where a text begins with it
    return text


def _byte_characters() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


def to_json(lenses: Sequence[Lens]) -> str:
    """Grids as JSON: a list of what `Lens.plain` says."""
    return json.dumps([lens.plain() for lens in lenses], ensure_ascii=False, indent=1)
