"""Every curve and comparison is of the same trials, and headline scores of those that took no part in the choice.

The first trial has the whole grid, chose layer and rank, and is better than the others, which have the chosen point
alone: as `lre fit` measures them.
"""

from dataclasses import replace

import pytest

from lre_lightning.records.analysis import by_model, same_trials
from lre_lightning.report.chapters import chapters_of
from lre_lightning.report.sections import picture_of
from lre_lightning.report.sweeps import plot_layers_by_relation
from tests.report.artists import curves, titles
from tests.report.examples import record

NAMES = ("a", "b", "c", "d", "e")
CONSTANT = {"betas": (0.0, 2.0), "majority": {"training": 1, "data": 3}}
FIRST = [record(name, 0, 9, 8, chose=True, **CONSTANT) for name in NAMES]


def at_the_choice(one, trial, known_of_ten):
    """A later trial, of the chosen layer and rank, without what only first trials measure."""
    counts = {"faithful": ((known_of_ten,) * 2,), "causal": ((2,),), "faithful_low_rank": (known_of_ten,)}
    without = {"faithful_baselines": {}, "causal_baselines": {}, "faithful_zero_shot": (), "zero_shot_baselines": {}}
    place = {"layers": (0,), "ranks": (4,), "chose": False, "trial": trial, "majority": {}}
    return replace(one, **place, **counts, **without, line_integrals=(), generations=())


LATER = [at_the_choice(one, trial, known) for one in FIRST for trial, known in ((1, 5), (2, 3))]
BARE = [replace(one, template="{}", template_index=None) for one in FIRST]
OTHER_N = [replace(one, n_shot=2, chose=False) for one in FIRST]
OTHER_TEMPLATE = [replace(one, template="of {}", template_index=1, chose=False) for one in FIRST]


def sections(*records):
    (model,) = by_model(records)
    return {section.title: section for chapter in chapters_of([model]) for section in chapter.sections}


@pytest.fixture(scope="module")
def both():
    others = (*BARE, *OTHER_N, *OTHER_TEMPLATE)
    return sections(*FIRST, *LATER, *others), sections(*FIRST, *others), sections(*LATER)


SWEPT = (
    *("Layers", "Ranks", "With and without relation-specific text", "Number of examples", "Prompt templates"),
    *("Faithfulness baselines", "Causality baselines", "Baselines by relation"),
)
"""Sections that compare what only the first trials have."""


@pytest.mark.parametrize("title", SWEPT)
def test_what_is_compared_is_of_the_trials_that_have_all_of_it(both, title):
    all_trials, first, _ = both
    assert len(all_trials[title].tables) > 0
    assert [table.rows for table in all_trials[title].tables] == [table.rows for table in first[title].tables]
    all_drawn, first_drawn = (
        [str(list(map(curves, picture.plot().axes))) for picture in found[title].pictures]
        for found in (all_trials, first)
    )
    assert all_drawn == first_drawn


@pytest.mark.parametrize("title", ["Categories", "Choosing β"])
def test_headline_scores_are_of_trials_that_took_no_part_in_the_choice(both, title):
    all_trials, _, later = both
    assert [table.rows for table in all_trials[title].tables] == [table.rows for table in later[title].tables]


def test_the_choosing_trial_stands_apart(both):
    (all_trials, first, _) = (found["Relations"].tables[0] for found in both)
    rows = [dict(zip(found.columns, found.rows[0], strict=True)) for found in (all_trials, first)]
    assert [row["faithfulness"][0] for row in rows] == [0.4, 0.9]
    assert [row["faithfulness where chosen"][0] for row in rows] == [0.9, 0.9]
    assert "took no part in the choice of layer and rank." in all_trials.caption
    assert "Scores are those of the trials that chose layer and rank" in first.caption


def test_no_curve_jumps_where_the_layer_was_chosen():
    figure = picture_of(plot_layers_by_relation, [*FIRST, *LATER]).plot()
    panel = figure.axes[titles(figure).index("a")]
    assert curves(panel)["faithfulness"] == {-1: 0.2, 0: 0.9, 1: 0.3}


def test_a_trial_that_chose_in_one_group_is_left_out_of_all():
    """Otherwise the headline scores of two LMs would be of different trials."""
    second = replace(FIRST[0], trial=1, chose=False)
    groups = {"x": [FIRST[0], second], "y": [replace(FIRST[0], chose=False), second, replace(second, trial=2)]}
    same = same_trials(groups)
    assert {name: [(one.trial, one.chose) for one in found] for name, found in same.items()} == {
        "x": [(0, True), (1, False)],
        "y": [(0, True), (1, False)],
    }
