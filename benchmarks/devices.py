"""Several processes against one: fit and validation on the demo and on SmolLM2, with one thread per process.

Run with `python -m benchmarks.devices` on a machine with idle cores. The times are those of `Trainer.fit` and
`Trainer.validate`, which include the start of the processes but not the loading of the LM. All counts and, bit for bit,
all LREs are asserted to be equal. Two runs of one process each at the same time, which share nothing but the machine,
show how much faster two processes can be on it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import DEMO_RELATION, aimed, table
from benchmarks.memory import GIBIBYTE, peak
from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.demo import smollm2_file
from lre_lightning.lre.lre import LRE
from lre_lightning.records.files import read_records
from lre_lightning.training.module import LREModule

REPEATS = 2
TRIALS = 1
RELATIONS: dict[str, list[str] | None] = {"demo": None, "smollm2": [DEMO_RELATION]}
"""The relations of each LM's fit."""
LEAST = 1.9
"""The ratio that two processes are to reach on SmolLM2, on an idle machine."""
MEMORY = 1.2
"""The memory of a process, in those of the only one, that it is to stay below."""


def run(
    root: Path,
    devices: int,
    relations: list[str] | None = None,
    trials: int = TRIALS,
    name: str = "demo",
    source: str = "demo",
    tokenizer: str | None = None,
    share: int | None = None,
    **given: Any,
) -> dict[str, float]:
    """Fit and validate, with other options of the Trainer if given; return the seconds, and the highest peak memory.

    `share` is the number of processes that share an LM.
    """
    import lightning as L

    torch.set_num_threads(1)
    module = LREModule(name, loading={"tensor_parallel": share})
    data = RelationDataModule(tokenizer or name, relations, source, trials=trials)
    data.setup()
    options: dict[str, Any] = {
        "default_root_dir": root, "max_epochs": -1, "reload_dataloaders_every_n_epochs": 1, "logger": False,
        "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False,
        "num_sanity_val_steps": 0, "inference_mode": False, "accelerator": "cpu", "devices": devices,
        "strategy": "ddp_fork" if devices > 1 else "auto", "callbacks": [ResultsTable()],
        **given,
    }  # fmt: skip
    found = {}
    for job in ("fit", "validate"):
        started = time.perf_counter()
        getattr(L.Trainer(**options), job)(module, datamodule=data)
        found[job] = time.perf_counter() - started
    forked = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found | {"peak": peak() * max(1.0, forked)}


def measured(root: Path, devices: int, name: str) -> dict[str, float]:
    """Call `run` in its own process."""
    root.mkdir()
    call = f"d.run(pathlib.Path({str(root)!r}), {devices}, {RELATIONS[name]}, name={name!r})"
    code = f"import json, pathlib, benchmarks.devices as d; f = {call}"
    command = [sys.executable, "-W", "ignore", "-c", f"{code}; print('\\n' + json.dumps(f))"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, float] = json.loads(output.stdout.splitlines()[-1])
    return found


def side_by_side(folder: Path, name: str) -> dict[str, float]:
    """Call `measured` twice at the same time, with one process each; return the seconds of the slower one."""
    roots = [folder / f"side-{index}" for index in range(2)]
    with ThreadPoolExecutor() as pool:
        return max(pool.map(lambda root: measured(root, 1, name), roots), key=_seconds)


def assert_same(one: Path, other: Path) -> int:
    """Check that two runs are equal; return the number of counts compared."""
    numbers = 0
    for job in ("fit", "validate"):
        found, expected = (read_records([root / f"{job}_results.jsonl"]) for root in (other, one))
        assert found == expected, f"the records of {job} differ"
        numbers += sum(len(at) for record in found for grid in (record.faithful, record.causal) for at in grid)
    files = sorted(path.relative_to(one) for path in one.rglob("*.safetensors"))
    assert files
    for file in files:
        expected_lre, lre = LRE.load(one / file), LRE.load(other / file)
        assert torch.equal(expected_lre.weight, lre.weight), file
        assert torch.equal(expected_lre.bias, lre.bias), file
    return numbers


def compare(name: str) -> tuple[list[list[object]], int]:
    """Return the rows of an LM, and the number of counts that were compared."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    sizes = [size for size in (1, 2, 3, 4) if size <= max(2, cores)]
    best: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(REPEATS):
            for size in sizes:
                root = Path(folder) / f"{repeat}-{size}"
                found = measured(root, size, name)
                numbers = assert_same(Path(folder) / "0-1", root)
                if size not in best or _seconds(found) < _seconds(best[size]):
                    best[size] = found
        both = side_by_side(Path(folder), name)
    ratio = {size: _seconds(best[1]) / _seconds(found) for size, found in best.items()}
    rows: list[list[object]] = [
        [
            name,
            size,
            f"{found['fit']:.1f}",
            f"{found['validate']:.1f}",
            aimed(f"{ratio[size]:.2f}", size != 2 or name == "demo" or ratio[size] >= LEAST, f"{LEAST}"),
            aimed(
                f"{found['peak'] / GIBIBYTE:.2f}", found["peak"] < MEMORY * best[1]["peak"], f"below {MEMORY} of one's"
            ),
        ]
        for size, found in best.items()
    ]
    rows.append(
        [
            name,
            "2 runs at once",
            f"{both['fit']:.1f}",
            f"{both['validate']:.1f}",
            f"{2 * _seconds(best[1]) / _seconds(both):.2f}",
            "",
        ]
    )
    return rows, numbers


def main() -> None:
    """Print the table."""
    found = [compare(name) for name in RELATIONS if name == "demo" or smollm2_file()]
    notes = [
        f"The best of {REPEATS} runs each, one thread per process, {TRIALS} trial: 27 relations of the demo, whose "
        f"fixed costs leave less to share, and one of SmolLM2. All {sum(numbers for _, numbers in found):,} counts of "
        "every run are equal and, bit for bit, all LREs. Two runs of one process side by side: the machine lets "
        "nothing be more times faster than that."
    ]
    header = ["LM", "processes", "fit, seconds", "validate, seconds", "times faster", "peak GiB per process"]
    print(table("Several processes", header, [row for rows, _ in found for row in rows], notes))


def _seconds(found: dict[str, float]) -> float:
    return found["fit"] + found["validate"]


if __name__ == "__main__":
    main()
