"""Choosing, summarizing and drawing results, on counts whose answers can be seen by eye."""

import math

import pytest
import torch
from rich.console import Console

from lre_lightning.errors import LREError
from lre_lightning.plotting import plot_layers, plot_relations
from lre_lightning.results import COLUMNS, PairRecord, choose, grid_of, rows, summarize, write_csv
from lre_lightning.scoring import Counts
from lre_lightning.tables import print_results, results_table

LAYERS, BETAS, RANKS = ("emb", 0), (1.0, 2.0), (4, 8)
COUNTS = Counts(
    tested=12, known=10, faithful=torch.tensor([[9, 10], [3, 8]]), causal=torch.tensor([[2, 5], [7, 7]]), edited=8
)


def record(trial=0, relation="capital", **changes):
    fields = {
        "category": "factual",
        "samples": 20,
        "range_size": 4,
        "tested": 12,
        "known": 10,
        "layer": 0,
        "beta": 2.0,
        "rank": 4,
        **grid_of(COUNTS, LAYERS, BETAS, RANKS),
    }
    return PairRecord(relation=relation, trial=trial, **{**fields, **changes})


def unscored(relation="ceo"):
    return PairRecord(relation, "factual", 0, samples=20, range_size=20, tested=12, known=3)


def test_layer_and_rank_are_chosen_by_causality_or_by_faithfulness():
    assert choose(COUNTS, LAYERS, RANKS, 1, "causality") == (0, 4)  # equal edits at rank 8: the lower rank
    assert choose(COUNTS, LAYERS, RANKS, 1, "faithfulness") == ("emb", 8)  # equal faithfulness: the more edits
    even = Counts(1, 1, torch.ones(2, 1), torch.ones(2, 2), 1)
    assert choose(even, LAYERS, RANKS, 0, "causality") == ("emb", 4)  # all equal: the earlier layer


def test_scores_are_shares_of_what_was_counted():
    assert record().faithfulness("emb", 2.0) == 1
    assert record().faithfulness(0, 1.0) == 0.3
    assert record().causality("emb", 8) == 5 / 8
    assert record().random_guess == 0.25
    assert math.isnan(record(edited=0).causality(0, 4))


def test_rows_hold_every_grid_point_once():
    found = rows([record(), unscored()])
    assert len(found) == 2 * 2 * 2 + 1
    assert all(list(row) == COLUMNS or set(row) == set(COLUMNS) for row in found)
    point = next(row for row in found if (row["layer"], row["beta"], row["rank"]) == (0, 2.0, 8))
    assert (point["faithful"], point["faithfulness"], point["causal"], point["causality"]) == (8, 0.8, 7, 7 / 8)
    assert [row["chosen"] for row in found].count(True) == 1
    assert found[-1]["layer"] is None
    assert found[-1]["known"] == 3


def test_summary_is_the_mean_and_deviation_over_scored_trials():
    first, second = record(0), record(1, **grid_of(COUNTS, LAYERS, BETAS, RANKS) | {"faithful": ((9, 10), (3, 6))})
    capital, ceo = summarize([first, second, unscored()])
    assert (capital.layer, capital.rank, capital.beta, capital.trials) == (0, 4, 2.0, 2)
    assert capital.faithfulness == pytest.approx((0.7, 0.1 * math.sqrt(2)))
    assert capital.causality == pytest.approx((7 / 8, 0.0))
    assert (ceo.trials, ceo.faithfulness, ceo.known) == (0, None, 3)
    assert summarize([first])[0].faithfulness == (0.8, None)


def test_records_survive_as_plain_data():
    assert PairRecord.from_plain(record().plain()) == record()
    with pytest.raises(LREError, match="not a record of results: KeyError 'known'"):
        PairRecord.from_plain({key: value for key, value in record().plain().items() if key != "known"})


def test_table_shows_scores_with_deviations_and_what_was_not_scored():
    console = Console(width=160, record=True)
    console.print(results_table(summarize([record(0), record(1), unscored()])))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "capital factual 20 10 0 4 2.0 0.80 ± 0.00 0.88 ± 0.00 0.25" in lines
    assert "ceo factual 20 3 - - - not scored not scored 0.05" in lines


def test_names_are_printed_as_they_are(capsys):
    print_results(summarize([record(relation="[red]:smile: of[/red]"), unscored("[b]unknown")]))
    printed = capsys.readouterr().out
    assert "[red]:smile: of[/red]" in printed
    assert "too few of their facts: [b]unknown." in printed


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    write_csv([record()], path)
    before = path.read_text()
    monkeypatch.setattr("lre_lightning.results.rows", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_csv([record(), unscored()], path)
    assert path.read_text() == before


def test_figure_by_relation_draws_what_the_summary_says():
    other = record(relation="colour", **{"layer": "emb", "faithful": ((9, 10), (3, 8))})
    axes = plot_relations(summarize([record(), other, unscored()])).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["capital  (layer 0)", "colour  (layer emb)"]
    faithful, causal = ([bar.get_width() for bar in container] for container in axes.containers[1::2])
    assert faithful == [0.8, 1.0]
    assert causal == [7 / 8, 2 / 8]
    assert axes.collections[-1].get_offsets()[:, 0].tolist() == [0.25, 0.25]


def test_figure_by_layer_averages_trials_then_relations():
    half = record(relation="colour", **{"faithful": ((0, 0), (0, 0))})
    other = record(layers=(0, 1), relation="of another run")
    lines = plot_layers([record(0), record(1), half, other, unscored()]).axes[0].lines
    assert lines[0].get_ydata() == pytest.approx([0.5, 0.4])
    assert lines[1].get_ydata() == pytest.approx([2 / 8, 7 / 8])
