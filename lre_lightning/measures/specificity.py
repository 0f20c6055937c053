"""What an edit of one fact does to others: other relations of its subject, other subjects in its text, other words.

The edit that causality counts, s := s + W^+ (o' - o) at the chosen layer, is made in other texts, at the last token of
the same subject, at every rank of the grid. Of each edit one question of each kind is asked, the first one in a drawn
order whose answer the LM knows before the edit:

- other relations: the subject is asked about by another relation of the data, with that relation's examples. Facts
  whose first token is that of o or o' are left out.
- neighbours: the subject's line, with its object, is the last example of another known sample of the relation, whose
  first token isn't that of o'; the edit is made at the example's subject.
- paraphrases: the same fact is asked for by another template of the relation, with the same examples.

Answers to the first two are to be kept, and those to paraphrases are to become o'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import Prompt, make_prompt, pass_over_blanks
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.relations.relation import Relation, Sample, draw_order
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.report.tables import by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.states import draw_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "specificity"


@dataclass(frozen=True)
class Edit:
    """One of a process's edits.

    Attributes:
        row: The index of its prompt in `TrialStates.prompts`.
        sample: What it edits.
        template: The index of the template that it is asked with.
        own: The first token of o.
        wanted: The first token of o'.
    """

    row: int
    sample: Sample
    template: int
    own: int
    wanted: int


Questions: TypeAlias = Iterator[Prompt]
"""Prompts in their drawn order; s is edited at the `subject_position` of each."""


@dataclass(frozen=True)
class Specificity(Measure):
    """How many answers about other things an edit keeps, and how many to paraphrases it moves: the head of this file.

    The LM runs every edit three times more, at the chosen layer alone, and every question once to know its answer: with
    all 27 relations of the bundled LM a fit takes several times as long.
    """

    name = NAME
    applied = 1

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of asking each kind of question after each edit, in a prompt that is run for it alone."""
        return Cost(at_choice=2 * len(KINDS) * ranks * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count, for each kind of question, the answers after edits that are as they should be."""
        states, edits = trial.states, _edits(trial)
        delta = trial.lre.operator.edits(states.change.to(trial.lre.bias), trial.record.ranks)
        tallies = {}
        for name, (ask, moved) in KINDS.items():
            asked = [(place, prompt) for place, edit in enumerate(edits) for prompt in ask(trial, edit)]
            places, tokens, after = _answers(trial, delta, asked)
            right = states.wanted[places.to(states.wanted.device)].to(after.device) if moved else tokens
            counts, total = states.processes.sum(
                (after == right[:, None]).sum(0).cpu(), torch.tensor([len(places)], dtype=torch.long)
            )
            tallies[name] = Tally(tuple(counts.tolist()), int(total), ("rank",), column=True)
        return Measurement(tallies, chosen=("layer",))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the shares beside causality, by relation and by rank."""
        title, measured = "What an edit leaves alone", analysis.counted(records)
        measured = [record for record in measured if NAME in record.measures]
        if not measured:
            return (missing(title, "Answers about other things after edits were", "--model.measures+=Specificity"),)
        kept, lm = analysis.on_most(measured, "ranks"), analysis.lm_of(measured)
        text = (
            f"What edits do to other answers of {lm}: causality; answers about the same subject by another relation, "
            "and about another subject in the same text, that are kept; and answers to another template of the "
            f"relation that become the target's. {choice_text(measured)}"
        )
        columns = analysis.side_by_side(measured, EDIT_SCORES)
        total = ("mean", *map(analysis.overall, columns.values()))
        table = by_relation(
            "specificity", f"{text} Means and standard deviations over trials.", analysis.categories(measured), columns,
            total,
        )  # fmt: skip
        by_rank = sweep_table("specificity_by_rank", text, "rank", _by_rank(kept))
        return (Section(title, (picture_of(plot_specificity, kept),), (table, by_rank)),)


def _edits(trial: ScoredTrial) -> list[Edit]:
    """Return this process's edits, in the order of `TrialStates.edited`."""
    states = trial.states
    asked, templates = states.trial.test_asked, len(states.trial.asked_with)
    return [
        Edit(row, asked[states.samples[row]], states.samples[row] % templates, own, wanted)
        for row, own, wanted in zip(
            states.edited.tolist(), states.predicted[states.edited].tolist(), states.wanted.tolist(), strict=True
        )
    ]


def _answers(trial: ScoredTrial, delta: Tensor, asked: Sequence[tuple[int, Prompt]]) -> tuple[Tensor, Tensor, Tensor]:
    """Run of each edit the first of its questions that the LM knows, with the edit.

    Args:
        trial: The trial.
        delta: What each edit adds to s, `(edits, ranks, hidden)`.
        asked: Indices of edits and their questions.

    Returns:
        The edits that have such a question, int64 `(found,)`; the first token of its object, `(found,)`; and the
        answers after the edit, `(found, ranks)`.
    """
    lm, layer = trial.lm, trial.lre.layer
    heads: dict[str, list[int]] = {}  # what is before the subject is run once for all questions that share it
    for index, (_, prompt) in enumerate(asked):
        heads.setdefault(prompt.text[: prompt.subject_chars[0]], []).append(index)
    batches = [(indices, prompts_to_run(lm, [asked[index][1] for index in indices])) for indices in heads.values()]
    known = list[int]()
    for indices, runs in batches:
        said = lm.predict(runs.hidden_states([layer])[1]).tolist()
        known += [index for index, answer in zip(indices, said, strict=True) if answer == asked[index][1].object_token]
    first: dict[int, int] = {}
    for index in sorted(known):
        first.setdefault(asked[index][0], index)
    found = [(torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long), delta[:0, :, 0].long())]
    for indices, runs in batches:
        rows = [row for row, index in enumerate(indices) if first.get(asked[index][0]) == index]
        if rows:
            chosen = runs.select(torch.tensor(rows))
            places = torch.tensor([asked[indices[row]][0] for row in rows])
            subject = chosen.hidden_states([layer], keep=True)[0].to(delta)
            after = lm.predict(chosen.patched(layer, subject + delta[places.to(delta.device)]))
            found.append((places, torch.tensor([asked[indices[row]][1].object_token for row in rows]), after))
    places, tokens, after = (torch.cat(parts) for parts in zip(*found, strict=True))
    return places, tokens.to(after.device), after


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
        prompt = _prompt(trial, other.relation, other.asked_with[0], fact, context)
        if prompt.object_token not in (edit.own, edit.wanted):
            yield prompt


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
        yield replace(prompt, subject_span=source.subject_span, subject_chars=source.subject_chars)


