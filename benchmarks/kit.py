"""Checks of a machine: each in a process of its own, within a limit of time, and a table of what they find."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.common import table


class Skipped(Exception):
    """Raised by a check that this machine cannot make, with the reason."""


@dataclass(frozen=True)
class Row:
    """A row of the table: what was checked, what was measured, what must hold, and whether it does."""

    check: str
    measured: str
    wanted: str
    result: str

    @classmethod
    def judged(cls, check: str, measured: str, wanted: str, holds: bool) -> Row:
        """Return a row whose result is "ok" or "missed"."""
        return cls(check, measured, wanted, "ok" if holds else "missed")


Check = partial[Iterator[Row]]
"""A function that yields rows, with its arguments."""


def run(check: Check, limit: float) -> list[Row]:
    """Run a check in a forked process for at most `limit` seconds; return its rows.

    Rows that it gives before it raises, crashes or is ended are kept, and one more says what happened.
    """
    context = get_context("fork")  # of a process in which everything is imported, and nothing has touched a GPU
    receiver, sender = context.Pipe(duplex=False)
    name, begun = check.func.__name__, time.monotonic()
    process = context.Process(target=_send, args=(check, sender))
    process.start()
    sender.close()
    rows: list[Row] = []
    try:
        while receiver.poll(max(0.0, begun + limit - time.monotonic())):
            row = receiver.recv()
            if row is None:
                break
            rows.append(row)
        else:
            rows.append(Row(name, f"not finished in {limit:.0f} s", "finished", "missed"))
    except EOFError:
        process.join()
        rows.append(Row(name, f"the process ended with status {process.exitcode}", "finished", "missed"))
    assert process.pid
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # with the processes that it started
    process.kill()
    process.join()
    return rows


def _send(check: Check, sender: Any) -> None:
    """Send the rows of a check, and None after the last."""
    os.setsid()
    name = check.func.__name__
    try:
        for row in check():
            sender.send(row)
    except Skipped as reason:
        sender.send(Row(name, "", "", f"skipped: {reason}"))
    except Exception as raised:
        lines = str(raised).strip().splitlines() or [""]
        sender.send(Row(name, f"{type(raised).__name__}: {lines[0][:200]}", "no error", "missed"))
    sender.send(None)


def run_all(checks: Mapping[Check, float], output: Path) -> int:
    """Run checks one after another, and write the table after each; return 1 if something is missed, else 0.

    Args:
        checks: The checks, and the seconds that each may take.
        output: File of the table, in Markdown.
    """
    begun, rows = time.monotonic(), list[Row]()
    for check, limit in checks.items():
        found = run(check, limit)
        print(*(f"{row.result}: {row.check}: {row.measured} ({row.wanted})" for row in found), sep="\n", flush=True)
        rows += found
        header = ["check", "measured", "must hold", "result"]
        cells = [[cell.replace("|", "\\|") for cell in vars(row).values()] for row in rows]
        note = f"{len(rows)} rows in {time.monotonic() - begun:.0f} seconds."
        output.write_text(table("Checks of a machine", header, cells, [note]), encoding="utf-8")
    missed = sum(row.result == "missed" for row in rows)
    print(f"{len(rows)} rows in {output}, {missed} missed")
    return 1 if missed else 0
