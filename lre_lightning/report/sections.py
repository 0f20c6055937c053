"""The parts of a report: each section holds the figures and tables on one subject, or says what was not measured."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lre_lightning.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure to be plotted.

    Attributes:
        name: Stem of its files.
        caption: What the figure shows, which is also its description for readers who cannot see it.
        plot: Plots it.
    """

    name: str
    caption: str
    plot: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """Figures and tables that belong together.

    Attributes:
        title: The heading.
        pictures: The figures.
        tables: The tables; those without rows are not shown.
        note: What was not measured, and how to measure it.
    """

    title: str
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""


def picture_of(plot: Callable[..., Figure], *args: Any, name: str = "", note: str = "", **options: Any) -> Picture:
    """Return a figure to be plotted, whose name and caption are those of the function that plots it.

    The caption is the function's docstring without its arguments and references to the paper, followed by a `note`.
    """
    text = inspect.cleandoc(plot.__doc__ or "").split("\n\nArgs:")[0]
    caption = re.sub(r" \((compare )?(fig|app|table)\W[^)]*\)", "", " ".join([*text.split(), note]).strip())
    return Picture(name or plot.__name__.removeprefix("plot_"), caption, partial(plot, *args, **options))


def missing(title: str, what: str, option: str) -> Section:
    """Return a section that says what was not measured."""
    return Section(title, note=f"{what} not measured: use lre evaluate, or lre fit with {option}.")
