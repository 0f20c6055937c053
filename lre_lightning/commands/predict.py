"""The subcommand ``predict``."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import find_checkpoint
from lre_lightning.commands.validate import FromLREs
from lre_lightning.errors import LREError, first_line
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.files import write_lenses
from lre_lightning.lens.likeness import FALSE_ALARMS, Likenesses, check_false_alarms
from lre_lightning.lens.reading import print_lenses, read_lenses, readings_of
from lre_lightning.lens.subjects import Found, Subjects
from lre_lightning.lens.table import AnswerTable, check_name, write_answers
from lre_lightning.lre.lre import first_trials, origins_of
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.mentions import mentions
from lre_lightning.prompts.texts import Text, read_text_file
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.training.bank import LREStore
from lre_lightning.training.module import NO_LRE


class Predict(FromLREs):
    """Show what an LM knows about the subjects of texts.

    With --table, answers about any number of texts go to a table, beside the LM's own next token.
    """

    name = "predict"
    resumable = True
    logs = False

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        self.add_lres(parser, "take the LREs from")
        parser.add_argument("texts", nargs="*", type=str, help="texts; one per line of standard input if none")
        file = "file with one text per line, or a table or data set; it may have columns subject and relation"
        parser.add_argument("--file", type=str | None, default=None, help=file)
        parser.add_argument("--text_column", type=str, default="text", help="column of texts in a table or data set")
        parser.add_argument("--split", type=str | None, default=None, help="split of a data set")
        subject = "the subject of each text, as the text spells it; by default all subjects of the relations are found"
        parser.add_argument("--subject", type=str | None, default=None, help=subject)
        every = "show all relations at all tokens, also where the answers are likely to be nonsense"
        parser.add_argument("--all", type=bool, default=False, help=every)
        jlens = "Jacobian lens to show as well, or alone: a file, a folder or a hub name"
        parser.add_argument("--jlens", type=str | None, default=None, help=jlens)
        silence = (
            "the share of tokens other than subjects at which the lens of a relation may answer all the same; with a "
            f"higher share there are more rows, and there is more nonsense ({FALSE_ALARMS} unless --all)"
        )
        parser.add_argument("--false_alarms", type=float | None, default=None, help=silence)
        page = "write every layer and token as well, as pictures, a page and data, to the run's folder predictions/"
        parser.add_argument("--page", type=bool, default=False, help=page)
        table = "write the answers to this .csv or .jsonl file, or continue it"
        parser.add_argument("--table", type=str | None, default=None, help=table)
        parser.add_argument("--top_k", type=int, default=5, help="number of answers in a row of the table")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, read standard input if there are no texts, and read all texts once."""
        jlens, folder = line.options.jlens, Path(line.options.checkpoint.dirpath)
        if jlens is not None and line.options.ckpt_path == "last" and find_checkpoint("last", folder) is None:
            line.options.ckpt_path = None
        self.named = line.options.data.relations is not None  # here, and not by the fit
        super().check(line)
        options = line.options
        check_false_alarms(options.false_alarms)
        options.texts = [*options.data.loader.texts, *options.texts]
        if not options.texts and options.file is None and not sys.stdin.isatty():
            try:
                options.texts = [text for text in sys.stdin.read().splitlines() if text.strip()]
            except UnicodeDecodeError as error:
                raise LREError(f"the texts on standard input cannot be read: {first_line(error)}") from error
        if options.table is not None:
            if jlens is not None:
                raise LREError("a table has the answers of LREs, not of a Jacobian lens: leave --jlens or --table out")
            check_name(Path(options.table))
        options.number = sum(1 for _ in given_texts(options))
        if not options.number:
            raise LREError("there is no text: give it as an argument, in a --file, or on standard input")

    @override
    def run(self, line: LRECommandLine) -> None:
        """Print what lenses say, perhaps with a page of every layer and token, or write the table."""
        if line.options.jlens is not None:
            line.model.jacobian_lens = JacobianLens.load(line.options.jlens, line.model.lm)
        if not line.trainer.is_global_zero:
            return
        options, (lm, lres, names) = line.options, self.lres_of(line)
        origins = {name: origin for name, origin in origins_of(lres).items() if name in names}
        if not origins and (line.model.jacobian_lens is None or options.table is not None):
            raise LREError(NO_LRE)
        subjects = Subjects(origins, self.subjects_of(line), every=options.all or self.named)
        rate = options.false_alarms or (None if options.all else FALSE_ALARMS)
        if options.table is not None:
            write_table(line, lm, lres, subjects, rate)
        else:
            show_lenses(line, lm, lres, subjects, rate, self.faithfulness_of(line))


