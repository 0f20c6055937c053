"""Write the helps of the subcommands, which `lre NAME --help` shows without importing torch.

Run with `python -m scripts.helps` after a change of options; a test says when it is needed.
"""

from __future__ import annotations

import io
import os
from contextlib import redirect_stdout, suppress
from unittest.mock import patch

from lre_lightning.commands.main import COMMANDS, main
from lre_lightning.commands.outline import HELPS


def rendered(name: str) -> str:
    """Return the help of a subcommand from its parser, with one line per paragraph."""
    with redirect_stdout(io.StringIO()) as said, patch.dict(os.environ, COLUMNS="100000"), suppress(SystemExit):
        main([name, "--help"])
    return said.getvalue()


if __name__ == "__main__":
    for name in COMMANDS:
        (HELPS / f"{name}.txt").write_text(rendered(name), encoding="utf-8")
