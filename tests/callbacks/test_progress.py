"""The progress of a fit: the estimate of the time left, the lines of the log, and the bar in a terminal."""

import logging
import os
import pickle
import re
import struct
import threading
from contextlib import contextmanager, nullcontext, redirect_stdout
from datetime import datetime
from types import SimpleNamespace

import pytest
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

from lre_lightning.callbacks import RelationLog, RelationProgressBar, ResultsTable
from lre_lightning.callbacks.log import log_to_console, relation_line
from lre_lightning.callbacks.progress import FitProgress
from lre_lightning.errors import LREError
from lre_lightning.records.files import read_records
from lre_lightning.records.record import TrialRecord
from tests.training.test_module import trainer_of

AWKWARD, ESCAPED = "odd\nname\x1b[2J\u2028end", r"odd\nname\x1b[2J\u2028end"
SCHEDULE = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("lre_lightning.callbacks.progress.monotonic", lambda: clock.now)
    return clock


class Takes(Callback):
    """Let every trial take some seconds; comes before the callbacks that look at the clock."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def on_validation_start(self, trainer, pl_module):
        self.clock.now += self.seconds


class Fails(Callback):
    """Stop a fit in one of its epochs."""

    def __init__(self, epoch, exception):
        self.epoch, self.exception = epoch, exception

    def on_train_batch_start(self, trainer, *_):
        if trainer.current_epoch == self.epoch:
            raise self.exception


def lines_of(folder):
    """Return the lines of a log, without their times, which are those of a clock on the wall."""
    text = (folder / "fit.log").read_bytes().decode()
    assert text.endswith("\n")
    split = [line.split(" ", 1) for line in text.splitlines()]
    for stamp, _ in split:
        assert abs(datetime.now().astimezone() - datetime.fromisoformat(stamp)).total_seconds() < 600
    return [line for _, line in split]


def stamped(text):
    """Return the lines that begin with a time."""
    return [line for line in text.splitlines() if re.match(r"\d{4}-\d\d-\d\dT", line)]


def record(trial, faithful, causal, **changes):
    """A record of relation b, whose numbers all differ."""
    scores = {"faithful": ((1, 2), (3, faithful)), "causal": ((4, 5), (causal, 6)), "known": 10, "edited": 8}
    place = {"layers": (0, 7), "betas": (1.0, 2.25), "ranks": (4, 8), "layer": 7, "beta": 2.25, "rank": 4}
    return TrialRecord("b", "factual", trial, samples=30, range_size=4, tested=22, **scores | place | changes)


class Other(BoringModel):
    """Someone's own module: it trains, and has records."""

    def __init__(self):
        super().__init__()
        self.records = {}

    def on_train_epoch_end(self):
        pass

    def on_validation_end(self):
        name, trial = ["first", "second"][self.current_epoch % 2], self.current_epoch // 2
        self.records[name, trial] = TrialRecord(**record(trial, 9, 2).plain() | {"relation": name})


class Turns(BoringDataModule):
    """Someone's own data, whose relations take turns."""

    schedule = ((0, 0), (1, 0), (0, 1), (1, 1))

    def __init__(self, second="second"):
        super().__init__()
        self.relations = [SimpleNamespace(name="first"), SimpleNamespace(name=second)]


def fit_other(root, *callbacks, module=None, data=None, ckpt_path=None, **options):
    """Fit another module on other data, in four epochs unless told otherwise, and return the Trainer."""
    options = {"limit_train_batches": 1, "limit_val_batches": 1, "max_epochs": 4} | options
    trainer = trainer_of(root, callbacks, **options)
    trainer.fit(module or Other(), datamodule=data or Turns(), ckpt_path=ckpt_path)
    return trainer


# The estimate.


def advance(progress, clock, *seconds):
    finished = []
    for taken in seconds:
        clock.now += taken
        finished.append(progress.finish_trial())
    return finished


def test_the_estimate_is_the_mean_time_per_trial_times_the_trials_left(clock):
    progress = FitProgress("abc", SCHEDULE)
    clock.now += 100
    assert progress.left() is None
    assert advance(progress, clock, 20) == [None]
    assert progress.left() == 120 * 5
    assert advance(progress, clock, 30, 3, 7) == [0, None, 1]
    assert progress.left() == 40 * 2
    assert progress.times_of(1) == [3, 7]
    assert advance(progress, clock, 0, 2) == [None, 2]
    assert (progress.left(), progress.elapsed) == (0, 162)


