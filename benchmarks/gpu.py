"""Everything that only a GPU can show, in one run of at most nine minutes.

Run with `make gpu` where there is a GPU. Each check has a process of its own and a limit of time; what it measures, and
what must hold, is a row of a table. A check that raises, hangs or crashes is a row too, and the others go on. The exit
status is 1 if anything that must hold does not. `python -m benchmarks.gpu --device cpu --tiny` tries the kit itself.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import devices, tensor_parallel
from benchmarks.common import CONTEXT, SUFFIX, demo_prompts, timed
from benchmarks.inverse import flat
from benchmarks.jacobian import layer_jacobian
from benchmarks.kit import Row, Skipped, run_all
from benchmarks.memory import GIBIBYTE
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.jlens.estimator import text_jacobian
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.triplets import leading_singular_triplets
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch

T = TypeVar("T")

SHAPES = ("GPT-J", "Llama-3-8B")
HALVES = (torch.bfloat16, torch.float16)
MOST_ERROR = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
"""Relative errors that rounding may make, through four blocks."""

VOCAB = 1000


@dataclass(frozen=True)
class Kit:
    """The device of the checks, and how large they are."""

    device: torch.device
    tiny: bool = False

    def model(self, shape: str, width: int, dtype: torch.dtype, **options: Any) -> Any:
        """Return four blocks of a shape with random weights, built on the device; two of width 64 if tiny."""
        from transformers import AutoModelForCausalLM, GPTJConfig, LlamaConfig

        width, blocks = (64, 2) if self.tiny else (width, 4)
        common: dict[str, Any] = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 0}
        common["initializer_range"] = width**-0.5
        config: Any
        if shape == "GPT-J":
            heads = max(4, width // 256)
            sizes = {"n_embd": width, "n_layer": blocks, "n_head": heads, "rotary_dim": min(64, width // heads)}
            config = GPTJConfig(**sizes, **common)
        else:
            sizes = {"hidden_size": width, "intermediate_size": width * 7 // 2, "num_hidden_layers": blocks}
            heads = max(4, width // 128)
            config = LlamaConfig(**sizes, num_attention_heads=heads, num_key_value_heads=heads // 4, **common)
        torch.manual_seed(0)
        with self.device:
            return AutoModelForCausalLM.from_config(config, dtype=dtype, **options)

    def ids(self, *sizes: int) -> Tensor:
        """Return random prompts with a suffix of `SUFFIX` tokens, `(*sizes, CONTEXT + SUFFIX)`."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(VOCAB, (*sizes, CONTEXT + SUFFIX), generator=generator).to(self.device)

    def seconds(self, work: Callable[..., Any], *arguments: Any) -> float:
        """Return the shorter time of two calls after a first one, the device's work included."""

        def finished() -> None:
            work(*arguments)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)

        finished()
        return min(timed(finished)[0] for _ in range(2))

    def speed(self, check: str, measured: str, wanted: str, holds: bool) -> Row:
        """Return a row on a speed, which is not judged if tiny."""
        row = Row.judged(check, measured, wanted, holds)
        return replace(row, result="skipped: no speed is judged at a tiny size") if self.tiny else row

    def need_gpu(self, why: str) -> None:
        """Skip the check on the CPU."""
        if self.device.type == "cpu":
            raise Skipped(f"needs a GPU: {why}")


def error(found: Tensor, expected: Tensor) -> float:
    """Return the relative difference of two tensors (Frobenius norm)."""
    return float((found.double() - expected.double().to(found.device)).norm() / expected.double().norm())


def stacked(example: PromptJacobian) -> Tensor:
    """Return the Jacobians of all layers as one tensor."""
    return torch.stack(list(example.jacobian.values()))


def device(kit: Kit) -> Iterator[Row]:
    """Describe the device."""
    if kit.device.type == "cpu":
        yield Row("device", f"{platform.machine()}, torch {torch.__version__}", "a GPU", "skipped: runs on the CPU")
        return
    found, capability = torch.cuda.get_device_properties(kit.device), torch.cuda.get_device_capability(kit.device)
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    about = f"{found.name}, {found.total_memory / GIBIBYTE:.0f} GiB, {versions}"
    yield Row.judged("device", about, "compute capability 7.0", capability >= (7, 0))


