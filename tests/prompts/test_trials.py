"""Trials: reproducible draws, and training samples given by name."""

import unicodedata
from collections import Counter
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.prompts import trials
from lre_lightning.prompts.trials import draw, train_prompts
from lre_lightning.relations.relation import Relation, Sample
from tests.helpers import tokenizers_fixtures as tokenizers
from tests.helpers.hostile import tried
from tests.helpers.options import nested

NFC, NFD = "Caf\u00e9", "Cafe\u0301"


def relation_of(samples, name="places", templates=("{} is in",)):
    return Relation(name, "toy", templates, (), "", "", False, tuple(samples))


# 5 objects with 8, 4, 2, 1 and 1 subjects, some of them not in ASCII.
COUNTRIES = ["France"] * 8 + ["日本"] * 4 + ["Österreich"] * 2 + ["Peru", "Chile"]
PLACES = relation_of(Sample(f"plaçe {i}", country) for i, country in enumerate(COUNTRIES))

GOLDEN = {
    ("random", 0, 0): [6, 7, 13, 11, 5, 15],
    ("random", 1, 0): [4, 7, 14, 6, 5, 0],
    ("random", 0, 7): [0, 10, 15, 6, 12, 11],
    ("balanced", 0, 0): [6, 13, 11, 15, 14, 7],
    ("balanced", 1, 0): [4, 14, 15, 9, 12, 7],
    ("balanced", 0, 7): [0, 10, 15, 12, 14, 6],
}


def places(samples):
    return [int(sample.subject.split()[1]) for sample in samples]


def shuffled(relation, seed):
    samples = list(relation.samples)
    Random(seed).shuffle(samples)
    return replace(relation, samples=tuple(samples))


@pytest.mark.parametrize(("sampling", "trial", "seed"), GOLDEN)
def test_a_draw_never_changes(sampling, trial, seed):
    """The hash seed of each test run is another one."""
    assert places(draw(PLACES, 6, trial, seed, sampling).train) == GOLDEN[sampling, trial, seed]


def numbers(count, copies=1):
    samples = (Sample(f"s{i}", f"o{i}.{copy}") for i in range(count) for copy in range(copies))
    return relation_of(samples, "numbers", ("{} is",))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, 0, 0), "n_shot must be a whole number of at least 1, got 0"),
        ((2, -1, 0), "trial must be a whole number of at least 0, got -1"),
        ((2, 0, -3), "seed must be a whole number of at least 0, got -3"),
        ((2, 0, 0, "even"), "sampling must be 'random' or 'balanced', got 'even'"),
        ((8, 0, 0), "'numbers' has 8 distinct subjects, but n_shot=8 needs at least 9"),
        ((8, 0, 0, "random", [f"s{i}" for i in range(8)]), "has the objects 'o0.0' and 'o0.1'"),
        ((8, 0, 0, "random", [[f"s{i}", f"o{i}.0"] for i in range(8)]), "has 8 distinct subjects, but n_shot=8"),
    ],
)
def test_a_draw_that_cannot_be_made_is_refused(given, message):
    with pytest.raises(LREError, match=message):
        draw(numbers(8, copies=2), *given)
    assert len(draw(numbers(9), 8, 0, 0).test) == 1


def test_training_prompts_leave_one_sample_out_and_test_prompts_show_all():
    tokenizer = tokenizers.make("characters")
    trial = draw(replace(numbers(6), name="x"), 3, 0, 0)
    a, b, c = (f"{sample.subject} is {sample.object}\n" for sample in trial.train)
    asked = [f"{sample.subject} is" for sample in trial.train]
    train = [prompt.text for prompt in train_prompts(trial, tokenizer)]
    assert train == [f"{b}{c}{asked[0]}", f"{a}{c}{asked[1]}", f"{a}{b}{asked[2]}"]
    test = [(prompt.text, prompt.object) for prompt in trials.test_prompts(trial, tokenizer)]
    assert test == [(f"{a}{b}{c}{sample.subject} is", sample.object) for sample in trial.test]


@pytest.mark.parametrize("sampling", ["random", "balanced"])
def test_a_draw_depends_neither_on_the_order_of_the_samples_nor_on_the_size_of_the_draw(sampling):
    for seed in range(10):
        drawn = draw(PLACES, 6, 3, seed, sampling)
        again = draw(shuffled(PLACES, seed), 6, 3, seed, sampling)
        assert again.train == drawn.train
        assert set(again.test) == set(drawn.test)
        assert draw(PLACES, 4, 3, seed, sampling).train == drawn.train[:4]
        assert draw(replace(PLACES, prompt_templates=("{}?",)), 6, 3, seed, sampling).train == drawn.train


