"""Prompts that lenses are compared on: the facts of a relation, and sets of prompts from files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import NotRequired, TypedDict

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.tokenizer import StartToken
from lre_lightning.prompts.options import Prompts
from lre_lightning.prompts.prompt import Prompt, tokenize_text
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.prompts.trials import Trial, test_prompts, train_prompts
from lre_lightning.relations.json_files import parse_json
from lre_lightning.relations.relation import Relation, Sample, draw_order
from lre_lightning.storage.typed import Text, typed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SUBJECT, LAST, LINE_BREAK = "subject", "last token", "line break"
"""Where prompts are read: the last token of the subject or of the prompt, and the last one with a line break."""

AT_A_TIME = 16
"""Number of prompts that are run together."""

SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
SYNONYMS: Mapping[str, Sequence[str]] = {
    **{str(number): (word,) for number, word in enumerate(SMALL.split())},
    **{str(10 * number): (word,) for number, word in enumerate(TENS.split(), 2)},
    "addition": ("+", "add", "plus", "sum"),
    "subtraction": ("-", "subtract", "minus", "difference"),
    "multiplication": ("*", "\u00d7", "multiply", "times", "product"),
    "division": ("/", "\u00f7", "divide", "divided", "quotient"),
    "mod": ("%", "modulo", "modulus", "remainder"),
    "squared": ("²", "^", "**", "square", "power"),
}
"""What else counts as a number in digits, or as the name of an operation."""


@dataclass(frozen=True)
class Asked:
    """A prompt in tokens, with what a lens should read there.

    Attributes:
        ids: The tokens, with the start token.
        places: The indices of the tokens where it is read, by the names of the places.
        words: The words to read, each as the tokens that it may be.
        object: The object that is asked for, of a relation's prompt.
    """

    ids: tuple[int, ...]
    places: Mapping[str, int]
    words: tuple[tuple[int, ...], ...]
    object: str | None = None


@dataclass(frozen=True)
class PromptSet:
    """Prompts that are scored together.

    Attributes:
        name: The relation, or the stem of the file.
        prompts: The prompts, each with at least one word, all with the same places.
        objects: The first token of each object of the relation; None for the prompts of a file.
        left_out: The number of words that are no single token, and are not looked for.
    """

    name: str
    prompts: tuple[Asked, ...]
    objects: Mapping[str, int] | None = None
    left_out: int = 0


class _Item(TypedDict):
    prompt: Text
    intermediates: tuple[Text, ...]
    target: NotRequired[Text]


class _File(TypedDict):
    items: tuple[_Item, ...]


def read_prompt_set(path: Path, tokenizer: PreTrainedTokenizerBase, start: StartToken = "auto") -> PromptSet:
    """Read prompts in the format of Gurnee et al. (2026), a JSON object with a list `items`.

    An item has a `prompt` and the words that a lens should read, `intermediates`; a `target`, which the LM should say
    next, is not scored. Prompts are read at their last tokens. Poems are read at their last line breaks, where an LM
    may plan the next line: files without targets whose prompts all have several lines.

    A word counts in any of its spellings that is a single token: with and without a space before it, in lower case and
    with a capital; a number in digits also as a word, and the name of an operation also as its signs and verbs.

    Args:
        path: The file.
        tokenizer: The tokenizer.
        start: The start token.

    Raises:
        LREError: If the file cannot be read, is of another form, or no word is a single token.
    """
    prompts, left_out, items = [], 0, typed(_File, parse_json(path), str(path))["items"]
    poems = all("target" not in item and "\n" in item["prompt"] for item in items)
    for item in items:
        found = [spellings(tokenizer, word) for word in item["intermediates"]]
        left_out += sum(not one for one in found)
        if not any(found):
            continue
        ids, first = tokenize_text(tokenizer, item["prompt"], start)
        places = {LAST: len(ids) - 1}
        if poems:
            ((_, spans),) = tokenize(tokenizer, [item["prompt"]])
            at = item["prompt"].rindex("\n")
            places = {LINE_BREAK: first + max(place for place, span in enumerate(spans) if span[0] <= at < span[1])}
        prompts.append(Asked(ids, places, tuple(filter(None, found))))
    if not prompts:
        raise LREError(f"{path} has no prompt with a word, in its intermediates, that is a single token of this LM")
    return PromptSet(path.stem, tuple(prompts), left_out=left_out)


def spellings(tokenizer: PreTrainedTokenizerBase, word: str) -> tuple[int, ...]:
    """Return the single tokens that count as a word; see `read_prompt_set`."""
    words = [word, *SYNONYMS.get(word.lower(), ())]
    cased = dict.fromkeys(form for one in words for form in (one, one.lower(), one[:1].upper() + one[1:]))
    texts = [space + form for form in cased for space in ("", " ")]
    return tuple(sorted({ids[0] for ids, _ in tokenize(tokenizer, texts) if len(ids) == 1}))


@torch.no_grad()
def relation_prompts(
    lm: LanguageModel, relation: Relation, origin: Origin, most: int, seen: Collection[str] = ()
) -> PromptSet:
    """Return prompts of facts that an LM knows, in the form that an LRE was estimated with.

    They are asked for in a drawn order. Subjects that the LRE was estimated from are left out.

    Args:
        lm: The LM.
        relation: The relation.
        origin: That of its LRE, with its template and examples.
        most: The number of prompts at most.
        seen: Subjects that other lenses were estimated from, which are left out too.
    """
    train = tuple(Sample(*sample) for sample in origin.train)
    names = {sample.name for sample in train}
    test = [sample for sample in relation.samples if sample.name not in names]
    test.sort(key=lambda sample: draw_order(relation.name, sample.subject, sample.object))
    trial = Trial(relation, origin.trial, train, tuple(test), (origin.first_template,))
    options = Prompts(**origin.form)
    prompts = test_prompts(trial, lm.tokenizer, options=options)
    every = [*train_prompts(trial, lm.tokenizer, options=options), *prompts]
    prompts = [prompt for prompt in prompts if prompt.subject not in seen]
    known: list[Asked] = []
    for first in range(0, len(prompts), AT_A_TIME):
        some = [*map(_asked, prompts[first : first + AT_A_TIME])]
        answers = lm.predict(states_at(lm, some, [lm.num_layers - 1])[LAST][0]).tolist()
        known += [asked for asked, answer in zip(some, answers, strict=True) if answer in asked.words[0]]
        if len(known) >= most:
            break
    return PromptSet(relation.name, tuple(known[:most]), {prompt.object: prompt.object_token for prompt in every})


def _asked(prompt: Prompt) -> Asked:
    places = {SUBJECT: prompt.subject_position, LAST: prompt.last_position}
    return Asked(prompt.input_ids, places, ((prompt.object_token,),), prompt.object)


@torch.no_grad()
def states_at(lm: LanguageModel, prompts: Sequence[Asked], layers: Sequence[Layer]) -> dict[str, Tensor]:
    """Run prompts; return the hidden states at each of their places, `(layers, prompts, hidden)`, in the LM's dtype."""
    parts: dict[str, list[Tensor]] = {}
    for first in range(0, len(prompts), AT_A_TIME):
        some = prompts[first : first + AT_A_TIME]
        ids = pad_sequence([torch.tensor(asked.ids) for asked in some], batch_first=True)
        lm.check_ids(ids)
        found = lm.hidden_states(ids.to(lm.device), layers)
        for place in some[0].places:
            at = [asked.places[place] for asked in some]
            states = [found[layer][range(len(some)), at].to(lm.device) for layer in layers]
            parts.setdefault(place, []).append(torch.stack(states))
    return {place: torch.cat(some, 1) for place, some in parts.items()}