def test_a_resumed_fit_counts_its_own_trials_alone(clock):
    progress = FitProgress("abc", SCHEDULE, first=3)
    assert progress.left() is None
    advance(progress, clock, 50)
    assert (progress.left(), progress.elapsed, progress.times_of(0), progress.times_of(1)) == (100, 50, [], [50])


def test_the_time_left_shrinks_within_a_trial_and_is_none_after_the_last(clock):
    progress = FitProgress("abc", SCHEDULE, stop=3)
    advance(progress, clock, 10)
    clock.now += 4
    assert (progress.left(), progress.name) == (16, "2/6 a, trial 1")
    clock.now += 400
    assert progress.left() == 10  # that of the trial after it
    advance(progress, clock, 0, 10)
    assert (progress.left(), progress.name) == (0, "3/6 trials")


# The log.


def test_a_fit_writes_one_line_per_relation_to_its_file_and_the_logger(clock, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="lre_lightning")
    trainer = fit_other(tmp_path, Takes(clock, 10), RelationLog(str(tmp_path / "logs")), max_epochs=6)
    found = "known 10 of 22, layer 7, beta 2.25, rank 4, faithfulness 0.90, causality 0.25"
    lines = [
        "fit of 'Other': relations 2, trials 4 (2 per relation), devices 1 x cpu",
        f"relation 1 of 2, 'first': scored 2 of 2 trials, {found}, took 20 s, left 10 s",
        f"relation 2 of 2, 'second': scored 2 of 2 trials, {found}, took 20 s, left 0 s",
        "fit ended after 1 min 0 s: trials 4 of 4, scored 2 of 2 relations",  # after two epochs without a trial
    ]
    assert lines_of(tmp_path / "logs") == lines
    records = [record for record in caplog.records if record.name == "lre_lightning"]
    assert [(record.levelname, record.getMessage()) for record in records] == [("INFO", line) for line in lines]
    with pytest.raises(LREError, match="RelationLog needs a datamodule with 'schedule' and 'relations'"):
        trainer.fit(Other(), BoringDataModule())
    assert lines_of(tmp_path / "logs") == lines  # nothing of errors before the first trial


def test_a_resumed_fit_continues_the_file(clock, tmp_path):
    module = Other()
    first = fit_other(tmp_path, Takes(clock, 500), RelationLog(), module=module, max_epochs=3)
    first.save_checkpoint(tmp_path / "part.ckpt")
    before = lines_of(tmp_path)
    assert before[1:] == [before[1], "fit ended after 25 min 0 s: trials 3 of 4, scored 2 of 2 relations"]
    resumed = {"module": module, "ckpt_path": tmp_path / "part.ckpt"}
    fit_other(tmp_path, Takes(clock, 10), RelationLog(), **resumed).save_checkpoint(tmp_path / "whole.ckpt")
    begin, second, end = lines_of(tmp_path)[3:]
    assert begin.endswith("trials 4 (2 per relation), devices 1 x cpu, resumed at trial 4 of 4")
    assert re.search("'second': scored 2 of 2 .*, took 10 s for 1 of its trials, left 0 s$", second)
    assert end == "fit ended after 10 s: trials 4 of 4, scored 2 of 2 relations"
    fit_other(tmp_path, RelationLog(), **resumed | {"ckpt_path": tmp_path / "whole.ckpt"})
    assert lines_of(tmp_path)[6:] == ["fit ended after 0 s: trials 4 of 4, scored 2 of 2 relations"]


@pytest.mark.parametrize(
    ("exception", "expected", "said"),
    [
        (RuntimeError("no\x1b[31m memory\nat all"), RuntimeError, r"RuntimeError: no\x1b[31m memory"),
        (KeyboardInterrupt(), SystemExit, "KeyboardInterrupt"),
    ],
)
def test_a_stopped_fit_says_how_far_it_came_and_why(tmp_path, clock, monkeypatch, exception, expected, said):
    monkeypatch.setattr("signal.signal", lambda *_: None)  # Lightning would leave Ctrl-C ignored for good
    log = RelationLog()
    with pytest.raises(expected):
        fit_other(tmp_path, Takes(clock, 10), log, Fails(3, exception))
    assert lines_of(tmp_path)[2:] == [f"fit stopped after 30 s at 4/4 second, trial 1: {said}"]
    fit_other(tmp_path, log)
    assert lines_of(tmp_path)[-1] == "fit ended after 0 s: trials 4 of 4, scored 2 of 2 relations"


