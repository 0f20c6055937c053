"""The subcommands' names and summaries, and what can be answered with them alone: torch takes seconds to import."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

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
    "jlens": "Estimate the Jacobian lens of an LM from texts.",
    "push": "Share LREs or relations on the Hugging Face hub.",
    "report": "Write tables and figures of one or several runs.",
    "data": "List relations, and show prompts as an LM sees them.",
    "cache": "Show how much is kept of converted LMs, or remove it.",
}
"""The first line of each subcommand's docstring, in the order of the help."""


def answer(arguments: Sequence[str]) -> int | None:
    """Answer a call that begins with no subcommand, and return its exit status; None if the whole parser must."""
    first = arguments[0] if arguments else ""
    if first in ("-h", "--help"):
        print(_parser().format_help(), end="")
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
