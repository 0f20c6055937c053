"""Other ways to approximate o by a map of s, and other things to put in place of s (Section 4 of the paper).

Faithfulness: linear regression on the same n examples, translation, identity (the logit lens). Causality: the oracle
s', the row of the unembedding that belongs to o', and o' itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.jacobian import PromptJacobian
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import CAUSALITY_BASELINES, FAITHFULNESS_BASELINES
from lre_lightning.runs.processes import Processes
from lre_lightning.scoring.scores import EncodedTrial

Map = Callable[[Tensor], Tensor]
"""An approximation of F: s `(..., hidden)` in, o `(..., hidden)` out, float32."""


def identity(subject: Tensor) -> Tensor:
    """S itself, so that the decoder head reads it directly: the logit lens."""
    return subject


class Translation:
    """o = s + b with b = E[o - s] over examples.

    Args:
        subjects: s of the examples, `(examples, hidden)`.
        objects: o of the examples, `(examples, hidden)`.

    >>> shift = Translation(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    >>> shift(torch.tensor([0.0, 0.0])).tolist()
    [1.0, 1.0]
    """

    def __init__(self, subjects: Tensor, objects: Tensor) -> None:
        self.bias = (objects - subjects).mean(0)

    def __call__(self, subject: Tensor) -> Tensor:
        """Predict o from s, `(..., hidden)`."""
        return subject + self.bias


class LinearRegression:
    """o = W s + b by least squares on examples.

    Of the many exact fits that there are with fewer examples than dimensions it is the one of the smallest W, as in
    `numpy.linalg.lstsq`; the intercept is not penalized.

    Args:
        subjects: s of the examples, `(examples, hidden)`.
        objects: o of the examples, `(examples, hidden)`.

    >>> doubling = LinearRegression(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0], [5.0], [9.0]]))
    >>> doubling(torch.tensor([10.0])).round(decimals=4).tolist()
    [21.0]
    """

    def __init__(self, subjects: Tensor, objects: Tensor) -> None:
        self._subject, self._object = subjects.mean(0), objects.mean(0)
        # In float64, and relative to the states themselves, so that what rounding leaves of the direction that centring
        # takes away does not count as a small difference between examples.
        wide = subjects.cpu().double()
        rounding = torch.finfo(wide.dtype).eps * max(wide.shape) * torch.linalg.matrix_norm(wide, 2)
        self._inverse = torch.linalg.pinv(wide - wide.mean(0), atol=rounding).to(subjects)
        self._targets = objects - self._object

    def __call__(self, subject: Tensor) -> Tensor:
        """Predict o from s, `(..., hidden)`."""
        predicted: Tensor = (subject - self._subject) @ self._inverse @ self._targets + self._object
        return predicted


@dataclass(frozen=True, eq=False)
class Example:
    """A training example: s by layer and o, `(hidden,)` each, float32."""

    subject: dict[Layer, Tensor]
    object: Tensor

    @classmethod
    def of(cls, prompt: PromptJacobian) -> Example:
        """What baselines need of a prompt whose Jacobians have been computed."""
        wide = torch.promote_types(prompt.object.dtype, torch.float32)
        return cls({layer: s.to(wide) for layer, s in prompt.subject.items()}, prompt.object.to(wide))


def everyones_examples(
    examples: Mapping[int, Example], count: int, layers: Sequence[Layer], lm: LanguageModel, processes: Processes
) -> list[Example]:
    """The examples of all processes, in the order of the draw; a collective call.

    Args:
        examples: Those of this process, by their place in the draw.
        count: How many there are in all.
        layers: Their layers.
        lm: The LM that they are of.
        processes: The processes.
    """
    if processes.count == 1:
        return [examples[place] for place in sorted(examples)]
    wide = torch.promote_types(lm.dtype, torch.float32)
    mine = torch.zeros(len(examples), len(layers) + 1, lm.hidden_size, dtype=wide, device=lm.device)
    for row, example in zip(mine, examples.values(), strict=True):
        row[:-1] = torch.stack([example.subject[layer].to(lm.device) for layer in layers])
        row[-1] = example.object
    everyones = processes.rows(mine, list(examples), count)
    return [Example(dict(zip(layers, rows[:-1], strict=True)), rows[-1]) for rows in everyones]


def fit_baselines(examples: Sequence[Example], layer: Layer) -> dict[str, Map]:
    """Fit each of `FAITHFULNESS_BASELINES` on the examples of an LRE, at least one.

    Args:
        examples: The training examples.
        layer: Where s is read.
    """
    subjects = torch.stack([example.subject[layer] for example in examples])
    objects = torch.stack([example.object for example in examples]).to(subjects.device)
    maps = (LinearRegression(subjects, objects), Translation(subjects, objects), identity)
    return dict(zip(FAITHFULNESS_BASELINES, maps, strict=True))


def faithful_baselines(
    trial: EncodedTrial, subject: Tensor, maps: Mapping[Layer, Mapping[str, Map]]
) -> dict[str, tuple[int, ...]]:
    """Count the baselines' faithful predictions over the known samples of a trial.

    Args:
        trial: The test prompts.
        subject: s of all samples at the layers of `maps`, few-shot or zero-shot, `(samples, layers, hidden)`.
        maps: The fitted baselines by layer and name.

    Returns:
        Faithful predictions by name, `[layer]`.
    """
    known = subject[trial.known]
    counts = torch.zeros(len(FAITHFULNESS_BASELINES), len(maps), dtype=torch.long)
    for index, at in enumerate(maps.values()):
        wide = known[:, index].to(torch.promote_types(known.dtype, torch.float32))
        for row, name in enumerate(FAITHFULNESS_BASELINES):
            counts[row, index] = trial.count_faithful(trial.runs.lm.predict(at[name](wide)))
    (counts,) = trial.shared.total(counts)
    return dict(zip(FAITHFULNESS_BASELINES, map(tuple, counts.tolist()), strict=True))


def causal_baselines(trial: EncodedTrial, layers: Sequence[Layer]) -> dict[str, tuple[int, ...]]:
    """Count how often the LM answers o' after s', the unembedding's row of o', or o' was put in place of s.

    Args:
        trial: The test prompts, with s at `layers`.
        layers: Where to put it.

    Returns:
        Successes by name of `CAUSALITY_BASELINES`, `[layer]`.
    """
    lm, target = trial.runs.lm, trial.target_objects
    row = lm.unembedding(trial.wanted).to(target)
    counts = []
    for index, layer in enumerate(layers):
        inserted = torch.stack([trial.target_subjects(index).to(target), row, target], dim=1)
        counts.append(trial.count_causal(lm.predict(trial.edited_runs.patched(layer, inserted))))
    (total,) = trial.shared.total(torch.stack(counts, dim=1))
    return dict(zip(CAUSALITY_BASELINES, map(tuple, total.tolist()), strict=True))
