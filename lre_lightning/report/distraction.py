"""The table of latent knowledge under distraction (the paper's table "attribute-lens")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from lre_lightning.errors import LREError
from lre_lightning.lens.distraction import LENS, LM, OTHER_LENS, LatentKnowledge
from lre_lightning.metrics.recall import KS
from lre_lightning.records.summary import spread
from lre_lightning.report.tables import Cell, Row, Table

_Counts = Callable[[LatentKnowledge], Sequence[float]]
_PROMPTS = {
    "repetition": ("Repetition-distracted prompt", "RD"),
    "instruction": ("Instruction-distracted prompt", "ID"),
}


def distraction_table(results: Sequence[LatentKnowledge], average: Literal["micro", "macro"] = "micro") -> Table:
    """Recall of what the LM knows, in prompts that distract it (table "attribute-lens").

    Args:
        results: What `latent_knowledge` found for one LM, with either kind of prompts or with both.
        average: ``"micro"`` weighs each prompt alike, ``"macro"`` each relation that has one, with standard deviations
            over relations.

    Returns:
        The paper's rows, and below them the controls: the lens of another relation, the best answer that is the same
        for all subjects of a relation, and guesses among the relation's objects.

    Raises:
        LREError: If the results have different k, or `average` is unknown.
    """
    if average not in ("micro", "macro"):
        raise LREError(f"average must be 'micro' or 'macro', got {average!r}")
    ks = {result.ks for result in results}
    if len(ks) > 1:
        raise LREError(f"results with different k do not fit into one table: {', '.join(map(str, sorted(ks)))}")
    kinds = [kind for kind in _PROMPTS if any(result.distraction == kind for result in results)]
    rows, controls = (
        [
            _row(label, [result for result in results if result.distraction == kind], found, false, average)
            for kind in kinds
            for label, found, false in lines(*_PROMPTS[kind])
        ]
        for lines in (_lines, _controls)
    )
    columns = next(iter(ks), KS)
    over = "prompts" if average == "micro" else "relations, with standard deviations"
    return Table(
        "attribute_lens" if average == "micro" else "attribute_lens_macro",
        f"The performance of the attribute lens on prompts that distract {results[0].model if results else 'the LM'}, "
        "over facts that it knows undistracted: how often the first token of the true object, or of the false one, is "
        f"among the k most likely. Means over {over}.",
        ("condition", *(f"R@{k}" for k in columns), f"false object R@{columns[0]}", "prompts"),
        (*rows, *controls),
        totals=len(controls),
    )


_Line = tuple[str, _Counts, _Counts]


def _lines(prompt: str, short: str) -> list[_Line]:
    """The paper's rows for one kind of prompts: label, and how true and false objects are counted."""
    return [(prompt, *_reader(LM)), (f"Attribute lens on {short} prompts", *_reader(LENS))]


def _controls(_: str, short: str) -> list[_Line]:
    return [
        (f"Lens of another relation on {short} prompts", *_reader(OTHER_LENS)),
        (f"Most frequent objects, {short} prompts", lambda result: result.most_frequent, lambda result: ()),
        (f"Random guess, {short} prompts", lambda result: result.guessed, lambda result: ()),
    ]


def _reader(name: str) -> tuple[_Counts, _Counts]:
    return lambda result: result.found.get(name, ()), lambda result: result.false_found.get(name, ())


def _row(label: str, results: Sequence[LatentKnowledge], found: _Counts, false: _Counts, average: str) -> Row:
    counted = [result for result in results if result.known and found(result)]
    recalls = [_mean(counted, found, i, average) for i in range(len(results[0].ks))]
    return (label, *recalls, _mean(counted, false, 0, average), sum(result.known for result in counted))


def _mean(results: Sequence[LatentKnowledge], counts: _Counts, index: int, average: str) -> Cell:
    """Share of the known facts that were found at one k; None where it was not counted."""
    if not results or not all(map(counts, results)):
        return None
    relations = dict.fromkeys(result.relation for result in results)
    apart = [[result for result in results if result.relation == name] for name in relations]
    groups = [results] if average == "micro" else apart
    shares = [sum(counts(r)[index] for r in group) / sum(r.known for r in group) for group in groups]
    return shares[0] if average == "micro" else spread(shares)
