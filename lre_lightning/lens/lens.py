"""The attribute lens: what hidden states say about an attribute of a subject, at every layer and token of a text.

Given the LRE of a relation, each hidden state h is decoded as D(LRE(h)) (Section 5 of the paper). With the identity in
place of the LRE that is the logit lens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import encode_text
from lre_lightning.storage.plain import printable

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
        layer: The layer that the LRE was estimated at; None for the logit lens.
    """

    name: str
    text: str
    tokens: tuple[str, ...]
    layers: tuple[Layer, ...]
    top: tuple[tuple[tuple[str, ...], ...], ...]
    probabilities: tuple[tuple[tuple[float, ...], ...], ...]
    layer: Layer | None = None

    def to(self, *args: Any, **kwargs: Any) -> Lens:
        """The grid itself, which is on no device: Lightning moves predictions."""
        return self

    def plain(self) -> dict[str, Any]:
        """The grid as plain data."""
        return asdict(self)


class FirstTrials(Mapping[str, LRE]):
    """The LRE of the first trial of each relation, looked up when it is needed: each may be a large file.

    Args:
        lres: LREs by relation and trial.
        relations: The relations that are wanted; all if None. Those without an LRE are left out.
    """

    def __init__(self, lres: Mapping[tuple[str, int], LRE], relations: Sequence[str] | None = None) -> None:
        trials: dict[str, int] = {}
        for relation, trial in lres:
            trials[relation] = min(trial, trials.get(relation, trial))
        wanted = trials if relations is None else relations
        self._lres, self._pairs = lres, {name: (name, trials[name]) for name in wanted if name in trials}

    def __getitem__(self, relation: str) -> LRE:
        """The LRE of a relation."""
        return self._lres[self._pairs[relation]]

    def __iter__(self) -> Iterator[str]:
        """The relations."""
        return iter(self._pairs)

    def __len__(self) -> int:
        """How many relations there are."""
        return len(self._pairs)


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
        LREError: If the text is empty or too long, an LRE is of another LM, a number is out of range, or logits are not
            finite.
    """
    if not 1 <= top_k <= lm.vocab_size:
        raise LREError(f"top_k {top_k} is out of range: it must be 1 to {lm.vocab_size}, the LM's vocabulary")
    chosen = lm.check_layers(layers)
    ids = encode_text(tokenizer, text)
    lm.check_ids(torch.tensor([ids]))
    tokens = tuple(token_text(tokenizer, token) for token in ids[1:])
    with torch.no_grad():
        found = lm.hidden_states(torch.tensor([ids], device=lm.device), chosen)
        hidden = torch.stack([found[layer][0, 1:].to(lm.device) for layer in chosen])

        def read(name: str, lre: LRE | None) -> Lens:
            best, probabilities = _top(lm, lre, hidden, top_k)
            shown = _texts(tokenizer, best), _tuples(probabilities.tolist())
            return Lens(name, text, tokens, chosen, *shown, layer=None if lre is None else lre.layer)

        grids = []
        for name, lre in lres.items():  # one at a time: each may be a large file
            lre.check_model(lm)
            grids.append(read(name, lre))
        return [*grids, read(LOGIT_LENS, None)]


def _top(lm: LanguageModel, lre: LRE | None, hidden: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Most likely tokens of hidden states `(layers, tokens, hidden)` and their probabilities, `(layers, tokens, k)`."""
    flat = hidden.flatten(0, 1)
    best, probabilities = [], []
    for states in flat.split(lm.logit_rows(len(flat))):
        logits = lm.decode(states if lre is None else lre(states)).float()
        if not torch.isfinite(logits).all():
            kind = str(lm.dtype).removeprefix("torch.")
            raise LREError(f"the logits of {lm.name} are not finite in {kind}: load the LM in bfloat16 or float32")
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
    spaces = len(piece) - len(piece.lstrip("\u2581"))  # SentencePiece drops one where a text begins with it
    return " " * spaces + text.lstrip(" ") if spaces else text


def _byte_characters() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_characters()


def to_json(lenses: Sequence[Lens]) -> str:
    """Grids as JSON: a list of what `Lens.plain` says."""
    return json.dumps([lens.plain() for lens in lenses], ensure_ascii=False, indent=1)


def print_lenses(grids: Sequence[Sequence[Lens]]) -> None:
    """Print what each relation's lens says at the last token of each text, at the layer of its LRE."""
    table = Table("text", "relation", "layer", "most likely", box=box.SIMPLE_HEAD)
    for lens in (lens for text in grids for lens in text if lens.layer is not None and lens.layer in lens.layers):
        at = lens.layers.index(lens.layer)
        best = zip(lens.top[at][-1], lens.probabilities[at][-1], strict=True)
        said = ", ".join(f"{printable(token.strip())} {probability:.2f}" for token, probability in best)
        table.add_row(printable(lens.text), printable(lens.name), str(lens.layer), said)
    Console(markup=False, emoji=False, highlight=False).print(table)
