"""Trials: reproducible draws of training samples.

The paper draws n training samples at random and repeats this over trials (Hernandez et al., ICLR 2024, section 4).
Here a draw is a hash of the samples themselves, so it depends neither on the order of the file, nor on the number of
devices, nor on any library's random number generator.
"""

import difflib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, TypeVar, get_args

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.prompts.options import BETWEEN_TEMPLATES, LINES, Prompts, Sampling, TrainSample
from lre_lightning.prompts.prompt import Prompt, make_prompts, pass_over_blanks
from lre_lightning.relations.relation import Relation, Sample, sha256

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T", Sample, Prompt)


@dataclass(frozen=True)
class Trial:
    """One trial of one relation.

    Attributes:
        relation: The relation.
        number: The number of the trial, from 0.
        train: The training samples, in draw order; no two have the same subject.
        test: All samples whose subject is not that of a training sample, or half of them, in the file's order.
        templates: The templates to ask for each sample with; the relation's first one if empty.

    >>> samples = tuple(Sample(letter, letter.upper()) for letter in "abcd")
    >>> upper = Relation("upper", "toy", ("{} is",), (), "letter", "letter", False, samples)
    >>> trial = draw(upper, n_shot=2, trial=0, seed=0)
    >>> [sample.subject for sample in trial.train], [sample.subject for sample in trial.test]
    (['d', 'c'], ['a', 'b'])
    """

    relation: Relation
    number: int
    train: tuple[Sample, ...]
    test: tuple[Sample, ...]
    templates: tuple[str, ...] = ()

    @property
    def asked_with(self) -> tuple[str, ...]:
        """The templates, at least one."""
        return self.templates or (self.relation.template,)

    @property
    def template(self) -> str:
        """The templates as one text, joined by `BETWEEN_TEMPLATES`."""
        return BETWEEN_TEMPLATES.join(self.asked_with)

    @property
    def train_asked(self) -> tuple[Sample, ...]:
        """The sample of each training prompt: one sample after another, each once with each template."""
        return tuple(sample for sample in self.train for _ in self.asked_with)

    @property
    def test_asked(self) -> tuple[Sample, ...]:
        """The sample of each test prompt: one sample after another, each once with each template."""
        return tuple(sample for sample in self.test for _ in self.asked_with)


def draw(
    relation: Relation,
    n_shot: int,
    trial: int,
    seed: int,
    sampling: Sampling = "random",
    train: Sequence[TrainSample] | None = None,
    templates: Sequence[str] = (),
    choosing_trials: int = 0,
) -> Trial:
    """Draw the training samples of one trial.

    The samples are ordered by the SHA-256 digest of seed, relation name, trial, subject and object; the first
    `n_shot` with distinct subjects are for training. In a balanced draw the objects, in the order in which they come
    first there, take turns, each with its next subject.

    Args:
        relation: The relation to draw from.
        n_shot: The number of training samples, at least 1. With 1 the only example has an empty context.
        trial: The number of the trial, at least 0.
        seed: At least 0.
        sampling: ``"random"`` or ``"balanced"``.
        train: The training samples in their order, instead of drawing them: `n_shot` subjects, or [subject, object].
            Where subjects differ only in their Unicode form, an exact match takes precedence.
        templates: The templates to ask for each sample with; the relation's first one if empty.
        choosing_trials: The number of first trials that test on another half of the subjects than the others; 0 if all
            test on all.

    Raises:
        LREError: A number is out of range, the relation has fewer than ``n_shot + 1`` subjects, or it does not have a
            sample of `train`.
    """
    check_number("n_shot", n_shot, 1)
    check_number("trial", trial, 0)
    check_number("seed", seed, 0)
    check_choice("sampling", sampling, get_args(Sampling))
    if train is None:

        def digest(sample: Sample) -> bytes:
            return sha256([seed, relation.name, trial, sample.subject, sample.object]).digest()

        by_subject: dict[str, Sample] = {}
        for sample in sorted(relation.samples, key=digest):
            by_subject.setdefault(sample.name, sample)
        order = list(by_subject.values())
        if sampling == "balanced":
            order = by_turns(order)
        drawn = tuple(order[:n_shot])
    else:
        drawn = _named(relation, train, n_shot)
    subjects = {sample.name for sample in drawn}
    test = tuple(sample for sample in relation.samples if sample.name not in subjects)
    if choosing_trials:
        half = _half(relation, seed, trial < choosing_trials)
        test = tuple(sample for sample in test if sample.name in half)
    if len(drawn) < n_shot or not test:
        count = len({sample.name for sample in relation.samples})
        raise LREError(
            f"the relation {relation.name!r} has {count} distinct subjects, but n_shot={n_shot} needs at "
            f"least {n_shot + 1}: {n_shot} to train on and one to test; lower n_shot or leave the relation out"
        )
    return Trial(relation, trial, drawn, test, tuple(templates) or relation.templates[:1])


