"""Trials: errors of impossible draws, equal chances of all samples, and the prompts of a trial."""

from collections import Counter
from dataclasses import replace

import pytest

from lre_lightning.errors import LREError
from lre_lightning.prompts import trials
from lre_lightning.prompts.trials import draw, train_prompts
from lre_lightning.relations.relation import Relation, Sample
from tests.helpers import tokenizers_fixtures as tokenizers


def numbers(count, copies=1):
    samples = tuple(Sample(f"s{i}", f"o{i}.{copy}") for i in range(count) for copy in range(copies))
    return Relation("numbers", "toy", ("{} is",), (), "", "", False, samples)


def test_every_sample_is_drawn_about_equally_often():
    relation = numbers(10)
    drawn = Counter(sample for number in range(400) for sample in draw(relation, 3, number, 0).train)
    assert len(drawn) == 10
    assert all(90 <= count <= 150 for count in drawn.values()), drawn  # 120, standard deviation 9


def test_a_relation_with_too_few_subjects_is_refused():
    with pytest.raises(LREError) as caught:
        draw(numbers(8, copies=2), 8, 0, 0)
    assert "'numbers' has 8 distinct subjects, but n_shot=8 needs at least 9" in str(caught.value)
    assert len(draw(numbers(9), 8, 0, 0).test) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 0, 0), "n_shot must be a whole number of at least 1, got 0"),
        ((2, -1, 0), "trial must be a whole number of at least 0, got -1"),
        ((2, 0, -3), "seed must be a whole number of at least 0, got -3"),
        ((True, 0, 0), "n_shot must be a whole number of at least 1, got True"),
    ],
)
def test_numbers_out_of_range_are_refused(given, message):
    with pytest.raises(LREError, match=message):
        draw(numbers(9), *given)


def test_training_prompts_leave_one_sample_out_and_test_prompts_show_all():
    tokenizer = tokenizers.make("characters")
    trial = draw(replace(numbers(6), name="x"), 3, 0, 0)
    a, b, c = trial.train
    assert [prompt.text for prompt in train_prompts(trial, tokenizer)] == [
        f"{b.subject} is {b.object}\n{c.subject} is {c.object}\n{a.subject} is",
        f"{a.subject} is {a.object}\n{c.subject} is {c.object}\n{b.subject} is",
        f"{a.subject} is {a.object}\n{b.subject} is {b.object}\n{c.subject} is",
    ]
    context = "".join(f"{s.subject} is {s.object}\n" for s in trial.train)
    test = trials.test_prompts(trial, tokenizer)
    assert [(prompt.text, prompt.object) for prompt in test] == [
        (f"{context}{sample.subject} is", sample.object) for sample in trial.test
    ]
