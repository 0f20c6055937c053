"""Texts that an LM generates before and after edits (Table "causal-generations" of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lre_lightning.errors import LREError, check_number
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import SLOT
from lre_lightning.report.sections import Section, missing
from lre_lightning.report.tables import Table
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.states import draw_key, draw_targets
from lre_lightning.storage.plain import printable

NEW_TOKENS = 10
"""Number of tokens that are generated."""


@dataclass(frozen=True)
class Generations(Measure):
    """Greedy continuations before and after edits by the chosen LRE, at its rank.

    The prompts are a template of the relation with the subject, in the form of the LRE's prompts (in a chat, if those
    were chats), without examples. A row has the prompt, its object, that of the target, and what the LM generates
    before and after the edit.

    Attributes:
        edits: The number of edits per trial, of those that causality is measured on, drawn by the trial.
    """

    name = "generations"
    edits: int = 1

    def __post_init__(self) -> None:
        check_number("edits", self.edits, 1)

    def check(self, lm: LanguageModel) -> None:
        """Check that the LM can generate."""
        if not hasattr(lm.model, "generate"):
            raise LREError(f"{lm.name} has no method `generate`: leave generations out")

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of a run for each new token before and after an edit."""
        return Cost(at_choice=2 * NEW_TOKENS * self.edits)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Generate texts; every process generates all of them."""
        drawn_trial, states = trial.states.trial, trial.states
        asked, drawn = drawn_trial.test_asked, states.draw_edits(self.edits)
        targets = draw_targets(asked, states.tokens.tolist(), draw_key(drawn_trial), drawn, len(drawn_trial.asked_with))
        lre, generations = replace(trial.lre, rank=trial.record.rank).bind(trial.lm), []
        for sample, target in zip(drawn, targets, strict=True):
            assert target is not None  # edited samples have one
            (subject, object_), (other, wanted) = (
                (test.subject, test.object) for test in (asked[sample], asked[target])
            )
            prompt = drawn_trial.asked_with[sample % len(drawn_trial.asked_with)].replace(SLOT, subject)
            edit = lre.edit_prompt(prompt, other, subject)
            ((before, after),) = edit.continuations(NEW_TOKENS)
            generations.append((prompt, object_, wanted, printable(before), printable(after)))
        return Measurement(rows=tuple(generations), chosen=("layer", "rank"))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the texts."""
        title = "What the LM says after edits"
        found = analysis.counted(records)
        rows = [(record.relation, *row) for record in found for row in record.rows_of(cls.name, *[str] * 5)]
        if not rows:
            return (missing(title, "Generated texts were", "--model.measures+=Generations"),)
        table = Table(
            "generations",
            f"Texts that {analysis.lm_of(records)} generates before and after edits that aim at another object.",
            ("relation", "prompt", "object → target", "before", "after"),
            tuple((name, prompt, f"{o} → {wanted}", *texts) for name, prompt, o, wanted, *texts in sorted(rows)),
        )
        return (Section(title, tables=(table,)),)
