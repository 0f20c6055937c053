"""Baselines of the paper's Section 4: other approximations of F, and other states to insert in place of s.

A new baseline is a function and an entry of `FAITHFULNESS` or `CAUSALITY` under its name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.records import analysis
from lre_lightning.records.analysis import ALL, METHODS, K, Means, Score
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import LOOKS, Style
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Picture, Section, missing, picture_of
from lre_lightning.report.sweeps import plot_layer_grid, sweep_table
from lre_lightning.report.tables import Row, Table, by_relation
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.scores import faithfulness_predictions, grid_of
from lre_lightning.scoring.states import TrialStates

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Map = Callable[[Tensor], Tensor]
"""An approximation of F: maps s to o, `(..., hidden)`, float32 or wider."""


def linear_regression(subjects: Tensor, objects: Tensor) -> Map:
    """Fit o = W s + b by least squares.

    With fewer examples than dimensions many fits are exact; the one of smallest W is taken, as in
    `numpy.linalg.lstsq`. The intercept is not penalized. Subjects and objects are s and o, `(examples, hidden)`.

    >>> fitted = linear_regression(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0], [5.0], [9.0]]))
    >>> fitted(torch.tensor([10.0])).round(decimals=4).tolist()
    [21.0]
    """
    subject, object_ = subjects.mean(0), objects.mean(0)
    # Centring leaves rounding errors in the direction that it removes. A cutoff relative to the uncentred states, in
    # float64, keeps them from counting as a small difference between examples.
    wide = subjects.cpu().double()
    rounding = torch.finfo(wide.dtype).eps * max(wide.shape) * torch.linalg.matrix_norm(wide, 2)
    inverse = torch.linalg.pinv(wide - wide.mean(0), atol=rounding).to(subjects)
    targets = objects - object_
    return lambda new: (new - subject) @ inverse @ targets + object_


def translation(subjects: Tensor, objects: Tensor) -> Map:
    """Fit o = s + b with b = E[o - s]; arguments as for `linear_regression`.

    >>> fitted = translation(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    >>> fitted(torch.tensor([0.0, 0.0])).tolist()
    [1.0, 1.0]
    """
    bias = (objects - subjects).mean(0)
    return lambda new: new + bias


def identity(subjects: Tensor, objects: Tensor) -> Map:
    """Return o = s, which the decoder head then reads directly: the logit lens."""
    return lambda new: new


FAITHFULNESS: Mapping[str, Callable[[Tensor, Tensor], Map]] = {
    "linear regression": linear_regression,
    "translation": translation,
    "identity": identity,
}
"""Fits of o by a map of s, on the examples that the LRE is estimated from."""

CAUSALITY: Mapping[str, Callable[[TrialStates, int], Tensor]] = {
    "oracle": TrialStates.target_subjects,
    "unembedding": lambda states, index: states.runs.lm.unembedding(states.wanted),
    "object": lambda states, index: states.target_objects,
}
"""States to insert in place of s at the layer of an index, `(edits, hidden)`: s', the unembedding's row of o', o'."""


@dataclass(frozen=True)
class Baselines(Measure):
    """The baselines, at every layer and at the embedding, and the LREs on prompts that hold the subject alone.

    For faithfulness: linear regression, translation and identity, each also with s from prompts of the subject alone.
    For causality: the oracle s', the unembedding row of o', and o' itself.
    """

    name = "baselines"
    alone = True
    embedding = True
    applied = 1

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of inserting states, of the maps, and of the LREs on the subject alone."""
        return Cost(len(CAUSALITY) * known, (2 * len(FAITHFULNESS) + betas) * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Count the successes of each baseline at each layer."""
        states, lm = trial.states, trial.lm
        assert states.zero_shot is not None
        *subjects, objects = trial.examples
        maps = {name: [fit(subject, objects) for subject in subjects] for name, fit in FAITHFULNESS.items()}
        known, edits = trial.record.known, trial.record.edited
        said = faithfulness_predictions(lm, [*trial.lres.values()], states.zero_shot[states.known], trial.record.betas)
        tallies = {
            "zero-shot faithfulness: LRE": Tally(grid_of(states.count_faithful(said)), known, ("layer", "beta")),
            **_faithful(states, states.subject, maps, "faithfulness", known),
            **_faithful(states, states.zero_shot, maps, "zero-shot faithfulness", known),
        }
        edited = []
        for index, layer in enumerate(trial.lres):
            inserted = [insert(states, index).to(states.target_objects) for insert in CAUSALITY.values()]
            edited.append(lm.predict(states.edited_runs.patched(layer, torch.stack(inserted, 1))))
        causal = grid_of(states.count_causal(torch.stack(edited, 2)))
        tallies |= {
            f"causality: {name}": Tally(row, edits, ("layer",)) for name, row in zip(CAUSALITY, causal, strict=True)
        }
        return Measurement(tallies)

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the LRE and its baselines by category, by layer and by relation."""
        measured = [record for record in records if cls.name in record.measures]
        if not measured:
            return (missing("Baselines", "Baselines were", "--model.measures+=Baselines"),)
        return faithfulness_section(measured), causality_section(measured), by_relation_section(measured)


def _faithful(
    states: TrialStates, subject: Tensor, maps: Mapping[str, Sequence[Map]], metric: str, total: int
) -> dict[str, Tally]:
    """Count each map's faithful predictions at each layer; `subject` is s of all prompts, few-shot or zero-shot."""
    lm, known = states.runs.lm, subject[states.known].unbind(1)
    wide = [s.to(torch.promote_types(s.dtype, torch.float32)) for s in known]
    answers = [
        torch.stack([lm.predict(predict(s)) for predict, s in zip(by_layer, wide, strict=True)], 1)
        for by_layer in maps.values()
    ]
    counts = grid_of(states.count_faithful(torch.stack(answers, 1)))
    return {f"{metric}: {name}": Tally(row, total, ("layer",)) for name, row in zip(maps, counts, strict=True)}


LABELS = {"oracle": "oracle s'", "unembedding": "unembedding row of o'", "object": "object o'"}
ZERO_SHOT = analysis.faithfulness_methods(zero_shot=True)


def _compared(records: Sequence[TrialRecord], methods: Mapping[K, Score]) -> dict[K, Means]:
    """Return methods by category and over all relations, all of the same trials and relations.

    Those that were not measured for all relations that the first of them has are left out.
    """
    kinds, means = analysis.categories(analysis.counted(records)), analysis.side_by_side(records, methods)
    most = next(iter(means.values()))
    return {name: analysis.by_category(kinds, own) for name, own in means.items() if own and own.keys() >= most.keys()}


def _methods(metric: str) -> dict[tuple[str, ...], Score]:
    """Return the methods that tables and figures compare by metric, as rows begin."""
    if metric == "causality":
        return {(name,): score for name, score in METHODS[metric].items()}
    few: dict[tuple[str, ...], Score] = {(name, "few-shot"): score for name, score in METHODS[metric].items()}
    return few | {(name, "zero-shot"): score for name, score in ZERO_SHOT.items()}


def _rows(records: Sequence[TrialRecord], metric: str) -> tuple[Row, ...]:
    """Return a row for every method that was measured, with its means by category and over all relations."""
    columns = [*dict.fromkeys(analysis.categories(analysis.counted(records)).values()), ALL]
    return tuple((*name, *map(own.get, columns)) for name, own in _compared(records, _methods(metric)).items())


def faithfulness_section(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "faith-baselines-prompting"."""
    table = Table(
        "faithfulness_baselines",
        f"Faithfulness of linear approximations of LM decoding by category of relations on {analysis.lm_of(records)}, "
        "with s from few-shot prompts, and from zero-shot prompts that consist of the subject alone. Means and "
        f"standard deviations over relations. {choice_text(records)}",
        ("method", "prompts of s", *dict.fromkeys(analysis.categories(analysis.counted(records)).values()), "all"),
        _rows(records, "faithfulness"),
    )
    note = "Light bars: s from zero-shot prompts that consist of the subject alone."
    name = "faithfulness_baselines_zero_shot"
    own = choice_text(records)
    pictures = (
        picture_of(plot_faithfulness_baselines, records, note=own),
        picture_of(plot_faithfulness_baselines, records, zero_shot=True, name=name, note=f"{note} {own}"),
    )
    return Section("Faithfulness baselines", pictures, (table,))


def causality_section(records: Sequence[TrialRecord]) -> Section:
    """Figures "causality-baselines" and "causality-baselines-layerwise"."""
    by_category = Table(
        "causality_baselines",
        f"LRE causality compared with baselines on {analysis.lm_of(records)}: s is replaced by s' of the target "
        "subject (oracle), the row of the decoder head for o' (unembedding), and o' itself (object). Means and "
        f"standard deviations over relations. {choice_text(records)}",
        ("method", *dict.fromkeys(analysis.categories(analysis.counted(records)).values()), "all"),
        _rows(records, "causality"),
    )

    def best_rank(record: TrialRecord, layer: Layer) -> float:
        return max(analysis.causality(record, layer, rank) for rank in record.ranks)

    pictures: tuple[Picture, ...] = (picture_of(plot_causality_baselines, records, note=choice_text(records)),)
    kept = analysis.on_most(records, "layers")
    columns = {"LRE": analysis.causality, "LRE, best rank": best_rank, **METHODS["causality"]}
    by_layer = sweep_table(
        "causality_by_layer",
        f"LRE causality by layer of {analysis.lm_of(records)}, at the relations' ranks and at the best rank of each "
        "layer and trial, compared with baselines.",
        "layer",
        {name: analysis.by_layer(kept, score) for name, score in columns.items()},
    )
    pictures = (*pictures, picture_of(plot_causality_by_layer, records))
    return Section("Causality baselines", pictures, (by_category, by_layer))


def by_relation_section(records: Sequence[TrialRecord]) -> Section:
    """Figures "faithfulness-baselines" and "causality-baselines", by relation."""
    measured = {
        f"{metric}: {name}": scores
        for metric, methods in METHODS.items()
        for name, scores in analysis.side_by_side(records, methods).items()
        if scores
    }
    table = by_relation(
        "baselines_by_relation",
        f"LRE faithfulness and causality compared with baselines by relation on {analysis.lm_of(records)}. Means and "
        f"standard deviations over trials. {choice_text(records)}",
        analysis.categories(analysis.counted(records)),
        measured,
    )
    return Section("Baselines by relation", (picture_of(plot_baselines_by_relation, records),), (table,))


def plot_faithfulness_baselines(records: Sequence[TrialRecord], zero_shot: bool = False) -> Figure:
    """Faithfulness of linear approximations of LM decoding by category of relations (fig:faithfulness-baselines).

    The LRE at its layer and at the embedding, linear regression, translation and identity (the logit lens). Means over
    relations, with 95% intervals where there are five or more.
    """
    kinds = {"few-shot": "few-shot s", "zero-shot": "zero-shot s"} if zero_shot else {"few-shot": ""}
    return _plot_by_category(records, "faithfulness", kinds, [LOOKS["faithfulness"], Style("#56B4E9", hatch="////")])


def plot_causality_baselines(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by category of relations (fig:causality-baselines).

    The baselines replace s by s' of the target subject (the oracle), the row of the decoder head for o', and o' itself.
    Means over relations, with 95% intervals where there are five or more.
    """
    return _plot_by_category(records, "causality", {"": ""}, [LOOKS["causality"]])


def _plot_by_category(
    records: Sequence[TrialRecord], metric: str, kinds: Mapping[str, str], looks: Sequence[Style]
) -> Figure:
    """Plot a panel for all relations and per category, a row per method, and in it a bar per kind of prompts."""
    compared = _compared(records, _methods(metric))
    by_kind = {
        label: {name: scores for (name, *own), scores in compared.items() if "".join(own) == kind}
        for kind, label in kinds.items()
    }
    methods = list(next(iter(by_kind.values())))
    counts = Counter(analysis.categories(analysis.counted(records)).values())
    titles = {ALL: counts.total(), **counts}
    height = 0.7 + (0.2 + 0.14 * len(kinds)) * len(methods)
    figure, panels = plotting.panel_grid(len(titles), min(len(titles), 5), 10, height)
    for axes, (title, count) in zip(panels, titles.items(), strict=True):
        series = {
            label: {name: scores[name][title] for name in methods if title in scores.get(name, {})}
            for label, scores in by_kind.items()
        }
        plotting.bars(axes, methods, series, looks)
        axes.set_title(f"{plotting.text(title, 20)}\n({count})", fontsize=10)
    plotting.name_rows(panels, [LABELS.get(method, method) for method in methods])
    figure.supxlabel(f"{metric}, {plotting.MEAN}", fontsize=10)
    if len(kinds) > 1:
        plotting.legend(figure)
    return figure


def plot_baselines_by_relation(records: Sequence[TrialRecord]) -> Figure:
    """Faithfulness and causality of the LRE and of baselines by relation. Means over the trials that have them."""
    means = {
        metric: {LABELS.get(name, name): own for name, own in analysis.side_by_side(records, methods).items()}
        for metric, methods in METHODS.items()
    }
    kinds = analysis.categories(analysis.counted(records))
    return plotting.dotted_rows(means, plotting.best_first(kinds, means["faithfulness"]["LRE"]), kinds)


def plot_causality_by_layer(records: Sequence[TrialRecord]) -> Figure:
    """Causality of the LRE and of baselines by layer, per relation (fig:causality-baselines-layerwise).

    Means over the trials that were scored at all layers, at the relations' ranks. The first panel is the mean over
    relations, with the middle half shaded.
    """
    scores = analysis.per_relation(records, analysis.causality)
    names = plotting.best_first(analysis.categories(analysis.counted(records)), scores)
    series = {LABELS.get(name, name): (records, score) for name, score in METHODS["causality"].items()}
    return plot_layer_grid(series, names, "causality")
