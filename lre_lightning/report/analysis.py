"""The statistics behind tables and figures: pure functions of records.

Trials of a relation are averaged first, and relations after that, so that every relation has the same weight (Section
4 of the paper). Deviations are over trials for one relation, and over relations for several. Only reported trials
count.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.records.record import CAUSALITY_BASELINES, FAITHFULNESS_BASELINES, TrialRecord
from lre_lightning.records.summary import Spread, spread
from lre_lightning.relations.relation import SLOT

LARGEST_RATIO = 1e9

Score = Callable[[TrialRecord], float]
"""A score of one trial; NaN where it has none."""


@dataclass(frozen=True)
class ModelResults:
    """The records of one LM by the kind of their prompts.

    Attributes:
        model: Name or folder of the LM.
        main: Records of the main evaluation: the relations' first templates, the n that most was measured at.
        by_n: Records with the relations' first templates, by n; those of `main` among them.
        by_template: Records at the main n, by the index of the relations' templates; those of `main` under 0.
        bare: Records at the main n whose template is ``{}``, without relation-specific text.
    """

    model: str
    main: list[TrialRecord]
    by_n: dict[int, list[TrialRecord]]
    by_template: dict[int, list[TrialRecord]]
    bare: list[TrialRecord]


def by_model(records: Iterable[TrialRecord]) -> list[ModelResults]:
    """Sort records by LM and kind of prompts, LMs as they first occur, relations by category and name.

    Raises:
        LREError: If an LM has no record with the relations' first templates.
    """
    groups: dict[str, list[TrialRecord]] = {}
    for record in records:
        groups.setdefault(record.model, []).append(record)
    for group in groups.values():
        group.sort(key=lambda record: (record.category, record.relation, record.trial))
    return [_model_results(model, group) for model, group in groups.items()]


def _model_results(model: str, records: Sequence[TrialRecord]) -> ModelResults:
    plain = [record for record in records if record.template_index == 0]
    if not plain:
        raise LREError(f"the results of {model!r} have none with the relations' first templates: add those of a fit")
    points: Counter[int] = Counter()
    for record in plain:
        points[record.n_shot] += 1 + len(record.layers) * (len(record.betas) + len(record.ranks))
    n = max(points, key=lambda n: (points[n], n))
    indices = sorted({r.template_index for r in records if r.template_index is not None and r.n_shot == n})
    return ModelResults(
        model=model,
        main=[r for r in plain if r.n_shot == n],
        by_n={m: [r for r in plain if r.n_shot == m] for m in sorted(points)},
        by_template={i: [r for r in records if r.template_index == i and r.n_shot == n] for i in indices},
        bare=[r for r in records if r.template_index is None and r.template == SLOT and r.n_shot == n],
    )


def faithfulness(record: TrialRecord) -> float:
    """Faithfulness at the chosen layer and beta."""
    return math.nan if record.layer is None else record.faithfulness(record.layer, record.beta)


def causality(record: TrialRecord) -> float:
    """Causality at the chosen layer and rank."""
    scores = record.chosen_scores
    return math.nan if scores is None else scores[1]


def _zero_shot(record: TrialRecord) -> float:
    if record.layer is None or not record.faithful_zero_shot:
        return math.nan
    return record.faithfulness(record.layer, record.beta, zero_shot=True)


def _at_embedding(zero_shot: bool) -> Score:
    def score(record: TrialRecord) -> float:
        counts = record.faithful_zero_shot if zero_shot else record.faithful
        if "emb" not in record.layers or not counts:
            return math.nan
        return record.faithfulness("emb", record.beta, zero_shot)

    return score


def _faithfulness_baseline(name: str, zero_shot: bool) -> Score:
    def score(record: TrialRecord) -> float:
        counts = record.zero_shot_baselines if zero_shot else record.faithful_baselines
        if record.layer is None or name not in counts:
            return math.nan
        return record.faithfulness_baseline(name, record.layer, zero_shot)

    return score


def _causality_baseline(name: str) -> Score:
    return lambda r: math.nan if r.layer is None else causality_baseline_at(name, r.layer)(r)


def faithfulness_methods(zero_shot: bool = False) -> dict[str, Score]:
    """The LRE and its baselines (figure "faithfulness-baselines"), at the chosen layer.

    Args:
        zero_shot: Whether s is read in prompts that hold the subject alone (figure "faith-baselines-prompting").
    """
    return {
        "LRE": _zero_shot if zero_shot else faithfulness,
        "LRE at the embedding": _at_embedding(zero_shot),
        **{name: _faithfulness_baseline(name, zero_shot) for name in FAITHFULNESS_BASELINES},
    }


def causality_methods() -> dict[str, Score]:
    """The LRE's edit and its baselines (figure "causality-baselines"), at the chosen layer."""
    return {"LRE": causality, **{name: _causality_baseline(name) for name in CAUSALITY_BASELINES}}


