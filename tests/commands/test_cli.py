"""The command line as a user meets it: the main job, and one clear error for each mistake."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml

from lre_lightning.cli import main
from lre_lightning.commands.fit import remove_fit
from lre_lightning.records.files import read_records
from lre_lightning.records.rows import rows
from lre_lightning.runs.checkpoints import LRETrainer
from lre_lightning.training.trial import FitTrial
from tests.commands.conftest import options
from tests.helpers.command import QUICK
from tests.helpers.records import csv_rows
from tests.helpers.toy import relation_json, write_toy_model


@pytest.fixture
def run(said, monkeypatch, tmp_path):
    """Run the command line in a folder of its own; return its status, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    return lambda *args: said(*args[:1], *QUICK, *args[1:])


def table_of(output):
    """The lines of the table of results that hold a relation, in one form of white space."""
    return [" ".join(line.split()) for line in output.splitlines() if line.startswith(" ") and "colour" in line]


@pytest.fixture
def finished(fit, run, tmp_path):
    """Copy the finished fit to the current folder."""
    shutil.copytree(fit.root / "run", tmp_path / "lre_runs")
    return fit


def test_fit_prints_a_table_without_noise(fit):
    table = table_of(fit.output)
    assert len(table) == 3
    assert "1.00 [0.72, 1.00]" in table[0]
    assert "not scored" in table[2]
    assert "Not scored: wrong colour: 24 samples, 4 of them examples, 20 left to test, 0 known: 4 that " in fit.output
    assert "No checkpoint in run/checkpoints yet" in fit.output
    printed = (fit.output + fit.error).splitlines()
    assert not [line for line in printed if "arning" in line or "Tip" in line or "💡" in line]
    assert fit.warnings == []


