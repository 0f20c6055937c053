"""What an edit of one fact does to others: other relations of its subject, other subjects in its text, other words.

Edits are made in other texts, at the last token of the same subject, at the chosen layer or at every one. Of each edit
one question of each kind is asked, the first one in a drawn order whose answer the LM knows before the edit:

- other relations: the subject is asked about by another relation of the data, with that relation's examples. Facts
  whose first token is that of o or o' are left out.
- neighbours: the subject's line, with its object, is the last example of another known sample of the relation, whose
  first token isn't that of o'; the edit is made at the example's subject.
- paraphrases: the same fact is asked for by another template of the relation, with the same examples.

Answers to the first two are to be kept, and those to paraphrases are to become o'.

The edits are the LRE's, which causality counts; those of the paper's baselines; and, as the floor of what is kept,
steps of the LRE's length in a random direction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.measures.baselines import CAUSALITY
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import Prompt, make_prompt, pass_over_blanks
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import KEPT, SPECIFICITY, AnyCriterion, harmonic_mean, reselect
from lre_lightning.relations.relation import Relation, Sample, draw_order
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.report.tables import Table, by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.states import draw_key
from lre_lightning.statistics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SUCCESS = SPECIFICITY, "success"
BY_RANK, INSERTED = ("LRE", "random"), tuple(CAUSALITY)
"""Edits that add something to s, at every rank, and those that put something in its place."""


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


@dataclass(frozen=True)
class Specificity(Measure):
    """How many answers about other things an edit keeps, and how many to paraphrases it moves: the head of this file.

    The LM runs all edits four times, at each strength: many times the work of causality at one layer. It runs every
    question once to know its answer.

    Attributes:
        strengths: Factors, beside 1, by which the step of an edit is multiplied.
        every_layer: Whether edits are made at every layer of the grid, not at the chosen one alone.
    """

    name = NAME
    applied = 1
    strengths: list[float] = field(default_factory=lambda: [0.5, 2.0])
    every_layer: bool = False

    def __post_init__(self) -> None:
        if any(not 0 < strength < 1000 or strength == 1 for strength in self.strengths):
            given = ", ".join(f"{strength:g}" for strength in self.strengths)
            raise LREError(
                f"strengths of edits must be above 0, below 1000 and not 1, which is always there, not {given}"
            )

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of every edit in its own prompt, and in questions, which take about twice as long."""
        runs = (1 + 2 * len(KINDS)) * (1 + len(self.strengths)) * _variants(ranks) * known
        return Cost(edits=runs) if self.every_layer else Cost(at_choice=runs)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count, for each kind of question and each edit, the answers after it that are as they should be."""
        states, edits = trial.states, _edits(trial)
        layers = tuple(trial.lres) if self.every_layer else (trial.lre.layer,)
        steps, strengths = {layer: _steps(trial, layer, edits) for layer in layers}, (1.0, *self.strengths)
        ranks = len(trial.record.ranks)
        asked = {SUCCESS: [Asked(torch.arange(len(edits)), states.edited_runs, {SUCCESS: states.wanted})]}
        asked |= {kind: _asked(trial, edits, kind) for kind in KINDS}
        tallies: dict[str, Tally] = {}
        for kind, questions in asked.items():
            names = (kind, *LOST) if kind == OTHERS else (kind,)
            counts = torch.zeros(len(names), len(layers), len(strengths), _variants(ranks), dtype=torch.long)
            for some in questions:
                after = _answers(trial, some, steps, strengths).cpu()
                for place, name in enumerate(names):
                    hits = after == some.counted[name].cpu()[:, None, None, None]
                    counts[place] += hits.sum(0)
                    after[hits] = -1  # an answer counts once
            counts, total = states.processes.sum(counts, torch.tensor(sum(len(some.places) for some in questions)))
            for name, own in zip(names, counts, strict=True):
                tallies |= _tallies(name, own, int(total), strengths, ranks)
        return Measurement(tallies, layers=layers)

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return what edits keep beside what they change, by relation, rank and edit, and where both are best."""
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
        caption = f"{text} Random are steps of the same length in a random direction. {BOTH_TEXT}"
        by_rank = sweep_table("specificity_by_rank", caption, "rank", _by_rank(kept))
        pictures = [picture_of(plot_specificity, kept)]
        tables = [table, by_rank]
        if sharing := _sharing(kept):
            pictures += [picture_of(plot_trade, sharing), picture_of(plot_lost, sharing)]
            rows = tuple((edit, *means) for edit, means in _fates(sharing).items())
            lost = Table("specificity_lost", f"{pictures[-1].caption} {choice_text(sharing)}", ("edit", *FATES), rows)
            tables += [_by_edit(sharing), lost, _by_choice(sharing)]
        return (Section(title, tuple(pictures), tuple(tables)),)


