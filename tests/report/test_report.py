"""Tables and the page, of records whose counts are known: every number is worked out again here, by hand."""

import csv
import io
import os
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from math import sqrt
from statistics import fmean, stdev

import pytest

from lre_lightning.errors import LREError
from lre_lightning.records.record import TrialRecord, write_records
from lre_lightning.report import page, sections, tables
from lre_lightning.report.analysis import by_model
from lre_lightning.report.findings import findings
from lre_lightning.report.page import make_report
from lre_lightning.report.tables import Table, escape_latex, to_csv, to_latex, to_text

LAYERS, BETAS, RANKS = ("emb", 0, 1), (1.0, 2.0), (2, 4)


def record(relation, trial, faithful, causal, **changes):
    """Of 10 known facts `faithful` at layer 0 and beta 2, of 8 edits `causal` at layer 0 and rank 4."""
    fields = {
        "category": "factual",
        "samples": 20,
        "range_size": 4,
        "tested": 12,
        "known": 10,
        "layers": LAYERS,
        "betas": BETAS,
        "ranks": RANKS,
        "faithful": ((1, 2), (faithful - 3, faithful), (2, 3)),
        "causal": ((0, 1), (causal - 1, causal), (1, 2)),
        "edited": 8,
        "layer": 0,
        "beta": 2.0,
        "rank": 4,
        "model": "/models/demo",
        "n_shot": 4,
        "template": f"The {relation} of {{}} is",
        "first_tokens": 4,
        "faithful_baselines": {
            "linear regression": (0, faithful - 2, 1),
            "translation": (0, 3, 1),
            "identity": (1, 0, 0),
        },
        "faithful_zero_shot": ((0, 1), (1, faithful - 1), (0, 2)),
        "zero_shot_baselines": {"linear regression": (0, 2, 1), "translation": (0, 1, 1), "identity": (0, 0, 0)},
        "causal_baselines": {"oracle": (1, 8, 2), "unembedding": (0, 2, 1), "object": (0, 1, 1)},
        "faithful_low_rank": (faithful - 4, faithful - 1),
        "line_integrals": ((3.0, 1.0), (4.0, 2.0), (1.0, -1.0)),
    }
    return TrialRecord(relation=relation, trial=trial, **{**fields, **changes})


def unscored(relation="ceo", **changes):
    fields = {"model": "/models/demo", "n_shot": 4, "template": "{} is led by", "first_tokens": 18, **changes}
    return TrialRecord(relation, "factual", 0, samples=30, range_size=20, tested=26, known=3, **fields)


WORDS = {"category": "linguistic", "samples": 50, "range_size": 25, "first_tokens": 25}
MAIN = [
    record("capital", 0, 8, 8),
    record("capital", 1, 6, 6),
    record("antonym", 0, 9, 8, **WORDS),
    record("antonym", 1, 9, 4, **WORDS),
    record("Colour", 0, 5, 3),
    record("Colour", 1, 4, 3),
    unscored(),
]
F = {"capital": [0.8, 0.6], "antonym": [0.9, 0.9], "Colour": [0.5, 0.4]}
C = {"capital": [1.0, 0.75], "antonym": [1.0, 0.5], "Colour": [0.375, 0.375]}
FACTUAL = ("capital", "Colour")


def spread(values):
    """Mean and deviation, as an approximate cell."""
    return pytest.approx(fmean(values)), pytest.approx(stdev(values)) if len(values) > 1 else None


def flat(value):
    """A mean over several that are all alike."""
    return pytest.approx(value), pytest.approx(0)


def over(scores, relations=None):
    """Mean and deviation over relations of their means over trials."""
    return spread([fmean(scores[relation]) for relation in relations or scores])


