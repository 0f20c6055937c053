"""Loggers: what is logged at which step, and that each logger gets it in its own way."""

import csv
import re
from io import BytesIO
from types import SimpleNamespace
from unittest.mock import create_autospec

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from matplotlib.figure import Figure
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from lre_lightning.callbacks import BetaTuning, ResultsScalars, ResultsTable
from lre_lightning.callbacks.loggers import log_final, log_image, log_scalars, log_table, log_text
from lre_lightning.lens.plotting import to_pixels
from lre_lightning.records.record import TrialRecord
from tests.callbacks.test_progress import Other, Turns, fit_other

COLUMNS, ROWS = ["relation", "rank"], [["a|b", "4"], ["c", "-"]]


class MlflowClient:
    """The parts of MLflow's client that are used, with its signatures."""

    def __init__(self):
        self.files = {}

    def log_image(self, run_id, image, artifact_file=None, *, key=None, step=None, timestamp=None, synchronous=None):
        self.files[run_id, artifact_file] = image

    def log_text(self, run_id, text, artifact_file):
        self.files[run_id, artifact_file] = text


@pytest.fixture
def trainer(tmp_path):
    """A Trainer's loggers; those of W&B and MLflow are not installed, but have their methods' signatures."""
    wandb, mlflow = create_autospec(WandbLogger, instance=True), create_autospec(MLFlowLogger, instance=True)
    mlflow.experiment, mlflow.run_id = MlflowClient(), "run7"
    board = TensorBoardLogger(tmp_path, name="", version="tb", default_hp_metric=False)
    loggers = [wandb, mlflow, board, CSVLogger(tmp_path, name="", version="csv"), DummyLogger()]
    return SimpleNamespace(global_step=5, loggers=loggers)


def events_of(folder):
    events = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0, "tensors": 0})
    events.Reload()
    return events


def scalars_of(folder):
    """Return the logged scalars by tag, as (step, value)."""
    events = events_of(folder)
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_pictures(trainer, tmp_path):
    tag, figure = "lens/0 Who is it? a/b", Figure((4, 2), dpi=90)
    figure.text(0.1, 0.5, "a text")
    log_image(trainer, tag, figure)
    wandb, mlflow, board, *_ = trainer.loggers
    ((name, (pixels,)), options) = wandb.log_image.call_args
    assert (name, options, pixels.shape) == (tag, {"step": 5, "caption": [tag]}, (180, 360, 3))
    assert np.array_equal(pixels, to_pixels(figure))
    (((run, path), same),) = mlflow.experiment.files.items()
    assert (run, np.array_equal(same, pixels)) == ("run7", True)
    assert re.fullmatch(r"lens/0_Who_is_it_a_b\+\w{16}\.png", path)
    board.save()
    (logged,) = events_of(tmp_path / "tb").Images(tag)
    with Image.open(BytesIO(logged.encoded_image_string)) as shown:
        assert (logged.step, shown.size) == (5, (700, 350))
        assert np.asarray(shown).min() < 100
    log_image(trainer, "wide", Figure((10, 2), dpi=90))
    board.save()
    (logged,) = events_of(tmp_path / "tb").Images("wide")
    assert (logged.width, logged.height) == (900, 180)


def test_texts_and_tables(trainer, tmp_path):
    log_text(trainer, "best", "**two**")
    log_table(trainer, "results", COLUMNS, ROWS)
    wandb, mlflow, board, *_ = trainer.loggers
    wandb.log_text.assert_called_once_with("best", ["text"], [["**two**"]], step=5)
    wandb.log_table.assert_called_once_with("results", COLUMNS, ROWS, step=5)
    markdown = "| relation | rank |\n| --- | --- |\n| a\\|b | 4 |\n| c | - |"
    assert mlflow.experiment.files == {("run7", "best.md"): "**two**", ("run7", "results.md"): markdown}
    board.save()
    for tag, text in (("best", "**two**"), ("results", markdown)):
        (logged,) = events_of(tmp_path / "tb").Tensors(f"{tag}/text_summary")
        assert (logged.step, logged.tensor_proto.string_val[0].decode()) == (5, text)


def test_scalars_and_final_scores(trainer, tmp_path):
    log_scalars(trainer, {"a/b": 0.5}, -1)
    log_final(trainer, {"final/a": 0.25}, 3, {"rank": 4})
    wandb, mlflow, board, table, _ = trainer.loggers
    for logger in (wandb, mlflow):
        assert [call.args for call in logger.log_metrics.call_args_list] == [({"a/b": 0.5}, -1), ({"final/a": 0.25}, 3)]
    table.save()
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        assert [*csv.reader(file)] == [["a/b", "final/a", "step"], ["0.5", "", "-1"], ["", "0.25", "3"]]
    board.save()
    assert scalars_of(tmp_path / "tb") == {"a/b": [(-1, 0.5)], "final/a": [(3, 0.25)]}
    assert hparams_of(tmp_path / "tb") == ({"rank": 4}, ["final/a"])