def test_fit_writes_results_figures_lres_and_scalars_and_a_checkpoint_after_every_trial(fit):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_folder = fit.root / "run"
    assert fit.counts == [0, 1, 2, 3, 4, 5]
    assert [path.name for path in (run_folder / "checkpoints").iterdir()] == ["last.ckpt"]
    assert len(csv_rows(run_folder / "fit_results.csv")) == 6
    assert len(rows(read_records([run_folder]))) == 4 * (3 * 2 + 3)
    # Of 4 trials a beta and a rank at 3 layers, and two majorities.
    assert {path.name for path in (run_folder / "figures").iterdir()} == {"layers.png", "relations.png"}
    assert (run_folder / "lres" / "thing_colour" / "trial0.safetensors").exists()
    (version,) = (run_folder / "lightning_logs").iterdir()
    assert yaml.safe_load((version / "config.yaml").read_text())["model"]["beta"] == 1.0
    events = EventAccumulator(str(version))
    events.Reload()
    shown = [re.sub(r"thing\d$", "thing", tag) for tag in sorted(events.Tags()["images"])]
    assert shown == ["attribute_lens/0 thing", "attribute_lens/1 thing", "results/layers", "results/relations"]
    assert {"configuration/text_summary", "results/text_summary"} <= set(events.Tags()["tensors"])
    scalars = {tag: [event.value for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    assert scalars["faithfulness/all relations"] == [1.0, 1.0, 1.0]
    assert scalars["causality by layer/thing colour"] == [1.0, 1.0, 1.0]
    assert scalars["final/faithfulness"] == [1.0]
    assert "hp_metric" not in scalars


def test_a_dry_run_says_what_a_fit_would_do_and_writes_nothing(fit, run, tmp_path, monkeypatch):
    monkeypatch.setattr(FitTrial, "train", None)
    status, output, error = run("fit", *options(fit.root, "--dry_run", "--trainer.default_root_dir=run"))
    *relations, start, memory, expected = output.splitlines()
    assert status == 0, error
    assert start == "start token '[BOS]' (bos)"
    assert [re.sub("[0-9.]+ s$", "", line) for line in relations] == [
        f"{record.relation!r}: trials 2, test samples {record.tested}, known {record.known}, dense, "
        for record in read_records([fit.root / "run"])
        if record.trial == 0
    ]
    assert re.fullmatch(r"memory: the LM [0-9.]+ GiB, Jacobians [0-9.]+ GiB, free [0-9.]+ GiB", memory)
    assert re.fullmatch(r"expected: [0-9.]+ s for relations 3, trials 6", expected)
    assert list(tmp_path.iterdir()) == []


def test_a_fit_says_the_time_that_it_takes_in_its_first_trial(fit):
    begin, expected, *_ = (fit.root / "run" / "fit.log").read_text().splitlines()
    assert begin.endswith("devices 1 x cpu, start token '[BOS]' (bos)")
    assert re.search(r" expected: [0-9.]+ s from here on$", expected)


def test_the_profiler_of_lightning_prints_its_report_and_the_rest_of_its_log_stays_silent(launch, tmp_path):
    ended = launch(tmp_path, "--trainer.profiler=simple")
    assert ended.status == 0, ended.error
    assert "on_validation_epoch_end" in ended.error.partition("Profiler Report")[2]
    assert "GPU available" not in ended.error


def test_validate_prints_the_same_table_also_for_a_run_that_was_moved(run, finished):
    status, output, error = run("validate")  # of the last fit
    assert (status, table_of(output)) == (0, table_of(finished.output)), error
    Path("lre_runs").rename("moved")
    status, output, error = run("validate", "--ckpt_path=moved/checkpoints/last.ckpt")
    assert (status, table_of(output)) == (0, table_of(finished.output)), error


def test_a_finished_fit_can_be_resumed_and_only_prints_its_table(run, fitted, finished):
    results = Path("lre_runs/fit_results.csv")
    before = results.read_text()
    status, output, error = run("fit", *options(fitted, "--ckpt_path=last"))
    assert (status, table_of(output)) == (0, table_of(finished.output)), error
    assert results.read_text() == before


def test_explicit_options_override_those_of_the_checkpoint_and_reach_the_trainer(run, finished, monkeypatch):
    given, validate = [], LRETrainer.validate

    def noted(trainer, *args, **kwargs):
        given.append(kwargs["weights_only"])
        return validate(trainer, *args, **kwargs)

    monkeypatch.setattr(LRETrainer, "validate", noted)
    more = ["--data.relations=[thing_colour]", "--data.trials=1", "--weights_only=true"]
    status, output, _ = run("validate", "--ckpt_path=last", *more)
    assert (status, given) == (0, [True])
    (row,) = table_of(output)
    assert "1.00" in row
    assert "±" not in output


def test_checkpoints_that_do_not_fit(run, finished, tmp_path):
    last = Path("lre_runs/checkpoints/last.ckpt")
    other = write_toy_model(tmp_path / "other", seed=1)
    assert_one_error(run("validate", "--ckpt_path=last", f"--model.name_or_path={other}"), "was estimated from", other)
    last.write_bytes(last.read_bytes()[:1000])
    assert_one_error(run("validate", "--ckpt_path=last"), "last.ckpt", "cannot be read")


def test_baselines_templates_and_choices_from_the_command_line(run, fitted):
    choices = "--model.fitting.choices={'thing colour': {'layer': 1, 'rank': 3}}"
    more = ["--data.prompts.template={}", choices, "--model.measures+=Baselines"]
    more += ["--model.measures+=LineIntegrals", "--model.measures.pairs=2"]
    status, output, error = run("fit", *options(fitted, *more))
    assert status == 0, error
    found = {(record.relation, record.trial): record for record in read_records(["lre_runs"])}
    chosen, searched = found["thing colour", 1], found["half colour", 1]
    assert (chosen.layers, chosen.layer, chosen.rank, chosen.ranks) == (("emb", 1), 1, 3, (3, 16))
    assert (searched.layers, searched.ranks) == (("emb", 0, 1), (16,))
    assert (chosen.template, chosen.template_index) == ("{}", None)
    assert chosen.measures["baselines"].tallies["faithfulness: identity"].sums == (20, 20)
    assert len(chosen.rows_of("line integrals")) == 2
    status, again, error = run("validate", "--ckpt_path=last")
    assert (status, table_of(again)) == (0, table_of(output)), error


def assert_one_error(result, *named):
    status, _, error = result
    assert status == 2
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, error
    for name in named:
        assert str(name) in lines[0]


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--data.relations=[thing_color]", ["thing_color", "thing colour"]),
        ("--data.relations=[odd.json]", ["odd.json", "exactly one {}"]),
        ("--data.relations=thing colour, half colour", ['several are written in brackets, "[thing colour, half']),
        ("--model.betas=[-1]", ["beta -1.0 is out of range"]),
        ("--model.ranks=[99]", ["rank 99 is out of range", "1 to 16"]),
        ("--ckpt_path=./nowhere.ckpt", ["./nowhere.ckpt", "does not exist"]),
        ("--trainer.devices=0", ["devices='0'"]),
        ("--trainer.devices=-3", ["devices", "should be an int > 0"]),
        ("--trainer.strategy=fsdp", ["fsdp", "requires a GPU"]),
        ("--trainer.strategy=nonsense", ["invalid strategy name", "nonsense"]),
        ("--trainer.gradient_clip_val=1", ["nothing is trained here: leave gradient_clip_val 1"]),
    ],
)
def test_mistakes(run, fitted, option, named):
    Path("odd.json").write_text(json.dumps(relation_json("odd") | {"prompt_templates": ["the colour of it is"]}))
    assert_one_error(run("fit", *options(fitted, option)), *named)


