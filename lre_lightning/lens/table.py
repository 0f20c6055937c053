"""What an LM knows about the subjects of many texts: a table that is written while they are read."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from lre_lightning.errors import LREError
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import start_of
from lre_lightning.lens.subjects import Found, Subjects
from lre_lightning.lre.answers import check_top_k, most_likely
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import token_text
from lre_lightning.prompts.prompt import tokenize_text
from lre_lightning.prompts.texts import Text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.storage.files import failures_named, make_folder, write_whole
from lre_lightning.storage.plain import mapping, whole

BATCHES = 8
"""Number of batches whose texts are read in the order of their lengths."""


def read_answers(
    lm: LanguageModel,
    lres: Sequence[LRE],
    texts: Sequence[Text],
    top_k: int = 5,
    subjects: Subjects | None = None,
    likenesses: Likenesses | None = None,
) -> list[dict[str, Any]]:
    """Read texts, in one batch, through one LRE of each of some relations, at the layer of the LRE.

    Args:
        lm: The LM.
        lres: The LREs.
        texts: The texts.
        top_k: Number of answers in a row.
        subjects: The subjects that are looked for; those that the LREs were estimated from if None, and all relations
            are kept. A relation is read at each of its subjects, or, where it is kept without one, at the token, other
            than the first, where it is most certain.
        likenesses: What says where lenses say nothing, at all their layers; these rows are left out.

    Returns:
        A row per mention and relation, in the order of each text: `text`, `subject`, `relation`, `layer`, `token` (the
        one that is read), `answer_1`, `probability_1` and so on to `top_k`, most likely first, and the LM's own next
        token, `lm_answer` and `lm_probability`.
    """
    return [row for rows in _rows_by_text(lm, lres, texts, top_k, subjects, likenesses) for row in rows]


def _rows_by_text(
    lm: LanguageModel,
    lres: Sequence[LRE],
    texts: Sequence[Text],
    top_k: int,
    subjects: Subjects | None,
    likenesses: Likenesses | None,
) -> list[list[dict[str, Any]]]:
    """Return the rows of each text. All answers are decoded at once: few states take D as long as many."""
    check_top_k(lm, top_k)
    by_name = {lre.origin.relation: lre for lre in lres}
    subjects = subjects or Subjects({name: lre.origin for name, lre in by_name.items()}, every=True)
    related = [subjects.find(text) for text in texts]
    start = start_of(lm, lm.tokenizer, (lre.origin for lre in lres))
    ids = [torch.tensor(tokenize_text(lm.tokenizer, text.text, start)[0]) for text in texts]
    batch = pad_sequence(ids, batch_first=True).to(lm.device)
    lm.check_ids(batch)
    found = [_readings_of(lm, *one) for one in zip(texts, related, map(len, ids), strict=True)]
    last = lm.num_layers - 1
    rows: list[list[tuple[int, dict[str, Any]]]] = [[] for _ in texts]
    read: list[tuple[LRE, list[tuple[int, str | None, bool, list[int]]], list[bool]]] = []
    with torch.no_grad():
        hidden = lm.hidden_states(batch, [*{lre.layer for lre in lres}, last])
        outputs = [torch.stack([hidden[last][row, len(own) - 1] for row, own in enumerate(ids)])]
        for name, lre in by_name.items():
            lre.check_model(lm)
            wanted = [(row, *reading) for row, readings in enumerate(found) for reading in readings.get(name, [])]
            at = [(row, place) for row, _, _, places in wanted for place in places]
            if not at:
                continue
            states = torch.stack([hidden[lre.layer][row, place] for row, place in at])
            silent = torch.zeros(len(at), dtype=torch.bool)
            if likenesses is not None and (likeness := likenesses.own(name, lre.layer)) is not None:
                silent = likeness.silent(states[None])[0]
            outputs.append(lre(states).to(outputs[0]))
            read.append((lre, wanted, silent.tolist()))
        decoded = iter(_decoded(lm, torch.cat(outputs), top_k))
    said = [{"lm_answer": best[0][0], "lm_probability": best[0][1]} for _, best in zip(texts, decoded, strict=False)]
    for lre, wanted, silent_at in read:
        answers = iter([(next(decoded), quiet) for quiet in silent_at])
        for row, subject, asked, places in wanted:
            spoken = [(place, best) for place in places for best, quiet in [next(answers)] if asked or not quiet]
            if not spoken:
                continue
            place, best = max(spoken, key=lambda one: one[1][0][1])
            cells: dict[str, Any] = {"text": texts[row].text, "subject": subject, "relation": lre.origin.relation}
            cells |= {"layer": lre.layer, "token": token_text(lm.tokenizer, int(ids[row][place])).strip()}
            for number, (answer, probability) in enumerate(best, 1):
                cells |= {f"answer_{number}": answer, f"probability_{number}": probability}
            rows[row].append((place, cells | said[row]))
    return [[cells for _, cells in sorted(own, key=lambda one: one[0])] for own in rows]


def _readings_of(
    lm: LanguageModel, text: Text, found: Mapping[str, Found], length: int
) -> dict[str, list[tuple[str | None, bool, list[int]]]]:
    """Return by relation the subjects at which a text is read, whether it asks about them, and positions for each."""
    ((_, spans),) = tokenize(lm.tokenizer, [text.text])
    lead = length - len(spans)  # the start token
    anywhere: list[tuple[str | None, bool, list[int]]] = [(None, False, [*range(min(lead + 1, length - 1), length)])]
    readings: dict[str, list[tuple[str | None, bool, list[int]]]] = {}
    for name, one in found.items():
        asked = one.asked and one.asked.span[1]
        readings[name] = [
            (mention.subject, mention.span[1] == asked, [lead + mention.tokens(spans)[1] - 1])
            for mention in one.mentions
        ]
        if not one.mentions:
            readings[name] = anywhere
    return readings


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
        if rows and not self._bytes:
            writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()


def write_answers(
    lm: LanguageModel,
    lres: Sequence[LRE],
    texts: Iterable[Text],
    table: AnswerTable,
    top_k: int,
    batch_size: int,
    subjects: Subjects | None = None,
    likenesses: Likenesses | None = None,
    total: int | None = None,
) -> int:
    """Add to a table the answers about all texts that are not yet in it; see `read_answers`.

    Texts of several batches are read in the order of their lengths, so that there is little to pad, and are then added.
    A bar says how many of a `total` are done.

    Returns:
        The number of texts in the table.
    """
    lres = [lre.to(lm.device) for lre in lres]
    left = islice(texts, table.done, None)
    console = Console(stderr=True)
    columns = *Progress.get_default_columns(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("Reading texts", total=total, completed=table.done)
        while some := list(islice(left, BATCHES * batch_size)):
            rows: dict[int, list[dict[str, Any]]] = {}
            by_length = sorted(range(len(some)), key=lambda number: len(some[number].text))
            for first in range(0, len(some), batch_size):
                numbers = by_length[first : first + batch_size]
                batch = [some[number] for number in numbers]
                rows |= zip(numbers, _rows_by_text(lm, lres, batch, top_k, subjects, likenesses), strict=True)
                progress.update(task, advance=len(batch))
            table.append([row for number in range(len(some)) for row in rows[number]], len(some))
    return table.done
