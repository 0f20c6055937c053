"""The split of a trial's prompts into batches and processes."""

import math
from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, cast, get_args

from torch.utils.data import DataLoader, Dataset, DistributedSampler

from lre_lightning.errors import check_choice, check_number
from lre_lightning.options import option
from lre_lightning.prompts.batch import Side
from lre_lightning.prompts.prompt import fill

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from lre_lightning.prompts.trials import Trial

Batch = TypeVar("Batch")

Epoch: TypeAlias = Literal["trial", "all"]
"""Trials that an epoch of a fit serves: one, or all of them."""


@dataclass(frozen=True)
class Loader:
    """Options of the tokenizer and of batches.

    Attributes:
        batch_size: The number of prompts in a batch, in training and in validation.
        padding_side: ``"right"``, which `LREModule` needs, or ``"left"``.
        epoch: What an epoch of a fit serves: the next ``"trial"``, or ``"all"``.
        pin_memory: Whether to put batches in page-locked memory.
        texts: Free texts to predict from: the attribute lens of each relation is shown for them.
        tokenizer_revision: The tokenizer's branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code from the tokenizer's repository.
        gguf_file: Name of the GGUF file that holds the tokenizer, in a folder or repository.

    >>> Loader(batch_size=16).padding_side
    'right'
    """

    batch_size: int = option(32, harmless=True)
    padding_side: Side = option("right")
    epoch: Epoch = option("trial")
    pin_memory: bool = option(False)
    texts: list[str] = option(list, harmless=True)
    tokenizer_revision: str | None = option(None, linked="model.loading.revision")
    trust_remote_code: bool = option(False, harmless=True, explicit=True, linked="model.loading.trust_remote_code")
    gguf_file: str | None = option(None, linked="model.loading.gguf_file")

    def __post_init__(self) -> None:
        """Check the values."""
        check_number("batch_size", self.batch_size, 1)
        check_choice("padding_side", self.padding_side, get_args(Side))
        check_choice("epoch", self.epoch, get_args(Epoch))


@dataclass(frozen=True)
class Portion:
    """The prompts of one trial that make one batch.

    Attributes:
        index: The index of the trial in the schedule.
        samples: Indices into the trial's training or test prompts.
        weights: 1 for each prompt, 0 for a copy that only fills up.
    """

    index: int
    samples: tuple[int, ...]
    weights: tuple[float, ...]


def split_train(
    index: int, n: int, batch_size: int, process: int = 0, count: int = 1, together: int = 1
) -> list[Portion]:
    """Split n training prompts so that every process gets equally many batches.

    The processes take turns, and take `together` consecutive prompts, or as many as a batch may hold, whatever the
    number of processes. A process that would have fewer gets a copy of weight 0: with a batch less, it would leave the
    others waiting in the collective operation of each training step.

    >>> split_train(0, n=5, batch_size=2, process=1, count=2)[1]
    Portion(index=0, samples=(0,), weights=(0.0,))
    """
    together = min(together, batch_size)
    groups = [range(first, min(first + together, n)) for first in range(0, n, together)]
    turns = [[(i, 1.0) for i in group] for group in groups[process::count]]
    if len(turns) * count < len(groups):
        turns.append([(0, 0.0)])
    size = batch_size // together
    batches = [[pair for group in turns[i : i + size] for pair in group] for i in range(0, len(turns), size)]
    return [Portion(index, *zip(*batch, strict=True)) for batch in batches]


def shapes_of(trial: "Trial", tokenizer: "PreTrainedTokenizerBase") -> list[tuple[int, int]]:
    """Return which template each test prompt of a trial has, and how many tokens without its context."""
    templates = trial.asked_with
    texts = [fill(templates[i % len(templates)], sample.subject) for i, sample in enumerate(trial.test_asked)]
    token_ids = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
    return [(i % len(templates), len(ids)) for i, ids in enumerate(token_ids)]


def split_test(
    shapes: Mapping[int, Sequence[Any]], batch_size: int, process: int = 0, count: int = 1, together: int = 1
) -> list[Portion]:
    """Split the test prompts of several trials, each prompt to exactly one process, never two trials in one batch.

    Prompts of one shape run together, and each shape costs as much as some more prompts. So those of one shape go to
    one process, the most first, unless that would have more to do than the others.

    A process that would get no prompt gets a copy of weight 0: Lightning leaves validation out where a process has no
    batch, and the others would wait for it at the end of validation.

    Args:
        shapes: The shape of each test prompt, by the index of the trial; anything that can be a key.
        batch_size: The number of prompts in a batch.
        process: The index of this process.
        count: The number of processes.
        together: The number of prompts that keep the device busy.
    """
    portions = []
    for index, trial_shapes in shapes.items():
        groups: dict[Any, list[int]] = {}
        for i, shape in enumerate(trial_shapes):
            groups.setdefault(shape, []).append(i)
        waiting = sorted(groups.values(), key=len)
        start_up = 2 * (together - 1)  # in prompts, measured on the bundled LM: a shape is run unchanged and edited
        fair = math.ceil((len(trial_shapes) + start_up * len(groups)) / count)
        loads, mine = [0] * count, list[int]()
        while waiting:
            group, least = waiting.pop(), loads.index(min(loads))
            room = fair - loads[least] - start_up
            if 0 < room < len(group) - start_up:
                insort(waiting, group[room:], key=len)
                group = group[:room]
            loads[least] += len(group) + start_up
            mine += group if least == process else []
        mine.sort()
        for start in range(0, len(mine), batch_size):
            chosen = tuple(mine[start : start + batch_size])
            portions.append(Portion(index, chosen, (1.0,) * len(chosen)))
    return portions or [Portion(index, (0,), (0.0,)) for index, trial_shapes in shapes.items() if trial_shapes][:1]


def load(
    portions: Sequence[Any], make: Callable[[Any], Batch], seed: int | None = None, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Return a loader that makes the batches of this process on demand, in another order each epoch if there is a seed.

    Its sampler is a `DistributedSampler` over one process. Lightning tells it the epoch and leaves it alone otherwise;
    Lightning's own sampler would split the batches once more, shuffle them and repeat some.

    >>> loader = load(split_train(index=0, n=5, batch_size=2), lambda portion: portion.samples)
    >>> list(loader)
    [(0, 1), (2, 3), (4,)]
    """
    data = cast(Dataset[Batch], portions)
    sampler = DistributedSampler[Batch](data, num_replicas=1, rank=0, shuffle=seed is not None, seed=seed or 0)
    return DataLoader(data, batch_size=None, sampler=sampler, collate_fn=make, pin_memory=pin_memory)