@tried(60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**40),
    trial=st.integers(0, 30),
)
def test_a_balanced_draw_is_as_even_as_the_objects_subjects_allow(sizes, share, seed, trial):
    relation = relation_of(Sample(f"s{o}.{i}", f"o{o}") for o, size in enumerate(sizes) for i in range(size))
    n = max(1, round(share * (sum(sizes) - 1)))
    if sum(sizes) < 2:
        return
    train = draw(relation, n, trial, seed, "balanced").train
    counts = Counter(sample.object for sample in train)
    left = [o for o, size in enumerate(sizes) if counts[f"o{o}"] < size]
    assert len(train) == n
    if left:  # an object with a subject left has at most one fewer than any other
        assert max(counts.values()) - min(counts[f"o{o}"] for o in left) <= 1


names = st.sampled_from(["a", "b", "c", NFC, "é", "Å", "ﬁn", "x y", "ﬁ"])
spellings = st.sampled_from([str, str.upper, lambda s: f" {s}", lambda s: f"{s}\n", lambda s: f"\u00a0{s} "])
forms = st.sampled_from(["NFC", "NFD"])
variants = st.builds(lambda name, spell, form: unicodedata.normalize(form, spell(name)), names, spellings, forms)


@tried(60)
@given(
    pairs=st.lists(st.tuples(variants, st.sampled_from("123")), min_size=2, max_size=20),
    n=st.integers(1, 5),
    trial=st.integers(0, 9),
    sampling=st.sampled_from(["random", "balanced"]),
)
def test_train_and_test_share_no_subject_however_it_is_written(pairs, n, trial, sampling):
    relation = relation_of(Sample(subject, answer) for subject, answer in pairs)

    def subjects(samples):
        return [unicodedata.normalize("NFC", sample.subject.strip()) for sample in samples]

    if len(set(subjects(relation.samples))) <= n:
        with pytest.raises(LREError, match="distinct subjects"):
            draw(relation, n, trial, 0, sampling)
        return
    drawn = draw(relation, n, trial, 0, sampling)
    assert len(set(subjects(drawn.train))) == len(drawn.train) == n
    assert set(subjects(drawn.train)).isdisjoint(subjects(drawn.test))
    assert set(subjects(drawn.train)) | set(subjects(drawn.test)) == set(subjects(relation.samples))


# Training samples given by name.


def test_named_training_samples_keep_their_order():
    drawn = draw(PLACES, 3, 5, 9, train=["plaçe 7", ["plaçe 0", "France"], ("plaçe 9",)])
    assert places(drawn.train) == [7, 0, 9]
    assert places(drawn.test) == [i for i in range(16) if i not in (7, 0, 9)]


def test_a_subject_may_be_written_in_another_form():
    relation = relation_of([Sample(f"{NFD} ", "1"), Sample("b", "2"), Sample("a ", "3"), Sample("a", "3")])
    assert draw(relation, 1, 0, 0, train=[NFC]).train == (relation.samples[0],)
    for subject, sample in (("a", 3), ("a ", 2), (" a", 2)):
        drawn = draw(relation, 1, 0, 0, train=[subject])
        assert drawn.train == (relation.samples[sample],)
        assert drawn.test == relation.samples[:2]


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (["Pari", "Rome"], r"has no sample 'Pari' to train on; did you mean 'Paris'\?"),
        (["", "Rome"], "has no sample '' to train on$"),
        ([["Paris", "Texas!"], "Rome"], r"has no sample \['Paris', 'Texas!'\] to train on$"),
        ([["Paris", "France"], ["Paris", "Texas"]], "'places' must be 2 samples of distinct subjects, as n_shot"),
        (["Rome", " Rome"], r"of distinct subjects, as n_shot says, not \['Rome', ' Rome'\]"),
        (["Rome"], r"must be 2 samples of distinct subjects, as n_shot says, not \['Rome'\]"),
        ([1, "Rome"], r"a training sample of 'places' is 1: give its subject, or \[subject, object\]"),
        ([["Rome", "Italy", "x"], "Bonn"], r"is \['Rome', 'Italy', 'x'\]: give its subject"),
        ([["Rome", 3], "Bonn"], r"is \['Rome', 3\]: give its subject"),
    ],
)
def test_invalid_training_samples_are_refused(train, message):
    pairs = [("Paris", "France"), ("Paris", "France"), ("Paris", "Texas"), ("Rome", "Italy"), ("Bonn", "Germany")]
    with pytest.raises(LREError, match=message):
        draw(relation_of(Sample(*pair) for pair in pairs), 2, 0, 0, train=train)


