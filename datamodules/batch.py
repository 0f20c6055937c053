"""Batches of prompts of one relation and trial."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from lre_lightning.prompts import Prompt


@dataclass(frozen=True, eq=False)
class RelationBatch:
    """Prompts of one relation and trial, padded on the right to the longest.

    Under causal attention no real token sees the padding, so position ids and attention need no correction.

    Attributes:
        input_ids: Tokens, start token first, ``(batch, sequence)``, int64.
        attention_mask: 1 for a token, 0 for padding, ``(batch, sequence)``, int64.
        subject_position: Index of the last token of the subject's last mention, ``(batch,)``, int64.
        last_position: Index of the prompt's last token, ``(batch,)``, int64.
        object_token: The right object's first token, ``(batch,)``, int64.
        relation: Index into the datamodule's `relations`, ``(batch,)``, int64; the same in the whole batch.
        trial: Number of the trial, ``(batch,)``, int64; the same in the whole batch.
        sample: Index into the trial's training or test samples, ``(batch,)``, int64.
        weight: 1, or 0 for a copy that only gives every process equally many training prompts, ``(batch,)``, float32.
        prompts: The prompts themselves, in the same order.

    >>> long = Prompt("Paris is in", "Paris", "France", (0, 7, 8, 9), (1, 2), 5)
    >>> short = Prompt("Bonn is", "Bonn", "big", (0, 3, 4), (1, 2), 6)
    >>> batch = collate([long, short], relation=2, trial=0, samples=[4, 5])
    >>> batch.input_ids.tolist(), batch.last_position.tolist(), batch.sample.tolist()
    ([[0, 7, 8, 9], [0, 3, 4, 0]], [3, 2], [4, 5])
    """

    input_ids: Tensor
    attention_mask: Tensor
    subject_position: Tensor
    last_position: Tensor
    object_token: Tensor
    relation: Tensor
    trial: Tensor
    sample: Tensor
    weight: Tensor
    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.prompts)

    def to(self, *args: Any, **kwargs: Any) -> "RelationBatch":
        """Return the batch on another device; the arguments are those of `torch.Tensor.to`."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> "RelationBatch":
        """Return the batch in page-locked memory, from where it is copied to a GPU faster."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> "RelationBatch":
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed: dict[str, Any] = {name: function(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)


def collate(
    prompts: Sequence[Prompt],
    relation: int,
    trial: int,
    samples: Sequence[int],
    pad_id: int = 0,
    weights: Sequence[float] | None = None,
) -> RelationBatch:
    """Put prompts of one relation and trial in a batch.

    Args:
        prompts: At least one.
        relation: The relation's index.
        trial: The trial's number.
        samples: Each prompt's index in the trial's training or test samples.
        pad_id: Token to pad with.
        weights: Each prompt's weight; 1 by default.

    Returns:
        The batch, on the CPU.
    """
    size, length = len(prompts), max(len(prompt.input_ids) for prompt in prompts)
    rows = [prompt.input_ids + (pad_id,) * (length - len(prompt.input_ids)) for prompt in prompts]
    last = torch.tensor([prompt.last_position for prompt in prompts])
    return RelationBatch(
        input_ids=torch.tensor(rows),
        attention_mask=(torch.arange(length) <= last[:, None]).long(),
        subject_position=torch.tensor([prompt.subject_position for prompt in prompts]),
        last_position=last,
        object_token=torch.tensor([prompt.object_token for prompt in prompts]),
        relation=torch.full((size,), relation),
        trial=torch.full((size,), trial),
        sample=torch.tensor(list(samples)),
        weight=torch.tensor([1.0] * size if weights is None else list(weights), dtype=torch.float32),
        prompts=tuple(prompts),
    )
