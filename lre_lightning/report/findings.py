"""The paper's findings, and whether records of runs agree with them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from lre_lightning.records import analysis, choices
from lre_lightning.records.analysis import FEW_RELATIONS, METHODS, Means, Score
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import reselect
from lre_lightning.report.relations import choice_text
from lre_lightning.report.tables import Row, Table, cell_text, interval_text
from lre_lightning.statistics.correlation import pearson, pearson_difference
from lre_lightning.statistics.intervals import (
    Array,
    Interval,
    Statistic,
    bootstrap,
    mean,
    mean_difference,
    value_of,
    wilson,
    without_each,
)

DROP = 0.2
"""Distance of the last layer below the peak from which faithfulness counts as dropping."""
CLOSE = 0.1
"""Difference of means up to which they match."""
FINDING_COLUMNS = (
    *("finding", "holds", "value", "compared with", "95% interval", "relations", "without", "criterion"),
    "in the paper",
)
MOST = 0.9
"""Fraction of the relations that are almost all."""
UNCERTAIN = "can't tell"


def findings(records: Sequence[TrialRecord], bare: Sequence[TrialRecord] = ()) -> Table:
    """Return the paper's findings and whether the results of an LM agree; `bare` are those with the template ``{}``."""
    late = "Faithfulness drops in late layers", "plummets after layer 17 of 28"
    late_in_bare = "Without relation-specific text it doesn't drop", "keeps improving in later layers"
    return Table(
        "findings",
        f"The paper's findings, and whether the results of {analysis.lm_of(records)} agree. A finding holds (yes) or "
        "does not (no) only if all of its 95% interval says so (bootstrap over relations), and fewer than "
        f"{FEW_RELATIONS} relations are too few to tell. The interval is of the difference between the two values. "
        "Where a value is compared with a fixed number, it is of the value, and for a β it is the range of those "
        "that are as good. The column *without* gives the same quantity without the one relation that changes "
        "it most. The last column counts the relations that meet the criterion, each on its own. Unless the "
        f"criterion says otherwise, values are means over relations at the layers and ranks of the fit. "
        f"{choice_text(records)} Values are compared on the trials that have both. For layers, baselines, and choices "
        "after the last trial these can be the trials that chose.",
        FINDING_COLUMNS,
        (
            *_on_agreement(records),
            *_on_beta(records),
            *_on_baselines(records),
            _late_layers(records, *late, drops=True),
            _late_layers(bare, *late_in_bare, drops=False),
        ),
    )


def _row(
    finding: str,
    paper: str,
    criterion: str,
    value: float | None = None,
    other: float | None = None,
    *,
    interval: Interval | None = None,
    region: tuple[float, float] = (0, math.inf),
    count: int = 0,
    met: int | None = None,
    without: str | None = None,
) -> Row:
    """Return a row of the table, given a value, what it is compared with, and the number of relations.

    Without both numbers the finding was not measured. It holds if all of the interval is in the region, above its lower
    end and not above the upper one. `met` is the number of relations that meet the criterion, each on its own.
    """
    if value is None or other is None:
        return (finding, "not measured", None, None, None, None, None, criterion, paper)
    if count < FEW_RELATIONS:
        verdict = "too few to tell"
    elif interval is None:
        verdict = UNCERTAIN
    elif region[0] < interval.low and interval.high <= region[1]:
        verdict = "yes"
    else:
        verdict = "no" if interval.high <= region[0] or interval.low > region[1] else UNCERTAIN
    relations = str(count) if met is None else f"{met} of {count}"
    shown = interval_text(interval).strip() or None
    return (finding, verdict, value, other, shown, relations, without, criterion, paper)


def _without(names: Sequence[str], values: Array, statistic: Statistic) -> str | None:
    """Return a statistic without the relation that changes it most, and which that is."""
    with_all = value_of(values, statistic) if len(names) > 1 else None
    if with_all is None:
        return None
    others = without_each(values, statistic)
    if np.isnan(others).all():
        return None
    most = int(np.nanargmax(np.abs(others - with_all)))
    return f"{names[most]}: {cell_text(float(others[most]))}"


def _difference(
    finding: str, paper: str, criterion: str, scores: tuple[Means, Means], region: tuple[float, float] = (0, math.inf)
) -> Row:
    """Return the row on the mean difference of two scores, which is to be in a region."""
    names, pairs = analysis.joint(*scores)
    if not names:
        return _row(finding, paper, criterion)
    first, second = pairs.mean(0).tolist()
    apart = (pairs[:, 0] - pairs[:, 1]).round(12)
    return _row(
        finding,
        paper,
        criterion,
        first,
        second,
        interval=bootstrap(pairs, mean_difference),
        region=region,
        count=len(names),
        met=int(((apart > region[0]) & (apart <= region[1])).sum()),
        without=_without(names, pairs, mean_difference),
    )


