"""The paper's findings, and whether records of runs show them too."""

from __future__ import annotations

import statistics
from collections.abc import Sequence, Sized

from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import reselect
from lre_lightning.report import analysis
from lre_lightning.report.analysis import Score
from lre_lightning.report.tables import Row, Table, lm_of


def findings(records: Sequence[TrialRecord], bare: Sequence[TrialRecord] = ()) -> Table:
    """The paper's findings, and what the records say to them.

    Args:
        records: Records of one LM.
        bare: Those with prompts without relation-specific text.
    """
    return Table(
        "findings",
        f"The paper's findings and what the results of {lm_of(records)} say. Values are means over relations unless "
        "the criterion says otherwise; relations are those that meet the criterion by themselves.",
        ("finding", "holds", "value", "compared with", "relations", "criterion", "in the paper"),
        (
            *_agreement_findings(records),
            *_beta_findings(records),
            _compared(
                records,
                "LRE is better than a random guess",
                "on all relations",
                analysis.faithfulness,
                analysis.random_guess,
            ),
            *(
                _compared(
                    records, f"LRE is more faithful than {name}", "in every category", analysis.faithfulness, score
                )
                for name, score in analysis.faithfulness_methods().items()
                if name != "LRE"
            ),
            *_edit_findings(records),
            _late_layers(records, "Faithfulness drops in late layers", "plummets after layer 17 of 28", drops=True),
            _late_layers(
                bare, "It does not without relation-specific text", "keeps improving in later layers", drops=False
            ),
        ),
    )


_Measured = tuple[float, float | None, str | None, bool]
"""Value, what it is compared with, in how many relations the criterion is met, and whether it is met."""


def _finding(finding: str, paper: str, criterion: str, measured: _Measured | None) -> Row:
    if measured is None:
        return (finding, "not measured", None, None, None, criterion, paper)
    *numbers, holds = measured
    return (finding, "yes" if holds else "no", *numbers, criterion, paper)


def _agreement_findings(records: Sequence[TrialRecord]) -> list[Row]:
    pairs = analysis.paired(records, analysis.causality, analysis.faithfulness)
    by_causality, by_faithfulness = (
        analysis.agreement(reselect(records, name)) for name in ("causality", "faithfulness")
    )
    agreement = analysis.agreement(records)
    above = sum(causal > faithful for causal, faithful in pairs)
    return [
        _finding(
            "Faithfulness is strongly correlated with causality",
            "R = 0.84",
            "Pearson's R over relations is at least 0.7",
            None if agreement is None else (agreement, 0.7, None, agreement >= 0.7),
        ),
        _finding(
            "The correlation is weaker with layer and rank chosen by faithfulness",
            "R = 0.84 against 0.74",
            "R chosen by causality is higher than R chosen by faithfulness",
            None
            if by_causality is None or by_faithfulness is None
            else (by_causality, by_faithfulness, None, by_causality > by_faithfulness),
        ),
        _finding(
            "Causality is higher than faithfulness",
            "for almost all relations",
            "causality is above faithfulness in at least 90% of the relations",
            (*_means(pairs), _out_of(above, pairs), above >= 0.9 * len(pairs)) if pairs else None,
        ),
    ]


def _means(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.fmean(one for one, _ in pairs), statistics.fmean(other for _, other in pairs)


def _out_of(count: int, relations: Sized) -> str:
    return f"{count} of {len(relations)}"


def _beta_findings(records: Sequence[TrialRecord]) -> list[Row]:
    lines = analysis.beta_scores(records)
    agreeing, faithful = (
        (analysis.best_beta(lines), analysis.most_faithful_beta(lines)) if len(lines) > 1 else (None, None)
    )
    ratios = [mean for mean, _ in analysis.underestimation(records).values()]
    larger = sum(ratio > 1 for ratio in ratios)
    ratio = statistics.fmean(ratios) if ratios else None
    return [
        _finding(
            "β above 1 makes faithfulness agree best with causality",
            "β = 2.25",
            "the β of the highest R is above 1",
            None if agreeing is None else (agreeing, 1.0, None, agreeing > 1),
        ),
        _finding(
            "β above 1 is the most faithful",
            "0.59 at β = 2.25, 0.43 at 1",
            "the β of the highest mean faithfulness is above 1",
            None if faithful is None else (faithful, 1.0, None, faithful > 1),
        ),
        _finding(
            "W underestimates how much the object changes with the subject",
            "ratio from 2.5 to 4.3",
            "the mean ratio of change to estimate is above 1",
            None if ratio is None else (ratio, 1.0, _out_of(larger, ratios), ratio > 1),
        ),
    ]


def _edit_findings(records: Sequence[TrialRecord]) -> list[Row]:
    methods = analysis.causality_methods()
    pairs = analysis.paired(records, analysis.causality, methods["oracle"])
    close = sum(_within(0.1, one - other) for one, other in pairs)
    matched = (*_means(pairs), _out_of(close, pairs)) if pairs else None
    return [
        _finding(
            "LRE edits match the oracle, s' in place of s",
            "closely, across layers",
            "the means differ by at most 0.1",
            None if matched is None else (*matched, _within(0.1, matched[0] - matched[1])),
        ),
        _compared(
            records,
            "LRE edits are better than the unembedding's row of o'",
            "in every category",
            analysis.causality,
            methods["unembedding"],
        ),
        _compared(records, "LRE edits are better than o'", "in every category", analysis.causality, methods["object"]),
    ]


def _within(limit: float, difference: float) -> bool:
    return round(abs(difference), 12) <= limit


def _compared(records: Sequence[TrialRecord], finding: str, paper: str, score: Score, baseline: Score) -> Row:
    """Whether one score's mean over relations is above another's."""
    pairs = analysis.paired(records, score, baseline)
    measured: _Measured | None = None
    if pairs:
        mean, other = _means(pairs)
        measured = (mean, other, _out_of(sum(one > two for one, two in pairs), pairs), mean > other)
    return _finding(finding, paper, "the mean over relations is higher", measured)


DROP = 0.2
"""How far below the peak the last layer lies where faithfulness drops."""


def _late_layers(records: Sequence[TrialRecord], finding: str, paper: str, drops: bool) -> Row:
    """Whether faithfulness at the last layer is well below its peak, over relations with the same layers.

    Where the prompt ends in the subject, s at the LM's last layer is o itself: the layer before is the last that tells.
    """
    kept = analysis.on_most_layers(records)
    layers = analysis.layers_of(kept)[: None if drops else -1]
    comparison = f"at least {DROP} below" if drops else f"less than {DROP} below"
    at = {layer: analysis.per_relation(kept, analysis.faithfulness_at(layer)) for layer in layers}
    if len(layers) < 2 or not all(at.values()):
        return _finding(finding, paper, f"the last layer is {comparison} the peak", None)
    means = {layer: statistics.fmean(mean for mean, _ in found.values()) for layer, found in at.items()}
    peak, last = max(means, key=lambda layer: means[layer]), layers[-1]

    def meets(top: float, end: float) -> bool:
        return (round(top - end, 12) >= DROP) == drops

    relations = at[last]
    met = sum(meets(max(at[layer][r][0] for layer in layers), at[last][r][0]) for r in relations)
    which = "the last" if drops else "the last at which s is not o itself"
    criterion = f"layer {last}, {which}, is {comparison} the peak, layer {peak}"
    measured = (means[last], means[peak], _out_of(met, relations), meets(means[peak], means[last]))
    return _finding(finding, paper, criterion, measured)
