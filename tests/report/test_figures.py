"""What the figures draw, against statistics worked out here from the counts; and that nothing overlaps or is cut."""

import math
import statistics
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import BarContainer, ErrorbarContainer

from lre_lightning.errors import LREError
from lre_lightning.records.record import TrialRecord
from lre_lightning.report import baselines, comparison, relations, sweeps
from lre_lightning.report.analysis import by_model

LAYERS, BETAS, RANKS = ("emb", 0, 3), (1.0, 2.0), (2, 8)
PLACES = [-1, 0, 3]
# Known facts, category, size of the range and how much of everything succeeds, by relation.
RELATIONS = {
    "capital": (20, "factual", 4, 0.6),
    "colour": (40, "commonsense", 5, 0.9),
    "gender": (50, "bias", 2, 0.3),
    "past": (30, "factual", 10, 0.5),
}


def record(relation="capital", trial=0, **changes):
    """A record whose counts all differ; `known` of 60 facts are known, half of them can be edited."""
    known, category, size, share = RELATIONS.get(relation, (20, "factual", 4, 0.6))
    level = share - 0.1 * trial

    def counts(start, total, *shape):
        factors = start + 0.07 * np.arange(math.prod(shape)).reshape(shape)
        return tuple(map(_plain, (total * level * factors).round().astype(int).tolist()))

    fields = {
        "range_size": size,
        "samples": 80,
        "known": known,
        "tested": 60,
        "layers": LAYERS,
        "betas": BETAS,
        "ranks": RANKS,
        "faithful": counts(0.6, known, 3, 2),
        "causal": counts(0.5, known // 2, 3, 2),
        "edited": known // 2,
        "layer": 3,
        "beta": 2.0,
        "rank": 2,
        "model": "org/first",
        "n_shot": 8,
        "template": "{} is",
        "faithful_baselines": {
            "linear regression": counts(0.4, known, 3),
            "translation": counts(0.3, known, 3),
            "identity": counts(0.1, known, 3),
        },
        "faithful_zero_shot": counts(0.3, known, 3, 2),
        "zero_shot_baselines": {
            "linear regression": counts(0.2, known, 3),
            "translation": counts(0.15, known, 3),
            "identity": counts(0.05, known, 3),
        },
        "causal_baselines": {
            "oracle": counts(0.8, known // 2, 3),
            "unembedding": counts(0.2, known // 2, 3),
            "object": counts(0.4, known // 2, 3),
        },
        "faithful_low_rank": counts(0.5, known, 2),
        "line_integrals": ((2.0 + trial, 1.0), (9.0 * share, 3.0), (5.0, 0.0)),
    }
    return TrialRecord(relation, category, trial, **{**fields, **changes})


def _plain(entry):
    return tuple(entry) if isinstance(entry, list) else entry


def unscored(relation="ceo", **changes):
    return TrialRecord(relation, "factual", 0, 20, 20, tested=12, known=3, n_shot=8, template="{} is", **changes)


def run(**changes):
    """Two trials of every relation, one that was not scored, and a trial that only chose."""
    records = [record(relation, trial, **changes) for relation in RELATIONS for trial in (0, 1)]
    model = changes.get("model", "org/first")
    chose = record("colour", 2, reported=False, faithful=((0, 0),) * 3, causal=((0, 0),) * 3, **changes)
    return [*records, chose, unscored(model=model)]


def mean_of(records, score, relation):
    """Mean and deviation over the reported trials of a relation."""
    return spread([score(r) for r in records if r.relation == relation and r.reported and r.layers])


def spread(values):
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def over(records, score, names):
    return spread([mean_of(records, score, name)[0] for name in names])


def faithful(record):
    return record.faithful[2][1] / record.known


def causal(record):
    return record.causal[2][0] / record.edited


def bars(axes):
    """Widths of the bars, one list a series."""
    return [[bar.get_width() for bar in found] for found in axes.containers if isinstance(found, BarContainer)]


def rows_of(axes):
    """At which height the bars stand, one list a series."""
    found = [c for c in axes.containers if isinstance(c, BarContainer)]
    return [[bar.get_y() + bar.get_height() / 2 for bar in container] for container in found]


def errors(axes):
    """Middles and half widths of the horizontal error bars, one list of pairs a series."""
    found = [c for c in axes.containers if isinstance(c, ErrorbarContainer)]
    segments = [container[2][0].get_segments() for container in found]
    return [[((s[0][0] + s[1][0]) / 2, (s[1][0] - s[0][0]) / 2) for s in each] for each in segments]


def curves(axes):
    """Points of the lines by their label."""
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in named}


def labels(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def titles(figure):
    return [axes.get_title() for axes in figure.axes]


def legend(figure):
    return [label.get_text() for found in figure.legends for label in found.get_texts()]


def test_by_relation_the_most_faithful_comes_first():
    records = run()
    figure = relations.plot_relations(records)
    (axes,) = figure.axes
    order = ["colour", "capital", "past", "gender"]
    assert labels(axes) == [f"{name}  (layer 3)" for name in order]
    assert bars(axes) == [
        pytest.approx([mean_of(records, score, name)[0] for name in order]) for score in (faithful, causal)
    ]
    assert errors(axes) == [
        [pytest.approx(mean_of(records, score, name)) for name in order] for score in (faithful, causal)
    ]
    assert rows_of(axes) == [pytest.approx([-0.2, 0.8, 1.8, 2.8]), pytest.approx([0.2, 1.2, 2.2, 3.2])]
    assert axes.yaxis_inverted()
    assert curves(axes)["random guess"] == ([1 / 5, 1 / 4, 1 / 10, 1 / 2], [0, 1, 2, 3])
    assert [text.get_text() for text in axes.texts] == ["commonsense", "factual", "factual", "bias"]
    assert [text.xy[1] for text in axes.texts] == [0, 1, 2, 3]
    assert legend(figure) == ["faithfulness", "causality", "random guess"]
    assert figure.get_supxlabel() == "mean over trials (1 relation not scored)"
    assert relations.plot_relations(records[:1]).get_supxlabel() == "mean over trials"


def test_one_trial_has_no_error_bars_and_what_has_no_score_no_bar():
    # Without edits there is no causality.
    records = [record("capital", edited=0), record("colour"), record("gender", layer="emb", rank=8)]
    (axes,) = relations.plot_relations(records).axes
    assert labels(axes) == ["colour  (layer 3)", "capital  (layer 3)", "gender  (layer emb)"]
    assert bars(axes)[1] == [causal(records[1]), records[2].causal[0][1] / 25]
    assert rows_of(axes)[1] == [0.2, 2.2]
    assert errors(axes) == []


def test_models_stand_side_by_side_in_the_order_of_the_first():
    names = ("colour", "gender", "new")
    other = [record(name, faithful=((0, 0), (0, 0), (0, 6 + i)), model="b/second") for i, name in enumerate(names)]
    first = run()
    figure = comparison.plot_models_by_relation(by_model([*first, *other]))
    left, right = figure.axes
    order = ["colour", "capital", "past", "gender", "ceo", "new"]
    assert labels(left) == order
    assert titles(figure) == ["first", "second"]
    assert bars(left)[0] == pytest.approx([mean_of(first, faithful, name)[0] for name in order[:4]])
    assert bars(right) == [pytest.approx([6 / 40, 7 / 50, 8 / 20])]
    assert rows_of(right) == [[0, 3, 5]]
    assert errors(right) == []
    grey = [[text.get_position()[1] for text in axes.texts if text.get_text() == "not scored"] for axes in figure.axes]
    assert grey == [[4, 5], [1, 2, 4]]
    spans = [[patch.get_y() for patch in axes.patches if patch.get_width() == 1] for axes in figure.axes]
    assert spans == [[row - 0.45 for row in rows] for rows in grey]
    assert curves(right)["random guess"] == ([1 / 5, 1 / 2, 1 / 4], [0, 3, 5])


def test_known_facts_are_shares_of_the_tested_samples():
    second = [record(known=15, model="b/second"), record(trial=1, known=45, model="b/second")]
    figure = comparison.plot_known(by_model([*run(), *second]))
    left, right = figure.axes
    assert labels(left) == ["gender", "colour", "past", "capital", "ceo"]
    assert bars(left) == [pytest.approx([50 / 60, 40 / 60, 30 / 60, 20 / 60]), [3 / 12]]
    assert rows_of(left) == [[0, 1, 2, 3], [4]]
    assert (bars(right), rows_of(right)) == ([[0.5]], [[3]])
    assert errors(right) == [[pytest.approx((0.5, statistics.stdev([15 / 60, 45 / 60])))]]
    assert legend(figure) == ["scored", "not scored"]


FAITHFUL = ["LRE", "LRE at the embedding", "linear regression", "translation", "identity"]
CAUSAL = ["LRE", r"oracle $\mathbf{s}'$", r"unembedding row of $\mathit{o}'$", r"object $\mathbf{o}'$"]
GROUPS = {
    "all relations\n(4)": tuple(RELATIONS),
    "factual\n(2)": ("capital", "past"),
    "commonsense\n(1)": ("colour",),
    "bias\n(1)": ("gender",),
}


def faithfulness_scores(zero_shot=False):
    def baseline(name):
        return lambda r: (r.zero_shot_baselines if zero_shot else r.faithful_baselines)[name][2] / r.known

    def at(layer):
        return lambda r: (r.faithful_zero_shot if zero_shot else r.faithful)[layer][1] / r.known

    return [at(2), at(0), *map(baseline, FAITHFUL[2:])]


def causality_scores():
    return [causal, *(lambda r, n=n: r.causal_baselines[n][2] / r.edited for n in ("oracle", "unembedding", "object"))]


def check_groups(figure, records, rows, series):
    assert titles(figure) == list(GROUPS)
    assert labels(figure.axes[0]) == rows
    for axes, names in zip(figure.axes, GROUPS.values(), strict=True):
        expected = [[over(records, score, names) for score in scores] for scores in series]
        assert bars(axes) == [pytest.approx([mean for mean, _ in scores]) for scores in expected]
        if len(names) > 1:
            assert errors(axes) == [[pytest.approx(score) for score in scores] for scores in expected]
        else:
            assert errors(axes) == []  # one relation does not deviate


def test_baselines_of_faithfulness_by_category():
    records = run()
    figure = baselines.plot_faithfulness_baselines(records)
    check_groups(figure, records, FAITHFUL, [faithfulness_scores()])
    assert rows_of(figure.axes[1]) == [[0, 1, 2, 3, 4]]


def test_zero_shot_bars_are_light_and_hatched_below_the_others():
    records = run()
    figure = baselines.plot_faithfulness_baselines(records, zero_shot=True)
    check_groups(figure, records, FAITHFUL, [faithfulness_scores(), faithfulness_scores(zero_shot=True)])
    dark, light = (container[0] for container in figure.axes[0].containers if isinstance(container, BarContainer))
    assert sum(dark.get_facecolor()) < sum(light.get_facecolor())
    assert (dark.get_hatch(), light.get_hatch()) == ("", "////")
    assert dark.get_y() < light.get_y()
    assert legend(figure) == ["few-shot s", "zero-shot s"]


def test_a_method_that_nothing_measured_has_no_row():
    without = [replace(r, layers=(1, 2, 3)) for r in run() if r.layers]
    assert labels(baselines.plot_faithfulness_baselines(without).axes[0]) == [m for m in FAITHFUL if "embed" not in m]


def test_baselines_of_causality_by_category():
    records = run()
    check_groups(baselines.plot_causality_baselines(records), records, CAUSAL, [causality_scores()])


def test_baselines_by_relation_are_dots():
    records = run()
    figure = baselines.plot_baselines_by_relation(records)
    order = ["colour", "capital", "past", "gender"]
    assert labels(figure.axes[0]) == order
    for axes, methods, scores in zip(
        figure.axes, (FAITHFUL, CAUSAL), (faithfulness_scores(), causality_scores()), strict=True
    ):
        found = curves(axes)
        assert list(found) == methods
        for (xs, ys), score in zip(found.values(), scores, strict=True):
            assert xs == pytest.approx([mean_of(records, score, name)[0] for name in order])
            assert [round(y) for y in ys] == [0, 1, 2, 3]
        heights = [ys[0] for _, ys in found.values()]
        assert heights == sorted(heights)
        assert min(np.diff(heights)) > 0.1
    assert titles(figure) == ["faithfulness", "causality"]


def test_templates_are_dots_of_the_relations_that_have_several():
    first, second = run(), [r for r in run() if r.relation in ("colour", "past")]
    second = [replace(r, faithful=tuple(tuple(c // 2 for c in row) for row in r.faithful)) for r in second]
    figure = relations.plot_templates({0: first, 2: second})
    order = ["colour", "past"]  # by faithfulness with the first template
    assert labels(figure.axes[0]) == order
    for axes, score in zip(figure.axes, (faithful, causal), strict=True):
        found = curves(axes)
        assert list(found) == ["template 0", "template 2"]
        for (xs, ys), records in zip(found.values(), (first, second), strict=True):
            assert xs == pytest.approx([mean_of(records, score, name)[0] for name in order])
            assert [round(y) for y in ys] == [0, 1]
    assert titles(figure) == ["faithfulness", "causality"]
    with pytest.raises(LREError, match="no relation was scored with several templates"):
        relations.plot_templates({0: first})


def at_layer(counts, total, layer, point):
    return lambda r: getattr(r, counts)[layer][point] / getattr(r, total)


def test_causality_by_layer_has_a_panel_for_the_mean_and_one_for_each_relation():
    records = run()
    figure = baselines.plot_causality_by_layer(records)
    order = ["colour", "past", "capital", "gender"]  # by causality
    order.sort(key=lambda name: -mean_of(records, causal, name)[0])
    assert titles(figure) == ["mean over relations", *order]
    scores = {
        "LRE": [at_layer("causal", "edited", i, 0) for i in range(3)],
        **{
            label: [lambda r, i=i, n=n: r.causal_baselines[n][i] / r.edited for i in range(3)]
            for label, n in zip(CAUSAL[1:], ("oracle", "unembedding", "object"), strict=True)
        },
    }
    for axes, names in zip(figure.axes, [order, *([name] for name in order)], strict=True):
        for label, by_layer in scores.items():
            xs, ys = curves(axes)[label]
            assert xs == PLACES
            assert ys == pytest.approx([over(records, score, names)[0] for score in by_layer])
    assert legend(figure) == CAUSAL
    ticks = figure.axes[-1].get_xticklabels()
    assert [(tick.get_position()[0], tick.get_text()) for tick in ticks] == [(-1, "emb"), (0, "0"), (3, "3")]


def test_by_layer_trials_are_averaged_first_and_relations_after_that():
    records = run()
    records += [record("of another run", layers=("emb", 0, 5), faithful=((0, 0),) * 3, causal=((0, 0),) * 3, layer=0)]
    (axes,) = sweeps.plot_layers(records).axes
    found = curves(axes)
    assert list(found) == ["faithfulness (4 relations)", "causality (4 relations)"]
    for (xs, ys), shade, (counts, total, point) in zip(
        found.values(), axes.collections, [("faithful", "known", 1), ("causal", "edited", 0)], strict=True
    ):
        scores = [at_layer(counts, total, i, point) for i in range(3)]
        assert (xs, ys) == (PLACES, pytest.approx([over(records, score, RELATIONS)[0] for score in scores]))
        means = [[mean_of(records, score, name)[0] for name in RELATIONS] for score in scores]
        edges = {tuple(point) for point in shade.get_paths()[0].vertices.round(9)}
        for place, values in zip(PLACES, means, strict=True):
            assert (place, np.quantile(values, 0.25).round(9)) in edges
            assert (place, np.quantile(values, 0.75).round(9)) in edges


def test_each_relation_has_its_layers_chosen_layer_and_random_guess():
    records = [*run(), record("new", layer=0, faithful=((0, 0),) * 3)]
    figure = sweeps.plot_layers_by_relation(records)
    assert titles(figure) == ["colour", "capital", "past", "gender", "new"]
    for axes in figure.axes:
        name, found = axes.get_title(), curves(axes)
        for label, counts, total, point in (
            ("faithfulness", "faithful", "known", 1),
            ("causality", "causal", "edited", 0),
        ):
            scores = [at_layer(counts, total, i, point) for i in range(3)]
            assert found[label] == (PLACES, pytest.approx([mean_of(records, score, name)[0] for score in scores]))
        assert found["chosen layer"][0] == ([0, 0] if name == "new" else [3, 3])
        guess = 1 / RELATIONS.get(name, (0, "", 4))[2]
        assert found["random guess"][1] == [guess, guess]
    middle, deviation = mean_of(records, at_layer("faithful", "known", 0, 1), "colour")
    shade = figure.axes[0].collections[0].get_paths()[0].vertices
    at_embedding = [y for x, y in shade if x == -1]
    assert (min(at_embedding), max(at_embedding)) == pytest.approx((middle - deviation, middle + deviation))


def test_by_rank_faithfulness_is_that_of_w_cut_down():
    records = [*run(), record("other ranks", ranks=(1, 2), faithful_low_rank=(0, 0), causal=((0, 0),) * 3)]
    (axes,) = sweeps.plot_ranks(records).axes
    found = curves(axes)
    low = [over(records, lambda r, i=i: r.faithful_low_rank[i] / r.known, RELATIONS)[0] for i in range(2)]
    edits = [over(records, lambda r, i=i: r.causal[2][i] / r.edited, RELATIONS)[0] for i in range(2)]
    assert found["faithfulness, W truncated to the rank (4 relations)"] == ([2, 8], pytest.approx(low))
    assert found["causality (4 relations)"] == ([2, 8], pytest.approx(edits))
    assert axes.get_xscale() == "log"
    without = [replace(r, faithful_low_rank=()) for r in records]
    assert list(curves(sweeps.plot_ranks(without).axes[0])) == ["causality (4 relations)"]


def test_over_n_only_relations_scored_at_every_n_count():
    by_n = {n: [record(name, trial, n_shot=n) for name in RELATIONS for trial in (0, n)] for n in (3, 1, 5)}
    by_n[5] = [r for r in by_n[5] if r.relation != "past"] + [unscored("past")]
    figure = sweeps.plot_n(by_n)
    assert titles(figure) == ["faithfulness: 3 relations scored at every n", "causality: 3 relations scored at every n"]
    names = ["capital", "colour", "gender"]
    for axes, score in zip(figure.axes, (faithful, causal), strict=True):
        expected = [over(by_n[n], score, names) for n in (1, 3, 5)]
        assert curves(axes)["mean"] == ([1, 3, 5], pytest.approx([mean for mean, _ in expected]))
        (container,) = axes.containers
        segments = container[2][0].get_segments()
        assert [(s[0][1] + s[1][1]) / 2 for s in segments] == pytest.approx([mean for mean, _ in expected])
        assert [(s[1][1] - s[0][1]) / 2 for s in segments] == pytest.approx([width for _, width in expected])
        thin = [list(line.get_ydata()) for line in axes.lines if line.get_linewidth() < 1]
        assert thin == [pytest.approx([mean_of(by_n[n], score, name)[0] for n in (1, 3, 5)]) for name in names]


def test_mode_switch_compares_the_relations_that_have_both():
    main = run()
    bare = [replace(r, faithful=r.faithful[::-1]) for r in main if r.relation != "past"]
    bare += [record("gender", 3, faithful=((50, 50),) * 3, causal=((25, 25),) * 3)]
    figure = sweeps.plot_mode_switch(main, bare)
    names = ["colour", "capital", "gender"]  # by faithfulness with the text, not without
    assert titles(figure) == ["mean over relations", *names]
    for axes, shown in zip(figure.axes, [names, *([name] for name in names)], strict=True):
        found = curves(axes)
        for label, records in (("with relation-specific text", main), ("without", bare)):
            means = [over(records, at_layer("faithful", "known", i, 1), shown)[0] for i in range(3)]
            assert found[label] == (PLACES, pytest.approx(means))


def test_beta_of_the_best_correlation_and_of_the_best_faithfulness_are_marked():
    betas, share = (0.5, 1.0, 2.0, 3.0), {"capital": 0.5, "colour": 0.8, "gender": 0.2, "past": 0.3}
    counts = {"capital": (2, 12, 6, 9), "colour": (0, 28, 34, 30), "gender": (20, 12, 11, 30), "past": (6, 13, 18, 8)}
    records = [
        record(
            name,
            betas=betas,
            faithful=((0,) * 4, (0,) * 4, counts[name]),
            causal=((0, 0), (0, 0), (round(RELATIONS[name][0] // 2 * share[name]), 0)),
        )
        for name in RELATIONS
    ]
    (axes,) = sweeps.plot_beta(records).axes
    shares = np.array([[count / RELATIONS[name][0] for count in counts[name]] for name in RELATIONS])
    edits = [causal(r) for r in records]
    means = shares.mean(0)
    linked = [np.corrcoef(shares[:, i], edits)[0, 1] for i in range(4)]
    best, most = int(np.argmax(linked)), int(np.argmax(means))
    assert best != most
    assert min(linked) < -0.03  # and within the axis
    assert axes.get_ylim()[0] < min(linked)
    found = curves(axes)
    assert found["faithfulness, mean over relations"] == (list(betas), pytest.approx(means.tolist()))
    assert found["causality, mean over relations"] == (list(betas), pytest.approx([np.mean(edits)] * 4))
    assert found["correlation R of the two over relations"] == (list(betas), pytest.approx(linked))
    star = found[f"best correlation: {linked[best]:.2f} at β = {betas[best]:g}"]
    assert star == ([betas[best]], [pytest.approx(linked[best])])
    star = found[f"best mean faithfulness: {means[most]:.2f} at β = {betas[most]:g}"]
    assert star == ([betas[most]], [pytest.approx(means[most])])
    middle, width = means[0], shares[:, 0].std(ddof=1)
    edges = [y for x, y in axes.collections[0].get_paths()[0].vertices if x == 0.5]
    assert (min(edges), max(edges)) == pytest.approx((middle - width, middle + width))


def dots(axes):
    """Position and whether it is filled, of every dot."""
    return {
        (round(x, 9), round(y, 9)): bool(face[3])
        for found in axes.collections
        for (x, y), face in zip(found.get_offsets().tolist(), found.get_facecolors(), strict=True)
    }


def test_scatter_fills_the_dots_of_relations_with_many_known_facts():
    # The first has 29.5 known samples on average over the reported trials.
    few = [
        record("capital", 0, known=29),
        record("capital", 1, known=30),
        record("capital", 2, known=90, reported=False),
    ]
    records = [*few, *(r for r in run() if r.relation != "capital")]
    figure = relations.plot_scatter(records, title="first")
    (axes,) = figure.axes
    points = {n: (mean_of(records, faithful, n)[0], mean_of(records, causal, n)[0]) for n in RELATIONS}
    assert dots(axes) == {
        (round(x, 9), round(y, 9)): name in ("colour", "gender", "past") for name, (x, y) in points.items()
    }
    r = np.corrcoef(np.array(list(points.values())).T)[0, 1]
    assert axes.get_title() == f"first, R = {r:.2f}"
    assert axes.get_xlabel() == "faithfulness"
    assert axes.get_ylabel() == "causality"
    assert any(list(line.get_xdata()) == list(line.get_ydata()) == [0, 1] for line in axes.lines)
    assert legend(figure)[:3] == ["factual", "commonsense", "bias"]
    marks = {tuple(map(tuple, found.get_paths()[0].vertices.round(6))) for found in axes.collections}
    assert len(marks) == 3


def test_scatter_names_at_most_six_relations_the_farthest_from_the_diagonal():
    edits = [0, 1, 2, 3, 4, 5, 8, 9, 10]
    records = [
        record(f"relation {i}", faithful=((0, 0),) * 3, causal=((0, 0), (0, 0), (i, 0)), edited=10) for i in edits
    ]
    figure = relations.plot_scatter(records)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == [f"relation {i}" for i in (10, 9, 8, 5, 4, 3)]
    assert [text.xy for text in axes.texts] == [(0, i / 10) for i in (10, 9, 8, 5, 4, 3)]
    assert axes.get_title() == "R not defined"  # faithfulness does not vary
    near = [replace(r, faithful=r.causal, known=r.edited, beta=1.0) for r in run() if r.layers]
    assert len(relations.plot_scatter(near).axes[0].texts) == 0


def test_categories_have_a_bar_for_each_model():
    first = run()
    second = [record(name, model="b/second", faithful=((0, 0), (0, 0), (0, 5))) for name in ("gender", "colour")]
    figure = relations.plot_categories(by_model([*first, *second]))
    assert titles(figure) == ["faithfulness", "causality"]
    assert labels(figure.axes[0]) == ["bias", "commonsense", "factual", "all relations"]
    for axes, score in zip(figure.axes, (faithful, causal), strict=True):
        one = [over(first, score, names) for names in (["gender"], ["colour"], ["capital", "past"], RELATIONS)]
        other = [over(second, score, names) for names in (["gender"], ["colour"], ["colour", "gender"])]
        assert bars(axes) == [pytest.approx([mean for mean, _ in found]) for found in (one, other)]
        assert rows_of(axes) == [pytest.approx([-0.2, 0.8, 1.8, 2.8]), pytest.approx([0.2, 1.2, 3.2])]
        assert errors(axes)[0] == [pytest.approx(one[2]), pytest.approx(one[3])]
        assert errors(axes)[1] == [pytest.approx(other[2])]
    assert legend(figure) == ["first", "second"]


def test_agreement_of_models_is_spearmans():
    counts = {"a/one": (1, 9, 2, 18), "b/two": (2, 7, 5, 4), "b/three": (9, 2, 12, 1)}
    models = by_model(
        record(name, known=20, faithful=((0, 0), (0, 0), (0, count)), model=model)
        for model, by_relation in counts.items()
        for name, count in zip(RELATIONS, by_relation, strict=True)
    )
    figure = comparison.plot_model_agreement(models)
    pairs = list(combinations(counts, 2))
    for axes, (one, other) in zip(figure.axes, pairs, strict=True):
        ranks = [np.argsort(np.argsort(counts[model])) for model in (one, other)]
        r = np.corrcoef(ranks)[0, 1]
        assert axes.get_title() == f"R = {r:.2f} (4 relations)"
        assert axes.get_xlabel() == f"faithfulness, {one[2:]}"
        assert axes.get_ylabel() == f"faithfulness, {other[2:]}"
        expected = {(round(x / 20, 9), round(y / 20, 9)) for x, y in zip(counts[one], counts[other], strict=True)}
        assert set(dots(axes)) == expected


def test_models_of_the_same_last_name_are_called_in_full():
    models = by_model([record(model="org/lm"), record(model="other/lm"), record(model="/runs/third/")])
    assert titles(comparison.plot_models_by_relation(models)) == ["org/lm", "other/lm", "third"]


def test_underestimation_is_the_ratio_over_pairs():
    records = run()
    (axes,) = relations.plot_underestimation(records).axes
    ratios = {name: [2.0, 3 * share, 3.0, 3 * share] for name, (*_, share) in RELATIONS.items()}
    ratios["colour"] = [2.0, 2.7, 3.0, 2.7]
    order = sorted(ratios, key=lambda name: -statistics.fmean(ratios[name]))
    assert labels(axes) == order
    means = axes.lines[0]
    assert list(means.get_xdata()) == pytest.approx([statistics.fmean(ratios[name]) for name in order])
    assert list(means.get_ydata()) == [0, 1, 2, 3]
    assert errors(axes) == [[pytest.approx(spread(ratios[name])) for name in order]]
    assert any(list(line.get_xdata()) == [1, 1] for line in axes.lines)
    assert axes.get_xlim()[0] == 0


BARE = replace(
    record(),
    faithful_baselines={},
    causal_baselines={},
    zero_shot_baselines={},
    faithful_zero_shot=(),
    layers=(0, 1, 2),
    layer=2,
    line_integrals=(),
)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: relations.plot_relations([unscored()]), "no relation was scored"),
        (lambda: comparison.plot_models_by_relation(by_model([unscored()])), "no relation was scored for any LM"),
        (lambda: baselines.plot_faithfulness_baselines([BARE]), "no baselines of faithfulness"),
        (lambda: baselines.plot_faithfulness_baselines([BARE], zero_shot=True), "no zero-shot baselines"),
        (lambda: baselines.plot_causality_baselines([BARE]), "no baselines of causality"),
        (lambda: baselines.plot_baselines_by_relation([BARE]), "hold no baselines$"),
        (lambda: baselines.plot_causality_by_layer([BARE]), "no baselines of causality"),
        (lambda: sweeps.plot_layers([unscored()]), "no relation was scored"),
        (lambda: sweeps.plot_layers_by_relation([record(reported=False)]), "no relation was scored"),
        (lambda: sweeps.plot_ranks([]), "no relation was scored"),
        (lambda: sweeps.plot_n({1: [record()], 2: [record("colour")]}), "at every n"),
        (lambda: sweeps.plot_n({}), "at every n"),
        (lambda: sweeps.plot_mode_switch([record()], [record("colour")]), "with and without relation-specific text"),
        (lambda: sweeps.plot_beta([record(), record("colour", betas=(5.0, 6.0), beta=6.0)]), "no beta in common"),
        (lambda: relations.plot_scatter([record(edited=0)]), "both faithfulness and causality"),
        (lambda: relations.plot_categories(by_model([unscored()])), "no relation was scored for any LM"),
        (lambda: comparison.plot_known(by_model([replace(unscored(), tested=0)])), "no relation was tested"),
        (lambda: relations.plot_underestimation([BARE]), "no line integrals"),
    ],
)
def test_nothing_to_draw_is_said(draw, message):
    with pytest.raises(LREError, match=message):
        draw()


# What follows draws the figures and looks where their texts end up.

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


def dataset(model, seed, trials=24, depth=29):
    """All relations of the paper in as many trials and layers, with random counts."""
    random = np.random.default_rng(seed)
    layers, betas, ranks = ("emb", *range(depth - 1)), (1.0, 2.25, 4.0), tuple(range(1, 41))

    def counts(level, *shape):
        noisy = (level + random.normal(0, 0.05, shape)).clip(0, 1) * 50
        return tuple(map(_plain, noisy.astype(int).tolist()))

    records = []
    for name, category in zip(NAMES, CATEGORIES, strict=True):
        level = random.uniform(0.05, 0.95)
        grid = {"layers": layers, "betas": betas, "ranks": ranks}
        grid |= {"faithful": counts(level, depth, 3), "causal": counts(level**0.5, depth, 40)}
        grid["causal_baselines"] = {n: counts(level, depth) for n in ("oracle", "unembedding", "object")}
        grid["faithful_baselines"] = {n: counts(level / 2, depth) for n in FAITHFUL[2:]}
        grid["zero_shot_baselines"], grid["faithful_zero_shot"] = grid["faithful_baselines"], grid["faithful"]
        grid |= {"layer": depth // 2, "beta": 2.25, "rank": 7, "faithful_low_rank": counts(level, 40)}
        grid["line_integrals"] = tuple((ratio, 1.0) for ratio in random.uniform(1, 5, 3).tolist())
        for trial in range(trials):
            if name == "country language" and seed:
                records.append(replace(unscored(name, model=model), trial=trial))
            else:
                own = {"faithful": (counts(level, 3), *grid["faithful"][1:]), "known": random.integers(50, 60).item()}
                fields = {"range_size": int(random.integers(2, 50)), "samples": 100, "tested": 60, "edited": 50}
                fields |= {"model": model, "n_shot": 8, "template": "{}"}
                records.append(TrialRecord(name, category, trial, **{**grid, **fields, **own}))
    return records


@pytest.fixture(scope="module")
def paper():
    return dataset("EleutherAI/gpt-j-6b", 0) + dataset("openai-community/gpt2-xl", 1)


def drawn(figure):
    """Draw a figure: the boxes of all its texts that are in sight."""
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
    for name in ("_supxlabel", "_supylabel"):
        assert getattr(figure, name) is None or getattr(figure, name) in texts
    renderer = canvas.get_renderer()
    # The extent of an annotation takes in the line to its point, that of its text does not.
    return {text: type(figure.axes[0].title).get_window_extent(text, renderer) for text in texts if text.get_text()}


def check_layout(figure):
    boxes = drawn(figure)
    assert len(boxes) > 4
    width, height = figure.bbox.size
    texts = [text.get_text() for text in boxes]
    x0, y0, x1, y1 = np.array([box.extents for box in boxes.values()]).T
    inside = (x0 >= 0) & (y0 >= 0) & (x1 <= width) & (y1 <= height)
    assert [text for text, fits in zip(texts, inside, strict=True) if not fits] == []
    across = (x0[:, None] < x1) & (x0 < x1[:, None]) & (y0[:, None] < y1) & (y0 < y1[:, None])
    assert [(texts[one], texts[other]) for one, other in np.argwhere(across) if one < other] == []
    assert 7.9 < figure.get_figwidth() < 11.1


def every_figure(records):
    """All figures, of the first LM's records or of all LMs."""
    models = by_model(records)
    main = models[0].main
    few = [record for record in main if record.trial < 2]  # drawn by layer and relation, trials only take time
    yield "relations", relations.plot_relations(main)
    yield "faithfulness baselines", baselines.plot_faithfulness_baselines(few)
    yield "zero-shot", baselines.plot_faithfulness_baselines(few, zero_shot=True)
    yield "causality baselines", baselines.plot_causality_baselines(few)
    yield "baselines by relation", baselines.plot_baselines_by_relation(main)
    yield "causality by layer", baselines.plot_causality_by_layer(few)
    yield "layers", sweeps.plot_layers(few)
    yield "layers by relation", sweeps.plot_layers_by_relation(few)
    yield "ranks", sweeps.plot_ranks(few)
    yield "n", sweeps.plot_n({1: few, 8: main})
    yield "mode switch", sweeps.plot_mode_switch(few[:20], few)
    yield "beta", sweeps.plot_beta(few)
    yield "scatter", relations.plot_scatter(main, title=models[0].model)
    yield "underestimation", relations.plot_underestimation(few)
    yield "models", comparison.plot_models_by_relation(models)
    yield "known", comparison.plot_known(models)
    yield "categories", relations.plot_categories(models)
    if len(models) > 1:
        yield "agreement", comparison.plot_model_agreement(models)


def test_of_all_relations_of_the_paper_no_texts_overlap_or_are_cut(paper):
    found = {}
    for name, figure in every_figure(paper):
        check_layout(figure)
        found[name] = figure
    assert len(found) == 18
    assert labels(found["relations"].axes[0])[0].split("  ")[0] in NAMES
    assert len(labels(found["models"].axes[0])) == 47
    assert [len(found[name].axes) for name in ("causality by layer", "layers by relation")] == [48, 47]


def test_over_many_trials_bars_are_their_mean_and_deviation(paper):
    second = [record for record in paper if record.model.endswith("xl")]
    (axes,) = relations.plot_relations(second).axes
    names = [label.split("  ")[0] for label in labels(axes)]
    found = {name: score for name, *score in zip(names, bars(axes)[0], errors(axes)[0], strict=True)}
    assert sorted(found) == sorted(set(NAMES) - {"country language"})
    for name, (width, error) in found.items():
        values = [r.faithful[15][1] / r.known for r in second if r.relation == name]
        assert len(values) == 24
        assert width == pytest.approx(statistics.fmean(values))
        assert error == pytest.approx((width, statistics.stdev(values)))


def test_one_relation_in_one_trial_at_one_point_can_be_drawn():
    one = record(layers=("emb",), betas=(1.0,), ranks=(4,), faithful=((7,),), causal=((3,),), layer="emb", beta=1.0)
    one = replace(one, rank=4, faithful_low_rank=(5,), faithful_zero_shot=((6,),))
    one = replace(
        one,
        faithful_baselines={name: (1,) for name in FAITHFUL[2:]},
        zero_shot_baselines={name: (1,) for name in FAITHFUL[2:]},
        causal_baselines={name: (1,) for name in ("oracle", "unembedding", "object")},
    )
    for _, figure in every_figure([one]):
        check_layout(figure)


def test_of_many_deep_models_with_long_names_no_texts_overlap_or_are_cut():
    names = ("org/a-language-model-with-a-very-long-name-of-65b-parameters-chat-v2", "b", "org/third-13b", "org/fourth")
    records = [
        replace(record(name, model=model), relation=f"{name} of $\\no$ mathematics that costs $1 and is long")
        for model in names
        for name in RELATIONS
    ]
    for _, figure in every_figure(records):
        check_layout(figure)
    deep = [r for r in dataset("deep", 2, trials=1, depth=49) if r.relation in NAMES[:3]]
    for draw in (sweeps.plot_layers, sweeps.plot_layers_by_relation, baselines.plot_causality_by_layer):
        check_layout(draw(deep))
