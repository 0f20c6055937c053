"""The attribute lens: what hidden states say about an attribute of a subject, at every layer and token of a text.

Given the LRE of a relation, each hidden state h is decoded as D(LRE(h)) (Section 5 of the paper). With the identity in
place of the LRE this is the logit lens, and with J of each layer the Jacobian lens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.likeness import Likeness, Likenesses
from lre_lightning.lre.answers import check_top_k, distributions
from lre_lightning.lre.lens import JACOBIAN_LENS, Lens, LogitLens
from lre_lightning.lre.lre import LRE, first_trials
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import StartToken, token_text
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.storage.plain import printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PRINTED = 3
"""Number of tokens printed per cell."""
MARK = "\u25b8"
"""What notebooks put before the subject's token and the layer of the LRE."""
NOTHING = "\u00b7"
"""What a cell shows where a lens says nothing."""


@dataclass(frozen=True)
class Pinned:
    """One token in every cell of a grid.

    Attributes:
        token: The token, as `token_text` shows it.
        probabilities: Its probabilities, `[layer][token]`.
        ranks: Its token ranks, in the same layout: 1 where it is the most likely token.
    """

    token: str
    probabilities: Sequence[Sequence[float]]
    ranks: Sequence[Sequence[int]]


@dataclass(frozen=True, repr=False)
class LensGrid:
    """A grid of layers by tokens: the most likely tokens of D(LRE(h)) for every hidden state h of a text.

    Attributes:
        name: The relation, the relation of concepts, ``"Jacobian lens"`` or ``"logit lens"``.
        text: The text.
        tokens: Its tokens, as `token_text` shows them, without the start token.
        layers: The layers, from the embedding up.
        top: The most likely tokens for every layer and token, most likely first, `[layer][token][k]`.
        probabilities: Their probabilities, in the same layout.
        layer: The layer that an LRE or concepts were estimated at; None for the other lenses.
        token: The index of the subject's last token, which the lens speaks about; None if no subject was found.
        pinned: A token that was looked for in every cell, if any.
        ids: The ids of the tokens in `top`.
        silent: Where the lens says nothing, as the hidden state is not like those of the relation's subjects,
            `[layer][token]`; None if it speaks everywhere. What it would say is in `top` all the same.
    """

    name: str
    text: str
    tokens: Sequence[str]
    layers: Sequence[Layer]
    top: Sequence[Sequence[Sequence[str]]]
    probabilities: Sequence[Sequence[Sequence[float]]]
    layer: Layer | None = None
    token: int | None = None
    pinned: Pinned | None = None
    ids: Mapping[str, int] = field(default_factory=dict)
    silent: Sequence[Sequence[bool]] | None = None

    def speaks(self, row: int, token: int) -> bool:
        """Return whether the lens says something at a layer, by its index in `layers`, and a token."""
        return self.silent is None or not self.silent[row][token]

    def __repr__(self) -> str:
        rows = [[printable(cell.strip()) for cell in row] for row in self._table()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([f"{printable(self.name)}: {printable(self.text)}", *lines])

    def _repr_html_(self) -> str:
        header, *rows = self._table()
        return html_table(rows, header, f"{self.name}: {self.text}")

    def _table(self) -> list[list[str]]:
        """Return the grid from the last layer down, below a header, with the subject's token and the layer marked."""
        header = ["layer", *(f"{MARK if place == self.token else ''}{text}" for place, text in enumerate(self.tokens))]
        rows = [
            [
                f"{MARK if layer == self.layer else ''}{layer}",
                *(
                    f"{best[0]} {shares[0]:.2f}" if self.speaks(row, place) else NOTHING
                    for place, (best, shares) in enumerate(zip(top, probabilities, strict=True))
                ),
            ]
            for row, (layer, top, probabilities) in enumerate(
                zip(self.layers, self.top, self.probabilities, strict=True)
            )
        ]
        return [header, *reversed(rows)]

    def to(self, *args: Any, **kwargs: Any) -> LensGrid:
        """Return the grid itself: Lightning moves predictions between devices, and this is on none."""
        return self


def read_lenses(
    lm: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    lres: Mapping[tuple[str, int], LRE],
    relations: Sequence[str] | None = None,
    top_k: int = 5,
    layers: Sequence[Layer] | None = None,
    jacobian_lens: JacobianLens | None = None,
    likenesses: Likenesses | None = None,
) -> list[LensGrid]:
    """Read a text through the lens of each relation, the Jacobian lens, if there is one, and the logit lens.

    Every LRE is applied to the hidden states of all layers, with its own beta, whatever layer it was estimated at. Of
    several trials of a relation the first is used. LREs are looked up one at a time, since each may be a large file.
    The subject's token is marked where a template of the relation asks about it at the end of the text, or the text
    mentions the subject of a training sample; other lenses have the first relation's.

    Args:
        lm: The LM that the LREs were estimated from.
        tokenizer: Its tokenizer.
        text: The text; the start token of the LREs' prompts is put in front.
        lres: LREs by relation and trial.
        relations: The relations to show, in this order; those without an LRE are left out. All if None.
        top_k: Number of tokens to keep for each hidden state.
        layers: The layers to show; all if None.
        jacobian_lens: The Jacobian lens, shown at those of the layers that it has.
        likenesses: What says, at the same layers, where the lenses of relations say nothing; everywhere they speak if
            None.

    Returns:
        One grid per relation, then the Jacobian lens and the logit lens.

    Raises:
        LREError: If the text is empty or too long, an LRE or the Jacobian lens was estimated from another LM, `top_k`
            or a layer is out of range, `likenesses` are of other layers, or logits are not finite.
    """
    check_top_k(lm, top_k)
    trials = first_trials(lres)
    names = [name for name in (trials if relations is None else relations) if name in trials]
    first = {name: lres[name, trials[name]] for name in names[:1]}
    origins = (lre.origin for lre in first.values())
    states = TextStates.of(lm, tokenizer, text, layers, start_of(lm, tokenizer, origins, jacobian_lens))
    if likenesses is not None and likenesses.layers != states.layers:
        raise LREError(f"likenesses are of the layers {likenesses.layers}, and the text is read at {states.layers}")
    grids, subjects = [], {}
    for name in names:
        lre = first.get(name) or lres[name, trials[name]]
        subjects[name] = lre.origin.subject_of(text) or mentioned(text, dict(lre.origin.train))
        grids.append(states.grid(lre, top_k, likeness=None if likenesses is None else likenesses[name]))
    generic = [jacobian_lens, LogitLens()] if jacobian_lens is not None else [LogitLens()]
    grids += [states.grid(lens, top_k) for lens in generic if any(map(lens.reads, states.layers))]
    return with_subjects(grids, tokenizer, subjects)


@dataclass(frozen=True, eq=False)
class TextStates:
    """The hidden states of a text, which lenses read.

    Attributes:
        lm: The LM, on the device where it is to run.
        tokenizer: Its tokenizer.
        text: The text.
        ids: Its token ids without the start token, `(tokens,)`, int64.
        layers: The layers, from the embedding up.
        hidden: The hidden states, `(layers, tokens, hidden)`.
    """

    lm: LanguageModel
    tokenizer: PreTrainedTokenizerBase
    text: str
    ids: Tensor
    layers: Sequence[Layer]
    hidden: Tensor

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        lm: LanguageModel,
        tokenizer: PreTrainedTokenizerBase,
        text: str,
        layers: Sequence[Layer] | None = None,
        start_token: StartToken | None = None,
    ) -> Self:
        """Run a text, with the start token in front, and keep its hidden states at some layers, or all if None.

        The start token is that of the LM if None.

        Raises:
            LREError: If the text is empty or too long, or a layer is out of range.
        """
        chosen = lm.check_layers(layers)
        tokens, first = tokenize_text(tokenizer, text, start_token or lm.start_with(tokenizer))
        ids = torch.tensor([tokens])
        lm.check_ids(ids)
        states = lm.hidden_states(ids.to(lm.device), chosen)
        hidden = torch.stack([states[layer][0, first:].to(lm.device) for layer in chosen])
        return cls(lm, tokenizer, text, ids[0, first:], chosen, hidden)

    @property
    def tokens(self) -> list[str]:
        """The tokens, as `token_text` shows them."""
        return [token_text(self.tokenizer, token) for token in self.ids.tolist()]

    @torch.no_grad()
    def grid(self, lens: Lens, top_k: int, pin: int | None = None, likeness: Likeness | None = None) -> LensGrid:
        """Decode what a lens makes of the hidden states, at those of the layers that it reads, of which there is one.

        Args:
            lens: The lens.
            top_k: Number of tokens to keep for each hidden state.
            pin: A token to look for in every cell.
            likeness: What says, at all these layers, where the lens says nothing.

        Raises:
            LREError: If the lens is of another LM, or logits are not finite.
        """
        lens.check_model(self.lm)
        shown = tuple(layer for layer in self.layers if lens.reads(layer))
        hidden = self.hidden[[self.layers.index(layer) for layer in shown]]
        outputs = lens.read(hidden, shown)
        best, ranks = [], []
        for shares in distributions(self.lm, outputs):
            best.append([part.cpu() for part in shares.topk(top_k)])
            if pin is not None:
                own = shares[:, pin, None]
                ranks.append([own[:, 0].cpu(), (shares > own).sum(-1, dtype=torch.int32).cpu() + 1])
        shape = outputs.shape[:2]
        probabilities, ids = (torch.cat(parts).reshape(*shape, top_k) for parts in zip(*best, strict=True))
        texts = {token: token_text(self.tokenizer, token) for token in ids.unique().tolist()}
        top = [[[texts[token] for token in cell] for cell in row] for row in ids.tolist()]
        pinned = None
        if pin is not None:
            columns = (torch.cat(parts).reshape(shape).tolist() for parts in zip(*ranks, strict=True))
            pinned = Pinned(token_text(self.tokenizer, pin), *columns)
        return LensGrid(
            name=lens.name,
            text=self.text,
            tokens=self.tokens,
            layers=shown,
            top=top,
            probabilities=probabilities.tolist(),
            layer=lens.layer if isinstance(lens, LRE) else None,
            pinned=pinned,
            ids={text: token for token, text in texts.items()},
            silent=None if likeness is None else likeness.silent(hidden).tolist(),
        )


