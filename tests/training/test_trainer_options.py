"""What the Trainer's options do to a fit: nothing to the counts, an end after some trials, or one line that refuses."""

from datetime import timedelta
from types import SimpleNamespace

import pytest
from lightning.pytorch import callbacks as theirs
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.plugins import BitsandbytesPrecision, HalfPrecision
from torch.utils.data import DistributedSampler

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.jlens.module import JacobianLensModule
from lre_lightning.runs.trainers import check_trainer
from lre_lightning.training.module import LREModule
from tests.helpers.toy import toy_tokenizer
from tests.helpers.trainer import trainer_of

TRIALS = 3
SAME = TRIALS
BATCHES = "an LRE is a mean over all training prompts, and the Trainer serves 1 of their 2 batches: leave limit_train_"
VALIDATION = "a trial is scored in the validation at the end of its epoch: leave limit_val_batches at more than 0, "
UNTRAINED = r"nothing is trained here: leave {} out of the Trainer$"
PRECISION = r"precision '{}' is for models that are trained: .* --model.loading.dtype {}$"

HARMLESS = [  # options that change nothing, together
    {"strategy": "ddp", "limit_train_batches": 2, "profiler": "simple", "max_epochs": None, "num_sanity_val_steps": 2},
    {"precision": 32, "limit_val_batches": 1.0, "gradient_clip_val": 0, "min_epochs": 99, "val_check_interval": 1.0},
    {"limit_val_batches": 20, "profiler": "advanced", "gradient_clip_algorithm": "value", "val_check_interval": 2},
    {"limit_test_batches": 1, "limit_predict_batches": 1, "logger": True, "min_steps": 99, "detect_anomaly": True},
    {"logger": [], "max_time": "00:01:00:00", "num_sanity_val_steps": -1, "deterministic": True, "benchmark": True},
    {"inference_mode": True, "enable_progress_bar": True, "enable_checkpointing": True, "log_every_n_steps": 0},
    {"inference_mode": False, "enable_model_summary": True, "log_every_n_steps": 50, "sync_batchnorm": True},
    {"use_distributed_sampler": False, "barebones": True},
]

OPTIONS = [  # an option, its value, and the number of trials that are as without it, or the message that refuses it
    *(
        ("precision", given, PRECISION.format(name, dtype))
        for given, name, dtype in (
            ("bf16-true", "bf16-true", "bfloat16"),
            ("16-true", "16-true", "float16"),
            ("64-true", "64-true", "float64"),
            ("bf16-mixed", "bf16-mixed", "bfloat16"),
            ("bf16", "bf16-mixed", "bfloat16"),
        )
    ),
    ("plugins", HalfPrecision("bf16-true"), PRECISION.format("bf16-true", "bfloat16")),
    ("fast_dev_run", True, BATCHES),
    ("fast_dev_run", 10, 1),
    *(("limit_train_batches", value, expected) for value, expected in ((1, BATCHES), (0.5, BATCHES), (0, 0))),
    ("limit_val_batches", 0, VALIDATION),
    ("overfit_batches", 1, BATCHES),
    ("accumulate_grad_batches", 2, UNTRAINED.format("accumulate_grad_batches 2")),
    ("gradient_clip_val", 1.5, UNTRAINED.format("gradient_clip_val 1.5")),
    *(("max_epochs", value, value) for value in (0, 2)),
    *(("max_steps", value, expected) for value, expected in ((0, 0), (3, 1), (4, 2))),
    ("max_time", {"seconds": 0}, 0),
    *(("val_check_interval", value, VALIDATION) for value in (0.5, 1, timedelta(seconds=1))),
    *(("check_val_every_n_epoch", value, VALIDATION) for value in (2, None)),
    ("reload_dataloaders_every_n_epochs", 0, "give the Trainer reload_dataloaders_every_n_epochs=1, not 0"),
]

