"""The paper's findings, and whether records of runs agree with them."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from itertools import starmap

from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import reselect
from lre_lightning.report import analysis
from lre_lightning.report.analysis import Score
from lre_lightning.report.tables import Row, Table

DROP = 0.2
"""Distance of the last layer below the peak from which faithfulness counts as dropping."""

Criterion = Callable[[float, float], bool]
"""A test of a value, given what it is compared with."""


def findings(records: Sequence[TrialRecord], bare: Sequence[TrialRecord] = ()) -> Table:
    """Return the paper's findings and whether the results of an LM agree; `bare` are those with the template ``{}``."""
    return Table(
        "findings",
        f"The paper's findings and whether the results of {analysis.lm_of(records)} agree. Values are means over "
        "relations unless the criterion says otherwise; relations are those that meet the criterion by themselves.",
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
    relations: str | None = None,
    holds: Criterion = operator.gt,
) -> Row:
    """Return a row of the table; without both numbers the finding was not measured."""
    if value is None or other is None:
        return (finding, "not measured", None, None, None, criterion, paper)
    return (finding, "yes" if holds(value, other) else "no", value, other, relations, criterion, paper)


def _means(
    records: Sequence[TrialRecord], score: Score, baseline: Score, meets: Criterion = operator.gt
) -> tuple[float | None, float | None, str | None]:
    """Return the means of two scores over relations, and how many relations meet the criterion."""
    pairs = analysis.paired(records, score, baseline)
    if not pairs:
        return None, None, None
    one, other = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return one, other, f"{sum(starmap(meets, pairs))} of {len(pairs)}"


def _on_agreement(records: Sequence[TrialRecord]) -> list[Row]:
    by_causality, by_faithfulness = (
        analysis.agreement(reselect(records, criterion)) for criterion in ("causality", "faithfulness")
    )
    pairs = analysis.paired(records, analysis.causality, analysis.faithfulness)
    almost_all = sum(starmap(operator.gt, pairs)) >= 0.9 * len(pairs)
    return [
        _row(
            "Faithfulness is strongly correlated with causality",
            "R = 0.84",
            "Pearson's R over relations is at least 0.7",
            analysis.agreement(records),
            0.7,
            holds=operator.ge,
        ),
        _row(
            "The correlation is weaker with layer and rank chosen by faithfulness",
            "R = 0.84 against 0.74",
            "R chosen by causality is higher than R chosen by faithfulness",
            by_causality,
            by_faithfulness,
        ),
        _row(
            "Causality is higher than faithfulness",
            "for almost all relations",
            "causality is above faithfulness in at least 90% of the relations",
            *_means(records, analysis.causality, analysis.faithfulness),
            holds=lambda *_: almost_all,
        ),
    ]


def _on_beta(records: Sequence[TrialRecord]) -> list[Row]:
    scores = analysis.beta_scores(records)
    scores = scores if len(scores) > 1 else []
    ratios = [mean for mean, _ in analysis.underestimation(records).values()]
    return [
        _row(
            "β above 1 makes faithfulness agree best with causality",
            "β = 2.25",
            "the β of the highest R is above 1",
            analysis.best_beta(scores),
            1.0,
        ),
        _row(
            "β above 1 is the most faithful",
            "0.59 at β = 2.25, 0.43 at 1",
            "the β of the highest mean faithfulness is above 1",
            analysis.most_faithful_beta(scores),
            1.0,
        ),
        _row(
            "W underestimates how much the object changes with the subject",
            "ratio from 2.5 to 4.3",
            "the mean ratio of change to estimate is above 1",
            statistics.fmean(ratios) if ratios else None,
            1.0,
            f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)}",
        ),
    ]


def _on_baselines(records: Sequence[TrialRecord]) -> list[Row]:
    def close(one: float, other: float) -> bool:
        return round(abs(one - other), 12) <= 0.1

    higher, everywhere = "the mean over relations is higher", "in every category"
    faithful, causal = partial(_means, records, analysis.faithfulness), partial(_means, records, analysis.causality)
    edits = analysis.causality_methods()
    return [
        _row("LRE is better than a random guess", "on all relations", higher, *faithful(analysis.random_guess)),
        *(
            _row(f"LRE is more faithful than {name}", everywhere, higher, *faithful(score))
            for name, score in analysis.faithfulness_methods().items()
            if name != "LRE"
        ),
        _row(
            "LRE edits match the oracle, s' in place of s",
            "closely, across layers",
            "the means differ by at most 0.1",
            *causal(edits["oracle"], close),
            holds=close,
        ),
        *(
            _row(f"LRE edits are better than {name}", everywhere, higher, *causal(edits[method]))
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
    at = {layer: analysis.per_relation(kept, partial(analysis.faithfulness, layer=layer)) for layer in layers}
    if len(layers) < 2 or not all(at.values()):
        return _row(finding, paper, f"the last layer is {comparison} the peak", None, None)

    def meets(end: float, top: float) -> bool:
        return (round(top - end, 12) >= DROP) == drops

    means = {layer: statistics.fmean(mean for mean, _ in found.values()) for layer, found in at.items()}
    peak, last = max(means, key=lambda layer: means[layer]), layers[-1]
    met = sum(meets(end, max(at[layer][name][0] for layer in layers)) for name, (end, _) in at[last].items())
    which = "the last" if drops else "the last at which s is not o itself"
    criterion = f"layer {last}, {which}, is {comparison} the peak, layer {peak}"
    return _row(finding, paper, criterion, means[last], means[peak], f"{met} of {len(at[last])}", meets)
