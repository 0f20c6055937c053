"""Trials: which samples of a relation are the training examples, drawn the same way for ever.

The paper draws n training samples at random and repeats that over trials (Hernandez et al., ICLR 2024, section
4). Here the draw is a hash of the samples themselves, so it depends neither on the order of the file, nor on the
number of devices, nor on any library's random numbers.
"""

import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, get_args

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.prompts.options import LINES, Prompts, Sampling, TrainSample
from lre_lightning.prompts.prompt import Prompt, make_prompts
from lre_lightning.relations.relation import Relation, Sample, sha256

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Trial:
    """One trial of one relation.

    Attributes:
        relation: The relation.
        number: The number of the trial, from 0.
        train: The training samples, in draw order; no two have the same subject.
        test: All samples whose subject is not a training sample's, in the file's order.
        templates: The templates that each sample is asked for with; the relation's first one if empty.

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
    def train_asked(self) -> tuple[Sample, ...]:
        """The sample of each training prompt: every sample once with each template, one sample after another."""
        return tuple(sample for sample in self.train for _ in self.asked_with)

    @property
    def test_asked(self) -> tuple[Sample, ...]:
        """The sample of each test prompt: every sample once with each template, one sample after another."""
        return tuple(sample for sample in self.test for _ in self.asked_with)


def draw(
    relation: Relation,
    n_shot: int,
    trial: int,
    seed: int,
    sampling: Sampling = "random",
    train: Sequence[TrainSample] | None = None,
    templates: Sequence[str] = (),
) -> Trial:
    """Draw the training samples of one trial.

    The samples are ordered by the SHA-256 digest of seed, relation name, trial, subject and object; the first
    `n_shot` with distinct subjects are for training. Balanced, the objects take turns in the order in which they come
    first there, each with its next subject.

    Args:
        relation: The relation to draw from.
        n_shot: Number of training samples, at least 1. With 1 the only example has an empty context.
        trial: Number of the trial, at least 0.
        seed: At least 0.
        sampling: ``"random"`` or ``"balanced"``.
        train: The training samples in their order, where they are not to be drawn: `n_shot` subjects, or pairs of
            subject and object. Of samples of one name, the one that is written just so is meant.
        templates: The templates that each sample is to be asked for with; the relation's first one if empty.

    Raises:
        LREError: A number is out of range, fewer than ``n_shot + 1`` subjects are there to draw from, or the relation
            has no such training sample.
    """
    check_number("n_shot", n_shot, 1)
    check_number("trial", trial, 0)
    check_number("seed", seed, 0)
    check_choice("sampling", sampling, get_args(Sampling))
    drawn = _drawn(relation, n_shot, trial, seed, sampling) if train is None else _named(relation, train, n_shot)
    subjects = {sample.name for sample in drawn}
    test = tuple(sample for sample in relation.samples if sample.name not in subjects)
    if len(drawn) < n_shot or not test:
        count = len({sample.name for sample in relation.samples})
        raise LREError(
            f"the relation {relation.name!r} has {count} distinct subjects, but n_shot={n_shot} needs at "
            f"least {n_shot + 1}: {n_shot} to train on and one to test; lower n_shot or leave the relation out"
        )
    return Trial(relation, trial, drawn, test, tuple(templates) or relation.templates[:1])


def train_prompts(
    draw: Trial,
    tokenizer: "PreTrainedTokenizerBase",
    chosen: Sequence[int] | None = None,
    form: Prompts = LINES,
) -> list[Prompt]:
    """Make the leave-one-out prompts: each training sample under the context of the others, in draw order.

    Args:
        draw: The trial.
        tokenizer: The tokenizer.
        chosen: Which prompts, by their places in `Trial.train_asked`; all if None.
        form: How the prompts are made.
    """
    templates, prompts = draw.asked_with, []
    for place in range(len(draw.train_asked)) if chosen is None else chosen:
        i, template = place // len(templates), templates[place % len(templates)]
        prompts += make_prompts(tokenizer, template, [draw.train[i]], draw.train[:i] + draw.train[i + 1 :], form)
    return prompts


def test_prompts(
    draw: Trial,
    tokenizer: "PreTrainedTokenizerBase",
    chosen: Sequence[int] | None = None,  # noqa: PT028
    form: Prompts = LINES,  # noqa: PT028
) -> list[Prompt]:
    """Make the prompt of each test sample under the context of all n training samples.

    Args:
        draw: The trial.
        tokenizer: The tokenizer.
        chosen: Which prompts, by their places in `Trial.test_asked`; all if None.
        form: How the prompts are made.
    """
    templates = draw.asked_with
    places = range(len(draw.test_asked)) if chosen is None else chosen
    by_template: dict[int, list[int]] = defaultdict(list)
    for place in places:
        by_template[place % len(templates)].append(place)
    made: dict[int, Prompt] = {}
    for which, asked in by_template.items():
        samples = [draw.test[place // len(templates)] for place in asked]
        made.update(zip(asked, make_prompts(tokenizer, templates[which], samples, draw.train, form), strict=True))
    return [made[place] for place in places]


def _drawn(relation: Relation, n_shot: int, trial: int, seed: int, sampling: Sampling) -> tuple[Sample, ...]:
    ordered = sorted(relation.samples, key=lambda sample: _digest(seed, relation.name, trial, sample))
    by_subject: dict[str, Sample] = {}
    for sample in ordered:
        by_subject.setdefault(sample.name, sample)
    if sampling == "random":
        return tuple(by_subject.values())[:n_shot]
    by_object: dict[str, list[Sample]] = defaultdict(list)
    for sample in by_subject.values():
        by_object[sample.object].append(sample)
    turns = chain.from_iterable(zip_longest(*by_object.values()))
    return tuple(sample for sample in turns if sample is not None)[:n_shot]


def _named(relation: Relation, wanted: Sequence[TrainSample], n_shot: int) -> tuple[Sample, ...]:
    """The training samples that are asked for."""
    if isinstance(wanted, str) or not isinstance(wanted, Sequence):
        raise LREError(f"the training samples of {relation.name!r} must be a list, got {wanted!r}")
    if len(wanted) != n_shot:
        raise LREError(
            f"the training samples of {relation.name!r} are {len(wanted)}, but n_shot is {n_shot}: give as many"
        )
    by_name: dict[str, list[Sample]] = defaultdict(list)
    for sample in relation.samples:
        by_name[sample.name].append(sample)
    found = [_one(relation, item, by_name) for item in wanted]
    names = [sample.name for sample in found]
    for name in names:
        if names.count(name) > 1:
            raise LREError(f"the training samples of {relation.name!r} have the subject {name!r} twice")
    return tuple(found)


def _one(relation: Relation, wanted: TrainSample, by_name: Mapping[str, list[Sample]]) -> Sample:
    """The sample of a subject, or of a subject and an object; one that is written just so, if there is."""
    pair = (wanted,) if isinstance(wanted, str) else wanted
    if not isinstance(pair, Sequence) or len(pair) not in (1, 2) or not all(isinstance(part, str) for part in pair):
        raise LREError(f"a training sample of {relation.name!r} is {wanted!r}: give its subject, or [subject, object]")
    asked = Sample(pair[0], pair[-1])
    alike = [s for s in by_name.get(asked.name, []) if len(pair) == 1 or s.object == asked.object]
    found = [sample for sample in alike if sample.subject == asked.subject] or alike
    if not found:
        nearest = difflib.get_close_matches(asked.name, by_name, 1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest and nearest[0] != asked.name else ""
        raise LREError(f"the relation {relation.name!r} has no sample {wanted!r} to train on{hint}")
    objects = list(dict.fromkeys(sample.object for sample in found))
    if len(objects) > 1:
        raise LREError(
            f"{pair[0]!r} has several objects in the relation {relation.name!r}, such as {objects[0]!r} and "
            f"{objects[1]!r}: give the training sample as [subject, object]"
        )
    return found[0]


def _digest(seed: int, relation: str, trial: int, sample: Sample) -> bytes:
    return sha256([seed, relation, trial, sample.subject, sample.object]).digest()
