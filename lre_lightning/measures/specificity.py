"""What an edit of one fact does to others: other relations of its subject, other subjects in its text, other words.

Edits are made in the texts of `scoring.questions`, at the last token of the same subject, at the chosen layer or at
every one. The edits are the LRE's, which causality counts; those of the paper's baselines; swaps of concepts, and of
what a Jacobian lens reads; steering by concepts; and, as the floor of what is kept, steps of the LRE's length in a
random direction.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.lens import JACOBIAN_LENS
from lre_lightning.lre.moving import exchange
from lre_lightning.measures.baselines import CAUSALITY
from lre_lightning.measures.jacobian_lens import loaded_lens
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records import analysis
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import SPECIFICITY, Criterion, harmonic_mean, reselect
from lre_lightning.relations.relation import draw_order
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.report.tables import Table, by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.questions import KINDS, LOST, OTHERS, Asked, Edit, edits_of, known_questions
from lre_lightning.scoring.states import draw_key
from lre_lightning.statistics.estimates import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME, SUCCESS = SPECIFICITY, "success"
BY_RANK, ONCE = ("LRE", "random", "concept", "steering"), (*CAUSALITY, JACOBIAN_LENS)
"""Edits that are made at every rank, and those that have none."""
EDITS = (*BY_RANK, *ONCE)

Change: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""What an edit adds to s: of the indices of edits, `(questions,)`, and s in questions, `(questions, 1, hidden)`; at
every rank, `(questions, ranks, hidden)`, or once, `(questions, 1, hidden)`."""