def given_texts(options: Any) -> Iterator[Text]:
    """Yield the texts of the command line, and then those of its file or data set."""
    file = [] if options.file is None else read_text_file(options.file, options.text_column, options.split)
    for text in chain(map(Text, options.texts), file):
        yield replace(text, subject=text.subject or options.subject)


def show_lenses(
    line: LRECommandLine,
    lm: LanguageModel,
    lres: LREStore | LRECollection,
    subjects: Subjects,
    rate: float | None,
    scores: Mapping[str, float],
) -> None:
    """Print the lenses of all texts; with --page, write every layer and token as pictures, as a page and as data."""
    page, likenesses, trials = line.options.page, None, first_trials(lres)
    if rate is not None and subjects.by_relation:
        own = None if page else [*{lres.metadata[name, trials[name]]["layer"]: None for name in subjects.by_relation}]
        likenesses = Likenesses(lm, lres, own, rate)
    check_limits(line, likenesses, subjects)
    grids, shown = {}, []
    for text in given_texts(line.options):
        found = subjects.find(text)
        names = [*found]
        if not found and text.subject:  # for lenses without a relation
            found = {"": Found(mentions(text.text, [text.subject]))}
        how = {"jacobian_lens": line.model.jacobian_lens, "likenesses": likenesses, "own_layers": not page}
        lenses = grids[text.text] = read_lenses(lm, lm.tokenizer, text.text, lres, names, **how, found=found)
        shown.append([lens for lens in lenses if lens.layer is None or subjects.every or readings_of(lens)])
    print_lenses(grids, scores, subjects.hint(scores) if subjects.by_relation else "")
    if page:
        folder = Path(line.trainer.default_root_dir) / "predictions"  # "lenses" is the fit's
        write_lenses(shown, folder)
        print(f"Every layer and token: {folder / 'lenses.html'}")


def write_table(
    line: LRECommandLine, lm: LanguageModel, lres: LREStore | LRECollection, subjects: Subjects, rate: float | None
) -> None:
    """Write the answers about all texts to the table, or continue it."""
    options, trials = line.options, first_trials(lres)
    keys = [(name, trials[name]) for name in subjects.by_relation]
    lenses = json.dumps([lres.metadata[key] for key in keys], sort_keys=True)
    rule = json.dumps([rate, subjects.every, subjects.by_relation])
    source = [options.texts, options.file, options.text_column, options.split, options.subject]
    digest = hashlib.sha256((lenses + rule).encode()).hexdigest()
    origin = {"texts": source, "lres": digest, "top_k": options.top_k}
    table, readers = AnswerTable(Path(options.table), origin), [lres[key] for key in keys]
    layers = [*{lre.layer for lre in readers}]
    likenesses = None if rate is None else Likenesses(lm, lres, layers, rate)
    check_limits(line, likenesses, subjects)
    size = line.datamodule.loader.batch_size
    done = write_answers(
        lm, readers, given_texts(options), table, options.top_k, size, subjects, likenesses, options.number
    )
    print(f"{done} texts, {len(keys)} relations: {options.table}")


def check_limits(line: LRECommandLine, likenesses: Likenesses | None, subjects: Subjects) -> None:
    """Raise an `LREError` if a share of false alarms that is asked for cannot be kept."""
    if likenesses is not None and line.options.false_alarms is not None:
        for name in subjects.by_relation:
            likenesses.check(name)
