"""The paper's tables and the numbers of its figures, as plain tables of records, and as CSV, LaTeX and text."""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from lre_lightning.grid import Layer
from lre_lightning.records.record import CAUSALITY_BASELINES, TrialRecord
from lre_lightning.records.selection import Criterion, reselect
from lre_lightning.records.summary import Spread
from lre_lightning.report import analysis
from lre_lightning.report.analysis import BetaScores, ModelResults, Score
from lre_lightning.report.drawing import number_of, short_names
from lre_lightning.storage.files import write_whole

Cell = str | int | float | Spread | None
Row = tuple[Cell, ...]
Point = TypeVar("Point", bound=Layer)


@dataclass(frozen=True)
class Table:
    """A table of plain values, which are rounded only where it is shown.

    Attributes:
        name: Stem of its files.
        caption: What it shows, and over what its deviations are.
        columns: Heads of the columns.
        rows: Cells: texts, numbers, means with their deviations, None for what is missing.
        totals: How many of the last rows sum up those above.
        digits: Digits after the point that are shown.
        exact: Columns whose numbers are shown as they are.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    totals: int = 0
    digits: int = 2
    exact: tuple[str, ...] = ()

    def is_text(self, column: int) -> bool:
        """Whether a column holds texts alone."""
        return all(isinstance(row[column], str | None) for row in self.rows)


def to_csv(table: Table) -> str:
    """The table in full precision; a column of means becomes two, "X" and "X std", and what is missing is empty."""
    spreads = [any(isinstance(row[i], tuple) for row in table.rows) for i in range(len(table.columns))]
    heads = zip(table.columns, spreads, strict=True)
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([text for name, wide in heads for text in ((name, f"{name} std") if wide else (name,))])
    for row in table.rows:
        cells = zip(row, spreads, strict=True)
        writer.writerow([value for cell, wide in cells for value in (_pair(cell) if wide else (cell,))])
    return file.getvalue()


def _pair(cell: Cell) -> tuple[Cell, Cell]:
    return cell if isinstance(cell, tuple) else (cell, None)


def to_text(table: Table) -> list[list[str]]:
    """The cells as a reader sees them: rounded, with their deviations, and a dash for what is missing."""
    return [[_text(cell, digits) for cell, digits in zip(row, _digits(table), strict=True)] for row in table.rows]


def _digits(table: Table) -> list[int | None]:
    return [None if column in table.exact else table.digits for column in table.columns]


def _text(cell: Cell, digits: int | None) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str | int):
        return str(cell)
    if isinstance(cell, tuple):
        mean, deviation = cell
        return _text(mean, digits) if deviation is None else f"{_text(mean, digits)} ± {_text(deviation, digits)}"
    return f"{cell:g}" if digits is None else f"{cell:.{digits}f}"


def to_latex(table: Table, prefix: str = "") -> str:
    r"""The table as a LaTeX float, which needs the packages booktabs and adjustbox.

    Args:
        table: The table.
        prefix: Goes before its name in ``\label{tab:...}``.
    """
    lines = [[_latex(cell, digits) for cell, digits in zip(row, _digits(table), strict=True)] for row in table.rows]
    heads = [escape_latex(column) for column in table.columns]
    body = [" & ".join(cells) + r" \\" for cells in lines]
    if table.totals:
        body.insert(len(body) - table.totals, r"\midrule")
    alignment = "".join("l" if table.is_text(i) else "r" for i in range(len(table.columns)))
    caption = escape_latex(table.caption)
    special = sorted({character for character in "".join([caption, *heads, *body]) if not character.isascii()})
    return "\n".join(
        [
            r"% \usepackage{booktabs,adjustbox}",
            *map(_declared, special),
            r"\begin{table}[htbp]",
            r"\centering",
            rf"\caption{{{caption}}}",
            rf"\label{{tab:{prefix}{table.name}}}",
            r"\begin{adjustbox}{max width=\textwidth, max totalheight=0.85\textheight}",
            rf"\begin{{tabular}}{{{alignment}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\end{table}",
            "",
        ]
    )


def _latex(cell: Cell, digits: int | None) -> str:
    if cell is None:
        return "---"
    if isinstance(cell, str):
        return escape_latex(cell)
    return f"${_text(cell, digits)}$".replace("±", r"\pm")


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


def _declared(character: str) -> str:
    """What lets pdflatex print a character that it has no sign for by its number; other engines have fonts for it."""
    name = rf"u8:\detokenize{{{character}}}\endcsname"
    return rf"\ifcsname {name}\else\expandafter\gdef\csname {name}{{{{[}}U+{ord(character):04X}{{]}}}}\fi"


def escape_latex(text: str) -> str:
    """A text on one line that LaTeX prints as it is."""
    return " ".join(text.split()).translate(_LATEX)


def print_table(table: Table) -> None:
    """Print a table, its caption above it; it is never cut to the terminal's width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as Printed

    from lre_lightning.report.console import wide_console

    printed = Printed(box=box.SIMPLE_HEAD)
    for number, column in enumerate(table.columns):
        printed.add_column(column, justify="left" if table.is_text(number) else "right", no_wrap=True)
    for row in to_text(table):
        printed.add_row(*row)
    Console(markup=False, emoji=False, highlight=False).print(f"\n{table.caption}")
    wide_console(printed).print(printed)


