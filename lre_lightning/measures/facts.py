"""A row for every fact: what the LM, the LRE and the edited LM say of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lre_lightning.metrics.functional import token_ranks
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records import analysis
from lre_lightning.records.facts import COLUMNS, NAME, Fact, asked, confusions, facts_of
from lre_lightning.records.measurement import Measurement
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing
from lre_lightning.report.tables import Row, Table, alphabetical
from lre_lightning.scoring.measure import Measure, ScoredTrial
from lre_lightning.storage.files import safe_name
from lre_lightning.storage.plain import printable

SHOWN, CONFUSED = 20, 5
"""How many facts, and how many confusions, a report shows of a relation at most."""


@dataclass(frozen=True)
class Facts(Measure):
    """What was said of every test sample at the chosen layer, beta and rank.

    A row has the subject, the object and the template; 1 if the LM knows the fact, else 0; the LM's answer, the most
    probable token, and its probability; the LRE's answer, its probability, the token rank of the LM's answer by the
    LRE, from 0, and 1 if both answers are the same; the object that the edit aims at, the LM's answer after it, and 1
    if that is the target's first token, else 0. Where there is no edit these are empty, empty and -1. Only known
    samples count for faithfulness; the others have rows too.

    It decodes s and o of the test prompts once more, and runs nothing.
    """

    name = NAME

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Gather the rows of all processes."""
        states, record, lm = trial.states, trial.record, trial.lm
        assert record.rank is not None
        asked = states.trial.test_asked
        beta, rank = record.betas.index(record.beta), record.ranks.index(record.rank)
        own = _read(lm, states.object, states.predicted)
        output = trial.lre(states.subject[:, trial.index], record.beta)
        said = _read(lm, output, None)[:, 0].long()
        said[states.known] = trial.said[:, trial.index, beta].to(said.device)  # as faithfulness counts them
        by_lre, of_lms = _read(lm, output, said), _read(lm, output, states.predicted)[:, 2:]
        edits = torch.full((len(states.prompts), 2), -1.0, dtype=torch.float64)
        edited = trial.edited[:, trial.index, rank]
        edits[states.edited.cpu()] = torch.stack([states.targets, edited], 1).cpu().double()
        known, some = states.known[:, None].cpu().double(), torch.ones(len(edits), 1, dtype=torch.float64)
        mine = torch.cat([some, known, own[:, :2], by_lre[:, :2], of_lms, edits], 1)
        every = states.processes.rows(mine, states.samples, len(asked)).tolist()
        templates, text = states.trial.asked_with, _Texts(lm)
        rows = []
        for sample, (there, *cells) in enumerate(every):
            if not there:
                continue
            knows, answer, probability, said_, said_probability, token_rank, target, after = cells
            fact, aim = asked[sample], asked[int(target)].object if target >= 0 else ""
            wanted = trial.tokens[aim][0] if aim else -1
            rows.append(
                (
                    *(fact.subject, fact.object, templates[sample % len(templates)], int(knows)),
                    *(text[int(answer)], probability, text[int(said_)], said_probability, int(token_rank)),
                    int(answer == said_),
                    *(aim, text[int(after)] if aim else "", int(after == wanted) if aim else -1),
                )
            )
        return Measurement(rows=tuple(rows), columns=tuple(COLUMNS), chosen=("layer", "beta", "rank"))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the facts of each relation, the worst first, and what is confused with what."""
        title, measured = "Facts", [record for record in analysis.counted(records) if cls.name in record.measures]
        if not asked(measured):
            return (missing(title, "Facts were", "--model.measures+=Facts"),)
        by_relation: dict[str, list[Fact]] = {}
        for fact in facts_of(measured):
            by_relation.setdefault(fact.relation, []).append(fact)
        note = (
            f"What {analysis.lm_of(measured)} and its LREs say, fact by fact. {choice_text(headline(measured))} All "
            "facts of all trials are in the run's folder, in fit_facts.csv and fit_facts.parquet."
        )
        tables = [_of_relation(name, by_relation[name]) for name in alphabetical(by_relation)]
        return (Section(title, tables=(_summary(by_relation), _confused(measured), *tables), note=note),)


class _Texts(dict[int, str]):
    """The texts of tokens, without spaces around them."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm

    def __missing__(self, token: int) -> str:
        text = str(self.lm.tokenizer.decode([token]))
        self[token] = printable(text.strip() or text)
        return self[token]


