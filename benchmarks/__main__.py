"""Run every benchmark and write the results to `benchmarks/RESULTS.md`.

Run with `make bench` on an idle machine. If a benchmark fails, the file stays as it was.
"""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

NAMES = ("startup", "data", "inverse", "jacobian", "jlens", "scoring", "memory", "devices")
RESULTS = Path(__file__).parent / "RESULTS.md"


def machine() -> str:
    """Describe the machine and the versions of packages."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lightning"))
    memory = round(psutil.virtual_memory().total / 2**30)
    return (
        f"{datetime.date.today()}, {torch.get_num_threads()} threads, {memory} GiB of memory, "
        f"{platform.machine()}, Python {platform.python_version()}, {packages}"
    )


def main() -> None:
    """Run the benchmarks one after another, each in its own process."""
    start, sections = time.perf_counter(), []
    for name in NAMES:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}"]
        finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        print(finished.stdout, flush=True)
        sections.append(finished.stdout.strip())
    minutes = (time.perf_counter() - start) / 60
    head = [
        "# Benchmarks",
        "",
        f"Written by `make bench`: {machine()}; {minutes:.0f} minutes in total. The ratios are from a single run; the "
        "same scripts assert that the results are equal.",
    ]
    RESULTS.write_text("\n".join(head) + "\n\n" + "\n\n".join(sections) + "\n")
    print(f"{RESULTS} written after {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