def test_a_line_has_the_means_of_the_relations_own_trials(clock):
    progress = FitProgress(["a", "b"], [(0, 0), (1, 0), (1, 1), (1, 2), (0, 1)])
    advance(progress, clock, 1, 61, 0, 59.5)
    unscored = TrialRecord("b", "factual", 2, samples=30, range_size=4, tested=22, known=3)
    other = TrialRecord("a", "factual", 0, samples=30, range_size=4, tested=22, known=9)
    assert relation_line(progress, 1, [record(0, 9, 2), other, record(1, 6, 8), unscored]) == (
        "relation 2 of 2, 'b': scored 2 of 3 trials, known 7.7 of 22, layer 7, beta 2.25, rank 4, faithfulness 0.75, "
        "causality 0.62, took 2 min 0 s, left 30 s"
    )
    line = relation_line(progress, 1, [record(0, 9, 0, edited=0), record(1, 0, 0, reported=False)])
    found = "known 10 of 22, layer 7, beta 2.25, rank 4, faithfulness 0.90, causality -"
    assert f"scored 2 of 3 trials, {found}, took" in line


def test_names_stay_on_their_line(clock, tmp_path):
    for callbacks in ([], [Fails(3, RuntimeError("now"))]):
        module = Other()
        module.lm = SimpleNamespace(name="lm\r")
        with nullcontext() if not callbacks else pytest.raises(RuntimeError, match="now"):
            fit_other(tmp_path, RelationLog(), *callbacks, module=module, data=Turns(AWKWARD))
    lines = lines_of(tmp_path)
    assert len(lines) == 4 + 3
    assert lines[0].startswith(r"fit of 'lm\r': ")
    assert lines[2].startswith(f"relation 2 of 2, '{ESCAPED}': scored 0 of 2 trials, took")
    assert lines[-1] == f"fit stopped after 0 s at 4/4 {ESCAPED}, trial 1: RuntimeError: now"


def test_data_without_a_schedule_may_be_validated(tmp_path):
    trainer = trainer_of(tmp_path, [RelationLog()], limit_val_batches=1)
    trainer.validate(BoringModel(), BoringDataModule(), verbose=False)
    assert not (tmp_path / "fit.log").exists()


def test_a_file_that_cannot_be_written_ends_no_fit(tmp_path, caplog):
    (tmp_path / "log" / "fit.log").mkdir(parents=True)
    fit_other(tmp_path, RelationLog(str(tmp_path / "log")))
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 4
    assert all(re.match("a line of the log is lost: .*Is a directory: .*fit.log", warning) for warning in warnings)


def test_the_console_has_the_lines_if_it_is_told_to(tmp_path, capsys):
    level = logging.getLogger("lre_lightning").level
    try:
        log_to_console(True)
        log_to_console(True)
        fit_other(tmp_path, RelationLog())
        assert stamped(capsys.readouterr().err) == stamped((tmp_path / "fit.log").read_text())
        log_to_console(False)
        fit_other(tmp_path, RelationLog())
        assert stamped(capsys.readouterr().err) == []
    finally:
        log_to_console(False)
        logging.getLogger("lre_lightning").setLevel(level)


def test_the_files_of_results_grow_by_one_record_per_trial(tmp_path):
    lines = []

    class Reader(Callback):
        def on_train_epoch_end(self, trainer, pl_module):
            assert read_records([tmp_path]) == list(pl_module.records.values())
            lines.append(len((tmp_path / "fit_results.csv").read_text().splitlines()))

    fit_other(tmp_path, ResultsTable(), Reader())
    assert lines == [2, 3, 4, 5]  # with the header


class Expects(Other):
    """A module that knows in the second trial how long the rest takes."""

    def expect(self):
        return 90.0 if self.current_epoch else None


