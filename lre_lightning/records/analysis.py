"""Statistics of records behind the tables and figures, as pure functions.

Trials are averaged per relation before relations are averaged, so that every relation has the same weight (Section 4 of
the paper). Deviations are over trials for one relation, and over relations for several; 95% intervals are over samples
and trials for one, and over relations for several (a bootstrap). Only reported trials count, and of them those that
took no part in the choice of layer and rank (`selection.headline`), unless the relation has no others. What is
compared, such as the points of a curve, is of the same trials (`same_trials`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from lre_lightning.grid import Layer, place_of
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.relations.relation import SLOT
from lre_lightning.statistics.correlation import pearson, spearman
from lre_lightning.statistics.estimates import Estimate, Share, estimate, mean_over, over_trials
from lre_lightning.statistics.intervals import Array, median

ALL = "all relations"
FEW_RELATIONS = 10
"""Number of relations below which nothing is said on a finding, and no beta chosen by its correlation."""
K = TypeVar("K")

Score = Callable[..., float]
"""A score of one trial, perhaps at a point of an axis given by the axis's name; NaN where it was not measured."""

Means = Mapping[str, Estimate]
"""Means and deviations of a score by relation, or by category."""

Sweep = Mapping[Any, Means]
"""Scores by relation at every point of an axis."""


@dataclass(frozen=True)
class ModelResults:
    """The records of one LM by the kind of their prompts.

    Attributes:
        model: Name or folder of the LM, `TrialRecord.label`.
        main: Records of the main evaluation: the relations' first templates (see `template_places`), at the n with most
            measurements.
        by_n: Records with the relations' first templates by n, including those of `main`.
        by_template: Records at the main n by the place of the relations' templates, with those of `main` under 0.
        bare: Records at the main n with the template ``{}``, which has no relation-specific text.
    """

    model: str
    main: list[TrialRecord]
    by_n: dict[int, list[TrialRecord]]
    by_template: dict[int, list[TrialRecord]]
    bare: list[TrialRecord]


def by_model(records: Iterable[TrialRecord]) -> list[ModelResults]:
    """Group records by LM and kind of prompts: LMs as they first occur, relations by category and name."""
    models = []
    for model, group in _grouped(records, "label").items():
        group.sort(key=lambda record: (record.category, record.relation, record.trial))
        places = template_places(group)
        by_n = _grouped([record for record in group if places.get(_template(record)) == 0], "n_shot")
        n = max(by_n, key=lambda n: (sum(map(_measurements, by_n[n])), n))
        bare, by_template = list[TrialRecord](), dict[int, list[TrialRecord]]()
        for record in (record for record in group if record.n_shot == n):
            place = places.get(_template(record))
            (bare if place is None else by_template.setdefault(place, [])).append(record)
        models.append(ModelResults(model, by_n[n], by_n, by_template, bare))
    return models


def template_places(records: Sequence[TrialRecord]) -> dict[tuple[str, int | None, str], int]:
    """Return the place of each template among those of its relation that the records of an LM have, from 0.

    Templates are given by relation, index and text. A relation's own ones come first, then those that the user gave.
    The bare ``{}`` is none of them, unless there is no other.
    """
    templates = dict.fromkeys(map(_template, records))
    kinds = [template for template in templates if template[1:] != (None, SLOT)] or list(templates)
    places, counts = {}, Counter[str]()
    for template in sorted(kinds, key=lambda template: (template[1] is None, template[1] or 0)):
        places[template] = counts[template[0]]
        counts[template[0]] += 1
    return places


def _template(record: TrialRecord) -> tuple[str, int | None, str]:
    return record.relation, record.template_index, record.template


