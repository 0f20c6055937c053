"""The subcommand ``edit``."""

from __future__ import annotations

from lightning.pytorch.cli import LightningArgumentParser
from rich import box
from rich.console import Console
from rich.table import Table
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.validate import FromLREs
from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.editing import PromptEdit
from lre_lightning.lre.lre import first_trials, origins_of
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.storage.plain import printable
from lre_lightning.training.bank import LREStore, TrialKey


class Edit(FromLREs):
    """Edit the subject of a prompt, and let the LM go on.

    The LRE of the prompt's relation changes the hidden state of the subject, so that the LM answers for another
    subject, --target. Continuations before and after the edit are shown (the paper's table "causal-generations").
    """

    name = "edit"

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("prompt", type=str, help='the prompt, such as "The capital of Canada is"')
        parser.add_argument("--target", type=str, required=True, help="the subject to answer for instead")
        parser.add_argument("--relation", type=str | None, help="the relation whose LRE edits; found by its template")
        parser.add_argument("--subject", type=str | None, help="the subject in the prompt; found by the template")
        parser.add_argument("--layers", type=list[Layer] | None, help="the layers to edit; the LRE's own if not given")
        parser.add_argument("--magnitude", type=float, default=1.0, help="a factor of the edit")
        parser.add_argument("--max_new_tokens", type=int, default=10, help="the number of tokens to generate")
        parser.add_argument("--samples", type=int, default=2, help="the number of sampled continuations")
        self.add_lres(parser, "take the LRE from")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Find the relation in a collection, before the LM is loaded."""
        super().check(line)
        if line.collection is not None:
            find_key(line.collection, line.options.prompt, line.options.relation)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        options, (lm, lres, _) = line.options, self.lres_of(line)
        lre = lres[find_key(lres, options.prompt, options.relation)].bind(lm)
        edit = lre.edit_prompt(options.prompt, options.target, options.subject, options.layers, options.magnitude)
        form = "as the user's message in a chat" if lre.origin.form["chat"] else "as plain text"
        print_edit(edit, f"{lre.origin.relation}, {form}", options.max_new_tokens, options.samples)


def find_key(lres: LREStore | LRECollection, prompt: str, relation: str | None) -> TrialKey:
    """Return the key of a relation, of the only one, or of the only one that a prompt asks; of its first trial."""
    first = first_trials(sorted(lres))
    if relation is None and len(first) == 1:
        (relation,) = first
    if relation is None:
        matching = sorted(name for name, origin in origins_of(lres).items() if origin.asked_in(prompt))
        if len(matching) != 1:
            names = ", ".join(map(repr, matching)) or "no LRE"
            named = f"as in --relation {next(iter(matching or first), 'NAME')!r}"
            raise LREError(f"the prompt {prompt!r} has the form of {names}: name the relation, {named}")
        (relation,) = matching
    if relation not in first:
        raise LREError(f"there is no LRE of {relation!r}: there are those of {', '.join(first)}")
    return relation, first[relation]


def print_edit(edit: PromptEdit, how: str, max_new_tokens: int, samples: int) -> None:
    """Print how the LM continues a prompt before and after an edit, and how it was edited."""
    table = Table("", f"before: {edit.prompt.subject}", f"after: {edit.target}", box=box.SIMPLE_HEAD)
    table.title, table.title_justify = f"{edit.prompt.text} \u2026", "left"
    for number, texts in enumerate(edit.continuations(max_new_tokens, samples)):
        table.add_row(f"sample {number}" if number else "greedy", *map(printable, texts))
    table.add_row("next token", str(edit.before), str(edit.after))
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(table)
    console.print(f"{how}, layer {', '.join(map(str, edit.layers))}")
