"""Reading a sentence by the relations that it mentions: what is printed, against every layer and token.

Run with `python -m benchmarks.reading`; it takes SmolLM2 and its bundled LREs. Both ways say the same: the printed
tokens are equal, and the probabilities up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from benchmarks.common import aimed, table, timed
from lre_lightning.explore.explorer import Explorer, Read
from lre_lightning.lens.likeness import Likenesses
from lre_lightning.lens.reading import LensGrid, read_lenses, readings_of, with_mentions
from lre_lightning.lens.subjects import Subjects
from lre_lightning.lre.lre import LRE, origins_of
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

    explorer, name = Explorer(lm, lres, [key[0] for key in lres], lres.subjects), "country capital city"
    texts = [f"{TEXT}{end}" for end in (".", ", and", " again", "!")]
    first, *later = (timed(explorer.read, Read(text=text, lens=name))[0] for text in texts)
    pins = [timed(explorer.read, Read(text=texts[-1], lens=name, pin=pin))[0] for pin in ("Lima", "Tokyo", "Rome")]
    cells = [aimed(f"{max(some):.2f}", max(some) <= WANTED_ANSWER, f"{WANTED_ANSWER:g}") for some in (later, pins)]
    header = ["first, seconds", "the slowest of three other texts", "and of three pins in the same text"]
    print(table("Answers of the explorer", header, [[f"{first:.2f}", *cells]]))


if __name__ == "__main__":
    main()
