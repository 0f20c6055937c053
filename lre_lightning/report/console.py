"""Tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from lre_lightning.records.record import WHOLE_OBJECTS
from lre_lightning.records.summary import BLIND, RelationSummary
from lre_lightning.report.tables import Table, cell_text, to_text, write_table
from lre_lightning.storage.plain import printable


def results_table(summaries: Iterable[RelationSummary]) -> RichTable:
    """Build the table of results: one row per relation, scores as mean ± standard deviation over trials.

    In brackets are the 95% intervals over samples and trials. A layer at which W is the identity is marked, and one
    that was chosen on the very trials that are shown.
    Scores on whole objects are columns where a relation has them.
    """
    summaries = list(summaries)
    whole = [name for name in WHOLE_OBJECTS if any(name in summary.whole_objects for summary in summaries)]
    blind = [name for name in BLIND.values() if any(name in summary.blind for summary in summaries)]
    names = ("known", "layer", "rank", "beta", "faithfulness", "causality", "random guess", *blind, *whole)
    title = "Linear relational embeddings"
    table = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("relation", "category"):
        table.add_column(name, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for summary in summaries:
        chosen = ["-" if value is None else str(value) for value in (summary.layer, summary.rank, summary.beta)]
        if summary.layer in summary.identity_layers:
            chosen[0] += " (W = I)"
        if summary.chose:
            chosen[0] += "*"
        both = (summary.faithfulness, summary.causality)
        scores = [cell_text(score) if summary.trials else "not scored" for score in both]
        scores.append(f"{summary.random_guess:.2f}")
        scores += [cell_text(summary.blind[name].value if name in summary.blind else None) for name in blind]
        scores += [cell_text(summary.whole_objects.get(name)) for name in whole]
        table.add_row(summary.relation, summary.category, summary.known_of, *chosen, *scores)
    return table


def wide_console(table: RichTable) -> Console:
    """Return a console for standard output, at least as wide as a table, which prints texts literally."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum)
    return console


def print_results(summaries: Sequence[RelationSummary]) -> None:
    """Print the table of results, never cut to the terminal's width, followed by the relations without scores."""
    table = results_table(summaries)
    console = wide_console(table)
    console.print(table)
    if any(summary.chose for summary in summaries):
        print("* Scores of the trials that chose layer and rank, which look better there than those of others.")
    print_unscored(summaries)
    identity = [layer for summary in summaries for layer in summary.identity_layers]
    for layer in dict.fromkeys(identity):
        count = f"{identity.count(layer)} of {len(summaries)} relations"
        print(f"W is the identity at layer {layer} of {count}, whose prompts end with the subject: s is o there.")
        print("Choices leave such layers out: the LRE says what the LM says, whatever the relation is.")


def print_unscored(summaries: Sequence[RelationSummary]) -> None:
    """Print a line per relation that has no score, with the reason."""
    for summary in summaries:
        if not summary.trials:
            print(f"Not scored: {printable(summary.relation)}: {summary.unscored}")


def show_tables(tables: Iterable[Table], folder: Path) -> None:
    """Print tables below their captions, never cut to the terminal's width, and write them as CSV and LaTeX."""
    for table in tables:
        printed = RichTable(box=box.SIMPLE_HEAD)
        for number, column in enumerate(table.columns):
            printed.add_column(column, justify="left" if table.is_text(number) else "right", no_wrap=True)
        for row in to_text(table):
            printed.add_row(*row)
        Console(markup=False, emoji=False, highlight=False).print(f"\n{table.caption}")
        wide_console(printed).print(printed)
        write_table(table, folder / table.name)
    print(f"As CSV and LaTeX: {folder}")
