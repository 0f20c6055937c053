"""The record of a trial: its counts on the grid of layers, betas and ranks.

Records hold counts alone, so any choice of layer, rank or beta can be made again from them, and any table or figure
plotted, without the LM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, layer_of, place_of, rank_of
from lre_lightning.statistics.estimates import Share
from lre_lightning.storage.plain import LONGEST_NAME, check_plain, mapping, number, shown, text, whole
from lre_lightning.storage.typed import from_json

FAITHFULNESS_BASELINES = ("linear regression", "translation", "identity")
CAUSALITY_BASELINES = ("oracle", "unembedding", "object")
WHOLE_OBJECTS = {
    "first-token faithfulness": "known",
    "closed-set faithfulness": "known",
    "closed-set faithfulness, b alone": "known",
    "closed-set faithfulness, another s": "edited",
    "whole-object causality": "edited",
    "closed-set causality": "edited",
}
"""The scores on whole objects, and the number that the count of each is out of."""

CLOSED_SET_CONTROLS = ("closed-set faithfulness, b alone", "closed-set faithfulness, another s")
"""Those of `WHOLE_OBJECTS` that say what the LM adds by itself; records of earlier versions lack them."""

_RENAMED = {"whole-object faithfulness": "first-token faithfulness"}
"""Names of `WHOLE_OBJECTS` in records of earlier versions."""

MAJORITIES = ("training", "data")
"""The samples whose most frequent first token of objects is an answer that knows nothing of the subject."""

GENERIC = ("Jacobian lens", "Jacobian lens with b", "mixed")
"""LREs with the Jacobian lens J in place of W: without b, with b, and W mixed with J."""

GRIDS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "faithful": ("known", ("layers", "betas"), ()),
    "faithful_zero_shot": ("known", ("layers", "betas"), ()),
    "causal": ("edited", ("layers", "ranks"), ()),
    "faithful_baselines": ("known", ("layers",), FAITHFULNESS_BASELINES),
    "zero_shot_baselines": ("known", ("layers",), FAITHFULNESS_BASELINES),
    "causal_baselines": ("edited", ("layers",), CAUSALITY_BASELINES),
    "generic_faithful": ("known", ("generic_layers", "betas"), GENERIC),
    "generic_causal": ("edited", ("generic_layers", "ranks"), GENERIC[1:]),
    "faithful_low_rank": ("known", ("ranks",), ()),
}
"""The fields of counts: what they are out of, the axes of their grid, and the methods that each have such a grid."""

RARE_FIELDS = (
    "generations",
    "generic_layers",
    "generic_faithful",
    "generic_causal",
    "likeness",
    "whole_objects",
    "measures",
    "majority",
    "outcomes",
)
"""What few fits measure: fields that files of records leave out where they are empty."""

MEASURES = {
    "probability": ("betas", "known"),
    "token rank": ("betas", "known"),
    "KL": ("betas", "known"),
    "cosine": ("betas", "known"),
    "probability moved": ("ranks", "edited"),
    "log-odds": ("ranks", "edited"),
    "KL after edits": ("ranks", "edited"),
    "cosine of differences": ("", "edited"),
    "agreement on the unknown": ("betas", "unknown"),
    "truth on the unknown": ("betas", "unknown"),
    "probability of the truth on the unknown": ("betas", "unknown"),
    "token rank of the truth on the unknown": ("betas", "unknown"),
    "LM's probability of the truth on the unknown": ("", "unknown"),
    "LM's token rank of the truth on the unknown": ("", "unknown"),
    "truth": ("betas", "tested"),
    "probability of the truth": ("betas", "tested"),
    "token rank of the truth": ("betas", "tested"),
    "LM's probability of the truth": ("", "tested"),
    "LM's token rank of the truth": ("", "tested"),
}
"""The measures beyond the argmax, by the axis of their grid beside layers and the samples that they are sums over.