def with_subjects(
    lenses: Sequence[LensGrid], tokenizer: PreTrainedTokenizerBase, subjects: Mapping[str, str | None]
) -> list[LensGrid]:
    """Mark the subject's token in lenses of one text, by relation; lenses without one get that of the first."""
    first = next((lens.name for lens in lenses if lens.name in subjects), None)
    marked = []
    for lens in lenses:
        subject = subjects.get(lens.name if lens.name in subjects else first or "")
        token = None if subject is None else subject_token(tokenizer, lens.text, subject)
        marked.append(replace(lens, token=token))
    return marked


def mentions(text: str, subjects: Iterable[str]) -> list[tuple[int, int]]:
    """Return where a text has some subjects, not in the middle of a word: the first character and the end of each.

    Of mentions that overlap the longest is meant. They are in the order of the text.
    """
    bounded = [rf"(?<!\w){re.escape(subject)}(?!\w)" for subject in subjects if subject.strip() and subject in text]
    spans = (match.span() for pattern in bounded for match in re.finditer(pattern, text))
    kept: list[tuple[int, int]] = []
    for first, end in sorted(spans, key=lambda span: (span[0] - span[1], span)):
        if all(end <= other or first >= last for other, last in kept):
            kept.append((first, end))
    return sorted(kept)