def write_table(table: Table, folder: Path) -> None:
    """Write a table to a folder, as CSV and LaTeX."""
    for ending, text in (("csv", to_csv(table)), ("tex", to_latex(table))):
        write_whole(folder / f"{table.name}.{ending}", text)


def lm_of(records: Sequence[TrialRecord]) -> str:
    """Name of the LM that records are of."""
    return short_names([records[0].model])[0] if records else "the LM"


def _alphabetical(relations: Iterable[str]) -> list[str]:
    return sorted(relations, key=lambda name: (name.casefold(), name))


def hyperparameters(records: Sequence[TrialRecord]) -> Table:
    """Scores and hyperparameters by relation (table "hparams-gptj")."""
    any_of = {record.relation: record for record in records}
    chosen = {record.relation: record for record in analysis.counted(records)}
    faithful = analysis.per_relation(records, analysis.faithfulness)
    causal = analysis.per_relation(records, analysis.causality)

    def row(relation: str) -> Row:
        record, point = any_of[relation], chosen.get(relation)
        place = (point.layer, point.beta, point.rank) if point else (None, None, None)
        return (
            relation,
            record.range_size,
            *place,
            faithful.get(relation),
            causal.get(relation),
            record.random_guess,
        )

    guess = analysis.over_relations(records, analysis.random_guess)
    mean = ("mean of the scored", None, None, None, None, *_scores(records), guess[0] if guess else None)
    return Table(
        "hyperparameters",
        f"Relation-wise LRE performance on {lm_of(records)}, and respective hyperparameters. Scores are means and "
        "standard deviations over trials, in the last line over relations. Relations without scores are those of which "
        "the LM knows too few facts.",
        ("relation", "|range|", "layer", "β", "rank", "faithfulness", "causality", "random guess"),
        (*map(row, _alphabetical(any_of)), mean),
        totals=1,
        exact=("β",),
    )


def _scores(records: Sequence[TrialRecord]) -> tuple[Spread | None, Spread | None]:
    """Faithfulness and causality at the chosen hyperparameters, over relations."""
    faithful = analysis.over_relations(records, analysis.faithfulness)
    return faithful, analysis.over_relations(records, analysis.causality)


def categories(records: Sequence[TrialRecord]) -> Table:
    """Scores by kind of relation (figure "lre_other_models")."""
    relations = {record.relation: record.category for record in analysis.counted(records)}
    faithful = analysis.per_category(records, analysis.faithfulness)
    causal = analysis.per_category(records, analysis.causality)
    rows = [
        (category, list(relations.values()).count(category), faithful.get(category), causal.get(category))
        for category in _categories(records)
    ]
    return Table(
        "categories",
        f"LRE performance in different relation categories on {lm_of(records)}. Means and standard deviations over the "
        "relations that were scored.",
        ("category", "relations scored", "faithfulness", "causality"),
        (*rows, ("all", len(relations), *_scores(records))),
        totals=1,
    )


def _categories(records: Iterable[TrialRecord]) -> list[str]:
    return list(dict.fromkeys(analysis.categories(records).values()))


