"""The subcommand ``dataset``: what an LM knows of the relations, counted without estimating anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.records.analysis import by_model
from lre_lightning.records.files import read_records, write_records
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.summary import summarize
from lre_lightning.report.comparison import dataset_tables
from lre_lightning.report.console import print_unscored, show_tables
from lre_lightning.scoring.scores import new_record
from lre_lightning.scoring.states import knows
from lre_lightning.sharing.task import GROUP, write_task
from lre_lightning.storage.locks import FolderLock


class Dataset(Command):
    """Count what an LM knows of the relations.

    No LRE is estimated. Counted are the samples, the facts that the LM knows, and the objects that their first token
    tells apart (the paper's tables "dataset", "full-dataset" and "first_token_filter"). The tables go as CSV and LaTeX
    to the folder ``dataset`` below --trainer.default_root_dir. The same command resumes a count that was stopped.
    """

    name = "dataset"
    resumable = True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        task = "folder to write the prompts to, as a task of lm-evaluation-harness that counts the same"
        parser.add_argument("--task", type=str | None, default=None, help=task)

    @override
    def run(self, line: LRECommandLine) -> None:
        if not line.trainer.is_global_zero:
            return
        root = Path(line.trainer.default_root_dir)
        with FolderLock(root, "dataset"):
            records = count_known(line.placed_lm(), line.datamodule, root / "dataset_results.jsonl")
            show_tables(dataset_tables(by_model(records)), root / "dataset")
            enough = {record.relation for record in records if record.told_apart and record.known >= record.n_shot}
            print_unscored(summarize(record for record in records if record.relation not in enough))
            if line.options.task is not None:
                written, left_out = write_task(line.datamodule, Path(line.options.task))
                known = sum(record.known for record in records)
                print(f"task {GROUP} written to {line.options.task}: {written} prompts; {known} known")
                if left_out:
                    print(f"left out: {left_out} prompts, of whose texts the harness would make other tokens")


def count_known(lm: LanguageModel, data: RelationDataModule, path: Path) -> list[TrialRecord]:
    """Count for every relation and trial the test samples that the LM knows under the n-shot context.

    The records, which are not scored, are kept in the file after every trial; those that it holds already are not
    counted again.
    """
    done = {record.key: record for record in read_records([path])} if path.is_file() else {}
    records: list[TrialRecord] = []
    for index in progress(range(len(data.schedule)), "Known facts"):
        trial = data.trial(index)
        record = replace(new_record(trial, data, len(trial.test_asked), known=0), model=lm.label)
        earlier = done.get(record.key)
        if earlier is None or (earlier.train, earlier.digest) != (record.train, record.digest):
            batches = data.val_dataloader([index])
            known = sum(int(knows(lm, batch).sum()) for batch in batches)
            done[record.key] = replace(record, known=known)
            write_records(done.values(), path)
        records.append(done[record.key])
    return records
