"""Run benchmarks and write their sections to `benchmarks/RESULTS.md`, each as soon as it ends.

Run all with `make bench` on an idle machine, or some with `make bench SECTION=jacobian`; `paper`, which needs the
paper's code, runs only if it is named. A section replaces its own earlier text; if a benchmark fails, its text stays
and the exit status is 1. A ratio that misses its aim is marked. With `--busy` each runs beside one busy process, and
its text stands below that of the idle machine.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

import psutil
import torch

from benchmarks.common import AIM, busy_process

NAMES = (
    "startup",
    "gguf",
    "data",
    "inverse",
    "matrix_free",
    "jacobian",
    "jlens",
    "scoring",
    "real",
    "reading",
    "memory",
    "devices",
    "tensor_parallel",
    "busy",
    "paper",
)
NAMED_ONLY = ("paper",)
"""What needs an environment that only its author can set up, and runs only if it is named."""
RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """# Benchmarks

Written by `make bench`. The ratios are from a single run; the same scripts assert that the results are equal. A number
in bold misses its aim, which stands beside it."""


def machine() -> str:
    """Describe the machine and the versions of packages."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "lightning"))
    memory = round(psutil.virtual_memory().total / 2**30)
    return (
        f"{torch.get_num_threads()} threads, {memory} GiB of memory, {platform.machine()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def sections(text: str) -> dict[str, str]:
    """Return the sections of a results file by name."""
    parts = re.split(r"^<!-- (\w+) -->\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def measured(name: str) -> str:
    """Run one benchmark in its own process; return its tables.

    Raises:
        subprocess.CalledProcessError: If it fails.
    """
    command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.{name}"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    """Run the named benchmarks, all by default, one after another; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run benchmarks, all by default.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--busy", action="store_true", help="beside one busy process")
    options = parser.parse_args(arguments)
    names = options.names
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"there is no benchmark {unknown[0]!r}: choose from {', '.join(NAMES)}")
    failed, missed = [], []
    for name in names or [name for name in NAMES if name not in NAMED_ONLY]:
        start = time.perf_counter()
        print(f"== {name}", flush=True)
        try:
            with busy_process() if options.busy else nullcontext():
                found = measured(name)
        except subprocess.CalledProcessError:
            failed.append(name)
            continue
        key = name
        if options.busy:
            key = f"{name}_busy"
            found = re.sub("^(## .*)", r"\1, beside a busy process", found, flags=re.MULTILINE)
        print(found, flush=True)
        missed += [f"{name}: {line}" for line in found.splitlines() if AIM in line]
        minutes = (time.perf_counter() - start) / 60
        written = f"{found}\n\n*{datetime.date.today()}, in {minutes:.1f} minutes: {machine()}.*"
        kept = sections(results.read_text(encoding="utf-8") if results.exists() else "") | {key: written}
        order = [one for name in NAMES for one in (name, f"{name}_busy")]
        parts = [HEAD, *(f"<!-- {one} -->\n\n{kept[one]}" for one in order if one in kept)]
        results.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(*(f"missed: {line}" for line in missed), *(f"failed: {name}" for name in failed), sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
