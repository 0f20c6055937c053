"""The attribute lens: what hidden states say about an attribute of a subject, at every layer and token of a text.

Given the LRE of a relation, each hidden state h is decoded as D(LRE(h)) (Section 5 of the paper). With the identity in
place of the LRE this is the logit lens, and with J of each layer the Jacobian lens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.lens.likeness import Likeness, Likenesses
from lre_lightning.lens.subjects import Found, Subjects
from lre_lightning.lre.answers import check_top_k, distributions
from lre_lightning.lre.lens import JACOBIAN_LENS, Lens, LogitLens, RelationLens
from lre_lightning.lre.lre import LRE, first_trials
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import StartToken, token_text
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.prompts.texts import Text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.storage.plain import printable

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PRINTED = 3
"""Number of tokens printed per cell."""
MARK = "\u25b8"
"""What notebooks put before the last token of each subject and the layer of the LRE."""
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
        mentions: The subjects in the text, in its order: each with the index of its last token, at which the lens
            speaks about it.
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
    mentions: Sequence[tuple[str, int]] = ()
    pinned: Pinned | None = None
    ids: Mapping[str, int] = field(default_factory=dict)
    silent: Sequence[Sequence[bool]] | None = None

    @property
    def places(self) -> list[int]:
        """The indices of the tokens at which the lens speaks about subjects."""
        return [place for _, place in self.mentions]

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
        """Return the grid from the last layer down, below a header, with the subjects and the layer marked."""
        places = set(self.places)
        header = ["layer", *(f"{MARK if place in places else ''}{text}" for place, text in enumerate(self.tokens))]
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
    jacobian_lens: Lens | None = None,
    likenesses: Likenesses | None = None,
    own_layers: bool = False,
    found: Mapping[str, Found] | None = None,
) -> list[LensGrid]:
    """Read a text through the lens of each relation, the Jacobian lens, if there is one, and the logit lens.

    Every LRE is applied to the hidden states of all layers, with its own beta, whatever layer it was estimated at. Of
    several trials of a relation the first is used. LREs are looked up one at a time, since each may be a large file.
    Each mention of a subject is marked. Lenses without a relation have the mentions of all.

    Args:
        lm: The LM that the LREs were estimated from.
        tokenizer: Its tokenizer.
        text: The text; the start token of the LREs' prompts is put in front.
        lres: LREs by relation and trial.
        relations: The relations to show, in this order; those without an LRE are left out. All if None.
        top_k: Number of tokens to keep for each hidden state.
        layers: The layers to show; all if None.
        jacobian_lens: The Jacobian lens, shown at those of the layers that it has.
        likenesses: What says, at the same layers, where the lenses of relations say nothing. They speak everywhere if
            it is None or cannot tell.
        own_layers: Whether to read the lens of each relation at the layer of its LRE alone, and no logit lens.
        found: The subjects that are mentioned, by relation. If None, they are one that the text asks about in a
            template of the relation, those of training samples, and those that a collection carries.

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
    start = start_of(lm, tokenizer, (lre.origin for lre in first.values()), jacobian_lens)
    states = TextStates.of(lm, tokenizer, text, layers, start)
    if likenesses is not None and not own_layers and likenesses.layers != states.layers:
        raise LREError(f"likenesses are of the layers {likenesses.layers}, and the text is read at {states.layers}")
    grids, origins = [], {}
    for name in names:
        lre = first.get(name) or lres[name, trials[name]]
        origins[name] = lre.origin
        if own_layers:
            likeness = None if likenesses is None else likenesses.own(name, lre.layer)
            grids.append(states.at(lre.layer).grid(lre, top_k, likeness=likeness))
        else:
            likeness = None if likenesses is None else likenesses.get(name)
            grids.append(states.grid(lre, top_k, likeness=likeness))
    generic: list[Lens] = [] if jacobian_lens is None else [jacobian_lens]
    generic += [] if own_layers else [LogitLens()]
    grids += [states.grid(lens, top_k) for lens in generic if any(map(lens.reads, states.layers))]
    if found is None:
        found = Subjects(origins, getattr(lres, "subjects", {}), every=True).find(Text(text))
    return with_mentions(grids, tokenizer, found)


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

    def at(self, layer: Layer) -> Self:
        """Return those of one layer."""
        return replace(self, layers=(layer,), hidden=self.hidden[self.layers.index(layer), None])

    @torch.no_grad()
    def grid(self, lens: Lens, top_k: int, pin: int | str | None = None, likeness: Likeness | None = None) -> LensGrid:
        """Show what a lens makes of the hidden states, at those of the layers that it reads, of which there is one.

        Outputs of the last block are decoded. Lenses that score objects, such as concepts, have the objects in place of
        tokens, and cosines in place of probabilities.

        Args:
            lens: The lens.
            top_k: Number of tokens to keep for each hidden state.
            pin: A token to look for in every cell, or an object where objects are scored.
            likeness: What says, at all these layers, where the lens says nothing.

        Raises:
            LREError: If the lens is of another LM, or logits are not finite.
        """
        lens.check_model(self.lm)
        shown = tuple(layer for layer in self.layers if lens.reads(layer))
        hidden = self.hidden[[self.layers.index(layer) for layer in shown]]
        if lens.scored is not None:
            return self._scores(lens, lens.scored, hidden, shown, top_k, pin)
        outputs = lens.read(hidden, shown)
        best, ranks = [], []
        for shares in distributions(self.lm, outputs):
            best.append([part.cpu() for part in shares.topk(top_k)])
            if isinstance(pin, int):
                own = shares[:, pin, None]
                ranks.append([own[:, 0].cpu(), (shares > own).sum(-1, dtype=torch.int32).cpu() + 1])
        shape = outputs.shape[:2]
        probabilities, ids = (torch.cat(parts).reshape(*shape, top_k) for parts in zip(*best, strict=True))
        texts = {token: token_text(self.tokenizer, token) for token in ids.unique().tolist()}
        top = [[[texts[token] for token in cell] for cell in row] for row in ids.tolist()]
        pinned = None
        if isinstance(pin, int):
            columns = (torch.cat(parts).reshape(shape).tolist() for parts in zip(*ranks, strict=True))
            pinned = Pinned(token_text(self.tokenizer, pin), *columns)
        return LensGrid(
            name=lens.name,
            text=self.text,
            tokens=self.tokens,
            layers=shown,
            top=top,
            probabilities=probabilities.tolist(),
            layer=lens.layer if isinstance(lens, RelationLens) else None,
            pinned=pinned,
            ids={text: token for token, text in texts.items()},
            silent=None if likeness is None else likeness.silent(hidden).tolist(),
        )

    def _scores(
        self,
        lens: Lens,
        objects: Sequence[str],
        hidden: Tensor,
        layers: tuple[Layer, ...],
        top_k: int,
        pin: int | str | None,
    ) -> LensGrid:
        """Return the grid of a lens that scores objects, by products with directions of length 1."""
        scores = lens.read(normalize(hidden.float(), dim=-1), layers).cpu()
        best = scores.topk(min(top_k, len(objects)))
        top = [[[objects[place] for place in cell] for cell in row] for row in best.indices.tolist()]
        pinned = None
        if isinstance(pin, str) and pin in objects:
            own = scores[..., objects.index(pin)]
            pinned = Pinned(pin, own.tolist(), ((scores > own[..., None]).sum(-1) + 1).tolist())
        layer = lens.layer if isinstance(lens, RelationLens) else None
        return LensGrid(
            lens.name, self.text, self.tokens, layers, top, best.values.tolist(), layer=layer, pinned=pinned
        )


def with_mentions(
    lenses: Sequence[LensGrid], tokenizer: PreTrainedTokenizerBase, found: Mapping[str, Found]
) -> list[LensGrid]:
    """Mark mentions in lenses of one text, by relation; lenses without a relation get those of all.

    A lens speaks at a subject that the text asks about in a template, where the LRE was made to.
    """
    if not lenses:
        return []
    ((_, spans),) = tokenize(tokenizer, [lenses[0].text])
    by_lens = {
        name: [(mention.subject, mention.tokens(spans)[1] - 1) for mention in one.mentions]
        for name, one in found.items()
    }
    every = sorted({place: (subject, place) for own in by_lens.values() for subject, place in own}.items())
    marked = []
    for lens in lenses:
        asked, silent = found[lens.name].asked if lens.name in found else None, lens.silent
        if asked and silent:
            spoken = asked.tokens(spans)[1] - 1
            silent = [[quiet and place != spoken for place, quiet in enumerate(row)] for row in silent]
        own = by_lens.get(lens.name, [mention for _, mention in every])
        marked.append(replace(lens, mentions=own, silent=silent))
    return marked


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
    jacobian_lens: Lens | None = None,
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


def most_certain_token(lens: LensGrid, row: int) -> int | None:
    """Return the index of the token at which a lens is most certain, in a row of its grid; None if it says nothing.

    The first token is left out if there are others: it has seen nothing of the text, and LMs use its hidden state as an
    attention sink.
    """
    spoken = [place for place in range(min(1, len(lens.tokens) - 1), len(lens.tokens)) if lens.speaks(row, place)]
    return max(spoken, key=lambda place: lens.probabilities[row][place][0], default=None)


def print_lenses(
    grids: Mapping[str, Sequence[LensGrid]], scores: Mapping[str, float] | None = None, otherwise: str = ""
) -> None:
    """Print what each relation's lens says about each subject in each text, at the layer of its LRE.

    Subjects are in the order of the text; those at which no lens says anything are named in a line. A lens without a
    subject is read at the token where it is most certain. Without a relation it is what the Jacobian lens says, from
    its last layer down, at the subject or else at the last token.

    Args:
        grids: The lenses of each text, by the text.
        scores: The faithfulness of relations, which is shown beside what their lenses say.
        otherwise: A line for texts of which lenses of relations say nothing.
    """
    console = Console(markup=False, emoji=False, highlight=False)
    for text, lenses in grids.items():
        rows, kind = [row for lens in lenses for row in readings_of(lens)], "relation"
        generic = [lens for lens in lenses if lens.name == JACOBIAN_LENS and lens.layer is None]
        if not rows:
            kind = "lens"
            rows = [
                (lens, row, place, lens.tokens[place])
                for lens in generic
                for row in reversed(range(len(lens.layers)))
                for place in lens.places or [len(lens.tokens) - 1]
            ]
        console.print(printable(text))
        if otherwise and kind == "lens":
            console.print(printable(otherwise))
        if not rows:
            continue
        scored = any(lens.name in (scores or {}) for lens, *_ in rows)
        table = RichTable(box=box.SIMPLE_HEAD)
        for name in ("subject", kind, "layer", *(["faithful"] if scored else []), "most likely"):
            table.add_column(name, no_wrap=name != "most likely")
        for lens, row, place, subject in sorted(rows, key=lambda one: one[2]):
            best = zip(lens.top[row][place][:PRINTED], lens.probabilities[row][place], strict=False)
            said = ", ".join(f"{printable(token.strip())} {probability:.2f}" for token, probability in best)
            score = [f"{scores[lens.name]:.2f}" if scores and lens.name in scores else "-"] if scored else []
            table.add_row(printable(subject.strip()), printable(lens.name), str(lens.layers[row]), *score, said)
        console.print(table)
        silent = {subject.strip(): None for lens in lenses for subject, _ in lens.mentions}
        for *_, subject in rows:
            silent.pop(subject.strip(), None)
        if silent and kind == "relation":
            console.print(
                f"No lens is known to speak at {printable(', '.join(silent))}: --all true shows what it says."
            )


def readings_of(lens: LensGrid) -> list[tuple[LensGrid, int, int, str]]:
    """Return where the lens of a relation says something of a subject at the layer of its LRE; see `print_lenses`.

    Returns:
        The lens, the row of the layer, the index of a token, and the subject or the token. None for lenses without a
        relation, or that are not shown at that layer.
    """
    if lens.layer not in lens.layers:
        return []
    row = lens.layers.index(lens.layer)
    if lens.mentions:
        return [(lens, row, place, subject) for subject, place in lens.mentions if lens.speaks(row, place)]
    place = most_certain_token(lens, row)
    return [] if place is None else [(lens, row, place, lens.tokens[place])]
