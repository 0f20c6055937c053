"""The subcommand ``predict``."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import add_weights_only, find_checkpoint
from lre_lightning.commands.validate import FromLREs
from lre_lightning.errors import LREError, first_line
from lre_lightning.lens.files import write_lenses
from lre_lightning.lens.lens import LensGrid, mentioned, print_lenses, read_lenses, with_subjects
from lre_lightning.lens.likeness import Likenesses, check_false_alarms
from lre_lightning.lens.table import AnswerTable, check_name, write_answers
from lre_lightning.lre.lre import first_trials, origins_of
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.texts import Text, read_text_file
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.storage.plain import shown as shown_text
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
        add_weights_only(parser)
        parser.add_argument("texts", nargs="*", type=str, help="texts; one per line of standard input if none")
        file = "file with a text per line, or a table or data set, perhaps with columns subject and relation"
        parser.add_argument("--file", type=str | None, default=None, help=file)
        parser.add_argument("--text_column", type=str, default="text", help="column of texts in a table or data set")
        parser.add_argument("--split", type=str | None, default=None, help="split of a data set")
        subject = "whom each text is about, where it is read; found by the templates and the samples of relations"
        parser.add_argument("--subject", type=str | None, default=None, help=subject)
        every = "show all relations, not those alone that a text asks for or has a subject of; as --data.relations does"
        parser.add_argument("--all", type=bool, default=False, help=every)
        jlens = "Jacobian lens to show as well, or alone: a file, a folder or a hub name"
        parser.add_argument("--jlens", type=str | None, default=None, help=jlens)
        silence = "share of tokens about something else at which lenses of relations may speak, such as 0.05: they say "
        silence += (
            "nothing where a hidden state is too unlike their training subjects; if not given they speak everywhere"
        )
        parser.add_argument("--false_alarms", type=float | None, default=None, help=silence)
        table = "write the answers to this .csv or .jsonl file, or continue it"
        parser.add_argument("--table", type=str | None, default=None, help=table)
        parser.add_argument("--top_k", type=int, default=5, help="number of answers in a row of the table")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Take the options of the checkpoint, read standard input if there are no texts, and read the first text."""
        jlens, folder = line.options.jlens, Path(line.options.checkpoint.dirpath)
        if jlens is not None and line.options.ckpt_path == "last" and find_checkpoint("last", folder) is None:
            line.options.ckpt_path = None
        named = line.options.data.relations is not None  # here, and not by the fit
        super().check(line)
        options = line.options
        check_false_alarms(options.false_alarms)
        options.all = options.all or named
        if jlens is not None:
            options.model.fitting.jacobian_lens = jlens
        options.texts = [*options.data.loader.texts, *options.texts]
        if not options.texts and options.file is None and not sys.stdin.isatty():
            try:
                options.texts = [text for text in sys.stdin.read().splitlines() if text.strip()]
            except UnicodeDecodeError as error:
                raise LREError(f"the texts on standard input cannot be read: {first_line(error)}") from error
        if options.table is not None:
            if options.false_alarms is not None:
                raise LREError("a table has answers only, at any subject: leave --false_alarms or --table out")
            if jlens is not None:
                raise LREError("a table has the answers of LREs, not of a Jacobian lens: leave --jlens or --table out")
            check_name(Path(options.table))
        if next(given_texts(options), None) is None:
            raise LREError("there is no text: give it as an argument, in a --file, or on standard input")

    @override
    def run(self, line: LRECommandLine) -> None:
        """Print the lenses, and write them as pictures, as a page and as data, or write the table."""
        if line.options.table is None:
            self.show_lenses(line)
        elif line.trainer.is_global_zero:
            write_table(line, *self.lres_of(line))

    def show_lenses(self, line: LRECommandLine) -> None:
        """Print the lenses of all texts, and write them to files."""
        options, tokenizer = line.options, line.datamodule.tokenizer
        texts = list(given_texts(options))
        if line.collection is not None and not line.trainer.is_global_zero:
            return
        if line.collection is not None:
            (lm, lres, names), lens = self.lres_of(line), line.model.jacobian_lens
            rate = options.false_alarms
            likenesses = None if rate is None else Likenesses(lm, lres, false_alarms=rate)
            grids = [
                read_lenses(lm, tokenizer, text.text, lres, names, jacobian_lens=lens, likenesses=likenesses)
                for text in texts
            ]
        else:
            if line.trainer.world_size > 1:
                raise LREError(
                    f"one process reads texts, and the Trainer has {line.trainer.world_size}: give --trainer.devices 1"
                )
            line.model.false_alarms = options.false_alarms
            line.datamodule.texts = [text.text for text in texts]
            predictions = line.trainer.predict(
                line.model,
                datamodule=line.datamodule,
                ckpt_path=options.ckpt_path,
                weights_only=options.weights_only,
            )
            grids = cast("list[list[LensGrid]]", predictions or [])
            texts = texts[: len(grids)]  # limit_predict_batches may leave some out
        folder = Path(line.trainer.default_root_dir) / "predictions"  # "lenses" is the fit's
        asked = Asked(line)
        shown = [asked.of(text, lenses) for text, lenses in zip(texts, grids, strict=True)]
        grids = [lenses for lenses, _ in shown]
        for text, (lenses, notes) in zip(texts, shown, strict=True):
            if len(lenses) > 1 and not notes:
                print(f"{shown_text(text.text)} asks about no relation and mentions no subject of one: all are shown")
        print_lenses(grids, [notes for _, notes in shown])
        write_lenses(grids, folder)
        print(f"Every layer and token: {folder / 'lenses.html'}")


