"""The table of latent knowledge under distraction (the paper's table "attribute-lens")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from lre_lightning.errors import LREError
from lre_lightning.lens.distraction import GENERIC_LENS, KS, LENS, LM, OTHER_LENS, LatentKnowledge
from lre_lightning.report.tables import Cell, Row, Table
from lre_lightning.statistics.estimates import spread

_Counts = Callable[[LatentKnowledge], Sequence[float]]
_PROMPTS = {
    "repetition": ("Repetition-distracted prompt", "RD"),
    "instruction": ("Instruction-distracted prompt", "ID"),
}


def distraction_table(results: Sequence[LatentKnowledge], average: Literal["micro", "macro"] = "micro") -> Table:
    """Return the recall of what the LM knows, in prompts that distract it (table "attribute-lens").

    The results are those of `latent_knowledge` for one LM, with either kind of prompts or with both. An average
    ``"micro"`` weights every prompt equally, ``"macro"`` every relation. The paper's rows are followed by controls: the
    lens of another relation, the best answer that is the same for all subjects of a relation, and guesses among the
    relation's objects.
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
                _row(group, prompt, LM, average),
                _row(group, f"Attribute lens on {short} prompts", LENS, average),
            ]
            if any(GENERIC_LENS in result.found for result in group):
                controls.append(_row(group, f"Jacobian lens on {short} prompts", GENERIC_LENS, average))
            controls += [
                _row(group, f"Lens of another relation on {short} prompts", OTHER_LENS, average),
                _row(group, f"Most frequent objects, {short} prompts", lambda result: result.most_frequent, average),
                _row(group, f"Random guess, {short} prompts", lambda result: result.guessed, average),
            ]
    undistracted = "".join(_undistracted(results, kind) for kind in _PROMPTS)
    over = "prompts" if average == "micro" else "relations, with standard deviations"
    return Table(
        "attribute_lens" if average == "micro" else "attribute_lens_macro",
        f"Recall of the attribute lens on prompts that distract {results[0].model if results else 'the LM'}, over "
        "facts that it knows undistracted: how often the first token of the true object, or of the false one, is among "
        f"the k most likely. Means over {over}.{undistracted}",
        ("condition", *(f"R@{k}" for k in columns), f"false object R@{columns[0]}", "prompts"),
        (*rows, *controls),
        totals=len(controls),
    )


def _undistracted(results: Sequence[LatentKnowledge], kind: str) -> str:
    """Return, after a space, that prompts of a kind do not distract the LM, if it says more truths than falsehoods."""
    group = [result for result in results if result.distraction == kind and result.ks[0] == 1]
    true, false = sum(result.found[LM][0] for result in group), sum(result.false_found[LM][0] for result in group)
    if true <= false:
        return ""
    known, prompt = sum(result.known for result in group), _PROMPTS[kind][0].lower()
    return f" The {prompt}s do not distract it: it says the truth {true} times of {known}, the falsehood {false} times."


def _row(results: Sequence[LatentKnowledge], label: str, reader: str | _Counts, average: str) -> Row:
    """Return the row of the LM or of a lens, which may answer the false object too, or of a control."""
    true = reader if callable(reader) else lambda result: result.found.get(reader, ())
    counted = [result for result in results if result.known and true(result)]
    false = [() if callable(reader) else result.false_found.get(reader, ())[:1] for result in counted]
    columns = [[true(result)[i] for result in counted] for i in range(len(results[0].ks))]
    columns.append([count for counts in false for count in counts])
    return (label, *(_mean(counted, column, average) for column in columns), sum(result.known for result in counted))


def _mean(results: Sequence[LatentKnowledge], counts: Sequence[float], average: str) -> Cell:
    """Return the fraction of the known facts that were found at one k; None where it was not counted."""
    if not results or len(counts) < len(results):
        return None
    groups: dict[str, list[tuple[float, int]]] = {}
    for result, count in zip(results, counts, strict=True):
        groups.setdefault("" if average == "micro" else result.relation, []).append((count, result.known))
    fractions = [sum(count for count, _ in group) / sum(known for _, known in group) for group in groups.values()]
    return fractions[0] if average == "micro" else spread(fractions)
