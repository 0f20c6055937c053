"""The subcommands' names, summaries and helps, and what is answered with them alone: torch takes seconds to import."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

import lre_lightning

DESCRIPTION = "Linear relational embeddings of transformer language models."

SUMMARIES = {
    "fit": "Estimate one LRE per relation and trial, and score it.",
    "validate": "Score saved LREs again, at their layer, beta and rank.",
    "predict": "Show what an LM knows about the subjects of texts.",
    "explore": "Look through lenses and edit on a page in the browser.",
    "edit": "Edit the subject of a prompt, and let the LM go on.",
    "evaluate": "Evaluate an LM as the paper does, up to a report.",
    "dataset": "Count what an LM knows of the relations.",
    "distract": "Ask what an LM still knows under distraction.",
    "concepts": "Compare directions of objects with linear probes.",
    "cross": "Score the LRE of each relation on all relations.",
    "lenses": "Compare lenses on the same prompts.",
    "jlens": "Estimate the Jacobian lens of an LM from texts.",
    "push": "Share LREs or relations on the Hugging Face hub.",
    "report": "Write tables and figures of one or several runs.",
    "data": "List relations, and show prompts as an LM sees them.",
    "cache": "Show how much is kept of converted LMs, or remove it.",
}
"""The first line of each subcommand's docstring, in the order of the help."""

HELPS = Path(__file__).parent / "helps"
"""The short help of each subcommand, written by `scripts.helps` from its parser, with one line per paragraph."""


def answer(arguments: Sequence[str]) -> int | None:
    """Answer a call without a subcommand or for its help, and return the exit status; None if the whole parser must."""
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help"):
        _parser().print_help()
        return 0
    if first in SUMMARIES and arguments[1:] in (["-h"], ["--help"]):
        with suppress(OSError):  # `| head`
            print(_wrapped((HELPS / f"{first}.txt").read_text(encoding="utf-8")))
        return 0
    if first == "--version":
        print(f"lre {lre_lightning.__version__}")
        return 0
    if first.startswith("-") or first in SUMMARIES:
        return None
    print(f"error: {no_subcommand(first, SUMMARIES)}\nhelp: lre --help", file=sys.stderr)
    return 2


def no_subcommand(given: str, known: Iterable[str]) -> str:
    """Say that a subcommand is missing or unknown, and name the known ones."""
    names = list(known)
    said = f"there is no subcommand {given}" if given else "a subcommand is missing"
    return f"{said}: choose from {', '.join(names)}{nearest(given, names)}"


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the question whether the nearest of the known names is meant; nothing if none is near."""
    close = get_close_matches(name, list(known), 1, cutoff)
    return f"; did you mean {close[0]}?" if close else ""


def _wrapped(text: str) -> str:
    """Wrap each line of a text at the width of the terminal, as far to the right as it begins."""
    wrap = textwrap.TextWrapper(shutil.get_terminal_size().columns - 2)
    lines = []
    for line in text.splitlines():
        wrap.initial_indent = wrap.subsequent_indent = line[: len(line) - len(line.lstrip())]
        lines.append(wrap.fill(line.lstrip()))
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    """Return a parser with the help of the whole one."""
    parser = argparse.ArgumentParser("lre", "lre [-c CONFIG] SUBCOMMAND ...", DESCRIPTION, add_help=False)
    add = parser.add_argument
    add("-h", "--help", action="store_true", help="Show this help message and exit.")
    add("--version", action="store_true", help="Print version and exit.")
    add("-c", "--config", metavar="CONFIG", help="Path to a configuration file in json or yaml format.")
    add("--print_config", nargs="?", metavar="=flags", help="Print the configuration after all other arguments.")
    add("--print_completion", choices=["bash", "zsh", "tcsh"], help="Print a script that completes in a shell.")
    about = "For more details of each subcommand, add it as an argument followed by --help."
    added = parser.add_subparsers(title="subcommands", description=about, metavar="SUBCOMMAND")
    for name, summary in SUMMARIES.items():
        added.add_parser(name, help=summary)
    return parser