def faithfulness_baselines(records: Sequence[TrialRecord]) -> Table:
    """The LRE and its baselines by category (figures "faithfulness-baselines" and "faith-baselines-prompting")."""
    few, zero = analysis.faithfulness_methods(), analysis.faithfulness_methods(zero_shot=True)
    rows = [
        *_by_category(records, few, "few-shot"),
        *_by_category(records, zero, "zero-shot"),
    ]
    return Table(
        "faithfulness_baselines",
        f"Faithfulness of different linear approximations of LM decoding on {lm_of(records)}, stratified across "
        "relation types, with s from few-shot prompts, and from zero-shot prompts that contain only the subject. Means "
        "and standard deviations over relations.",
        ("method", "prompts of s", *_categories(analysis.counted(records)), "all"),
        tuple(rows),
    )


def causality_baselines(records: Sequence[TrialRecord]) -> Table:
    """The LRE's edits and their baselines by category (figure "causality-baselines")."""
    return Table(
        "causality_baselines",
        f"LRE causality compared with different baselines on {lm_of(records)}: in place of s, the s' of the target "
        "subject (oracle), the row of the decoder head for o' (unembedding), and o' itself (object). Means and "
        "standard deviations over relations.",
        ("method", *_categories(analysis.counted(records)), "all"),
        tuple(_by_category(records, analysis.causality_methods())),
    )


def _by_category(records: Sequence[TrialRecord], methods: Mapping[str, Score], *labels: str) -> list[Row]:
    """A line for every method that was measured: its means by category, and over all relations."""
    lines: list[Row] = []
    for name, score in _measured(records, methods).items():
        found = analysis.per_category(records, score)
        cells = [found.get(category) for category in _categories(analysis.counted(records))]
        lines.append((name, *labels, *cells, analysis.over_relations(records, score)))
    return lines


def _measured(records: Sequence[TrialRecord], methods: Mapping[str, Score]) -> dict[str, Score]:
    return {name: score for name, score in methods.items() if analysis.over_relations(records, score) is not None}


def baselines_by_relation(records: Sequence[TrialRecord]) -> Table:
    """The LRE and all baselines by relation (figures "faithfulness-baselines" and "causality-baselines")."""
    methods = {
        **{f"faithfulness: {name}": score for name, score in analysis.faithfulness_methods().items()},
        **{f"causality: {name}": score for name, score in analysis.causality_methods().items()},
    }
    found = {name: analysis.per_relation(records, score) for name, score in _measured(records, methods).items()}
    relations = _alphabetical({record.relation for record in analysis.counted(records)})
    return Table(
        "baselines_by_relation",
        f"LRE faithfulness and causality on {lm_of(records)} compared with their baselines, by relation. Means and "
        "standard deviations over trials.",
        ("relation", *found),
        tuple((relation, *(scores.get(relation) for scores in found.values())) for relation in relations),
    )


def causality_by_layer(records: Sequence[TrialRecord]) -> Table:
    """Edits and their baselines by layer (figure "causality-baselines-layerwise")."""
    kept = analysis.on_most_layers(records)
    methods: dict[str, Callable[[Layer], Score]] = {
        "LRE": analysis.causality_at,
        "LRE, best rank": analysis.best_causality_at,
        **{name: partial(analysis.causality_baseline_at, name) for name in CAUSALITY_BASELINES},
    }
    return Table(
        "causality_by_layer",
        f"LRE causality across different layers of {lm_of(records)}, at the relations' ranks and at the best rank of "
        f"each layer and trial, compared with its baselines. {_over_relations(kept)}",
        ("layer", *methods),
        _sweep(kept, analysis.layers_of(kept), methods),
    )


def layers(records: Sequence[TrialRecord]) -> Table:
    """Scores by layer (figure "sweep", over all relations)."""
    kept = analysis.on_most_layers(records)
    methods = {"faithfulness": analysis.faithfulness_at, "causality": analysis.causality_at}
    return Table(
        "layers",
        f"LRE performance in different layers of {lm_of(records)}, with the relations' ranks. {_over_relations(kept)}",
        ("layer", *methods),
        _sweep(kept, analysis.layers_of(kept), methods),
    )


