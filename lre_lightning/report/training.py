"""The section on the checkpoints of a training: scores by step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lre_lightning.records import analysis
from lre_lightning.records.analysis import ModelResults, Sweep
from lre_lightning.report import plotting
from lre_lightning.report.plotting import LOOKS, STYLES
from lre_lightning.report.sections import Section, picture_of
from lre_lightning.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Series = Mapping[int, ModelResults]
"""LMs by the step of the training that they are checkpoints of, in its order."""

UNITS = ("step", "checkpoint", "ckpt", "epoch", "iter", "tokens")
_COUNT = re.compile(rf"({'|'.join(UNITS)})[-_=]?(\d+)", re.IGNORECASE)
_REVISION = re.compile(r"@\D*(\d+)\D*$")


STYLE = {**LOOKS, "known": STYLES[7]}
"""The looks of what changes over a training."""


def series_of(models: Sequence[ModelResults]) -> dict[str, Series]:
    """Return the trainings of which there are several checkpoints, by what the names have in common.

    A name says its step after a word of `UNITS`, the first of those that it has, as in ``step1000`` or
    ``checkpoint-150``, or by the only number of its revision.
    """
    trainings: dict[str, dict[int, ModelResults]] = {}
    for model in models:
        counts = _COUNT.findall(model.model)
        pattern = _COUNT if counts else _REVISION
        numbers = [number for _, number in counts] or _REVISION.findall(model.model)
        if numbers:
            trainings.setdefault(pattern.sub("", model.model).rstrip("@-_/."), {})[int(numbers[0])] = model
    return {name: dict(sorted(steps.items())) for name, steps in trainings.items() if len(steps) > 1}


def sweeps_of(series: Series) -> dict[str, Sweep]:
    """Return both scores, and the fraction of known samples, by relation at every step."""
    same = analysis.same_trials({step: model.main for step, model in series.items()})
    scores_at = {
        step: {**analysis.both_by_relation(same[step]), "known": analysis.known(model.main)}
        for step, model in series.items()
    }
    return {name: {step: scores[name] for step, scores in scores_at.items()} for name in STYLE}


def training(models: Sequence[ModelResults]) -> tuple[Section, ...]:
    """Return a section per training: curves over its steps, for all relations and for each."""
    sections = []
    for place, (name, series) in enumerate(series_of(models).items(), 1):
        suffix = f"_{place}" if place > 1 else ""
        scored = sweeps_of(series)
        sweeps = {name: analysis.from_some_point(sweep) for name, sweep in scored.items()}
        table = Table(
            f"training{suffix}",
            f"Scores over the training of {analysis.short_name(name)}. Means and standard deviations over relations, "
            "the same at each step that has them, as are their trials: those that are scored from there on. Known is "
            "the fraction of the test samples that the LM itself answers, over all relations.",
            ("step", "relations scored", *STYLE, "R"),
            tuple(
                (
                    step,
                    len(scored["faithfulness"][step]),
                    *(analysis.overall(sweep[step]) for sweep in sweeps.values()),
                    analysis.correlation(sweeps["faithfulness"][step], sweeps["causality"][step]),
                )
                for step in series
            ),
        )
        plots = {"training": plot_training, "training_by_relation": plot_training_by_relation}
        pictures = tuple(picture_of(plot, series, name=f"{stem}{suffix}") for stem, plot in plots.items())
        sections.append(Section("Over training", pictures, (table,)))
    return tuple(sections)


def plot_training(series: Series) -> Figure:
    """Scores over the steps of a training.

    Means over relations, with the middle half of them shaded: of scores over those that are scored from the curve's
    first step on, of known facts over all.
    """
    figure = plotting.new_figure(8, 4.5)
    axes = figure.subplots()
    for name, sweep in sweeps_of(series).items():
        steady = analysis.from_some_point(sweep)
        plotting.mean_curve(axes, {step: means for step, means in steady.items() if means}, STYLE[name], name)
    axes.set(xlabel="step")
    plotting.fraction_axis(axes, "y")
    plotting.wide_axis(axes, list(series))
    plotting.legend(figure)
    return figure


def plot_training_by_relation(series: Series) -> Figure:
    """Scores of each relation over the steps of a training.

    Means over trials; a relation has no score at a step where the LM knows too few of its facts.
    """
    sweeps = sweeps_of(series)
    relations = list(analysis.categories(record for model in series.values() for record in model.main))
    figure, panels = plotting.layer_grid(relations, list(series), "mean over trials", "step")
    for axes, relation in zip(panels, relations, strict=True):
        for name, sweep in sweeps.items():
            plotting.relation_curve(axes, sweep, relation, STYLE[name], name)
    panels[0].autoscale(axis="x")
    plotting.wide_axis(panels[0], list(series))
    plotting.legend(figure)
    return figure
