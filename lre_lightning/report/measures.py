"""The section on measures beyond the argmax."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from lre_lightning.grid import Layer
from lre_lightning.records import analysis
from lre_lightning.records.record import MEASURES, TrialRecord
from lre_lightning.report import plotting
from lre_lightning.report.plotting import STYLES
from lre_lightning.report.relations import choice_text
from lre_lightning.report.sections import Section, missing, picture_of
from lre_lightning.report.sweeps import sweep_table
from lre_lightning.report.tables import by_relation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (
    ("predictions", ("probability", "cosine", "cosine of differences")),
    ("edits", ("probability moved",)),
    (
        "the unknown",
        (
            "agreement on the unknown",
            "truth on the unknown",
            "probability of the truth on the unknown",
            "LM's probability of the truth on the unknown",
        ),
    ),
    ("divergence, nats", ("KL", "KL after edits")),
)


def measure(record: TrialRecord, name: str, layer: Layer | None = None) -> float:
    """Return the mean of one of `MEASURES` at a layer and the chosen beta or rank, NaN where it was not measured.

    The layer is the chosen one if None.
    """
    axis = MEASURES[name][0][:-1]
    return record.measure(name, record.layer if layer is None else layer, getattr(record, axis) if axis else None)


def measures(records: Sequence[TrialRecord]) -> Section:
    """Return probabilities, divergences, cosines and answers about the unknown, by relation and by layer."""
    title, measured = "Beyond the argmax", [record for record in analysis.counted(records) if record.measures]
    if not measured:
        return missing(title, "Probabilities, divergences and cosines were", "--model.fitting.measures true")
    lm, kept = analysis.lm_of(measured), analysis.on_most(measured, "layers")
    caption = (
        f"Measures beyond the argmax on {lm}: probability and token rank of the LM's answer by the LRE, divergence "
        "(nats) from the LM's distribution, cosines of LRE(s) and o and of their differences between subjects; after "
        "edits, how much more probable the target's object is, its log-odds to the LM's own answer, and divergence "
        "from the distribution for s'."
    )
    truth_caption = (
        f"The truth, which is the object of the data, on {lm}: how often the LRE says it, its probability and token "
        "rank by the LRE and by the LM, on what the LM does not know and on all test samples; and how often the LRE "
        "agrees with the LM on what it does not know."
    )
    by_measure = analysis.side_by_side(measured, {name: partial(measure, name=name) for name in MEASURES})
    truth = {name: by_measure.pop(name) for name, (_, over) in MEASURES.items() if over in ("unknown", "tested")}
    trials = f"Means and standard deviations over trials. {choice_text(measured)}"
    tables = [
        by_relation(name, f"{text} {trials}", analysis.categories(measured), columns)
        for name, text, columns in (("measures", caption, by_measure), ("truth", truth_caption, truth))
    ]
    sweeps = {name: analysis.by_layer(kept, partial(measure, name=name)) for name in MEASURES}
    caption = f"Measures beyond the argmax by layer of {lm}. {choice_text(kept)}"
    by_layer = sweep_table("measures_by_layer", caption, "layer", sweeps)
    return Section(title, (picture_of(plot_measures, kept),), (*tables, by_layer))


def plot_measures(records: Sequence[TrialRecord]) -> Figure:
    """Measures beyond the argmax by layer.

    Means over relations, with the middle half of the relations shaded, at each relation's β and rank.
    """
    figure, layers = plotting.new_figure(11, 4), analysis.layers_of(records)
    sweeps = {name: analysis.by_layer(records, partial(measure, name=name)) for _, names in PANELS for name in names}
    looks = dict(zip(sweeps, cycle(STYLES), strict=False))
    panels = [panel for panel in PANELS if any(any(sweeps[name].values()) for name in panel[1])]
    for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for name in names:
            plotting.mean_curve(axes, analysis.throughout(sweeps[name]), looks[name], name)
        plotting.layer_axis(axes, layers, 6)
        axes.set(title=title, xlabel="layer")
        axes.grid(alpha=0.3)
    plotting.legend(figure, columns=4)
    return figure