def ranks(records: Sequence[TrialRecord]) -> Table:
    """Scores by rank (figure "rank-sweep")."""
    kept = analysis.on_most_ranks(records)
    methods = {"faithfulness": analysis.faithfulness_at_rank, "causality": analysis.causality_at_rank}
    return Table(
        "ranks",
        f"LRE performance across ranks on {lm_of(records)}, at the relations' layers: causality with W inverted at the "
        f"rank, faithfulness with W cut down to it. {_over_relations(kept)}",
        ("rank", *methods),
        _sweep(kept, kept[0].ranks if kept else (), methods),
    )


def _over_relations(records: Iterable[TrialRecord]) -> str:
    return f"Means and standard deviations over {number_of(len(analysis.categories(records)))}."


def _sweep(
    records: Sequence[TrialRecord], points: Iterable[Point], methods: Mapping[str, Callable[[Point], Score]]
) -> tuple[Row, ...]:
    """A line for every point of an axis, with the mean over relations of every method."""
    return tuple(
        (point, *(analysis.over_relations(records, method(point)) for method in methods.values())) for point in points
    )


def n_shots(by_n: Mapping[int, Sequence[TrialRecord]]) -> Table:
    """Scores by the number n of training examples (figure "varying_n")."""
    scored = {n: analysis.counted(records) for n, records in by_n.items()}
    scored = {n: records for n, records in scored.items() if records}
    shared = _in_all(scored.values())
    rows = [(n, *_scores(_only(records, shared))) for n, records in sorted(scored.items())]
    lm = next((lm_of(records) for records in scored.values()), "the LM")
    return Table(
        "n_shots",
        f"LRE performance on {lm} across different n. Means and standard deviations over the "
        f"{number_of(len(shared))} scored at every n.",
        ("n", "faithfulness", "causality"),
        tuple(rows),
    )


def _in_all(groups: Iterable[Iterable[TrialRecord]]) -> set[str]:
    """The relations that occur in every group."""
    names = [{record.relation for record in group} for group in groups]
    return set.intersection(*names) if names else set()


def _only(records: Iterable[TrialRecord], relations: set[str]) -> list[TrialRecord]:
    return [record for record in records if record.relation in relations]


def templates(by_template: Mapping[int, Sequence[TrialRecord]]) -> Table:
    """Scores by prompt template, of the relations with several (table "prompt_template")."""
    scored = {index: analysis.counted(records) for index, records in sorted(by_template.items())}
    faithful = {index: analysis.per_relation(records, analysis.faithfulness) for index, records in scored.items()}
    causal = {index: analysis.per_relation(records, analysis.causality) for index, records in scored.items()}
    found: dict[str, dict[int, str]] = {}
    for index, records in scored.items():
        for record in records:
            found.setdefault(record.relation, {})[index] = record.template
    rows = [
        (relation, template, faithful[index].get(relation), causal[index].get(relation))
        for relation in _alphabetical(found)
        for index, template in found[relation].items()
        if len(found[relation]) > 1
    ]
    return Table(
        "templates",
        f"LRE performance on different prompt templates on {lm_of(next(iter(scored.values()), []))}. The subject is "
        "inserted in place of {}. Means and standard deviations over trials.",
        ("relation", "prompt template", "faithfulness", "causality"),
        tuple(rows),
    )


def mode_switch(main: Sequence[TrialRecord], bare: Sequence[TrialRecord]) -> Table:
    """Faithfulness by layer with and without relation-specific text (figure "mode-switch")."""
    shared = _in_all([analysis.counted(main), analysis.counted(bare)])
    with_text, without = (analysis.on_most_layers(_only(records, shared)) for records in (main, bare))

    def row(layer: Layer) -> Row:
        score = analysis.faithfulness_at(layer)
        return (layer, analysis.over_relations(with_text, score), analysis.over_relations(without, score))

    return Table(
        "mode_switch",
        f"LRE faithfulness across different layers of {lm_of(main)} with and without relation-specific text in the "
        f"prompt. {_over_relations(with_text)}",
        ("layer", "with relation-specific text", "without"),
        tuple(map(row, analysis.layers_of([*with_text, *without]))),
    )


