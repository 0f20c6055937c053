"""The section on LREs beside a Jacobian lens: what does knowing the relation add?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lre_lightning.grid import Layer
from lre_lightning.records.record import GENERIC, TrialRecord
from lre_lightning.report import analysis, plotting
from lre_lightning.report.analysis import GENERIC_METHODS, Score
from lre_lightning.report.baselines import EVERY
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.sweeps import sweep_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIKENESS = ("cosine of W and J", "directions read", "directions written")


def generic(records: Sequence[TrialRecord]) -> tuple[Section, ...]:
    """Return the section, if a fit has compared its LREs with a Jacobian lens."""
    compared = analysis.on_most((record for record in records if record.generic_faithful), "layers")
    if not compared:
        return ()
    *panels, (_, likeness) = _panels().items()
    columns = {f"{metric}: {name}": score for metric, scores in panels for name, score in scores.items()} | likeness
    layers = compared[0].generic_layers
    table = sweep_table(
        "generic",
        f"LREs of {analysis.lm_of(compared)} and its Jacobian lens J by layer: J in place of W, without b and with it, "
        "and both mixed, (n W + J) / (n + 1). The cosine of W and J, and how much of the leading directions that W "
        "reads from s, and writes to o, J shares (mean squared cosine of principal angles).",
        "layer",
        {name: analysis.sweep(compared, score, "layer", layers) for name, score in columns.items()},
    )
    return (Section("LREs and the Jacobian lens", (picture_of(plot_generic, compared),), (table,)),)


def _panels() -> dict[str, dict[str, Score]]:
    """Return what is measured at a layer, by panel and label."""

    def likeness(record: TrialRecord, layer: Layer, index: int) -> float:
        return record.likeness[record.generic_layers.index(layer)][index]

    return {
        **{metric: {name: EVERY[metric][name] for name in ("LRE", *GENERIC_METHODS[metric])} for metric in EVERY},
        "likeness of W and J": {name: partial(likeness, index=index) for index, name in enumerate(LIKENESS)},
    }


def plot_generic(records: Sequence[TrialRecord]) -> Figure:
    """LREs, the Jacobian lens in place of W, and both mixed, by layer; and how alike W and J are.

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    layers = records[0].generic_layers
    figure = plotting.new_figure(11, 4)
    looks = dict(zip(("LRE", *GENERIC, *LIKENESS), STYLES, strict=False))
    for axes, (title, scores) in zip(figure.subplots(1, 3, sharey=True), _panels().items(), strict=True):
        for name, score in scores.items():
            plotting.mean_curve(axes, analysis.sweep(records, score, "layer", layers), looks[name], name)
        plotting.layer_axis(axes, layers, 8)
        axes.set(title=title, xlabel="layer")
        plotting.fraction_axis(axes, "y")
    plotting.legend(figure)
    return figure
