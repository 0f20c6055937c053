"""The choice of layers and ranks, on counts whose answers can be seen by eye."""

import dataclasses

import pytest

from lre_lightning.errors import LREError
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.records.selection import at_point, choose, choose_after, nested, reselect
from tests.helpers.records import generations, line_integrals, low_rank, outcomes, unscored_record
from tests.helpers.records import small_record as record

CRITERIA = ("causality", "faithfulness")


def best_at(layer, rank, trial=0, /, **changes):
    """A trial for which both criteria choose this point."""
    row, column = ("emb", 0).index(layer), (4, 8).index(rank)
    causal = [[0, 0], [0, 0]]
    causal[row][column] = 8
    faithful = [[0, 0], [0, 0]]
    faithful[row] = [10, 10]
    return record(trial, causal=tuple(map(tuple, causal)), faithful=tuple(map(tuple, faithful)), **changes)


def test_ties_in_one_criterion_are_broken_by_the_other():
    assert choose([record()], "causality", 2.0) == (0, 4)  # equal edits at rank 8: the lower rank
    assert choose([record()], "faithfulness", 2.0) == ("emb", 8)  # equal faithfulness of its ranks: the more edits
    equal = record(causal=((7, 7), (7, 7)))
    assert choose([equal], "causality", 2.0) == ("emb", 4)
    assert choose([dataclasses.replace(equal, faithful=((8, 8), (9, 9)))], "causality", 2.0) == (0, 4)
    equal = record(faithful=((8, 8), (8, 8)))
    assert choose([equal], "faithfulness", 2.0) == (0, 4)
    assert choose([record(faithful=((8, 8), (8, 8)), causal=((6, 7), (7, 6)))], "faithfulness", 2.0) == ("emb", 8)


def keeping(kept, layers=("emb", 0), questions=8, **changes):
    """A trial of which so many answers by other relations are kept, `[layer][rank]`."""
    tally = Tally(kept, questions, ("layer", "rank"))
    found = {"specificity": Measurement({"other relations kept": tally}, layers=layers)}
    return record(measures=found, **changes)


def test_both_weighs_success_with_what_edits_keep():
    causal = ((4, 8), (6, 0))  # of 8 edits
    assert choose([keeping(((4, 1), (4, 8)), causal=causal)], "both", 2.0) == (0, 4)  # 4/7 of 6/8 and 4/8
    assert choose([keeping(((8, 1), (4, 8)), causal=causal)], "both", 2.0) == ("emb", 4)  # 2/3 of 4/8 and 1
    several = [keeping(((4, 1), (4, 8)), causal=causal), keeping(((8, 8), (4, 8)), causal=((0, 8), (0, 0)))]
    assert choose(several, "both", 2.0) == ("emb", 8)  # means 1 and 9/16
    (chosen,) = reselect([keeping(((4, 1), (4, 8)), causal=causal)], "both")
    assert (chosen.layer, chosen.rank) == (0, 4)


def test_both_takes_a_layer_that_was_measured():
    assert choose([keeping(((1, 0),), layers=(0,), causal=((8, 8), (2, 0)))], "both", 2.0) == (0, 4)
    with pytest.raises(LREError, match="and that of 'capital' was not measured: add"):
        choose([record()], "both", 2.0)


def test_both_is_causality_where_no_other_relation_asks():
    causal, none = ((4, 8), (6, 0)), keeping(((0, 0), (0, 0)), questions=0, causal=((4, 8), (6, 0)))
    assert choose([none], "both", 2.0) == choose([none], "causality", 2.0) == ("emb", 8)
    assert choose([none, keeping(((8, 1), (4, 8)), causal=causal)], "both", 2.0) == ("emb", 4)  # the second asks


def test_faithfulness_is_compared_at_the_given_beta():
    grid = {"faithful": ((9, 1), (3, 8)), "causal": ((7, 2), (7, 2))}
    assert choose([record(**grid)], "causality", 1.0) == choose([record(**grid)], "faithfulness", 1.0) == ("emb", 4)
    assert choose([record(**grid)], "causality", 2.0) == choose([record(**grid)], "faithfulness", 2.0) == (0, 4)


def test_trials_have_equal_weight_whatever_their_number_of_known_facts():
    """Means of fractions are 0.2 and 0.195 for "emb" and 0, sums of counts 22 and 39 of 110."""
    few = {"known": 10, "faithful": ((2, 2), (0, 0)), "edited": 10, "causal": ((0, 2), (0, 0))}
    many = {"known": 100, "faithful": ((20, 20), (39, 39)), "edited": 100, "causal": ((0, 20), (39, 0))}
    trials = [record(0, **few), record(1, **many)]
    for criterion in CRITERIA:
        assert choose(trials, criterion, 2.0) == choose(trials[::-1], criterion, 2.0) == ("emb", 8)
        assert choose([record(0, **many)], criterion, 2.0) == (0, 4)


