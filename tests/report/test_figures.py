"""Figures show the numbers of the tables, each series at the right place; no text overlaps another or is cut off."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from matplotlib.container import BarContainer
from matplotlib.path import Path

from lre_lightning.grid import place_of
from lre_lightning.measures import baselines, line_integrals
from lre_lightning.records.analysis import by_model
from lre_lightning.report import comparison, plotting, relations, sweeps
from lre_lightning.statistics.estimates import Share, over_trials
from lre_lightning.statistics.intervals import wilson
from tests.helpers import records as made
from tests.report.artists import (
    bars,
    check_layout,
    curves,
    dots,
    drawn,
    labels,
    legend,
    named,
    points,
    texts_of,
    titles,
)
from tests.report.examples import MAIN, C, F, bare_of, moved, record, rows, table, unscored

BY_FAITHFULNESS = ["antonym", "capital", "Colour"]
FAITHFUL = ["LRE", "LRE at the embedding", "linear regression", "translation", "identity"]
CAUSAL = ["LRE", "oracle s'", "unembedding row of o'", "object o'"]
FEW = [replace(r, n_shot=2) for r in moved(MAIN, -2) if r.relation != "Colour"]
BARE = moved(bare_of(MAIN), -3)
WITH_AND_WITHOUT = ["with relation-specific text", "without"]
OTHER = [replace(r, template="{}: ", template_index=2) for r in moved(MAIN[:4], -1)]
SECOND = [
    replace(r, model="b/second")
    for r in moved([record("Colour", 0, 5, 3), record("new", 0, 8, 8), unscored("other")], 1)
]


def of(count, total):
    """The bar of one trial."""
    found = wilson(count, total)
    return count / total, (found.low, found.high)


def test_scores_by_relation_with_the_most_faithful_first():
    figure = relations.plot_relations(MAIN)
    (axes,) = figure.axes
    found = rows("hyperparameters", MAIN)
    names = {f"{name}  (layer 0)": name for name in BY_FAITHFULNESS}
    assert labels(axes) == list(names)
    assert bars(axes) == {
        "faithfulness": drawn({label: found[name][4] for label, name in names.items()}),
        "causality": drawn({label: found[name][5] for label, name in names.items()}),
    }
    first, second = (container[0] for container in axes.containers if isinstance(container, BarContainer))
    assert (first.get_y() + 0.19, second.get_y() + 0.19) == pytest.approx((-0.2, 0.2))
    assert axes.yaxis_inverted()
    assert dots(axes) == {
        "random guess": {label: 1 / (25 if name == "antonym" else 4) for label, name in names.items()}
    }
    assert [(text.xy[1], text.get_text()) for text in axes.texts] == [(0, "linguistic"), (1, "factual"), (2, "factual")]
    assert legend(figure) == ["faithfulness", "causality", "random guess"]
    assert figure.get_supxlabel() == "mean over trials (1 relation not scored)"


def test_bars_end_at_0_and_1():
    (axes,) = relations.plot_relations([record("all", trial, 10, 8) for trial in range(2)]).axes
    low = 1 / (1 + 1.96**2 / 10)
    ((_, ends),) = bars(axes)["faithfulness"].values()
    assert tuple(ends.expected) == pytest.approx((low, 1), abs=1e-4)


def test_one_trial_has_wilsons_interval_and_a_missing_score_no_bar():
    (axes,) = relations.plot_relations([record("capital", 0, 8, 8, edited=0), record("Colour", 0, 5, 3)]).axes
    assert bars(axes) == {
        "faithfulness": {"capital  (layer 0)": of(8, 10), "Colour  (layer 0)": of(5, 10)},
        "causality": {"Colour  (layer 0)": of(3, 8)},
    }


def test_models_by_relation_in_the_order_of_the_first():
    figure = comparison.plot_models_by_relation(by_model([*MAIN, *SECOND]))
    left, right = figure.axes
    assert labels(left) == [*BY_FAITHFULNESS, "ceo", "new", "other"]
    assert titles(figure) == ["demo", "second"]
    faithful = {name: rows("hyperparameters", MAIN)[name][4] for name in BY_FAITHFULNESS}
    assert bars(left) == {"": drawn(faithful)}
    assert bars(right) == {"": {"Colour": of(6, 10), "new": of(9, 10)}}
    grey = [[text.get_position()[1] for text in axes.texts if text.get_text() == "not scored"] for axes in figure.axes]
    assert grey == [[3, 4, 5], [0, 1, 3, 5]]
    assert dots(right) == {"random guess": {"Colour": 0.25, "new": 0.25}}


def test_known_facts_are_fractions_of_the_tested_samples():
    few = [record("capital", trial, 0, 0, known=known, model="b/second") for trial, known in enumerate((3, 9))]
    figure = comparison.plot_known(by_model([*MAIN, *few]))
    left, right = figure.axes
    assert labels(left) == ["Colour", "capital", "antonym", "ceo"]
    known = dict.fromkeys(("capital", "Colour", "antonym"), of(10, 12))
    assert bars(left) == {"scored": known, "not scored": {"ceo": of(3, 26)}}
    assert bars(right) == {"scored": drawn({"capital": over_trials([Share(3, 12), Share(9, 12)])})}
    assert legend(figure) == ["scored", "not scored"]


ZERO_SHOT = partial(baselines.plot_faithfulness_baselines, zero_shot=True)
BY_CATEGORY = [
    (baselines.plot_faithfulness_baselines, "faithfulness_baselines", {"": "few-shot"}, FAITHFUL),
    (ZERO_SHOT, "faithfulness_baselines", {"few-shot s": "few-shot", "zero-shot s": "zero-shot"}, FAITHFUL),
    (baselines.plot_causality_baselines, "causality_baselines", {"": ""}, CAUSAL),
]


@pytest.mark.parametrize(("plot", "name", "kinds", "names"), BY_CATEGORY)
def test_baselines_by_category(plot, name, kinds, names):
    figure = plot(MAIN)
    assert titles(figure) == ["all relations\n(3)", "factual\n(2)", "linguistic\n(1)"]
    for axes, column in zip(figure.axes, (-1, -3, -2), strict=True):
        for label, kind in kinds.items():
            cells = [row[column] for row in table(name, MAIN).rows if kind in row or not kind]
            assert bars(axes)[label] == drawn(dict(zip(names, cells, strict=True)))
    first, *others = (container[0] for container in axes.containers if isinstance(container, BarContainer))
    assert all(first.get_y() < other.get_y() and first.get_hatch() != other.get_hatch() for other in others)
    assert legend(figure) == [kind for kind in kinds if kind]


def test_a_method_that_was_not_measured_has_no_row():
    measures = {"baselines": made.baselines({"identity": (0, 1)}, {}, {})}
    without = [replace(r, layers=("emb", 0), layer=0, measures=measures) for r in MAIN]
    assert labels(baselines.plot_faithfulness_baselines(without).axes[0]) == [*FAITHFUL[:2], "identity"]


def test_baselines_by_relation_are_dots():
    figure = baselines.plot_baselines_by_relation(MAIN)
    cells = {row[0]: row[1:] for row in table("baselines_by_relation", MAIN).rows}
    for axes, methods, first in zip(figure.axes, (FAITHFUL, CAUSAL), (0, 5), strict=True):
        assert dots(axes) == {
            method: {name: cells[name][column][0] for name in BY_FAITHFULNESS}
            for column, method in enumerate(methods, first)
        }
    heights = [line.get_ydata()[0] for line in named(figure.axes[0]).values()]
    assert min(np.diff(heights)) > 0.1
    assert titles(figure) == ["faithfulness", "causality"]


def test_templates_are_dots_of_the_relations_that_have_several():
    figure = relations.plot_templates({0: MAIN, 2: OTHER})
    cells = table("templates", [*MAIN, *OTHER]).rows
    for axes, column in zip(figure.axes, (2, 3), strict=True):
        assert labels(axes) == ["antonym", "capital"]
        assert dots(axes) == {
            f"template {index}": {row[0]: row[column][0] for row in cells[place::2]}
            for place, index in enumerate((0, 2))
        }
    assert titles(figure) == ["faithfulness", "causality"]


def of_lm(plot):
    return lambda records: plot(by_model(records)[0])


BOTH = ["faithfulness (3 relations)", "causality (3 relations)"]
CURVES = [
    ("layers", sweeps.plot_layers, MAIN, BOTH),
    ("ranks", sweeps.plot_ranks, MAIN, BOTH),
    ("n_shots", of_lm(lambda lm: sweeps.plot_n(lm.by_n)), [*MAIN, *FEW], [label.replace("3", "2") for label in BOTH]),
    ("mode_switch", of_lm(lambda lm: sweeps.plot_mode_switch(lm.main, lm.bare)), [*MAIN, *BARE], WITH_AND_WITHOUT),
    ("causality_by_layer", baselines.plot_causality_by_layer, MAIN, [CAUSAL[0], "", *CAUSAL[1:]]),
]


@pytest.mark.parametrize(("name", "plot", "records", "labels"), CURVES)
def test_curves_are_means_over_the_relations_that_have_all_points(name, plot, records, labels):
    other = record("of another run", 0, 9, 8, layers=("emb", 0, 5), ranks=(1, 2))
    found = {place_of(point): cells for point, cells in rows(name, records).items()}
    assert curves(plot([*records, other]).axes[0]) == {
        label: {place: cells[i][0] for place, cells in found.items()} for i, label in enumerate(labels) if label
    }


def test_the_middle_half_of_the_relations_is_shaded():
    (axes,) = sweeps.plot_layers(MAIN).axes
    for shade, scores in zip(axes.collections, (F, C), strict=True):
        edges = {tuple(point) for point in shade.get_paths()[0].vertices.round(9)}
        quartiles = np.quantile([np.mean(values) for values in scores.values()], [0.25, 0.75]).round(9)
        assert {(0, low) for low in quartiles} <= edges
    without = [made.with_measures(r, {"low rank": None}) for r in MAIN]
    assert list(curves(sweeps.plot_ranks(without).axes[0])) == ["causality (3 relations)"]
    assert [tick.get_text() for tick in sweeps.plot_ranks(MAIN).axes[0].get_xticklabels()] == ["2", "4"]


def test_layers_have_a_panel_for_each_relation():
    figure = baselines.plot_causality_by_layer(MAIN)
    assert titles(figure) == ["mean over relations", "capital", "antonym", "Colour"]  # by causality
    assert curves(figure.axes[1])["LRE"] == {-1: 0.125, 0: 0.875, 1: 0.25}
    assert legend(figure) == CAUSAL
    ticks = figure.axes[-1].get_xticklabels()
    assert [(tick.get_position()[0], tick.get_text()) for tick in ticks] == [(-1, "emb"), (0, "0"), (1, "1")]
    figure = sweeps.plot_mode_switch(MAIN, BARE)
    assert titles(figure) == ["mean over relations", "antonym", "capital"]
    assert curves(figure.axes[2])["without"] == {-1: 0.2, 0: 0.4, 1: 0.8}


def test_each_relation_has_its_layers_chosen_layer_and_random_guess():
    figure = sweeps.plot_layers_by_relation([*MAIN, record("new", 0, 1, 1, layer=1)])
    assert titles(figure) == [*BY_FAITHFULNESS, "new"]
    found = curves(figure.axes[1])
    assert found["faithfulness"] == {-1: 0.2, 0: 0.7, 1: 0.3}
    assert found["causality"] == {-1: 0.125, 0: 0.875, 1: 0.25}
    lines = [named(axes) for axes in figure.axes]
    assert [list(found["chosen layer"].get_xdata()) for found in lines] == [[0, 0]] * 3 + [[1, 1]]
    assert [list(found["random guess"].get_ydata()) for found in lines] == [[1 / 25] * 2, *[[1 / 4] * 2] * 3]
    at_zero = [y for x, y in figure.axes[1].collections[0].get_paths()[0].vertices if x == 0]
    interval = over_trials([Share(8, 10), Share(6, 10)]).interval
    assert (min(at_zero), max(at_zero)) == pytest.approx((interval.low, interval.high))


def test_beta_of_the_best_correlation_and_of_the_best_faithfulness_are_marked():
    counts = {"a": (0, 5, 8), "b": (2, 5, 1), "c": (4, 6, 7), "d": (6, 7, 2)}
    records = [
        record(name, 0, 0, i, betas=(0.5, 1.0, 2.0), beta=1.0, faithful=((0,) * 3, found, (0,) * 3))
        for i, (name, found) in enumerate(counts.items())
    ]
    (axes,) = sweeps.plot_beta(records).axes
    found = rows("betas", records)
    assert [cells[3] for cells in found.values()] == ["correlation", "mean faithfulness", None]
    for name, values in {
        "faithfulness, mean over relations": [cells[0][0] for cells in found.values()],
        "causality, mean over relations": [cells[1][0] for cells in found.values()],
        "correlation R of the two over relations": [cells[2].value for cells in found.values()],
        "best correlation: 1.00 at β = 0.5": [1],
        "best mean faithfulness: 0.57 at β = 1": [0.575],
    }.items():
        assert named(axes)[name].get_ydata().tolist() == pytest.approx(values)
    assert axes.get_ylim()[0] < found[2.0][2].value < -0.03


def test_scatter_fills_the_dots_of_relations_with_many_known_facts():
    # "few" has 29.5 known samples on average over the reported trials.
    few = [record("few", 0, 5, 2, known=29), record("few", 1, 5, 2, known=30)]
    few.append(record("few", 2, 5, 2, known=90, reported=False))
    many = record("many", 0, 15, 2, known=30)
    figure = relations.plot_scatter([*few, many, *MAIN], title="first")
    (axes,) = figure.axes
    few_point = (round((5 / 29 + 5 / 30) / 2, 9), 0.25)
    assert points(axes) == {
        few_point: False,
        (0.5, 0.25): True,
        **dict.fromkeys([(0.7, 0.875), (0.9, 0.75), (0.45, 0.375)], False),
    }
    assert axes.get_title().startswith("first, R = 0.")
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("faithfulness", "causality")
    assert any(list(line.get_xdata()) == list(line.get_ydata()) == [0, 1] for line in axes.lines)
    assert legend(figure)[:2] == ["factual", "linguistic"]


def test_scatter_names_at_most_six_relations_the_farthest_from_the_diagonal():
    (axes,) = relations.plot_scatter([record(f"relation {i}", 0, 0, i) for i in range(9)]).axes
    expected = [(f"relation {i}", (0, i / 8)) for i in (8, 7, 6, 5, 4, 3)]
    assert [(text.get_text(), text.xy) for text in axes.texts] == expected
    assert axes.get_title() == "R not defined"  # faithfulness does not vary
    (axes,) = relations.plot_scatter([record("relation of a name that is long", 0, 2, 3)]).axes  # at 0.1, 0.375
    axes.figure.draw_without_rendering()
    (name,) = (text.get_window_extent() for text in axes.texts)
    assert not Path(axes.transData.transform([(0, 0), (1, 1)])).intersects_bbox(name)
    near = [record(str(i), 0, i, i, known=8) for i in range(9)]
    assert len(relations.plot_scatter(near).axes[0].texts) == 0


def test_categories_look_the_same_in_every_figure_and_run():
    names = ["factual", "linguistic", "bias", *(f"own {i}" for i in range(20))]
    looks = plotting.styles_of(dict(enumerate(names)))
    assert len({(look.colour, look.marker) for look in looks.values()}) == len(names)
    for some in (["factual"], ["linguistic", "bias"], ["own 7", "own 0"]):
        assert plotting.styles_of(dict(enumerate(some))).items() <= looks.items()
    (axes,) = relations.plot_scatter([record(name, 0, 5, 4, category=name) for name in ("bias", "own 7")]).axes
    for name in ("bias", "own 7"):
        line = named(axes)[name]
        assert (line.get_color(), line.get_marker()) == (looks[name].colour, looks[name].marker)


def test_categories_have_a_bar_for_each_model():
    figure = relations.plot_categories(by_model([*MAIN, *SECOND]))
    assert titles(figure) == ["faithfulness", "causality"]
    for column, axes in enumerate(figure.axes, 1):
        for label, records in (("demo", MAIN), ("second", SECOND)):
            found = {name: cells[column] for name, cells in rows("categories", records).items()}
            assert bars(axes)[label] == drawn({"all relations": found.pop("all"), **found})
    assert legend(figure) == ["demo", "second"]


def test_models_agree_by_spearmans_correlation():
    counts = {"a/one": (1, 9, 2, 8), "b/two": (2, 7, 5, 4), "b/three": (9, 2, 6, 1)}
    records = [record("abcd"[i], 0, counts[model][i], 1, model=model) for model in counts for i in range(4)]
    figure = comparison.plot_model_agreement(by_model(records))
    for axes, (one, other, r, count) in zip(figure.axes, table("model_agreement", records).rows, strict=True):
        assert axes.get_title() == f"R = {r.value:.2f} ({count} relations)"
        assert (axes.get_xlabel(), axes.get_ylabel()) == (f"faithfulness, {one}", f"faithfulness, {other}")
    assert set(points(figure.axes[0])) == {(0.1, 0.2), (0.9, 0.7), (0.2, 0.5), (0.8, 0.4)}


def test_underestimation_is_the_ratio_over_pairs():
    pairs = (4.0, 2.0), (1.0, 2.0), (5.0, 1.0)
    records = [
        made.with_measures(r, {"line integrals": made.line_integrals((i + 1.0, 1.0), *pairs)})
        for i, r in enumerate(MAIN)
        if r.scored
    ]
    (axes,) = line_integrals.plot_underestimation(records).axes
    assert labels(axes) == ["Colour", "antonym", "capital"]
    found = [rows("underestimation", records)[name][2] for name in labels(axes)]
    assert list(axes.lines[0].get_xdata()) == pytest.approx([one.value for one in found])
    (segments,) = (container[2][0].get_segments() for container in axes.containers)
    ends = [end for (low, _), (high, _) in segments for end in (low, high)]
    assert ends == pytest.approx([end for one in found for end in (one.interval.low, one.interval.high)])
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)
    assert axes.get_xlim()[0] == 0


# The layout of the figures: where their texts end up.

LONGEST = ["person lead singer of band", "star constellation name", "landmark in country", "country capital city"]
NAMES = [f"{LONGEST[i % 4]} {i}" for i in range(47)]
CATEGORIES = ["factual"] * 26 + ["commonsense"] * 8 + ["linguistic"] * 6 + ["bias"] * 7


@cache
def dataset(model, seed=0):
    """Random counts of two trials of as many relations as the paper's, one of which the second LM does not know."""
    random = np.random.default_rng(seed)
    counts = zip(random.integers(4, 11, 94).tolist(), random.integers(1, 9, 94).tolist(), strict=True)
    records = [
        made.with_measures(
            record(name, trial, *next(counts), model=model, category=kind),
            {"line integrals": made.line_integrals((random.uniform(1, 5), 1.0))},
        )
        for name, kind in zip(NAMES, CATEGORIES, strict=True)
        for trial in (0, 1)
    ]
    return [unscored(r.relation, model=model) if seed and r.relation == NAMES[-1] else r for r in records]


