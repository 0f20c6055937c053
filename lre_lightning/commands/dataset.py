"""What an LM knows of the relations, counted without estimating anything (tables "dataset" and "full-dataset")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import track

from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord, read_records, write_records
from lre_lightning.report.analysis import by_model
from lre_lightning.report.tables import Table, dataset, first_tokens, full_dataset
from lre_lightning.scoring.scores import new_record
from lre_lightning.scoring.states import PromptStates

if TYPE_CHECKING:
    from lre_lightning.datamodules import RelationDataModule


def count_known(lm: LanguageModel, data: RelationDataModule, path: Path | None = None) -> list[TrialRecord]:
    """Count for every relation and trial how many test samples the LM knows under the n-shot context.

    Args:
        lm: The LM, on the device where it is to run.
        data: The relations.
        path: A file to keep the records in after every trial; what it holds already is not counted again.

    Returns:
        The records of all relations and trials, not scored.

    Raises:
        LREError: If the file is broken.
    """
    done = {record.key: record for record in read_records([path])} if path and path.is_file() else {}
    records: list[TrialRecord] = []
    pairs = range(len(data.schedule))
    for pair in track(pairs, "Known facts", console=Console(stderr=True), disable=not Console(stderr=True).is_terminal):
        draw = data.trial(pair)
        record = replace(new_record(draw, data, len(draw.test_asked), known=0), model=lm.name)
        earlier = done.get(record.key)
        if earlier is None or (earlier.train, earlier.digest) != (record.train, record.digest):
            known = sum(
                int(PromptStates.run(lm, batch, lm.layers[-1:]).known.sum()) for batch in data.val_dataloader([pair])
            )
            done[record.key] = replace(record, known=known)
            if path:
                write_records(done.values(), path)
        records.append(done[record.key])
    return records


def tables_of(records: Sequence[TrialRecord]) -> tuple[Table, ...]:
    """The tables "dataset", "full-dataset" and "first_token_filter" of records, scored or not."""
    models = by_model(records)
    return dataset(models), full_dataset(models), first_tokens(models)
