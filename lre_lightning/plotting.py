"""Figures of results, drawn by pure functions from records: they can be redrawn without the LM.

Colours are from the Okabe-Ito palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lre_lightning.results import PairRecord, RelationSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAITHFULNESS, CAUSALITY, GUESS = "#0072B2", "#D55E00", "#000000"


def plot_relations(summaries: Sequence[RelationSummary]) -> Figure:
    """Faithfulness and causality by relation, with the random guess beside them (the paper's figure by relation).

    Args:
        summaries: As `lre_lightning.results.summarize` returns them; relations that were not scored are left out.

    Returns:
        Two bars a relation, mean over trials with its standard deviation, most faithful first.
    """
    from matplotlib.figure import Figure

    scored = [s for s in summaries if s.faithfulness is not None]
    scored.sort(key=lambda s: s.faithfulness[0] if s.faithfulness else 0.0)
    figure = Figure(figsize=(8, 1.6 + 0.32 * len(scored)), layout="constrained")
    axes = figure.subplots()
    for shift, name, colour in ((0.2, "faithfulness", FAITHFULNESS), (-0.2, "causality", CAUSALITY)):
        scores = [getattr(s, name) for s in scored]
        rows = [row + shift for row in range(len(scored))]
        deviations = [deviation or 0.0 for _, deviation in scores]
        axes.barh(rows, [mean for mean, _ in scores], 0.38, xerr=deviations, color=colour, label=name, capsize=2)
    guesses = [s.random_guess for s in scored]
    axes.scatter(guesses, range(len(scored)), marker="|", s=160, color=GUESS, label="random guess", zorder=3)
    axes.set_yticks(range(len(scored)), [f"{s.relation}  (layer {s.layer})" for s in scored])
    axes.set_xlim(0, 1.05)
    axes.set_ylim(-0.6, len(scored) - 0.4)
    axes.set_xlabel("share of known facts, mean over trials")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def plot_layers(records: Sequence[PairRecord]) -> Figure:
    """Faithfulness and causality by layer, averaged over relations (compare the paper's sweep over layers).

    Args:
        records: Records of a fit, of which those with the layers of the first are drawn. Faithfulness is at each
            record's beta, causality at its rank; trials of a relation are averaged first, then relations.

    Returns:
        One line a score, with the middle half of the relations shaded.
    """
    from matplotlib.figure import Figure

    layers = next((record.layers for record in records if record.scored), ())
    scored = [record for record in records if record.scored and record.layers == layers]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, colour in (("faithfulness", FAITHFULNESS), ("causality", CAUSALITY)):
        by_layer = [_by_relation(scored, name, index) for index in range(len(layers))]
        axes.plot(range(len(layers)), [statistics.fmean(v) for v in by_layer], "o-", color=colour, label=name)
        quartiles = [statistics.quantiles(v, n=4) if len(v) > 1 else [v[0]] * 3 for v in by_layer]
        low, high = [q[0] for q in quartiles], [q[2] for q in quartiles]
        axes.fill_between(range(len(layers)), low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("layer at which the subject is read")
    axes.set_ylabel("mean over relations")
    axes.set_ylim(0, 1.05)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def _by_relation(records: Sequence[PairRecord], name: str, layer: int) -> list[float]:
    """Each relation's mean score at a layer, over its trials."""
    found: dict[str, list[float]] = {}
    for record in records:
        at, rank = record.layers[layer], record.rank or 1
        score = record.faithfulness(at, record.beta) if name == "faithfulness" else record.causality(at, rank)
        found.setdefault(record.relation, []).append(score)
    return [statistics.fmean(scores) for scores in found.values()]
