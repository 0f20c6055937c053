"""How long OpenMP's threads spin while they wait for one another, which must be said before torch is loaded.

A thread that spins keeps its core from other processes, and its own team waits for those that got none: on a busy
machine a fit takes many times as long (`benchmarks/busy.py`).
"""

from __future__ import annotations

import os

BRIEF = {
    "GOMP_SPINCOUNT": "1000",  # GNU's, about a microsecond: most waits of a small LM; its default is 300,000
    "KMP_BLOCKTIME": "0",  # Intel's and LLVM's, in ms, with fractions in recent versions only; their default is 200
}
SAID = {*BRIEF, "OMP_WAIT_POLICY", "KMP_LIBRARY"}
"""Variables by which users say how threads wait."""


def spin_briefly() -> None:
    """Let threads of this process and of those that it starts spin briefly, unless the user has said how they wait."""
    if not SAID & os.environ.keys():
        os.environ.update(BRIEF)
