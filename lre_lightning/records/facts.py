"""Facts one by one: the rows of the measure `lre_lightning.measures.facts.Facts`, and means of them over trials."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median_low

from lre_lightning.records.analysis import counted
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline

NAME = "facts"
COLUMNS: Mapping[str, type] = {
    "subject": str,
    "object": str,
    "template": str,
    "known": int,
    "LM's answer": str,
    "LM's probability": float,
    "LRE's answer": str,
    "LRE's probability": float,
    "token rank": int,
    "faithful": int,
    "target": str,
    "edit's answer": str,
    "success": int,
}
"""The cells of a row and their types; `Facts` says what they mean."""


@dataclass(frozen=True)
class Asked:
    """One fact in one trial: a row of the measure, and the relation and the trial that it is of."""

    relation: str
    trial: int
    subject: str
    object: str
    template: str
    known: int
    answer: str
    probability: float
    said: str
    said_probability: float
    token_rank: int
    faithful: int
    target: str
    edited: str
    success: int


@dataclass(frozen=True)
class Fact:
    """A fact over the trials that asked for it, with one template.

    Means of what counts only for known facts, and only for edited ones, are over the trials where it was: None if none.
    Answers are the most frequent ones.

    Attributes:
        relation: The relation.
        subject: The subject.
        object: The object of the data.
        template: The template.
        trials: The number of trials that asked for it.
        known: The share of them in which the LM knew it.
        probability: The LM's probability of its answer, the mean.
        answer: The LM's answer.
        said: The LRE's answer.
        said_probability: The LRE's probability of its answer, the mean.
        token_rank: The token rank of the LM's answer by the LRE, the lower median.
        faithful: The share of the known trials in which the LRE's answer was the LM's.
        target: The object that edits aimed at, of the first edit that failed if one did.
        edited: The LM's answer after that edit.
        success: The share of edits that succeeded.
    """

    relation: str
    subject: str
    object: str
    template: str
    trials: int
    known: float
    probability: float
    answer: str
    said: str
    said_probability: float
    token_rank: int
    faithful: float | None
    target: str
    edited: str
    success: float | None

    @property
    def place(self) -> dict[str, str]:
        """What numbers of a user's own are joined by."""
        return {"relation": self.relation, "subject": self.subject, "object": self.object}

    @property
    def wrong(self) -> tuple[bool, float, int, float]:
        """What facts are sorted by, the worst last: known, unfaithful, by the LRE's token rank, and not edited."""
        faithful, success = (1.0 if share is None else share for share in (self.faithful, self.success))
        return self.known > 0, 1 - faithful, self.token_rank, 1 - success


def asked(records: Iterable[TrialRecord]) -> list[Asked]:
    """Return the rows of the headline trials that were measured.

    Raises:
        LREError: If rows are none that the measure makes.
    """
    return [
        Asked(record.relation, record.trial, *row)
        for record in headline(counted(records))
        for row in record.rows_of(NAME, *COLUMNS.values())
    ]


def facts_of(records: Iterable[TrialRecord]) -> list[Fact]:
    """Return every fact once for each template, over the headline trials, in the order in which they come first."""
    groups: dict[tuple[str, ...], list[Asked]] = {}
    for row in asked(records):
        groups.setdefault((row.relation, row.subject, row.object, row.template), []).append(row)
    return [_fact(place, rows) for place, rows in groups.items()]


def _fact(place: tuple[str, ...], rows: list[Asked]) -> Fact:
    known = [row for row in rows if row.known]
    edits = sorted((row for row in rows if row.success >= 0), key=lambda row: row.success)
    of = known or rows  # where it is known, an answer to it as an unknown one says nothing of the LRE

    def commonest(answers: Iterable[str]) -> str:
        return Counter(answers).most_common(1)[0][0]

    relation, subject, object_, template = place
    return Fact(
        relation,
        subject,
        object_,
        template,
        trials=len(rows),
        known=len(known) / len(rows),
        probability=fmean(row.probability for row in of),
        answer=commonest(row.answer for row in of),
        said=commonest(row.said for row in of),
        said_probability=fmean(row.said_probability for row in of),
        token_rank=median_low(row.token_rank for row in of),
        faithful=fmean(row.faithful for row in known) if known else None,
        target=edits[0].target if edits else "",
        edited=edits[0].edited if edits else "",
        success=fmean(row.success for row in edits) if edits else None,
    )


def confusions(records: Iterable[TrialRecord]) -> dict[str, Counter[tuple[str, str]]]:
    """Count by relation what the LM says and the LRE says instead, of the known facts of all trials."""
    found: dict[str, Counter[tuple[str, str]]] = {}
    for row in asked(records):
        counts = found.setdefault(row.relation, Counter())
        if row.known and not row.faithful:
            counts[row.answer, row.said] += 1
    return found
