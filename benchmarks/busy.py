"""A fit alone and beside one busy process, with the command line's brief spin and with OpenMP's own.

Run with `python -m benchmarks.busy` on an idle machine. The times are those that the fit's log says, without the start
of the program. All records are asserted to be equal.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.common import aimed, busy_process, table
from lre_lightning.demo import smollm2_file
from lre_lightning.openmp import BRIEF, SAID
from lre_lightning.records.files import read_records
from lre_lightning.runs.times import UNITS

REPEATS = 2
MOST = 2.5
"""The time beside one busy process, in that of a fit alone, that it is not to exceed."""

RELATIONS = ["country capital city", "person sport", "word antonym", "name gender"]
CASES = {
    "demo": [f"--data.relations={RELATIONS}", "--data.trials=2"],
    "smollm2": [f"--data.relations={RELATIONS[:1]}", "--model.layers=[8, 16]", "--model.fitting.method=dense"],
}
"""LMs with the arguments of their fits; SmolLM2 takes part where it is installed."""

SPINS = {
    "brief (the command line's)": {},
    "OpenMP's own": {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
}
"""Environment variables by the name of how threads wait. A user who says the defaults gets them."""


def fit(root: Path, name: str, arguments: Sequence[str], spin: dict[str, str]) -> float:
    """Fit an LM by its name with the command line; return the seconds that its log says."""
    environment = {key: value for key, value in os.environ.items() if key not in SAID} | spin
    options = [f"--model.name_or_path={name}", f"--trainer.default_root_dir={root}", *arguments]
    quiet = ["--data.source=demo", "--trainer.logger=false", "--trainer.enable_progress_bar=false"]
    code = "import sys; from lre_lightning.cli import main; sys.exit(main())"
    command = [sys.executable, "-W", "ignore", "-c", code, "fit", *options, *quiet]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    (took,) = re.findall(r"fit ended after (.*?):", (root / "fit.log").read_text())
    words = took.split()
    return sum(float(number) * UNITS[unit] for number, unit in zip(words[::2], words[1::2], strict=True))


def compare(name: str, arguments: Sequence[str]) -> Iterator[list[object]]:
    """Yield a row of the table for each spin; fail if records differ."""
    with tempfile.TemporaryDirectory() as folder:
        expected = None
        for spin, variables in SPINS.items():
            best = {}
            for repeat in range(REPEATS):
                for busy in (False, True):
                    root = Path(folder) / f"{len(variables)}-{repeat}-{busy}"
                    with busy_process() if busy else nullcontext():
                        seconds = fit(root, name, arguments, variables)
                    best[busy] = min(seconds, best.get(busy, seconds))
                    found = read_records([root])
                    assert found == (expected := expected or found), f"the records of {name} differ"
            ratio = best[True] / best[False]
            cell = aimed(f"{ratio:.1f}", bool(variables) or ratio <= MOST, f"at most {MOST}")
            yield [name, spin, f"{best[False]:.1f}", f"{best[True]:.1f}", cell]


def main() -> None:
    """Print the table."""
    rows = [row for name in CASES if name == "demo" or smollm2_file() for row in compare(name, CASES[name])]
    said = ", ".join(f"`{name}={value}`" for name, value in BRIEF.items())
    notes = [
        f"The best of {REPEATS} runs each, in seconds. The demo: {len(RELATIONS)} relations, 2 trials; SmolLM2: one "
        f"relation at two layers. All records are equal. The command line sets {said} unless the user has said how "
        "threads wait."
    ]
    header = ["LM", "threads spin", "alone", "beside one busy process", "times as long"]
    print(table("A busy machine", header, rows, notes))


if __name__ == "__main__":
    main()
