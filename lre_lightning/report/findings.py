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
from lre_lightning.report.analysis import METHODS
from lre_lightning.report.tables import Row, Table, cell_text

FEW = 10
"""Number of relations below which nothing is said on a finding."""
DROP = 0.2
"""Distance of the last layer below the peak from which faithfulness counts as dropping."""

Pairs = Sequence[tuple[float, float]]
"""For every relation a value and what it is compared with."""


def findings(records: Sequence[TrialRecord], bare: Sequence[TrialRecord] = ()) -> Table:
    """Return the paper's findings and whether the results of an LM agree; `bare` are those with the template ``{}``."""
    return Table(
        "findings",
        f"The paper's findings and whether the results of {analysis.lm_of(records)} agree, at the layers and ranks of "
        "the fit unless the criterion says otherwise. Values are means over relations unless the criterion says "
        f"otherwise; relations are those that meet the criterion by themselves. Fewer than {FEW} relations are too few "
        "to tell. There is no difference where two values are equal as shown, or 0 is in the 95% interval of their "
        "difference (bootstrap over relations).",
        ("finding", "holds", "value", "compared with", "relations", "criterion", "in the paper"),
        (
            *_on_agreement(records),
            *_on_beta(records),
            *_on_baselines(records),
            _late_layers(records, "Faithfulness drops in late layers", "plummets after layer 17 of 28", drops=True),
            _late_layers(
                bare, "It does not without relation-specific text", "keeps improving in later layers", drops=False
            ),
        ),
    )


def _row(
    finding: str,
    paper: str,
    criterion: str,
    value: float | None,
    other: float | None,
    count: int,
    holds: Callable[[float, float], bool] = operator.gt,
    differ: Callable[[], bool] = lambda: True,
    met: int | None = None,
) -> Row:
    """Return a row of the table on `count` relations, `met` of which meet the criterion by themselves.

    Without both numbers the finding was not measured.
    """
    if value is None or other is None:
        return (finding, "not measured", None, None, None, criterion, paper)
    if count < FEW:
        verdict = "too few to tell"
    elif not differ():
        verdict = "no difference"
    else:
        verdict = "yes" if holds(value, other) else "no"
    relations = str(count) if met is None else f"{met} of {count}"
    return (finding, verdict, value, other, relations, criterion, paper)


def _on_means(
    finding: str,
    paper: str,
    criterion: str,
    pairs: Pairs,
    meets: Callable[[float, float], bool] = operator.gt,
    least: float = 0,
) -> Row:
    """Return the row on the means of two scores, of which the one is higher in at least a fraction of the relations.

    Another criterion than that, `meets`, is one on which the means agree or not, whatever their difference.
    """
    if not pairs:
        return _row(finding, paper, criterion, None, None, 0)
    one, other = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    met = sum(starmap(meets, pairs))

    def holds(one: float, other: float) -> bool:
        return meets(one, other) and met >= least * len(pairs)

    def differ() -> bool:
        even = cell_text(one) == cell_text(other) or analysis.near_zero(np.array(pairs), lambda at: np.diff(at).mean())
        return meets is not operator.gt or not even

    return _row(finding, paper, criterion, one, other, len(pairs), holds, differ, met)


def _on_agreement(records: Sequence[TrialRecord]) -> list[Row]:
    pairs = analysis.paired(records, analysis.causality, analysis.faithfulness)
    chosen = [reselect(records, "causality"), reselect(records, "faithfulness")]
    by_causality, by_faithfulness = map(analysis.agreement, chosen)

    def differ() -> bool:
        scores = np.hstack([analysis.paired(group, analysis.causality, analysis.faithfulness) for group in chosen])
        return not analysis.near_zero(scores, lambda at: np.subtract(*np.corrcoef(at.T)[[0, 2], [1, 3]]))

    own = cell_text(analysis.agreement(records))
    return [
        _row(
            "Faithfulness is strongly correlated with causality",
            "R = 0.84",
            "Pearson's R over relations is at least 0.7",
            analysis.agreement(records),
            0.7,
            len(pairs),
            operator.ge,
        ),
        _row(
            "The correlation is weaker with layer and rank chosen by faithfulness",
            "R = 0.84 against 0.74",
            "with layer and rank chosen after the last trial, R is higher by causality than by faithfulness; it is "
            f"{own} with those of the fit",
            by_causality,
            by_faithfulness,
            len(pairs),
            differ=differ,
        ),
        _on_means(
            "Causality is higher than faithfulness",
            "for almost all relations",
            "causality is above faithfulness in at least 90% of the relations",
            pairs,
            least=0.9,
        ),
    ]


def _on_beta(records: Sequence[TrialRecord]) -> list[Row]:
    scores = analysis.beta_scores(records)
    scores = scores if len(scores) > 1 else []
    count = len(analysis.per_relation(records, analysis.faithfulness))
    return [
        _row(
            "β above 1 makes faithfulness agree best with causality",
            "β = 2.25",
            "the β of the highest R is above 1",
            analysis.best_beta(scores),
            1.0,
            count,
        ),
        _row(
            "β above 1 is the most faithful",
            "0.59 at β = 2.25, 0.43 at 1",
            "the β of the highest mean faithfulness is above 1",
            analysis.most_faithful_beta(scores),
            1.0,
            count,
        ),
        _on_means(
            "W underestimates how much the object changes with the subject",
            "ratio from 2.5 to 4.3",
            "the mean ratio of change to estimate is above 1",
            [(mean, 1.0) for mean, _ in analysis.underestimation(records).values()],
        ),
    ]


def _on_baselines(records: Sequence[TrialRecord]) -> list[Row]:
    def close(one: float, other: float) -> bool:
        return round(abs(one - other), 12) <= 0.1

    higher, everywhere = "the mean over relations is higher", "in every category"
    faithful = partial(analysis.paired, records, analysis.faithfulness)
    causal = partial(analysis.paired, records, analysis.causality)
    edits = METHODS["causality"]
    match = "LRE edits match the oracle, s' in place of s"
    return [
        _on_means("LRE is better than a random guess", "on all relations", higher, faithful(analysis.random_guess)),
        *(
            _on_means(f"LRE is more faithful than {name}", everywhere, higher, faithful(score))
            for name, score in METHODS["faithfulness"].items()
            if name != "LRE"
        ),
        _on_means(match, "closely, across layers", "the means differ by at most 0.1", causal(edits["oracle"]), close),
        *(
            _on_means(f"LRE edits are better than {name}", everywhere, higher, causal(edits[method]))
            for method, name in {"unembedding": "the unembedding's row of o'", "object": "o'"}.items()
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
        return _row(finding, paper, f"the last layer is {comparison} the peak", None, None, 0)

    def meets(end: float, top: float) -> bool:
        return (round(top - end, 12) >= DROP) == drops

    peak, last = max(means, key=lambda layer: means[layer]), layers[-1]
    met = sum(meets(end, max(at[layer][name][0] for layer in layers)) for name, (end, _) in at[last].items())
    which = "the last" if drops else "the last at which s is not o itself"
    criterion = f"layer {last}, {which}, is {comparison} the peak, layer {peak}"
    return _row(finding, paper, criterion, means[last], means[peak], len(at[last]), meets, met=met)