def betas(records: Sequence[TrialRecord]) -> Table:
    """Scores by β (table "beta")."""
    lines = analysis.beta_scores(records)
    marks = {"correlation": analysis.best_beta(lines), "mean faithfulness": analysis.most_faithful_beta(lines)}

    def row(line: BetaScores) -> Row:
        best = ", ".join(name for name, beta in marks.items() if beta == line.beta)
        return (line.beta, line.faithfulness, line.causality, line.correlation, best or None)

    return Table(
        "betas",
        f"Scores achieved by LRE on different values of β on {lm_of(records)}, with the correlation of faithfulness "
        "and causality over relations. Means and standard deviations over relations; causality is always calculated "
        "with β set to 1.",
        ("β", "faithfulness", "causality", "correlation", "best"),
        tuple(map(row, lines)),
        exact=("β",),
    )


def correlations(records: Sequence[TrialRecord]) -> Table:
    """Agreement of the two scores by what chose layer and rank (figures "faith_vs_edit" and "scatter_faith")."""

    def row(criterion: Criterion) -> Row:
        chosen = reselect(records, criterion)
        pairs = analysis.paired(chosen, analysis.causality, analysis.faithfulness)
        above = sum(causal > faithful for causal, faithful in pairs)
        below = sum(causal < faithful for causal, faithful in pairs)
        equal = len(pairs) - above - below
        return (criterion, analysis.agreement(chosen), len(pairs), *_scores(chosen), above, equal, below)

    return Table(
        "correlations",
        f"Correlation (Pearson's R) of faithfulness and causality over relations on {lm_of(records)} when layer and "
        "rank are selected to achieve best causality, and best faithfulness; the number of relations whose causality "
        "is above, equal to and below their faithfulness. Means and standard deviations over relations.",
        ("chosen by", "R", "relations", "faithfulness", "causality", "above", "equal", "below"),
        (row("causality"), row("faithfulness")),
    )


def models_overview(models: Sequence[ModelResults]) -> Table:
    """The main numbers of several LMs (appendix "models")."""

    def row(name: str, results: ModelResults) -> Row:
        records = results.main
        scored = analysis.categories(analysis.counted(records))
        return (name, records[0].n_shot, len(scored), *_scores(records), analysis.agreement(records))

    return Table(
        "models",
        "LRE performance on different LMs, and the correlation (Pearson's R) of faithfulness and causality. Means and "
        "standard deviations over the relations that were scored.",
        ("LM", "n", "relations scored", "faithfulness", "causality", "R"),
        tuple(row(name, results) for name, results in zip(_names(models), models, strict=True)),
    )


def model_agreement(models: Sequence[ModelResults]) -> Table:
    """Rank correlation of faithfulness between each two LMs (appendix "models")."""
    names = _names(models)
    scores = [analysis.per_relation(results.main, analysis.faithfulness) for results in models]
    rows = [
        (
            names[i],
            names[j],
            analysis.correlation(scores[i], scores[j], ranks=True),
            len(set(scores[i]) & set(scores[j])),
        )
        for i, j in combinations(range(len(models)), 2)
    ]
    return Table(
        "model_agreement",
        "Spearman's rank-order correlation of relation-wise LRE faithfulness between LMs, over the relations that both "
        "have.",
        ("LM", "other LM", "Spearman's R", "relations"),
        tuple(rows),
    )


def underestimation(records: Sequence[TrialRecord]) -> Table:
    """How much W underestimates the change of F between subjects (table "line_int")."""
    pairs: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for record in analysis.counted(records):
        found = len(analysis.change_ratios(record))
        pairs[record.relation] += found
        left_out[record.relation] += len(record.line_integrals) - found
    ratios = analysis.underestimation(records)
    return Table(
        "underestimation",
        f"Ratio between the actual change of F from one subject to another and the change that W estimates on "
        f"{lm_of(records)}. Means and standard deviations over pairs of subjects; pairs whose estimate is not positive "
        "are left out.",
        ("relation", "pairs", "left out", "underestimation ratio"),
        tuple(
            (relation, pairs[relation], left_out[relation], ratios.get(relation))
            for relation in _alphabetical(pairs)
            if pairs[relation] or left_out[relation]
        ),
        digits=3,
    )


