"""How often a fact occurs in text, and whether it is linear, after Merullo et al. (2025).

For the demo it counts the lines of the texts that the LM was trained on, drawn again from their seeds, in which a
fact's subject and object both occur. For an LM whose texts nobody has, it takes the frequencies of English words that
the package wordfreq ships: of a phrase, what wordfreq makes of its words.

``python -m scripts.studies.frequency demo times.csv`` writes the numbers; ``lre report RUN --column times.csv`` sets
them beside the facts of a run with ``--model.measures+=Facts``.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from lre_lightning.progress import progress
from lre_lightning.relations.sources import load_relations
from scripts.demo_model.corpus import Document, Library, Piece, build_library, draw_document
from scripts.demo_model.data import PieceTokenizer
from scripts.demo_model.recipe import Recipe
from scripts.demo_model.world import build_world

MODEL = Path("lre_lightning/demo/model")


def rows_of(library: Library, tokenizer: PieceTokenizer, recipe: Recipe, indices: Iterable[str]) -> Iterator[Document]:
    """Yield the rows that `scripts.demo_model.data.Rows` trained on, as pieces, up to the last whole one.

    An index is ``"<epoch>-<row>"``.
    """
    for index in indices:
        rng, row, length = random.Random(f"{recipe.seed}-{index}"), [], 0
        while length < recipe.length:
            document = draw_document(library, rng)
            tokens = len(tokenizer.tokenize(document))
            row += [*document, Piece("\n")]
            length += tokens
        over = length - recipe.length
        row.pop()
        while over > 0 and row:  # the end of the last document was cut off
            over -= len(tokenizer.memory.get(row.pop().text, ()))
        yield row


def count_lines(rows: Iterable[Document], pairs: Iterable[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Count the lines in which the subject and the object of a pair both occur as pieces."""
    by_subject: dict[str, list[str]] = {}
    for subject, object_ in pairs:
        by_subject.setdefault(subject, []).append(object_)
    found = Counter({(subject, object_): 0 for subject, objects in by_subject.items() for object_ in objects})
    for row in rows:
        line = set[str]()
        for text in [*(piece.text for piece in row), "\n"]:
            if text == "\n":
                found.update((s, o) for s in line & by_subject.keys() for o in by_subject[s] if o in line)
                line = set()
            else:
                line.add(text.strip())
    return found


def of_demo() -> list[tuple[object, ...]]:
    """Return subject, object and number of lines of every fact of the demo."""
    recipe = Recipe()
    world = build_world(recipe.seed)
    indices = [f"{epoch}-{row}" for epoch in range(recipe.epochs) for row in range(recipe.steps * recipe.batch_size)]
    fast: Any = AutoTokenizer.from_pretrained(MODEL)
    tokenizer = PieceTokenizer(fast)
    pairs = [sample for relation in world for sample in relation.samples]
    rows = rows_of(build_library(world), tokenizer, recipe, progress(indices, "Counting"))
    return [(*pair, times) for pair, times in count_lines(rows, pairs).items()]


def of_words(source: str) -> list[tuple[object, ...]]:
    """Return subject, object and the lower of their two Zipf frequencies in English, which bounds both."""
    from wordfreq import zipf_frequency

    facts = dict.fromkeys((s.subject, s.object) for relation in load_relations(source) for s in relation.samples)
    return [(*fact, min(zipf_frequency(name, "en") for name in fact)) for fact in facts]


def main(arguments: Sequence[str]) -> None:
    """Write the numbers of the demo, or of a source of relations, to a CSV file."""
    source, path = arguments
    found = ("times", of_demo()) if source == "demo" else ("Zipf frequency", of_words(source))
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("subject", "object", found[0]), *found[1]])


if __name__ == "__main__":
    main(sys.argv[1:])
