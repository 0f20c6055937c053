"""Reading a sentence by the relations that it mentions: what is printed, against every layer and token.

Run with `python -m benchmarks.reading`; it takes SmolLM2 and its bundled LREs. Both ways say the same: the printed
tokens are equal, and the probabilities up to rounding.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from unittest.mock import patch

import torch

from benchmarks.common import aimed, table, timed
from lre_lightning.explore.explorer import Explorer, Read
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import LensGrid, read_lenses, readings_of, with_mentions
from lre_lightning.lens.subjects import Subjects
from lre_lightning.lre.lre import LRE, origins_of
from lre_lightning.models import unembedding
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.texts import Text
from lre_lightning.sharing.collection import LRECollection

TEXT = "Rosa took a train from Peru to Brazil and then flew to Japan"
WANTED, WANTED_ANSWER = 3.0, 0.3
"""Seconds for what is printed, and for an answer of the explorer."""


def printed(
    lm: LanguageModel, lres: Mapping[tuple[str, int], LRE], subjects: Subjects, whole: bool
) -> list[tuple[LensGrid, int, int, str]]:
    """Return what `lre predict` prints of the sentence, from every layer and token or from what is printed alone."""
    found = subjects.find(Text(TEXT))
    own = None if whole else [lres[name].layer for name in found]
    likenesses = Likenesses(lm, lres, own)
    grids = read_lenses(lm, lm.tokenizer, TEXT, lres, [*found], likenesses=likenesses, own_layers=not whole)
    return [row for lens in with_mentions(grids, lm.tokenizer, found) for row in readings_of(lens)]


def main() -> None:
    """Print the table."""
    lm, lres = LanguageModel.from_pretrained("smollm2"), LRECollection.from_pretrained("smollm2")
    subjects, _ = Subjects(origins_of(lres), lres.subjects), lm.tokenizer  # which is loaded when it is asked for
    seconds, answers = timed(printed, lm, lres, subjects, False)
    before, right = timed(printed, lm, dict(lres), subjects, True)  # a plain mapping carries no likenesses
    assert [(lens.name, *rest[1:]) for lens, *rest in answers] == [(lens.name, *rest[1:]) for lens, *rest in right]
    for (lens, row, place, _), (other, at, _, _) in zip(answers, right, strict=True):
        assert lens.top[row][place] == other.top[at][place]
        found, expected = (torch.tensor(one) for one in (lens.probabilities[row], other.probabilities[at]))
        torch.testing.assert_close(found[place], expected[place], rtol=1e-4, atol=1e-6)
    cell = aimed(f"{seconds:.1f}", seconds <= WANTED, f"{WANTED:g}")
    header = ["rows", "seconds, what is printed", "every layer and token", "ratio"]
    row = [len(answers), cell, f"{before:.1f}", f"{before / seconds:.0f}"]
    print(table("Reading a sentence (SmolLM2, 40 relations)", header, [row]))

    print(explored(Explorer(lm, lres, [key[0] for key in lres], lres.subjects), "country capital city"))


def explored(explorer: Explorer, name: str) -> str:
    """Return the table of the explorer's answers, with logits in few dimensions and in all, which must be the same."""
    first, *later, last = (Read(text=f"{TEXT}{end}", lens=name) for end in (".", ", and", " again", "?", "!"))
    begun, _ = timed(explorer.read, first)
    fast, slow = [], []
    for ask in later:
        seconds, answer = timed(explorer.read, ask)
        explorer.read(first)  # another text, so that this one is run again
        with patch.object(unembedding, "LEAST", sys.maxsize):
            before, right = timed(explorer.read, ask)
        fast.append(seconds)
        slow.append(before)
        found, expected = answer["grid"], right["grid"]
        said = [[grid["words"][cell[0]] for row in grid["top"] for cell in row] for grid in (found, expected)]
        assert said[0] == said[1]
        shares = [torch.tensor(grid["values"]) for grid in (found, expected)]
        torch.testing.assert_close(*shares, rtol=2e-2, atol=1e-4)  # of three digits
    explorer.read(last)
    pins = [timed(explorer.read, last.model_copy(update={"pin": pin}))[0] for pin in ("Lima", "Tokyo", "Rome")]
    cells = [aimed(f"{max(some):.2f}", max(some) <= WANTED_ANSWER, f"{WANTED_ANSWER:g}") for some in (fast, pins)]
    header = ["first, seconds", "the slowest of three other texts", "in all dimensions", "and of three pins in a text"]
    return table("Answers of the explorer", header, [[f"{begun:.2f}", cells[0], f"{max(slow):.2f}", cells[1]]])


if __name__ == "__main__":
    main()
