"""Fixtures of the subcommands."""

import io
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from lre_lightning.cli import main
from lre_lightning.training.module import LREModule
from tests.helpers.command import QUICK, lre
from tests.helpers.toy import write_toy_model, write_toy_relations


@dataclass
class Fit:
    """A fit on the toy, whose LREs are the identity at every layer.

    Attributes:
        root: Its folder, with ``model``, ``relations`` and ``run``.
        output: What it printed.
        error: What it printed to standard error.
        warnings: Its warnings.
        counts: The number of trials in the checkpoint at each epoch's start.
    """

    root: Path
    output: str
    error: str
    warnings: list[str]
    counts: list[int]


def options(root, *more):
    """Options of fits of the toy in a folder."""
    places = [f"--model.name_or_path={root / 'model'}", f"--data.source={root / 'relations'}"]
    small = ["--data.n_shot=4", "--data.trials=2", "--model.betas=[1.0]", "--model.beta=1.0", "--model.ranks=[16]"]
    return [*places, *small, *more]


@pytest.fixture(scope="session")
def fit(tmp_path_factory):
    root = tmp_path_factory.mktemp("fit")
    write_toy_model(root / "model")
    write_toy_relations(root / "relations")
    counts, start = [], LREModule.on_train_epoch_start

    def count_trials(module):
        state = torch.load(root / "run/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        counts.append(len(state["bank._extra_state"]["records"]))
        start(module)

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        patch.chdir(root)
        patch.setattr(sys, "argv", ["lre"])
        patch.delenv("LRE_RELATIONS_DIR", raising=False)
        patch.setattr(LREModule, "on_train_epoch_start", count_trials)
        with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as error:
            more = ["--ckpt_path=last", "--trainer.default_root_dir=run"]
            assert main(["fit", *QUICK, *options(root, *more)]) == 0
    return Fit(root, output.getvalue(), error.getvalue(), [str(warning.message) for warning in caught], counts)


@pytest.fixture
def fitted(fit):
    """The folder of the fit."""
    return fit.root


@pytest.fixture
def said(capsys):
    """Run the command line; return its status, its output and its errors."""
    return lambda *args: (lre(*args), *capsys.readouterr())