def _edits(trial: ScoredTrial) -> list[Edit]:
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


def _steps(trial: ScoredTrial, layer: Layer, edits: Sequence[Edit]) -> tuple[Tensor, Tensor]:
    """Return what edits at a layer add to s, `(edits, 2 ranks, hidden)`, and what others put in its place.

    The first are W^+ (o' - o) at every rank, and steps of the same lengths in one random direction for each edit. The
    others are the states of the baselines, `(edits, baselines, hidden)`. A collective call.
    """
    states, lre = trial.states, trial.lres[layer]
    delta = lre.operator.edits(states.change.to(lre.bias), trial.record.ranks)
    key, drawn = draw_key(states.trial), [delta[:0, 0]]
    for edit in edits:
        seed = draw_order(key, "random", edit.sample.subject, edit.sample.object, edit.template)[:7]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
        drawn.append(torch.randn(1, delta.shape[-1], generator=generator, dtype=torch.float64).to(delta))
    direction = torch.nn.functional.normalize(torch.cat(drawn), dim=-1)
    random = delta.norm(dim=-1, keepdim=True) * direction[:, None]
    index = trial.record.layers.index(layer)
    inserted = torch.stack([insert(states, index).to(delta) for insert in CAUSALITY.values()], 1)
    return torch.cat([delta, random], 1), inserted


def _variants(ranks: int) -> int:
    return len(BY_RANK) * ranks + len(INSERTED)


def _answers(
    trial: ScoredTrial, asked: Asked, steps: Mapping[Layer, tuple[Tensor, Tensor]], strengths: Sequence[float]
) -> Tensor:
    """Return the answers after edits at every layer and strength, `(questions, layers, strengths, variants)`."""
    lm, found = trial.lm, []
    subject = asked.runs.hidden_states([*steps], keep=True)[0]
    for index, (layer, (added, inserted)) in enumerate(steps.items()):
        places, s = asked.places.to(added.device), subject[:, index, None].to(added)
        change = torch.cat([added[places], inserted[places] - s], 1)
        values = s[:, None] + torch.tensor(strengths).to(s)[:, None, None] * change[:, None]
        after = lm.predict(asked.runs.patched(layer, values.flatten(1, 2)))
        found.append(after.unflatten(1, (len(strengths), -1)))
    return torch.stack(found, 1)


def _named(name: str, edit: str, strength: float = 1) -> str:
    """Return the name of the tally of an edit, which for the LRE's own is the count's alone."""
    method = edit if strength == 1 else f"{edit} times {strength:g}"
    return name if method == "LRE" else f"{name}: {method}"


def _tallies(name: str, counts: Tensor, total: int, strengths: Sequence[float], ranks: int) -> dict[str, Tally]:
    """Return the tallies of counts `(layers, strengths, variants)` by edit and strength."""
    tallies = {}
    for place, strength in enumerate(strengths):
        *by_rank, inserted = counts[:, place].split([*[ranks] * len(BY_RANK), len(INSERTED)], 1)
        for edit, found in zip(BY_RANK, by_rank, strict=True):
            own = _named(name, edit, strength)
            sums = tuple(map(tuple, found.tolist()))
            tallies[own] = Tally(sums, total, ("layer", "rank"), column=own in KINDS)
        for edit, found in zip(INSERTED, inserted.T.tolist(), strict=True):
            tallies[_named(name, edit, strength)] = Tally(tuple(found), total, ("layer",))
    return tallies


def _asked(trial: ScoredTrial, edits: Sequence[Edit], kind: str) -> list[Asked]:
    """Find for each edit its first question of a kind that the LM knows; what is before subjects is run once."""
    lm, (ask, moved) = trial.lm, KINDS[kind]
    asked = [(place, question) for place, edit in enumerate(edits) for question in ask(trial, edit)]
    heads: dict[str, list[int]] = {}
    for index, (_, question) in enumerate(asked):
        heads.setdefault(question.prompt.text[: question.prompt.subject_chars[0]], []).append(index)
    run = []
    for some in heads.values():
        runs = prompts_to_run(lm, [asked[index][1].prompt for index in some])
        run.append((some, runs, runs.hidden_states([trial.lre.layer])[1]))
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
                of_target = lm.predict(prompts_to_run(lm, twins).hidden_states([trial.lre.layer])[1])
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


