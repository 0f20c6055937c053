"""The parts of a report: chapters of sections, which hold the figures and tables on one subject."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from lre_lightning.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Picture:
    """A figure to be plotted: the stem of its files, its caption, and the function that plots it."""

    name: str
    caption: str
    plot: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """Figures and tables that belong together; tables without rows are not shown.

    The `note` says what was not measured, and how to measure it; `option` is the one that measures it.
    """

    title: str
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    note: str = ""
    option: str = ""


@dataclass(frozen=True)
class Chapter:
    """Sections on one LM, or on several, with the main numbers by name; files are in the subfolder, "" for none."""

    title: str
    folder: str
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def anchor(self) -> str:
        """Prefix of the chapter's anchors."""
        return self.folder or "all"


def picture_of(plot: Callable[..., Figure], *args: Any, name: str = "", note: str = "", **options: Any) -> Picture:
    """Return a figure to be plotted, whose name and caption are those of the function that plots it.

    The caption is the function's docstring without its references to the paper, followed by a `note`.
    """
    text = " ".join([*inspect.cleandoc(plot.__doc__ or "").split(), note]).strip()
    caption = re.sub(r" \((compare )?(fig|app|table)\W[^)]*\)", "", text)
    return Picture(name or plot.__name__.removeprefix("plot_"), caption, partial(plot, *args, **options))


def missing(title: str, what: str, option: str) -> Section:
    """Return a section that says what was not measured."""
    return Section(title, note=f"{what} not measured: use lre evaluate, or lre fit with {option}.", option=option)


def collapsed(sections: Sequence[Section]) -> tuple[Section, ...]:
    """Return sections with those of what was not measured as one line, at the end."""
    absent = [f"{section.title} ({section.option})" for section in sections if section.option]
    if not absent:
        return tuple(sections)
    note = f"lre evaluate measures these, and lre fit with the option in brackets: {', '.join(absent)}."
    return (*(section for section in sections if not section.option), Section("Not measured", note=note))
