"""The table of latent knowledge under distraction (the paper's table "attribute-lens")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from lre_lightning.errors import LREError
from lre_lightning.lens.distraction import LENS, LM, OTHER_LENS, LatentKnowledge
from lre_lightning.metrics.functional import KS
from lre_lightning.records.summary import spread
from lre_lightning.report.tables import Cell, Row, Table

_Counts = Callable[[LatentKnowledge], Sequence[float]]
_PROMPTS = {
    "repetition": ("Repetition-distracted prompt", "RD"),
    "instruction": ("Instruction-distracted prompt", "ID"),
}


def distraction_table(results: Sequence[LatentKnowledge], average: Literal["micro", "macro"] = "micro") -> Table:
    """Return the recall of what the LM knows, in prompts that distract it (table "attribute-lens").

    Args:
        results: Results of `latent_knowledge` for one LM, with either kind of prompts or with both.
        average: ``"micro"`` weights every prompt equally, ``"macro"`` every relation, with standard deviations over
            relations.

    Returns:
        The paper's rows, followed by controls: the lens of another relation, the best answer that is the same for all
        subjects of a relation, and guesses among the relation's objects.

    Raises:
        LREError: If the results have different k, or `average` is unknown.
    """
    if average not in ("micro", "macro"):
        raise LREError(f"average must be 'micro' or 'macro', got {average!r}")
    ks = {result.ks for result in results}
    if len(ks) > 1:
        raise LREError(f"results with different k do not fit into one table: {', '.join(map(str, sorted(ks)))}")
    columns = next(iter(ks), KS)
    rows: list[Row] = []
    controls: list[Row] = []
    for kind, (prompt, short) in _PROMPTS.items():
        group = [result for result in results if result.distraction == kind]
        if group:
            rows += [
                _reader(group, prompt, LM, average),
                _reader(group, f"Attribute lens on {short} prompts", LENS, average),
            ]
            controls += [
                _reader(group, f"Lens of another relation on {short} prompts", OTHER_LENS, average),
                _row(group, f"Most frequent objects, {short} prompts", lambda result: result.most_frequent, average),
                _row(group, f"Random guess, {short} prompts", lambda result: result.guessed, average),
            ]
    over = "prompts" if average == "micro" else "relations, with standard deviations"
    return Table(
        "attribute_lens" if average == "micro" else "attribute_lens_macro",
        f"Recall of the attribute lens on prompts that distract {results[0].model if results else 'the LM'}, over "
        "facts that it knows undistracted: how often the first token of the true object, or of the false one, is among "
        f"the k most likely. Means over {over}.",
        ("condition", *(f"R@{k}" for k in columns), f"false object R@{columns[0]}", "prompts"),
        (*rows, *controls),
        totals=len(controls),
    )


def _reader(results: Sequence[LatentKnowledge], label: str, name: str, average: str) -> Row:
    """Return the row of the LM or of a lens, which may answer the false object too."""
    found, false = (lambda result: result.found.get(name, ())), (lambda result: result.false_found.get(name, ()))
    return _row(results, label, found, average, false)


def _row(
    results: Sequence[LatentKnowledge], label: str, found: _Counts, average: str, false: _Counts = lambda result: ()
) -> Row:
    counted = [result for result in results if result.known and found(result)]
    recalls = [_mean(counted, found, i, average) for i in range(len(results[0].ks))]
    return (label, *recalls, _mean(counted, false, 0, average), sum(result.known for result in counted))


def _mean(results: Sequence[LatentKnowledge], counts: _Counts, index: int, average: str) -> Cell:
    """Return the fraction of the known facts that were found at one k; None where it was not counted."""
    if not results or not all(map(counts, results)):
        return None
    by_relation: dict[str, list[LatentKnowledge]] = {}
    for result in results:
        by_relation.setdefault("" if average == "micro" else result.relation, []).append(result)
    fractions = [
        sum(counts(result)[index] for result in group) / sum(result.known for result in group)
        for group in by_relation.values()
    ]
    return fractions[0] if average == "micro" else spread(fractions)
