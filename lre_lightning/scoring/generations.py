"""Texts that an LM generates before and after edits (Table "causal-generations" of the paper)."""

from __future__ import annotations

from dataclasses import replace

from lre_lightning.lre.lre import LRE
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import SLOT
from lre_lightning.scoring.states import TrialStates, draw_key, draw_targets
from lre_lightning.storage.plain import printable

NEW_TOKENS = 10
"""Number of tokens that are generated."""


def with_generations(record: TrialRecord, states: TrialStates, lre: LRE, count: int) -> TrialRecord:
    """Return the record with greedy continuations before and after edits by its chosen LRE, at its rank.

    The prompts are a template of the relation with the subject, in the form of the LRE's prompts (in a chat, if those
    were chats), without examples. The edits are `count` of those
    that causality is measured on, with their targets, drawn by the trial; all if there are fewer.
    """
    asked, drawn, trial = states.trial.test_asked, states.draw_edits(count), states.trial
    targets = draw_targets(asked, states.tokens.tolist(), draw_key(trial), drawn, len(trial.asked_with))
    generations = []
    for sample, target in zip(drawn, targets, strict=True):
        assert target is not None  # edited samples have one
        (subject, object_), (other, wanted) = ((test.subject, test.object) for test in (asked[sample], asked[target]))
        prompt = trial.asked_with[sample % len(trial.asked_with)].replace(SLOT, subject)
        edit = lre.edit_prompt(prompt, other, subject)
        ((before, after),) = edit.continuations(NEW_TOKENS)
        generations.append((prompt, object_, wanted, printable(before), printable(after)))
    return replace(record, generations=tuple(generations))
