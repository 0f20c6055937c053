"""Try a tiny random model of every causal LM type of the installed transformers: ``make models``."""

from __future__ import annotations

import copy
import logging
import re
import signal
import sys
import warnings
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from scripts.models.recipe import tiny_model
from scripts.models.trial import largest_error, rounding_error

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECONDS = 240  # for one model
UNTRIED = {
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "not tried: it drafts tokens from the keys and values of another model, and has none",
    ),
    "gemma3n": "not tried: its image encoder needs the package timm; its text model, gemma3n_text, is tried",
}
WAYS = {
    **{"shared": "shared prefix", "copied": "copied prefix"},
    **{"stepwise": "copied prefix, stepwise", "whole": "whole prompts"},
}
TOLERANCES = {torch.float64: 1e-5, torch.float32: 1e-3}  # some models compute parts in float32 in any dtype

HEAD = """# Every causal LM of transformers

Written by `make models`: a tiny random model of each type that `AutoModelForCausalLM` of transformers {version} knows,
with its hidden states, Jacobians and patched runs compared with plain runs of whole prompts. How prompts with a
common prefix are run is found by trying. *Shared prefix*: all attend to its keys and values. *Copied prefix*: each
continues a copy of what the model keeps of it, such as the state of a recurrence. *Stepwise*: the tokens after it are
run one at a time, because the model is wrong on several. *Whole prompts*: every prompt is run as a whole, because the
model has no cache of tokens, or is wrong with it. Some models compute parts in float32, which bounds the
error. The last column is of the same weights in bfloat16: whether the type is refused there, too, else the relative
error of Jacobians beside those of float32, and how prompts are run if that is another way: there, errors of a cache or
the whole effect of a prefix may be smaller than rounding. Errors above 0.1 are of mixtures whose experts change by
rounding, and of norms that amplify it.

{counts}

| type | outcome | error | bfloat16 |
|---|---|---|---|
"""


def attempt(kind: str) -> tuple[str, str, str]:
    """Return the outcome for a type, the error if it works, and what comes out in bfloat16."""
    if kind in UNTRIED:
        return UNTRIED[kind], "", ""
    for dtype, tolerance in TOLERANCES.items():
        try:
            lm = LanguageModel(tiny_model(kind, dtype), name=kind)
            error = largest_error(lm)
        except LREError as refused:
            outcome = _refused(refused)
            continue
        except Exception as raised:
            return f"not tried: {type(raised).__name__}: {' '.join(str(raised).split())[:120]}", "", ""
        if error < tolerance:
            return f"works, {WAYS[lm.way]}", f"{error:.0e}", in_16_bits(kind)
        outcome = f"WRONG by {error:.0e}"
    return outcome, "", in_16_bits(kind, outcome)


def in_16_bits(kind: str, refused: str = "") -> str:
    """Return what comes out in bfloat16 for a type that works in float32, or is refused so."""
    model = tiny_model(kind, torch.bfloat16)
    try:
        lm = LanguageModel(model, name=kind)
    except LREError as error:
        cannot_run = "a few tokens cannot be run" in str(error)  # by transformers' own code
        return "refused" if refused else _refused(error) if cannot_run else f"WRONG: {_refused(error)}"
    if refused:
        return "WRONG: not refused"
    wide = LanguageModel(copy.deepcopy(model).float(), name=kind)
    distance = f"{rounding_error(lm, wide):.0e}"
    return distance if lm.way == wide.way else f"{WAYS[lm.way]}, {distance}"


def _refused(error: LREError) -> str:
    return f"refused: {str(error).partition('is not supported: ')[2].partition('. Supported are')[0] or error}"


def stop(*_: object) -> None:
    """End a model that takes too long."""
    raise TimeoutError(f"more than {SECONDS} seconds")


def main(kinds: list[str]) -> int:
    """Try the given types and print the outcomes, or try all and write the page."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # enough for models of this size
    signal.signal(signal.SIGALRM, stop)
    found = {}
    for kind in kinds or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        signal.alarm(SECONDS)
        found[kind] = attempt(kind)
        signal.alarm(0)
        print(kind, *found[kind], sep="  ", flush=True)
    if not kinds:
        outcomes = [re.split(":| by", outcome)[0] for outcome, *_ in found.values()]
        counts = "; ".join(f"{name}: {outcomes.count(name)}" for name in sorted(set(outcomes), reverse=True))
        rows = [f"| {' | '.join(cell.replace('|', ' ') for cell in (kind, *found[kind]))} |" for kind in sorted(found)]
        head = HEAD.format(version=transformers.__version__, counts=f"Types: {len(found)}; {counts}.")
        PAGE.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    return int(any("WRONG" in cell for cells in found.values() for cell in cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
