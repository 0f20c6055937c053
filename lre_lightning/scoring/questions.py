"""Questions that are asked after an edit of one fact, in other texts that hold its subject.

Of each edit one question of each kind is asked, the first one in a drawn order whose answer the LM knows before the
edit:

- other relations: the subject is asked about by another relation of the data, with that relation's examples. Facts
  whose first token is that of o or o' are left out.
- neighbours: the subject's line, with its object, is the last example of another known sample of the relation, whose
  first token isn't that of o'; the edit is made at the example's subject.
- paraphrases: the same fact is asked for by another template of the relation, with the same examples.

Answers to the first two are to be kept, and those to paraphrases are to become o'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import Prompt, make_prompt, pass_over_blanks
from lre_lightning.records.selection import KEPT
from lre_lightning.relations.relation import Relation, Sample, draw_order
from lre_lightning.scoring.measure import ScoredTrial
from lre_lightning.scoring.states import draw_key


@dataclass(frozen=True)
class Edit:
    """One of a process's edits.

    Attributes:
        row: The index of its prompt in `TrialStates.prompts`.
        sample: What it edits.
        target: The sample (s', o') that it aims at.
        template: The index of the template that it is asked with.
        own: The first token of o.
        wanted: The first token of o'.
    """

    row: int
    sample: Sample
    target: Sample
    template: int
    own: int
    wanted: int


@dataclass(frozen=True)
class Question:
    """A prompt whose `subject_position` is edited, and the same prompt about the target's subject, if it is needed."""

    prompt: Prompt
    of_target: Prompt | None = None


Questions: TypeAlias = Iterator[Question]
"""Questions in their drawn order."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Questions of some edits that the LM knows, one of an edit at most, ready to be run with s replaced.

    Attributes:
        places: The edits, int64 `(questions,)`.
        runs: The prompts.
        counted: The answers after edits that are counted, by the names of their counts, each int64 `(questions,)`; an
            answer counts for the first name that it is of.
    """

    places: Tensor
    runs: PromptBatch
    counted: Mapping[str, Tensor]


def edits_of(trial: ScoredTrial) -> list[Edit]:
    """Return this process's edits, in the order of `TrialStates.edited`."""
    states = trial.states
    asked, templates = states.trial.test_asked, len(states.trial.asked_with)
    rows = zip(
        *(states.edited.tolist(), states.targets.tolist()),
        *(states.predicted[states.edited].tolist(), states.wanted.tolist()),
        strict=True,
    )
    return [
        Edit(row, asked[states.samples[row]], asked[target], states.samples[row] % templates, own, wanted)
        for row, target, own, wanted in rows
    ]


def known_questions(trial: ScoredTrial, edits: Sequence[Edit], kind: str) -> list[Asked]:
    """Find for each edit its first question of a kind that the LM knows; what is before subjects is run once."""
    lm, (ask, moved) = trial.lm, KINDS[kind]
    last = lm.num_layers - 1
    asked = [(place, question) for place, edit in enumerate(edits) for question in ask(trial, edit)]
    heads: dict[str, list[int]] = {}
    for index, (_, question) in enumerate(asked):
        heads.setdefault(question.prompt.text[: question.prompt.subject_chars[0]], []).append(index)
    run = []
    for some in heads.values():
        runs = prompts_to_run(lm, [asked[index][1].prompt for index in some])
        run.append((some, runs, runs.hidden_states([last])[1]))
    said = {
        index: token for some, _, output in run for index, token in zip(some, lm.predict(output).tolist(), strict=True)
    }
    known = [index for index, (_, question) in enumerate(asked) if said[index] == question.prompt.object_token]
    first = {asked[index][0]: index for index in reversed(known)}
    found = []
    for some, runs, output in run:
        rows = [row for row, index in enumerate(some) if first.get(asked[index][0]) == index]
        if rows:
            chosen = [asked[some[row]] for row in rows]
            places = torch.tensor([place for place, _ in chosen])
            wanted = torch.tensor([edits[place].wanted for place, _ in chosen])
            counted = {kind: wanted if moved else torch.tensor([one.prompt.object_token for _, one in chosen])}
            if twins := [one.of_target for _, one in chosen if one.of_target is not None]:
                of_target = lm.predict(prompts_to_run(lm, twins).hidden_states([last])[1])
                second = lm.decode(output[rows]).topk(2).indices[:, 1]
                counted |= dict(zip(LOST, (wanted, of_target, second), strict=True))
            found.append(Asked(places, runs.select(torch.tensor(rows)), counted))
    return found