def dataset(models: Sequence[ModelResults]) -> Table:
    """Relations and known facts by category (table "dataset")."""
    relations = _any_of(models)
    known = [_enough_known(results.main) for results in models]

    def row(name: str, members: Sequence[TrialRecord]) -> Row:
        counts = [sum(mean for r in members for mean, _ in [facts.get(r.relation, (0.0, None))]) for facts in known]
        return (name, len(members), sum(record.samples for record in members), *counts)

    by_category = [
        row(category, [record for record in relations.values() if record.category == category])
        for category in dict.fromkeys(record.category for record in relations.values())
    ]
    return Table(
        "dataset",
        "Information about the dataset of relations: relations and samples by category, and test samples that the LM "
        "knows, summed over relations of the mean over trials. Relations of which an LM knows fewer than n test "
        "samples count as none.",
        ("category", "relations", "samples", *(f"known by {name}" for name in _names(models))),
        (*by_category, row("all", list(relations.values()))),
        totals=1,
        digits=1,
    )


def _names(models: Sequence[ModelResults]) -> list[str]:
    return short_names([results.model for results in models])


def _any_of(models: Sequence[ModelResults]) -> dict[str, TrialRecord]:
    """One record of every relation of any LM."""
    found: dict[str, TrialRecord] = {}
    for record in (record for results in models for record in results.main):
        found.setdefault(record.relation, record)
    return found


def _enough_known(records: Sequence[TrialRecord]) -> dict[str, Spread]:
    """Known test samples of the relations of which the LM knows at least n."""
    n = {record.relation: record.n_shot for record in records}
    return {relation: known for relation, known in analysis.known_facts(records).items() if known[0] >= n[relation]}


def full_dataset(models: Sequence[ModelResults]) -> Table:
    """Samples and known facts by relation (table "full-dataset")."""
    relations = _any_of(models)
    known = [_enough_known(results.main) for results in models]
    order = list(dict.fromkeys(record.category for record in relations.values()))
    records = sorted(relations.values(), key=lambda r: (order.index(r.category), -r.samples, r.relation))
    return Table(
        "full_dataset",
        "Number of samples per relation and the count of test samples that LMs answer right. Means and standard "
        "deviations over trials with different training examples; none where an LM knows fewer than n.",
        ("category", "relation", "samples", *(f"known by {name}" for name in _names(models))),
        tuple((r.category, r.relation, r.samples, *(facts.get(r.relation) for facts in known)) for r in records),
        digits=1,
    )


def first_tokens(models: Sequence[ModelResults]) -> Table:
    """Objects that their first tokens tell apart (table "first_token_filter")."""
    sizes = {relation: record.range_size for relation, record in _any_of(models).items()}
    counts = [{r.relation: r.first_tokens for r in results.main if r.first_tokens is not None} for results in models]
    measured = [relation for relation in _alphabetical(sizes) if any(relation in found for found in counts)]
    unique = [name for name in measured if all(found.get(name, sizes[name]) == sizes[name] for found in counts)]
    shares = [{relation: 100 * count / sizes[relation] for relation, count in found.items()} for found in counts]

    def row(relation: str) -> Row:
        cells = [(share.get(relation), found.get(relation)) for share, found in zip(shares, counts, strict=True)]
        return (relation, sizes[relation], *(cell for pair in cells for cell in pair))

    def summary(name: str, values: Iterable[float | None]) -> Row:
        return (name, None, *(cell for value in values for cell in (value, None)))

    collapsed = f"relations where all objects are uniquely identified ({len(unique)})"
    means = [statistics.fmean(share.values()) if share else None for share in shares]
    return Table(
        "first_tokens",
        "Relation-wise range (count of unique objects) along with the percentage of objects uniquely identified by "
        "their first token when tokenized with different LM tokenizers, and the count of unique first tokens.",
        ("relation", "|range|", *(head for name in _names(models) for head in (f"{name} %", f"{name} tokens"))),
        (
            *(row(relation) for relation in measured if relation not in unique),
            *([summary(collapsed, [100.0] * len(models))] if unique else []),
            summary("average", means),
        ),
        totals=1,
        digits=1,
    )