def test_what_the_module_expects_is_in_the_log_and_the_bar_until_the_trial_has_ended(clock, tmp_path):
    with terminal() as states:
        callbacks = [Takes(clock, 10), RelationLog(), RelationProgressBar()]
        fit_other(tmp_path, *callbacks, module=Expects(), enable_progress_bar=True)
    assert lines_of(tmp_path)[1:2] == ["expected: 1 min 30 s from here on"]
    shown = [bar for bar in bars_of(states) if bar[0] != "Training"]
    assert shown[:7] == [
        ("1/4 first, trial 0", "0", "now=estimating"),
        ("1/4 first, trial 0", "0", "now=scoring"),
        ("2/4 second, trial 0", "25", "left=30 s"),
        ("2/4 second, trial 0", "25", "left=30 s, now=estimating"),
        ("2/4 second, trial 0", "25", "left=1 min 30 s, now=estimating"),
        ("2/4 second, trial 0", "25", "left=1 min 20 s, now=scoring"),
        ("3/4 first, trial 1", "50", "left=20 s"),
    ]


# The bar.


@contextmanager
def terminal():
    """Make standard output a terminal of 120 columns, and collect the states that its lines had."""
    pty, fcntl, termios = (pytest.importorskip(name, reason="needs Unix") for name in ("pty", "fcntl", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    read, states = [], []
    reader = threading.Thread(target=lambda: read.extend(iter(lambda: read_from(ours), b"")))
    reader.start()
    try:
        with os.fdopen(theirs, "w", encoding="utf-8") as stream, redirect_stdout(stream):
            yield states
    finally:
        reader.join(timeout=60)
        os.close(ours)
    states += [state.strip() for state in re.split(r"[\r\n]+|\x1b\[A", b"".join(read).decode()) if state.strip()]


def read_from(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # nobody can write to it any more
        return b""


def bars_of(states):
    """Return the distinct states of a fit's bar: what is left of it, its per cent, and what is right but the time."""
    found = [re.fullmatch(r"(.*): +(\d+)%\|.*\| \[\d\d:\d\d(?:, )?(.*)\]", state) for state in states]
    return list(dict.fromkeys(match.groups() for match in found if match))


def test_the_bar_shows_relation_trial_and_the_time_left(clock, tmp_path):
    bar = RelationProgressBar()
    with terminal() as states:
        fit_other(tmp_path, Takes(clock, 10), bar, enable_progress_bar=True)
    bars = bars_of(states)
    assert bars[:6] == [
        ("Training", "0", ""),
        ("1/4 first, trial 0", "0", "now=estimating"),
        ("1/4 first, trial 0", "0", "now=scoring"),
        ("2/4 second, trial 0", "25", "left=30 s"),
        ("2/4 second, trial 0", "25", "left=30 s, now=estimating"),
        ("2/4 second, trial 0", "25", "left=20 s, now=scoring"),
    ]
    assert bars[-2:] == [("4/4 second, trial 1", "75", "now=scoring"), ("4/4 trials", "100", "")]
    assert pickle.loads(pickle.dumps(bar)).refresh_rate == bar.refresh_rate


def test_the_bar_of_a_stopped_fit_stays_behind(tmp_path):
    callbacks = [RelationProgressBar(), Fails(0, RuntimeError("now"))]
    trainer = trainer_of(tmp_path, callbacks, enable_progress_bar=True, limit_train_batches=1, limit_val_batches=1)
    with terminal() as states:
        with pytest.raises(RuntimeError, match="now"):
            trainer.fit(Other(), Turns())
        print("stopped")
        trainer.validate(Other(), Turns(), verbose=False)
    assert any(state.startswith("Validation DataLoader 0: 100%") for state in states)
    assert "stopped" in states  # on a line of its own
    assert not any("scoring" in state for state in states)


def test_with_other_data_it_is_lightnings_own(tmp_path):
    options = {"limit_train_batches": 2, "max_epochs": 2, "enable_progress_bar": True}
    with terminal() as states:
        fit_other(tmp_path, RelationProgressBar(), data=BoringDataModule(), **options)
    assert any(re.match(r"Epoch 1: +50%\|.*\| 1/2 \[", state) for state in states)
    assert not any("now=" in state or "left=" in state for state in states)


def test_without_a_terminal_there_is_no_bar(tmp_path, capfd):
    fit_other(tmp_path, RelationProgressBar(), enable_progress_bar=True)
    assert capfd.readouterr().out == ""