def _grouped(records: Iterable[TrialRecord], field: str) -> dict[Any, list[TrialRecord]]:
    groups: dict[Any, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(getattr(record, field), []).append(record)
    return groups


def _measurements(record: TrialRecord) -> int:
    return 1 + len(record.layers) * (len(record.betas) + len(record.ranks))


def short_name(model: str) -> str:
    """Return the last part of an LM's name or folder."""
    return model.rstrip("/").rsplit("/", 1)[-1] or "LM"


def names_of(models: Sequence[ModelResults]) -> list[str]:
    """Return the short names of LMs, or all of a name where two LMs would have the same."""
    names = [short_name(model.model) for model in models]
    return [name if names.count(name) == 1 else model.model or name for name, model in zip(names, models, strict=True)]


def named(models: Sequence[ModelResults]) -> dict[str, ModelResults]:
    """Return LMs by the names of `names_of`."""
    return dict(zip(names_of(models), models, strict=True))


def lm_of(records: Sequence[TrialRecord]) -> str:
    """Return the short name of the LM that records are of."""
    return short_name(records[0].label)


def faithfulness(record: TrialRecord, layer: Layer | None = None, beta: float | None = None) -> float:
    """Return the faithfulness of the LRE, NaN where it was not measured; layer and beta are the chosen ones if None."""
    return record.faithfulness(record.layer if layer is None else layer, record.beta if beta is None else beta)


def causality(record: TrialRecord, layer: Layer | None = None, rank: int | None = None) -> float:
    """Return the causality of the LRE's edit, NaN where not measured; layer and rank are the chosen ones if None."""
    return record.causality(record.layer if layer is None else layer, record.rank if rank is None else rank)


def tally_score(measure: str, name: str) -> Score:
    """Return the mean of a measure's tally as a score of a record, at the chosen point but for what is given."""

    def score(record: TrialRecord, **point: Any) -> float:
        return record.measured(measure, name, **point)

    return score


SCORES: dict[str, Score] = {"faithfulness": faithfulness, "causality": causality}


def random_guess(record: TrialRecord) -> float:
    """Return the chance of guessing the first token among those of the relation's distinct objects."""
    return record.random_guess


MAJORITIES = ("majority of training", "majority of data")

CONSTANT: dict[str, Score] = {
    "b alone": partial(faithfulness, beta=0.0),
    **{name: tally_score("majorities", name) for name in MAJORITIES},
}
"""Faithfulness of answers that are the same for all subjects: the LRE's at beta 0, and the most frequent ones."""


def faithfulness_methods(zero_shot: bool = False) -> dict[str, Score]:
    """Return the faithfulness of the LRE and its baselines at the chosen layer, as scores of a record."""
    metric = "zero-shot faithfulness" if zero_shot else "faithfulness"
    lre = tally_score("baselines", f"{metric}: LRE") if zero_shot else faithfulness
    return {
        "LRE": lre,
        "LRE at the embedding": partial(lre, layer="emb"),
        **{
            name: tally_score("baselines", f"{metric}: {name}")
            for name in ("linear regression", "translation", "identity")
        },
        **CONSTANT,
    }


METHODS: dict[str, dict[str, Score]] = {
    "faithfulness": faithfulness_methods(),
    "causality": {
        "LRE": causality,
        **{name: tally_score("baselines", f"causality: {name}") for name in ("oracle", "unembedding", "object")},
    },
}
"""Scores of the LRE and of the paper's baselines by metric and method; NaN where the measure was not taken."""


def categories(records: Iterable[TrialRecord]) -> dict[str, str]:
    """Return the category of every relation, in the order in which the relations first occur."""
    return {record.relation: record.category for record in records}


def counted(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the records of scored and reported trials, of relations whose objects differ in their first tokens."""
    return [record for record in records if record.scored and record.reported and record.told_apart]


def same_trials(groups: Mapping[K, Iterable[TrialRecord]]) -> dict[K, list[TrialRecord]]:
    """Return the scored and reported records of groups that are compared, of the same trials of a relation in each.

    They are those that are in most of the groups that have the relation: their number is the first thing to count, that
    of the trials the second. One that chose layer and rank in a group counts as one that chose in all of them, so that
    headline scores are of the same trials, too.
    """
    found: dict[tuple[str, int], dict[K, TrialRecord]] = {}
    for name, records in groups.items():
        for record in counted(records):
            found.setdefault((record.relation, record.trial), {})[name] = record
    times = Counter((relation, tuple(having)) for (relation, _), having in found.items())
    widest: dict[str, tuple[K, ...]] = {}
    for relation, names in sorted(times, key=lambda place: (len(place[1]), times[place])):
        widest[relation] = names
    kept: dict[K, list[TrialRecord]] = {name: [] for name in groups}
    for (relation, _), having in found.items():
        if tuple(having) == widest[relation]:
            chose = any(record.chose for record in having.values())
            for name, record in having.items():
                kept[name].append(record if record.chose == chose else replace(record, chose=chose))
    return kept


def scored_in_all(groups: Mapping[K, Sequence[TrialRecord]]) -> dict[K, list[TrialRecord]]:
    """Return `same_trials` of the relations that every group has."""
    same = same_trials(groups)
    shared = set.intersection(*({record.relation for record in records} for records in same.values()))
    return {name: [record for record in records if record.relation in shared] for name, records in same.items()}


def side_by_side(records: Iterable[TrialRecord], scores: Mapping[K, Callable[[TrialRecord], float]]) -> dict[K, Means]:
    """Return several scores by relation, all of the same trials: those that have most of the scores."""
    records = counted(records)
    same = same_trials(
        {name: [record for record in records if not math.isnan(score(record))] for name, score in scores.items()}
    )
    return {name: per_relation(same[name], score) for name, score in scores.items()}


def spreads(
    values: Iterable[tuple[K, float]], mean: Callable[[Sequence[float]], Estimate] = over_trials
) -> dict[K, Estimate]:
    """Return mean and deviation of the values by name, in the order of the names; NaN is left out.

    Values are those of trials, unless `mean` is another than `over_trials`.
    """
    groups: dict[K, list[float]] = {}
    for name, value in values:
        if not math.isnan(value):
            groups.setdefault(name, []).append(value)
    return {name: mean(group) for name, group in groups.items()}


def per_relation(records: Iterable[TrialRecord], score: Score) -> dict[str, Estimate]:
    """Return mean, deviation and interval over trials by relation; relations without the score are left out.

    The trials are those of `headline`.
    """
    return spreads((record.relation, score(record)) for record in headline(counted(records)))


def known(records: Iterable[TrialRecord]) -> dict[str, Estimate]:
    """Return the fraction of the test samples that the LM knows, by relation, scored or not."""
    return spreads((record.relation, Share(record.known, record.tested)) for record in records)


def per_category(records: Sequence[TrialRecord], score: Score) -> dict[str, Estimate]:
    """Return mean and deviation over the relations of each category, and over all relations under `ALL`."""
    return by_category(categories(records), per_relation(records, score))


def by_category(kinds: Mapping[str, str], means: Means) -> dict[str, Estimate]:
    """Return `per_category` of scores by relation, given the relations' categories."""
    in_kinds = ((kinds[relation], mean) for relation, (mean, _) in means.items())
    return spreads([*in_kinds, *((ALL, mean) for mean, _ in means.values())], mean_over)


def sweep(records: Sequence[TrialRecord], score: Score, axis: str, points: Iterable[Any]) -> Sweep:
    """Return a score by relation at every point of an axis, of the same trials at each: those with most points."""
    return side_by_side(records, {point: partial(score, **{axis: point}) for point in points})


def throughout(sweep: Sweep) -> Sweep:
    """Return a sweep of the relations that have a score at every point that has any: means are over the same ones."""
    names = set[str]().union(*sweep.values()).intersection(*filter(None, sweep.values()))
    return {point: {name: means[name] for name in means if name in names} for point, means in sweep.items()}


def from_some_point(sweep: Sweep) -> Sweep:
    """Return `throughout` of the last points, as many as keep most scores; the points before have none.

    It is for checkpoints of a training, of which the first know too little to be scored.
    """
    points = list(sweep)
    parts = [throughout({point: sweep[point] for point in points[start:]}) for start in range(len(points))]
    best = max(parts, key=lambda part: sum(map(len, part.values())), default={})
    return {point: best.get(point, {}) for point in points}


def by_layer(records: Sequence[TrialRecord], score: Score) -> Sweep:
    """Return a score by relation at every layer of the grids."""
    return sweep(records, score, "layer", layers_of(records))


def overall(means: Means) -> Estimate | None:
    """Return mean, deviation and interval over relations of their means; None if there is no relation."""
    return mean_over([mean for mean, _ in means.values()]) if means else None


def over_relations(records: Iterable[TrialRecord], score: Score) -> Estimate | None:
    """Return mean and deviation over relations of their means over trials; None where no relation has the score."""
    return overall(per_relation(records, score))


def both_by_relation(records: Sequence[TrialRecord]) -> dict[str, Means]:
    """Return faithfulness and causality, mean and deviation over trials by relation."""
    return {name: per_relation(records, score) for name, score in SCORES.items()}


def both_scores(records: Sequence[TrialRecord]) -> list[Estimate | None]:
    """Return faithfulness and causality, mean and deviation over relations."""
    return list(map(overall, both_by_relation(records).values()))


def constant(records: Sequence[TrialRecord]) -> dict[str, Means]:
    """Return the scores of `CONSTANT` that were measured, by relation."""
    return {name: means for name, score in CONSTANT.items() if (means := per_relation(records, score))}


def constant_by_layer(records: Sequence[TrialRecord]) -> dict[str, Sweep]:
    """Return the scores of `CONSTANT` that were measured, at every layer; b is that of the layer."""

    def at(record: TrialRecord, layer: Layer, name: str) -> float:
        if name == "b alone":
            return faithfulness(record, layer, 0.0)
        return CONSTANT[name](record) if layer in record.layers else math.nan

    sweeps = {name: by_layer(records, partial(at, name=name)) for name in CONSTANT}
    return {name: sweep for name, sweep in sweeps.items() if any(sweep.values())}


def at_identity(records: Iterable[TrialRecord]) -> dict[Layer, set[str]]:
    """Return by layer the relations at which W is the identity there, as s is o: choices leave such layers out."""
    relations: dict[Layer, set[str]] = {}
    for record in counted(records):
        for layer in record.identity_layers:
            relations.setdefault(layer, set()).add(record.relation)
    return relations


def says_more(records: Sequence[TrialRecord], layer: Layer) -> tuple[int, int] | None:
    """Return for how many relations, of how many, the LRE at a layer says more than any of `CONSTANT`.

    Those whose interval of faithfulness is above all of them that were measured; None if none was. Relations for which
    W is the identity there, so that the LRE says what the LM says, are left out.
    """
    identity = at_identity(records).get(layer, ())
    scores, *others = side_by_side(
        records,
        {"LRE": partial(faithfulness, layer=layer)}
        | CONSTANT
        | {"b alone": partial(faithfulness, layer=layer, beta=0.0)},
    ).values()
    more = []
    for name, score in scores.items():
        answers = [means[name].value for means in others if name in means]
        if answers and score.interval is not None and name not in identity:
            more.append(score.interval.low > max(answers))
    return (sum(more), len(more)) if more else None


def layers_of(records: Iterable[TrialRecord]) -> list[Layer]:
    """Return all layers of the grids of the scored and reported records, in the LM's order."""
    return sorted({layer for record in counted(records) for layer in record.layers}, key=place_of)


def on_most(records: Iterable[TrialRecord], axis: Literal["layers", "ranks"]) -> list[TrialRecord]:
    """Return the scored and reported records with the layers, or ranks, of which there are most points in all.

    Means at different points of the axis are comparable only over the same records.
    """
    scored = counted(records)
    grids = Counter(getattr(record, axis) for record in scored)
    most = max(grids, key=lambda grid: len(grid) * grids[grid], default=())
    return [record for record in scored if getattr(record, axis) == most]


def agreement(records: Sequence[TrialRecord]) -> Estimate | None:
    """Return Pearson's correlation of faithfulness and causality over relations, at their chosen layers and ranks."""
    return correlation(per_relation(records, faithfulness), per_relation(records, causality))


def correlation(first: Means, second: Means, ranks: bool = False) -> Estimate | None:
    """Return Pearson's, or by `ranks` Spearman's, correlation of two scores over the relations that have both.

    It is None with fewer than three relations, or where one of the scores does not vary.
    """
    names, pairs = joint(first, second)
    return estimate(pairs, spearman if ranks else pearson) if names else None


def joint(*scores: Means) -> tuple[list[str], Array]:
    """Return the relations that have all of the scores, and the scores, `(relations, scores)`, to be drawn together."""
    names = [name for name in scores[0] if all(name in means for means in scores[1:])]
    return names, np.array([[means[name].value for means in scores] for name in names]).reshape(-1, len(scores))


def underestimation(records: Iterable[TrialRecord]) -> dict[str, Estimate]:
    """Return the median ratio of change to estimate by relation (compare table "line_int").

    It is over the pairs of subjects that have a ratio, with a bootstrap interval over them.
    """
    ratios: dict[str, list[float]] = {}
    for record in counted(records):
        ratios.setdefault(record.relation, []).extend(change_ratios(record))
    return {name: ratio for name, values in ratios.items() if values and (ratio := estimate(values, median))}


def change_ratios(record: TrialRecord) -> list[float]:
    """Return the ratio of change to estimate for each pair of subjects whose estimate is positive."""
    ratios = [exact / estimate for exact, estimate in record.rows_of("line integrals", float, float) if estimate > 0]
    return [ratio for ratio in ratios if math.isfinite(ratio)]
