"""Tables for a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from lre_lightning.records.summary import ALIKE, ESSENTIAL, NOT_KEPT, RelationSummary
from lre_lightning.report.tables import Table, cell_text, to_text, write_table
from lre_lightning.statistics.estimates import Estimate, short_text
from lre_lightning.storage.plain import printable

NARROWEST = 12
"""Width below which names of relations don't wrap, however narrow the terminal is."""


def results_table(summaries: Iterable[RelationSummary], width: int | None = None) -> RichTable:
    """Build the table of results: one row per relation, scores with their 95% intervals over samples and trials.

    Beside the essential columns, whose relations' names wrap where there is no room, there are as many others as fit
    `width`; then, as far as there is room, the standard deviations of scores over trials and the intervals of others;
    all of this if it is None. A layer at which W is the identity is marked, and one that was chosen on the very trials
    that are shown. What measures give tables are columns where a relation has them.
    """
    summaries = list(summaries)
    more = list(dict.fromkeys(name for summary in summaries for name in summary.columns))
    columns = {
        "relation": [summary.relation for summary in summaries],
        "category": [summary.category for summary in summaries],
        "known": [summary.known_of for summary in summaries],
        "layer": [summary.layer_text for summary in summaries],
        "rank": ["-" if summary.rank is None else str(summary.rank) for summary in summaries],
        "beta": ["-" if summary.beta is None else str(summary.beta) for summary in summaries],
        "faithfulness": [_score_text(summary, summary.faithfulness) for summary in summaries],
        "causality": [_score_text(summary, summary.causality) for summary in summaries],
        "random guess": [f"{summary.random_guess:.2f}" for summary in summaries],
        **{name: [_short(summary.columns.get(name)) for summary in summaries] for name in more},
    }
    detailed = {
        "faithfulness": [_score_text(summary, summary.faithfulness, True) for summary in summaries],
        "causality": [_score_text(summary, summary.causality, True) for summary in summaries],
        **{name: [cell_text(summary.columns.get(name)) for summary in summaries] for name in more},
    }
    shown = {name: columns[name] for name in ESSENTIAL}
    for name in ("rank", "category", "random guess", *more, "beta"):
        wider = {other: columns[other] for other in columns if other in shown or other == name}
        shown = wider if width is None or _width(wider) <= width else shown
    for name in [name for name in detailed if name in shown and len(shown) == len(columns)]:
        wider = shown | {name: detailed[name]}
        shown = wider if width is None or _width(wider) <= width else shown
    table = RichTable(
        title="Linear relational embeddings", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for name in shown:
        table.add_column(name, justify="left" if name in ("relation", "category") else "right", no_wrap=True)
    if width is not None and (over := _width(shown) - width) > 0:
        names = table.columns[0]
        names.no_wrap, names.overflow = False, "fold"
        names.max_width = max(NARROWEST, max(map(cell_len, columns["relation"])) - over)
    for row in zip(*shown.values(), strict=True):
        table.add_row(*row)
    return table


def _width(columns: Mapping[str, Sequence[str]]) -> int:
    """Return the width of a table of results: of each column, the spaces after it, and the edge."""
    return 1 + sum(2 + max(map(cell_len, [name, *cells])) for name, cells in columns.items())


def _short(score: Estimate | None) -> str:
    return cell_text(None if score is None else score.value)


def _score_text(summary: RelationSummary, score: Estimate | None, deviation: bool = False) -> str:
    if not summary.trials:
        return "not scored"
    return cell_text(score) if score is None or deviation else short_text(score)


def wide_console(table: RichTable) -> Console:
    """Return a console for standard output, at least as wide as a table, which prints texts literally."""
    console = Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
    console.width = max(console.width, Measurement.get(console, console.options.update(max_width=1000), table).maximum)
    return console


def print_results(summaries: Sequence[RelationSummary]) -> RichTable:
    """Print the table of results with the columns that fit the terminal, followed by the relations without scores.

    Returns:
        The table with all columns.
    """
    whole = results_table(summaries)
    if len(summaries) > 1 and all(summary.unscored not in ("", ALIKE, NOT_KEPT) for summary in summaries):
        known, tested = (f"{sum(getattr(one, name) for one in summaries):g}" for name in ("known", "tested"))
        print(
            f"None of the {len(summaries)} relations is scored: the LM knows {known} of {tested} test prompts, and too "
            "few of each. Choose another LM, or lower --data.n_shot."
        )
        return whole
    table = results_table(summaries, Console().width)
    wide_console(table).print(table)
    if left_out := [name for name in _names(whole) if name not in _names(table)]:
        print(f"Not shown, for want of room: {', '.join(left_out)}.")
    if any(summary.chose for summary in summaries):
        print("* Scores of the trials that chose layer and rank, which look better there than those of others.")
    print_unscored(summaries)
    identity = [layer for summary in summaries for layer in summary.identity_layers]
    for layer in dict.fromkeys(identity):
        count = f"{identity.count(layer)} of {len(summaries)} relations"
        print(f"W is the identity at layer {layer} of {count}, whose prompts end with the subject: s is o there.")
        print("Choices leave such layers out: the LRE says what the LM says, whatever the relation is.")
    return whole


def _names(table: RichTable) -> list[str]:
    return [str(column.header) for column in table.columns]


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
