"""Chunk sizes that are halved when memory runs out, with simulated errors and real ones of the allocator."""

import warnings
from contextlib import contextmanager
from dataclasses import replace

import psutil
import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre import jacobian as engine
from lre_lightning.lre.jacobian import prompt_jacobian
from lre_lightning.models import memory
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.memory import ChunkSizes, free_memory
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import LAYERS, VOCAB, WIDTH, tiny_model

PROMPT = torch.arange(14) * 11 % VOCAB
ERROR = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore")


@contextmanager
def caught_warnings():
    """Yield the warnings given within the context, including repeated ones."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught


class Work:
    """Work that fails on more than `fits` at a time."""

    def __init__(self, fits, error=ERROR):
        self.fits, self.error, self.sizes = fits, error, []

    def __call__(self, size):
        self.sizes.append(size)
        if size > self.fits:
            raise self.error
        return f"done by {size}"


def test_chunks_are_halved_until_they_fit_and_that_is_remembered():
    sizes, work = ChunkSizes(), Work(9)
    with caught_warnings() as caught:
        assert sizes.run("rows", 100, work) == "done by 7"
        assert work.sizes == [100, 50, 25, 13, 7]
        assert sizes.run("rows", 4, Work(8)) == "done by 4"  # a smaller wish is not remembered
        assert sizes.run("rows", 100, Work(3)) == "done by 2"
        assert sizes.run("rows", 100, Work(100)) == "done by 2"
        assert sizes.run("prompts", 16, Work(16)) == "done by 16"  # other work has a size of its own
    (warning,) = caught
    assert str(warning.message) == "out of memory for 100 rows at a time: continuing with 7"
    assert warning.category is UserWarning
    with caught_warnings():  # of the CPU's allocator itself
        assert len(ChunkSizes().run("rows", 16, lambda size: torch.empty(2**50 if size > 4 else size))) == 4


def test_memory_for_less_than_one_is_an_error():
    work = Work(0)
    message = r"out of memory, even for rows one at a time: load the LM in bfloat16 .*\(CUDA out of memory.*GiB.\)$"
    with pytest.raises(LREError, match=message) as raised:
        ChunkSizes().run("rows", 5, work)
    assert work.sizes == [5, 3, 2, 1]
    assert raised.value.__cause__ is ERROR


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("x")])
def test_other_errors_pass(error):
    work = Work(1, error)
    with pytest.raises(type(error)) as raised:
        ChunkSizes().run("rows", 8, work)
    assert raised.value is error
    assert work.sizes == [8]


def test_tensors_of_a_failed_attempt_are_freed_before_the_next():
    """The traceback of a caught exception would keep them alive."""
    import gc
    import weakref

    held = []

    def work(size):
        if size == 4:
            tensor = torch.zeros(size)
            held.append(weakref.ref(tensor))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return held[0]()

    gc.disable()
    try:
        with caught_warnings():
            assert ChunkSizes().run("rows", 4, work) is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({}, 450),  # the container's limit less what it uses, but for 150 bytes of files that can be dropped
        ({"memory.max": "2000"}, 800),  # the machine has less than the container may use
        ({"memory.stat": "anon 400"}, 300),
        ({"memory.max": "max"}, 800),
        ({"memory.max": None}, 800),
    ],
    ids=str,
)
def test_a_container_may_have_less_memory(monkeypatch, tmp_path, changes, free):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 800}))
    stat = "anon 400\ninactive_anon 7\ninactive_file 150\nactive_file 60"
    for name, text in ({"memory.max": "1000", "memory.current": "700", "memory.stat": stat} | changes).items():
        if text is not None:
            (tmp_path / name).write_text(f"{text}\n")
    assert free_memory(torch.device("cpu")) == free
    assert free_memory(torch.device("meta")) is None


def lanes_of(monkeypatch, lm, **options):
    """Return the Jacobians and the numbers of lanes they were computed with."""
    seen, compute = [], engine._compute

    def note(lm, suffixes, lanes, *arguments):
        seen.append(lanes)
        return compute(lm, suffixes, lanes, *arguments)

    monkeypatch.setattr(engine, "_compute", note)
    result = prompt_jacobian(lm, PROMPT, 9, **options)
    monkeypatch.setattr(engine, "_compute", compute)
    return result, seen


def check_same(found, expected):
    assert expected.jacobian["emb"].any()
    for name in ("jacobian", "subject", "object"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-9)


def test_lanes_follow_free_memory(monkeypatch):
    lm = LanguageModel(tiny_model("gpt2"))
    expected = prompt_jacobian(lm, PROMPT, 9)
    monkeypatch.setattr(memory, "free_memory", lambda _: 0)
    result, seen = lanes_of(monkeypatch, lm)
    assert seen == [1]
    check_same(result, expected)
    (lane,) = lm.lane_bytes.values()
    for fit, lanes in ((2, 2), (5, 4), (11, 8), (16, 16)):  # sweeps are made equally large
        monkeypatch.setattr(memory, "free_memory", lambda _, fit=fit: 4 * lane * fit + 3 * lane)
        result, seen = lanes_of(monkeypatch, lm)
        assert seen == [lanes]
        check_same(result, expected)
    monkeypatch.setattr(memory, "free_memory", lambda _: 0)
    lm.chunk_size = 8
    assert lanes_of(monkeypatch, lm)[1] == [8]  # a given size is not changed
    lm = LanguageModel(tiny_model("gpt2", torch.float32, n_embd=80))
    monkeypatch.setattr(engine, "NUMBERS_AT_A_TIME", {"cpu": 40 * 80})
    for free, lanes in ((None, 40), (2**50, 40), (0, 1)):
        monkeypatch.setattr(memory, "free_memory", lambda _, free=free: free)
        assert lanes_of(monkeypatch, lm, layers=[1])[1] == [lanes]


def test_a_lane_takes_more_with_a_longer_suffix_and_from_a_lower_layer_and_is_measured_once(monkeypatch):
    lm, measured, measure = LanguageModel(tiny_model("mixtral", torch.float32)), [], engine._graph_bytes
    monkeypatch.setattr(engine, "_graph_bytes", lambda *arguments: measured.append(1) or measure(*arguments))
    for position, layer in ((13, "emb"), (11, "emb"), (11, "emb"), (4, "emb"), (4, 1)):
        prompt_jacobian(lm, PROMPT, position, [layer, 2])
    assert len(measured) == len(lm.lane_bytes) == 4
    one, three, ten, higher = (
        lm.lane_bytes[suffix, 0, layer] for suffix, layer in ((1, "emb"), (3, "emb"), (10, "emb"), (10, 1))
    )
    assert 0 < one < three < ten
    assert 0 < higher < ten
    assert one < sum(parameter.nbytes for parameter in lm.parameters()) / 3  # weights are not counted


def limit_batches(monkeypatch, method, most):
    """Let a method of LanguageModel run out of memory on batches of more than `most`; return the sizes it saw."""
    sizes, run = [], getattr(LanguageModel, method)

    def limited(self, *arguments, **options):
        size = len(next(one for one in arguments if isinstance(one, torch.Tensor)))
        sizes.append(size)
        if size > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory for {size}")
        return run(self, *arguments, **options)

    monkeypatch.setattr(LanguageModel, method, limited)
    return sizes


def jacobian(lm):
    return prompt_jacobian(lm, PROMPT, 9).jacobian["emb"]


VALUES = torch.randn(1, 16, WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("way", ["shared", "copied"])
def test_runs_follow_the_memory_that_copies_of_the_prefix_take(monkeypatch, way):
    lm = LanguageModel(tiny_model("llama"))
    lm._behaviour = replace(lm._behaviour, way=way)
    batch, sizes, run_from = PromptBatch(lm, PROMPT[None], torch.tensor([8]), torch.tensor([13])), [], lm.run_from
    monkeypatch.setattr(lm, "run_from", lambda *given: sizes.append(len(given[1])) or run_from(*given))
    copy_bytes = 2 * LAYERS * 8 * (WIDTH // 2) * 8  # keys and values of 8 tokens in float64, of half as many heads
    assert lm.prefix(PROMPT[None, :8]).copy_bytes == (copy_bytes if way == "copied" else 0)
    monkeypatch.setattr(memory, "free_memory", lambda _: 4 * copy_bytes * 5)
    expected = PromptBatch(lm, PROMPT[None], torch.tensor([8]), torch.tensor([13])).patched(1, VALUES)
    assert sizes == ([5, 5, 5, 1] if way == "copied" else [16])
    monkeypatch.setattr(memory, "free_memory", lambda _: None)
    torch.testing.assert_close(batch.patched(1, VALUES), expected)
    assert sizes[-1] == 16


LIMITED = {
    "states_by_piece": (jacobian, "rows of a Jacobian"),
    "run_from": (
        lambda lm: PromptBatch(lm, PROMPT[None], torch.tensor([8]), torch.tensor([13])).patched(1, VALUES),
        "patched prompts",
    ),
    "decode": (lambda lm: lm.predict(VALUES), "decoded hidden states"),
}


@pytest.mark.parametrize("method", LIMITED)
def test_work_continues_with_smaller_batches(monkeypatch, method):
    compute, kind = LIMITED[method]
    lm = LanguageModel(tiny_model("llama"), chunk_size=WIDTH)
    expected = compute(lm)
    assert len(expected.flatten().unique()) > 3
    sizes = limit_batches(monkeypatch, method, 4)
    with caught_warnings() as caught:
        for _ in range(3):
            torch.testing.assert_close(compute(lm), expected, rtol=1e-6, atol=1e-9)
    assert [size for size in sizes if size > 4] == [16, 8]  # no size is tried twice
    (warning,) = caught
    assert str(warning.message) == f"out of memory for 16 {kind} at a time: continuing with 4"
    assert warning.filename == __file__ or method != "states_by_piece"
    monkeypatch.undo()
    limit_batches(monkeypatch, method, 0)
    with pytest.raises(LREError, match=f"even for {kind} one at a time"):
        compute(lm)
    assert not any("forward" in vars(module) or module._forward_hooks for module in lm.modules())
