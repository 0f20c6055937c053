"""Data as a stranger might write them, for tests of everything that reads files.

``LRE_EXAMPLES=n`` tries n new inputs for each property, instead of a few that are the same in every run.
"""

import contextlib
import os
import resource
import sys
from dataclasses import dataclass
from datetime import timedelta

import psutil
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from tests.helpers.toy import WIDTH

EXAMPLES = int(os.environ.get("LRE_EXAMPLES", "0"))
MEMORY = 2**31
"""Bytes that reading a small file may take beyond what the process has."""

STRINGS = [
    *("", " ", "../../x", "/etc/passwd", "a\\b", "..", "CON", "\x00", "\x1b[31mred", "\x9b2J", "\ud83d"),
    "\u202egnp.exe",
    *("e\u0301\u0301", "[red]x[/]", "[/]", "$\\frac", "{}", "{0.__class__}", "{subject.__init__}"),
    *("<script>alert(1)</script>", "=cmd|' /C calc'!A0", "</s>", "<|endoftext|>", "[BOS]", "nan"),
]
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")]


def nested(value, depth, times):
    """A value in lists within lists, each of which holds the next one several times."""
    for _ in range(depth):
        value = [value] * times
    return value


SPECIAL = {
    "long text": "x" * 100_001,
    "long number": 10**4000,
    "long list": [0] * 2000,
    "deep": nested(None, 5000, 1),
    "small, and endless to walk through": nested(None, 60, 2),
}


@dataclass(frozen=True)
class Named:
    """A value of `SPECIAL` by its name: the value may be too large to print."""

    name: str


PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(),
    st.floats(),
    st.sampled_from(STRINGS),
    st.text(max_size=20),
    st.sampled_from([[], {}, [[]], [[], []], {"a": 1}, [None], ["emb"], [1.0]]),
    st.sampled_from([Named("long text"), Named("long number"), Named("long list")]),
)
"""Values that JSON can have."""


def tried(examples):
    """Settings of a property that is tried on so many inputs, each within 30 seconds."""
    return settings(
        max_examples=EXAMPLES or examples,
        derandomize=not EXAMPLES,
        database=None,
        deadline=timedelta(seconds=30),
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def little_memory():
    """Within the context nothing large can be allocated."""
    if sys.platform != "linux":
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def outcome(call, *arguments):
    """The result of a call, or None if it raises the one error that it may raise."""
    with little_memory():
        try:
            return call(*arguments)
        except LREError:
            return None


def nodes(data, path=()):
    """The path of every part of nested data."""
    yield path
    parts = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list | tuple) else ()
    for key, part in parts:
        yield from nodes(part, (*path, key))


def recipes(values):
    """One to three changes to nested data: the place, the kind of change, and a value."""
    kinds = st.sampled_from(["replace", "replace", "replace", "leave out", "double", "add"])
    return st.lists(st.tuples(st.integers(0, 10**6), kinds, values), min_size=1, max_size=3)


def changed(data, recipe, special=SPECIAL):
    """Nested data with the changes of a recipe, without those that an earlier one has made impossible."""
    paths = list(nodes(data))
    for place, kind, value in recipe:
        new = special[value.name] if isinstance(value, Named) else value
        with contextlib.suppress(KeyError, IndexError, TypeError):
            data = changed_at(data, paths[place % len(paths)], kind, new)
    return data


def changed_at(data, path, kind, value):
    """Nested data with one change."""
    if path:
        if not isinstance(data, dict | list | tuple):
            raise TypeError
        found = dict(data) if isinstance(data, dict) else list(data)
        if kind == "leave out" and len(path) == 1:
            del found[path[0]]
        else:
            found[path[0]] = changed_at(found[path[0]], path[1:], kind, value)
        return tuple(found) if isinstance(data, tuple) else found
    if kind == "double" and isinstance(data, list | tuple):
        return data + data
    if kind == "add" and isinstance(data, dict):
        return {**data, "lm.model.lm_head.weight": value}
    return value


def an_lre(identity, trial=0, **origin):
    """An LRE of random numbers, of the toy's LM."""
    where = {"model": "toy", "identity": identity, "relation": "thing colour", "train": (("sky", "blue"),)}
    generator = torch.Generator().manual_seed(trial)
    tensors = torch.randn(WIDTH, WIDTH, generator=generator), torch.randn(WIDTH, generator=generator)
    return LRE(*tensors, 1, Origin(**{**where, "trial": trial, **origin}), 2.0, 4)


def spoiled(data, changes, end):
    """Bytes of which some are others, and which end early or go on."""
    found = bytearray(data)
    for place, byte in changes:
        found[place % len(found)] = byte
    return bytes(found[: end % len(found)] if end >= 0 else found + b"\0" * -end)


SPOILS = st.tuples(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=8),
    st.one_of(st.just(-1), st.integers(-64, 10**6)),
)
"""Arguments of `spoiled`."""


def everything_in(folder):
    """The content of every file below a folder."""
    return {path.relative_to(folder): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
