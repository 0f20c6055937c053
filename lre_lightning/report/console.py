"""The table of results for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from lre_lightning.records.summary import RelationSummary


def results_table(summaries: Iterable[RelationSummary]) -> Table:
    """Build the table: one line a relation, scores as mean ± standard deviation over trials."""
    table = Table(title="Linear relational embeddings", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("relation", "category"):
        table.add_column(name, no_wrap=True)
    for name in ("samples", "known", "layer", "rank", "beta", "faithfulness", "causality", "random guess"):
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        table.add_row(*_cells(summary))
    return table


def wide_console(table: Table) -> Console:
    """Standard output, as wide as the terminal or a table that is wider, with texts printed as they are."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum)
    return console


def print_results(summaries: Iterable[RelationSummary]) -> None:
    """Print the table of results, and below it the relations that were not scored.

    The table is never cut to the terminal's width: lines that are too long run on, and no figure is lost.
    """
    found = list(summaries)
    table = results_table(found)
    console = wide_console(table)
    console.print(table)
    unscored = [summary.relation for summary in found if not summary.trials]
    if unscored:
        console.print(f"Not scored, because the LM knows too few of their facts: {', '.join(unscored)}.")


def _cells(summary: RelationSummary) -> list[str]:
    scores = [_score(summary.faithfulness), _score(summary.causality)]
    choice = [summary.layer, summary.rank, summary.beta]
    chosen = ["-" if value is None else f"{value}" for value in choice]
    known = f"{summary.known:.1f}".removesuffix(".0")
    return [
        summary.relation,
        summary.category,
        str(summary.samples),
        known,
        *chosen,
        *(scores if summary.trials else ["not scored", "not scored"]),
        f"{summary.random_guess:.2f}",
    ]


def _score(score: tuple[float, float | None] | None) -> str:
    if score is None:
        return "-"
    mean, deviation = score
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"
