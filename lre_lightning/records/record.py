"""The record of a trial: its counts on the grid of layers, betas and ranks.

Records hold counts alone, so any choice of layer, rank or beta can be made again from them, and any table or figure
plotted, without the LM.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer, layer_of, place_of, rank_of
from lre_lightning.records.measurement import AXES, Measurement
from lre_lightning.statistics.estimates import Share
from lre_lightning.storage.plain import LONGEST_NAME, check_plain, mapping, number, shown, text, whole
from lre_lightning.storage.typed import from_json

MOST_ENTRIES = 1_000_000
"""Upper bound on the numbers and texts in a record."""

Grid = tuple[tuple[int, ...], ...]


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
        causal: Successful edits out of `edited`, `[layer][rank]`.
        edited: Number of known samples for which there was a target with another object.
        identity_layers: Layers of the grid at which s is o, as prompts end with their subjects, so that W is the
            identity (`lre.estimator.identity_layers`). Choices leave them out.
        layer: The chosen layer; None if the trial was not scored.
        beta: The chosen beta.
        rank: The chosen rank; None if the trial was not scored.
        model: Name or folder of the LM, followed by @ and its revision if one was asked for.
        backward: The rule of the backward pass that W was read off.
        n_shot: Number n of training examples.
        template: The prompt template; for prompts from several templates, all of them joined by `BETWEEN_TEMPLATES`.
        template_index: Its index among the relation's own templates; None for a template of the user's.
        first_tokens: Number of distinct first tokens of the distinct objects.
        reported: False for a trial that only served to choose the layer and rank of the others.
        chose: Whether the trial took part in the choice of its layer and rank, so that its scores look better there.
        measures: What else was measured, by the name of the measure.
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
    causal: Grid = ()
    edited: int = 0
    identity_layers: tuple[Layer, ...] = ()
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
    measures: Mapping[str, Measurement] = field(default_factory=dict)
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
    def told_apart(self) -> bool:
        """False if all objects of the relation begin with the same token, so that scores by first token say nothing."""
        return self.first_tokens != 1

    @property
    def random_guess(self) -> float:
        """Probability of guessing the first token among those of the relation's objects; of the object, if unknown."""
        return 1 / (self.first_tokens or self.range_size)

    def faithfulness(self, layer: Layer | None, beta: float) -> float:
        """Return the share of known samples for which the LRE predicts what the LM does; NaN where not measured."""
        return self._share(self.faithful, self.known, (self.layers, layer), (self.betas, beta))

    def causality(self, layer: Layer | None, rank: int | None) -> float:
        """Return the share of edits at `layer` and `rank` after which the LM answers o'; NaN where not measured."""
        return self._share(self.causal, self.edited, (self.layers, layer), (self.ranks, rank))

    def _share(self, counts: Any, total: int, *point: tuple[tuple[Any, ...], Any]) -> float:
        for axis, value in point:
            if not counts or value not in axis:
                return float("nan")
            counts = counts[axis.index(value)]
        return Share(counts, total)

    def measured(self, measure: str, name: str, **point: Any) -> float:
        """Return the mean of a measure's tally at a point; NaN where it was not measured, a `Share` of counts.

        Coordinates that are not given, or None, are the chosen ones.
        """
        found = self.measures.get(measure)
        if found is None or name not in found.tallies:
            return float("nan")
        tally, place = found.tallies[name], list[int]()
        for axis in tally.axes:
            value = getattr(self, axis) if point.get(axis) is None else point[axis]
            values = self.values_of(found, axis)
            if value not in values:
                return float("nan")
            place.append(values.index(value))
        return tally.at(place)

    def values_of(self, measurement: Measurement, axis: str) -> tuple[Any, ...]:
        """Return the values of an axis of a measurement's tallies."""
        if axis == "layer" and measurement.layers is not None:
            return measurement.layers
        values: tuple[Any, ...] = getattr(self, AXES[axis])
        return values

    def rows_of(self, measure: str, *kinds: type[int | float | str]) -> tuple[tuple[Any, ...], ...]:
        """Return the rows of a measure, none where it was not measured; cells must be of `kinds`, if given."""
        rows = self.measures[measure].rows if measure in self.measures else ()
        for row in rows:
            if kinds and (len(row) != len(kinds) or not all(map(_is_cell, row, kinds))):
                names = ", ".join(kind.__name__ for kind in kinds)
                raise LREError(f"a row of {measure!r} of {self.relation!r} must have ({names}), not {row!r:.100}")
        return rows

    @property
    def columns(self) -> dict[str, float]:
        """The scores beside faithfulness and causality that measures give tables of results, by name."""
        return {
            name: self.measured(measure, name)
            for measure, found in self.measures.items()
            for name, tally in found.tallies.items()
            if tally.column
        }

    @property
    def unknown(self) -> int:
        """Number of test prompts that the LM does not complete with the object."""
        return self.tested - self.known

    @property
    def chosen_scores(self) -> tuple[float, float] | None:
        """Faithfulness and causality at the chosen layer, beta and rank; None if the trial was not scored by them."""
        if self.layer is None or self.rank is None or not self.told_apart:
            return None
        return self.faithfulness(self.layer, self.beta), self.causality(self.layer, self.rank)

    def plain(self) -> dict[str, Any]:
        """Return the record as plain data."""
        return {**vars(self), "measures": {name: found.plain() for name, found in self.measures.items()}}

    @classmethod
    def from_plain(cls, data: object) -> TrialRecord:
        """Rebuild a record from `plain`; lists are accepted for tuples.

        Keys that are unknown are ignored.

        Raises:
            LREError: A field is missing or of the wrong type, or contradicts the others.
        """
        try:
            given = mapping(data, "it")
            check_plain(given, "the record", MOST_ENTRIES)
            record = from_json(cls, json.dumps(given))
            _check(record)
        except LREError as error:
            raise LREError(f"this is not a record: {error}") from error
        return record


def _is_cell(value: object, kind: type) -> bool:
    return isinstance(value, (int, float) if kind is float else kind)


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
        "layer": _axis("layers", record.layers, layer_of, place_of),
        "beta": _axis("betas", record.betas, number, float),
        "rank": _axis("ranks", record.ranks, rank_of, int),
    }
    _check_counts("faithful", record.faithful, known, sizes["layer"], sizes["beta"])
    _check_counts("causal", record.causal, record.edited, sizes["layer"], sizes["rank"])
    for layer in record.identity_layers:
        if layer not in record.layers:
            raise LREError(f"identity_layers has {shown(layer)}, which is not on the grid")
    for name, found in record.measures.items():
        text(name, "the name of a measure", LONGEST_NAME)
        if found.layers is not None:
            _axis(f"layers of {name}", found.layers, layer_of, place_of)
        found.check(name, sizes, record.tested)
    if record.scored and not (record.faithful and record.causal):
        raise LREError("it has layers, but no counts")
    for name, value, axis in (("layer", record.layer, record.layers), ("rank", record.rank, record.ranks)):
        if (value in axis) != record.scored or (value is not None) != record.scored:
            raise LREError(f"{name} {value!r} is not on the grid")
    if record.scored and record.beta not in record.betas:
        raise LREError(f"beta {record.beta} is not on the grid")


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
    found = np.array(counts)
    if found.size and not 0 <= found.min() <= found.max() <= most:
        raise LREError(f"{name} has counts of {found.min()} to {found.max()}, and they must be 0 to {most}")