def precision(kit: Kit) -> Iterator[Row]:
    """Compare the fast path of Jacobians, patched runs and the lens in every dtype with float64."""
    prompts, position = kit.ids(3), torch.full((3,), CONTEXT)
    for shape in SHAPES:
        model = kit.model(shape, 512, torch.float32)
        change = torch.randn(3, 4, model.config.hidden_size, generator=torch.Generator().manual_seed(2)).to(kit.device)

        def everything(lm: LanguageModel, change: Tensor = change) -> dict[str, Tensor]:
            batch = PromptBatch(lm, prompts, position, position + SUFFIX - 1)
            subject = batch.hidden_states([1])[0]
            lens = text_jacobian(lm, prompts[1, :40])
            return {
                "Jacobians": stacked(prompt_jacobian(lm, prompts[0], CONTEXT)),
                "patched runs": batch.patched(1, subject + change.to(subject) / 10),
                "Jacobian lens": torch.stack(list(lens.values())),
            }

        for dtype, most in MOST_ERROR.items():
            rounded = copy.deepcopy(model).to(dtype)
            expected = everything(LanguageModel(copy.deepcopy(rounded).double()))
            for name, found in everything(LanguageModel(rounded)).items():
                off = error(found, expected[name])
                what = f"{name}, {shape}, {str(dtype).removeprefix('torch.')} against float64"
                yield Row.judged(what, f"{off:.1e}", f"below {most:.0e}", off < most)
        slow = layer_jacobian(LanguageModel(model.double()), (prompts[0], CONTEXT), 0, from_cache=False)
        fast = prompt_jacobian(LanguageModel(model), prompts[0], CONTEXT).jacobian[0]
        off = error(fast, slow)
        yield Row.judged(f"sweep, {shape}, against the whole prompt", f"{off:.1e}", "below 1e-5", off < 1e-5)


def rates(kit: Kit) -> Iterator[Row]:
    """Compare the rate of the products in Jacobians with that of a large matrix product."""
    for dtype in HALVES:
        size = 64 if kit.tiny else 4096
        left, right = (torch.randn(shape, device=kit.device).to(dtype) for shape in ((size, size), (size, 4 * size)))
        peak = 8 * size**3 / kit.seconds(torch.mm, left, right) / 1e12
        for shape in SHAPES:
            lm, ids = LanguageModel(kit.model(shape, 4096, dtype)), kit.ids()
            seconds = kit.seconds(prompt_jacobian, lm, ids, CONTEXT)
            with FlopCounterMode(display=False) as counter:
                prompt_jacobian(lm, ids, CONTEXT)
            rate = counter.get_total_flops() / seconds / 1e12
            what = f"Jacobians of a prompt, {lm.num_layers} blocks of {shape}, {str(dtype).removeprefix('torch.')}"
            measured = f"{seconds:.3f} s, {rate:.3g} TFLOP/s; a product of matrices {peak:.3g}"
            yield kit.speed(what, measured, "half of a product's rate", rate > peak / 2)


def chunks(kit: Kit) -> Iterator[Row]:
    """Compare the chunk sizes that are chosen with others."""
    lm, prompts = LanguageModel(kit.model("GPT-J", 4096, torch.bfloat16)), kit.ids(8)
    position = torch.full((8,), CONTEXT)
    batch = PromptBatch(lm, prompts, position, position + SUFFIX - 1)
    values = batch.hidden_states([1])[0].expand(8, 64, -1)
    kinds: dict[str, Callable[[], Any]] = {
        "rows of a Jacobian": partial(prompt_jacobian, lm, prompts[0], CONTEXT),
        "patched prompts": partial(batch.patched, 1, values),
    }
    for kind, work in kinds.items():
        times: dict[int | None, float] = {}
        for size in (None, 16, 64, 256, 1024):
            lm.chunk_size = size
            times[size] = kit.seconds(work)
        measured = ", ".join(f"{size or 'chosen'}: {seconds:.3f} s" for size, seconds in times.items())
        holds = times[None] < 1.25 * min(times.values())
        yield kit.speed(f"chunks, {kind}", measured, "chosen within 1.25 of the best", holds)


def memory(kit: Kit) -> Iterator[Row]:
    """Compare the memory of Jacobians with its estimate, and run out of memory."""
    kit.need_gpu("the CPU keeps no account of allocations")
    lm, ids = LanguageModel(kit.model("GPT-J", 4096, torch.bfloat16)), kit.ids()
    expected = stacked(prompt_jacobian(lm, ids, CONTEXT))
    (lane,) = lm.lane_bytes.values()

    def peak(lanes: int) -> float:
        lm.chunk_size = lanes
        torch.cuda.reset_peak_memory_stats(kit.device)
        before = torch.cuda.memory_allocated(kit.device) + expected.nbytes
        prompt_jacobian(lm, ids, CONTEXT)
        return torch.cuda.max_memory_allocated(kit.device) - before

    for lanes in (64, 256, 1024):
        used, estimate = peak(lanes), 2 * lanes * lane
        measured = f"{used / GIBIBYTE:.2f} GiB"
        yield Row.judged(f"memory of {lanes} rows", measured, f"below {estimate / GIBIBYTE:.2f}", used < estimate)
    torch.cuda.empty_cache()
    total, left = torch.cuda.get_device_properties(kit.device).total_memory, expected.nbytes + used / 4
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved(kit.device) + left) / total, kit.device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        off = error(stacked(prompt_jacobian(lm, ids, CONTEXT)), expected)
    said = next((str(one.message) for one in caught if "out of memory" in str(one.message)), "no warning")
    holds = off < MOST_ERROR[torch.bfloat16] and "continuing" in said
    yield Row.judged("too little memory", f"{said}; difference {off:.1e}", "fewer rows, the same Jacobians", holds)