def test_equal_fractions_tie_whatever_the_order_of_summation():
    """As floats 0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ, and layer 0 would win in one of the orders."""
    counts = [(1, 3), (2, 2), (3, 1)]
    trials = [
        record(trial, edited=10, causal=((one, 0), (other, 0)), faithful=((5, 5), (5, 5)))
        for trial, (one, other) in enumerate(counts)
    ]
    for some in (trials, trials[::-1]):
        assert choose(some, "causality", 2.0) == ("emb", 4)


@pytest.mark.parametrize("missing", [{"edited": 0, "causal": ((0, 0), (0, 0))}, {"known": 0, "edited": 0}])
def test_a_trial_without_edits_or_known_facts_has_score_zero(missing):
    none = record(0, **{"faithful": ((0, 0), (0, 0)), "causal": ((0, 0), (0, 0)), **missing})
    assert choose([none], "causality", 2.0) == ("emb", 4)
    assert choose([none, record(1)], "causality", 2.0) == (0, 4)
    assert choose([record(edited=0, causal=((0, 0), (0, 0)))], "causality", 2.0) == ("emb", 4)  # the more faithful


def test_trials_without_a_common_point_and_a_beta_off_the_grid_are_refused():
    for other in ({"layers": (1, 2)}, {"ranks": (16, 32)}):
        with pytest.raises(LREError, match="trials of 'capital' have no layer and rank in common to choose"):
            choose([record(), record(1, **other)], "causality", 1.0)


def test_points_are_chosen_that_all_trials_have_measured():
    best = {"causal": ((7, 0), (5, 8))}
    assert choose([record(**best)], "causality", 1.0) == (0, 8)
    assert choose([record(**best), record(1, layers=(0, 1), ranks=(4, 16))], "causality", 1.0) == (0, 4)


def test_trials_that_have_only_the_choice_take_no_part_in_another():
    """The first trial is the more faithful at "emb", and the second was scored at layer 0 alone."""
    first, later = record(layer=0, rank=4), record(1, layers=(0,), ranks=(4,), causal=((7,),), faithful=((3, 8),))
    assert [(one.trial, one.layer, one.rank) for one in reselect([first, later], "faithfulness")] == [(0, "emb", 8)]


def test_a_beta_off_the_grid_is_refused():
    with pytest.raises(LREError, match=r"beta 1.5 is not on the grid of 'capital', whose betas are \(1.0, 2.0\)"):
        reselect([record()], beta=1.5)


# During a fit, before later trials are known


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_first_reported_trial_chooses_for_the_others(criterion):
    first = best_at(0, 8)
    assert choose_after(first, [], criterion) == (0, 8)
    first = dataclasses.replace(first, layer=0, rank=8)
    assert choose_after(best_at("emb", 4, 1), [first], criterion) == (0, 8)
    second = best_at("emb", 4, 1, layer=0, rank=8)
    assert choose_after(best_at("emb", 4, 2), [first, second], criterion) == (0, 8)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_trials_that_only_choose_choose_by_their_mean(criterion):
    zero = best_at("emb", 4, 0, reported=False, layer="emb", rank=4)
    one = best_at(0, 8, 1, reported=False)
    two = best_at(0, 8, 2, reported=False)
    assert choose_after(zero, [], criterion) == ("emb", 4)
    assert choose_after(one, [zero], criterion) == ("emb", 4)  # even: the earlier layer
    one = dataclasses.replace(one, layer="emb", rank=4)
    assert choose_after(two, [zero, one], criterion) == (0, 8)
    two = dataclasses.replace(two, layer=0, rank=8)
    reported = best_at("emb", 8, 3)
    assert choose_after(reported, [zero, one, two], criterion) == (0, 8)
    reported = dataclasses.replace(reported, layer=0, rank=8)
    assert choose_after(best_at("emb", 8, 4), [zero, one, two, reported], criterion) == (0, 8)


def test_a_reported_trial_does_not_change_an_earlier_choice():
    zero = record(0, reported=False, causal=((0, 0), (1, 0)))
    strong = record(1, causal=((0, 8), (0, 0)))
    assert choose_after(strong, [zero], "causality") == (0, 4)
    assert choose([zero, strong], "causality", 2.0) == ("emb", 8)


# From records alone


