"""Hidden states of the prompts whose objects the LM knows: s, and o at any layer, over the object's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from lre_lightning.concepts.record import ConceptOptions, ObjectTokens
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt

BATCH = 32
"""The largest number of prompts that are run at a time."""


@dataclass(frozen=True, eq=False)
class KnownStates:
    """Prompts whose object the LM predicts, and their hidden states, float32 or float64, on the LM's device.

    Attributes:
        prompts: The prompts.
        subject: s, `(prompts, hidden)`.
        object: o, `(prompts, hidden)`.
    """

    prompts: tuple[Prompt, ...]
    subject: Tensor
    object: Tensor

    def __len__(self) -> int:
        """Number of prompts."""
        return len(self.prompts)

    @cached_property
    def objects(self) -> tuple[str, ...]:
        """The distinct objects, in alphabetical order."""
        return tuple(sorted({prompt.object for prompt in self.prompts}))

    def first_tokens(self) -> list[int]:
        """Return the first tokens of `objects`."""
        token_of = {prompt.object: prompt.object_token for prompt in self.prompts}
        return [token_of[name] for name in self.objects]

    def labels(self, objects: Sequence[str]) -> Tensor:
        """Return the index of each prompt's object among `objects`, int64 `(prompts,)`."""
        return torch.tensor([objects.index(prompt.object) for prompt in self.prompts], device=self.subject.device)

    def object_means(self) -> Tensor:
        """Return the mean of o over the prompts of each of `objects`, `(objects, hidden)`."""
        labels = self.labels(self.objects)
        return torch.stack([self.object[labels == index].mean(0) for index in range(len(self.objects))])

    def rows(self, rows: Sequence[int]) -> KnownStates:
        """Return some of the prompts."""
        chosen = torch.tensor(rows, dtype=torch.long, device=self.subject.device)
        return KnownStates(tuple(self.prompts[row] for row in rows), self.subject[chosen], self.object[chosen])


def with_object(prompt: Prompt, object_tokens: ObjectTokens) -> tuple[Tensor, int]:
    """Return the tokens of a prompt up to the last one that predicts the object, and the number of those that do.

    Each token predicts the next: the prompt's last one the object's first, and the object's tokens but the last the
    others. With ``"first"`` only the prompt's last one counts.
    """
    tokens = prompt.object_tokens if object_tokens == "mean" else prompt.object_tokens[:1]
    return torch.tensor(prompt.input_ids + tokens[:-1]), len(tokens)


@torch.no_grad()
def known_states(lm: LanguageModel, prompts: Sequence[Prompt], options: ConceptOptions) -> KnownStates:
    """Run prompts and keep those whose object's first token the LM predicts."""
    layer, object_layer, _ = options.places(lm)
    last, wide = lm.num_layers - 1, torch.promote_types(lm.dtype, torch.float32)

    def read(size: int) -> list[Tensor]:
        rows = []
        for start in range(0, len(prompts), size):
            batch = prompts[start : start + size]
            asked = [with_object(prompt, options.object_tokens) for prompt in batch]
            ids = nn.utils.rnn.pad_sequence([ids for ids, _ in asked], batch_first=True).to(lm.device)
            lm.check_ids(ids)
            hidden = lm.hidden_states(ids, [layer, object_layer, last])
            for row, (prompt, (_, count)) in enumerate(zip(batch, asked, strict=True)):
                end = prompt.last_position
                states = [
                    hidden[layer][row, prompt.subject_position],
                    hidden[object_layer][row, end : end + count].to(wide).mean(0),
                    hidden[last][row, end],
                ]
                rows.append(torch.stack([state.to(lm.device, wide) for state in states]))
        return rows

    states = torch.stack(lm.chunk_sizes.run("prompts of concepts", min(BATCH, len(prompts)), read))
    answers = lm.predict(states[:, 2]).tolist()
    known = [row for row, prompt in enumerate(prompts) if answers[row] == prompt.object_token]
    return KnownStates(tuple(prompts), states[:, 0], states[:, 1]).rows(known)
