"""Fits that several files of tests compare with."""

from types import SimpleNamespace

import pytest

from lre_lightning.records.files import read_records
from tests.helpers.launcher import TRIALS


@pytest.fixture(scope="session")
def whole(launch, tmp_path_factory):
    """An uninterrupted fit of the toy: its folder, how it ended, and its records."""
    folder = tmp_path_factory.mktemp("whole")
    ended = launch(folder)
    assert (ended.status, ended.trials) == (0, list(range(TRIALS))), ended.error
    return SimpleNamespace(root=folder / "run", ended=ended, records=read_records([folder]))
