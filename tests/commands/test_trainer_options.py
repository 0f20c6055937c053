"""Options of the Trainer on the command line: one line each, before an LM is loaded where that is possible."""

import pytest

from tests.commands.conftest import options
from tests.helpers.command import QUICK


@pytest.mark.parametrize(
    ("command", "option", "line"),
    [
        ("fit", "precision=bf16-true", "precision 'bf16-true' is for models that are trained: leave it out of the "),
        ("fit", "barebones=true", "barebones is for measuring a trainer alone: give --trainer.logger false, --trainer"),
        *(
            (command, "precision=16", "precision '16' is for models that are trained: leave it out of the Trainer, and")
            for command in ("validate", "predict", "evaluate", "jlens", "explore")
        ),
    ],
)
def test_an_option_is_refused_before_the_lm_is_loaded(said, command, option, line):
    needed = ["--data.texts=./nowhere"] if command == "jlens" else []
    status, _, error = said(command, "--model.name_or_path=./nowhere", f"--trainer.{option}", *needed)
    assert (status, error.count("\n")) == (2, 1)
    assert error.startswith(f"error: {line}")


def test_a_name_that_no_score_has_cannot_be_monitored(said, fitted, tmp_path):
    early = ["--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.monitor=val_loss"]
    where = f"--trainer.default_root_dir={tmp_path}"
    status, _, error = said("fit", *QUICK, *options(fitted, where, "--data.relations=[half colour]", *early))
    assert status == 2
    (line,) = (line for line in error.splitlines() if line.startswith("error: "))
    assert "on metric `val_loss` which is not available" in line
    assert line.endswith("any of the following: `faithfulness`, `causality`")


def test_a_fit_without_checkpoints_and_one_with_a_timer(said, fitted, tmp_path):
    timer = ["--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:00:00:00"]
    for name, more in (("none", ["--trainer.enable_checkpointing=false"]), ("timer", timer)):
        where = [f"--trainer.default_root_dir={tmp_path / name}", "--data.relations=[half colour]"]
        status, output, error = said("fit", *QUICK, "--trainer.logger=false", *options(fitted, *where, *more))
        assert status == 0, error
        assert ("half colour" in output) == (name == "none")
    assert not list((tmp_path / "none").rglob("*.ckpt"))
    assert "interval: step" in (tmp_path / "timer" / "config.yaml").read_text()


def test_a_relation_whose_lre_was_not_kept_is_not_said_to_be_unknown(said, fitted, tmp_path):
    """A fit of one relation is validated on another one, too, which the LM knows."""
    run = tmp_path / "run"
    where = [f"--trainer.default_root_dir={run}", "--data.relations=[half colour]"]
    assert said("fit", *QUICK, "--trainer.logger=false", *options(fitted, *where))[0] == 0
    more = ["--data.relations=[half colour, thing colour, wrong colour]", f"--trainer.default_root_dir={run}"]
    status, output, error = said("validate", *QUICK, "--ckpt_path=last", *more)
    assert status == 0, error
    assert "Not scored: thing colour: no LRE of it was kept: fit it to the end, or choose other relations" in output
    assert "Not scored: wrong colour: 24 samples, 4 of them examples, 20 left to test, 0 known: 4 that " in output
