"""How concepts are estimated, and what one trial of them measures; files of records, without torch."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from lre_lightning.errors import LREError, check_choice, check_number, first_line
from lre_lightning.grid import Layer, check_ranks, layer_of, place_of, rank_of, usual_rank
from lre_lightning.statistics.estimates import Share
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import check_plain, number, text, whole
from lre_lightning.storage.typed import from_json

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel

ObjectTokens: TypeAlias = Literal["first", "mean"]
"""The states that are o: that at the prompt's last token, or the mean over those that predict the object's tokens."""

STANDARDIZED = {"linear SVM": "linear SVM, standardized", "logistic probe": "logistic probe, standardized"}
"""Probes whose fit depends on the scale of each dimension of the states, and the same on standardized states."""
METHODS = ("concepts", "difference of means", *STANDARDIZED.values(), *STANDARDIZED)
CONCEPT_SCORES = ("accuracy", "macro F1", "causality")
RESULTS = "concepts.jsonl"
"""The name of a file of records."""


@dataclass(frozen=True)
class ConceptOptions:
    """How concepts are estimated, and how long the edits are that measure their causality.

    Attributes:
        layer: The layer of s, "emb" or the index of a block; the middle block if null.
        rank: The rank of the pseudo-inverse of W; an eighth of the LM's width, but at most 128, if null.
        object_layer: The layer of o; the last block if null. A layer before the last often makes better concepts.
        object_tokens: "first" for o at the prompt's last token, "mean" for all tokens that predict the object. These
            are the prompt's last token and the object's own but its last, in a prompt that ends with the object.
        train_fraction: The fraction of a relation's subjects to train on. At least n_shot subjects are for training.
        jacobians: The largest number of training samples whose Jacobians make W. Their objects take turns.
        magnitude: The length of edits, as a multiple of the norm of s.
    """

    layer: Layer | None = None
    rank: int | None = None
    object_layer: Layer | None = None
    object_tokens: ObjectTokens = "first"
    train_fraction: float = 0.5
    jacobians: int = 20
    magnitude: float = 0.5

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("layer", "object_layer"):
            if getattr(self, name) is not None:
                layer_of(getattr(self, name), name)
        if self.rank is not None:
            rank_of(self.rank, "rank")
        check_choice("object_tokens", self.object_tokens, get_args(ObjectTokens))
        if not 0 < number(self.train_fraction, "train_fraction") < 1:
            raise LREError(f"train_fraction must be between 0 and 1, got {self.train_fraction}")
        check_number("jacobians", self.jacobians, 1)
        number(self.magnitude, "magnitude")

    def places(self, lm: LanguageModel) -> tuple[Layer, Layer, int]:
        """Return the layer of s, that of o, and the rank, for an LM.

        Raises:
            LREError: If the LM has no such layer or rank, or s is not read before o.
        """
        (layer,) = lm.check_layers([(lm.num_layers - 1) // 2 if self.layer is None else self.layer])
        (above,) = lm.check_layers([lm.num_layers - 1 if self.object_layer is None else self.object_layer])
        if place_of(layer) >= place_of(above):
            raise LREError(f"layer {layer!r} is not below the object layer {above!r}: s is read before o")
        (rank,) = check_ranks([usual_rank(lm.hidden_size) if self.rank is None else self.rank], lm.hidden_size)
        return layer, above, rank


@dataclass(frozen=True)
class ConceptRecord:
    """What concepts and probes of one relation and trial achieve on samples that they were not trained on.

    Only samples whose object the LM itself predicts count, and of the test samples only those whose object has training
    samples.

    Attributes:
        origin: The `Origin` of the concepts, as plain data.
        options: The `ConceptOptions`, as plain data.
        digest: `Relation.digest` of the relation.
        objects: Number of objects that have a concept.
        trained: Number of training samples.
        tested: Number of test samples.
        edited: Number of test samples with a target, another object with another first token.
        correct: Number of test samples that are classified as their object, by method; empty if not scored.
        f1: Macro F1 of the classification, by method.
        causal: Number of edits after which the LM answers the target, by method.
        reason: Why the trial was not scored, if it was not.
    """

    origin: Mapping[str, Any]
    options: Mapping[str, Any]
    digest: str
    objects: int
    trained: int
    tested: int
    edited: int = 0
    correct: Mapping[str, int] = field(default_factory=dict)
    f1: Mapping[str, float] = field(default_factory=dict)
    causal: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""

    @property
    def model(self) -> str:
        """Name or folder of the LM, with its revision, as `TrialRecord.model`."""
        name, revision = self.origin["model"], self.origin.get("revision")
        return f"{name}@{revision}" if revision else str(name)

    @property
    def relation(self) -> str:
        """Name of the relation."""
        return str(self.origin["relation"])

    @property
    def place(self) -> tuple[str, str, int]:
        """The LM, relation and trial, of which a file has one record."""
        return self.model, self.relation, self.origin["trial"]

    def repeats(self, other: ConceptRecord) -> bool:
        """Return whether this record is of another's samples, prompts, LM and options."""
        return self._made_from == other._made_from

    @property
    def _made_from(self) -> str:
        return json.dumps([self.origin, self.options, self.digest], sort_keys=True)

    def score(self, name: str, method: str) -> float:
        """Return one of `CONCEPT_SCORES` of one of `METHODS`; NaN where it was not measured.

        Accuracy and causality are a `Share`, which knows what it is out of.
        """
        if method not in self.correct:
            return math.nan
        if name == "macro F1":
            return self.f1[method]
        count, total = (self.correct, self.tested) if name == "accuracy" else (self.causal, self.edited)
        return Share(count[method], total)


def write_concept_records(records: Iterable[ConceptRecord], path: Path) -> None:
    """Write records to a file, one per line, atomically."""
    write_whole(path, "".join(json.dumps(asdict(record), ensure_ascii=False) + "\n" for record in records))


def read_concept_records(path: Path) -> list[ConceptRecord]:
    """Read the records of a file, or of every ``concepts.jsonl`` in a folder; none if there is no such file."""
    files = [path] if os.path.isfile(path) else sorted(path.rglob(RESULTS))
    return [_record(file, line) for file in files for line in file.read_bytes().splitlines()]


def _record(path: Path, line: bytes) -> ConceptRecord:
    try:
        given = json.loads(line)
        check_plain(given, "it", 1_000_000)
        record = from_json(ConceptRecord, json.dumps(given))
        for name in ("model", "relation", "category"):
            text(record.origin[name], name)
        whole(record.origin["trial"], "trial")
        for method in record.correct:
            check_choice("a method", method, METHODS)
            whole(record.correct[method], "correct", most=record.tested)
            whole(record.causal[method], "causal", most=record.edited)
            number(record.f1[method], "f1", 1)
    except (ValueError, KeyError, RecursionError) as error:
        raise LREError(f"{str(path)!r} has a line that is not a record of concepts: {first_line(error)}") from error
    return record
