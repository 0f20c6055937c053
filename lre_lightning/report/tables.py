"""Tables of plain values, and their forms as CSV, LaTeX and text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from lre_lightning.records.summary import Spread
from lre_lightning.storage.files import write_whole

Cell = str | int | float | Spread | None
Row = tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """A table of plain values, which are rounded only for display: to `digits` decimal places, `exact` columns not.

    The name is the stem of its files, and the caption says what its deviations are over. Cells are texts, numbers,
    means with their deviations, or None for missing values. The last `totals` rows summarize those above.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    totals: int = 0
    digits: int = 2
    exact: tuple[str, ...] = ()

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
    """Return the table in full precision; a column of means becomes two, "X" and "X std", and missing cells empty."""
    wide = {i for i in range(len(table.columns)) if any(isinstance(row[i], tuple) for row in table.rows)}
    heads = [(name, f"{name} std") if i in wide else name for i, name in enumerate(table.columns)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (heads, *table.rows):
        pairs = [cell if isinstance(cell, tuple) else (cell, None) for cell in row]
        writer.writerow([value for i, pair in enumerate(pairs) for value in (pair if i in wide else pair[:1])])
    return file.getvalue()


def to_text(table: Table) -> list[list[str]]:
    """Return the cells as readers see them: rounded, with their deviations, and a dash for missing values."""
    digits = [None if column in table.exact else table.digits for column in table.columns]
    return [[cell_text(cell, places) for cell, places in zip(row, digits, strict=True)] for row in table.rows]


def cell_text(cell: Cell, digits: int | None = 2) -> str:
    """Return a cell rounded to `digits` decimal places, or as it is if None."""
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return str(cell)
    if isinstance(cell, tuple):
        return " ± ".join(cell_text(part, digits) for part in cell if part is not None)
    return f"{cell:g}" if digits is None else f"{cell:.{digits}f}"


def to_latex(table: Table, prefix: str = "") -> str:
    r"""Return the table as a LaTeX float, which needs the packages booktabs and adjustbox.

    The `prefix` precedes the table's name in ``\label{tab:...}``.
    """

    def latex(cell: Cell, shown: str) -> str:
        if cell is None or isinstance(cell, str):
            return "---" if cell is None else escape_latex(cell)
        return f"${shown}$".replace("±", r"\pm")

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