ONE_OF_EACH_LAYOUT = (
    relations.plot_relations,
    relations.plot_scatter,
    line_integrals.plot_underestimation,
    ZERO_SHOT,
    baselines.plot_baselines_by_relation,
    baselines.plot_causality_by_layer,
    sweeps.plot_beta,
    sweeps.plot_ranks,
)
OF_RECORDS = (
    *ONE_OF_EACH_LAYOUT,
    baselines.plot_causality_baselines,
    sweeps.plot_layers,
    sweeps.plot_layers_by_relation,
    lambda records: sweeps.plot_n({1: records, 8: records}),
    lambda records: sweeps.plot_mode_switch(records, records),
)
OF_MODELS = (relations.plot_categories, comparison.plot_models_by_relation, comparison.plot_known)


@pytest.mark.parametrize("plot", ONE_OF_EACH_LAYOUT)
def test_with_as_many_relations_as_the_papers_no_texts_overlap_or_are_cut(plot):
    figure = plot(dataset("EleutherAI/gpt-j-6b"))
    check_layout(figure)
    assert len(figure.axes) in (1, 2, 5, 1 + len(NAMES))


@pytest.mark.parametrize("plot", [relations.plot_relations, sweeps.plot_layers, sweeps.plot_beta])
def test_narrowed_for_a_card_no_texts_overlap_or_are_cut(plot):
    figure = plot(dataset("EleutherAI/gpt-j-6b"))
    named = set(legend(figure))
    check_layout(plotting.narrowed(figure, 4.5), 4.4, 5)
    assert set(legend(figure)) == named
    assert min(axes.bbox.width for axes in figure.axes) > 0.9 * figure.dpi


