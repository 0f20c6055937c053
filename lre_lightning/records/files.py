"""Files of records, one per line (JSON Lines), and what is read from them: a list that is a table, too."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError
from lre_lightning.html import html_table
from lre_lightning.records.record import TrialRecord
from lre_lightning.storage.files import safe_name, written_whole

if TYPE_CHECKING:
    import datasets  # type: ignore[import-untyped]
    import pandas  # type: ignore[import-untyped]


def write_records(records: Iterable[TrialRecord], path: Path, append: bool = False) -> None:
    """Write records to a file, one per line, atomically; with `append` to those that the file has, all or none."""
    with written_whole(path, append) as part, part.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(record.plain(), ensure_ascii=False) + "\n" for record in records)


def write_tables(records: Iterable[TrialRecord], folder: Path, prefix: str) -> None:
    """Write the rows of every measure whose rows have columns, as ``<prefix>_<measure>.csv`` and ``.parquet``."""
    records = Records(records)
    for name in dict.fromkeys(n for record in records for n, found in record.measures.items() if found.columns):
        table, path = records.to_pandas(name), folder / f"{prefix}_{safe_name(name)}"
        with written_whole(path.with_name(f"{path.name}.csv")) as part:
            table.to_csv(part, index=False, lineterminator="\n")
        with written_whole(path.with_name(f"{path.name}.parquet")) as part:
            table.astype({"layer": str}).to_parquet(part, index=False)


class Records(list[TrialRecord]):
    """A list of records, which shows itself as the table of results in notebooks, and is a data frame if need be."""

    def to_pandas(self, measure: str | None = None) -> pandas.DataFrame:
        """Return one tidy table of all scores, a `pandas.DataFrame`: see `lre_lightning.records.rows`.

        With the name of a measure whose rows have columns, such as ``"facts"``, it is those rows.

        Raises:
            LREError: If no record has rows with columns of that measure.
        """
        import pandas

        from lre_lightning.records.rows import COLUMNS, measured_rows, rows

        if measure is None:
            return pandas.DataFrame(rows(self), columns=list(COLUMNS))
        return pandas.DataFrame(measured_rows(self, measure))

    def to_dataset(self) -> datasets.Dataset:
        """Return the table of `to_pandas` as a `datasets.Dataset`, its layers as text."""
        import datasets

        from lre_lightning.records.rows import rows

        return datasets.Dataset.from_list(
            [row | {"layer": None if row["layer"] is None else str(row["layer"])} for row in rows(self)]
        )

    def _repr_html_(self) -> str:
        from lre_lightning.records.summary import summarize

        columns = ("relation", "known", "trials", "layer", "rank", "beta", "faithfulness", "causality")
        rows = [[getattr(summary, name) for name in columns] for summary in summarize(self)]
        means = [[value[0] if isinstance(value, tuple) else value for value in row] for row in rows]
        return html_table(means, columns)


def read_records(paths: str | Path | Iterable[str | Path]) -> Records:
    """Read and merge the records of one or several runs, such as jobs that each had some of the relations.

    Args:
        paths: One or several files that `write_records` wrote, or folders of runs, in which every
            ``fit_results.jsonl`` is read.

    Returns:
        The records in the order of the files; a record that several files have is returned once.

    Raises:
        LREError: There is no such file, one is invalid, or two files have different records of the same relation,
            trial and prompts.
    """
    by_key: dict[tuple[Any, ...], tuple[TrialRecord, Path]] = {}
    paths = [paths] if isinstance(paths, str | Path) else paths
    for path in [file for given in paths for file in result_files(Path(given))]:
        for place, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                record = TrialRecord.from_plain(json.loads(line.decode()))
            except (ValueError, RecursionError) as error:
                raise LREError(f"{str(path)!r}, line {place}, is not a record of results: {error}") from error
            kept, other = by_key.setdefault(record.key, (record, path))
            if kept != record:
                raise LREError(
                    f"{str(other)!r} and {str(path)!r} both have trial {record.trial} of {record.relation!r} "
                    f"(n = {record.n_shot}, {record.template!r}), with different counts: give one of them"
                )
    return Records(record for record, _ in by_key.values())


def result_files(path: Path) -> list[Path]:
    """Return the files that `read_records` reads for a path: the path itself, or those of the runs in a folder."""
    if os.path.isfile(path):
        return [path]
    files = sorted(path.rglob("fit_results.jsonl")) if os.path.isdir(path) else []
    if not all(map(os.path.isfile, files)) or not files:
        raise LREError(f"there is no fit_results.jsonl in {str(path)!r}: give a run's folder, or such a file")
    return files