CALLBACKS = [  # in one fit, and what is then the same as without them, or the message that refuses the last one
    (lambda _: [theirs.EarlyStopping("faithfulness", mode="max", patience=1)], 2),
    (
        lambda folder: [
            theirs.EarlyStopping("faithfulness", mode="max", patience=9),
            theirs.ModelCheckpoint(folder, monitor="faithfulness", mode="max", save_top_k=2),
            theirs.ModelCheckpoint(folder, every_n_train_steps=1, save_top_k=-1),
            theirs.OnExceptionCheckpoint(folder),
            theirs.RichProgressBar(),
            theirs.RichModelSummary(),
            theirs.LearningRateMonitor(),
            theirs.DeviceStatsMonitor(cpu_stats=True),
            theirs.Timer({"hours": 1}),
        ],
        SAME,
    ),
    (lambda _: [theirs.TQDMProgressBar()], SAME),
    (lambda _: [theirs.Timer({"hours": 0})], 0),
    *(
        (lambda _, made=made: [made()], UNTRAINED.format(name))
        for name, made in {
            "GradientAccumulationScheduler": lambda: theirs.GradientAccumulationScheduler({0: 2}),
            "StochasticWeightAveraging": lambda: theirs.StochasticWeightAveraging(0.1),
            "WeightAveraging": theirs.WeightAveraging,
            "ModelPruning": lambda: theirs.ModelPruning("l1_unstructured", amount=0.5),
            "LearningRateFinder": theirs.LearningRateFinder,
            "BatchSizeFinder": theirs.BatchSizeFinder,
        }.items()
    ),
]


@pytest.fixture(scope="module")
def data_of(toy_relations):
    """Make data of trials with two training batches and four test batches."""

    def make(*relations, **options):
        given = {"n_shot": 8, "trials": TRIALS, "loader": {"batch_size": 4}, **options}
        return RelationDataModule(toy_tokenizer(), list(relations or ["thing colour"]), source=toy_relations, **given)

    return make


@pytest.fixture(scope="module")
def fit(random_toy, data_of):
    """Fit three trials, and return the module and its Trainer."""

    def run(folder, callbacks=(), data=None, **options):
        module = LREModule(random_toy, layers=[1], betas=[0.0, 1.0], ranks=[1, 16])
        trainer = trainer_of(folder, callbacks, **options)
        trainer.fit(module, datamodule=data or data_of())
        return module, trainer

    return run


@pytest.fixture(scope="module")
def records(fit, tmp_path_factory):
    """The records of a fit with no option."""
    found = list(fit(tmp_path_factory.mktemp("plain"))[0].records.values())
    assert [record.known for record in found] == [16] * TRIALS
    return found


def check(fit, records, expected, folder, callbacks=(), **options):
    if isinstance(expected, str):
        with pytest.raises(LREError, match=expected):
            fit(folder, callbacks, **options)
        return
    module, _ = fit(folder, callbacks, **options)
    assert list(module.records.values()) == records[:expected]
    assert len(module.lres) == expected


@pytest.mark.parametrize("options", HARMLESS, ids=lambda options: "-".join(options))
@pytest.mark.filterwarnings("ignore")
def test_options_of_the_trainer_that_change_nothing(fit, records, tmp_path, options):
    check(fit, records, SAME, tmp_path, **options)


@pytest.mark.parametrize(("option", "value", "expected"), OPTIONS, ids=lambda value: str(value)[:24])
@pytest.mark.filterwarnings("ignore")
def test_an_option_of_the_trainer(fit, records, tmp_path, option, value, expected):
    check(fit, records, expected, tmp_path, **{option: value})


@pytest.mark.parametrize(("make", "expected"), CALLBACKS, ids=lambda value: None)
@pytest.mark.filterwarnings("ignore")
def test_callbacks_of_lightning(fit, records, tmp_path, make, expected):
    callbacks = make(tmp_path / "own")
    bar = any(isinstance(callback, theirs.ProgressBar) for callback in callbacks)
    more = {"enable_progress_bar": bar, "enable_model_summary": True, "enable_checkpointing": True}
    check(fit, records, expected, tmp_path, callbacks, logger=CSVLogger(tmp_path), **more)


