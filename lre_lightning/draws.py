"""Trials: which samples of a relation are the training examples, drawn the same way for ever.

The paper draws n training samples at random and repeats that over trials (Hernandez et al., ICLR 2024, section
4). Here the draw is a hash of the samples themselves, so it depends neither on the order of the file, nor on the
number of devices, nor on any library's random numbers.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lre_lightning.errors import LREError
from lre_lightning.prompts import Prompt, make_prompt, make_prompts
from lre_lightning.relations import Relation, Sample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Draw:
    """One trial of one relation.

    Attributes:
        relation: The relation.
        trial: The trial's number, from 0.
        train: The training samples, in draw order; no two have the same subject.
        test: All samples whose subject is not a training sample's, in the file's order.

    >>> samples = tuple(Sample(letter, letter.upper()) for letter in "abcd")
    >>> upper = Relation("upper", "toy", ("{} is",), (), "letter", "letter", False, samples)
    >>> trial = draw(upper, n_shot=2, trial=0, seed=0)
    >>> [sample.subject for sample in trial.train], [sample.subject for sample in trial.test]
    (['d', 'c'], ['a', 'b'])
    """

    relation: Relation
    trial: int
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]


def draw(relation: Relation, n_shot: int, trial: int, seed: int) -> Draw:
    """Draw the training samples of one trial.

    The samples are ordered by the SHA-256 digest of seed, relation name, trial, subject and object; the first
    `n_shot` with distinct subjects are for training.

    Args:
        relation: The relation to draw from.
        n_shot: Number of training samples, at least 1. With 1 the only example has an empty context.
        trial: Number of the trial, at least 0.
        seed: At least 0.

    Raises:
        LREError: A number is out of range, or fewer than ``n_shot + 1`` subjects are there to draw from.
    """
    check_number("n_shot", n_shot, 1)
    check_number("trial", trial, 0)
    check_number("seed", seed, 0)
    ordered = sorted(relation.samples, key=lambda sample: _digest(seed, relation.name, trial, sample))
    by_subject: dict[str, Sample] = {}
    for sample in ordered:
        by_subject.setdefault(sample.subject.strip(), sample)
    if len(by_subject) < n_shot + 1:
        raise LREError(
            f"the relation {relation.name!r} has {len(by_subject)} distinct subjects, but n_shot={n_shot} needs at "
            f"least {n_shot + 1}: {n_shot} to train on and one to test; lower n_shot or leave the relation out"
        )
    train = tuple(by_subject.values())[:n_shot]
    subjects = {sample.subject.strip() for sample in train}
    test = tuple(sample for sample in relation.samples if sample.subject.strip() not in subjects)
    return Draw(relation, trial, train, test)


def train_prompts(
    draw: Draw, tokenizer: "PreTrainedTokenizerBase", chosen: Sequence[int] | None = None
) -> list[Prompt]:
    """Make the n leave-one-out prompts: each training sample under the context of the others, in draw order.

    Args:
        draw: The trial.
        tokenizer: The tokenizer.
        chosen: Which training samples; all if None.
    """
    return [
        make_prompt(tokenizer, draw.relation.template, draw.train[i], draw.train[:i] + draw.train[i + 1 :])
        for i in (range(len(draw.train)) if chosen is None else chosen)
    ]


def test_prompts(
    draw: Draw,
    tokenizer: "PreTrainedTokenizerBase",
    chosen: Sequence[int] | None = None,  # noqa: PT028
) -> list[Prompt]:
    """Make the prompt of each test sample under the context of all n training samples.

    Args:
        draw: The trial.
        tokenizer: The tokenizer.
        chosen: Which test samples; all if None.
    """
    samples = draw.test if chosen is None else [draw.test[i] for i in chosen]
    return make_prompts(tokenizer, draw.relation.template, samples, draw.train)


def check_number(name: str, value: int, least: int) -> None:
    """Check a whole number.

    Raises:
        LREError: It is not an int, or below the least value allowed.
    """
    if type(value) is not int or value < least:
        raise LREError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _digest(seed: int, relation: str, trial: int, sample: Sample) -> bytes:
    key = json.dumps([seed, relation, trial, sample.subject, sample.object], separators=(",", ":"))
    return hashlib.sha256(key.encode("ascii")).digest()