Of the LRE's prediction: probability and token rank of the LM's answer, divergence from the LM's distribution, cosine of
LRE(s) and o. Of the LM after an edit: how much more probable the target's object became, its log-odds to the LM's own
answer, divergence from the distribution for s'. The cosine of W (s' - s) and o' - o. On samples that the LM does not
know: how often the LRE says what the LM says. On those, and on all test samples: how often the LRE says the truth,
which is the object of the data, its probability and token rank, and both for the LM, the same at every layer. On known
samples the truth is the LM's answer.
"""

MOST_ENTRIES = 1_000_000
"""Upper bound on the numbers and texts in a record."""

Grid = tuple[tuple[int, ...], ...]
PartialGrid = tuple[tuple[int | None, ...], ...]
ByLayer = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class TrialRecord:
    """The counts of one relation in one trial, on the grid of layers, betas and ranks.

    Attributes:
        relation: Name of the relation.
        category: Its category.
        trial: Number of the trial.
        samples: Number of all samples of the relation.
        range_size: Number of its distinct objects.
        tested: Number of test prompts of this trial: one per sample and template.
        known: Number of those that the LM completes with the object.
        layers: Layers of the grid; empty if the trial was not scored.
        betas: Betas of the grid.
        ranks: Ranks of the grid.
        faithful: Faithful predictions out of `known`, `[layer][beta]`.
        causal: Successful edits out of `edited`, `[layer][rank]`; None at a point that a search for the choice alone
            left out.
        edited: Number of known samples for which there was a target with another object.
        identity_layers: Layers of the grid at which s is o, as prompts end with their subjects, so that W is the
            identity (`prompts.prompt.identity_layers`). Choices leave them out. None in records of earlier versions.
        layer: The chosen layer; None if the trial was not scored.
        beta: The chosen beta.
        rank: The chosen rank; None if the trial was not scored.
        model: Name or folder of the LM, followed by @ and its revision if one was asked for.
        backward: The rule of the backward pass that W was read off, ``"exact"`` in records of earlier versions.
        n_shot: Number n of training examples.
        template: The prompt template; for prompts from several templates, all of them joined by `BETWEEN_TEMPLATES`.
        template_index: Its index among the relation's own templates; None for a template of the user's.
        first_tokens: Number of distinct first tokens of the distinct objects.
        reported: False for a trial that only served to choose the layer and rank of the others.
        chose: Whether the trial took part in the choice of its layer and rank, so that its scores look better there.
        faithful_baselines: Faithful predictions out of `known` of each of `FAITHFULNESS_BASELINES`, `[layer]`; empty
            if baselines were not computed.
        faithful_zero_shot: Like `faithful`, with s from a prompt of the subject alone.
        zero_shot_baselines: Like `faithful_baselines`, with s from a prompt of the subject alone.
        causal_baselines: Successes out of `edited` of each of `CAUSALITY_BASELINES` in place of s, `[layer]`.
        faithful_low_rank: Faithful predictions out of `known` at the chosen layer and beta with W reduced to each
            rank, `[rank]`.
        line_integrals: For pairs of test subjects (s1, s2) the integral of u^T F'(s) v from s1 to s2 and its estimate
            u^T W v ||s2 - s1||, at the chosen layer.
        generations: For some edits at the chosen layer and rank the prompt without examples, its object, that of the
            target, and what the LM generates before and after the edit.
        generic_layers: The layers of the counts of `GENERIC`; empty if they were not measured.
        generic_faithful: Like `faithful`, of each of `GENERIC`, `[generic layer][beta]`.
        generic_causal: Like `causal`, of each of `GENERIC` with b, `[generic layer][rank]`.
        likeness: How W and J resemble each other, `[generic layer]`: their cosine, and the mean squared cosine of the
            principal angles between the leading directions that they read from s, and that they write to o.
        whole_objects: The samples whose whole object the LM says, ``"known"``, those of them that are ``"edited"``, and
            the successes of each of `WHOLE_OBJECTS` at the chosen point; empty if they were not scored.
        measures: Sums of `MEASURES`, `[layer][beta]` or `[layer][rank]`.
        majority: How many of `known` have the most frequent first token of the objects of each of `MAJORITIES`; of
            tokens as frequent, the first; empty in records of earlier versions.
        outcomes: For each known sample its index among the trial's test prompts, 1 if the LRE is faithful at the chosen
            layer and beta, else 0, and 1 if its edit at the chosen layer and rank succeeds, 0 if not, -1 if there is
            none: what two LMs are compared by. Empty in records of earlier versions.
        train: Subject and object of each training sample, in the order in which they were drawn.
        seed: Seed of the trial.
        digest: `Relation.digest` of the relation.
        prompts: The options by which samples were drawn and prompts made, `Prompts.recorded`. With `train`, `seed` and
            `digest` they are what `RelationDataModule.of_record` repeats the trial from.
    """

    relation: str
    category: str
    trial: int
    samples: int
    range_size: int
    tested: int
    known: int
    layers: tuple[Layer, ...] = ()
    betas: tuple[float, ...] = ()
    ranks: tuple[int, ...] = ()
    faithful: Grid = ()
    causal: PartialGrid = ()
    edited: int = 0
    identity_layers: tuple[Layer, ...] | None = None
    layer: Layer | None = None
    beta: float = 1.0
    rank: int | None = None
    model: str = ""
    backward: str = "exact"
    n_shot: int = 0
    template: str = ""
    template_index: int | None = 0
    first_tokens: int | None = None
    reported: bool = True
    chose: bool = False
    faithful_baselines: ByLayer = field(default_factory=dict)
    faithful_zero_shot: Grid = ()
    zero_shot_baselines: ByLayer = field(default_factory=dict)
    causal_baselines: ByLayer = field(default_factory=dict)
    faithful_low_rank: tuple[int, ...] = ()
    line_integrals: tuple[tuple[float, float], ...] = ()
    generations: tuple[tuple[str, str, str, str, str], ...] = ()
    generic_layers: tuple[Layer, ...] = ()
    generic_faithful: Mapping[str, Grid] = field(default_factory=dict)
    generic_causal: Mapping[str, Grid] = field(default_factory=dict)
    likeness: tuple[tuple[float, float, float], ...] = ()
    whole_objects: Mapping[str, int] = field(default_factory=dict)
    measures: Mapping[str, tuple[tuple[float, ...], ...]] = field(default_factory=dict)
    majority: Mapping[str, int] = field(default_factory=dict)
    outcomes: tuple[tuple[int, int, int], ...] = ()
    train: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    digest: str = ""
    prompts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """The LM, prompts, relation and trial that distinguish the record from others."""
        prompts = self.n_shot, self.template_index, self.template, json.dumps(self.prompts, sort_keys=True)
        return self.label, *prompts, self.relation, self.trial

    @property
    def label(self) -> str:
        """The LM, with the rule of the backward pass unless it is exact: what reports compare."""
        return self.model if self.backward == "exact" else f"{self.model} ({self.backward})"

    @property
    def scored(self) -> bool:
        """True if the LM knew enough of the relation's test samples to score its LRE."""
        return bool(self.layers)

    @property
    def whole(self) -> bool:
        """False if a search for the choice alone left points of its grid out."""
        return all(None not in row for row in self.causal)

    @property
    def told_apart(self) -> bool:
        """False if all objects of the relation begin with the same token, so that scores by first token say nothing."""
        return self.first_tokens != 1

    @property
    def random_guess(self) -> float:
        """Probability of guessing the first token among those of the relation's objects; of the object, if unknown."""
        return 1 / (self.first_tokens or self.range_size)

    def faithfulness(self, layer: Layer, beta: float, zero_shot: bool = False) -> float:
        """Return the fraction of known samples for which the LRE predicts what the LM does; NaN if none is known.

        With `zero_shot` s is that of a prompt of the subject alone.
        """
        return self.score("faithful_zero_shot" if zero_shot else "faithful", layer, beta)

    def causality(self, layer: Layer, rank: int) -> float:
        """Return the fraction of edits at `layer` and `rank` after which the LM answers o'; NaN if there is none."""
        return self.score("causal", layer, rank)

    def score(self, name: str, *point: Layer | float | None, method: str = "") -> float:
        """Return the score that a field of `GRIDS` counts, at a point of its axes; NaN where it was not measured.

        Where it was, it is a `Share`, which knows what it is out of.

        `method` is one of the field's methods, if it has several.
        """
        total, axes, methods = GRIDS[name]
        counts: Any = getattr(self, name).get(method) if methods else getattr(self, name)
        for axis, place in zip(axes, point, strict=True):
            if not counts or place not in getattr(self, axis):
                return float("nan")
            counts = counts[getattr(self, axis).index(place)]
        if counts is None:
            return float("nan")
        return Share(counts, getattr(self, total))

    def on_whole_objects(self, name: str) -> float:
        """Return one of the scores of `WHOLE_OBJECTS`; NaN if it counts nothing, or was not counted."""
        if name not in self.whole_objects:
            return float("nan")
        return Share(self.whole_objects[name], self.whole_objects[WHOLE_OBJECTS[name]])

    @property
    def unknown(self) -> int:
        """Number of test prompts that the LM does not complete with the object."""
        return self.tested - self.known

    def measure(self, name: str, layer: Layer | None, point: float | None = None) -> float:
        """Return the mean of one of `MEASURES` at a layer and a beta or rank; NaN where it was not measured."""
        axis, over = MEASURES[name]
        points = getattr(self, axis) if axis else (point,)
        if name not in self.measures or layer not in self.layers or point not in points:
            return float("nan")
        column = points.index(point)
        return fraction(self.measures[name][self.layers.index(layer)][column], getattr(self, over))

    @property
    def chosen_scores(self) -> tuple[float, float] | None:
        """Faithfulness and causality at the chosen layer, beta and rank; None if the trial was not scored by them."""
        if self.layer is None or self.rank is None or not self.told_apart:
            return None
        return self.faithfulness(self.layer, self.beta), self.causality(self.layer, self.rank)

    def of_majority(self, samples: str) -> float:
        """Return the fraction of known samples with the answer of one of `MAJORITIES`; NaN where it was not counted."""
        return Share(self.majority[samples], self.known) if samples in self.majority else float("nan")

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data, not copied, without the empty values of what few fits measure."""
        return {name: value for name, value in vars(self).items() if value or name not in RARE_FIELDS}

    @classmethod
    def from_plain(cls, data: object) -> TrialRecord:
        """Rebuild a record from `plain`; lists are accepted for tuples.

        Keys that are unknown are ignored, and those of an earlier version, which lacks some, get their defaults.

        Raises:
            LREError: A field is missing or of the wrong type, or contradicts the others.
        """
        try:
            given = mapping(data, "it")
            check_plain(given, "the record", MOST_ENTRIES)
            counts = given.get("whole_objects")
            if isinstance(counts, dict):
                given = {**given, "whole_objects": {_RENAMED.get(name, name): counts[name] for name in counts}}
            record = from_json(cls, json.dumps(given))
            _check(record)
        except LREError as error:
            raise LREError(f"this is not a record: {error}") from error
        return record


def _check(record: TrialRecord) -> None:
    """Check that the values of a record are in range and agree with each other."""
    text(record.relation, "relation", LONGEST_NAME)
    text(record.category, "category", LONGEST_NAME)
    for name in ("trial", "samples", "tested", "n_shot", "seed", "template_index", "first_tokens"):
        if getattr(record, name) is not None:
            whole(getattr(record, name), name)
    whole(record.range_size, "range_size", 1)
    known = whole(record.known, "known", most=record.tested)
    whole(record.edited, "edited", most=known)
    number(record.beta, "beta")
    sizes = {
        "layers": _axis("layers", record.layers, layer_of, place_of),
        "betas": _axis("betas", record.betas, number, float),
        "ranks": _axis("ranks", record.ranks, rank_of, int),
        "generic_layers": _axis("generic_layers", record.generic_layers, layer_of, place_of),
    }
    for name, (total, axes, methods) in GRIDS.items():
        for method, counts in getattr(record, name).items() if methods else [("", getattr(record, name))]:
            if methods and method not in methods:
                raise LREError(f"{name} has {shown(method)}, and the baselines are {', '.join(methods)}")
            _check_counts(name, counts, getattr(record, total), *(sizes[axis] for axis in axes))
    for layer in record.identity_layers or ():
        if layer not in record.layers:
            raise LREError(f"identity_layers has {shown(layer)}, which is not on the grid")
    if len(record.likeness) != sizes["generic_layers"]:
        raise LREError(f"likeness must have {sizes['generic_layers']} entries, one per generic layer")
    for name, sums in record.measures.items():
        if name not in MEASURES:
            raise LREError(f"measures has {shown(name)}, and the measures are {', '.join(MEASURES)}")
        layers, width = sizes["layers"], sizes.get(MEASURES[name][0], 1)
        if len(sums) != layers or any(len(row) != width for row in sums):
            raise LREError(f"the measure {name!r} must have {layers} x {width} sums")
        for found in chain.from_iterable(sums):
            number(found, f"the measure {name!r}", 1e12)
    if record.whole_objects:
        _check_whole_objects(record.whole_objects, known)
    for name, count in record.majority.items():
        if name not in MAJORITIES:
            raise LREError(f"majority has {shown(name)}, and the majorities are {', '.join(MAJORITIES)}")
        whole(count, f"the majority of {name}", most=known)
    if record.outcomes:
        _check_outcomes(record)
    if record.scored and not (record.faithful and record.causal):
        raise LREError("it has layers, but no counts")
    for name, value, axis in (("layer", record.layer, record.layers), ("rank", record.rank, record.ranks)):
        if (value in axis) != record.scored or (value is not None) != record.scored:
            raise LREError(f"{name} {value!r} is not on the grid")
    if record.scored and record.beta not in record.betas:
        raise LREError(f"beta {record.beta} is not on the grid")


def _check_outcomes(record: TrialRecord) -> None:
    """Check that the outcomes are of known samples in order; a trial that stops at `max_known` has not asked all."""
    samples = [-1, *(sample for sample, _, _ in record.outcomes)]
    if len(record.outcomes) > record.known or any(one >= other for one, other in pairwise(samples)):
        raise LREError(f"outcomes must be of at most {record.known} test prompts, in order")
    if any(faithful not in (0, 1) or causal not in (-1, 0, 1) for _, faithful, causal in record.outcomes):
        raise LREError("outcomes must be 0 or 1, or -1 without an edit")


def _check_whole_objects(counts: Mapping[str, int], known: int) -> None:
    out_of = {"known": known, "edited": counts.get("known", 0)}
    out_of |= {name: counts.get(total, 0) for name, total in WHOLE_OBJECTS.items()}
    if not out_of.keys() - set(CLOSED_SET_CONTROLS) <= counts.keys() <= out_of.keys():
        raise LREError(f"whole_objects must count {', '.join(out_of)}, not {shown(list(counts))}")
    for name, count in counts.items():
        whole(count, f"{name} of whole_objects", most=out_of[name])


def _axis(name: str, values: Sequence[Any], check: Callable[..., Any], place: Callable[[Any], float]) -> int:
    """Check the values of one axis of the grid, which rise, and return their number."""
    places = [place(check(value, f"one of {name}")) for value in values]
    if any(one >= other for one, other in pairwise(places)):
        raise LREError(f"{name} must rise")
    return len(places)


def _check_counts(name: str, counts: Sequence[Any], most: int, *shape: int) -> None:
    """Check that there are no counts, or those of a grid of the given shape."""
    if not counts:
        return
    if (len(shape) > 1 and any(len(row) != shape[1] for row in counts)) or len(counts) != shape[0]:
        raise LREError(f"{name} must have {' x '.join(map(str, shape))} counts")
    found = [count for count in np.array(counts, dtype=object).flat if count is not None]
    if found and not 0 <= min(found) <= max(found) <= most:
        raise LREError(f"{name} has counts of {min(found)} to {max(found)}, and they must be 0 to {most}")


def fraction(count: float, total: int) -> float:
    """Return a score; NaN if there is nothing that it counts."""
    return count / total if total else float("nan")
