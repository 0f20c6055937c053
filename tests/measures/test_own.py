"""A measure of a user's own in a fit: in the records, the results' files and the loggers."""

from dataclasses import dataclass

import pytest

from lre_lightning.callbacks import ResultsScalars, ResultsTable
from lre_lightning.errors import LREError
from lre_lightning.measures import Majorities, Measure
from lre_lightning.records.files import read_records
from lre_lightning.records.measurement import Measurement, Tally
from lre_lightning.training.module import LREModule
from tests.helpers.records import csv_rows
from tests.scoring.test_fits import GRID, data_of
from tests.training.test_module import trainer_of


@dataclass(frozen=True)
class LongSubjects(Measure):
    """The share of known samples whose subjects have some letters at least."""

    name = "long subjects"
    letters: int = 7
    column: str = "long"

    def measure(self, trial):
        states = trial.states
        known = [prompt for prompt, yes in zip(states.prompts, states.known.tolist(), strict=True) if yes]
        count = sum(len(prompt.subject) >= self.letters for prompt in known)
        return Measurement({self.column: Tally(count, trial.record.known, column=True)})


def test_an_own_measure_is_in_records_files_and_loggers(random_toy, toy_relations, tmp_path, monkeypatch):
    logged = {}
    monkeypatch.setattr("lre_lightning.callbacks.results.log_final", lambda _, final, *rest: logged.update(final))
    module = LREModule(random_toy, **GRID, measures=[Majorities(), LongSubjects(letters=7)])
    trainer = trainer_of(tmp_path, [ResultsTable(), ResultsScalars()])
    trainer.fit(module, datamodule=data_of(toy_relations, trials=1, relations="thing colour"))
    (record,) = module.records.values()
    right = sum(len(sample.subject) >= 7 for sample in trainer.datamodule.trial(0).test) / record.known
    assert 0 < right < 1
    assert record.measured("long subjects", "long") == logged["final/long"] == right
    assert read_records([tmp_path]) == [record]
    assert float(csv_rows(tmp_path / "fit_results.csv")[0]["long"]) == right
    assert module.hparams["measures"] == [
        {"name": "majorities"},
        {"name": "long subjects", "letters": 7, "column": "long"},
    ]


@pytest.mark.parametrize("column", ["faithfulness", "majority of data"])
def test_two_columns_of_one_name_are_refused(random_toy, toy_relations, tmp_path, column):
    module = LREModule(random_toy, **GRID, measures=[Majorities(), LongSubjects(column=column)])
    with pytest.raises(LREError, match=f"two columns of the results are called '{column}'"):
        trainer_of(tmp_path).fit(module, datamodule=data_of(toy_relations, trials=1, relations="thing colour"))
