"""Free texts from a file or a data set, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.relations.data_sets import is_hub_name, is_saved, open_hub, open_loaded, open_saved
from lre_lightning.relations.formats import Rows, has_table_suffix, open_rows, readable
from lre_lightning.storage.plain import mapping, shown, text


@dataclass(frozen=True)
class Text:
    """A text that an LM is to read.

    Attributes:
        text: The text.
        subject: A part of the text, whose last mention is read; None if it is not known.
        relation: The only relation whose LRE is to read it; None for all.

    Raises:
        LREError: If the text does not contain the subject.
    """

    text: str
    subject: str | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        if self.subject is not None and self.subject not in self.text:
            raise LREError(f"the text {shown(self.text)} does not contain the subject {self.subject!r}")


def read_texts(source: str | Path, column: str = "text", split: str | None = None) -> Iterator[Text]:
    """Read texts one by one, so that a source of any size does.

    Args:
        source: A text file with one text per line, whose blank lines are left out; a table in CSV, JSON Lines or
            Parquet; a folder written by `save_to_disk` of a `datasets.Dataset`; or the name of a data set of the Hub.
            Tables and data sets may have columns `subject` and `relation`.
        column: The column of texts in a table or a data set.
        split: The split of a data set, if it has several.

    Raises:
        LREError: If there is no such source or column, or a value is not text.
    """
    opened = open_texts(source, column, split)
    if isinstance(opened, Path):
        yield from map(Text, lines_of(opened))
        return
    for part in opened:
        yield from _rows(part, column)


def open_texts(source: Any, column: str, split: str | None) -> list[Rows] | Path:
    """Open a table or a data set, which may be one in memory, or return the path of a text file.

    Raises:
        LREError: If there is no such source or column.
    """
    path = Path(source) if isinstance(source, str | Path) else None
    if path is None:
        parts = open_loaded(source, split=split)[2]
    elif is_saved(path):
        parts = open_saved(path, split)[2]
    elif not path.exists() and is_hub_name(str(source)):
        parts = open_hub(str(source), {"split": split})[2]
    elif has_table_suffix(path):
        parts = [open_rows(path)]
    else:
        return path
    for part in parts:
        if column not in part.names:
            named = ", ".join(part.names)
            raise LREError(f"{part.place} has the columns {named}, and no {column!r}: name that of texts")
    return parts


def lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a text file that are not blank, without their ends."""
    with readable(path), path.open(encoding="utf-8") as file:
        yield from (line.rstrip("\r\n") for line in file if line.strip())


def _rows(part: Rows, column: str) -> Iterator[Text]:
    names = [name for name in (column, "subject", "relation") if name in part.names]
    with readable(part.place):
        for number, row in part.read(names):
            at = f"{part.place}, {part.unit} {number}"
            cells: dict[str, Any] = {name: value for name, value in mapping(row, at).items() if value}
            found = {name: text(cells[name], f"{at}: {name}") for name in names[1:] if name in cells}
            yield Text(text(cells.get(column), f"{at}: {column}"), **found)