def train_prompts(
    trial: Trial, tokenizer: "PreTrainedTokenizerBase", chosen: Sequence[int] | None = None, options: Prompts = LINES
) -> list[Prompt]:
    """Make the leave-one-out prompts: each training sample in the context of the others, in draw order.

    `chosen` are indices of prompts in `Trial.train_asked`, by default all.
    """
    templates, prompts = trial.asked_with, []
    for index in range(len(trial.train_asked)) if chosen is None else chosen:
        i, template = index // len(templates), templates[index % len(templates)]
        context = trial.train[:i] + trial.train[i + 1 :]
        prompts += make_prompts(tokenizer, template, [trial.train[i]], context, options)
    return pass_over_blanks(tokenizer, trial.relation, prompts, options)


def test_prompts(
    trial: Trial,
    tokenizer: "PreTrainedTokenizerBase",
    chosen: Sequence[int] | None = None,  # noqa: PT028
    options: Prompts = LINES,  # noqa: PT028
) -> list[Prompt]:
    """Make the prompt of each test sample in the context of all n training samples.

    `chosen` are indices of prompts in `Trial.test_asked`, by default all.
    """
    templates = trial.asked_with
    made: dict[int, Prompt] = {}
    indices = range(len(trial.test_asked)) if chosen is None else chosen
    for i, template in enumerate(templates):
        asked = [index for index in indices if index % len(templates) == i]
        samples = [trial.test[index // len(templates)] for index in asked]
        made |= zip(asked, make_prompts(tokenizer, template, samples, trial.train, options), strict=True)
    return pass_over_blanks(tokenizer, trial.relation, [made[index] for index in indices], options)


def _half(relation: Relation, seed: int, first: bool) -> set[str]:
    """Return the names of half of a relation's subjects: those at even places in the order of their digests, or not."""
    names = {sample.name for sample in relation.samples}
    order = sorted(names, key=lambda name: sha256(["half", seed, relation.name, name]).digest())
    return set(order[0 if first else 1 :: 2])


def by_turns(samples: Iterable[T]) -> list[T]:
    """Return samples or prompts in an order in which their objects take turns, each with its next one."""
    by_object: dict[str, list[T]] = defaultdict(list)
    for sample in samples:
        by_object[sample.object].append(sample)
    return [sample for sample in chain(*zip_longest(*by_object.values())) if sample is not None]


def _named(relation: Relation, wanted: Sequence[TrainSample], n_shot: int) -> tuple[Sample, ...]:
    """Return the training samples that the user names."""
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in relation.samples:
        by_name[sample.name].append(sample)
    named = [_find(relation, item, by_name) for item in wanted]
    if not len(named) == len({sample.name for sample in named}) == n_shot:
        right = f"{n_shot} samples of distinct subjects, as n_shot says"
        raise LREError(f"the training samples of {relation.name!r} must be {right}, not {list(wanted)}")
    return tuple(named)


def _find(relation: Relation, wanted: TrainSample, by_name: Mapping[str, list[Sample]]) -> Sample:
    """Return the sample of a subject, or of a subject and an object; an exact match takes precedence."""
    parts = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(parts, Sequence) or len(parts) not in (1, 2) or not all(isinstance(p, str) for p in parts):
        raise LREError(f"a training sample of {relation.name!r} is {wanted!r}: give its subject, or [subject, object]")
    asked = Sample(parts[0], parts[-1])
    alike = [s for s in by_name.get(asked.name, []) if len(parts) == 1 or s.object == asked.object]
    matches = [sample for sample in alike if sample.subject == asked.subject] or alike
    if not matches:
        nearest = difflib.get_close_matches(asked.name, by_name, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest and nearest[0] != asked.name else ""
        raise LREError(f"the relation {relation.name!r} has no sample {wanted!r} to train on{hint}")
    if len({sample.object for sample in matches}) > 1:
        objects = " and ".join(repr(sample.object) for sample in matches[:5])
        raise LREError(f"{parts[0]!r} of {relation.name!r} has the objects {objects}: give [subject, object]")
    return matches[0]
