"""The paper's findings, and whether records of runs agree with them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap

import numpy as np

from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import reselect
from lre_lightning.report import analysis
from lre_lightning.report.analysis import METHODS, Array, Score
from lre_lightning.report.tables import Row, Table, cell_text

FEW = 10
"""Number of relations below which nothing is said on a finding."""
DROP = 0.2
"""Distance of the last layer below the peak from which faithfulness counts as dropping."""

Criterion = Callable[[float, float], bool]
"""A test of a value, given what it is compared with."""
NOT_MEASURED = (None, None, 0)


def findings(records: Sequence[TrialRecord], bare: Sequence[TrialRecord] = ()) -> Table:
    """Return the paper's findings and whether the results of an LM agree; `bare` are those with the template ``{}``."""
    late = "Faithfulness drops in late layers", "plummets after layer 17 of 28"
    late_in_bare = "It does not without relation-specific text", "keeps improving in later layers"
    return Table(
        "findings",
        f"The paper's findings and whether the results of {analysis.lm_of(records)} agree. Unless the criterion says "
        "otherwise, values are means over relations at the layers and ranks of the fit; relations are those that meet "
        f"the criterion by themselves. Fewer than {FEW} are too few to tell. There is no difference between values "
        "that are equal as shown, or where 0 is in the 95% interval of their difference (bootstrap over relations); of "
        "a β, the score is compared with that at 1.",
        ("finding", "holds", "value", "compared with", "relations", "criterion", "in the paper"),
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
    measured: tuple[float | None, float | None, int],
    holds: Criterion = operator.gt,
    differ: Callable[[], bool] = lambda: True,
    met: int | None = None,
) -> Row:
    """Return a row of the table, given a value, what it is compared with, and the number of relations.

    Without both numbers the finding was not measured. Of the relations, `met` meet the criterion by themselves.
    """
    value, other, count = measured
    if value is None or other is None:
        return (finding, "not measured", None, None, None, criterion, paper)
    if count < FEW:
        verdict = "too few to tell"
    elif not differ():
        verdict = "no difference"
    else:
        verdict = "yes" if holds(value, other) else "no"
    return (finding, verdict, value, other, str(count) if met is None else f"{met} of {count}", criterion, paper)


def _higher(
    finding: str,
    paper: str,
    records: Sequence[TrialRecord],
    scores: tuple[Score, Score],
    criterion: str = "the mean over relations is higher",
    least: float = 0,
) -> Row:
    """Return the row on one score being higher than the other, also in at least a fraction of the relations."""
    pairs = np.array(analysis.paired(records, *scores))
    if not len(pairs):
        return _row(finding, paper, criterion, NOT_MEASURED)
    (one, other), met = pairs.mean(0).tolist(), int((pairs[:, 0] > pairs[:, 1]).sum())

    def differ() -> bool:
        shown = cell_text(one) != cell_text(other)
        return shown and not analysis.near_zero(pairs, lambda drawn: np.diff(drawn).mean())

    def higher(one: float, other: float) -> bool:
        return one > other and met >= least * len(pairs)

    return _row(finding, paper, criterion, (one, other, len(pairs)), higher, differ, met)


def _on_agreement(records: Sequence[TrialRecord]) -> list[Row]:
    both = analysis.causality, analysis.faithfulness
    count = len(analysis.paired(records, *both))
    chosen = [reselect(records, "causality"), reselect(records, "faithfulness")]
    by_causality, by_faithfulness = map(analysis.agreement, chosen)
    own = analysis.agreement(records)

    def differ() -> bool:
        scores = np.hstack([analysis.paired(group, *both) for group in chosen])
        shown = cell_text(by_causality) != cell_text(by_faithfulness)
        return shown and not analysis.near_zero(scores, _r_difference)

    return [
        _row(
            "Faithfulness is strongly correlated with causality",
            "R = 0.84",
            "Pearson's R over relations is at least 0.7",
            (own, 0.7, count),
            operator.ge,
        ),
        _row(
            "The correlation is weaker with layer and rank chosen by faithfulness",
            "R = 0.84 against 0.74",
            "with layer and rank chosen after the last trial, R is higher by causality than by faithfulness; it is "
            f"{cell_text(own)} with those of the fit",
            (by_causality, by_faithfulness, count),
            differ=differ,
        ),
        _higher(
            "Causality is higher than faithfulness for almost all relations",
            "for almost all relations",
            records,
            both,
            "causality is above faithfulness in at least 90% of the relations",
            least=0.9,
        ),
    ]