def share(record: TrialRecord, name: str, edit: str = "LRE", strength: float = 1, **point: Any) -> float:
    """Return the share of a count after an edit, at the chosen point but for what is given."""
    return record.measured(SPECIFICITY, _named(name, edit, strength), **point)


def both(record: TrialRecord, **edit: Any) -> float:
    """Return the harmonic mean of success and of the answers by other relations that are kept; arguments as `share`."""
    return float(harmonic_mean(share(record, SUCCESS, **edit), share(record, OTHERS, **edit)))


SHARES: dict[str, analysis.Score] = {name: partial(share, name=name) for name in (SUCCESS, *KINDS)}
EDIT_SCORES: dict[str, analysis.Score] = {"causality": analysis.causality, **{name: SHARES[name] for name in KINDS}}
TRADE: dict[str, analysis.Score] = {**SHARES, "both": both}
BOTH_TEXT = "Both is the harmonic mean of success and of the answers by other relations that are kept."


def _sharing(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the records of relations whose subjects others have, so that an edit can lose their answers."""
    return [record for record in records if not math.isnan(share(record, OTHERS))]


def _strengths(records: Sequence[TrialRecord]) -> list[float]:
    """Return the strengths that all records have."""
    start = _named(SUCCESS, "LRE", 0).removesuffix("0")
    found = (
        {1.0, *(float(name.removeprefix(start)) for name in record.measures[NAME].tallies if name.startswith(start))}
        for record in records
    )
    return sorted(set.intersection(*found))


def _mean(records: Sequence[TrialRecord], score: analysis.Score, **edit: Any) -> Estimate | None:
    return analysis.over_relations(records, partial(score, **edit))


def _by_rank(records: Sequence[TrialRecord]) -> dict[str, analysis.Sweep]:
    scores = EDIT_SCORES | {f"{OTHERS}, random": partial(share, name=OTHERS, edit="random"), "both": both}
    return {name: analysis.sweep(records, score, "rank", records[0].ranks) for name, score in scores.items()}


def _by_edit(records: Sequence[TrialRecord]) -> Table:
    """Return a row per edit and strength, at the relations' layers and ranks."""
    return Table(
        "specificity_by_edit",
        f"Edits of {analysis.lm_of(records)} at the relations' layers and ranks: the LRE's, steps of its length in a "
        "random direction, and s replaced by s' (oracle), by the row of the unembedding for o', and by o' (object). "
        f"The strength multiplies the step from s. {BOTH_TEXT} {choice_text(records)} {_over(records)}",
        ("edit", "strength", *TRADE),
        tuple(
            (edit, strength, *(_mean(records, score, edit=edit, strength=strength) for score in TRADE.values()))
            for edit in (*BY_RANK, *INSERTED)
            for strength in _strengths(records)
        ),
        exact=("strength",),
    )


def _over(records: Sequence[TrialRecord]) -> str:
    count = plotting.number_of(len(analysis.categories(records)))
    return f"Means and standard deviations over {count}, whose subjects others share."


def _fates(records: Sequence[TrialRecord]) -> dict[str, tuple[Estimate | None, ...]]:
    """Return what answers by other relations become after edits: kept, `LOST`, and the mean of what is left."""

    def left(record: TrialRecord, **edit: Any) -> float:
        return 1 - sum(share(record, name, **edit) for name in (OTHERS, *LOST))

    edits: dict[str, dict[str, Any]] = {f"LRE, rank {rank}": {"rank": rank} for rank in records[0].ranks}
    edits |= {name: {"edit": name} for name in ("random", *INSERTED)}
    scores: list[analysis.Score] = [*(partial(share, name=name) for name in (OTHERS, *LOST)), left]
    return {name: tuple(_mean(records, score, **edit) for score in scores) for name, edit in edits.items()}


FATES = ("kept", *LOST, "become something else")


def _by_choice(records: Sequence[TrialRecord]) -> Table:
    """Return the shares where layer and rank are chosen by causality, and by both."""
    cut = [_measured_layers(record) for record in records]
    criteria: tuple[AnyCriterion, ...] = ("causality", "both")
    chosen = {criterion: reselect(cut, criterion) for criterion in criteria}
    return Table(
        "specificity_by_choice",
        f"Edits of {analysis.lm_of(records)} at the layers and ranks of the best causality, and of the best harmonic "
        "mean of success and of the answers by other relations that are kept, among those that were measured. "
        f"{_over(records)}",
        ("chosen by", "rank (median)", *TRADE),
        tuple(
            (
                name,
                statistics.median(record.rank or 0 for record in some),
                *(_mean(some, one) for one in TRADE.values()),
            )
            for name, some in chosen.items()
        ),
        exact=("rank (median)",),
    )


def _measured_layers(record: TrialRecord) -> TrialRecord:
    """Return the record with the layers of this measure alone."""
    found = record.measures[NAME]
    layers = found.layers or record.layers
    places = [record.layers.index(layer) for layer in layers]
    faithful, causal = (tuple(counts[place] for place in places) for counts in (record.faithful, record.causal))
    return replace(record, layers=layers, faithful=faithful, causal=causal, measures={NAME: found})


def plot_specificity(records: Sequence[TrialRecord]) -> Figure:
    """Success of edits and what they leave alone, by rank at the chosen layers.

    Means over relations, with the middle half of the relations shaded.
    """
    figure = plotting.new_figure(6, 4)
    axes = figure.subplots()
    sweeps = _by_rank(records)
    for look, name in zip(STYLES, EDIT_SCORES, strict=False):
        plotting.mean_curve(axes, analysis.throughout(sweeps[name]), look, name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="rank", ylabel="share", ylim=(0, 1))
    axes.grid(alpha=0.3)
    plotting.legend(figure)
    return figure


def plot_trade(records: Sequence[TrialRecord]) -> Figure:
    """Success of edits against the answers by other relations of the subject that they keep.

    The LRE's edit and random steps of its length at every rank; the LRE's edit at the relations' ranks, and s replaced
    by s' (oracle), by the unembedding's row of o' and by o' (object), at every strength. Ranks and strengths are beside
    the points; a ring is strength 1. Means over relations whose subjects others share.
    """
    figure, strengths, ranks = plotting.new_figure(7, 5.2), _strengths(records), records[0].ranks
    axes = figure.subplots()
    lines: dict[str, list[dict[str, Any]]] = {
        f"{edit}, by rank": [{"edit": edit, "rank": rank} for rank in ranks] for edit in BY_RANK
    }
    lines |= {
        f"{edit}, by strength": [{"edit": edit, "strength": one} for one in strengths] for edit in ("LRE", *INSERTED)
    }
    for look, (label, edits) in zip(STYLES, lines.items(), strict=False):
        points = []
        for edit in edits:
            kept, success = (_mean(records, SHARES[name], **edit) for name in (OTHERS, SUCCESS))
            if kept and success:
                points.append((edit, (kept.value, success.value)))
        x, y = [place[0] for _, place in points], [place[1] for _, place in points]
        axes.plot(x, y, look.line, color=look.colour, marker=look.marker, markersize=5, label=label, clip_on=False)
        for edit, place in points:
            if edit.get("strength") == 1:
                axes.plot(*place, "o", color=look.colour, markersize=12, markerfacecolor="none", clip_on=False)
            elif edit["edit"] != "random":
                text = f"{edit.get('strength', edit.get('rank')):g}"
                axes.annotate(text, place, (5, 4), textcoords="offset points", fontsize=8, color=look.colour)
    plotting.fraction_axis(axes)
    plotting.fraction_axis(axes, "y")
    axes.set(xlabel=OTHERS, ylabel=SUCCESS)
    plotting.legend(figure, columns=3)
    return figure


def plot_lost(records: Sequence[TrialRecord]) -> Figure:
    """What answers by other relations of the subject become after edits.

    They are kept; become the first token of o'; become what the LM says to the same question about s'; become what was
    the LM's second answer; or become something else, the first of these that holds. Means over relations whose subjects
    others share, at the relations' layers.
    """
    fates = _fates(records)
    figure = plotting.new_figure(8, 1 + 0.34 * len(fates))
    axes = figure.subplots()
    starts = [0.0] * len(fates)
    for place, (look, name) in enumerate(zip(STYLES, FATES, strict=False)):
        widths = [mean.value if (mean := means[place]) else 0.0 for means in fates.values()]
        options: dict[str, Any] = {"color": look.colour, "hatch": look.hatch, "edgecolor": "white", "linewidth": 0}
        axes.barh(range(len(fates)), widths, 0.8, starts, label=name, **options)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    plotting.name_rows([axes], [*fates])
    plotting.fraction_axis(axes)
    axes.set(xlabel="share of the answers", xlim=(0, 1))
    plotting.legend(figure, columns=3)
    return figure