# In the datamodule.

CITIES = relation_of((Sample(f"city {i}", f"land {i % 3}") for i in range(12)), "cities")
THINGS = relation_of((Sample(f"thing {i}", f"kind {i % 4}") for i in range(20)), "things")


def data_of(*relations, place=None, **options):
    given = {"n_shot": 4, "trials": 3, "batch_size": 3, "seed": 2}
    data = RelationDataModule(tokenizers.make("characters"), source=list(relations), **nested(**given | options))
    if place:
        state = SimpleNamespace(fn="validate")
        data.trainer = SimpleNamespace(global_rank=place[0], world_size=place[1], state=state)
    return data


def drawn_by(data):
    return {(data.relations[r].name, t): data.trial(i) for i, (r, t) in enumerate(data.schedule)}


def test_draws_depend_neither_on_other_relations_nor_on_their_order_nor_on_processes():
    found = drawn_by(data_of(PLACES, CITIES, THINGS))
    assert found == drawn_by(data_of(THINGS, PLACES, CITIES, place=(2, 3)))
    alone = drawn_by(data_of(CITIES))
    assert alone == {key: drawn for key, drawn in found.items() if key[0] == "cities"}


def test_a_batch_that_was_made_for_one_of_several_processes_is_not_served_to_one_alone():
    data = data_of(relation_of(Sample("x" * (9 - i), f"{i % 2}") for i in range(9)), batch_size=2, place=(0, 2))
    list(data.val_dataloader([0]))
    data.trainer = None
    assert [i for batch in data.val_dataloader([0]) for i in batch.sample.tolist()] == list(range(5))


def test_later_trials_are_those_of_a_longer_run():
    longer, later = data_of(PLACES, CITIES, trials=5), data_of(PLACES, CITIES, trials=2, first_trial=3)
    assert later.schedule == [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert drawn_by(later) == {key: drawn for key, drawn in drawn_by(longer).items() if key[1] >= 3}
    batches = list(later.val_dataloader([0]))
    assert {int(batch.trial[0]) for batch in batches} == {3}
    expected = [prompt for batch in longer.val_dataloader([3]) for prompt in batch.prompts]
    assert [prompt for batch in batches for prompt in batch.prompts] == expected
    assert later.digest != longer.digest


def test_training_samples_by_relation():
    wanted = ["city 5", ["city 0", "land 0"], "city 3", "city 4"]
    data = data_of(CITIES, THINGS, train_samples={"cities": wanted}, trials=1)
    assert [sample.subject for sample in data.trial(0).train] == ["city 5", "city 0", "city 3", "city 4"]
    assert data.trial(1) == data_of(THINGS, trials=1).trial(0)  # the others are drawn
    assert data.digest != data_of(CITIES, THINGS, trials=1).digest
    again = RelationDataModule(**{**data.hparams, "source": [CITIES, THINGS], "tokenizer": data.tokenizer})
    assert again.digest == data.digest


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_samples": {"citties": ["a"]}}, "samples are given for 'citties', which is not among the relations"),
        ({"train_samples": {"cities": ["sity 0"] * 4}}, r"no sample 'sity 0' .*did you mean 'city 0'\?"),
        ({"train_samples": {"cities": 3}}, "train_samples must be lists by relation, got {'cities': 3}"),
        ({"train_samples": {"cities": ["a"]}, "trials": 2}, "with train_samples all 2 trials would be the same: give"),
        ({"first_trial": -1}, "first_trial must be a whole number of at least 0, got -1"),
        ({"max_samples": 4}, "max_samples must be a whole number of at least 5, got 4"),
        ({"max_samples": 2.5}, "max_samples must be a whole number of at least 1, got 2.5"),
    ],
)
def test_options_of_draws_that_cannot_be_used_are_refused(options, message):
    with pytest.raises(LREError, match=message):
        data_of(CITIES, THINGS, **{"trials": 1} | options).setup()