def _prompt(trial: ScoredTrial, relation: Relation, template: str, sample: Sample, context: Sequence[Sample]) -> Prompt:
    """Make a prompt of a relation with all of a context."""
    data = trial.data
    options = replace(data.prompts, shots=None)
    prompt = make_prompt(data.tokenizer, template, sample, context, options)
    return pass_over_blanks(data.tokenizer, relation, [prompt], options)[0]


def other_relations(trial: ScoredTrial, edit: Edit) -> Questions:
    """Ask about the subject by the other relations of the data, with the examples of the trial of the same number."""
    data, number = trial.data, trial.record.trial
    shots, name = data.prompts.shots, edit.sample.name
    facts = [
        (index, fact)
        for index, relation in enumerate(data.relations)
        if relation.name != trial.record.relation and (index, number) in data.schedule
        for fact in relation.samples
        if fact.name == name
    ]
    key = draw_key(trial.states.trial)
    for index, fact in sorted(facts, key=lambda one: draw_order(key, name, data.relations[one[0]].name, one[1].object)):
        other = data.trial(data.schedule.index((index, number)))
        context = [sample for sample in other.train if sample.name != name][:shots]
        own, of_target = (
            _prompt(trial, other.relation, other.asked_with[0], replace(fact, subject=subject), context)
            for subject in (fact.subject, edit.target.subject)
        )
        if own.object_token not in (edit.own, edit.wanted):
            yield Question(own, of_target)


def neighbours(trial: ScoredTrial, edit: Edit) -> Questions:
    """Ask for one other known sample after the line of the edited one."""
    states, drawn = trial.states, trial.states.trial
    asked, templates, key = drawn.test_asked, len(drawn.asked_with), draw_key(drawn)
    others = [
        asked[place]
        for place, token in enumerate(states.tokens.tolist())
        if token not in (-1, edit.wanted)
        and place % templates == edit.template
        and asked[place].name != edit.sample.name
    ]
    if not others:
        return
    other = min(others, key=lambda one: draw_order(key, "neighbour", edit.sample.subject, one.subject, one.object))
    context = (*drawn.train[: trial.data.prompts.shots], edit.sample)
    prompt = _prompt(trial, drawn.relation, drawn.asked_with[edit.template], other, context)
    source = states.prompts[edit.row]
    end = source.subject_position + 1
    if prompt.input_ids[:end] == source.input_ids[:end]:  # some tokenizers join what follows the subject with it
        yield Question(replace(prompt, subject_span=source.subject_span, subject_chars=source.subject_chars))


def paraphrases(trial: ScoredTrial, edit: Edit) -> Questions:
    """Ask for the same fact by the other templates of the relation."""
    drawn = trial.states.trial
    own, key = drawn.asked_with[edit.template], draw_key(drawn)
    templates = [template for template in drawn.relation.templates if template != own]
    for template in sorted(templates, key=lambda template: draw_order(key, edit.sample.subject, template)):
        shots = drawn.train[: trial.data.prompts.shots]
        yield Question(_prompt(trial, drawn.relation, template, edit.sample, shots))


OTHERS, NEIGHBOURS, PARAPHRASES = KEPT, "neighbours kept", "paraphrases moved"
KINDS: dict[str, tuple[Callable[[ScoredTrial, Edit], Questions], bool]] = {
    OTHERS: (other_relations, False),
    NEIGHBOURS: (neighbours, False),
    PARAPHRASES: (paraphrases, True),
}
"""The questions of each kind, and whether their answers are to become the target's."""

LOST = ("become o'", "become the answer about s'", "become the second answer")
"""What lost answers by other relations are counted as: the first that holds."""
