"""A row for every fact: against whole prompts run one by one, and what tables make of rows."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import rankdata, spearmanr

from lre_lightning.errors import LREError
from lre_lightning.measures import Facts
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.analysis import by_model
from lre_lightning.records.facts import COLUMNS, facts_of
from lre_lightning.records.files import Records, write_tables
from lre_lightning.records.measurement import Measurement
from lre_lightning.records.record import TrialRecord
from lre_lightning.report.columns import OF_FACTS, columns, fact_pairs, fifths, read_columns
from tests.helpers.records import COUNTS, csv_rows, with_measures
from tests.helpers.tiny_models import tiny_model
from tests.measures.test_whole_objects import BETA, COUNT, LAYER, RANK, lre_of, record_of
from tests.scoring.trials import answer, pinv, prompts_for, scored, state, states_of


@torch.no_grad()
def test_rows_are_what_whole_prompts_say(monkeypatch):
    lm = LanguageModel(tiny_model("gpt2", seed=6))
    monkeypatch.setitem(vars(lm), "tokenizer", SimpleNamespace(decode=lambda ids: f" t{ids[0]}\n"))
    prompts = prompts_for(lm, COUNT)  # the LM does not know the first two
    lre = lre_of(lm, prompts)
    inverse = torch.from_numpy(pinv(lre.weight.numpy(), RANK))
    states = states_of(lm, prompts, (LAYER,), size=5)
    target_of = dict(zip(states.edited.tolist(), states.targets.tolist(), strict=True))
    expected, said, edited = [], [], []
    for place, prompt in enumerate(prompts):
        own = lm.model(torch.tensor([prompt.input_ids])).logits[0, -1].softmax(-1)
        by_lre = lm.decode(BETA * lre.weight @ state(lm, prompt, LAYER) + lre.bias).softmax(-1)
        token, lre_token = int(own.argmax()), int(by_lre.argmax())
        row = [prompt.subject, prompt.object, "{}", int(place > 1), f"t{token}", float(own[token])]
        row += [f"t{lre_token}", float(by_lre[lre_token]), int((by_lre > by_lre[token]).sum()), int(token == lre_token)]
        if place > 1:
            said.append(lre_token)
        if place in target_of:
            other = prompts[target_of[place]]
            change = state(lm, other, 2, -1) - state(lm, prompt, 2, -1)
            after = answer(lm, prompt, LAYER, state(lm, prompt, LAYER) + inverse @ change)
            after = after if edited else other.object_tokens[0]  # the first edit counts as one that succeeds
            edited.append(after)
            row += [other.object, f"t{after}", int(after == other.object_tokens[0])]
        else:
            row += ["", "", -1]
        expected.append(row)
    record = replace(record_of(), betas=(0.0, BETA), ranks=(1, RANK))
    grids = {  # the chosen point is the last of both axes
        "said": torch.tensor(said)[:, None, None].expand(-1, 1, 2) * torch.tensor([0, 1]),
        "edited": torch.tensor(edited)[:, None, None].expand(-1, 1, 2) * torch.tensor([0, 1]),
    }
    tokens = {prompt.object: prompt.object_tokens for prompt in prompts}
    found = Facts().measure(scored(record, states, {LAYER: lre}, tokens=tokens, **grids))
    assert found.columns == tuple(COLUMNS)
    for row, wanted in zip(found.rows, expected, strict=True):
        assert [cell for cell in row if not isinstance(cell, float)] == [c for c in wanted if not isinstance(c, float)]
        assert [cell for cell in row if isinstance(cell, float)] == pytest.approx(
            [cell for cell in wanted if isinstance(cell, float)], abs=1e-5
        )
    outcomes = {(row[3], row[9]) for row in found.rows}
    assert {(1, 0), (1, 1)} <= outcomes
    assert {row[-1] for row in found.rows} == {-1, 0, 1}


def row(subject, known=1, lm="a", lre="a", rank=0, success=1, p=0.5):
    edit = ("Z", "z" if success else lm, success) if success >= 0 else ("", "", -1)
    return (subject, f"o{subject}", "{} is", known, lm, p, lre, 0.25, rank, int(lm == lre), *edit)


def record_with(rows, relation="capital", trial=0, **changes):
    fields = {**COUNTS, "layers": (0,), "betas": (1.0,), "ranks": (4,), "faithful": ((5,),), "causal": ((5,),)}
    fields |= {"edited": 8, "layer": 0, "rank": 4, "first_tokens": 3, **changes}
    found = Measurement(rows=tuple(rows), columns=tuple(COLUMNS), chosen=("layer", "beta", "rank"))
    return with_measures(TrialRecord(relation=relation, trial=trial, **fields), {"facts": found})


FIRST = [
    row("1"),
    row("2", lre="b", rank=3, success=0),
    row("3", known=0, lm="c", success=-1),
    row("4", lre="b", rank=9),
]
SECOND = [row("1"), row("2", rank=0, success=1, p=0.7), row("4", lre="b", rank=5, success=0)]
TRIALS = [record_with(FIRST), record_with(SECOND, trial=1)]


def test_facts_are_means_over_trials_and_a_report_shows_the_worst_first():
    facts = {fact.subject: fact for fact in facts_of(TRIALS)}
    assert (facts["2"].trials, facts["2"].known, facts["2"].faithful, facts["2"].success) == (2, 1, 0.5, 0.5)
    assert facts["2"].probability == pytest.approx(0.6)
    assert (facts["2"].target, facts["2"].edited) == ("Z", "a")  # the edit that failed
    assert (facts["3"].known, facts["3"].faithful, facts["3"].success) == (0, None, None)
    assert facts["4"].token_rank == 5
    (section,) = Facts.sections(TRIALS)
    summary, confused, capital = section.tables
    assert [line[0] for line in capital.rows] == ["4", "2", "1", "3"]
    assert capital.folded
    assert summary.rows == (("capital", 4, 3, 1, 1, 1, 1, 2, 0),)
    assert confused.rows == (("capital", "a", "b", 3, 3, 6),)


def test_rows_are_a_data_frame_and_files(tmp_path):
    records = Records([*TRIALS, replace(TRIALS[0], relation="bare", measures={})])
    table = records.to_pandas("facts")
    assert len(table) == 7
    assert table[["relation", "trial", "layer", "rank"]].drop_duplicates().to_numpy().tolist() == [
        ["capital", 0, 0, 4],
        ["capital", 1, 0, 4],
    ]
    assert [tuple(line) for line in table[list(COLUMNS)].to_numpy()] == [*FIRST, *SECOND]
    write_tables(records, tmp_path, "fit")
    assert [line["LRE's answer"] for line in csv_rows(tmp_path / "fit_facts.csv")] == list(table["LRE's answer"])
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "fit_facts.parquet"), table.astype({"layer": str}))
    with pytest.raises(LREError, match="there are no rows of 'outcomes': of these results facts has some"):
        records.to_pandas("outcomes")
    with pytest.raises(LREError, match=r"measures\.facts has rows that do not have its 2 columns"):
        Measurement(rows=((1,),), columns=("a", "b")).check("facts", {}, 1)


def test_numbers_join_by_fact(tmp_path):
    """Faithfulness rises with the number in one relation; in the other numbers are high, and the lowest is faithful."""
    rising = [row(str(n), lre="a" if n > 2 else "b") for n in range(6)]
    flat = [row(str(n), lre="b" if n > 10 else "a") for n in range(10, 15)]
    few = [row("99"), row("98")]
    records = [record_with(rising), record_with(flat, "antonym"), record_with(few, "colour")]
    lines = [f"{r.relation},{line[0]},{line[1]},{line[0]}" for r in records for line in r.measures["facts"].rows]
    (tmp_path / "n.csv").write_text("\n".join(["relation,subject,object,n", *lines, "capital,elsewhere,x,3"]))
    (column,) = read_columns(tmp_path / "n.csv")
    values = column.by_fact(facts_of(records))
    assert {fact.subject: number for fact, number in values.items()} == {
        fact.subject: float(fact.subject) for fact in facts_of(records)
    }
    x, y = [*range(6), *range(10, 15)], [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0]
    assert len(fact_pairs(values, OF_FACTS["faithful"])) == 11  # a relation of two facts is left out
    (section,) = columns(by_model(records), [column])
    found = {line[1]: line[2:] for line in section.tables[1].rows}
    count, relations, over_all, within = found["faithful"]
    assert (count, relations) == (11, 2)
    assert over_all.value == pytest.approx(spearmanr(x, y).statistic)

    def apart(values):
        ranks = [rankdata(some) / len(some) for some in (values[:6], values[6:])]
        return np.concatenate([some - some.mean() for some in ranks])

    dx, dy = apart(x), apart(y)
    assert within.value == pytest.approx(dx @ dy / np.sqrt((dx @ dx) * (dy @ dy)))
    assert within.value != pytest.approx(over_all.value)
    assert found["known"][2:] == (None, None)  # which does not vary
    axes = section.pictures[1].plot().axes[0]
    places = np.array(fifths(x))
    (line,) = (one for one in axes.lines if one.get_label() == "faithful")
    assert list(line.get_ydata()) == pytest.approx([np.mean(np.array(y)[places == at]) for at in range(5)])


def test_numbers_of_no_fact_and_no_relation_are_refused(tmp_path):
    (tmp_path / "n.csv").write_text("object,n\nnowhere,1\n")
    with pytest.raises(LREError, match="its object must be one of theirs"):
        columns(by_model(TRIALS), read_columns(tmp_path / "n.csv"))