@pytest.mark.filterwarnings("ignore")
def test_several_loggers_at_once(fit, records, tmp_path):
    loggers = [CSVLogger(tmp_path, name="csv"), TensorBoardLogger(tmp_path, name="board")]
    check(fit, records, SAME, tmp_path, logger=loggers)
    assert all(any((tmp_path / name).rglob("*.*")) for name in ("csv", "board"))


def test_a_limit_of_test_batches_leaves_the_others_out(fit, tmp_path):
    found = fit(tmp_path, limit_val_batches=3)[0].records
    assert [(record.tested, record.known, record.scored) for record in found.values()] == [(12, 12, True)] * TRIALS


def test_a_trial_in_whose_middle_a_fit_is_stopped_is_not_scored(fit, records, tmp_path):
    """Its LRE would be the mean over a part of the samples that it names."""

    class Stop(theirs.Callback):
        def on_train_batch_end(self, trainer, *args):
            trainer.should_stop = trainer.global_step == 3

    check(fit, records, 1, tmp_path, [Stop()])


@pytest.mark.parametrize("kind", [theirs.EarlyStopping, theirs.ModelCheckpoint])
def test_a_score_can_be_monitored_before_any_trial_is_scored(fit, data_of, tmp_path, kind):
    """The first relation is one that the LM does not know."""
    data = data_of("wrong colour", "thing colour", trials=1)
    callback = kind(monitor="faithfulness", mode="max")
    module, trainer = fit(tmp_path, [callback], data, enable_checkpointing=True)
    assert [record.scored for record in module.records.values()] == [False, True]
    score = module.records["thing colour", 0].chosen_scores[0]
    assert 0 < score == pytest.approx(float(trainer.callback_metrics["faithfulness"]))


def test_a_precision_is_refused_in_every_use(random_toy, data_of, tmp_path):
    module, data, trainer = LREModule(random_toy), data_of(), trainer_of(tmp_path, precision="bf16-true")
    uses = [(use, module) for use in (trainer.fit, trainer.validate, trainer.predict)]
    for use, used in [*uses, (trainer.fit, JacobianLensModule(random_toy))]:
        with pytest.raises(LREError, match=PRECISION.format("bf16-true", "bfloat16")):
            use(used, datamodule=data)
    plugin = BitsandbytesPrecision.__new__(BitsandbytesPrecision)  # which Lightning makes on GPUs alone
    with pytest.raises(LREError, match=r"BitsandbytesPrecision is for models that are trained: give .*quantization"):
        check_trainer(SimpleNamespace(precision_plugin=plugin))


def test_lightning_does_not_split_the_texts_of_a_process_once_more(data_of):
    """It leaves a `DistributedSampler` alone, and gives any other loader one of its own."""
    data = data_of(loader={"texts": ["thing1", "thing2"]})
    loader = data.predict_dataloader()
    assert isinstance(loader.sampler, DistributedSampler)
    assert list(loader) == ["thing1", "thing2"]


def test_validation_of_an_unfinished_fit_says_what_is_missing(random_toy, data_of, tmp_path, caplog):
    data = data_of("thing colour", trials=2)
    module = LREModule(random_toy, ranks=[4])
    trainer_of(tmp_path, max_epochs=1).fit(module, datamodule=data)
    trainer_of(tmp_path).validate(module, datamodule=data, verbose=False)
    assert "the fit has not finished 1 of 2 trials, such as trial 1 of 'thing colour'" in caplog.text
    assert "on disk" not in caplog.text
    trainer_of(tmp_path).fit(LREModule(random_toy, ranks=[4]), datamodule=data)  # its LREs are newer than the records
    trainer_of(tmp_path).validate(module, datamodule=data, verbose=False)
    assert "and 1 LREs on disk are newer than the checkpoint" in caplog.text
