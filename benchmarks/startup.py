"""Start-up: `python cli.py --help` and `python cli.py fit --help` against a bare `import lightning`.

Run with `python -m benchmarks.startup`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.common import table, timed

RUNS = 2
COMMANDS = {
    "import lightning": ["-c", "import lightning"],
    "import lre_lightning": ["-c", "import lre_lightning"],
    "from lre_lightning.datamodules import RelationDataModule": [
        "-c",
        "from lre_lightning.datamodules import RelationDataModule",
    ],
    "cli.py --help": [str(Path(__file__).parents[1] / "cli.py"), "--help"],
    "cli.py fit --help": [str(Path(__file__).parents[1] / "cli.py"), "fit", "--help"],
}


def seconds(arguments: list[str]) -> float:
    """Return the shortest time of several runs, each in its own process."""
    command = [sys.executable, *arguments]
    return min(timed(subprocess.run, command, check=True, capture_output=True)[0] for _ in range(RUNS))


def main() -> None:
    """Print the table."""
    times = {name: seconds(arguments) for name, arguments in COMMANDS.items()}
    bare = times["import lightning"]
    rows = [[f"`{name}`", f"{time:.2f}", f"{time / bare:.2f}"] for name, time in times.items()]
    print(table("Start-up", ["command", "seconds", "import lightning = 1"], rows))


if __name__ == "__main__":
    main()
