"""Fixtures of the subcommands."""

import pytest

from tests.helpers.command import QUIET, lre
from tests.helpers.toy import write_toy_model, write_toy_relations


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """A run on the toy, whose LREs are the identity at every layer."""
    root = tmp_path_factory.mktemp("predict")
    model, relations = write_toy_model(root / "model"), write_toy_relations(root / "relations")
    places = [f"--model.name_or_path={model}", f"--data.source={relations}"]
    small = ["--data.n_shot=4", "--data.trials=2", "--model.betas=[1.0]", "--model.ranks=[16]"]
    assert lre("fit", *QUIET, *places, *small, f"--trainer.default_root_dir={root / 'run'}") == 0
    return root
