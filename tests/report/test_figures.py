"""Figures show the numbers of the tables, each series at the right place; no text overlaps another or is cut off."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer, ErrorbarContainer

from lre_lightning.errors import LREError
from lre_lightning.report import baselines, comparison, relations, sweeps
from lre_lightning.report.analysis import by_model
from tests.report.examples import MAIN, C, F, bare_of, minimal, moved, record, rows, table, unscored

BY_FAITHFULNESS = ["antonym", "capital", "Colour"]
FAITHFUL = ["LRE", "LRE at the embedding", "linear regression", "translation", "identity"]
CAUSAL = {
    "LRE": "LRE",
    "oracle": r"oracle $\mathbf{s}'$",
    "unembedding": r"unembedding row of $\mathit{o}'$",
    "object": r"object $\mathbf{o}'$",
}


def plain(entry):
    return tuple(entry) if isinstance(entry, list) else entry


def labels(axes):
    """The names of the rows, which the panels share."""
    return [label.get_text() for label in axes.figure.axes[0].get_yticklabels()]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def legend(figure):
    return [label.get_text() for found in figure.legends for label in found.get_texts()]


def named(axes):
    """The lines with a label."""
    return {line.get_label(): line for line in axes.lines if not line.get_label().startswith("_")}


def bars(axes):
    """Mean and deviation of every bar, by series and the name of the row."""
    widths = {}
    for container in (found for found in axes.containers if isinstance(found, ErrorbarContainer)):
        for (low, at), (high, _) in container[2][0].get_segments():
            widths[round(at, 6)] = (high - low) / 2
    return {
        container.get_label().replace("_container0", ""): {
            labels(axes)[round(at)]: cell(bar.get_width(), widths.get(round(at, 6)))
            for bar in container
            for at in [bar.get_y() + bar.get_height() / 2]
        }
        for container in axes.containers
        if isinstance(container, BarContainer)
    }


def dots(axes):
    """Mean of every dot, by series and the name of the row."""
    return {
        name: {labels(axes)[round(y)]: pytest.approx(x) for x, y in line.get_xydata().tolist()}
        for name, line in named(axes).items()
    }


def curves(axes):
    """Values along the axis, by series."""
    return {name: dict(line.get_xydata().tolist()) for name, line in named(axes).items()}


def cell(mean, deviation):
    return pytest.approx(mean), deviation if deviation is None else pytest.approx(deviation, abs=1e-9)


def means(cells):
    return [mean for mean, _ in cells]


def test_scores_by_relation_with_the_most_faithful_first():
    figure = relations.plot_relations(MAIN)
    (axes,) = figure.axes
    found = rows("hyperparameters", MAIN)
    names = {f"{name}  (layer 0)": name for name in BY_FAITHFULNESS}
    assert labels(axes) == list(names)
    assert bars(axes) == {
        "faithfulness": {label: found[name][4] for label, name in names.items()},
        "causality": {label: found[name][5] for label, name in names.items()},
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


def test_one_trial_has_no_deviation_and_a_missing_score_no_bar():
    (axes,) = relations.plot_relations([record("capital", 0, 8, 8, edited=0), record("Colour", 0, 5, 3)]).axes
    assert bars(axes) == {
        "faithfulness": {"capital  (layer 0)": (0.8, None), "Colour  (layer 0)": (0.5, None)},
        "causality": {"Colour  (layer 0)": (0.375, None)},
    }


SECOND = [
    replace(r, model="b/second")
    for r in moved([record("Colour", 0, 5, 3), record("new", 0, 8, 8), unscored("other")], 1)
]


def test_models_by_relation_in_the_order_of_the_first():
    figure = comparison.plot_models_by_relation(by_model([*MAIN, *SECOND]))
    left, right = figure.axes
    assert labels(left) == [*BY_FAITHFULNESS, "ceo", "new", "other"]
    assert titles(figure) == ["demo", "second"]
    faithful = {name: rows("hyperparameters", MAIN)[name][4] for name in BY_FAITHFULNESS}
    assert bars(left) == {"": faithful}
    assert bars(right) == {"": {"Colour": (0.6, None), "new": (0.9, None)}}
    grey = [[text.get_position()[1] for text in axes.texts if text.get_text() == "not scored"] for axes in figure.axes]
    assert grey == [[3, 4, 5], [0, 1, 3, 5]]
    spans = [[patch.get_y() for patch in axes.patches if patch.get_width() == 1] for axes in figure.axes]
    assert spans == [[row - 0.45 for row in found] for found in grey]
    assert dots(right) == {"random guess": {"Colour": 0.25, "new": 0.25}}


def test_known_facts_are_fractions_of_the_tested_samples():
    few = [record("capital", trial, 0, 0, known=known, model="b/second") for trial, known in enumerate((3, 9))]
    figure = comparison.plot_known(by_model([*MAIN, *few]))
    left, right = figure.axes
    assert labels(left) == ["Colour", "capital", "antonym", "ceo"]
    known = dict.fromkeys(("capital", "Colour", "antonym"), cell(10 / 12, 0))
    assert bars(left) == {"scored": known, "not scored": {"ceo": (3 / 26, None)}}
    assert bars(right) == {"scored": {"capital": cell(0.5, 0.5 / 2**0.5)}}
    assert legend(figure) == ["scored", "not scored"]


def check_groups(figure, found, names, labels_of_series=("",)):
    """Check bars by category, against the rows of a table for each series."""
    assert titles(figure) == ["all relations\n(3)", "factual\n(2)", "linguistic\n(1)"]
    for axes, column in zip(figure.axes, (2, 0, 1), strict=True):
        assert bars(axes) == {
            label: {shown: found[(name, *kind)][column] for name, shown in names.items()}
            for label, kind in zip(labels_of_series, ((k,) for k in ("few-shot", "zero-shot")), strict=False)
        }


def test_baselines_by_category():
    found = {row[:2]: row[2:] for row in table("faithfulness_baselines", MAIN).rows}
    names = dict(zip(FAITHFUL, FAITHFUL, strict=True))
    check_groups(baselines.plot_faithfulness_baselines(MAIN), found, names)
    figure = baselines.plot_faithfulness_baselines(MAIN, zero_shot=True)
    check_groups(figure, found, names, ("few-shot s", "zero-shot s"))
    dark, light = (container[0] for container in figure.axes[0].containers if isinstance(container, BarContainer))
    assert sum(dark.get_facecolor()) < sum(light.get_facecolor())
    assert (dark.get_hatch(), light.get_hatch()) == ("", "////")
    assert dark.get_y() < light.get_y()
    assert legend(figure) == ["few-shot s", "zero-shot s"]
    edits = {(name, "few-shot"): cells for name, cells in rows("causality_baselines", MAIN).items()}
    check_groups(baselines.plot_causality_baselines(MAIN), edits, CAUSAL)


def test_a_method_that_was_not_measured_has_no_row():
    without = [replace(r, layers=("emb", 0), layer=0, faithful_baselines={"identity": (0, 1)}) for r in MAIN]
    assert labels(baselines.plot_faithfulness_baselines(without).axes[0]) == [*FAITHFUL[:2], "identity"]


def test_baselines_by_relation_are_dots():
    figure = baselines.plot_baselines_by_relation(MAIN)
    cells = {row[0]: row[1:] for row in table("baselines_by_relation", MAIN).rows}
    methods = [*FAITHFUL, *CAUSAL.values()]
    found = {
        method: {name: cells[name][column][0] for name in BY_FAITHFULNESS} for column, method in enumerate(methods[:5])
    }
    assert dots(figure.axes[0]) == found
    assert dots(figure.axes[1])["LRE"] == {name: cells[name][5][0] for name in BY_FAITHFULNESS}
    assert list(dots(figure.axes[1])) == methods[5:]
    heights = [line.get_ydata()[0] for line in named(figure.axes[0]).values()]
    assert min(np.diff(heights)) > 0.1
    assert titles(figure) == ["faithfulness", "causality"]


def test_templates_are_dots_of_the_relations_that_have_several():
    other = [replace(r, template="{}: ", template_index=2) for r in moved(MAIN[:4], -1)]
    figure = relations.plot_templates({0: MAIN, 2: other})
    cells = table("templates", [*MAIN, *other]).rows
    for axes, column in zip(figure.axes, (2, 3), strict=True):
        assert labels(axes) == ["antonym", "capital"]
        assert dots(axes) == {
            f"template {index}": {row[0]: row[column][0] for row in cells[place::2]}
            for place, index in enumerate((0, 2))
        }
    assert titles(figure) == ["faithfulness", "causality"]


def test_layers_have_a_panel_for_the_mean_and_one_for_each_relation():
    figure = baselines.plot_causality_by_layer(MAIN)
    assert titles(figure) == ["mean over relations", "capital", "antonym", "Colour"]  # by causality
    found = rows("causality_by_layer", MAIN)
    columns = [cells[:1] + cells[2:] for cells in found.values()]  # without the best rank
    assert curves(figure.axes[0]) == {
        label: dict(zip((-1, 0, 1), (pytest.approx(cells[i][0]) for cells in columns), strict=True))
        for i, label in enumerate(CAUSAL.values())
    }
    assert curves(figure.axes[1])["LRE"] == {-1: 0.125, 0: 0.875, 1: 0.25}
    assert legend(figure) == list(CAUSAL.values())
    ticks = figure.axes[-1].get_xticklabels()
    assert [(tick.get_position()[0], tick.get_text()) for tick in ticks] == [(-1, "emb"), (0, "0"), (1, "1")]


def test_means_by_layer_have_the_middle_half_of_the_relations_shaded():
    (axes,) = sweeps.plot_layers([*MAIN, record("of another run", 0, 9, 8, layers=("emb", 0, 5))]).axes
    found = rows("layers", MAIN)
    for (label, points), column, shade, scores in zip(
        curves(axes).items(), (0, 1), axes.collections, (F, C), strict=True
    ):
        assert label == f"{('faithfulness', 'causality')[column]} (3 relations)"
        assert points == {place: pytest.approx(found[at][column][0]) for place, at in ((-1, "emb"), (0, 0), (1, 1))}
        edges = {tuple(point) for point in shade.get_paths()[0].vertices.round(9)}
        quartiles = np.quantile([np.mean(values) for values in scores.values()], [0.25, 0.75]).round(9)
        assert {(0, low) for low in quartiles} <= edges


def test_each_relation_has_its_layers_chosen_layer_and_random_guess():
    figure = sweeps.plot_layers_by_relation([*MAIN, record("new", 0, 1, 1, layer=1)])
    assert titles(figure) == [*BY_FAITHFULNESS, "new"]
    found = curves(figure.axes[1])
    assert found["faithfulness"] == {-1: 0.2, 0: pytest.approx(0.7), 1: 0.3}
    assert found["causality"] == {-1: 0.125, 0: 0.875, 1: 0.25}
    lines = [named(axes) for axes in figure.axes]
    assert [list(found["chosen layer"].get_xdata()) for found in lines] == [[0, 0]] * 3 + [[1, 1]]
    assert [list(found["random guess"].get_ydata()) for found in lines] == [[1 / 25] * 2, *[[1 / 4] * 2] * 3]
    at_zero = [y for x, y in figure.axes[1].collections[0].get_paths()[0].vertices if x == 0]
    assert (min(at_zero), max(at_zero)) == pytest.approx((0.7 - 0.02**0.5, 0.7 + 0.02**0.5))


def test_by_rank_faithfulness_is_that_of_a_truncated_w():
    (axes,) = sweeps.plot_ranks([*MAIN, record("other ranks", 0, 9, 8, ranks=(1, 2))]).axes
    found = rows("ranks", MAIN)
    names = ("faithfulness, W truncated to the rank (3 relations)", "causality (3 relations)")
    assert curves(axes) == {
        name: {rank: pytest.approx(cells[i][0]) for rank, cells in found.items()} for i, name in enumerate(names)
    }
    assert axes.get_xscale() == "log"
    without = [replace(r, faithful_low_rank=()) for r in MAIN]
    assert list(curves(sweeps.plot_ranks(without).axes[0])) == ["causality (3 relations)"]


def test_over_n_only_relations_scored_at_every_n_count():
    few = [replace(r, n_shot=2) for r in moved(MAIN, -2) if r.relation != "Colour"]
    figure = sweeps.plot_n({4: MAIN, 2: few})
    found = rows("n_shots", [*MAIN, *few])
    for axes, metric, column in zip(figure.axes, ("faithfulness", "causality"), (0, 1), strict=True):
        assert axes.get_title() == f"{metric}: 2 relations scored at every n"
        assert curves(axes) == {"mean": {n: pytest.approx(cells[column][0]) for n, cells in found.items()}}
        segments = axes.containers[0][2][0].get_segments()
        assert [(s[1][1] - s[0][1]) / 2 for s in segments] == pytest.approx([found[n][column][1] for n in (2, 4)])
    thin = [list(line.get_ydata()) for line in figure.axes[0].lines if line.get_linewidth() < 1]
    assert thin == [pytest.approx([0.5, 0.7]), pytest.approx([0.7, 0.9])]


def test_mode_switch_compares_the_relations_that_have_both():
    bare = [*moved(bare_of(MAIN), -3), record("unasked", 0, 9, 8)]
    figure = sweeps.plot_mode_switch(MAIN, bare)
    assert titles(figure) == ["mean over relations", "antonym", "capital"]
    found = [cells for cells in rows("mode_switch", [*MAIN, *moved(bare_of(MAIN), -3)]).values()]
    for i, label in enumerate(("with relation-specific text", "without")):
        assert list(curves(figure.axes[0])[label].values()) == pytest.approx(means(cells[i] for cells in found))
    assert curves(figure.axes[2])["without"] == {-1: 0.2, 0: pytest.approx(0.4), 1: 0.8}


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
        "faithfulness, mean over relations": {beta: cells[0][0] for beta, cells in found.items()},
        "causality, mean over relations": {beta: cells[1][0] for beta, cells in found.items()},
        "correlation R of the two over relations": {beta: cells[2] for beta, cells in found.items()},
    }.items():
        assert curves(axes)[name] == pytest.approx(values)
    assert found[2.0][2] < -0.03
    assert axes.get_ylim()[0] < found[2.0][2]
    assert curves(axes)["best correlation: 1.00 at β = 0.5"] == {0.5: pytest.approx(1)}
    assert curves(axes)["best mean faithfulness: 0.57 at β = 1"] == {1.0: pytest.approx(0.575)}
    mean, width = found[0.5][0]
    edges = [y for x, y in axes.collections[0].get_paths()[0].vertices if x == 0.5]
    assert (min(edges), max(edges)) == pytest.approx((mean - width, mean + width))


def points(axes):
    """Position of every point, and whether it is filled."""
    return {
        (round(x, 9), round(y, 9)): bool(face[3])
        for found in axes.collections
        for (x, y), face in zip(found.get_offsets().tolist(), found.get_facecolors(), strict=True)
    }


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
    marks = {tuple(map(tuple, found.get_paths()[0].vertices.round(6))) for found in axes.collections}
    assert len(marks) == 2


def test_scatter_names_at_most_six_relations_the_farthest_from_the_diagonal():
    (axes,) = relations.plot_scatter([record(f"relation {i}", 0, 0, i) for i in range(9)]).axes
    expected = [(f"relation {i}", (0, i / 8)) for i in (8, 7, 6, 5, 4, 3)]
    assert [(text.get_text(), text.xy) for text in axes.texts] == expected
    assert axes.get_title() == "R not defined"  # faithfulness does not vary
    near = [record(str(i), 0, i, i, known=8) for i in range(9)]
    assert len(relations.plot_scatter(near).axes[0].texts) == 0


def test_categories_have_a_bar_for_each_model():
    figure = relations.plot_categories(by_model([*MAIN, *SECOND]))
    assert titles(figure) == ["faithfulness", "causality"]
    for column, axes in enumerate(figure.axes):
        assert labels(axes) == ["factual", "linguistic", "all relations"]
        for label, records in (("demo", MAIN), ("second", SECOND)):
            found = {
                "all relations" if name == "all" else name: cells for name, cells in rows("categories", records).items()
            }
            assert bars(axes)[label] == {name: cells[1 + column] for name, cells in found.items()}
    assert legend(figure) == ["demo", "second"]


def test_agreement_of_models_is_spearmans():
    counts = {"a/one": (1, 9, 2, 8), "b/two": (2, 7, 5, 4), "b/three": (9, 2, 6, 1)}
    records = [
        record(name, 0, count, 1, model=model)
        for model, by_relation in counts.items()
        for name, count in zip("abcd", by_relation, strict=True)
    ]
    figure = comparison.plot_model_agreement(by_model(records))
    for axes, (one, other, r, count) in zip(figure.axes, table("model_agreement", records).rows, strict=True):
        assert axes.get_title() == f"R = {r:.2f} ({count} relations)"
        assert (axes.get_xlabel(), axes.get_ylabel()) == (f"faithfulness, {one}", f"faithfulness, {other}")
    expected = {(x / 10, y / 10) for x, y in zip(counts["a/one"], counts["b/two"], strict=True)}
    assert set(points(figure.axes[0])) == expected


def test_underestimation_is_the_ratio_over_pairs():
    records = [replace(r, line_integrals=((i + 1.0, 1.0), (4.0, 2.0))) for i, r in enumerate(MAIN) if r.scored]
    (axes,) = relations.plot_underestimation(records).axes
    assert labels(axes) == ["Colour", "antonym", "capital"]
    found = rows("underestimation", records)
    assert list(axes.lines[0].get_xdata()) == pytest.approx(means(found[name][2] for name in labels(axes)))
    (segments,) = (container[2][0].get_segments() for container in axes.containers)
    widths = [(high - low) / 2 for (low, _), (high, _) in segments]
    assert widths == pytest.approx([found[name][2][1] for name in labels(axes)])
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)
    assert axes.get_xlim()[0] == 0


BARE = minimal(MAIN[0])


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (lambda: comparison.plot_models_by_relation(by_model([unscored()])), "no relation was scored for any LM"),
        (lambda: baselines.plot_faithfulness_baselines([BARE]), "no baselines of faithfulness"),
        (lambda: baselines.plot_faithfulness_baselines([BARE], zero_shot=True), "no zero-shot baselines"),
        (lambda: baselines.plot_causality_baselines([BARE]), "no baselines of causality"),
        (lambda: baselines.plot_baselines_by_relation([BARE]), "hold no baselines$"),
        (lambda: baselines.plot_causality_by_layer([BARE]), "no baselines of causality"),
        (lambda: sweeps.plot_n({1: MAIN[:1], 2: MAIN[2:3]}), "at every n"),
        (lambda: relations.plot_scatter([replace(BARE, edited=0)]), "both faithfulness and causality"),
        (lambda: relations.plot_categories(by_model([unscored()])), "no relation was scored for any LM"),
        (lambda: comparison.plot_known(by_model([replace(unscored(), tested=0)])), "no relation was tested"),
        (lambda: relations.plot_underestimation([BARE]), "no line integrals"),
    ],
)
def test_nothing_to_plot_is_an_error(plot, message):
    with pytest.raises(LREError, match=f"nothing to plot: .*{message}"):
        plot()


# The layout of the figures: where their texts end up.

NAMES = """person mother;person father;person sport position;landmark on continent;person native language;landmark in
country;person occupation;company hq;product by company;person plays instrument;star constellation name;plays pro
sport;company CEO;superhero person;superhero archnemesis;person university;pokemon evolution;country currency;food from
country;city in country;country capital city;country language;country largest city;person lead singer of
band;president birth year;president election year;object superclass;word sentiment;task done by tool;substance phase of
matter;work location;fruit inside color;task person type;fruit outside color;word first letter;word last
letter;adjective antonym;adjective superlative;verb past tense;adjective comparative;occupation age;univ degree
gender;name birthplace;name religion;characteristic gender;name gender;occupation gender""".replace("\n", " ").split(
    ";"
)
CATEGORIES = ["factual"] * 26 + ["commonsense"] * 8 + ["linguistic"] * 6 + ["bias"] * 7


def dataset(model, seed, names=NAMES, depth=29):
    """Random counts of two trials of all relations of the paper, one of which the second LM does not know."""
    random = np.random.default_rng(seed)

    def counts(level, *shape):
        noisy = (level + random.normal(0, 0.05, shape)).clip(0, 1) * 50
        return tuple(map(plain, noisy.astype(int).tolist()))

    records = []
    for name, category in zip(names, CATEGORIES, strict=False):
        level = random.uniform(0.05, 0.95)
        fields = {
            "layers": ("emb", *range(depth - 1)),
            "betas": (1.0, 2.25, 4.0),
            "ranks": tuple(range(1, 41)),
            "faithful": counts(level, depth, 3),
            "causal": counts(level**0.5, depth, 40),
            "causal_baselines": {n: counts(level, depth) for n in ("oracle", "unembedding", "object")},
            "faithful_baselines": {n: counts(level / 2, depth) for n in FAITHFUL[2:]},
            "faithful_low_rank": counts(level, 40),
            "line_integrals": tuple((ratio, 1.0) for ratio in random.uniform(1, 5, 3).tolist()),
            **{"layer": depth // 2, "beta": 2.25, "rank": 7, "known": 55, "tested": 60, "edited": 50, "model": model},
        }
        fields |= {"zero_shot_baselines": fields["faithful_baselines"], "faithful_zero_shot": fields["faithful"]}
        known = not seed or name != "country language"
        records += [
            record(name, trial, 0, 0, category=category, **fields)
            if known
            else unscored(name, model=model, category=category, trial=trial)
            for trial in (0, 1)
        ]
    return records


def texts_of(figure):
    """Plot a figure and return the boxes of all its visible texts."""
    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    texts = [*figure.texts, *(text for found in figure.legends for text in found.get_texts())]
    for axes in figure.axes:
        texts += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        texts += axes.get_legend().get_texts() if axes.get_legend() else []
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            texts += [tick.label1 for tick in ticks if tick.label1.get_visible() and low <= tick.get_loc() <= high]
    renderer = canvas.get_renderer()
    # The extent of an annotation includes the line to its point, that of its text does not.
    return {text: type(figure.axes[0].title).get_window_extent(text, renderer) for text in texts if text.get_text()}


def check_layout(figure):
    boxes = texts_of(figure)
    assert len(boxes) > 4
    width, height = figure.bbox.size
    texts = [text.get_text() for text in boxes]
    x0, y0, x1, y1 = np.array([box.extents for box in boxes.values()]).T
    inside = (x0 >= 0) & (y0 >= 0) & (x1 <= width) & (y1 <= height)
    assert [text for text, fits in zip(texts, inside, strict=True) if not fits] == []
    across = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    assert [(texts[one], texts[other]) for one, other in np.argwhere(across) if one < other] == []
    assert 7.9 < figure.get_figwidth() < 11.1


ONE_OF_EACH_LAYOUT = (
    relations.plot_relations,
    relations.plot_scatter,
    relations.plot_underestimation,
    partial(baselines.plot_faithfulness_baselines, zero_shot=True),
    baselines.plot_baselines_by_relation,
    baselines.plot_causality_by_layer,
    sweeps.plot_beta,
    lambda records: sweeps.plot_n({1: records, 8: records}),
)
OF_RECORDS = (
    *ONE_OF_EACH_LAYOUT,
    baselines.plot_faithfulness_baselines,
    baselines.plot_causality_baselines,
    sweeps.plot_layers,
    sweeps.plot_layers_by_relation,
    sweeps.plot_ranks,
    lambda records: sweeps.plot_mode_switch(records, records),
)
OF_MODELS = (relations.plot_categories, comparison.plot_models_by_relation, comparison.plot_known)


@pytest.mark.parametrize("plot", ONE_OF_EACH_LAYOUT)
def test_with_all_relations_of_the_paper_no_texts_overlap_or_are_cut(plot):
    figure = plot(dataset("EleutherAI/gpt-j-6b", 0))
    check_layout(figure)
    assert len(figure.axes) in (1, 2, 5, 1 + len(NAMES))


def test_with_all_relations_and_two_models_no_texts_overlap_or_are_cut():
    models = by_model(dataset("EleutherAI/gpt-j-6b", 0) + dataset("openai-community/gpt2-xl", 1))
    for plot in (*OF_MODELS, comparison.plot_model_agreement):
        check_layout(plot(models))


def test_one_relation_in_one_trial_at_one_point_can_be_plotted():
    grid = {"layers": ("emb",), "betas": (1.0,), "ranks": (4,), "layer": "emb", "beta": 1.0, "rank": 4}
    one = record("capital", 0, 0, 0, **{**grid, "faithful": ((7,),), "causal": ((3,),)})
    one = replace(
        one,
        faithful_low_rank=(5,),
        faithful_zero_shot=((6,),),
        faithful_baselines={name: (1,) for name in FAITHFUL[2:]},
        zero_shot_baselines={name: (1,) for name in FAITHFUL[2:]},
        causal_baselines={name: (1,) for name in ("oracle", "unembedding", "object")},
    )
    for plot in OF_RECORDS:
        assert len(texts_of(plot([one]))) > 4
    for plot in OF_MODELS:
        assert len(texts_of(plot(by_model([one])))) > 4


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
    deep = dataset("deep", 2, ["one", "two", "three"], depth=49)
    for plot in (sweeps.plot_layers, baselines.plot_causality_by_layer):
        check_layout(plot(deep))