def _on_agreement(records: Sequence[TrialRecord]) -> list[Row]:
    chosen = [reselect(records, "causality"), reselect(records, "faithfulness")]
    own, *others = [(by["faithfulness"], by["causality"]) for by in map(analysis.both_by_relation, (records, *chosen))]
    names, pairs = analysis.joint(*own)
    _, fours = analysis.joint(*itertools.chain(*others))
    r = analysis.correlation(*own)
    by_causality, by_faithfulness = (analysis.correlation(*scores) for scores in others)
    above = int((pairs[:, 1] > pairs[:, 0]).sum())
    return [
        _row(
            "Faithfulness is strongly correlated with causality",
            "R = 0.84",
            "Pearson's R over relations is at least 0.7",
            r and r.value,
            0.7,
            interval=r and r.interval,
            region=(0.7 - 1e-12, 1),
            count=len(names),
            without=_without(names, pairs, pearson),
        ),
        _row(
            "The correlation is weaker with layer and rank chosen by faithfulness",
            "R = 0.84 against 0.74",
            "with layer and rank chosen after the last trial, R is higher by causality than by faithfulness; it is "
            f"{cell_text(r)} with those of the fit",
            by_causality and by_causality.value,
            by_faithfulness and by_faithfulness.value,
            interval=bootstrap(fours, pearson_difference),
            count=len(names),
            without=_without(names, fours, pearson_difference),
        ),
        _row(
            "Causality is higher than faithfulness for almost all relations",
            "for almost all relations",
            f"causality is above faithfulness in at least {MOST:.0%} of the relations; the interval is Wilson's",
            above / len(names) if names else None,
            MOST,
            interval=wilson(above, len(names)),
            region=(MOST - 1e-12, 1),
            count=len(names),
            met=above,
        ),
    ]


def _on_beta(records: Sequence[TrialRecord]) -> list[Row]:
    scores = choices.beta_scores(records)
    scores = scores if len(scores) > 1 else []
    betas = np.array([line.beta for line in scores])
    faithful = [analysis.per_relation(records, partial(analysis.faithfulness, beta=line.beta)) for line in scores]
    names, values = analysis.joint(*faithful, analysis.per_relation(records, analysis.causality))

    def most_faithful(samples: Array) -> Array:
        return np.asarray(betas[samples[..., :-1].mean(1).argmax(1)])

    def most_correlated(samples: Array) -> Array:
        correlations = [pearson(samples[..., [place, -1]]) for place in range(len(betas))]
        return np.asarray(betas[np.nan_to_num(correlations, nan=-1).argmax(0)])

    def row(
        finding: str, paper: str, criterion: str, best: float | None, by: choices.BetaCriterion, statistic: Statistic
    ) -> Row:
        good = choices.as_good_betas(records, best, by) if best is not None else []
        return _row(
            finding,
            paper,
            criterion,
            best,
            1.0,
            interval=Interval(good[0], good[-1]) if good else None,
            region=(1, math.inf),
            count=len(names),
            without=_without(names, values, statistic) if best is not None else None,
        )

    underestimation = analysis.underestimation(records)
    ratios = np.array([ratio for ratio, _ in underestimation.values()])
    return [
        row(
            "β above 1 makes faithfulness agree best with causality",
            "β = 2.25",
            "the β of the highest R, and all that are as good, are above 1",
            choices.best_beta(scores),
            "correlation",
            most_correlated,
        ),
        row(
            "β above 1 is the most faithful",
            "0.59 at β = 2.25, 0.43 at 1",
            "the β of the highest mean faithfulness, and all that are as good, are above 1",
            choices.most_faithful_beta(scores),
            "faithfulness",
            most_faithful,
        ),
        _row(
            "W underestimates how much the object changes with the subject",
            "ratio from 2.5 to 4.3",
            "the mean of the relations' median ratios of change to estimate is above 1",
            float(ratios.mean()) if len(ratios) else None,
            1.0,
            interval=bootstrap(ratios, mean),
            region=(1, math.inf),
            count=len(ratios),
            met=int((ratios > 1).sum()),
            without=_without(list(underestimation), ratios, mean),
        ),
    ]


def _on_baselines(records: Sequence[TrialRecord]) -> list[Row]:
    def beside(metric: str, other: str | Score) -> tuple[Means, Means]:
        """Return the LRE's scores and another method's, of the trials that have both."""
        methods = METHODS[metric]
        score = methods[other] if isinstance(other, str) else other
        own, others = analysis.side_by_side(records, {"own": methods["LRE"], "other": score}).values()
        return own, others

    everywhere, higher = "in every category", "the mean over relations is higher"
    edits = {"unembedding": "the unembedding's row of o'", "object": "o'"}
    return [
        _difference(
            "LRE is better than a random guess",
            "on all relations",
            higher,
            beside("faithfulness", analysis.random_guess),
        ),
        *(
            _difference(f"LRE is more faithful than {name}", everywhere, higher, beside("faithfulness", name))
            for name in METHODS["faithfulness"]
            if name != "LRE"
        ),
        _difference(
            "LRE edits match the oracle, s' in place of s",
            "closely, across layers",
            f"the means differ by at most {CLOSE}",
            beside("causality", "oracle"),
            (-CLOSE - 1e-12, CLOSE),
        ),
        *(
            _difference(f"LRE edits are better than {name}", everywhere, higher, beside("causality", method))
            for method, name in edits.items()
        ),
    ]


def _late_layers(records: Sequence[TrialRecord], finding: str, paper: str, drops: bool) -> Row:
    """Return whether faithfulness at the last layer is well below its peak.

    Layers at which s is o itself are left out.
    """
    kept = analysis.on_most(records, "layers")
    identity = analysis.at_identity(kept)
    layers = [layer for layer in analysis.layers_of(kept) if layer not in identity]
    comparison = f"at least {DROP} below" if drops else f"less than {DROP} below"
    at = analysis.throughout(analysis.sweep(kept, analysis.faithfulness, "layer", layers))
    means = {layer: score.value for layer, scores in at.items() if (score := analysis.overall(scores))}
    if len(means) < 2:
        return _row(finding, paper, f"the last layer is {comparison} the peak")
    peak, last = max(means, key=lambda layer: means[layer]), layers[-1]
    which = "the last" if drops else "the last at which s is not o itself"
    criterion = f"layer {last}, {which}, is {comparison} the peak, layer {peak}"
    region = (-math.inf, -DROP) if drops else (-DROP, math.inf)
    return _difference(finding, paper, criterion, (at[last], at[peak]), region)
