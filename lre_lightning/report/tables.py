"""Tables of plain values, and their forms as CSV, LaTeX and text."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.statistics.estimates import Estimate
from lre_lightning.statistics.intervals import Interval
from lre_lightning.storage.files import write_whole

Cell = str | int | float | Estimate | tuple[float, float | None] | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table of plain values, which are rounded only for display: to `digits` decimal places, `exact` columns not.

    The name is the stem of its files, and the caption says what its deviations are over. Cells are texts, numbers,
    estimates with their deviations and intervals, or None for missing values. The last `totals` rows summarize those
    above. A `folded` table is closed on a page until its caption is clicked.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    totals: int = 0
    digits: int = 2
    exact: tuple[str, ...] = ()
    folded: bool = False

    def is_text(self, column: int) -> bool:
        """Return whether a column contains nothing but text."""
        return all(isinstance(row[column], str | None) for row in self.rows)


def rows_of(names: Iterable[str], *columns: Mapping[str, Cell]) -> tuple[Row, ...]:
    """Return a row per name, with the cells that the columns have under it."""
    return tuple((name, *(column.get(name) for column in columns)) for name in names)


def by_relation(
    name: str,
    caption: str,
    relations: Iterable[str],
    columns: Mapping[str, Mapping[str, Cell]],
    total: Row = (),
    digits: int = 2,
    exact: tuple[str, ...] = (),
) -> Table:
    """Return a table with a row per relation, and perhaps a last one that summarizes them."""
    rows = rows_of(alphabetical(relations), *columns.values())
    last = (total,) if total else ()
    return Table(name, caption, ("relation", *columns), (*rows, *last), len(last), digits, exact)


def alphabetical(relations: Iterable[str]) -> list[str]:
    """Return relations in the order of tables."""
    return sorted(relations, key=lambda name: (name.casefold(), name))


def to_csv(table: Table) -> str:
    """Return the table in full precision, with missing cells empty.

    A column of estimates becomes "X", "X std" if any has a deviation, or none an interval, and "X low" and "X high" if
    any has an interval.
    """
    columns = [_parts(name, [row[i] for row in table.rows]) for i, name in enumerate(table.columns)]
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(zip(*itertools.chain(*columns), strict=True))
    return file.getvalue()


def _parts(name: str, cells: Sequence[Cell]) -> list[list[Any]]:
    """Return the columns, with their heads, that a column of cells becomes in a file."""
    pairs = [cell if isinstance(cell, tuple) else (cell, None) for cell in cells]
    columns: list[list[Any]] = [[name, *(value for value, _ in pairs)]]
    intervals = [cell.interval if isinstance(cell, Estimate) else None for cell in cells]
    if any(deviation is not None for _, deviation in pairs) or (any(map(_is_pair, cells)) and not any(intervals)):
        columns.append([f"{name} std", *(deviation for _, deviation in pairs)])
    if any(intervals):
        columns.append([f"{name} low", *(interval and interval.low for interval in intervals)])
        columns.append([f"{name} high", *(interval and interval.high for interval in intervals)])
    return columns


def _is_pair(cell: Cell) -> bool:
    return isinstance(cell, tuple)


def to_text(table: Table) -> list[list[str]]:
    """Return the cells as readers see them: rounded, with deviations and intervals, and a dash for missing values."""
    digits = [None if column in table.exact else table.digits for column in table.columns]
    return [[cell_text(cell, places) for cell, places in zip(row, digits, strict=True)] for row in table.rows]


def cell_text(cell: Cell, digits: int | None = 2) -> str:
    """Return a cell rounded to `digits` decimal places, or as it is if None."""
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return str(cell)
    if isinstance(cell, tuple):
        shown = " ± ".join(cell_text(part, digits) for part in cell if part is not None)
        return shown + interval_text(cell.interval, digits) if isinstance(cell, Estimate) else shown
    return f"{cell:g}" if digits is None else f"{cell:.{digits}f}"


def interval_text(interval: Interval | None, digits: int | None = 2) -> str:
    """Return an interval as it follows a value, such as `` [0.47, 0.97]``; nothing if there is none."""
    return f" [{cell_text(interval.low, digits)}, {cell_text(interval.high, digits)}]" if interval else ""


def to_latex(table: Table, prefix: str = "") -> str:
    r"""Return the table as a LaTeX float, which needs the packages booktabs and adjustbox.

    The `prefix` precedes the table's name in ``\label{tab:...}``.
    """

    def latex(cell: Cell, shown: str) -> str:
        if cell is None or isinstance(cell, str):
            return "---" if cell is None else escape_latex(cell)
        return f"${shown}$".replace("±", r"\pm").replace(" [", r"\ [")

    body = [
        " & ".join(map(latex, cells, shown)) + r" \\" for cells, shown in zip(table.rows, to_text(table), strict=True)
    ]
    if table.totals:
        body.insert(len(body) - table.totals, r"\midrule")
    alignment = "".join("l" if table.is_text(i) else "r" for i in range(len(table.columns)))
    heads = " & ".join(map(escape_latex, table.columns)) + r" \\"
    caption = escape_latex(table.caption)
    lines = [
        r"% \usepackage{booktabs,adjustbox}",
        *map(_declared, sorted({character for character in "".join([caption, heads, *body]) if character > "\x7f"})),
        r"\begin{table}[htbp]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{tab:{prefix}{table.name}}}",
        r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.85\textheight}",
        rf"\begin{{tabular}}{{{alignment}}}",
        r"\toprule",
        heads,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{adjustbox}",
        r"\end{table}",
    ]
    return "\n".join([*lines, ""])


_LATEX = str.maketrans(
    {
        **{character: "\\" + character for character in "&%$#_{}"},
        # A bracket or star at the start of a line would be an argument of the line break before it.
        **{character: "{" + character + "}" for character in "[]*"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "β": r"$\beta$",
        "±": r"$\pm$",
    }
)


def escape_latex(text: str) -> str:
    """Return a text on one line that LaTeX prints literally."""
    return " ".join(text.split()).translate(_LATEX)


def _declared(character: str) -> str:
    """Return LaTeX code that makes pdflatex print the number of a character it lacks; other engines have fonts."""
    name = rf"u8:\detokenize{{{character}}}\endcsname"
    return rf"\ifcsname {name}\else\expandafter\gdef\csname {name}{{{{[}}U+{ord(character):04X}{{]}}}}\fi"


def write_table(table: Table, path: Path, prefix: str = "") -> None:
    """Write a table as CSV and LaTeX to the files of a path, which is given without suffix."""
    write_whole(Path(f"{path}.csv"), to_csv(table))
    write_whole(Path(f"{path}.tex"), to_latex(table, prefix))
