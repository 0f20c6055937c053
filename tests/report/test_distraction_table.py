"""The table of latent knowledge, of counts whose recalls are worked out by hand."""

import pytest

from lre_lightning.errors import LREError
from lre_lightning.lens.distraction import GENERIC_LENS, LENS, LM, OTHER_LENS, LatentKnowledge
from lre_lightning.report.distraction import distraction_table
from lre_lightning.report.tables import to_csv, to_latex, to_text


def counted(relation="a", trial=0, distraction="repetition", known=10, other=(1, 2, 3), **changes):
    given = {
        "model": "demo",
        "relation": relation,
        "category": "factual",
        "trial": trial,
        "distraction": distraction,
        "range_size": 5,
        "tested": 2 * known,
        "known": known,
        "layer": 3,
        "beta": 1.0,
        "other_relation": "b" if other else None,
        "ks": (1, 2, 3),
        "found": {LM: (0, 2, 4), LENS: (5, 6, 8)} | ({OTHER_LENS: other} if other else {}),
        "false_found": {LM: (9, 9, 10), LENS: (2, 3, 4)} | ({OTHER_LENS: (0, 0, 0)} if other else {}),
        "most_frequent": (4, 6, 7),
    }
    return LatentKnowledge(**(given | changes))


def test_the_table_has_the_papers_rows_and_the_controls():
    instruction = {LM: (1, 1, 1), LENS: (7, 8, 9), OTHER_LENS: (0, 0, 1)}
    results = [counted(), counted(distraction="instruction", found=instruction)]
    for given in (results, results[::-1]):
        table = distraction_table(given)
        assert table.columns == ("condition", "R@1", "R@2", "R@3", "false object R@1", "prompts")
        assert to_text(table) == [
            ["Repetition-distracted prompt", "0.00", "0.20", "0.40", "0.90", "10"],
            ["Attribute lens on RD prompts", "0.50", "0.60", "0.80", "0.20", "10"],
            ["Instruction-distracted prompt", "0.10", "0.10", "0.10", "0.90", "10"],
            ["Attribute lens on ID prompts", "0.70", "0.80", "0.90", "0.20", "10"],
            ["Lens of another relation on RD prompts", "0.10", "0.20", "0.30", "0.00", "10"],
            ["Most frequent objects, RD prompts", "0.40", "0.60", "0.70", "-", "10"],
            ["Random guess, RD prompts", "0.20", "0.40", "0.60", "-", "10"],
            ["Lens of another relation on ID prompts", "0.00", "0.00", "0.10", "0.00", "10"],
            ["Most frequent objects, ID prompts", "0.40", "0.60", "0.70", "-", "10"],
            ["Random guess, ID prompts", "0.20", "0.40", "0.60", "-", "10"],
        ]
        assert table.totals == 6
        assert "attribute_lens}" in to_latex(table)
        assert to_csv(table).splitlines()[2] == "Attribute lens on RD prompts,0.5,0.6,0.8,0.2,10"


def test_a_jacobian_lens_is_a_row_where_it_was_asked():
    found = {LM: (0, 2, 4), LENS: (5, 6, 8), GENERIC_LENS: (1, 2, 3)}
    shown = to_text(distraction_table([counted(found=found)]))
    assert shown[2][:4] == ["Jacobian lens on RD prompts", "0.10", "0.20", "0.30"]
    assert not any("Jacobian" in row[0] for row in to_text(distraction_table([counted()])))


def test_averages_over_prompts_and_over_relations():
    results = [
        counted("a", 0),
        counted("a", 1, known=30, found={LM: (3, 6, 30), LENS: (30, 30, 30), OTHER_LENS: (0, 0, 0)}),
        counted("b", 0, known=60, other=(), range_size=2, found={LM: (6, 6, 6), LENS: (0, 30, 60)}),
        counted("c", 0, known=0, found={LM: (0, 0, 0), LENS: (0, 0, 0), OTHER_LENS: (0, 0, 0)}),
    ]
    micro = {row[0]: row[1:] for row in distraction_table(results).rows}
    macro = {row[0]: row[1:] for row in distraction_table(results, "macro").rows}
    assert micro["Repetition-distracted prompt"][0] == 9 / 100
    assert micro["Attribute lens on RD prompts"][:3] == (0.35, 0.66, 0.98)
    assert micro["Attribute lens on RD prompts"][-1] == macro["Attribute lens on RD prompts"][-1] == 100
    lens = macro["Attribute lens on RD prompts"]
    assert lens[0] == pytest.approx((35 / 40 / 2, 35 / 40 / 2**0.5))
    assert lens[2][0] == pytest.approx((38 / 40 + 1) / 2)
    assert micro["Lens of another relation on RD prompts"] == (1 / 40, 2 / 40, 3 / 40, 0, 40)
    assert macro["Lens of another relation on RD prompts"][0] == (1 / 40, None)
    assert micro["Random guess, RD prompts"][:3] == pytest.approx((0.38, 0.76, 0.84))
    assert macro["Random guess, RD prompts"][0][0] == pytest.approx(0.35)


def test_results_without_known_facts_have_no_averages():
    assert distraction_table([]).rows == ()
    rows = distraction_table([counted(known=0)]).rows
    assert [row[1:] for row in rows] == [(None, None, None, None, 0)] * len(rows)


def test_different_k_and_an_unknown_average_are_refused():
    with pytest.raises(LREError, match=r"different k do not fit into one table: \(1, 2, 3\), \(1, 5\)"):
        distraction_table([counted(), counted(ks=(1, 5))])
    with pytest.raises(LREError, match="average must be 'micro' or 'macro', got 'none'"):
        distraction_table([counted()], "none")


def test_prompts_that_do_not_distract_are_named():
    """The LM says 30 truths of 40, and 18 falsehoods."""
    undistracted = [counted(known=30, found={LM: (30, 30, 30), LENS: (0, 0, 0)}), counted()]
    said = "The repetition-distracted prompts do not distract it: it says the truth 30 times of 40, the falsehood 18"
    for average in ("micro", "macro"):
        caption = distraction_table([*undistracted, counted(distraction="instruction")], average).caption
        assert said in caption
        assert "instruction-distracted" not in caption
    assert "do not distract" not in distraction_table([counted()]).caption