def _r_difference(scores: Array) -> float:
    """Return how much stronger the first two columns are correlated than the next two."""
    return float(np.subtract(*np.corrcoef(scores.T)[[0, 2], [1, 3]]))


def _on_beta(records: Sequence[TrialRecord]) -> list[Row]:
    scores = analysis.beta_scores(records)
    scores = scores if len(scores) > 1 else []
    count = len(analysis.per_relation(records, analysis.faithfulness))
    ratios = [mean for mean, _ in analysis.underestimation(records).values()]
    correlated, faithful = analysis.best_beta(scores), analysis.most_faithful_beta(scores)

    def differ(beta: float | None, statistic: Callable[[Array], float]) -> bool:
        at = [partial(analysis.faithfulness, beta=beta) for beta in (beta, 1.0)]
        best, plain = [analysis.paired(records, score, analysis.causality) for score in at]
        if beta is None or beta <= 1 or len(best) != len(plain):
            return True  # below 1, or 1 is not on all grids
        return not analysis.near_zero(np.hstack([best, plain]), statistic)

    return [
        _row(
            "β above 1 makes faithfulness agree best with causality",
            "β = 2.25",
            "the β of the highest R is above 1",
            (correlated, 1.0, count),
            differ=partial(differ, correlated, _r_difference),
        ),
        _row(
            "β above 1 is the most faithful",
            "0.59 at β = 2.25, 0.43 at 1",
            "the β of the highest mean faithfulness is above 1",
            (faithful, 1.0, count),
            differ=partial(differ, faithful, lambda drawn: (drawn[:, 0] - drawn[:, 2]).mean()),
        ),
        _row(
            "W underestimates how much the object changes with the subject",
            "ratio from 2.5 to 4.3",
            "the mean ratio of change to estimate is above 1",
            (statistics.fmean(ratios), 1.0, len(ratios)) if ratios else NOT_MEASURED,
            met=sum(ratio > 1 for ratio in ratios),
        ),
    ]


def _on_baselines(records: Sequence[TrialRecord]) -> list[Row]:
    def close(one: float, other: float) -> bool:
        return round(abs(one - other), 12) <= 0.1

    faithful, causal = METHODS["faithfulness"], METHODS["causality"]
    guess, everywhere = (faithful["LRE"], analysis.random_guess), "in every category"
    pairs = analysis.paired(records, causal["LRE"], causal["oracle"])
    edited, answered = map(statistics.fmean, zip(*pairs, strict=True)) if pairs else (None, None)
    edits = {"unembedding": "the unembedding's row of o'", "object": "o'"}
    return [
        _higher("LRE is better than a random guess", "on all relations", records, guess),
        *(
            _higher(f"LRE is more faithful than {name}", everywhere, records, (faithful["LRE"], score))
            for name, score in faithful.items()
            if name != "LRE"
        ),
        _row(
            "LRE edits match the oracle, s' in place of s",
            "closely, across layers",
            "the means differ by at most 0.1",
            (edited, answered, len(pairs)),
            close,
            met=sum(starmap(close, pairs)),
        ),
        *(
            _higher(f"LRE edits are better than {name}", everywhere, records, (causal["LRE"], causal[method]))
            for method, name in edits.items()
        ),
    ]


def _late_layers(records: Sequence[TrialRecord], finding: str, paper: str, drops: bool) -> Row:
    """Return whether faithfulness at the last layer is well below its peak.

    Without relation-specific text the prompt ends with the subject, so that s at the LM's last layer is o itself: the
    layer before is the last informative one.
    """
    kept = analysis.on_most(records, "layers")
    layers = analysis.layers_of(kept)[: None if drops else -1]
    comparison = f"at least {DROP} below" if drops else f"less than {DROP} below"
    at = analysis.sweep(kept, analysis.faithfulness, "layer", layers)
    means = {layer: mean[0] for layer, found in at.items() if (mean := analysis.overall(found))}
    if len(means) < 2:
        return _row(finding, paper, f"the last layer is {comparison} the peak", NOT_MEASURED)

    def meets(end: float, top: float) -> bool:
        return (round(top - end, 12) >= DROP) == drops

    peak, last = max(means, key=lambda layer: means[layer]), layers[-1]
    met = sum(meets(end, max(at[layer][name][0] for layer in layers)) for name, (end, _) in at[last].items())
    which = "the last" if drops else "the last at which s is not o itself"
    criterion = f"layer {last}, {which}, is {comparison} the peak, layer {peak}"
    return _row(finding, paper, criterion, (means[last], means[peak], len(at[last])), meets, met=met)
