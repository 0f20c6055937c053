"""Start-up: `python cli.py --help`, a help and a sentence read by SmolLM2, against a bare `import lightning`.

Run with `python -m benchmarks.startup`. The help of `fit` is asserted to be that of its parser, and what is said of the
sentence what is said after imports that are searched for garbage, and that take scipy.signal along.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.common import table, timed

RUNS = 2
PREDICT = ["predict", "--model.name_or_path=smollm2", "--lres=smollm2", "Rosa took a train from Peru to Brazil"]
COMMANDS = {
    "import lightning": ["-c", "import lightning"],
    "import lre_lightning": ["-c", "import lre_lightning"],
    "from lre_lightning.datamodules import RelationDataModule": [
        "-c",
        "from lre_lightning.datamodules import RelationDataModule",
    ],
    "cli.py --help": [str(Path(__file__).parents[1] / "cli.py"), "--help"],
    "cli.py fit --help": [str(Path(__file__).parents[1] / "cli.py"), "fit", "--help"],
    "the same from its parser": ["-c", "from lre_lightning.commands.main import main; main(['fit', '--help'])"],
    "cli.py predict, one sentence": [str(Path(__file__).parents[1] / "cli.py"), *PREDICT],
    "the same, imports as they are": ["-c", f"from lre_lightning.commands.main import main; main({PREDICT})"],
}


def seconds(arguments: list[str]) -> tuple[float, str]:
    """Return the shortest time of several runs, each in its own process, and what is printed without white space."""
    command = [sys.executable, *arguments]
    runs = [timed(subprocess.run, command, check=True, capture_output=True, text=True) for _ in range(RUNS)]
    return min(time for time, _ in runs), "".join(runs[0][1].stdout.split())


def main() -> None:
    """Print the table."""
    found = {name: seconds(arguments) for name, arguments in COMMANDS.items()}
    assert found["cli.py fit --help"][1] == found["the same from its parser"][1]
    assert found["cli.py predict, one sentence"][1] == found["the same, imports as they are"][1]
    times = {name: time for name, (time, _) in found.items()}
    bare = times["import lightning"]
    rows = [[f"`{name}`", f"{time:.2f}", f"{time / bare:.2f}"] for name, time in times.items()]
    print(table("Start-up", ["command", "seconds", "import lightning = 1"], rows))


if __name__ == "__main__":
    main()
