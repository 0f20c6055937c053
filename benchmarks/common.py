"""Common parts of the benchmarks: LMs and prompts of real shapes, bare matrix products, a busy process, and tables."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.models.language_model import LanguageModel

T = TypeVar("T")

AIM = "(aim: "
"""What stands after a number that misses its aim."""

Prompt = tuple[Tensor, int]
"""Token ids and the position of the subject's last token."""

DEMO_RELATION = "country capital city"

CONTEXT, SUFFIX = 74, 4
"""Tokens before the subject's last token, and from it on: the averages of the paper's 47 relations (8 shots, GPT-2's
tokenizer; the median suffix has 4 tokens, the longest 11)."""


def gpt2_small(blocks: int = 12) -> LanguageModel:
    """Return an LM of GPT-2 small's shape with random weights: 12 layers of width 768, 50,257 tokens; or of fewer."""
    from transformers import AutoModelForCausalLM, GPT2Config

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(GPT2Config(n_layer=blocks))
    # Far enough from the initial values for hidden states to differ between layers and answers between prompts.
    for parameter in model.parameters():
        parameter.data += 0.02 * torch.randn_like(parameter)
    return LanguageModel(model, name="gpt2-small's shape" if blocks == 12 else "blocks of gpt2-small's shape")


def random_prompts(lm: LanguageModel, count: int, suffix: int = SUFFIX) -> list[Tensor]:
    """Return prompts of random tokens, `(CONTEXT + suffix,)` each."""
    generator = torch.Generator().manual_seed(1)
    return list(torch.randint(lm.vocab_size, (count, CONTEXT + suffix), generator=generator))


def demo_prompts() -> list[Prompt]:
    """Return the training prompts of one trial of a bundled relation."""
    batch = next(iter(RelationDataModule("demo", DEMO_RELATION, "demo").train_dataloader()))
    return [(torch.tensor(prompt.input_ids), prompt.subject_position) for prompt in batch.prompts]


class Products(TorchDispatchMode):
    """Record the matrix products that are computed within the context, to time them alone.

    Weights are kept; of other operands only shape, strides and dtype.
    """

    NAMES = ("mm", "addmm", "bmm", "baddbmm")

    def __init__(self, lm: LanguageModel) -> None:
        super().__init__()
        self._weights = {parameter.untyped_storage().data_ptr() for parameter in lm.parameters()}
        self.calls: list[tuple[Any, list[Any]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the operation, and record it if it is a product."""
        if func.overloadpacket.__name__ in self.NAMES:
            self.calls.append((func.overloadpacket.default, [self._note(one) for one in args]))  # without `out`
        return func(*args, **(kwargs or {}))

    def _note(self, operand: Any) -> Any:
        if not isinstance(operand, Tensor) or operand.untyped_storage().data_ptr() in self._weights:
            return operand
        return tuple(operand.shape), operand.stride(), operand.dtype

    def seconds(self) -> float:
        """Return the time that the products alone take, on random operands."""
        operands: dict[Any, Tensor] = {}

        def operand(note: Any) -> Any:
            if not isinstance(note, tuple):
                return note
            if note not in operands:
                shape, strides, dtype = note
                own = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]  # not expanded
                operands[note] = torch.empty_strided(own, strides, dtype=dtype).normal_().expand(shape)
            return operands[note]

        calls = [(func, [operand(note) for note in notes]) for func, notes in self.calls]
        start = time.perf_counter()
        with torch.no_grad():
            for func, args in calls:
                func(*args)
        return time.perf_counter() - start


def timed(
    work: Callable[..., T], *args: Any, clock: Callable[[], float] = time.perf_counter, **kwargs: Any
) -> tuple[float, T]:
    """Return the seconds that `work` takes with these arguments by a clock, and its result."""
    start = clock()
    result = work(*args, **kwargs)
    return clock() - start, result


@contextmanager
def busy_process() -> Iterator[None]:
    """Keep one core busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def aimed(cell: str, reached: bool, aim: str) -> str:
    """Return a cell of a table; if it misses its aim, in bold and with the aim beside it."""
    return cell if reached else f"**{cell}** {AIM}{aim})"


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> str:
    """Return a Markdown section with a table."""
    lines = [f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join([*lines, "", *(f"{note}\n" for note in notes)])
