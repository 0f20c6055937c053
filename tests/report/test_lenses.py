"""Hits of lenses from ranks whose shares are counted by hand."""

import pytest
import torch

from lre_lightning.lens.comparison import FREQUENT, LensRanks
from lre_lightning.lens.prompt_sets import LAST, LINE_BREAK, SUBJECT
from lre_lightning.lens.swaps import LensSwaps
from lre_lightning.report.lenses import layer_table, lens_table, plot_lenses_by_layer, swap_table
from lre_lightning.report.tables import to_text
from tests.report.artists import check_layout, legend, named, titles

NAN, INF = float("nan"), float("inf")


def ranks_of(prompts, lens, ranks, among=None, own=None, place=SUBJECT, relation=True):
    ranks, among = (None if one is None else torch.tensor(one) for one in (ranks, among))
    return LensRanks(prompts, place, lens, relation, ("emb", 3), ranks, among, own, 0.5)


FOUND = [
    ranks_of("capital", "LRE", [[[9.0], [1.0]], [[1.0], [5.0]]], [[2.0, 1.0], [1.0, 1.0]], own="emb"),
    ranks_of("capital", "concepts", None, [[2.0, 1.0], [INF, 1.0]], own=3),
    ranks_of("capital", FREQUENT, [[[1.0], [2.0]]] * 2, [[1.0, 2.0]] * 2),
    ranks_of("sport", "LRE", [[[9.0]], [[1.0]]], [[2.0], [2.0]], own=3),
    ranks_of("sport", "concepts", None, [[1.0], [1.0]], own=3),
    ranks_of("sport", FREQUENT, [[[1.0]]] * 2, [[1.0]] * 2),
    ranks_of(
        "poetry", "logit lens", [[[9.0, 1.0], [1.0, NAN]], [[5.0, 9.0], [9.0, NAN]]], place=LINE_BREAK, relation=False
    ),
]


def rows():
    table = lens_table(FOUND, [1, 5], "toy")
    return [dict(zip(table.columns, row, strict=True)) for row in to_text(table)]


def test_the_table_has_the_best_layer_the_own_and_any():
    shown = {(row["prompts"], row["lens"], row["layer"]): row for row in rows()}
    best = shown["relations", "LRE", "3"]
    assert [best[f"{any_}@{k}"] for any_ in ("", "any layer ") for k in (1, 5)] == ["0.75", "1.00", "1.00", "1.00"]
    assert (best["of the objects @1"], best["seconds"], best["number"]) == ("0.50", "1.00", "3 of 2 relations")
    own = shown["relations", "LRE", "own"]
    assert (own["@1"], own["@5"], own["any layer @1"]) == ("0.75", "0.75", "-")  # emb of one, 3 of the other
    assert (own["of the objects @1"], own["seconds"]) == ("0.25", "-")
    control = shown["relations", FREQUENT, "-"]
    assert (control["@1"], control["@5"], control["seconds"]) == ("0.75", "1.00", "-")
    # Shares of words in each prompt, then their mean over prompts; any layer takes the best one of each word.
    poems = shown["poetry", "logit lens", "emb"]
    assert (poems["read at"], poems["number"], poems["@1"], poems["@5"]) == (LINE_BREAK, "2", "0.75", "0.75")
    assert (poems["any layer @1"], poems["any layer @5"]) == ("0.75", "1.00")


def test_a_lens_that_says_nothing_has_dashes():
    shown = {(row["prompts"], row["lens"], row["layer"]): row for row in rows()}
    concepts = shown["relations", "concepts", "emb"]
    assert (concepts["@1"], concepts["any layer @5"], concepts["of the objects @1"]) == ("-", "-", "0.75")
    for prompts, lens in (("poetry", "LRE"), ("poetry", "concepts"), ("relations", "logit lens")):
        row = shown[prompts, lens, "-"]
        assert {*row.values()} == {prompts, row["read at"], lens, "-"}
    assert ("poetry", FREQUENT, "-") not in shown


def test_every_layer_has_a_row_and_every_lens_a_curve():
    table = layer_table(FOUND, [1, 5])
    cells = {row[:4]: dict(zip(table.columns, row, strict=True)) for row in to_text(table) for row in [tuple(row)]}
    assert cells["relations", SUBJECT, "LRE", "emb"]["@1"] == "0.25"
    assert cells["relations", SUBJECT, "concepts", "3"]["of the objects @1"] == "0.75"
    figure = plot_lenses_by_layer(FOUND, 1)
    check_layout(figure)
    assert titles(figure) == [f"relations, {SUBJECT}", f"poetry, {LINE_BREAK}"]
    assert {*legend(figure)} == {"LRE", FREQUENT, "logit lens"}
    assert named(figure.axes[0])["LRE"].get_ydata() == pytest.approx([0.25, 0.75])


def test_places_keep_their_order():
    found = [ranks_of("capital", "LRE", [[[1.0]]] * 2, [[1.0]] * 2, place=place) for place in (SUBJECT, LAST)]
    assert [row[1] for row in lens_table(found, [1], "toy").rows] == [SUBJECT, LAST]


def test_swaps_are_means_over_relations():
    found = [LensSwaps("capital", "LRE", 1, 4, 3, 1, 0.5, 0.25), LensSwaps("sport", "LRE", 2, 2, 0, 0, 1.5, 0.5)]
    assert to_text(swap_table(found, "toy")) == [["LRE", "6 of 2 relations", "0.38", "0.12", "1.00", "0.75"]]
