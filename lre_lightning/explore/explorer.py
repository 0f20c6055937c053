"""What the explorer's page asks for: the grid of a lens, and an edit. Plain data in, plain data out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lre_lightning.concepts.concepts import Concepts
from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.grid import grid_of
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import LensGrid, TextStates, start_of, with_mentions
from lre_lightning.lens.subjects import Found, Subjects
from lre_lightning.lens.tokens import SIGNS
from lre_lightning.lre.lens import Lens, LogitLens
from lre_lightning.lre.lre import LRE, first_trials, origins_of
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.texts import Text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.storage.plain import text as checked_text

LONGEST, MOST_TOKENS = 2000, 128
"""Bounds on the characters and the tokens of a text."""
TOP_K, NEW_TOKENS, MOST_SUBJECTS = 8, 10, 500
MOST_KEPT = 16
"""Number of LREs that stay in memory."""
TRIED, SHOWN = 10, 3
"""Number of relations that are tried for the first text, and of subjects in it."""
CONCEPTS = " (concepts)"
"""What the name of a grid of concepts ends in, after its relation."""


def sentence(subjects: Sequence[str]) -> str:
    """Return a text that mentions subjects."""
    return f"Think of {', then '.join(subjects)}."


class Ask(BaseModel):
    """What is common to all requests: strict types, nothing unknown, a bounded text, and the number of an LM."""

    model_config = ConfigDict(strict=True, extra="forbid")
    text: str = Field(max_length=LONGEST)
    lm: int = Field(default=0, ge=0)


class Read(Ask):
    """A text to look at.

    Attributes:
        lens: The name of the lens; if empty, that of the first relation that the text asks about or mentions, or else
            one without a relation.
        pin: An object, whose first token is to be found in every cell.
        token: A token to be found there instead, by its id.
        quiet: Whether the lens of a relation says nothing where a hidden state is not like the relation's subjects.
    """

    lens: str = Field(default="", max_length=LONGEST)
    pin: str = Field(default="", max_length=200)
    token: int | None = Field(default=None, ge=0)
    quiet: bool = False


class Change(Ask):
    """An edit.

    Attributes:
        relation: The relation whose LRE edits.
        subject: The subject; found by the template if empty.
        target: The subject to answer for instead.
        layer: The layer to edit; the LRE's own if None.
        rank: The rank of the edit; the LRE's own if None.
    """

    relation: str = Field(max_length=LONGEST)
    subject: str = Field(default="", max_length=LONGEST)
    target: str = Field(max_length=200)
    layer: int | Literal["emb"] | None = None
    rank: int | None = Field(None, ge=1)


class Explorer:
    """Answers requests about texts, one at a time.

    Args:
        lm: The LM, on the device where it is to run.
        lres: LREs by relation and trial, with their `metadata`, such as a collection.
        relations: The relations to offer, in this order.
        subjects: Subjects of relations to find in texts, besides those that LREs were estimated from.
        jacobian_lens: A Jacobian lens to offer.
        concepts: Concepts to offer.
        scores: The faithfulness of relations, by which the first text is chosen.

    Raises:
        LREError: If the Jacobian lens or the concepts were estimated from another LM.
    """

    def __init__(
        self,
        lm: LanguageModel,
        lres: Any,
        relations: Sequence[str],
        subjects: Mapping[str, Collection[str]],
        jacobian_lens: JacobianLens | None = None,
        concepts: Sequence[Concepts] = (),
        scores: Mapping[str, float] | None = None,
    ) -> None:
        trials = first_trials(lres)
        self.lm, self._lres, self._scores = lm, lres, scores
        self._keys = {name: (name, trials[name]) for name in relations if name in trials}
        self._metadata = {name: lres.metadata[key] for name, key in self._keys.items()}
        origins = origins_of(lres)
        self._start = start_of(lm, lm.tokenizer, origins.values(), jacobian_lens)
        self._origins = {name: origins[name] for name in self._keys}
        self._subjects = Subjects(self._origins, subjects)
        self._kept: OrderedDict[str, LRE] = OrderedDict()
        self._read: TextStates | None = None  # the last text, which the next lens or pin is often of
        self._concepts = {concept.origin.relation + CONCEPTS: concept.bind(lm) for concept in reversed(concepts)}
        generic = [LogitLens()] if jacobian_lens is None else [jacobian_lens.bind(lm), LogitLens()]
        self._generic: dict[str, Lens] = {lens.name: lens for lens in generic}

    @property
    def lenses(self) -> list[str]:
        """The names of the lenses, relations first."""
        return [*self._keys, *sorted(self._concepts), *self._generic]

    def about(self) -> dict[str, Any]:
        """Return what the page offers: the LM, lenses, layers, and a first text."""
        return {
            "model": self.lm.label,
            "lenses": self.lenses,
            "layers": [*map(str, self.lm.layers)],
            "example": self._example,
        }

    @cached_property
    def _example(self) -> str:
        """The first text: of the most faithful relations, the first of which the lens says three objects.

        Where the lens says nothing is found out with it, so that the page has its first answer at once.
        """
        for name in self._subjects.asking(self._scores)[:TRIED]:
            right = self._read_right(name, [*dict(self._origins[name].train)])
            chosen = [*right.values()][:SHOWN]
            if len(chosen) == SHOWN and [*self._read_right(name, chosen).values()] == chosen:
                text = sentence(chosen)
                self.read(Read(text=text, quiet=True))
                return text
        return next(iter(self._subjects.examples(1, self._scores)), "The sky is")

    def _read_right(self, relation: str, subjects: Sequence[str]) -> dict[str, str]:
        """Return training subjects of which the lens says the object, in a text of them all: one subject by object.

        There are none if the text mentions subjects of another relation as well, which would have the first word.
        """
        lre, text = self._lre(relation), sentence(subjects)
        found = self._subjects.find(Text(text))
        if next(iter(found)) != relation:
            return {}
        states = TextStates.of(self.lm, self.lm.tokenizer, text, [lre.layer], self._start)
        (lens,) = with_mentions([states.grid(lre, 1)], self.lm.tokenizer, {relation: found[relation]})
        grid, answers, right = grid_of(lens), dict(self._origins[relation].train), dict[str, str]()
        for place, (subject, _) in zip(grid["marked"], lens.mentions, strict=True):
            word, answer = grid["words"][grid["top"][0][place][0]].strip(SIGNS[" "]), answers.get(subject, "")
            if word and answer.startswith(word):
                right.setdefault(answer, subject)
        return right

    def read(self, ask: Read) -> dict[str, Any]:
        """Return the grid of a lens, the relations and subjects in the text, and what an edit can be made with.

        Raises:
            LREError: If there is no such lens, or the text is empty or too long.
        """
        text = self._text(ask.text)
        relations = self._subjects.find(Text(text))
        name = ask.lens or next(iter([*relations, *self._generic]))
        if name not in self.lenses:
            raise LREError(f"there is no lens {name!r}: there are those of {', '.join(self.lenses[:5])}, \u2026")
        relation = name.removesuffix(CONCEPTS)
        if self._read is None or self._read.text != text:
            self._read = TextStates.of(self.lm, self.lm.tokenizer, text, start_token=self._start)
        states = self._read
        found = {name: relations.get(relation, Found([]))} if relation in self._origins else relations
        lens, unit = self._lens(states, name, ask), "cosine" if name in self._concepts else "probability"
        (lens,) = with_mentions([lens], self.lm.tokenizer, found)
        return {
            "grid": {**grid_of(lens), "unit": unit},
            "lens": name,
            "found": [[one, "asks" if what.asked else "mentions"] for one, what in relations.items()],
            "subjects": lens.mentions[::-1],
            "edit": self._edit_of(relation),
        }

    def _text(self, text: str) -> str:
        checked_text(text, "the text", LONGEST)
        ((ids, _),) = tokenize(self.lm.tokenizer, [text])
        if len(ids) > MOST_TOKENS:
            raise LREError(f"the text has {len(ids)} tokens, and may have {MOST_TOKENS}: shorten it")
        return text

    def _edit_of(self, relation: str) -> dict[str, Any] | None:
        if relation not in self._keys:
            return None
        metadata = self._metadata[relation]
        targets = self._subjects.by_relation[relation][:MOST_SUBJECTS]
        return {"relation": relation, "layer": str(metadata["layer"]), "rank": metadata["rank"], "targets": targets}

    def _lens(self, states: TextStates, name: str, ask: Read) -> LensGrid:
        top_k = min(TOP_K, self.lm.vocab_size)
        if name in self._concepts:
            return replace(states.grid(self._concepts[name], top_k, ask.pin), name=name)
        pin = self._token(ask)
        if name in self._generic:
            return states.grid(self._generic[name], top_k, pin)
        return states.grid(self._lre(name), top_k, pin, self._likenesses.get(name) if ask.quiet else None)

    @cached_property
    def _likenesses(self) -> Likenesses:
        return Likenesses(self.lm, self._lres)

    def _lre(self, relation: str) -> LRE:
        """Return an LRE; the last ones are kept, with what was computed of W."""
        if relation not in self._keys:
            raise LREError(f"there is no LRE of {relation!r}")
        if relation not in self._kept:
            lre = self._lres[self._keys[relation]].bind(self.lm).to(self.lm.device)
            self._kept[relation] = replace(lre, weight=lre.operator)
        self._kept.move_to_end(relation)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[relation]

    def _token(self, ask: Read) -> int | None:
        """Return the token to pin: the first one of an object, as it goes on after a word."""
        if ask.token is not None:
            if ask.token >= self.lm.vocab_size:
                raise LREError(f"there is no token {ask.token}: the LM has {self.lm.vocab_size}")
            return ask.token
        if not ask.pin.strip():
            return None
        before, pin = "a ", checked_text(ask.pin.strip(), "the object", 200)
        ((ids, spans),) = tokenize(self.lm.tokenizer, [before + pin])
        tokens = [token for token, (_, end) in zip(ids, spans, strict=True) if end > len(before)]
        if not tokens:
            raise LREError(f"the LM has no token for {pin!r}")
        return int(tokens[0])

    def edit(self, ask: Change) -> dict[str, Any]:
        """Return the LM's answers and continuations before and after an edit.

        Raises:
            LREError: If there is no such LRE, the target is empty, the subject is not in the text, or the layer or rank
                is out of range.
        """
        if not ask.target.strip():
            raise LREError("the target is empty: name the subject to answer for instead")
        text, lre = self._text(ask.text), self._lre(ask.relation)
        lre = replace(lre, rank=ask.rank or lre.rank)
        layers = None if ask.layer is None else [ask.layer]
        edit = lre.edit_prompt(text, self._text(ask.target), ask.subject or None, layers)
        ((before, after),) = edit.continuations(NEW_TOKENS) if hasattr(self.lm.model, "generate") else [("", "")]
        return {
            "prompt": edit.prompt.text,
            "subject": edit.prompt.subject,
            "target": edit.target,
            "layer": str(edit.layers[0]),
            "rank": lre.edit_rank,
            "before": {"answers": [*edit.before], "text": before},
            "after": {"answers": [*edit.after], "text": after},
        }