def inverse(kit: Kit) -> Iterator[Row]:
    """Compare the low-rank inverse with the full SVD."""
    weight = flat()[:512, :512] if kit.tiny else flat()
    weight, rank = weight.to(kit.device), 8 if kit.tiny else 256
    seconds = kit.seconds(leading_singular_triplets, weight, rank)
    left, values, right = leading_singular_triplets(weight, rank)
    full, (u, s, v) = timed(torch.linalg.svd, weight)
    off = error((right / values) @ left.T, (v[:rank].T / s[:rank]) @ u[:, :rank].T)
    measured = f"{off:.1e}, in {seconds:.2f} s; full SVD {full:.2f} s"
    yield Row.judged(f"inverse to rank {rank}, width {len(weight)}", measured, "difference below 1e-3", off < 1e-3)


def pinned(kit: Kit) -> Iterator[Row]:
    """Copy batches from page-locked memory."""
    kit.need_gpu("memory is pinned for a GPU")
    loaders = [
        RelationDataModule("demo", "person sport", "demo", loader={"pin_memory": pin}).train_dataloader()
        for pin in (False, True)
    ]
    plain, batch = (next(iter(loader)) for loader in loaders)
    there, same = batch.to(kit.device, non_blocking=True), batch.input_ids.is_pinned()
    holds = same and torch.equal(there.input_ids.cpu(), plain.input_ids)
    yield Row.judged("pinned batches", "pinned" if same else "not pinned", "pinned, the same tokens", holds)


def fit(root: str, device: str, several: bool, share: int | None) -> None:
    """Fit a relation of the demo on a device, as one process or as one of two on it, which may share the LM."""
    from lightning.pytorch.strategies import DDPStrategy, StrategyRegistry

    options: dict[str, Any] = {"accelerator": "gpu" if device == "cuda" else "cpu"}
    if several:  # as on two nodes, and not by NCCL, which refuses two processes on one GPU
        StrategyRegistry.register("gloo", DDPStrategy, process_group_backend="gloo")
        options |= {"strategy": "gloo", "num_nodes": 2}
    devices.run(Path(root), 1, ["country capital city"], share=share, **options)


def started(root: Path, device: str, several: bool, index: int = 0, share: int | None = None) -> subprocess.Popen[str]:
    """Start `fit` in a process, the first or second of two if `several`."""
    call = f"import benchmarks.gpu as g; g.fit({str(root)!r}, {device!r}, {several}, {share})"
    group = {"RANK": index, "GROUP_RANK": index, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29000 + os.getpid() % 1000, "TORCHELASTIC_RUN_ID": "kit"}
    given = {"OMP_NUM_THREADS": 1} | (group if several else {})  # two processes would have other threads than one
    environment = {name: str(value) for name, value in given.items()}
    pipes: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", call], env={**os.environ, **environment}, **pipes)


def fitted(kit: Kit, share: int | None, assert_same: Callable[[Path, Path], T]) -> T:
    """Return what `assert_same` does of a fit by one process and one by two on the same device."""
    with tempfile.TemporaryDirectory() as folder:
        alone, shared = Path(folder) / "alone", Path(folder) / "shared"
        alone.mkdir()
        shared.mkdir()
        place = kit.device.type
        running = [started(alone, place, False), *(started(shared, place, True, index, share) for index in range(2))]
        for process in running:
            said = process.communicate()[1]
            if process.returncode:
                raise RuntimeError(said.strip().splitlines()[-1])
        return assert_same(alone, shared)


def sharing(kit: Kit) -> Iterator[Row]:
    """Compare a fit by two processes that share an LM with that by one."""
    counts, off = fitted(kit, 2, tensor_parallel.assert_same)
    wanted = f"the counts of one, W to {tensor_parallel.ROUNDING:.0e}"
    yield Row.judged("two processes share an LM", f"{counts} counts, W {off:.0e}", wanted, True)


def processes(kit: Kit) -> Iterator[Row]:
    """Compare a fit by two processes on one device with that by one."""
    counts = fitted(kit, None, devices.assert_same)
    yield Row.judged("two processes on one device", f"{counts} counts", "the counts and LREs of one, bit for bit", True)


