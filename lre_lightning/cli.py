"""The entry point of the command line: what must be in place before the imports, which take seconds."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from lre_lightning.commands.outline import answer
from lre_lightning.openmp import spin_briefly

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType


def main(args: ArgsType = None) -> int:
    """Run the command line and return its exit status: see `lre_lightning.commands.main.main`."""
    if isinstance(args, list | None):
        status = answer(sys.argv[1:] if args is None else args)
        if status is not None:
            return status
    spin_briefly()
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    heeded = default and threading.current_thread() is threading.main_thread()
    if heeded:  # an exception could get lost in an import
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    collects, first = gc.isenabled(), "lre_lightning.commands.main" not in sys.modules
    gc.disable()  # else a quarter of the imports is spent looking for garbage among what stays
    try:
        from lre_lightning.commands.main import main as run
    finally:
        if collects:
            gc.enable()
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if first:
        gc.freeze()
    return run(args)