class Asked:
    """What texts have to do with relations: they ask about one, or mention a subject of it.

    Args:
        line: The command line, with the LREs, and the relations of the data if they can be read.
    """

    def __init__(self, line: LRECommandLine) -> None:
        lres = line.model.bank.lres if line.collection is None else line.collection
        self._all = line.options.all
        self._tokenizer = line.datamodule.tokenizer
        self._origins = origins_of(lres)
        self._subjects = subjects_of(line, lres)

    def of(self, text: Text, lenses: Sequence[LensGrid]) -> tuple[list[LensGrid], dict[str, str]]:
        """Choose and order the lenses of a text, and mark the subject in them.

        Returns:
            Those of the relations that it asks about, those of which it mentions a subject, and the others if they are
            wanted or there are no such; and by relation what the text does.
        """
        notes: dict[str, str] = {}
        subjects: dict[str, str | None] = {}
        ranks: dict[str, int] = {}
        for lens in (lens for lens in lenses if lens.layer is not None):
            asked = self._origins[lens.name].subject_of(text.text)
            subject = asked or mentioned(text.subject or text.text, self._subjects[lens.name])
            if subject:
                notes[lens.name] = "asks" if asked else "mentions"
            subjects[lens.name] = text.subject or subject
            ranks[lens.name] = 0 if asked else 1 if subject else 2
        least = 2 if self._all or not notes else 1
        shown = sorted((name for name in ranks if ranks[name] <= least), key=ranks.__getitem__)
        by_name = {lens.name: lens for lens in lenses}
        others = [lens for lens in lenses if lens.layer is None]
        chosen = {name: subjects[name] for name in shown} or {others[0].name: text.subject}
        return with_subjects([*(by_name[name] for name in shown), *others], self._tokenizer, chosen), notes


def subjects_of(line: LRECommandLine, lres: LREStore | LRECollection) -> dict[str, set[str]]:
    """Return the subjects of relations: those that LREs were estimated from, and those of the data."""
    subjects = {name: {subject for subject, _ in origin.train} for name, origin in origins_of(lres).items()}
    with suppress(LREError):  # a collection needs no data
        for relation in line.datamodule.candidates():
            subjects.setdefault(relation.name, set()).update(sample.subject for sample in relation.samples)
    return subjects


def given_texts(options: Any) -> Iterator[Text]:
    """Yield the texts of the command line, and then those of its file or data set."""
    file = [] if options.file is None else read_text_file(options.file, options.text_column, options.split)
    for text in chain(map(Text, options.texts), file):
        yield replace(text, subject=text.subject or options.subject)


def write_table(line: LRECommandLine, lm: LanguageModel, lres: LREStore | LRECollection, names: Sequence[str]) -> None:
    """Write the answers about all texts to the table, or continue it."""
    options, trials = line.options, first_trials(lres)
    keys = [(name, trials[name]) for name in names if name in trials]
    if not keys:
        raise LREError(NO_LRE)
    lenses = json.dumps([lres.metadata[key] for key in keys], sort_keys=True)
    source = [options.texts, options.file, options.text_column, options.split, options.subject]
    origin = {"texts": source, "lres": hashlib.sha256(lenses.encode()).hexdigest(), "top_k": options.top_k}
    table, readers = AnswerTable(Path(options.table), origin), [lres[key] for key in keys]
    batch_size = line.datamodule.loader.batch_size
    done = write_answers(lm, readers, given_texts(options), table, options.top_k, batch_size)
    print(f"{done} texts, {len(keys)} relations: {options.table}")
