"""Free texts from a file or a data set, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lre_lightning.errors import LREError
from lre_lightning.prompts.mentions import mentions
from lre_lightning.relations.formats import Rows, text_lines
from lre_lightning.relations.sources import open_source
from lre_lightning.storage.plain import mapping, shown, text


@dataclass(frozen=True)
class Text:
    """A text that an LM is to read.

    Attributes:
        text: The text.
        subject: Whom the text is about, mentioned in it (else an `LREError`); None if it is not known.
        relation: The only relation whose LRE is to read it; None for all.
    """

    text: str
    subject: str | None = None
    relation: str | None = None

    def __post_init__(self) -> None:
        if self.subject is not None and not mentions(self.text, [self.subject]):
            raise LREError(f"the text {shown(self.text)} does not mention the subject {self.subject!r}")


def read_text_file(source: str | Path, column: str = "text", split: str | None = None) -> Iterator[Text]:
    """Read texts one by one, so that a source of any size does.

    Args:
        source: A text file with one text per line, whose blank lines are left out; or a table or a data set as in
            `lre_lightning.relations.sources`, which may have columns `subject` and `relation`.
        column: The column of texts in a table or a data set.
        split: The split of a data set, if it has several.
    """
    for part in open_texts(source, column, split):
        names = [name for name in (column, "subject", "relation") if name in part.names]
        for at, row in part.placed(names):
            cells: dict[str, Any] = {name: value for name, value in mapping(row, at).items() if value}
            fields = {name: text(cells[name], f"{at}: {name}") for name in names[1:] if name in cells}
            yield Text(text(cells.get(column), f"{at}: {column}"), **fields)


def open_texts(source: Any, column: str, split: str | None) -> list[Rows]:
    """Open a text file, a table or a data set; an `LREError` if there is no such source or column."""
    opened = open_source(source, {} if split is None else {"split": split})
    parts = [text_lines(opened, column)] if isinstance(opened, Path) else opened[2]
    for part in parts:
        if column not in part.names:
            named = ", ".join(part.names)
            raise LREError(
                f"{part.place} has the columns {named}, and no {column!r}: name the column of texts, --text_column"
            )
    return parts