def test_with_two_models_no_texts_overlap_or_are_cut():
    models = by_model(dataset("EleutherAI/gpt-j-6b") + dataset("openai-community/gpt2-xl", 1))
    for plot in (*OF_MODELS, comparison.plot_model_agreement):
        check_layout(plot(models))


def test_one_relation_in_one_trial_at_one_point_can_be_plotted():
    grid = {"layers": ("emb",), "betas": (1.0,), "ranks": (4,), "layer": "emb", "beta": 1.0, "rank": 4}
    of_maps, of_states = ({name: (1,) for name in names} for names in (FAITHFUL[2:], baselines.CAUSALITY))
    one = made.with_measures(
        record("capital", 0, 0, 0, **{**grid, "faithful": ((7,),), "causal": ((3,),)}),
        {"low rank": made.low_rank(5), "baselines": made.baselines(of_maps, of_states, of_maps, ((6,),))},
    )
    figures = [plot([one]) for plot in OF_RECORDS] + [plot(by_model([one])) for plot in OF_MODELS]
    figures += [relations.plot_scatter([unscored()]), *(plot(by_model([unscored()])) for plot in OF_MODELS)]
    assert all(len(texts_of(figure)) > 4 for figure in figures)


def test_with_deep_models_and_long_names_no_texts_overlap_or_are_cut():
    names = ("org/a-language-model-with-a-very-long-name-of-65b-parameters-chat-v2", "b", "org/third-13b", "org/fourth")
    records = [
        replace(
            record(name, 0, faithful, 4, model=model, category=name),
            relation=f"{name} of $\\no$ mathematics that costs $1 and is long",
        )
        for model in names
        for name, faithful in (("factual", 7), ("linguistic", 9), ("bias", 4))
    ]
    models = by_model(records)
    for plot in (*OF_MODELS, comparison.plot_model_agreement):
        check_layout(plot(models))
    for plot in (relations.plot_relations, relations.plot_scatter, sweeps.plot_layers_by_relation):
        check_layout(plot(models[0].main))
    grid = {"layers": ("emb", *range(48)), "faithful": ((1, 2),) * 49, "causal": ((3, 4),) * 49}
    found = made.baselines({}, dict.fromkeys(baselines.CAUSALITY, (5,) * 49), {})
    grid["measures"] = {"baselines": found}
    deep = [record(name, 0, 5, 5, **grid) for name in ("one", "two", "three")]
    for plot in (sweeps.plot_layers, baselines.plot_causality_by_layer):
        check_layout(plot(deep))


def test_a_figure_shows_itself_in_a_notebook():
    assert plotting.new_figure(1, 1)._repr_png_().startswith(b"\x89PNG")
