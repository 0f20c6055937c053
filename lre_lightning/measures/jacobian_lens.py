"""LREs beside a Jacobian lens: what does knowing the relation add to the LM's mean Jacobian over ordinary text?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import Dense, Operator
from lre_lightning.lre.triplets import leading_singular_triplets
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records import analysis
from lre_lightning.records.analysis import SCORES, Score
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.scoring.measure import Cost, Measure, ScoredTrial
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions, grid_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAME = "Jacobian lens"
GENERIC = ("Jacobian lens", "Jacobian lens with b", "mixed")
"""LREs with the Jacobian lens J in place of W: without b, with b, and W mixed with J."""
LIKENESS = ("cosine of W and J", "directions read", "directions written")
LEADING = 16
"""Number of leading singular directions that are compared; half of all if there are fewer than 32."""


def generic_lres(lre: LRE, jacobian: Tensor, subjects: Tensor, objects: Tensor) -> dict[str, LRE]:
    """Return the LREs of `GENERIC`, with J in place of W or beside it.

    By name: J, `(hidden, hidden)`, without a bias; J with b, the mean of o - J s over the examples that the LRE was
    estimated from, `subjects` and `objects` `(examples, hidden)`; and both mixed, (n W + J) / (n + 1) with its b, in
    which J counts as one more example.
    """
    generic, count = Dense(jacobian.to(lre.bias)), len(objects)
    mixed = (1 / (count + 1)) * (count * lre.operator + generic)

    def with_bias(weight: Operator) -> LRE:
        return replace(lre, weight=weight, bias=(objects - weight.apply(subjects)).mean(0).to(lre.bias))

    plain = replace(lre, weight=generic, bias=torch.zeros_like(lre.bias))
    return dict(zip(GENERIC, (plain, with_bias(generic), with_bias(mixed)), strict=True))


def matrix_likeness(weight: Tensor, jacobian: Tensor) -> tuple[float, float, float]:
    """Compare two matrices `(hidden, hidden)`.

    Returns:
        Their cosine (of the matrices as vectors), and the mean squared cosine of the principal angles between the
        spaces that their leading directions read from s (right singular vectors) and write to o (left ones).
    """
    jacobian, count = jacobian.to(weight), min(LEADING, len(weight) // 2)
    cosine = torch.nn.functional.cosine_similarity(weight.flatten(), jacobian.flatten(), 0)
    of_weight, of_jacobian = (leading_singular_triplets(matrix, count) for matrix in (weight, jacobian))
    written, read = (float((of_weight[i].T @ of_jacobian[i]).square().sum()) / count for i in (0, 2))
    return float(cosine), read, written


@dataclass(frozen=True)
class JacobianLensLREs(Measure):
    """The counts of `GENERIC` on the grid, at the layers that a Jacobian lens has, and how alike W and J are.

    A row is the `matrix_likeness` of W and J at a layer.

    Attributes:
        lens: The lens: a file, a folder or a hub name.
    """

    name = NAME
    elements = True
    lens: str = "jacobian_lens.safetensors"

    def check(self, lm: LanguageModel) -> None:
        """Load the lens, and check that it is one of the LM."""
        loaded_lens(self.lens).check_model(lm)

    def cost(self, known: float, betas: int, ranks: int) -> Cost:
        """Return the cost of three LREs of which two edit."""
        return Cost((len(GENERIC) - 1) * ranks * known, len(GENERIC) * betas * known)

    def measure(self, trial: ScoredTrial) -> Measurement:
        """Score the three at each layer that the lens and the grid have."""
        states, record, lens = trial.states, trial.record, loaded_lens(self.lens)
        *subjects, objects = trial.examples
        layers = [layer for layer in trial.lres if layer in lens.jacobians]
        if not layers:
            raise LREError(f"the Jacobian lens {self.lens!r} has none of the layers {list(trial.lres)}: try one it has")
        said, edited = [], []
        for layer in layers:
            index = record.layers.index(layer)
            generic = [*generic_lres(trial.lres[layer], lens.jacobians[layer], subjects[index], objects).values()]
            s, runs = states.subject[:, index, None], states.edited_runs
            said += [faithfulness_predictions(runs.lm, [lre], s[states.known], record.betas) for lre in generic]
            of_edits = s[states.edited]
            edited += [causality_predictions(runs, [lre], of_edits, states.change, record.ranks) for lre in generic[1:]]
        faithful, causal = states.count_faithful(torch.cat(said, 1)), states.count_causal(torch.cat(edited, 1))
        tallies = {
            f"faithfulness: {name}": Tally(grid_of(faithful[i :: len(GENERIC)]), record.known, ("layer", "beta"))
            for i, name in enumerate(GENERIC)
        } | {
            f"causality: {name}": Tally(grid_of(causal[i :: len(GENERIC) - 1]), record.edited, ("layer", "rank"))
            for i, name in enumerate(GENERIC[1:])
        }
        alike = (matrix_likeness(trial.lres[layer].operator.dense(), lens.jacobians[layer]) for layer in layers)
        return Measurement(tallies, rows=tuple(alike), layers=tuple(layers))

    @classmethod
    def sections(cls, records: Sequence[TrialRecord]) -> tuple[Section, ...]:
        """Return the section on LREs beside a Jacobian lens, if a fit has compared them."""
        compared = [record for record in records if NAME in record.measures and _layers([record])]
        compared = analysis.on_most(compared, "layers")
        if not compared:
            return ()
        *panels, (_, alike) = _panels().items()
        columns = {f"{metric}: {name}": score for metric, scores in panels for name, score in scores.items()} | alike
        table = sweep_table(
            "generic",
            f"LREs of {analysis.lm_of(compared)} and its Jacobian lens J by layer: J in place of W, without b and with "
            "it, and both mixed, (n W + J) / (n + 1). The cosine of W and J, and how much of the leading directions "
            "that W reads from s, and writes to o, J shares (mean squared cosine of principal angles); a W of zeros "
            f"has none. {choice_text(compared)}",
            "layer",
            {name: analysis.sweep(compared, score, "layer", _layers(compared)) for name, score in columns.items()},
        )
        return (Section("LREs and the Jacobian lens", (picture_of(plot_generic, compared),), (table,)),)


@cache
def loaded_lens(source: str) -> JacobianLens:
    """Return the lens of a file, a folder or a hub name, which is read once."""
    return JacobianLens.load(source)


def _layers(records: Sequence[TrialRecord]) -> tuple[Layer, ...]:
    return records[0].measures[NAME].layers or ()


METHODS: dict[str, dict[str, Score]] = {
    metric: {"LRE": score} | {name: analysis.tally_score(NAME, f"{metric}: {name}") for name in names}
    for (metric, score), names in zip(SCORES.items(), (GENERIC, GENERIC[1:]), strict=True)
}
"""Scores of the LRE and of those with J by metric and method."""


def _panels() -> dict[str, dict[str, Score]]:
    """Return what is measured at a layer, by panel and label."""

    def alike(record: TrialRecord, layer: Layer, index: int) -> float:
        by_layer = dict(zip(_layers([record]), record.rows_of(NAME, float, float, float), strict=False))
        cosines = by_layer.get(layer, (0,))
        return float(cosines[index]) if cosines[0] else math.nan  # 0 for a W of zeros, which has no directions

    return METHODS | {"likeness of W and J": {name: partial(alike, index=i) for i, name in enumerate(LIKENESS)}}


def plot_generic(records: Sequence[TrialRecord]) -> Figure:
    """LREs, the Jacobian lens in place of W, and both mixed, by layer; and how alike W and J are.

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    layers = _layers(records)
    figure = plotting.new_figure(11, 4)
    looks = dict(zip(("LRE", *GENERIC, *LIKENESS), STYLES, strict=False))
    for axes, (title, scores) in zip(figure.subplots(1, 3, sharey=True), _panels().items(), strict=True):
        for name, score in scores.items():
            sweep = analysis.sweep(records, score, "layer", layers)
            steady = analysis.throughout(sweep)
            plotting.mean_curve(axes, {layer: means for layer, means in steady.items() if means}, looks[name], name)
        plotting.layer_axis(axes, layers, 8)
        axes.set(title=title, xlabel="layer")
        plotting.fraction_axis(axes, "y")
    plotting.legend(figure)
    return figure