@dataclass(frozen=True)
class Specificity(Measure):
    """How many answers about other things an edit keeps, and how many to paraphrases it moves: the head of this file.

    The LM runs all edits four times, at each strength: many times the work of causality at one layer. It runs every
    question once to know its answer.

    Attributes:
        strengths: Factors, beside 1, by which the step of an edit is multiplied.
        every_layer: Whether edits are made at every layer of the grid, not at the chosen one alone. Layer and rank can
            then be chosen by both, success and what is kept.
        lens: A Jacobian lens: a file, a folder or a hub name. Its swaps are counted at the layers that it has. If None,
            there are none.
    """

    name = NAME
    applied = 1
    strengths: list[float] = field(default_factory=lambda: [0.5, 2.0])
    every_layer: bool = False
    lens: str | None = None

    def __post_init__(self) -> None:
        if any(not 0 < strength < 1000 or strength == 1 for strength in self.strengths):
            given = ", ".join(f"{strength:g}" for strength in self.strengths)
            raise LREError(
                f"strengths of edits must be above 0, below 1000 and not 1, which is always there, not {given}"
            )

    @property
    def before_choice(self) -> bool:
        """Whether it is measured before layer and rank are chosen: at every layer."""
        return self.every_layer

    def check(self, lm: LanguageModel) -> None:
        """Load the lens, if there is one, and check that it is one of the LM."""
        if self.lens is not None:
            loaded_lens(self.lens).check_model(lm)

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of every edit in its own prompt, and in questions, which take about twice as long."""
        runs = (1 + 2 * len(KINDS)) * (1 + len(self.strengths)) * sum(self._points(ranks).values()) * known
        return Cost(edits=runs) if self.every_layer else Cost(at_choice=runs)

    def _points(self, ranks: int) -> dict[str, int]:
        """Return how often each edit is made at a layer and strength."""
        once = [name for name in ONCE if name != JACOBIAN_LENS or self.lens is not None]
        return dict.fromkeys(BY_RANK, ranks) | dict.fromkeys(once, 1)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count, for each kind of question and each edit, the answers after it that are as they should be."""
        states, edits = trial.states, edits_of(trial)
        layers = tuple(trial.lres) if self.every_layer else (trial.lre.layer,)
        strengths, points = (1.0, *self.strengths), self._points(len(trial.record.ranks))
        changes = {layer: self._changes(trial, layer, edits) for layer in layers}
        asked = {SUCCESS: [Asked(torch.arange(len(edits)), states.edited_runs, {SUCCESS: states.wanted})]}
        asked |= {kind: known_questions(trial, edits, kind) for kind in KINDS}
        tallies: dict[str, Tally] = {}
        for kind, questions in asked.items():
            names = (kind, *LOST) if kind == OTHERS else (kind,)
            counts = torch.zeros(len(names), len(layers), len(strengths), sum(points.values()), dtype=torch.long)
            for some in questions:
                after = _answers(trial, some, changes, strengths).cpu()
                for place, name in enumerate(names):
                    hits = after == some.counted[name].cpu()[:, None, None, None]
                    counts[place] += hits.sum(0)
                    after[hits] = -1  # an answer counts once
            counts, total = states.processes.sum(counts, torch.tensor(sum(len(some.places) for some in questions)))
            for name, own in zip(names, counts, strict=True):
                by_edit = dict(zip(points, own.split([*points.values()], -1), strict=True))
                tallies |= self._tallies(name, by_edit, int(total), layers)
        return Measurement(tallies, layers=layers)

    def _changes(self, trial: ScoredTrial, layer: Layer, edits: Sequence[Edit]) -> dict[str, Change]:
        """Return what each edit changes at a layer; a collective call."""
        states, lre, ranks = trial.states, trial.lres[layer], trial.record.ranks
        index = trial.record.layers.index(layer)
        delta = lre.operator.edits(states.change.to(lre.bias), ranks)
        random = delta.norm(dim=-1, keepdim=True) * _random_directions(trial, edits, delta)
        outputs = states.object[states.edited], states.target_objects
        concepts = torch.stack([lre.operator.edits(o.to(lre.bias) - lre.bias, ranks) for o in outputs], -2)
        concepts = normalize(concepts, dim=-1)
        changes = {"LRE": _added(delta), "random": _added(random)}
        changes |= {"concept": _exchanged(concepts), "steering": _steered(concepts)}
        changes |= {name: _inserted(insert(states, index).to(delta)) for name, insert in CAUSALITY.items()}
        if self.lens is not None:
            lens, tokens = loaded_lens(self.lens), torch.stack([states.predicted[states.edited], states.wanted], -1)
            pairs = delta.new_zeros(*tokens.shape, delta.shape[-1])
            if lens.reads(layer):
                pairs = lens.directions(trial.lm, tokens, layer).to(delta)
            changes[JACOBIAN_LENS] = _exchanged(pairs[:, None])
        return changes

    def _tallies(
        self, name: str, by_edit: Mapping[str, Tensor], total: int, layers: Sequence[Layer]
    ) -> dict[str, Tally]:
        """Return the tallies of a count by edit and strength; by edit, counts are `(layers, strengths, points)`."""
        tallies = {}
        for edit, counts in by_edit.items():
            for place, strength in enumerate((1.0, *self.strengths)):
                own, found = _named(name, edit, strength), counts[:, place]
                if edit in BY_RANK:
                    sums = tuple(map(tuple, found.tolist()))
                    tallies[own] = Tally(sums, total, ("layer", "rank"), column=own in KINDS)
                else:
                    once = found[:, 0].tolist()
                    if edit == JACOBIAN_LENS and self.lens is not None:
                        reads = map(loaded_lens(self.lens).reads, layers)
                        once = [count if read else None for count, read in zip(once, reads, strict=True)]
                    tallies[own] = Tally(tuple(once), total, ("layer",))
        return tallies

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


def _random_directions(trial: ScoredTrial, edits: Sequence[Edit], like: Tensor) -> Tensor:
    """Return a direction for each edit, `(edits, 1, hidden)`, on the device of `like`, `(edits, ranks, hidden)`."""
    key, drawn = draw_key(trial.states.trial), [like[:0, 0]]
    for edit in edits:
        seed = draw_order(key, "random", edit.sample.subject, edit.sample.object, edit.template)[:7]
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "big"))
        drawn.append(torch.randn(1, like.shape[-1], generator=generator, dtype=torch.float64).to(like))
    return normalize(torch.cat(drawn), dim=-1)[:, None]


def _added(steps: Tensor) -> Change:
    """Add steps, `(edits, ranks, hidden)`."""
    return lambda places, s: steps[places]


def _inserted(values: Tensor) -> Change:
    """Put states, `(edits, hidden)`, in place of s."""
    return lambda places, s: values[places, None] - s


def _exchanged(pairs: Tensor) -> Change:
    """Exchange the coordinates of s along pairs of directions, `(edits, ranks or 1, 2, hidden)`."""
    return lambda places, s: exchange(s, pairs[places]) - s


def _steered(pairs: Tensor) -> Change:
    """Add the difference of pairs of directions, `(edits, ranks, 2, hidden)`, as often as s is long."""
    return lambda places, s: s.norm(dim=-1, keepdim=True) * (pairs[places, :, 1] - pairs[places, :, 0])


