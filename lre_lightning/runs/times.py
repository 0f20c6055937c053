"""Times, as people read them."""

from __future__ import annotations

UNITS = {"d": 86400, "h": 3600, "min": 60, "s": 1}


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> [duration(seconds) for seconds in (0, 0.26, 9.97, 200, 4805, 100_000)]
    ['0 s', '0.3 s', '10 s', '3 min 20 s', '1 h 20 min', '1 d 3 h']
    """
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    counts: list[str] = []
    rest = int(seconds)
    for unit, size in UNITS.items():
        count, rest = divmod(rest, size)
        if count or counts:
            counts.append(f"{count} {unit}")
    return " ".join(counts[:2])