def placement(kit: Kit) -> Iterator[Row]:
    """Compare an LM that a `device_map` places or offloads with one that is moved."""
    ids, position = demo_prompts()[0]
    lm = LanguageModel.from_pretrained("demo").to(kit.device)
    expected = stacked(prompt_jacobian(lm, ids, position))
    maps: dict[str, dict[str, Any]] = {place: {"device_map": place} for place in (str(kit.device), "disk")}
    if kit.device.type == "cuda":
        half = sum(parameter.nbytes for parameter in lm.parameters()) // 2
        maps["auto, half on the CPU"] = {"device_map": "auto", "max_memory": {0: half, "cpu": "4GiB"}}
    for name, options in maps.items():
        placed = LanguageModel.from_pretrained("demo", **options)
        off = error(stacked(prompt_jacobian(placed, ids, position)), expected)
        yield Row.judged(f"device_map {name}", f"{off:.1e}", "below 1e-5", off < 1e-5)


def quantization(kit: Kit) -> Iterator[Row]:
    """Compare the sweep through quantized weights with autograd of the whole prompt."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise Skipped("bitsandbytes is not installed")
    ids, position = demo_prompts()[0]
    prompt = ids.to(kit.device), position
    for bits in ("8bit", "4bit"):
        lm = LanguageModel.from_pretrained("demo", quantization=bits, device_map=str(kit.device))
        off = error(prompt_jacobian(lm, *prompt).jacobian[1], layer_jacobian(lm, prompt, 1, from_cache=False))
        yield Row.judged(f"weights in {bits}", f"{off:.1e}", "below 1e-4", off < 1e-4)


def attention(kit: Kit) -> Iterator[Row]:
    """Compare the implementations of attention."""
    flash = kit.device.type == "cuda" and importlib.util.find_spec("flash_attn") is not None
    for dtype, others in ((torch.float32, ["eager"]), (torch.bfloat16, ["eager", *["flash_attention_2"] * flash])):
        expected = None
        for name in ("sdpa", *others):
            lm = LanguageModel(kit.model("Llama-3-8B", 1024, dtype, attn_implementation=name))
            found = stacked(prompt_jacobian(lm, kit.ids(), CONTEXT))
            expected = found if expected is None else expected
            off, seconds = error(found, expected), kit.seconds(prompt_jacobian, lm, kit.ids(), CONTEXT)
            what = f"attention, {name}, {str(dtype).removeprefix('torch.')}"
            measured = f"{seconds:.3f} s, {lm.way} prefix, {off:.1e} from sdpa"
            yield Row.judged(what, measured, f"below {MOST_ERROR[dtype]:.0e}", off < MOST_ERROR[dtype])
    if not flash:
        yield Row("attention, flash_attention_2", "", "", "skipped: flash_attn is not installed, or there is no GPU")


def tests(kit: Kit) -> Iterator[Row]:
    """Run the tests that are marked for a GPU."""
    root = Path(__file__).parents[1]
    if importlib.util.find_spec("pytest") is None or not (root / "tests").is_dir():
        raise Skipped("pytest or the folder of tests is not there")
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "gpu", "tests/models"]
    finished = subprocess.run(command, cwd=root, capture_output=True, text=True)
    last = (finished.stdout.strip().splitlines() or ["no output"])[-1]
    yield Row.judged("tests marked gpu", last.strip("= "), "none fails", finished.returncode == 0)


CHECKS: dict[Callable[[Kit], Iterator[Row]], int] = {
    device: 20, precision: 60, rates: 60, chunks: 40, memory: 30, inverse: 30, pinned: 20, processes: 70,
    sharing: 60, placement: 25, quantization: 25, attention: 30, tests: 70,
}  # fmt: skip
"""Checks, and the seconds that each may take: nine minutes in all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks and write the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="tiny LMs, for which no speed is asserted")
    parser.add_argument("--output", default="gpu.md", help="file of the table, written after each check")
    parser.add_argument("--only", nargs="*", metavar="CHECK", help=", ".join(check.__name__ for check in CHECKS))
    options = parser.parse_args(arguments)
    if unknown := set(options.only or []) - {check.__name__ for check in CHECKS}:
        parser.error(f"there is no check {min(unknown)!r}: see --help")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: --device cpu --tiny tries the kit itself")
    chosen = {check: limit for check, limit in CHECKS.items() if not options.only or check.__name__ in options.only}
    kit = Kit(torch.device(options.device), options.tiny)
    return run_all({partial(check, kit): limit for check, limit in chosen.items()}, Path(options.output))


if __name__ == "__main__":
    sys.exit(main())
