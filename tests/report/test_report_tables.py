"""Tables of records whose counts are known: all numbers are computed here again, independently."""

import csv
import io
from dataclasses import replace
from math import sqrt
from statistics import fmean, stdev

import numpy as np
import pytest

from lre_lightning.measures.whole_objects import WHOLE_OBJECT_SCORES
from lre_lightning.records.measurement import Measurement
from lre_lightning.report.findings import findings
from lre_lightning.report.tables import Table, escape_latex, to_csv, to_latex, to_text
from tests.helpers.records import baselines, line_integrals, majorities, whole_objects, with_measures
from tests.report.examples import LAYERS, MAIN, TORN, C, F, bare_of, minimal, moved, record, rows, table, unscored

FACTUAL = ("capital", "Colour")


def spread(values):
    """Mean and deviation, as an approximate cell."""
    return pytest.approx(fmean(values)), pytest.approx(stdev(values)) if len(values) > 1 else None


def flat(value):
    """The mean of equal values."""
    return pytest.approx(value), pytest.approx(0)


def over(scores, relations=None):
    """Mean and deviation over relations of their means over trials."""
    return spread([fmean(scores[relation]) for relation in relations or scores])


def shifted(scores, by):
    return {name: [value + by for value in values] for name, values in scores.items()}


def pearson(one, other):
    x, y = [fmean(one[name]) for name in one], [fmean(other[name]) for name in one]
    mean_x, mean_y = fmean(x), fmean(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def r(one, other):
    """Their correlation, as a cell."""
    return pytest.approx(pearson(one, other)), None


def test_scores_and_hyperparameters_by_relation():
    found = rows("hyperparameters", MAIN)
    assert list(found) == ["antonym", "capital", "ceo", "Colour", "mean of the scored"]
    assert found["capital"] == (4, 0, 2.0, 4, spread(F["capital"]), spread(C["capital"]), 0.25)
    assert found["ceo"] == (20, None, None, None, None, None, 1 / 18)
    guess = pytest.approx((0.25 + 0.04 + 0.25) / 3)
    assert found["mean of the scored"] == (None, None, None, None, over(F), over(C), guess)
    assert "on demo" in table("hyperparameters", MAIN).caption


def test_relations_whose_objects_begin_alike_have_no_scores_by_first_token():
    alike = [replace(r, first_tokens=1) if r.relation == "antonym" else r for r in MAIN]
    others = [r for r in MAIN if r.relation != "antonym"]
    found = rows("hyperparameters", alike)
    assert found["antonym"] == (25, None, None, None, None, None, 1.0)
    assert {**found, "antonym": None} == {**rows("hyperparameters", others), "antonym": None}
    missing = "Those of antonym are missing, as all objects begin with the same token."
    assert missing in table("hyperparameters", alike).caption
    assert table("categories", alike).rows[-1] == table("categories", others).rows[-1]


def test_scores_on_whole_objects_beside_those_by_first_token():
    assert table("whole_objects", MAIN) is None
    first = with_measures(MAIN[0], {"whole objects": whole_objects(8, 5, 4, 6, 2, 3, 1, 2)})
    unreported = replace(first, trial=1, reported=False, known=0)
    measured = [first, unreported, replace(first, relation="one", first_tokens=1)]
    found = rows("whole_objects", [*measured, *MAIN[1:]])
    scores = tuple(WHOLE_OBJECT_SCORES)
    heads = ("relation", "known as a whole", "faithfulness", *scores[:4], "causality", *scores[4:])
    assert table("whole_objects", measured).columns == heads
    whole = [(value, None) for value in (8, 0.5, 0.75, 0.25, 0.6, 0.2, 0.4)]
    assert found["capital"] == (whole[0], (0.8, None), *whole[1:5], (1.0, None), *whole[5:])  # the same trial
    assert found["one"] == (whole[0], None, *whole[1:5], None, *whole[5:])
    assert list(found) == ["capital", "one", "mean"]
    assert found["mean"][2] == flat(0.5)


@pytest.mark.parametrize("name", ["hyperparameters", "categories", "layers", "ranks", "betas"])
def test_trials_that_only_choose_do_not_count(name):
    chooser = record("capital", 7, 1, 1, reported=False)
    assert table(name, [chooser, *MAIN]).rows == table(name, MAIN).rows


def test_scores_by_category():
    assert rows("categories", MAIN) == {
        "factual": (2, over(F, FACTUAL), over(C, FACTUAL)),
        "linguistic": (1, over(F, ["antonym"]), over(C, ["antonym"])),
        "all": (3, over(F), over(C)),
    }


def always(score):
    return {name: [score, score] for name in F}


FAITHFULNESS = {
    "LRE": F,
    "LRE at the embedding": always(0.2),
    "linear regression": shifted(F, -0.2),
    "translation": always(0.3),
    "identity": always(0),
}
ZERO_SHOT = dict(zip(FAITHFULNESS, (shifted(F, -0.1), *map(always, (0.1, 0.2, 0.1, 0))), strict=True))
CAUSALITY = {"LRE": C, "oracle": always(1), "unembedding": always(0.25), "object": always(0.125)}


def changed_baselines(r, change):
    """The record with what a function makes of the sums of each tally of the baselines; without it for None."""
    if not r.scored:
        return r
    tallies = r.measures["baselines"].tallies
    sums = {name: change(name, tally.sums) for name, tally in tallies.items()}
    changed = {name: replace(tallies[name], sums=found) for name, found in sums.items() if found is not None}
    return with_measures(r, {"baselines": Measurement(changed)})


def test_baselines_by_category():
    def by_category(scores):
        return over(scores, FACTUAL), over(scores, ["antonym"]), over(scores)

    found = table("faithfulness_baselines", MAIN)
    assert found.columns == ("method", "prompts of s", "factual", "linguistic", "all")
    assert {row[:2]: row[2:] for row in found.rows} == {
        (method, kind): by_category(scores)
        for kind, methods in (("few-shot", FAITHFULNESS), ("zero-shot", ZERO_SHOT))
        for method, scores in methods.items()
    }
    causal = {method: by_category(scores) for method, scores in CAUSALITY.items()}
    assert rows("causality_baselines", MAIN) == causal
    few_shot = [changed_baselines(r, lambda name, sums: None if "zero-shot" in name else sums) for r in MAIN]
    assert {row[1] for row in table("faithfulness_baselines", few_shot).rows} == {"few-shot"}


def test_baselines_by_relation():
    found = table("baselines_by_relation", MAIN)
    names = [f"faithfulness: {method}" for method in FAITHFULNESS], [f"causality: {method}" for method in CAUSALITY]
    assert found.columns == ("relation", *names[0], *names[1])
    scores = [*FAITHFULNESS.values(), *CAUSALITY.values()]
    names = ("antonym", "capital", "Colour")
    assert found.rows == tuple((name, *(spread(one[name]) for one in scores)) for name in names)


def test_scores_by_layer():
    found = rows("layers", MAIN)
    assert list(found) == list(LAYERS)
    assert found == {"emb": (flat(0.2), flat(0.125)), 0: (over(F), over(C)), 1: (flat(0.3), flat(0.25))}
    low = [replace(r, rank=2) if r.scored else r for r in MAIN]
    edits = rows("causality_by_layer", low)
    assert edits["emb"] == (flat(0), flat(0.125), flat(0.125), flat(0), flat(0))
    assert edits[0] == (over(shifted(C, -0.125)), over(C), flat(1), flat(0.25), flat(0.125))


def test_layers_are_compared_over_the_same_relations():
    narrow = replace(record("narrow", 0, 10, 8), layers=(0,), faithful=((9, 10),), causal=((8, 8),))
    found = table("layers", [*MAIN, narrow])
    assert found.rows == table("layers", MAIN).rows
    assert "over 3 relations." in found.caption


def test_scores_by_rank():
    assert rows("ranks", MAIN) == {
        2: (over(shifted(F, -0.4)), over(shifted(C, -0.125))),
        4: (over(shifted(F, -0.1)), over(C)),
    }


def test_scores_by_n_over_the_relations_scored_at_every_n():
    few = [replace(r, n_shot=2) for r in moved(MAIN, -2) if r.relation != "Colour"]
    found = table("n_shots", [*MAIN, *few, unscored(n_shot=1)])
    shared, fewer = ("capital", "antonym"), shifted(F, -0.2)
    assert found.rows == ((2, over(fewer, shared), over(C, shared)), (4, over(F, shared), over(C, shared)))
    assert "over 2 relations." in found.caption


def test_scores_by_template_of_relations_with_several():
    other = [replace(r, template=f"{{}}: {r.relation}", template_index=1) for r in moved(MAIN[:2], 1)]
    assert table("templates", [*MAIN, *other]).rows == (
        ("capital", "The capital of {} is", spread([0.8, 0.6]), spread([1.0, 0.75])),
        ("capital", "{}: capital", spread([0.9, 0.7]), spread([1.0, 0.75])),
    )


def test_a_given_template_is_the_relations_unless_it_has_records_of_its_own():
    given = [replace(r, template=f"{{}}: {r.relation}", template_index=None) for r in MAIN]
    bare = [replace(r, template="{}", template_index=None) for r in MAIN]
    for alone in (given, bare, [replace(r, template_index=1) for r in MAIN]):
        assert rows("hyperparameters", alone) == rows("hyperparameters", MAIN)
        assert table("templates", alone) is None
    both = [*moved(given[:2], 1), *MAIN]
    assert rows("hyperparameters", both) == rows("hyperparameters", MAIN)
    assert [row[1] for row in table("templates", both).rows] == ["The capital of {} is", "{}: capital"]


def test_faithfulness_with_and_without_relation_specific_text():
    found = [*MAIN, *bare_of(MAIN)]
    both = over(F, ("capital", "antonym"))
    expected = {"emb": (flat(0.2), flat(0.2)), 0: (both, both), 1: (flat(0.3), flat(0.8))}
    assert rows("mode_switch", found) == expected
    assert "over 2 relations" in table("mode_switch", found).caption


def test_layers_at_which_s_is_o_are_named_and_no_part_of_a_finding():
    """The last layer of the grid is informative unless the records say that it is not."""
    late = "Without relation-specific text it doesn't drop"
    for identity, last in (((), 1), ((1,), 0)):
        bare = [replace(r, identity_layers=identity) for r in bare_of(MAIN)]
        found = many([*MAIN, *bare], 5)
        assert rows("findings", found)[late][6].startswith(f"layer {last}, the last at which s is not o itself")
        caption = table("mode_switch", found).caption
        assert ("At layer 1 prompts end with their subjects" in caption) == (identity == (1,))


def test_scores_by_beta_with_the_best_marked():
    uneven = [replace(MAIN[0], faithful=((1, 2), (2, 8), (2, 3))), *MAIN[1:]]
    low = {"capital": [0.2, 0.3], "antonym": [0.6, 0.6], "Colour": [0.2, 0.1]}
    assert pearson(low, C) < pearson(F, C)
    assert rows("betas", uneven) == {
        1.0: (over(low), over(C), r(low, C), None),
        2.0: (over(F), over(C), r(F, C), "correlation, mean faithfulness"),
    }
    best = rows("findings", many(uneven))[BETA]
    assert best[:5] == ("can't tell", 2.0, 1.0, "[1.00, 2.00]", "12")


def test_agreement_by_what_chose_layer_and_rank():
    found = rows("correlations", TORN)
    assert found["the fit"] == found["causality"] == (r(F, C), 3, over(F), over(C), 1, 0, 2)
    faithful, causal = {**F, "Colour": [0.9, 0.9]}, {**C, "Colour": [0.25, 0.25]}
    assert found["faithfulness"] == (r(faithful, causal), 3, over(faithful), over(causal), 1, 0, 2)
    near = [record("even", 0, 5, 4), record("above", 0, 5, 5), record("below", 0, 5, 3)]
    assert rows("correlations", near)["the fit"][-3:] == (1, 1, 1)


def test_the_choice_of_the_fit_holds_everywhere_but_where_a_row_names_another():
    # By the counts of all trials, every relation would have another layer.
    first = [replace(r, layer=1, rank=2) if r.scored else r for r in MAIN]
    faithful, causal = {name: [0.3, 0.3] for name in F}, {name: [0.125, 0.125] for name in C}
    found = rows("correlations", first)
    assert found["the fit"][2:4] == (over(faithful), over(causal))
    assert found["causality"][2:4] == (over(F), over(C))
    assert table("categories", first).rows[-1][2:] == (over(faithful), over(causal))
    assert table("hyperparameters", first).rows[-1][5:7] == (over(faithful), over(causal))


def test_agreement_of_models_is_spearmans():
    ranked = {"a": 9, "b": 7, "c": 5, "d": 3}
    one = [record(name, 0, count, 5) for name, count in {**ranked, "of one": 9}.items()]
    order = {"a": 7, "b": 9, "c": 3, "d": 4, "e": 9}
    other = [record(name, 0, count, 5, model="other/gpt") for name, count in order.items()]
    # Ranks 1 2 3 4 and 2 1 4 3: 1 - 6 * 4 / (4 * 15).
    assert table("model_agreement", one + other).rows == (("demo", "gpt", (pytest.approx(0.6), None), 4),)
    assert rows("models", MAIN + other) == {
        "demo": (4, 3, over(F), over(C), r(F, C)),
        "gpt": (4, 5, spread([0.7, 0.9, 0.3, 0.4, 0.9]), flat(0.625), None),
    }


def test_models_with_the_same_last_name_are_called_in_full():
    records = [record("a", 0, 5, 5, model=name) for name in ("org/lm", "other/lm", "/runs/third/")]
    assert list(rows("models", records)) == ["org/lm", "other/lm", "third"]


def test_underestimation_is_the_ratio_over_pairs_with_a_positive_estimate():
    found = table("underestimation", MAIN)
    assert [row[0] for row in found.rows] == ["antonym", "capital", "Colour"]
    assert found.rows[0] == ("antonym", 4, 2, (2.5, None))
    pairs = line_integrals((3.0, 1.0), (4.0, 2.0), (1e12, 1e-12), (5.0, 1.0), (1.0, 1.0))
    far = [with_measures(MAIN[0], {"line integrals": pairs})]
    assert rows("underestimation", far)["capital"] == (5, 0, (3, None))  # which a mean would not be


OTHER = [
    replace(MAIN[0], model="other/gpt", n_shot=5, known=6, first_tokens=3),
    replace(MAIN[1], model="other/gpt", n_shot=5, known=3, first_tokens=3),
    unscored(model="other/gpt", n_shot=5),
]


def test_dataset_counts_known_facts_of_relations_with_at_least_n():
    found = table("dataset", [*MAIN, *OTHER])
    assert found.columns == ("category", "relations", "samples", "known by demo", "known by gpt")
    assert found.rows == (("factual", 3, 70, 20.0, 0.0), ("linguistic", 1, 50, 10.0, 0.0), ("all", 4, 120, 30.0, 0.0))
    assert table("full_dataset", [*MAIN, *OTHER]).rows == (
        ("factual", "ceo", 30, None, None),
        ("factual", "Colour", 20, flat(10), None),
        ("factual", "capital", 20, flat(10), None),
        ("linguistic", "antonym", 50, flat(10), None),
    )
    enough = many([replace(r, known=r.known + 1) for r in OTHER if r.scored], 2)
    assert table("dataset", enough).rows[-1] == ("all", 2, 40, 11.0)
    assert [row[2:] for row in table("full_dataset", enough).rows] == [(20, spread([7, 4]))] * 2


def test_first_tokens_with_the_unique_relations_in_one_row():
    found = table("first_tokens", [*MAIN, *OTHER])
    assert found.columns == ("relation", "|range|", "demo %", "demo tokens", "gpt %", "gpt tokens")
    assert found.rows == (
        ("capital", 4, 100, 4, 75, 3),
        ("ceo", 20, 90, 18, 90, 18),
        ("relations where all objects are uniquely identified (2)", None, 100, None, 100, None),
        ("average", None, (100 + 100 + 100 + 90) / 4, None, (75 + 90) / 2, None),
    )


CORRELATED = "Faithfulness is strongly correlated with causality"
CRITERIA = "The correlation is weaker with layer and rank chosen by faithfulness"
HIGHER = "Causality is higher than faithfulness for almost all relations"
BETA = "β above 1 makes faithfulness agree best with causality"


WITHOUT_S = [f"LRE is more faithful than {name}" for name in ("b alone", "majority of training", "majority of data")]


def test_layers_at_which_an_lre_says_nothing_of_the_subject_are_seen():
    """At the embedding all relations have the counts of b alone, at layer 1 those of the majority."""
    high, counts = {"a": 9, "b": 10, "c": 4}, {"majorities": majorities(1, 3)}
    records = [
        with_measures(record(name, 0, 9, 8, faithful=((2, 2), (0, most), (2, 3)), betas=(0.0, 2.0)), counts)
        for name, most in high.items()
    ]
    found = table("layers", records)
    assert found.columns[3:] == ("b alone", "majority of training", "majority of data", "says more")
    by_layer = {row[0]: row[1:] for row in found.rows}
    assert by_layer["emb"] == (flat(0.2), flat(0.125), flat(0.2), flat(0.1), flat(0.3), "0 of 3")
    assert by_layer[0][2:] == (flat(0), flat(0.1), flat(0.3), "2 of 3")  # 4 of 10 could be 3
    assert by_layer[1][-1] == "0 of 3"
    assert rows("hyperparameters", records)["a"][7:] == ((0, None), (0.1, None), (0.3, None))
    assert rows("baselines_by_relation", records)["a"][5:8] == ((0, None), (0.1, None), (0.3, None))
    told = rows("findings", many(records))
    assert [told[name][0] for name in WITHOUT_S] == ["yes", "yes", "yes"]
    assert table("layers", MAIN).columns[-1] == "causality"  # neither b alone nor majorities


def many(records, count=4):
    """Records of as many relations as it takes to tell, with the means of the given ones."""
    return [replace(r, relation=f"{r.relation} {i}") for i in range(count) for r in records]


def test_findings_have_their_numbers_and_verdicts():
    found = rows("findings", many([*MAIN, *bare_of(MAIN)], 5))
    faithful, causal = (pytest.approx(fmean(map(fmean, scores.values()))) for scores in (F, C))
    regression = pytest.approx(fmean(map(fmean, F.values())) - 0.2)
    agreement = pytest.approx(pearson(F, C))
    assert {name: (*cells[:3], cells[4]) for name, cells in found.items()} == {
        CORRELATED: ("can't tell", agreement, 0.7, "15"),
        CRITERIA: ("no", agreement, agreement, "15"),
        HIGHER: ("no", pytest.approx(1 / 3), 0.9, "5 of 15"),
        BETA: ("can't tell", 1.0, 1.0, "15"),
        "β above 1 is the most faithful": ("yes", 2.0, 1.0, "15"),
        "W underestimates how much the object changes with the subject": ("yes", 2.5, 1.0, "15 of 15"),
        "LRE is better than a random guess": ("yes", faithful, pytest.approx(0.18), "15 of 15"),
        "LRE is more faithful than LRE at the embedding": ("yes", faithful, pytest.approx(0.2), "15 of 15"),
        "LRE is more faithful than linear regression": ("yes", faithful, regression, "15 of 15"),
        "LRE is more faithful than translation": ("yes", faithful, pytest.approx(0.3), "15 of 15"),
        "LRE is more faithful than identity": ("yes", faithful, 0, "15 of 15"),
        **dict.fromkeys(WITHOUT_S, ("not measured", None, None, None)),
        "LRE edits match the oracle, s' in place of s": ("no", causal, 1.0, "0 of 15"),
        "LRE edits are better than the unembedding's row of o'": ("yes", causal, 0.25, "15 of 15"),
        "LRE edits are better than o'": ("yes", causal, 0.125, "15 of 15"),
        "Faithfulness drops in late layers": ("yes", pytest.approx(0.3), faithful, "10 of 15"),
        "Without relation-specific text it doesn't drop": ("yes", pytest.approx(0.8), pytest.approx(0.8), "10 of 10"),
    }
    assert found[CRITERIA][3] == "[0.00, 0.00]"
    assert found[BETA][3] == "[1.00, 2.00]"  # faithfulness is shifted, which leaves correlations as they are
    late = found["Faithfulness drops in late layers"]
    assert late[6] == "layer 1, the last, is at least 0.2 below the peak, layer 0"
    assert f"it is {pearson(F, C):.2f} " in found[CRITERIA][6]


def test_a_correlation_that_rests_on_one_relation_is_no_finding():
    counts = [(7, 5), (8, 4), (7, 4), (8, 5), (7, 5), (8, 5), (7, 4), (8, 4), (7, 5), (8, 4), (7, 4)]
    records = [record(f"r{i}", 0, *both) for i, both in enumerate([*counts, (0, 0)])]
    x, y = zip(*counts, strict=True)
    everything = pearson({i: [f] for i, f in enumerate([*x, 0])}, {i: [c] for i, c in enumerate([*y, 0])})
    others = pearson(dict(enumerate([f] for f in x)), dict(enumerate([c] for c in y)))
    assert everything > 0.8
    assert others < 0
    found = rows("findings", records)[CORRELATED]
    assert found[:2] == ("can't tell", pytest.approx(everything))
    assert found[5] == f"r11: {others:.2f}"
    # A control: the same strength, carried by all.
    both = [(i % 10, min(i % 10, 8)) for i in range(24)]
    assert rows("findings", [record(f"r{i}", 0, *pair) for i, pair in enumerate(both)])[CORRELATED][0] == "yes"


def test_fewer_than_ten_relations_are_too_few_to_tell():
    found = rows("findings", many([*MAIN, *bare_of(MAIN)], 3))
    assert {cells[0] for name, cells in found.items() if name not in WITHOUT_S} == {"too few to tell"}


def test_a_finding_holds_only_if_its_interval_does():
    def verdict(counts, finding=HIGHER):
        records = [record(str(i), 0, 80, causal, known=100, edited=100) for i, causal in enumerate(counts)]
        return rows("findings", records)[finding][0]

    assert verdict([99] * 10 + [61]) == "can't tell"  # 10 of 11
    assert verdict([81] * 35) == "yes"
    assert verdict([99] * 5 + [61] * 5 + [80]) == "no"
    oracle = "LRE edits match the oracle, s' in place of s"
    near = [record(str(i), 0, 5, 8 - (i % 3 == 0) * 2) for i in range(12)]
    assert rows("findings", near)[oracle][0] == "can't tell"  # 0.083 below on average
    assert rows("findings", [record(str(i), 0, 5, 8) for i in range(12)])[oracle][0] == "yes"
    for high, expected in ((2, "can't tell"), (9, "yes")):
        counts = [(5, high if i % 2 else 9) for i in range(12)]
        records = [record(str(i), 0, 0, 4, faithful=((0, 0), pair, (0, 0))) for i, pair in enumerate(counts)]
        assert rows("findings", records)["β above 1 is the most faithful"][:2] == (expected, 2.0)


def test_where_there_is_nothing_to_find_nothing_holds():
    claimed = 0
    for draw in np.random.default_rng(0).integers(2, 9, (20, 15, 3)).tolist():
        records = [
            minimal(
                record(str(i), 0, faithful, causal), measures={"baselines": baselines({}, {"object": (other,)}, {})}
            )
            for i, (faithful, causal, other) in enumerate(draw)
        ]
        found = {row[0]: row[1] for row in findings(records).rows}
        claimed += found["LRE edits are better than o'"] in ("yes", "no")
        claimed += found[CORRELATED] == "yes"
    assert claimed <= 3


def test_betas_are_compared_over_the_relations_that_have_both():
    uneven = [
        record(str(i), 0, 0, 4, betas=(1.0, 2.0, 3.0), faithful=((0,) * 3, (5, 9, 1), (0,) * 3)) for i in range(12)
    ]
    uneven[0] = replace(uneven[0], betas=(2.0, 3.0), faithful=((0, 0), (9, 1), (0, 0)))
    assert rows("findings", uneven)["β above 1 is the most faithful"][0] == "yes"  # 1 is not on all grids


def test_findings_that_do_not_hold_say_no():
    worse = {
        "faithful": ((9, 9), (8, 7), (9, 9)),
        "causal": ((8, 8), (1, 1), (8, 8)),
        **{"range_size": 1, "first_tokens": None},
        "measures": {
            "baselines": baselines(
                dict.fromkeys(("linear regression", "translation", "identity"), (0, 8, 0)),
                dict.fromkeys(("oracle", "unembedding", "object"), (0, 2, 0)),
                {},
            ),
            "line integrals": line_integrals((1.0, 2.0)),
        },
    }
    records = many([replace(r, **worse) for r in MAIN if r.scored])
    # Drops at all layers but the last, where s is o itself.
    bare = {"template": "{}", "template_index": None, "identity_layers": (1,)}
    dropping = replace(MAIN[0], **bare, faithful=((9, 9), (1, 1), (9, 9)))
    found = {name: cells[0] for name, cells in rows("findings", [*records, *many([dropping], 10)]).items()}
    assert {found.pop(name) for name in (CORRELATED, CRITERIA, BETA, *WITHOUT_S)} == {"not measured"}
    assert set(found.values()) == {"no"}


def test_findings_without_their_measurements():
    found = rows("findings", many([minimal(r) for r in MAIN]))
    measured = {name for name, cells in found.items() if cells[0] != "not measured"}
    assert measured == {CORRELATED, CRITERIA, HIGHER, "LRE is better than a random guess"}
    assert {cells[0] for cells in rows("findings", many([unscored()], 2)).values()} == {"not measured"}


MIXED = Table(
    "mixed",
    "50% of {} & more",
    ("name", "β", "score", "n"),
    (('a, "b"\nc', 2.25, (1 / 3, 0.1), 3), ("d", 0.125, (0.5, None), None), ("all", None, 0.75, 4)),
    totals=1,
    exact=("β",),
)


def test_csv_has_every_digit_and_two_columns_for_a_mean():
    rows = list(csv.reader(io.StringIO(to_csv(MIXED))))
    assert rows == [
        ["name", "β", "score", "score std", "n"],
        ['a, "b"\nc', "2.25", repr(1 / 3), "0.1", "3"],
        ["d", "0.125", "0.5", "", ""],
        ["all", "", "0.75", "", "4"],
    ]


def test_text_is_rounded():
    assert to_text(MIXED) == [
        ['a, "b"\nc', "2.25", "0.33 ± 0.10", "3"],
        ["d", "0.125", "0.50", "-"],
        ["all", "-", "0.75", "4"],
    ]


def test_latex_escapes_what_it_would_read():
    assert escape_latex(r"50% & $x_1$ #{a} ~^ \b") == (
        r"50\% \& \$x\_1\$ \#\{a\} \textasciitilde{}\textasciicircum{} \textbackslash{}b"
    )
    assert escape_latex("[é] *β\n±") == r"{[}é{]} {*}$\beta$ $\pm$"
    lines = to_latex(MIXED, "demo-").splitlines()
    assert {
        *(r"\caption{50\% of \{\} \& more}", r"\label{tab:demo-mixed}", r"\begin{tabular}{lrrr}"),
        *(r"name & $\beta$ & score & n \\", r'a, "b" c & $2.25$ & $0.33 \pm 0.10$ & $3$ \\'),
        r"d & $0.125$ & $0.50$ & --- \\",
    } <= set(lines)
    assert lines[lines.index(r"all & --- & $0.75$ & $4$ \\") - 1] == r"\midrule"


def test_the_choice_of_layers_says_what_it_rests_on():
    """At layer 0 the edits of *capital* succeed 8 and 7 times of 8, at layer 1 once or twice."""
    both = [record("capital", 0, 8, 8), record("capital", 1, 8, 7)]
    found = rows("choices", both)["capital"]
    assert found[:2] == ("0", "0")
    assert found[2:4] == found[4:]  # both trials choose layer 0 and rank 4 by themselves
    near = replace(both[0], causal=((7, 8), (7, 8), (1, 2)))
    assert rows("choices", [near])["capital"] == ("0", "emb-0", (0.8, None), (1.0, None))
    assert table("choices", [near]).columns[-1] == "causality"
