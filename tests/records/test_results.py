"""Summarizing results, in a file and in a table, on counts whose answers can be seen by eye."""

import csv
import errno
import math
import os

import pytest
from rich.console import Console
from safetensors import SafetensorError

from lre_lightning.errors import LREError
from lre_lightning.records.record import TrialRecord, append_records, write_records
from lre_lightning.records.summary import COLUMNS, append_csv, summarize, write_csv
from lre_lightning.report.console import print_results, results_table
from lre_lightning.storage.files import check_writable, grown_whole, write_whole, written_whole


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
        "layers": ("emb", 0),
        "betas": (1.0, 2.0),
        "ranks": (4, 8),
        "faithful": ((9, 10), (3, 8)),
        "causal": ((2, 5), (7, 7)),
        "edited": 8,
    }
    return TrialRecord(relation=relation, trial=trial, **{**fields, **changes})


def unscored(relation="ceo"):
    return TrialRecord(relation, "factual", 0, samples=20, range_size=20, tested=12, known=3)


def test_scores_are_shares_of_what_was_counted():
    assert record().faithfulness("emb", 2.0) == 1
    assert record().faithfulness(0, 1.0) == 0.3
    assert record().causality("emb", 8) == 5 / 8
    assert record().random_guess == 0.25
    assert math.isnan(record(edited=0).causality(0, 4))


def test_a_file_has_a_row_a_relation_and_trial(tmp_path):
    path = tmp_path / "results.csv"
    write_csv([record(model="demo", n_shot=8, template="{} is\n")], path)
    append_csv([unscored()], path)
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        scored, other = reader
    assert reader.fieldnames == COLUMNS
    common = {"category": "factual", "trial": "0", "samples": "20", "tested": "12", "reported": "True"}
    place = {"layer": "0", "beta": "2.0", "rank": "4", "edited": "8", "faithfulness": "0.8", "causality": "0.875"}
    prompts = {"model": "demo", "n_shot": "8", "template": "{} is\n"}
    counts = {"relation": "capital", "known": "10", "range_size": "4", "random_guess": "0.25"}
    assert scored == common | place | prompts | counts
    place = dict.fromkeys(place, "") | {"edited": "0"}
    prompts = {"model": "", "n_shot": "0", "template": ""}
    counts = {"relation": "ceo", "known": "3", "range_size": "20", "random_guess": "0.05"}
    assert other == common | place | prompts | counts


def test_summary_is_the_mean_and_deviation_over_scored_trials():
    first, second = record(0), record(1, faithful=((9, 10), (3, 6)))
    capital, ceo = summarize([first, second, unscored()])
    assert (capital.layer, capital.rank, capital.beta, capital.trials) == (0, 4, 2.0, 2)
    assert capital.faithfulness == pytest.approx((0.7, 0.1 * math.sqrt(2)))
    assert capital.causality == pytest.approx((7 / 8, 0.0))
    assert (ceo.trials, ceo.faithfulness, ceo.known) == (0, None, 3)
    assert summarize([first])[0].faithfulness == (0.8, None)


def test_trials_that_only_choose_count_for_what_the_lm_knows_alone():
    chosen_on = record(0, reported=False, known=4, faithful=((0, 0), (0, 0)), layer="emb", rank=8)
    (capital,) = summarize([chosen_on, record(1)])
    assert (capital.trials, capital.known, capital.layer, capital.rank) == (1, 7, 0, 4)
    assert (capital.faithfulness, capital.causality) == ((0.8, None), (7 / 8, None))
    assert summarize([chosen_on])[0].faithfulness is None


def test_trials_without_an_edit_have_no_causality_and_spoil_nothing_else():
    """All of their known samples have one object, so that there is none to change it into."""
    none = {"edited": 0, "causal": ((0, 0), (0, 0))}
    capital, mother = summarize([record(0, **none), record(1, **none), record(0, "mother"), record(1, "mother")])
    assert (capital.trials, capital.faithfulness) == (2, (0.8, 0.0))
    assert capital.causality is None or math.isnan(capital.causality[0])
    assert mother.causality == (7 / 8, 0.0)
    results_table([capital, mother])


def test_records_survive_as_plain_data():
    assert TrialRecord.from_plain(record().plain()) == record()
    with pytest.raises(LREError, match="not a record of results: KeyError 'known'"):
        TrialRecord.from_plain({key: value for key, value in record().plain().items() if key != "known"})


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


def broken_at_the_second():
    yield unscored()
    raise ZeroDivisionError


@pytest.mark.parametrize("write", [write_csv, append_csv, write_records, append_records])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, write):
    path = tmp_path / "results"
    write([record()], path)
    before = path.read_text()
    with pytest.raises(ZeroDivisionError):
        write(broken_at_the_second(), path)
    assert [file.name for file in tmp_path.iterdir()] == ["results"]
    assert path.read_text() == before
    write([unscored()], path)
    assert path.read_text().startswith(before) == (write in (append_csv, append_records))


def test_a_file_has_its_name_only_once_it_is_whole(tmp_path):
    path = tmp_path / "deep" / "down" / "file"
    with written_whole(path) as part:
        part.write_text("some")
        assert [file.name for file in path.parent.iterdir()] == ["file.part"]
    assert path.read_text() == "some"
    with grown_whole(path) as part:
        assert part.read_text() == "some"
        part.write_text("more")
        assert path.read_text() == "some"
    assert path.read_text() == "more"


FULL = [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left (os error 28)")]


@pytest.mark.parametrize("error", FULL, ids=lambda error: type(error).__name__)
def test_what_cannot_be_written_is_named(tmp_path, error):
    def write():
        with written_whole(tmp_path / "it") as part:
            part.write_text("text")
            raise error

    with pytest.raises(LREError, match=r"/it' cannot be written: No space left on device; free some space there$"):
        write()
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_be_read_by_whom_other_files_may(tmp_path):
    (tmp_path / "other").touch()
    with written_whole(tmp_path / "file") as part:
        part.unlink()
        os.close(os.open(part, os.O_CREAT, mode=0o600))
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_where_a_folder_should_be_is_named(tmp_path):
    (tmp_path / "file").write_text("something")
    message = "cannot be written: Not a directory; a file is where a folder should be"
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LREError, match=f"{folder}' {message}"):
            check_writable(folder)
    with pytest.raises(LREError, match=r"/file/below/it' cannot be written: .* a file is where a folder should be"):
        write_whole(tmp_path / "file" / "below" / "it", "text")
    check_writable(tmp_path / "not" / "there" / "yet")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