def mentioned(text: str, subjects: Iterable[str]) -> str | None:
    """Return the longest of some subjects that a text mentions as whole words; None if there is none."""
    return max((text[first:end] for first, end in mentions(text, subjects)), key=len, default=None)


def check_text(
    lm: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    top_k: int,
    layers: Sequence[Layer] | None,
) -> None:
    """Check all that `read_lenses` needs besides LREs, without running the LM."""
    check_top_k(lm, top_k)
    lm.check_layers(layers)
    ids, _ = tokenize_text(tokenizer, text)
    lm.check_ids(torch.tensor([ids]))


def start_of(
    lm: LanguageModel,
    tokenizer: PreTrainedTokenizerBase,
    origins: Iterable[Origin],
    jacobian_lens: JacobianLens | None = None,
) -> StartToken:
    """Return what a text starts with that lenses read: what the texts did that they were estimated from, else the LM's.

    Args:
        lm: The LM.
        tokenizer: Its tokenizer.
        origins: Those of LREs, of which the first counts.
        jacobian_lens: A Jacobian lens, which counts if there is no LRE.
    """
    first, generic = next(iter(origins), None), jacobian_lens.origin if jacobian_lens is not None else None
    own = first.form["start_token"] if first is not None else generic and generic.start_token
    return own or lm.start_with(tokenizer)


