"""Scores on whole objects, by all of their tokens, where the paper's are by their first ones.

Two questions about the LRE of a trial, at its chosen layer, beta and rank:

- Does the LM say the whole object by itself? After an edit it is continued by its own answers, with s edited. The LRE
  stands in for o at the prompt's last token alone, which no later token attends to: it has nothing to say of the
  others, so that its score is the faithfulness of the first token, on the samples whose whole object the LM says.
- Which object of the relation's range is the most probable as a sequence? An object's probability is that of its first
  token, by the LRE or after the edit, times those of its other tokens, by the LM. It is not divided by their number,
  and an object that begins another one is never the less probable of the two. The LM sees the true subject, and can
  give the answer away with the other tokens: two controls put b alone, and the LRE of the edit's target, another
  subject with another object, in place of LRE(s).

Known are the samples whose whole object the LM says, and edits aim at those with another object, which may have the
same first token. Objects of a single token have the counts of first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import headline
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section
from lre_lightning.report.tables import by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.states import TrialStates

KNOWN = "known as a whole"
WHOLE_OBJECT_SCORES = {
    "first-token faithfulness": "known",
    "closed-set faithfulness": "known",
    "closed-set faithfulness, b alone": "known",
    "closed-set faithfulness, another s": "edited",
    "whole-object causality": "edited",
    "closed-set causality": "edited",
}
"""The scores, and the samples that each is out of."""


@dataclass(frozen=True)
class WholeObjects(Measure):
    """Scores on whole objects at the chosen layer, beta and rank: see the head of this file.

    Of the time of a plain fit of the bundled LM, objects of one token take 6% more, and objects of two to four tokens
    40%.
    """

    name = "whole objects"
    applied = 1

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of the few objects that a known sample and its edit are continued by."""
        return Cost(at_choice=8 * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count the successes of each of `WHOLE_OBJECT_SCORES`."""
        states, record, lre, lm, tokens = trial.states, trial.record, trial.lre, trial.lm, trial.tokens
        subject = states.subject[:, trial.index]
        places = {sequence: place for place, sequence in enumerate(dict.fromkeys(tokens.values()))}
        objects = pad_sequence([torch.tensor(ids) for ids in places], batch_first=True, padding_value=-1).to(lm.device)
        own = torch.tensor([places[tokens[p.object]] for p in states.prompts], dtype=torch.long, device=lm.device)
        runs, known = ObjectRuns(states.runs, lre.layer, subject, objects), states.known.clone()
        known[states.known] = runs.continued(states.known.nonzero().flatten(), own[states.known])[0]
        whole = states.answered(own, known)
        of_targets = lre(whole.target_subjects(trial.index), record.beta)
        faithful = _faithful(states, whole, runs, lre(subject[known], record.beta), lre.bias, of_targets)
        causal = _causal(whole, lre, record.rank or lre.edit_rank, subject[whole.edited], objects)
        totals = {"known": whole.all_known, "edited": len(whole.all_edited)}
        scores = {
            name: Tally(count, totals[out_of], column=True)
            for (name, out_of), count in zip(WHOLE_OBJECT_SCORES.items(), (*faithful, *causal), strict=True)
        }
        known_as_whole = {KNOWN: Tally(whole.all_known, record.tested)}
        return Measurement(known_as_whole | scores, chosen=("layer", "beta", "rank"))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the scores beside those by first token; nothing where they were not measured."""
        measured = [record for record in records if record.reported and cls.name in record.measures]
        if not measured:
            return ()
        measured = headline(measured)
        known = analysis.spreads((r.relation, r.measured(cls.name, KNOWN) * r.tested) for r in measured)
        columns = analysis.both_by_relation(measured)
        for name in WHOLE_OBJECT_SCORES:
            columns[name] = analysis.spreads((record.relation, record.measured(cls.name, name)) for record in measured)
        columns = {n: columns[n] for n in sorted(columns, key=lambda name: "causality" in name) if columns[n]}
        table = by_relation(
            "whole_objects",
            f"LRE performance by first token and on whole objects by relation on {analysis.lm_of(records)}, with the "
            "number of test samples whose whole object the LM says: first-token faithfulness is faithfulness on those. "
            "Whole-object: every token of the target is said. Closed-set: the most probable of the relation's objects "
            "is right; as the LM with the true subject gives all tokens but the first, b alone and the LRE of another "
            "subject show how much of it is the LM's. Means and standard deviations over trials, in the last row over "
            f"relations. {choice_text(measured)}",
            known,
            {KNOWN: known, **columns},
            ("mean", None, *map(analysis.overall, columns.values())),
        )
        return (Section("Whole objects", tables=(table,)),)


class ObjectRuns:
    """Prompts with s replaced, continued by objects. No object is run twice after the same prompt.

    Args:
        runs: The prompts.
        layer: The layer at which s is replaced.
        subject: What replaces it, `(prompts, hidden)`.
        objects: The tokens of the objects, int64 `(objects, length)`, -1 after the last one.
    """

    def __init__(self, runs: PromptBatch, layer: Layer, subject: Tensor, objects: Tensor) -> None:
        self.runs, self.layer, self.subject, self.objects = runs, layer, subject, objects
        shape, one_token = (len(runs), len(objects)), (objects[:, 1:] < 0).all(1)
        self._says = one_token.expand(shape).clone()
        rest = torch.where(one_token, 0.0, torch.nan).to(torch.promote_types(runs.lm.dtype, torch.float32))
        self._rest = rest.expand(shape).clone()

    def continued(self, prompts: Tensor, objects: Tensor) -> tuple[Tensor, Tensor]:
        """Return whether the LM, given an object's first token, says the others, `(pairs,)`, and their log-probability.

        `prompts` and `objects` are the indices of the pairs, int64 `(pairs,)`.
        """
        new = self._rest[prompts, objects].isnan()
        if new.any():
            rows, columns = prompts[new], objects[new]
            tokens = self.objects[columns]
            tokens = tokens[:, : int((tokens >= 0).sum(1).max())]

            def read(outputs: Tensor, some: slice) -> Tensor:
                return _read(self.runs.lm, outputs, tokens[some, 1:])

            given = tokens[:, :-1].clamp(min=0)
            says, rest = self.runs.continued(self.layer, self.subject, rows, given, read).T
            self._says[rows, columns], self._rest[rows, columns] = says.bool(), rest
        return self._says[prompts, objects], self._rest[prompts, objects]

    def most_probable(self, prompts: Tensor, output: Tensor) -> Tensor:
        """Return the object of the highest probability after each of some prompts, int64 `(some,)`.

        First tokens alone bound the probabilities, so that few objects are run.

        Args:
            prompts: The indices of the prompts, int64 `(some,)`.
            output: What first tokens are decoded from, `(some, hidden)`.
        """
        scores = log_probabilities(self.runs.lm, output, self.objects[:, 0])
        exact, lines = torch.zeros_like(scores, dtype=torch.bool), torch.arange(len(prompts), device=scores.device)
        while True:
            best = scores.argmax(1)
            left = lines[~exact[lines, best]]
            if not len(left):
                return best
            scores[left, best[left]] += self.continued(prompts[left], best[left])[1]
            exact[left, best[left]] = True


def log_probabilities(lm: LanguageModel, output: Tensor, tokens: Tensor) -> Tensor:
    """Return the log-probabilities of `tokens` `(k,)` as the next one, for outputs `(rows, hidden)`: `(rows, k)`."""
    wide = torch.promote_types(lm.dtype, torch.float32)
    parts = [output.new_zeros(0, len(tokens), dtype=wide)]
    for states in output.split(max(1, lm.logit_rows(len(output)))) if len(output) else ():
        logits = lm.decode(states)
        parts.append(logits.log_softmax(-1, dtype=wide)[:, tokens.to(logits.device)].to(output.device))
    return torch.cat(parts)


def _read(lm: LanguageModel, outputs: Tensor, tokens: Tensor) -> Tensor:
    """Read what outputs `(rows, length, hidden)` say of the tokens after them, `(rows, length)`, -1 where none is.

    Returns:
        1 where each of a row's tokens is the most likely one, else 0; and the sum of their log-probabilities;
        `(rows, 2)`, in the LM's dtype or float32 if that is narrower.
    """
    tokens = tokens.to(outputs.device)
    asked = tokens >= 0
    wide = torch.promote_types(lm.dtype, torch.float32)
    wrong, total = (torch.zeros(tokens.shape, dtype=wide, device=tokens.device) for _ in range(2))
    flat, wanted = outputs[asked], tokens[asked, None]
    size, parts = lm.logit_rows(len(flat)), []
    for states, token in zip(flat.split(size), wanted.split(size), strict=True):
        logits = lm.decode(states).to(tokens.device)
        log_probability = logits.log_softmax(-1, dtype=wide).gather(1, token)
        parts.append(torch.cat([logits.argmax(-1, keepdim=True) != token, log_probability], 1))
    wrong[asked], total[asked] = torch.cat(parts).T
    return torch.stack([(wrong == 0).all(1).to(wide), total.sum(1)], 1)


def _faithful(
    states: TrialStates, whole: TrialStates, runs: ObjectRuns, predicted: Tensor, bias: Tensor, of_targets: Tensor
) -> list[int]:
    """Count first tokens that the LRE's outputs for known samples, `(known, hidden)`, say as the LM does, and answers.

    Answers are closed-set ones that are the LM's own, right or wrong: by these outputs, by b, and by the outputs for
    the subjects of the edits' targets, `(edits, hidden)`.
    """
    rows, lm = whole.known.nonzero().flatten(), states.runs.lm
    says = torch.where(lm.predict(predicted) == states.predicted[rows], whole.predicted[rows], -1)
    others = torch.full_like(rows, -1)
    others[torch.searchsorted(rows, whole.edited.contiguous())] = runs.most_probable(whole.edited, of_targets)
    closed = [runs.most_probable(rows, output) for output in (predicted, bias.expand_as(predicted))]
    by_lm = replace(whole, predicted=whole.predicted.scatter(0, rows, runs.most_probable(rows, states.object[rows])))
    counts: list[int] = by_lm.count_faithful(torch.stack([*closed, others], 1)).tolist()
    return [int(whole.count_faithful(says)), *counts]


def _causal(whole: TrialStates, lre: LRE, rank: int, subject: Tensor, objects: Tensor) -> list[int]:
    """Count edits of s after which the LM says the whole object o', and after which o' is its closed-set answer."""
    difference = whole.change.to(lre.bias)
    edited = subject.to(difference) + lre.operator.edits(difference, [rank])[:, 0]
    output = whole.edited_runs.patched(lre.layer, edited[:, None])[:, 0]
    runs = ObjectRuns(whole.edited_runs, lre.layer, edited, objects)
    edits = torch.arange(len(edited), device=output.device)
    first = whole.runs.lm.predict(output) == objects[whole.wanted, 0]
    answers = torch.full_like(whole.wanted, -1)
    answers[first] = whole.wanted[first].where(runs.continued(edits[first], whole.wanted[first])[0], -1)
    counts: list[int] = whole.count_causal(torch.stack([answers, runs.most_probable(edits, output)], 1)).tolist()
    return counts