def _read(lm: LanguageModel, output: Tensor, tokens: Tensor | None) -> Tensor:
    """Decode outputs `(rows, hidden)`: tokens, the likeliest ones if None, their probabilities and token ranks.

    Returns:
        `(rows, 3)`, float64, on the CPU.
    """
    parts, wide = [torch.zeros(0, 3, dtype=torch.float64)], torch.promote_types(lm.dtype, torch.float32)
    for some in torch.arange(len(output)).split(max(1, lm.logit_rows(len(output)))) if len(output) else ():
        logits = lm.decode(output[some.to(output.device)])
        wanted = logits.argmax(-1) if tokens is None else tokens[some.to(tokens.device)].to(logits.device)
        probability = logits.softmax(-1, dtype=wide).gather(1, wanted[:, None])[:, 0]
        columns = (wanted, probability, token_ranks(logits, wanted))
        parts.append(torch.stack([column.cpu().double() for column in columns], 1))
    return torch.cat(parts)


HEADS = (
    "subject", "object", "LM says", "p", "LRE says", "p by the LRE", "token rank", "faithful",
    "edit to", "then", "success",
)  # fmt: skip


def _of_relation(name: str, facts: Sequence[Fact]) -> Table:
    """Return a relation's facts, the worst first."""
    several = len({fact.template for fact in facts}) > 1
    worst = sorted(facts, key=lambda fact: fact.wrong, reverse=True)[:SHOWN]
    rows: list[Row] = [
        (
            *(fact.subject, *((fact.template,) if several else ()), fact.object),
            *(fact.answer, fact.probability, fact.said, fact.said_probability, fact.token_rank, fact.faithful),
            *(fact.target or None, fact.edited or None, fact.success),
        )
        for fact in worst
    ]
    return Table(
        safe_name(f"facts {name}"),
        f"{name}: {len(worst)} of {len(facts)} facts, first those that the LM knows and the LRE gets most wrong. p is "
        "the probability of each's answer, the token rank that of the LM's answer by the LRE; then the edit's target, "
        "what the LM says after it, and the share of edits that succeed. Means over trials, most frequent answers.",
        (HEADS[0], *(("template",) if several else ()), *HEADS[1:]),
        tuple(rows),
        folded=True,
    )


def _summary(by_relation: dict[str, list[Fact]]) -> Table:
    """Return how many facts are right in all trials, in some, and in none."""
    rows: list[Row] = []
    for name in alphabetical(by_relation):
        shares = [fact.faithful for fact in by_relation[name] if fact.faithful is not None]
        edits = [fact.success for fact in by_relation[name] if fact.success is not None]
        split = [
            (sum(s == 1 for s in some), sum(0 < s < 1 for s in some), sum(s == 0 for s in some))
            for some in (shares, edits)
        ]
        rows.append((name, len(by_relation[name]), len(shares), *split[0], *split[1]))
    return Table(
        "facts",
        "Facts by relation: how many the LM knows in some trial, of how many of these the LRE is right in every trial, "
        "in some, and in none; and the same of edits.",
        (
            "relation",
            "facts",
            "known",
            "always right",
            "sometimes",
            "never",
            "always edited",
            "sometimes edited",
            "never edited",
        ),
        tuple(rows),
    )


def _confused(records: Sequence[TrialRecord]) -> Table:
    """Return the most frequent confusions of each relation."""
    found, known = confusions(records), {name: 0 for name in confusions(records)}
    for row in asked(records):
        known[row.relation] += row.known
    rows: list[Row] = []
    for name in alphabetical(found):
        total = sum(found[name].values())
        for (answer, said), count in sorted(found[name].items(), key=lambda item: (-item[1], item[0]))[:CONFUSED]:
            rows.append((name, answer, said, count, total, known[name]))
    return Table(
        "confusions",
        f"What is confused with what: the {CONFUSED} most frequent pairs of each relation, of the known facts of all "
        "trials.",
        ("relation", "LM says", "LRE says", "times", "unfaithful", "known"),
        tuple(rows),
    )
