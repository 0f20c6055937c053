"""The subcommand ``data``: relations with their counts, and prompts as an LM sees them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lightning.pytorch.cli import LightningArgumentParser
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.demo import DEMO
from lre_lightning.errors import check_number
from lre_lightning.models.tokenizer import token_text
from lre_lightning.progress import progress
from lre_lightning.prompts.prompt import FirstTokenCoverage, Prompt
from lre_lightning.prompts.trials import test_prompts
from lre_lightning.relations.json_files import write_relations
from lre_lightning.relations.quality import Problem, find_problems
from lre_lightning.relations.relation import Relation
from lre_lightning.report.console import wide_console
from lre_lightning.sharing.data_set import write_data_set

BOUNDARY, LINE_END = "│", "↵"
OPEN, CLOSE = "⟦", "⟧"
SUBJECT = "bold reverse"
MOST_GROUPS = 5
"""The number of groups of objects with the same first token that are shown."""


class Data(Command):
    """List relations, and show prompts as an LM sees them."""

    name = "data"
    needs_lm = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        names = "names, categories or paths of relations; all if none"
        parser.add_argument("relations", nargs="*", type=str, help=names)
        parser.add_argument("--prompts", type=int, default=0, help="number of prompts to show per relation")
        parser.add_argument("--check", type=bool, default=False, help="list the problems of the data")
        parser.add_argument("--out", type=str | None, default=None, help="folder to write the relations to, as JSON")
        table = "folder to write the relations to as a data set of the hub, with a card; lre push shares it"
        parser.add_argument("--dataset", type=str | None, default=None, help=table)
        parser.add_argument("--license", type=str | None, default=None, help='licence for that card, such as "mit"')
        parser.add_class_arguments(RelationDataModule, "data")

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        check_number("prompts", options.prompts, 0)
        given = options.data.as_dict() | ({"relations": options.relations} if options.relations else {})
        data = RelationDataModule(**given)
        print_data(data, options.prompts, options.check)
        if options.out is not None:
            print(f"relations written to {options.out}: {len(write_relations(data.candidates(), options.out))}")
        if options.dataset is not None:
            write_data_set(data.candidates(), options.dataset, options.license)
            print(f"data set written to {options.dataset}; share it with: lre push {options.dataset} org/name")


def print_data(data: RelationDataModule, prompts: int, check: bool) -> None:
    """Print the relations with their counts, a number of prompts of each, and the problems of the data."""
    relations = data.candidates()
    rows = [
        (relation, data.coverage(relation), find_problems(relation)) for relation in progress(relations, "Relations")
    ]
    table = relations_table(rows)
    console = wide_console(table)
    console.soft_wrap = True
    console.print(table)
    samples = sum(len(relation.samples) for relation, _, _ in rows)
    first, objects = (sum(getattr(c, name) for _, c, _ in rows) for name in ("unique_first_tokens", "range_size"))
    count = "1 relation" if len(rows) == 1 else f"{len(rows)} relations"
    console.print(f"{count}, {samples} samples; {first} of {objects} objects have a first token of their own.")
    named = data.hparams.get("tokenizer", DEMO)
    console.print(f"Tokens are those of {named}; --data.tokenizer takes another LM's.")
    kinds = Counter(problem.kind for _, _, problems in rows for problem in problems)
    if kinds:
        console.print("Problems: " + ", ".join(f"{number} {kind}" for kind, number in kinds.most_common()) + ".")
    if check:
        for relation, _, problems in rows:
            for problem in problems:
                console.print(f"{relation.name}: {problem.what}" + (" (repair)" if problem.repairable else ""))
    if prompts:
        for relation, coverage, _ in rows:
            _print_prompts(console, data, relation, coverage, prompts)


def relations_table(rows: Sequence[tuple[Relation, FirstTokenCoverage, Sequence[Problem]]]) -> Table:
    """Build the table, with one row per relation."""
    table = Table(title="Relations", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("relation", "category", "domain", "range", "function"):
        table.add_column(name, no_wrap=True)
    for name in ("samples", "subjects", "objects", "first tokens", "templates", "to repair", "to note"):
        table.add_column(name, justify="right", no_wrap=True)
    for relation, coverage, problems in rows:
        repairable = sum(problem.repairable for problem in problems)
        table.add_row(
            relation.name,
            relation.category,
            relation.domain_name,
            relation.range_name,
            relation.function,
            str(len(relation.samples)),
            str(len({sample.name for sample in relation.samples})),
            str(coverage.range_size),
            f"{coverage.unique_first_tokens} ({coverage.fraction:.0%})",
            f"{len(relation.prompt_templates)} + {len(relation.zero_shot_templates)}",
            str(repairable or "-"),
            str(len(problems) - repairable or "-"),
        )
    return table


def prompt_text(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Text:
    """Return a prompt as the LM sees it: tokens separated by `BOUNDARY`, the subject's between `OPEN` and `CLOSE`."""
    start, end = prompt.subject_span
    text = Text()
    for place, token in enumerate(prompt.input_ids):
        if place == start:
            text.append(OPEN)
        elif place:
            text.append(CLOSE if place == end else BOUNDARY, "dim")
        piece = token_text(tokenizer, token).replace("\n", f"{LINE_END}\n")
        text.append(piece, SUBJECT if start <= place < end else "")
    if end == len(prompt.input_ids):
        text.append(CLOSE)
    return text


def _print_prompts(
    console: Console, data: RelationDataModule, relation: Relation, coverage: FirstTokenCoverage, count: int
) -> None:
    console.print(f"\n{relation.name}", style="bold")
    for group in coverage.collisions[:MOST_GROUPS]:
        console.print(f"one first token: {', '.join(map(repr, group))}")
    if len(coverage.collisions) > MOST_GROUPS:
        console.print(f"and {len(coverage.collisions) - MOST_GROUPS} more groups")
    trial = data.draw(relation, data.selection.first_trial)
    chosen = range(min(count, len(trial.test_asked)))
    for prompt in test_prompts(trial, data.tokenizer, list(chosen), data.prompts):
        console.print()
        console.print(prompt_text(prompt, data.tokenizer))
        tokens = [str(name) for name in data.tokenizer.convert_ids_to_tokens(list(prompt.object_tokens))]
        console.print(f"  -> {prompt.object!r}, tokens {BOUNDARY.join(tokens)}", style="dim")