def paraphrases(trial: ScoredTrial, edit: Edit) -> Questions:
    """Ask for the same fact by the other templates of the relation."""
    drawn = trial.states.trial
    own, key = drawn.asked_with[edit.template], draw_key(drawn)
    templates = [template for template in drawn.relation.templates if template != own]
    for template in sorted(templates, key=lambda template: draw_order(key, edit.sample.subject, template)):
        yield _prompt(trial, drawn.relation, template, edit.sample, drawn.train[: trial.data.prompts.shots])


KINDS: dict[str, tuple[Callable[[ScoredTrial, Edit], Questions], bool]] = {
    "other relations kept": (other_relations, False),
    "neighbours kept": (neighbours, False),
    "paraphrases moved": (paraphrases, True),
}
"""The questions of each kind, and whether their answers are to become the target's."""

EDIT_SCORES = {"causality": analysis.causality, **{name: analysis.tally_score(NAME, name) for name in KINDS}}


def _by_rank(records: Sequence[TrialRecord]) -> dict[str, analysis.Sweep]:
    ranks = records[0].ranks
    return {name: analysis.sweep(records, score, "rank", ranks) for name, score in EDIT_SCORES.items()}


def plot_specificity(records: Sequence[TrialRecord]) -> Figure:
    """Success of edits and what they leave alone, by rank at the chosen layers.

    Means over relations, with the middle half of the relations shaded.
    """
    figure = plotting.new_figure(6, 4)
    axes = figure.subplots()
    for look, (name, sweep) in zip(STYLES, _by_rank(records).items(), strict=False):
        plotting.mean_curve(axes, analysis.throughout(sweep), look, name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="rank", ylabel="share", ylim=(0, 1))
    axes.grid(alpha=0.3)
    plotting.legend(figure)
    return figure
