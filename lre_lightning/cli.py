"""The entry point of the command line: what must be in place before the imports, which take seconds."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

from lre_lightning.commands.outline import answer
from lre_lightning.openmp import spin_briefly

if TYPE_CHECKING:
    from lightning.pytorch.cli import ArgsType


class Later(ModuleType):
    """A stand-in for `scipy.signal`, which gives way to it when something of it is used.

    torchmetrics imports it, a quarter of all imports, for one look whether it has an old name.
    """

    hamming = None

    def __getattr__(self, name: str) -> Any:
        if name == "__file__":  # which `inspect` asks all modules for
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


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
    sys.modules.setdefault("scipy.signal", Later("scipy.signal"))
    try:
        from lre_lightning.commands.main import main as run
    finally:
        if isinstance(sys.modules.get("scipy.signal"), Later):
            del sys.modules["scipy.signal"]
        if collects:
            gc.enable()
        if heeded:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if first:
        gc.freeze()
    return run(args)
