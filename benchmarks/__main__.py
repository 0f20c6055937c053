"""Every benchmark, and `benchmarks/RESULTS.md` with what they found.

Run with `make bench`, on an idle machine. A benchmark that fails leaves the file as it was.
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

NAMES = ("startup", "data", "inverse", "jacobian", "scoring", "memory", "devices")
RESULTS = Path(__file__).parent / "RESULTS.md"


def machine() -> str:
    """What the figures were measured on."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lightning"))
    memory = round(psutil.virtual_memory().total / 2**30)
    return (
        f"{datetime.date.today()}, {torch.get_num_threads()} threads, {memory} GiB of memory, "
        f"{platform.machine()}, Python {platform.python_version()}, {packages}"
    )


def main() -> None:
    """Run the benchmarks one after another; each is a process of its own."""
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
        f"Written by `make bench`: {machine()}; {minutes:.0f} minutes in all. Ratios are those of one run; results are "
        "asserted to be equal in the same scripts.",
    ]
    RESULTS.write_text("\n".join(head) + "\n\n" + "\n\n".join(sections) + "\n")
    print(f"{RESULTS} written after {minutes:.1f} minutes")


if __name__ == "__main__":
    main()