def test_validate_with_nothing_to_validate(run, fitted):
    assert_one_error(run("validate", *options(fitted)), "there is no checkpoint in")
    assert_one_error(run("validate", *options(fitted), "--ckpt_path=null"), "there is no LRE to validate")
    assert_one_error(run("validate", *options(fitted, "--ckpt_path=last")), "there is no checkpoint in")


def files_in(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_used_folder_is_refused_after_all_options_are_checked(run, fitted, finished):
    before = files_in(Path("lre_runs"))
    assert_one_error(run("fit", *options(fitted)), "whose 6 trials are all finished", "--overwrite")
    for wrong in ("--model.ranks=[99]", "--data.relations=[thing_color]", "--model.fitting.selection_trials=2"):
        named = wrong.partition("=[")[2].rstrip("]") or "leave none to report"
        assert_one_error(run("fit", *options(fitted, wrong, "--overwrite")), named)
    assert files_in(Path("lre_runs")).items() >= before.items()


def test_overwrite_replaces_a_fit_and_keeps_other_files(run, fitted, finished):
    own = ["lre_runs/notes.txt", "lre_runs/lres/mine.safetensors", "lre_runs/figures/mine.png"]
    for path in map(Path, own):
        path.write_text("own")
    more = ["--data.relations=[half_colour]", "--data.trials=1", "--overwrite"]
    status, _, error = run("fit", *options(fitted, *more))
    assert status == 0, error
    assert [path for path in own if Path(path).read_text() == "own"] == own
    assert {(record.relation, record.trial) for record in read_records(["lre_runs"])} == {("half colour", 0)}
    lres = [path.as_posix() for path in Path("lre_runs/lres").rglob("trial*")]
    assert lres == ["lre_runs/lres/half_colour/trial0.safetensors"]
    (version,) = Path("lre_runs/lightning_logs").iterdir()
    assert yaml.safe_load((version / "config.yaml").read_text())["overwrite"] is False
    again = ["--data.relations=[half_colour]", "--data.trials=1", "--overwrite", "--ckpt_path=last"]
    assert run("fit", *options(fitted, *again))[0] == 0  # as a stopped fit says: it goes on, and removes nothing


def test_removing_a_fit_leaves_nothing_of_it_and_its_checkpoint_to_the_end(finished, monkeypatch, run):
    root, unlink = Path("lre_runs"), Path.unlink
    assert run("validate", "--ckpt_path=last")[0] == 0
    assert run("predict", "thing0")[0] == 0
    checkpoints = []

    def noted(path, *args, **kwargs):
        if path.suffix != ".owner":
            checkpoints.append((root / "checkpoints/last.ckpt").exists())
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", noted)
    remove_fit(root)
    assert len(checkpoints) > 10
    assert all(checkpoints)
    assert {path.name for path in root.iterdir()} <= {".fit.lock"}


@pytest.mark.parametrize("arguments", [["concepts"], ["predict", "hi"], ["fit", "--dry_run"]])
def test_what_one_process_does_shares_no_lm(arguments, tmp_path, capsys):
    options = ["--model.loading.tensor_parallel=2", f"--trainer.default_root_dir={tmp_path}"]
    assert main([*arguments, *options]) == 2
    assert "error: one process does this work: leave model.loading.tensor_parallel out" in capsys.readouterr().err