def subject_token(tokenizer: PreTrainedTokenizerBase, text: str, subject: str) -> int:
    """Return the index of the last token of a subject's last mention, not counting the start token."""
    return last_tokens(tokenizer, text, [text.rindex(subject) + len(subject)])[0]


def last_tokens(tokenizer: PreTrainedTokenizerBase, text: str, ends: Iterable[int]) -> list[int]:
    """Return the index of the last token before each of some places in a text, not counting the start token."""
    ((_, spans),) = tokenize(tokenizer, [text])
    return [sum(first < end for first, _ in spans) - 1 for end in ends]


def most_certain_token(lens: LensGrid, row: int) -> int:
    """Return the index of the token at which a lens is most certain, in a row of its grid.

    The first token is left out if there are others: it has seen nothing of the text, and LMs use its hidden state as an
    attention sink.
    """
    best = [cell[0] for cell in lens.probabilities[row]]
    return max(range(min(1, len(best) - 1), len(best)), key=best.__getitem__)


def print_lenses(grids: Sequence[Sequence[LensGrid]], notes: Sequence[Mapping[str, str]] = ()) -> None:
    """Print what each relation's lens says about each text, at the layer of its LRE and at the subject's token.

    Where no subject was found, it is the token where the lens is most certain. Without a relation it is what the
    Jacobian lens says, from its last layer down, at the last token if there is no subject. `notes` say for each text,
    by relation, what a lens has to do with it.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    for number, lenses in enumerate(grids):
        noted = notes[number] if notes else {}
        places = [(lens, lens.layers.index(lens.layer)) for lens in lenses if lens.layer in lens.layers]
        alone = not places
        if alone:
            shown = [lens for lens in lenses if lens.name == JACOBIAN_LENS]
            places = [(lens, row) for lens in shown for row in reversed(range(len(lens.layers)))]
        names = ["lens" if alone else "relation", *(["the text"] if noted else []), "layer", "token", "most likely"]
        table = RichTable(box=box.SIMPLE_HEAD)
        for name in names:
            table.add_column(name, no_wrap=name != names[-1])
        for lens, row in places:
            place = lens.token if lens.token is not None else -1 if alone else most_certain_token(lens, row)
            best = list(zip(lens.top[row][place], lens.probabilities[row][place], strict=True))[:PRINTED]
            said = "nothing: this is not like a subject of the relation"
            if lens.speaks(row, place):
                said = ", ".join(f"{printable(token.strip())} {probability:.2f}" for token, probability in best)
            note = [printable(noted.get(lens.name, ""))] if noted else []
            token = printable(lens.tokens[place].strip())
            table.add_row(printable(lens.name), *note, str(lens.layers[row]), token, said)
        console.print(printable(lenses[0].text))
        console.print(table)
