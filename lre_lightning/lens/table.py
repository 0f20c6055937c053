"""What an LM knows about the subjects of many texts: a table that is written while they are read."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lens.lens import start_of, subject_token
from lre_lightning.lre.answers import check_top_k, most_likely
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.prompts.texts import Text
from lre_lightning.storage.files import failures_named, make_folder, write_whole
from lre_lightning.storage.plain import mapping, whole


def read_answers(lm: LanguageModel, lres: Sequence[LRE], texts: Sequence[Text], top_k: int = 5) -> list[dict[str, Any]]:
    """Read texts, in one batch, through one LRE of each of some relations, at the subject and the layer of the LRE.

    The subject is the one that the text names, else the one that it asks about at its end in a template of the
    relation. Without either, the lens is read at the token, other than the first, where it is most certain.

    Returns:
        A row per text and relation: `text`, `subject`, `relation`, `layer`, `token` (the one that is read), `answer_1`,
        `probability_1` and so on to `top_k`, most likely first, and the LM's own next token, `lm_answer` and
        `lm_probability`.
    """
    check_top_k(lm, top_k)
    relations = [lre.origin.relation for lre in lres]
    for text in texts:
        if text.relation not in (None, *relations):
            raise LREError(f"there is no LRE of {text.relation!r}: there are those of {', '.join(relations)}")
    start = start_of(lm, lm.tokenizer, (lre.origin for lre in lres))
    tokens = [tokenize_text(lm.tokenizer, text.text, start) for text in texts]
    ids, first = [torch.tensor(row) for row, _ in tokens], tokens[0][1] if tokens else 0
    batch = pad_sequence(ids, batch_first=True).to(lm.device)
    lm.check_ids(batch)
    last = lm.num_layers - 1
    with torch.no_grad():
        hidden = lm.hidden_states(batch, [*{lre.layer for lre in lres}, last])
        output = torch.stack([hidden[last][row, len(own) - 1] for row, own in enumerate(ids)])
        said = [{"lm_answer": best[0][0], "lm_probability": best[0][1]} for best in _decoded(lm, output, 1)]
        rows_of_text: list[list[dict[str, Any]]] = [[] for _ in texts]
        for lre in lres:
            lre.check_model(lm)
            rows = [row for row, text in enumerate(texts) if text.relation in (None, lre.origin.relation)]
            for row, cells in zip(rows, _readings(lm, lre, hidden, texts, ids, first, rows, top_k), strict=True):
                rows_of_text[row].append(cells | said[row])
    return [cells for rows in rows_of_text for cells in rows]


def _readings(
    lm: LanguageModel,
    lre: LRE,
    hidden: Mapping[Layer, Tensor],
    texts: Sequence[Text],
    ids: Sequence[Tensor],
    first: int,
    rows: Sequence[int],
    top_k: int,
) -> Iterator[dict[str, Any]]:
    """Yield what an LRE says about the texts of some rows."""
    subjects = [texts[row].subject or lre.origin.subject_of(texts[row].text) for row in rows]
    places = [_places(lm, texts[row], subject, ids[row], first) for row, subject in zip(rows, subjects, strict=True)]
    if not places:
        return
    states = torch.cat([hidden[lre.layer][row, at] for row, at in zip(rows, places, strict=True)])
    decoded = iter(_decoded(lm, lre(states), top_k))
    for row, subject, at in zip(rows, subjects, places, strict=True):
        place, best = max(zip(at, islice(decoded, len(at)), strict=True), key=lambda reading: reading[1][0][1])
        cells: dict[str, Any] = {"text": texts[row].text, "subject": subject, "relation": lre.origin.relation}
        cells |= {"layer": lre.layer, "token": token_text(lm.tokenizer, int(ids[row][place])).strip()}
        for number, (answer, probability) in enumerate(best, 1):
            cells |= {f"answer_{number}": answer, f"probability_{number}": probability}
        yield cells


def _places(lm: LanguageModel, text: Text, subject: str | None, ids: Tensor, first: int) -> list[int]:
    """Return the positions at which a text, whose first token is at `first`, may be read."""
    if subject is not None:
        return [first + subject_token(lm.tokenizer, text.text, subject)]
    return list(range(min(first + 1, len(ids) - 1), len(ids)))


def _decoded(lm: LanguageModel, hidden: Tensor, top_k: int) -> list[list[tuple[str, float]]]:
    """Return the `top_k` most likely tokens and their probabilities for each of the states `(rows, hidden)`."""
    best, probabilities = most_likely(lm, hidden, top_k)
    texts = {token: token_text(lm.tokenizer, token).strip() for token in best.unique().tolist()}
    return [
        [(texts[token], round(share, 6)) for token, share in zip(tokens, shares, strict=True)]
        for tokens, shares in zip(best.tolist(), probabilities.tolist(), strict=True)
    ]


def check_name(path: Path) -> None:
    """Check that the name of a table ends in one of its formats."""
    if path.suffix not in (".csv", ".jsonl"):
        raise LREError(f"the table {str(path)!r} must end in .csv or .jsonl")


class AnswerTable:
    """A file of rows that grows while texts are read; the same command resumes it after a stop.

    Beside it, ``<path>.progress.json`` says what the table was made from, how many texts are in it, and its size.

    Args:
        path: The file, ``.csv`` or ``.jsonl``.
        origin: What the rows follow from besides the texts, as plain data.

    Attributes:
        done: The number of texts in the table.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any]) -> None:
        check_name(path)
        self.path, self._origin = path, dict(origin)
        self._progress = path.with_name(path.name + ".progress.json")
        self.done = self._bytes = 0
        if path.exists():
            self._continue()

    def _continue(self) -> None:
        """Resume the table; unfinished rows are cut off."""
        try:
            progress = mapping(json.loads(self._progress.read_text(encoding="utf-8")), "it")
            self.done, self._bytes = (whole(progress.get(name), name) for name in ("texts", "bytes"))
        except (OSError, ValueError, RecursionError):
            progress = {}
        if progress.get("origin") != self._origin or self.path.stat().st_size < self._bytes:
            raise LREError(f"{str(self.path)!r} is not a table of these texts, LREs and options: give another name")
        with failures_named(self.path):
            os.truncate(self.path, self._bytes)

    def append(self, rows: Sequence[Mapping[str, Any]], texts: int) -> None:
        """Add the rows of a number of texts; what was added is safe from then on."""
        content = self._encode(rows).encode()
        with failures_named(self.path):
            make_folder(self.path.parent)
            with self.path.open("ab") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self.done, self._bytes = self.done + texts, self._bytes + len(content)
        write_whole(self._progress, json.dumps({"texts": self.done, "bytes": self._bytes, "origin": self._origin}))

    def _encode(self, rows: Sequence[Mapping[str, Any]]) -> str:
        if self.path.suffix == ".jsonl":
            return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]) if rows else [], lineterminator="\n")
        if not self._bytes:
            writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()


def write_answers(
    lm: LanguageModel, lres: Sequence[LRE], texts: Iterable[Text], table: AnswerTable, top_k: int, batch_size: int
) -> int:
    """Add to a table the answers about all texts that are not yet in it, batch by batch; see `read_answers`.

    Returns:
        The number of texts in the table.
    """
    lres = [lre.to(lm.device) for lre in lres]
    left = islice(texts, table.done, None)
    console = Console(stderr=True)
    columns = SpinnerColumn(), TextColumn("{task.completed} texts"), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None, completed=table.done)
        while batch := list(islice(left, batch_size)):
            table.append(read_answers(lm, lres, batch, top_k), len(batch))
            progress.update(task, completed=table.done)
    return table.done