def _answers(
    trial: ScoredTrial, asked: Asked, changes: Mapping[Layer, Mapping[str, Change]], strengths: Sequence[float]
) -> Tensor:
    """Return the answers after edits at every layer and strength, `(questions, layers, strengths, points)`."""
    lm, found = trial.lm, []
    subject = asked.runs.hidden_states([*changes], keep=True)[0]
    for index, (layer, by_edit) in enumerate(changes.items()):
        s = subject[:, index, None].to(trial.lres[layer].bias)
        places = asked.places.to(s.device)
        change = torch.cat([make(places, s) for make in by_edit.values()], 1)
        values = s[:, None] + torch.tensor(strengths).to(s)[:, None, None] * change[:, None]
        after = lm.predict(asked.runs.patched(layer, values.flatten(1, 2)))
        found.append(after.unflatten(1, (len(strengths), -1)))
    return torch.stack(found, 1)


def _named(name: str, edit: str, strength: float = 1) -> str:
    """Return the name of the tally of an edit, which for the LRE's own is the count's alone."""
    method = edit if strength == 1 else f"{edit} times {strength:g}"
    return name if method == "LRE" else f"{name}: {method}"


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
    strengths = _strengths(records)
    return Table(
        "specificity_by_edit",
        f"Edits of {analysis.lm_of(records)} at the relations' layers and ranks: the LRE's; steps of its length in a "
        "random direction; swaps of the concepts of o and o', steering from one to the other, and swaps of what the "
        "Jacobian lens reads for them; and s replaced by s' (oracle), by the row of the unembedding for o', and by o' "
        f"(object). The strength multiplies the step from s. {BOTH_TEXT} {choice_text(records)} {_over(records)}",
        ("edit", "strength", *TRADE),
        tuple(
            (edit, strength, *means)
            for edit in EDITS
            for strength in strengths
            if any(means := [_mean(records, one, edit=edit, strength=strength) for one in TRADE.values()])
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
    edits |= {name: {"edit": name} for name in EDITS if name != "LRE"}
    scores: list[analysis.Score] = [*(partial(share, name=name) for name in (OTHERS, *LOST)), left]
    fates = {name: tuple(_mean(records, score, **edit) for score in scores) for name, edit in edits.items()}
    return {name: means for name, means in fates.items() if any(means)}


FATES = ("kept", *LOST, "become something else")


def _by_choice(records: Sequence[TrialRecord]) -> Table:
    """Return the shares where layer and rank are chosen by causality, and by both."""
    cut = [_measured_layers(record) for record in records]
    criteria: tuple[Criterion, ...] = ("causality", "both")
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

    By rank, which is beside the points: the LRE's edit, random steps of its length, the swap of concepts and steering
    by them. By strength, at the relations' ranks: these without the random ones, the swap of what the Jacobian lens
    reads if one was given, and s replaced by s' (oracle), by the unembedding's row of o' and by o' (object); a ring is
    strength 1. Means over relations whose subjects others share.
    """
    figure, looks = plotting.new_figure(10, 5), dict(zip(EDITS, STYLES, strict=False))
    panels = {
        "rank": (BY_RANK, records[0].ranks),
        "strength": ([edit for edit in EDITS if edit != "random"], _strengths(records)),
    }
    for axes, (axis, (edits, values)) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        for edit in edits:
            points = {}
            for value in values:
                kept, success = (_mean(records, SHARES[name], edit=edit, **{axis: value}) for name in (OTHERS, SUCCESS))
                if kept and success:
                    points[value] = (kept.value, success.value)
            if not points:
                continue
            look = looks[edit]
            x, y = zip(*points.values(), strict=True)
            axes.plot(x, y, look.line, color=look.colour, marker=look.marker, markersize=5, label=edit, clip_on=False)
            for value, place in points.items():
                if axis == "strength" and value == 1:
                    axes.plot(*place, "o", color=look.colour, markersize=12, markerfacecolor="none", clip_on=False)
                elif edit != "random":
                    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8, "color": look.colour}
                    axes.annotate(f"{value:g}", place, (5, 4), **options)
        plotting.fraction_axis(axes)
        plotting.fraction_axis(axes, "y")
        axes.set(title=f"by {axis}", xlabel=OTHERS, ylabel=SUCCESS)
    plotting.legend(figure, columns=4)
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
