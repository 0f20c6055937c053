"""Fits that several files of tests compare with."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from lre_lightning.records.files import read_records
from lre_lightning.records.record import TrialRecord
from tests.helpers.launcher import TRIALS, Ended


@dataclass
class Whole:
    """An uninterrupted fit of the toy."""

    root: Path
    ended: Ended
    records: list[TrialRecord]


@pytest.fixture(scope="session")
def whole(launch, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    ended = launch(folder)
    assert (ended.status, ended.trials) == (0, list(range(TRIALS))), ended.error
    return Whole(folder / "run", ended, read_records([folder]))