def pearson(one, other):
    x, y = [fmean(one[name]) for name in one], [fmean(other[name]) for name in one]
    mean_x, mean_y = fmean(x), fmean(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def lines(table):
    """Lines by their first cells."""
    return {row[0]: row[1:] for row in table.rows}


def moved(records, by):
    """Records with all counts of faithful predictions at the chosen point changed."""
    return [
        replace(r, faithful=(r.faithful[0], (r.faithful[1][0], r.faithful[1][1] + by), r.faithful[2]))
        if r.scored
        else r
        for r in records
    ]


# Tables.


def test_scores_and_hyperparameters_by_relation():
    table = tables.hyperparameters(MAIN)
    assert [row[0] for row in table.rows] == ["antonym", "capital", "ceo", "Colour", "mean of the scored"]
    found = lines(table)
    assert found["capital"] == (4, 0, 2.0, 4, spread(F["capital"]), spread(C["capital"]), 0.25)
    assert found["antonym"] == (25, 0, 2.0, 4, spread(F["antonym"]), spread(C["antonym"]), 0.04)
    assert found["ceo"] == (20, None, None, None, None, None, 0.05)
    guess = pytest.approx((0.25 + 0.04 + 0.25) / 3)
    assert found["mean of the scored"] == (None, None, None, None, over(F), over(C), guess)
    assert "on demo" in table.caption


def test_trials_that_only_choose_do_not_count():
    chooser = record("capital", 7, 1, 1, reported=False)
    for build in (tables.hyperparameters, tables.categories, tables.layers, tables.ranks, tables.betas):
        assert build([chooser, *MAIN]).rows[1:] == build(MAIN).rows[1:]


def test_scores_by_category():
    table = tables.categories(MAIN)
    assert table.rows == (
        ("factual", 2, over(F, FACTUAL), over(C, FACTUAL)),
        ("linguistic", 1, over(F, ["antonym"]), over(C, ["antonym"])),
        ("all", 3, over(F), over(C)),
    )
    assert lines(tables.categories([unscored()])) == {"factual": (0, None, None), "all": (0, None, None)}


def test_faithfulness_baselines_by_category_with_few_shot_and_zero_shot_prompts():
    table = tables.faithfulness_baselines(MAIN)
    assert table.columns == ("method", "prompts of s", "factual", "linguistic", "all")
    found = {row[:2]: row[2:] for row in table.rows}
    assert len(found) == 10
    regression = {name: [score - 0.2 for score in scores] for name, scores in F.items()}
    alone = {name: [score - 0.1 for score in scores] for name, scores in F.items()}
    for method, scores in (
        (("LRE", "few-shot"), F),
        (("linear regression", "few-shot"), regression),
        (("LRE", "zero-shot"), alone),
    ):
        assert found[method] == (over(scores, FACTUAL), over(scores, ["antonym"]), over(scores))
    for method, score in (
        (("LRE at the embedding", "few-shot"), 0.2),
        (("translation", "few-shot"), 0.3),
        (("identity", "few-shot"), 0.0),
        (("LRE at the embedding", "zero-shot"), 0.1),
        (("linear regression", "zero-shot"), 0.2),
    ):
        assert found[method] == (flat(score), spread([score]), flat(score)), method
    bare = [replace(r, faithful_baselines={}, faithful_zero_shot=(), zero_shot_baselines={}) for r in MAIN]
    assert [row[:2] for row in tables.faithfulness_baselines(bare).rows] == [
        ("LRE", "few-shot"),
        ("LRE at the embedding", "few-shot"),
    ]


def test_causality_baselines_by_category():
    assert lines(tables.causality_baselines(MAIN)) == {
        "LRE": (over(C, FACTUAL), over(C, ["antonym"]), over(C)),
        "oracle": (flat(1.0), spread([1.0]), flat(1.0)),
        "unembedding": (flat(0.25), spread([0.25]), flat(0.25)),
        "object": (flat(0.125), spread([0.125]), flat(0.125)),
    }


def test_baselines_by_relation():
    table = tables.baselines_by_relation(MAIN)
    found = dict(zip(table.columns, table.rows[1], strict=True))
    assert found == {
        "relation": "capital",
        "faithfulness: LRE": spread([0.8, 0.6]),
        "faithfulness: LRE at the embedding": flat(0.2),
        "faithfulness: linear regression": spread([0.6, 0.4]),
        "faithfulness: translation": flat(0.3),
        "faithfulness: identity": flat(0),
        "causality: LRE": spread([1.0, 0.75]),
        "causality: oracle": flat(1),
        "causality: unembedding": flat(0.25),
        "causality: object": flat(0.125),
    }
    assert [row[0] for row in table.rows] == ["antonym", "capital", "Colour"]


def test_scores_by_layer():
    found = lines(tables.layers(MAIN))
    assert list(found) == list(LAYERS)
    assert found["emb"] == (flat(0.2), flat(0.125))
    assert found[0] == (over(F), over(C))
    assert found[1] == (flat(0.3), flat(0.25))
    edits = lines(tables.causality_by_layer(MAIN))
    assert edits["emb"] == (flat(0.125), flat(0.125), flat(0.125), flat(0), flat(0))
    assert edits[0] == (over(C), over(C), flat(1), flat(0.25), flat(0.125))
    low = [replace(r, rank=2) if r.scored else r for r in MAIN]
    one_less = {name: [score - 0.125 for score in scores] for name, scores in C.items()}
    assert lines(tables.causality_by_layer(low))[0][:2] == (over(one_less), over(C))


def test_layers_are_compared_over_the_same_relations():
    narrow = replace(record("narrow", 0, 10, 8), layers=(0,), faithful=((9, 10),), causal=((8, 8),))
    assert tables.layers([*MAIN, narrow]).rows == tables.layers(MAIN).rows
    assert "over 3 relations." in tables.layers([*MAIN, narrow]).caption


def test_scores_by_rank():
    def shifted(scores, by):
        return over({name: [value + by for value in values] for name, values in scores.items()})

    assert lines(tables.ranks(MAIN)) == {
        2: (shifted(F, -0.4), shifted(C, -0.125)),
        4: (shifted(F, -0.1), over(C)),
    }


def test_scores_by_n_over_the_relations_scored_at_every_n():
    few = [replace(r, n_shot=2) for r in moved(MAIN, -2) if r.relation != "Colour"]
    none = [unscored(n_shot=1)]
    table = tables.n_shots({4: MAIN, 2: few, 1: none})
    shared = ("capital", "antonym")
    fewer = {name: [score - 0.2 for score in F[name]] for name in shared}
    assert table.rows == ((2, over(fewer), over(C, shared)), (4, over(F, shared), over(C, shared)))
    assert "the 2 relations scored at every n" in table.caption


def test_scores_by_template_of_relations_with_several():
    other = [replace(r, template=f"{{}}: {r.relation}", template_index=1) for r in moved(MAIN[:2], 1)]
    table = tables.templates({0: MAIN, 1: other})
    assert table.rows == (
        ("capital", "The capital of {} is", spread([0.8, 0.6]), spread([1.0, 0.75])),
        ("capital", "{}: capital", spread([0.9, 0.7]), spread([1.0, 0.75])),
    )
    assert tables.templates({0: MAIN}).rows == ()


def bare_of(records):
    """The same without relation-specific text: faithful in the last layer, too."""
    late = [replace(r, faithful=(*r.faithful[:2], (7, 8)), template="{}", template_index=None) for r in records]
    return [r for r in late if r.scored and r.relation != "Colour"]


def test_faithfulness_with_and_without_relation_specific_text():
    table = tables.mode_switch(MAIN, bare_of(MAIN))
    shared = ("capital", "antonym")
    assert lines(table) == {
        "emb": (flat(0.2), flat(0.2)),
        0: (over(F, shared), over(F, shared)),
        1: (flat(0.3), flat(0.8)),
    }
    assert "over 2 relations" in table.caption
    assert tables.mode_switch(MAIN, []).rows == ()


def test_scores_by_beta_with_the_best_marked():
    uneven = [replace(MAIN[0], faithful=((1, 2), (2, 8), (2, 3))), *MAIN[1:]]
    low = {"capital": [0.2, 0.3], "antonym": [0.6, 0.6], "Colour": [0.2, 0.1]}
    found = lines(tables.betas(uneven))
    assert found[1.0] == (over(low), over(C), pytest.approx(pearson(low, C)), None)
    assert found[2.0] == (over(F), over(C), pytest.approx(pearson(F, C)), "correlation, mean faithfulness")
    assert pearson(low, C) < pearson(F, C)
    best = lines(findings(uneven))["β above 1 makes faithfulness agree best with causality"]
    assert best[:4] == ("yes", 2.0, 1.0, None)


# By faithfulness Colour moves to layer 1, where it has 9 of 10 and 2 of 8.
TORN = [replace(r, faithful=(*r.faithful[:2], (2, 9))) if r.relation == "Colour" else r for r in MAIN]


def test_agreement_by_what_chose_layer_and_rank():
    found = lines(tables.correlations(TORN))
    assert found["causality"] == (pytest.approx(pearson(F, C)), 3, over(F), over(C), 1, 0, 2)
    faithful, causal = {**F, "Colour": [0.9, 0.9]}, {**C, "Colour": [0.25, 0.25]}
    agreement = pytest.approx(pearson(faithful, causal))
    assert found["faithfulness"] == (agreement, 3, over(faithful), over(causal), 1, 0, 2)
    same = [record("even", 0, 5, 4), record("above", 0, 5, 5), record("below", 0, 5, 3)]
    assert lines(tables.correlations(same))["causality"][-3:] == (1, 1, 1)


def test_agreement_of_models_is_spearmans():
    ranked = {"a": 9, "b": 7, "c": 5, "d": 3}
    one = [record(name, 0, count, 5) for name, count in {**ranked, "of one": 9}.items()]
    order = {"a": 7, "b": 9, "c": 3, "d": 4, "e": 9}
    other = [record(name, 0, count, 5, model="other/gpt") for name, count in order.items()]
    table = tables.model_agreement(by_model(one + other))
    # Ranks 1 2 3 4 and 2 1 4 3: 1 - 6 * 4 / (4 * 15).
    assert table.rows == (("demo", "gpt", pytest.approx(0.6), 4),)
    overview = lines(tables.models_overview(by_model(MAIN + other)))
    assert overview["demo"] == (4, 3, over(F), over(C), pytest.approx(pearson(F, C)))
    assert overview["gpt"] == (4, 5, spread([0.7, 0.9, 0.3, 0.4, 0.9]), flat(0.625), None)


def test_underestimation_is_the_ratio_over_pairs_with_a_positive_estimate():
    table = tables.underestimation(MAIN)
    assert table.rows[0] == ("antonym", 4, 2, spread([3, 2, 3, 2]))
    assert [row[0] for row in table.rows] == ["antonym", "capital", "Colour"]
    assert to_text(table)[0][-1] == "2.500 ± 0.577"
    assert tables.underestimation([replace(r, line_integrals=()) for r in MAIN]).rows == ()


OTHER = [
    replace(MAIN[0], model="other/gpt", n_shot=5, known=6, first_tokens=3),
    replace(MAIN[1], model="other/gpt", n_shot=5, known=3, first_tokens=3),
    unscored(model="other/gpt", n_shot=5),
]


def test_dataset_counts_known_facts_of_relations_with_at_least_n():
    models = by_model([*MAIN, *OTHER])
    short = tables.dataset(models)
    assert short.columns == ("category", "relations", "samples", "known by demo", "known by gpt")
    assert short.rows == (("factual", 3, 70, 20.0, 0.0), ("linguistic", 1, 50, 10.0, 0.0), ("all", 4, 120, 30.0, 0.0))
    full = tables.full_dataset(models)
    assert full.rows == (
        ("factual", "ceo", 30, None, None),
        ("factual", "Colour", 20, flat(10), None),
        ("factual", "capital", 20, flat(10), None),
        ("linguistic", "antonym", 50, flat(10), None),
    )
    enough = [replace(r, known=r.known + 1) for r in OTHER if r.scored]
    assert tables.dataset(by_model(enough)).rows[-1] == ("all", 1, 20, 5.5)
    assert tables.full_dataset(by_model(enough)).rows == (("factual", "capital", 20, spread([7, 4])),)


def test_first_tokens_with_the_unique_relations_on_one_line():
    table = tables.first_tokens(by_model([*MAIN, *OTHER]))
    assert table.columns == ("relation", "|range|", "demo %", "demo tokens", "gpt %", "gpt tokens")
    assert table.rows == (
        ("capital", 4, 100, 4, 75, 3),
        ("ceo", 20, 90, 18, 90, 18),
        ("relations where all objects are uniquely identified (2)", None, 100, None, 100, None),
        ("average", None, (100 + 100 + 100 + 90) / 4, None, (75 + 90) / 2, None),
    )
    unknown = tables.first_tokens(by_model([replace(r, first_tokens=None) for r in MAIN]))
    assert unknown.rows == (("average", None, None, None),)


def holds(table):
    return {finding: found for finding, found, *_ in table.rows}


def test_findings_that_hold_have_their_numbers():
    table = findings(MAIN, bare_of(MAIN))
    found = lines(table)
    r = pearson(F, C)
    assert found["Faithfulness is strongly correlated with causality"][:3] == ("yes", pytest.approx(r), 0.7)
    means = fmean(map(fmean, C.values())), fmean(map(fmean, F.values()))
    assert found["Causality is higher than faithfulness"][:4] == ("no", *map(pytest.approx, means), "1 of 3")
    assert found["β above 1 is the most faithful"][:3] == ("yes", 2.0, 1.0)
    assert found["W underestimates how much the object changes with the subject"][:4] == ("yes", 2.5, 1.0, "3 of 3")
    assert found["LRE is better than a random guess"][:4] == (
        "yes",
        pytest.approx(means[1]),
        pytest.approx(0.18),
        "3 of 3",
    )
    regression = found["LRE is more faithful than linear regression"]
    assert regression[:4] == ("yes", pytest.approx(means[1]), pytest.approx(means[1] - 0.2), "3 of 3")
    oracle = found["LRE edits match the oracle, s' in place of s"]
    assert oracle[:4] == ("no", pytest.approx(means[0]), 1.0, "0 of 3")
    assert found["LRE edits are better than o'"][:4] == ("yes", pytest.approx(means[0]), 0.125, "3 of 3")
    late = found["Faithfulness drops in late layers"]
    assert late[:4] == ("yes", pytest.approx(0.3), pytest.approx(means[1]), "2 of 3")
    assert late[4] == "layer 1, the last, is at least 0.2 below the peak, layer 0"
    bare = found["It does not without relation-specific text"]
    assert bare[:4] == ("yes", 0.8, pytest.approx(0.8), "2 of 2")


def test_findings_that_do_not_hold_say_no():
    worse = [
        replace(
            r,
            faithful=((9, 9), (8, 7), (9, 9)),
            causal=((8, 8), (1, 1), (8, 8)),
            faithful_baselines={name: (0, 8, 0) for name in r.faithful_baselines},
            causal_baselines={"oracle": (0, 2, 0), "unembedding": (0, 2, 0), "object": (0, 2, 0)},
            line_integrals=((1.0, 2.0),),
            range_size=1,
        )
        for r in MAIN
        if r.scored
    ]
    dropping = replace(MAIN[0], template="{}", faithful=((9, 9), (1, 1), (9, 9)))  # all but where s is o itself
    found = holds(findings(worse, [dropping]))
    assert found.pop("Faithfulness is strongly correlated with causality") == "not measured"
    assert found.pop("The correlation is weaker with layer and rank chosen by faithfulness") == "not measured"
    assert found.pop("β above 1 makes faithfulness agree best with causality") == "not measured"
    assert set(found.values()) == {"no"}


def test_findings_without_their_measurements():
    plain = [
        replace(
            r,
            layers=(0,),
            betas=(2.0,),
            faithful=(r.faithful[1][1:],),
            causal=r.causal[1:2],
            faithful_baselines={},
            faithful_zero_shot=(),
            zero_shot_baselines={},
            causal_baselines={},
            line_integrals=(),
        )
        for r in MAIN
        if r.scored
    ]
    found = holds(findings(plain))
    assert {name for name, answer in found.items() if answer != "not measured"} == {
        "Faithfulness is strongly correlated with causality",
        "The correlation is weaker with layer and rank chosen by faithfulness",
        "Causality is higher than faithfulness",
        "LRE is better than a random guess",
    }
    assert set(holds(findings([unscored()])).values()) == {"not measured"}


# As text.

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
    assert r"\caption{50\% of \{\} \& more}" in lines
    assert r"\label{tab:demo-mixed}" in lines
    assert r"\begin{tabular}{lrrr}" in lines
    assert r"name & $\beta$ & score & n \\" in lines
    assert r'a, "b" c & $2.25$ & $0.33 \pm 0.10$ & $3$ \\' in lines
    assert r"d & $0.125$ & $0.50$ & --- \\" in lines
    assert lines[lines.index(r"all & --- & $0.75$ & $4$ \\") - 1] == r"\midrule"


# The page.

HOSTILE = "<script>alert(\"1\")</script> & 'x' $y_1$ 50%"


class Page(HTMLParser):
    """Checks that tags are well-formed, and keeps what there is."""

    VOID = ("meta", "img", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.references, self.texts = [], [], [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append((tag, attrs))
        self.ids += [attrs["id"]] if "id" in attrs else []
        for name, value in attrs.items():
            found = re.findall(r"url\(#([^)]+)\)", value or "")
            self.references += found + ([value[1:]] if name.endswith("href") and value.startswith("#") else [])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data.strip())

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def check(text):
    """A page that is well-formed and needs nothing from outside."""
    found = Page(text)
    assert len(found.ids) == len(set(found.ids))
    assert set(found.references) <= set(found.ids)
    assert not found.all("script")
    assert not found.all("link")
    without_namespaces = re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
    assert "http://" not in without_namespaces
    assert "https://" not in without_namespaces
    assert all(attrs["src"].startswith("data:") for _, attrs in found.tags if "src" in attrs)
    assert "@import" not in text
    return found


def write_run(folder, records, config="seed_everything: 0\n# <b>\n"):
    path = folder / "fit_results.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    write_records(records, path)
    os.utime(path, (1_700_000_000, 1_700_000_000))
    if config:
        version = folder / "lightning_logs" / "version_0"
        version.mkdir(parents=True)
        (version / "config.yaml").write_text(config)
    return folder


def everything():
    """Records of a run with all measurements, and of runs at another n, with another template, and without text."""
    renamed = [replace(r, relation=HOSTILE) if r.relation == "Colour" else r for r in MAIN]
    return {
        "main": renamed,
        "n2": [replace(r, n_shot=2) for r in renamed],
        "template1": [replace(r, template="{} <b>", template_index=1) for r in renamed],
        "bare": bare_of(renamed),
    }


FIGURES = {
    "relations",
    "categories",
    "faithfulness_baselines",
    "faithfulness_baselines_zero_shot",
    "causality_baselines",
    "causality_by_layer",
    "baselines_by_relation",
    "scatter_by_causality",
    "scatter_by_faithfulness",
    "layers",
    "layers_by_relation",
    "mode_switch",
    "ranks",
    "betas",
    "underestimation",
    "n_shots",
    "templates",
    "known",
}
TABLES = {
    "findings",
    "hyperparameters",
    "categories",
    "faithfulness_baselines",
    "causality_baselines",
    "causality_by_layer",
    "baselines_by_relation",
    "correlations",
    "layers",
    "mode_switch",
    "ranks",
    "betas",
    "underestimation",
    "n_shots",
    "templates",
    "dataset",
    "full_dataset",
    "first_tokens",
}


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """The folder of the runs, and the page of all that can be measured of one LM."""
    folder = tmp_path_factory.mktemp("full")
    runs = [write_run(folder / name, records) for name, records in everything().items()]
    return folder, make_report(runs, folder / "out")


def test_page_has_every_figure_and_table_in_itself_and_as_files(full):
    folder, path = full
    assert path == folder / "out" / "index.html"
    found = check(path.read_text())
    images = [attrs for attrs in found.all("svg") if attrs.get("role") == "img"]
    assert len(images) == len(FIGURES)
    assert all(len(attrs["aria-label"]) > 20 for attrs in images)
    files = {file.relative_to(folder / "out").as_posix() for file in (folder / "out").rglob("*") if file.is_file()}
    figures = {f"figures/{name}.{ending}" for name in FIGURES for ending in ("svg", "png")}
    numbers = {f"tables/{name}.{ending}" for name in TABLES for ending in ("csv", "tex")}
    assert files == figures | numbers | {"index.html"}
    links = {attrs["href"] for attrs in found.all("a") if not attrs["href"].startswith("#")}
    assert links == files - {"index.html"}
    assert (folder / "out" / "figures" / "betas.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "out" / "figures" / "betas.svg").read_text().startswith("<?xml")


def test_page_shows_the_tables_numbers(full):
    folder, path = full
    cells = Page(path.read_text()).texts["td"]
    text = to_text(tables.hyperparameters(everything()["main"]))
    start = cells.index(HOSTILE, cells.index("It does not without relation-specific text"))
    assert [cells[start + i : start + i + 8] for i in (0, 8)] == text[:2]
    with (folder / "out" / "tables" / "hyperparameters.csv").open(newline="", encoding="utf-8") as file:
        found = {row["relation"]: row for row in csv.DictReader(file)}
    assert float(found["capital"]["faithfulness std"]) == stdev([0.8, 0.6])
    assert HOSTILE in found
    with (folder / "out" / "tables" / "findings.csv").open(newline="", encoding="utf-8") as file:
        answers = {row["finding"]: row["holds"] for row in csv.DictReader(file)}
    assert answers["It does not without relation-specific text"] == "yes"


def test_names_cannot_become_markup(full):
    _, path = full
    text = path.read_text()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert HOSTILE in Page(text).texts["td"]
    assert "<b>" not in text


def test_page_tells_how_it_was_made(full):
    folder, path = full
    text = path.read_text()
    found = Page(text)
    assert "Results of 2023-11-14 22:13 UTC" in text
    assert "seed_everything: 0\n# <b>" in "".join(found.texts["pre"]).replace("\r", "")
    commands = [command for command in found.texts["code"] if command]
    configs = [folder / name / "lightning_logs" / "version_0" / "config.yaml" for name in everything()]
    assert commands[:-1] == [f"lre fit --config {config}" for config in configs]
    assert commands[-1] == "lre report " + " ".join(str(folder / name) for name in everything())
    assert re.search(r"python 3\.\d+\.\d+, lre-lightning \d", text)


def test_the_date_is_the_same_everywhere(full, monkeypatch):
    folder, _ = full
    files = [folder / name / "fit_results.jsonl" for name in everything()]
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert page._newest(files) == "2023-11-14 22:13 UTC"
    time.tzset()


def test_same_records_make_the_same_bytes(full, tmp_path):
    folder, path = full
    again = make_report([folder / name for name in everything()], tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()
    for file in (folder / "out").rglob("*.*"):
        assert (tmp_path / "again" / file.relative_to(folder / "out")).read_bytes() == file.read_bytes(), file


def minimal(r, **changes):
    """The record of a fit with one layer, rank and beta, and nothing but the scores."""
    if not r.scored:
        return replace(r, first_tokens=None, **changes)
    return TrialRecord(
        **{name: getattr(r, name) for name in ("relation", "category", "trial", "samples", "range_size", "tested")},
        known=r.known,
        layers=(0,),
        betas=(2.0,),
        ranks=(4,),
        faithful=((r.faithful[1][1],),),
        causal=((r.causal[1][1],),),
        edited=8,
        layer=0,
        beta=2.0,
        rank=4,
        **{"model": "/models/demo", "n_shot": 4, "template": r.template, **changes},
    )


MISSING = {
    "Baselines": "--model.fitting.baselines true",
    "Layers": "--model.layers",
    "With and without relation-specific text": "--data.prompts.template '{}'",
    "Ranks": "--model.ranks",
    "Choosing β": "--model.betas",
    "Why β is above 1": "--model.fitting.line_integrals",
    "Number of examples": "--data.n_shot",
    "Prompt templates": "--data.prompts.template 1",
}


def test_what_was_not_measured_is_one_line_that_says_how(tmp_path):
    run = write_run(tmp_path / "run", [minimal(r) for r in MAIN], config="")
    text = make_report([run], tmp_path / "out", title="A <title>").read_text()
    found = check(text)
    assert "A <title>" in found.texts["h1"]
    assert f"lre report {run} --title 'A <title>'" in found.texts["code"]
    notes = [note for note in found.texts["p"] if "not measured" in note]
    assert len(notes) == len(MISSING)
    assert all(option in note for option, note in zip(MISSING.values(), notes, strict=True))
    assert set(MISSING) < set(found.texts["h3"])
    assert "There is no config.yaml beside these results." in found.texts["p"]
    names = {file.stem for file in (tmp_path / "out" / "figures").iterdir()}
    assert names == {"relations", "categories", "scatter_by_causality", "scatter_by_faithfulness", "known"}
    assert not (tmp_path / "out" / "tables" / "first_tokens.csv").exists()


def test_an_lm_that_knows_too_little_has_a_page_too(tmp_path):
    run = write_run(tmp_path / "run", [unscored()])
    found = check(make_report([run], tmp_path / "out").read_text())
    assert any("No relation was scored" in note for note in found.texts["p"])
    assert [file.name for file in (tmp_path / "out" / "figures").glob("*.svg")] == ["known.svg"]


def test_scatter_plots_are_of_what_chose_layer_and_rank():
    (chapter,) = sections.chapters_of(by_model(TORN), ["demo"])
    draw = {picture.name: picture.draw for section in chapter.sections for picture in section.pictures}
    titles = [draw[f"scatter_by_{name}"]().axes[0].get_title() for name in ("causality", "faithfulness")]
    torn = pearson({**F, "Colour": [0.9, 0.9]}, {**C, "Colour": [0.25, 0.25]})
    assert [title[-8:] for title in titles] == [f"R = {pearson(F, C):.2f}", f" = {torn:.2f}"]


def test_several_lms_are_compared(tmp_path):
    first = write_run(tmp_path / "a", [minimal(r) for r in MAIN])
    second = write_run(tmp_path / "b", [minimal(r, model="org/Other LM!") for r in moved(MAIN, -1)])
    found = check(make_report([first, second], tmp_path / "out").read_text())
    assert found.texts["h2"] == ["demo", "Other LM!", "Comparison", "How this was made"]
    assert {"LMs by category", "LMs by relation", "Agreement of LMs"} <= set(found.texts["h3"])
    files = {file.relative_to(tmp_path / "out" / "figures").as_posix() for file in tmp_path.glob("out/**/*.svg")}
    own = {"relations", "categories", "scatter_by_causality", "scatter_by_faithfulness"}
    shared = {"models_by_category", "models_by_relation", "model_agreement", "known"}
    assert files == {f"{lm}/{name}.svg" for lm in ("demo", "other-lm") for name in own} | {f"{n}.svg" for n in shared}
    assert r"\label{tab:other-lm-findings}" in (tmp_path / "out/tables/other-lm/findings.tex").read_text()
    with (tmp_path / "out" / "tables" / "model_agreement.csv").open(newline="") as file:
        one, other, agreement, count = list(csv.reader(file))[1]
    assert (one, other, float(agreement), count) == ("demo", "Other LM!", pytest.approx(1, abs=1e-5), "3")


def test_lms_of_like_names_have_folders_of_their_own():
    assert sections._folders(["GPT 2", "gpt-2", "all", "!!", "gpt-2-2", "GPT/2", "How"]) == [
        "gpt-2",
        "gpt-2-2",
        "all-2",
        "lm",
        "gpt-2-2-2",
        "gpt-2-3",
        "how-2",
    ]


def test_jobs_that_share_the_relations_are_merged(tmp_path):
    records = [minimal(r) for r in MAIN]
    whole = write_run(tmp_path / "whole", records)
    jobs = [write_run(tmp_path / "job0", records[:3]), write_run(tmp_path / "job1", records[3:]) / "fit_results.jsonl"]
    make_report([whole], tmp_path / "one")
    text = make_report([*jobs, jobs[1]], tmp_path / "two").read_text()
    for name in ("hyperparameters.csv", "findings.tex", "full_dataset.csv"):
        assert (tmp_path / "two" / "tables" / name).read_text() == (tmp_path / "one" / "tables" / name).read_text()
    assert text.count("lre fit --config") == 2


def test_the_newest_configuration_of_a_fit_is_shown(tmp_path):
    run = write_run(tmp_path / "run", MAIN[:1], config="")
    for number, text in ((2, "of the second"), (10, "of the newest"), (11, "verbose: false\nof a validation")):
        version = run / "lightning_logs" / f"version_{number}"
        version.mkdir(parents=True)
        (version / "config.yaml").write_text(text)
    (run / "config.yaml").write_text("given")
    found = page.run_of(run / "fit_results.jsonl")
    assert [text for _, text in found.configs] == ["of the newest", "given"]
    assert found.command == f"lre fit --config {run / 'lightning_logs' / 'version_10' / 'config.yaml'}"


def test_a_large_figure_is_a_png_if_that_is_smaller(monkeypatch):
    few, many = (page.draw(sections.Picture("x", "", "", lambda n=n: dots(n))) for n in (1, 3000))
    assert page.inline(few, "a", "p-").startswith("<svg ")
    assert page.inline(many, 'a "b"', "p-").startswith('<img alt="a &#34;b&#34;" src="data:image/png;base64,iVBOR')
    monkeypatch.setattr(page, "LARGE_SVG", 10**7)
    assert page.inline(many, "a", "p-").startswith("<svg ")
    monkeypatch.setattr(page, "LARGE_SVG", 0)
    large = replace(few, png=few.png * 100)
    assert page.inline(large, "a", "p-").startswith("<svg ")


def dots(count):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1, 1))
    figure.subplots().scatter(range(count), range(count), c=range(count))
    return figure


def test_mathematics_is_drawn_as_paths():
    from matplotlib.figure import Figure

    def figure(text):
        made = Figure(figsize=(2, 1))
        made.text(0.5, 0.5, text)
        return made

    assert b"<text" in page.draw(sections.Picture("x", "", "", lambda: figure("plain"))).svg
    assert b"<text" not in page.draw(sections.Picture("x", "", "", lambda: figure("$s'$"))).svg


def test_mistakes_are_told_before_anything_is_written(tmp_path):
    run = write_run(tmp_path / "run", MAIN)
    out = tmp_path / "out"
    empty = tmp_path / "empty"
    (empty / "below").mkdir(parents=True)
    with pytest.raises(LREError, match=r"there is no fit_results\.jsonl"):
        make_report([run, empty], out)
    (empty / "fit_results.jsonl").write_text("")
    for nothing in ([empty], []):
        with pytest.raises(LREError, match="there are no results in"):
            make_report(nothing, out)
    other = write_run(tmp_path / "other", moved(MAIN, -1))
    with pytest.raises(LREError, match="different counts"):
        make_report([run, other], out)
    with pytest.raises(LREError, match="first templates"):
        make_report([write_run(tmp_path / "bare", bare_of(MAIN))], out)
    assert not out.exists()
    out.write_text("in the way")
    with pytest.raises(LREError, match=r"cannot make the folder .*out"):
        make_report([run], out)
    with pytest.raises(LREError, match=r"cannot make the folder .*below"):
        make_report([run], out / "below")


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    run = write_run(tmp_path / "run", MAIN)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(LREError, match="cannot write to the folder"):
        make_report([run], tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []
