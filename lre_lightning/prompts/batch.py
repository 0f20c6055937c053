"""Batches of prompts of one relation and trial."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.prompts.prompt import Prompt

Side: TypeAlias = Literal["right", "left"]
"""The side of the padding."""


@dataclass(frozen=True, eq=False)
class RelationBatch:
    """Prompts of one relation and trial, padded to the longest.

    With padding on the right and causal attention, no token sees the padding, so that position ids and attention need
    no correction. With padding on the left, give the LM `attention_mask` and `position_ids`.

    Attributes:
        input_ids: Tokens, start token first, ``(batch, sequence)``, int64.
        attention_mask: 1 for a token, 0 for padding, ``(batch, sequence)``, int64.
        subject_position: The index of the last token of the subject's last mention, ``(batch,)``, int64.
        last_position: The index of the prompt's last token, ``(batch,)``, int64.
        object_token: The first token of the correct object, ``(batch,)``, int64.
        relation: The index into the datamodule's `relations`, ``(batch,)``, int64; the same in the whole batch.
        trial: The number of the trial, ``(batch,)``, int64; the same in the whole batch.
        sample: The index into `Trial.train_asked` or `Trial.test_asked`, which with one template are the trial's
            training and test samples, ``(batch,)``, int64.
        weight: 1, or 0 for a copy that only gives every process equally many prompts, ``(batch,)``, float32.
        object: The correct object's index in the relation's `objects`, ``(batch,)``, int64; -1 if unknown.
        prompts: The prompts themselves, in the same order.

    >>> long = Prompt("Paris is in", "Paris", "France", (0, 7, 8, 9), (1, 2), (5,))
    >>> short = Prompt("Bonn is", "Bonn", "big", (0, 3, 4), (1, 2), (6,))
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
    object: Tensor
    prompts: tuple[Prompt, ...]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def position_ids(self) -> Tensor:
        """The index of each token in its prompt, and 0 for padding, ``(batch, sequence)``, int64."""
        return (self.attention_mask.cumsum(1) - 1).clamp(min=0) * self.attention_mask

    def to(self, *args: Any, **kwargs: Any) -> "RelationBatch":
        """Return the batch on another device; the arguments are those of `torch.Tensor.to`."""
        return self._map(lambda tensor: tensor.to(*args, **kwargs))

    def pin_memory(self) -> "RelationBatch":
        """Return the batch in page-locked memory, from which it is copied to a GPU faster."""
        return self._map(Tensor.pin_memory)

    def padded(self, side: Side) -> "RelationBatch":
        """Return the batch with its padding on one side."""
        lengths = self.attention_mask.sum(1)
        target = self.input_ids.shape[1] - lengths if side == "left" else torch.zeros_like(lengths)
        shift = target - (self.last_position - lengths + 1)  # by how many places each prompt moves to the right
        if not shift.any():
            return self
        places = torch.arange(self.input_ids.shape[1], device=shift.device) - shift[:, None]
        places = places % self.input_ids.shape[1]
        return replace(
            self,
            input_ids=self.input_ids.gather(1, places),
            attention_mask=self.attention_mask.gather(1, places),
            subject_position=self.subject_position + shift,
            last_position=self.last_position + shift,
        )

    def own(self) -> "RelationBatch":
        """Return the batch without the copies in it (weight 0)."""
        kept = self.weight > 0
        prompts = tuple(self.prompts[row] for row in kept.nonzero().flatten().tolist())
        return replace(self._map(lambda tensor: tensor[kept]), prompts=prompts)

    def rows(self) -> list[dict[str, Any]]:
        """Return the batch as rows of plain data without padding, for `datasets.Dataset.from_list`.

        A row has the columns ``text``, ``subject``, ``object``, ``input_ids``, ``subject_chars`` and ``subject_span``
        (first and one past the last), ``object_tokens``, ``relation``, ``trial``, ``sample`` and ``weight``.
        """
        numbers = ("relation", "trial", "sample", "weight")
        return [
            {name: list(value) if isinstance(value, tuple) else value for name, value in vars(prompt).items()}
            | {name: getattr(self, name)[i].item() for name in numbers}
            for i, prompt in enumerate(self.prompts)
        ]

    def _map(self, function: Callable[[Tensor], Tensor]) -> "RelationBatch":
        changed: dict[str, Any] = {name: function(v) for name, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **changed)


def collate(
    prompts: Sequence[Prompt],
    relation: int,
    trial: int,
    samples: Sequence[int],
    pad_id: int = 0,
    weights: Sequence[float] | None = None,
    objects: Sequence[str] = (),
    padding_side: Side = "right",
) -> RelationBatch:
    """Put prompts, at least one, of one relation and trial in a batch on the CPU.

    The other arguments are as in `RelationBatch`; `objects` are the distinct objects of the relation, and `pad_id` is
    the token to pad with.
    """
    size, length = len(prompts), max(len(prompt.input_ids) for prompt in prompts)
    rows = [prompt.input_ids + (pad_id,) * (length - len(prompt.input_ids)) for prompt in prompts]
    last = torch.tensor([prompt.last_position for prompt in prompts])
    places = {name: place for place, name in enumerate(objects)}
    batch = RelationBatch(
        input_ids=torch.tensor(rows),
        attention_mask=(torch.arange(length) <= last[:, None]).long(),
        subject_position=torch.tensor([prompt.subject_position for prompt in prompts]),
        last_position=last,
        object_token=torch.tensor([prompt.object_token for prompt in prompts]),
        relation=torch.full((size,), relation),
        trial=torch.full((size,), trial),
        sample=torch.tensor(list(samples)),
        weight=torch.tensor([1.0] * size if weights is None else list(weights), dtype=torch.float32),
        object=torch.tensor([places.get(prompt.object, -1) for prompt in prompts]),
        prompts=tuple(prompts),
    )
    return batch.padded(padding_side)


def prompts_to_run(lm: LanguageModel, prompts: Sequence[Prompt]) -> PromptBatch:
    """Return prompts as a batch that is ready to be run."""
    batch = collate(prompts, 0, 0, range(len(prompts)))
    return PromptBatch(lm, batch.input_ids, batch.subject_position, batch.last_position)