def test_reselect_takes_the_mean_of_all_trials_if_none_was_set_apart():
    trials = [record(0, causal=((8, 6), (0, 0))), record(1, causal=((0, 6), (7, 8)))]
    other = [best_at(0, 4, 0, relation="mother"), best_at(0, 4, 1, relation="mother")]
    found = reselect([trials[0], other[0], unscored_record(), other[1], trials[1]])
    assert [(r.relation, r.trial, r.layer, r.rank, r.beta) for r in found] == [
        ("capital", 0, "emb", 8, 2.0),
        ("capital", 1, "emb", 8, 2.0),
        ("mother", 0, 0, 4, 2.0),
        ("mother", 1, 0, 4, 2.0),
    ]
    for before, after in zip([*trials, *other], found, strict=True):
        assert dataclasses.replace(after, layer=None, rank=None, chose=False) == before


def test_reselect_chooses_on_trials_set_apart_and_returns_the_others():
    apart = best_at(0, 8, 0, reported=False)
    reported = [best_at("emb", 4, 1), best_at("emb", 4, 2)]
    assert [(r.trial, r.layer, r.rank) for r in reselect([reported[0], apart, reported[1]])] == [(1, 0, 8), (2, 0, 8)]
    assert reselect([apart]) == []


def test_reselect_takes_another_criterion_and_beta():
    (found,) = reselect([record()], "faithfulness")
    assert (found.layer, found.rank, found.beta) == ("emb", 8, 2.0)
    (found,) = reselect([record(faithful=((1, 10), (9, 8)))], "faithfulness", beta=1.0)
    assert (found.layer, found.rank, found.beta) == (0, 4, 1.0)
    assert found.chosen_scores == (0.9, 7 / 8)


def test_measurements_of_one_point_do_not_move_to_another():
    own = Measurement({"mine": Tally(3, 4)})
    found = {
        "own": own,
        "low rank": low_rank(5, 6),
        "line integrals": line_integrals((1.0, 0.5)),
        "generations": generations(("France", "Paris", "Rome", "Paris", "Rome")),
        "outcomes": outcomes((0, 1, 1)),
    }
    first = record(layer=0, rank=8, measures=found)
    (same,) = reselect([first])
    assert (same.layer, same.rank) == (0, 4)
    assert {*same.measures} == {"own", "low rank", "line integrals"}  # the others depend on the rank of edits
    assert reselect([record(layer=0, rank=4, measures=found)])[0].measures == found
    (moved,) = reselect([first], "faithfulness")
    assert (moved.layer, moved.measures) == ("emb", {"own": own})
    (moved,) = reselect([record(layer=0, rank=4, measures=found)], beta=1.0)
    assert (moved.layer, moved.rank, {*moved.measures}) == (0, 4, {"own", "line integrals", "generations"})
    for axis in ("layer", "beta", "rank"):
        depends = record(layer=0, rank=8, measures={"own": dataclasses.replace(own, chosen=(axis,))})
        others, point = {"layer": "emb", "beta": 1.0, "rank": 4}, {"layer": 0, "beta": 2.0, "rank": 8}
        kept = {name: bool(at_point(depends, **point | {name: other}).measures) for name, other in others.items()}
        assert kept == {name: name != axis for name in others}


def test_nested_choices_leave_a_trial_out_of_its_own_choice():
    """Each of two trials is best at another point; of three, two agree."""
    two = [best_at("emb", 4, 0), best_at(0, 8, 1)]
    assert [(one.layer, one.rank) for one in nested(two)] == [(0, 8), ("emb", 4)]
    assert [one.chosen_scores[1] for one in nested(two)] == [0, 0]
    three = [*two, best_at(0, 8, 2)]
    assert [(one.layer, one.rank) for one in nested(three)] == [(0, 8), ("emb", 4), ("emb", 4)]  # ties go to the first
    assert nested(two[:1]) == nested([two[0], unscored_record()]) == []
    assert nested([two[0], best_at(0, 8, 1, reported=False)]) == []
    alone = record(1, layers=(0,), ranks=(8,), causal=((8,),), faithful=((10, 10),))
    assert nested([two[0], alone]) == []  # that point is the other trial's own choice


def counts(*causal):
    """A record whose layers, from the embedding up, have so many successful edits of 10, and as faithful answers."""
    layers, rows = ("emb", *range(len(causal) - 1)), tuple((count,) for count in causal)
    grid = {"layers": layers, "betas": (1.0,), "ranks": (4,), "layer": 0, "rank": 4, "beta": 1.0}
    return record(**grid, faithful=rows, causal=rows, known=10, edited=10)


def test_the_lens_takes_the_middle_of_the_layers_that_are_as_good():
    assert choose([counts(10, 10, 9, 10, 1)], "causality", 1.0) == ("emb", 4)
    assert choose([counts(10, 10, 9, 10, 1)], "middle", 1.0) == (1, 4)
    assert choose([counts(10, 1, 2, 1, 9)], "middle", 1.0) == (3, 4)
    assert choose([counts(10, 1, 2, 1, 0)], "middle", 1.0) == ("emb", 4)  # alone