def has_baselines(records: Iterable[TrialRecord]) -> bool:
    """Whether baselines were computed for any of the records."""
    return any(record.faithful_baselines for record in records)


def random_guess(record: TrialRecord) -> float:
    """Chance of guessing the object."""
    return record.random_guess


def categories(records: Iterable[TrialRecord]) -> dict[str, str]:
    """The category of every relation, in the order in which the relations first occur."""
    found: dict[str, str] = {}
    for record in records:
        found.setdefault(record.relation, record.category)
    return found


def counted(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The records of scored and reported trials."""
    return [record for record in records if record.scored and record.reported]


def per_relation(records: Iterable[TrialRecord], score: Score) -> dict[str, Spread]:
    """Mean and deviation over trials of each relation; relations without the score are left out."""
    values: dict[str, list[float]] = {}
    for record in counted(records):
        value = score(record)
        if not math.isnan(value):
            values.setdefault(record.relation, []).append(value)
    return {relation: spread(found) for relation, found in values.items()}


def over_relations(records: Iterable[TrialRecord], score: Score) -> Spread | None:
    """Mean and deviation over relations of their means over trials; None where no relation has the score."""
    means = [mean for mean, _ in per_relation(records, score).values()]
    return spread(means) if means else None


def per_category(records: Sequence[TrialRecord], score: Score) -> dict[str, Spread]:
    """Mean and deviation over the relations of each category."""
    names = categories(records)
    means: dict[str, list[float]] = {}
    for relation, (mean, _) in per_relation(records, score).items():
        means.setdefault(names[relation], []).append(mean)
    return {category: spread(found) for category, found in means.items()}


def layers_of(records: Iterable[TrialRecord]) -> tuple[Layer, ...]:
    """All layers of the grids of the scored and reported records, in the LM's order."""
    found = {layer for record in counted(records) for layer in record.layers}
    return tuple(sorted(found, key=lambda layer: -1 if layer == "emb" else int(layer)))


def on_most_layers(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The scored and reported records with the layers that most have, so that every layer's mean is of the same."""
    return _on_most(records, lambda record: record.layers)


def on_most_ranks(records: Iterable[TrialRecord]) -> list[TrialRecord]:
    """The scored and reported records with the ranks that most have."""
    return _on_most(records, lambda record: record.ranks)


def _on_most(records: Iterable[TrialRecord], grid: Callable[[TrialRecord], Hashable]) -> list[TrialRecord]:
    scored = counted(records)
    most = Counter(map(grid, scored)).most_common(1)
    return [record for record in scored if grid(record) == most[0][0]]


def faithfulness_at(layer: Layer) -> Score:
    """Faithfulness at a layer and the chosen beta."""
    return lambda r: r.faithfulness(layer, r.beta) if layer in r.layers else math.nan


def causality_at(layer: Layer) -> Score:
    """Causality at a layer and the chosen rank."""
    return lambda r: r.causality(layer, r.rank) if layer in r.layers and r.rank is not None else math.nan


def best_causality_at(layer: Layer) -> Score:
    """Causality at a layer and that trial's best rank."""
    return lambda r: max(r.causality(layer, rank) for rank in r.ranks) if layer in r.layers else math.nan


def causality_baseline_at(name: str, layer: Layer) -> Score:
    """Causality of a baseline at a layer (figure "causality-baselines-layerwise")."""

    def score(record: TrialRecord) -> float:
        if layer not in record.layers or name not in record.causal_baselines:
            return math.nan
        return record.causality_baseline(name, layer)

    return score


def causality_at_rank(rank: int) -> Score:
    """Causality at the chosen layer and a rank (figure "rank-sweep")."""
    return lambda r: r.causality(r.layer, rank) if r.layer is not None and rank in r.ranks else math.nan


def faithfulness_at_rank(rank: int) -> Score:
    """Faithfulness at the chosen layer and beta with W cut down to a rank (figure "rank-sweep")."""
    return lambda r: r.low_rank_faithfulness(rank) if r.faithful_low_rank and rank in r.ranks else math.nan


def faithfulness_at_beta(beta: float) -> Score:
    """Faithfulness at the chosen layer and a beta."""
    return lambda r: r.faithfulness(r.layer, beta) if r.layer is not None and beta in r.betas else math.nan


@dataclass(frozen=True)
class BetaScores:
    """A line of the table of betas (table "beta").

    Attributes:
        beta: The beta.
        faithfulness: Mean and deviation over relations.
        causality: Likewise; always at beta 1, so the same in every line.
        correlation: Pearson's correlation of faithfulness and causality over relations.
    """

    beta: float
    faithfulness: Spread
    causality: Spread | None
    correlation: float | None


def beta_scores(records: Sequence[TrialRecord]) -> list[BetaScores]:
    """Scores at every beta of the grid that all relations have, layer and rank as chosen."""
    records = counted(records)
    grids = [set(record.betas) for record in records]
    betas = sorted(set.intersection(*grids)) if grids else []
    edits = per_relation(records, causality)
    lines = []
    for beta in betas:
        means = per_relation(records, faithfulness_at_beta(beta))
        overall = over_relations(records, faithfulness_at_beta(beta))
        if overall is not None:
            pair = correlation(means, edits)
            lines.append(BetaScores(beta, overall, over_relations(records, causality), pair))
    return lines


def best_beta(lines: Sequence[BetaScores]) -> float | None:
    """The beta of the best correlation, the paper's criterion; None where there is no correlation."""
    known = [line for line in lines if line.correlation is not None]
    return max(known, key=lambda line: line.correlation or 0.0).beta if known else None


def most_faithful_beta(lines: Sequence[BetaScores]) -> float | None:
    """The beta of the highest mean faithfulness; None without lines."""
    return max(lines, key=lambda line: line.faithfulness[0]).beta if lines else None


def agreement(records: Sequence[TrialRecord]) -> float | None:
    """Pearson's correlation of faithfulness and causality over relations, at their chosen layers and ranks."""
    return correlation(per_relation(records, faithfulness), per_relation(records, causality))


def paired(records: Sequence[TrialRecord], one: Score, other: Score) -> list[tuple[float, float]]:
    """Two scores' means over trials, of the relations that have both."""
    first, second = per_relation(records, one), per_relation(records, other)
    return [(mean, second[relation][0]) for relation, (mean, _) in first.items() if relation in second]


def correlation(one: Mapping[str, Spread], other: Mapping[str, Spread], ranks: bool = False) -> float | None:
    """Correlation over the relations that both have.

    Args:
        one: Mean and deviation by relation.
        other: Likewise.
        ranks: Spearman's rank correlation in place of Pearson's.

    Returns:
        The coefficient; None with fewer than three relations, or where one of the two does not vary.
    """
    import torch
    from torchmetrics.functional import pearson_corrcoef, spearman_corrcoef

    shared = [relation for relation in one if relation in other]
    # Rounded, so that means which are equal as fractions are equal.
    pairs = torch.tensor([[one[r][0], other[r][0]] for r in shared], dtype=torch.float64).round(decimals=12)
    if len(shared) < 3 or any(len(column.unique()) < 2 for column in pairs.T):
        return None
    return float((spearman_corrcoef if ranks else pearson_corrcoef)(pairs[:, 0], pairs[:, 1]))


def known_facts(records: Iterable[TrialRecord]) -> dict[str, Spread]:
    """Test samples that the LM knows by relation, mean and deviation over all trials (table "full-dataset")."""
    counts: dict[str, list[float]] = {}
    for record in records:
        counts.setdefault(record.relation, []).append(record.known)
    return {relation: spread(found) for relation, found in counts.items()}


def underestimation(records: Iterable[TrialRecord]) -> dict[str, Spread]:
    """By relation, the ratio of change to estimate, mean and deviation over pairs of subjects (table "line_int").

    A pair that has no ratio is left out.
    """
    ratios: dict[str, list[float]] = {}
    for record in counted(records):
        ratios.setdefault(record.relation, []).extend(change_ratios(record))
    return {relation: spread(found) for relation, found in ratios.items() if found}


def change_ratios(record: TrialRecord) -> list[float]:
    """The ratio of change to estimate of each pair of subjects that has one.

    It has none where the estimate is not positive, or so near to nothing that the ratio is no number to speak of.
    """
    ratios = [exact / estimate for exact, estimate in record.line_integrals if estimate > 0]
    return [ratio for ratio in ratios if abs(ratio) < LARGEST_RATIO]