def hparams_of(folder):
    """Return the hyperparameters of a run in TensorBoard's table, and the names of its scores."""
    metadata = events_of(folder).summary_metadata
    started, experiment = (
        HParamsPluginData.FromString(metadata[f"_hparams_/{name}"].plugin_data.content)
        for name in ("session_start_info", "experiment")
    )
    given = {name: value.number_value for name, value in started.session_start_info.hparams.items()}
    return given, [info.name.tag for info in experiment.experiment.metric_infos]


# The scores of a fit.


class Scored(Other):
    """A module that scores the trials of two relations, and not those of a third."""

    counts = {("first", 0): (4, 8), ("first", 1): (6, 2), ("second", 0): (9, 1), ("second", 1): (3, 1)}  # noqa: RUF012
    names = ("first", "second", "third")

    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"beta": 2.0})

    def on_validation_end(self):
        relation, trial = self.trainer.datamodule.schedule[self.current_epoch]
        name = self.names[relation]
        common = {"relation": name, "category": f"of {name[0]}", "trial": trial}
        sizes = {"samples": 30, "range_size": 4, "tested": 22}
        faithful, causal = self.counts.get((name, trial), (0, 0))
        grid = {
            **{"layers": ("emb", 7), "betas": (1.0, 2.0), "ranks": (4, 8), "known": 10, "edited": 8},
            **{"faithful": ((0, 1), (10, faithful)), "causal": ((0, 3), (8, causal))},
            **{"layer": 7, "beta": 2.0, "rank": 8},
        }
        self.records[name, trial] = TrialRecord(**common, **sizes, **(grid if name != "third" else {"known": 0}))


class Three(Turns):
    """Data of three relations, the last of which ends between the others."""

    schedule = ((0, 0), (1, 0), (2, 0), (0, 1), (1, 1))

    def __init__(self):
        super().__init__()
        self.relations = [SimpleNamespace(name=name) for name in Scored.names]


EXPECTED = {
    "faithfulness/all relations": [(2, 0.5), (3, 0.55)],  # relations that end without a score count, too
    "faithfulness/of f": [(2, 0.5), (3, 0.5)],
    "faithfulness/of s": [(3, 0.6)],
    "causality/all relations": [(2, 5 / 8), (3, 3 / 8)],
    "causality/of f": [(2, 5 / 8), (3, 5 / 8)],
    "causality/of s": [(3, 1 / 8)],
    "faithfulness by layer/first": [(-1, 0.1), (7, 0.5)],
    "faithfulness by layer/second": [(-1, 0.1), (7, 0.6)],
    "causality by layer/first": [(-1, 3 / 8), (7, 5 / 8)],
    "causality by layer/second": [(-1, 3 / 8), (7, 1 / 8)],
    "final/faithfulness": [(3, 0.55)],
    "final/causality": [(3, 3 / 8)],
}


def rounded(scalars):
    return {tag: [(step, round(value, 6)) for step, value in points] for tag, points in scalars.items()}


def fit_scored(folder, name, *callbacks, module=None, **options):
    board = TensorBoardLogger(folder, name="", version=name, default_hp_metric=False)
    fit_other(folder, *callbacks, module=module or Scored(), data=Three(), logger=board, max_epochs=5, **options)
    return folder / name


def test_a_fit_logs_running_means_curves_over_layers_final_means_and_the_table(tmp_path):
    folder = fit_scored(tmp_path, "tb", BetaTuning("faithfulness"), ResultsScalars(), ResultsTable())
    found = {tag: points for tag, points in scalars_of(folder).items() if not tag.startswith("by 100 beta/")}
    assert rounded(found) == rounded(EXPECTED | {"final/best beta": [(3, 1.0)]})
    assert hparams_of(folder) == ({"beta": 2.0}, ["final/faithfulness", "final/causality", "final/best beta"])
    table = events_of(folder).Tensors("results/text_summary")[0].tensor_proto.string_val[0].decode().splitlines()
    assert table[0].startswith("| relation | category | known | layer | rank | beta | faithfulness |")
    assert (
        table[2]
        == "| first | of f | 10 of 22 | 7 | 8 | 2.0 | 0.50 ± 0.14 [0.20, 0.80] | 0.62 ± 0.53 [0.11, 0.96] | 0.25 |"
    )
    assert "not scored" in table[4]


def test_a_resumed_fit_logs_what_is_finished_at_the_same_steps(tmp_path):
    module = Scored()
    board = TensorBoardLogger(tmp_path, name="", version="part")
    callback = ResultsScalars()
    fit_other(tmp_path, callback, module=module, data=Three(), logger=board, max_epochs=4)
    assert [step for step, _ in scalars_of(tmp_path / "part")["faithfulness/all relations"]] == [2]
    module.trainer.save_checkpoint(tmp_path / "part.ckpt")
    folder = fit_scored(tmp_path, "resumed", callback, module=module, ckpt_path=tmp_path / "part.ckpt")
    assert rounded(scalars_of(folder)) == rounded(EXPECTED)
