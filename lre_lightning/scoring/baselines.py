"""Baselines of the paper's Section 4: other approximations of F, and other states to insert in place of s.

A new baseline is a function and an entry of `FAITHFULNESS` or `CAUSALITY` under its name, which
`lre_lightning.records.record` declares for the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.batch import prompts_to_run
from lre_lightning.prompts.prompt import Prompt
from lre_lightning.records.record import TrialRecord
from lre_lightning.scoring.scores import faithfulness_predictions, grid_of
from lre_lightning.scoring.states import TrialStates

Map = Callable[[Tensor], Tensor]
"""An approximation of F: maps s to o, `(..., hidden)`, float32 or wider."""


def linear_regression(subjects: Tensor, objects: Tensor) -> Map:
    """Fit o = W s + b by least squares.

    With fewer examples than dimensions many fits are exact; the one of smallest W is taken, as in
    `numpy.linalg.lstsq`. The intercept is not penalized. Subjects and objects are s and o, `(examples, hidden)`.

    >>> fitted = linear_regression(torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[3.0], [5.0], [9.0]]))
    >>> fitted(torch.tensor([10.0])).round(decimals=4).tolist()
    [21.0]
    """
    subject, object_ = subjects.mean(0), objects.mean(0)
    # Centring leaves rounding errors in the direction that it removes. A cutoff relative to the uncentred states, in
    # float64, keeps them from counting as a small difference between examples.
    wide = subjects.cpu().double()
    rounding = torch.finfo(wide.dtype).eps * max(wide.shape) * torch.linalg.matrix_norm(wide, 2)
    inverse = torch.linalg.pinv(wide - wide.mean(0), atol=rounding).to(subjects)
    targets = objects - object_
    return lambda new: (new - subject) @ inverse @ targets + object_


def translation(subjects: Tensor, objects: Tensor) -> Map:
    """Fit o = s + b with b = E[o - s]; arguments as for `linear_regression`.

    >>> fitted = translation(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.tensor([[1.0, 1.0], [5.0, 1.0]]))
    >>> fitted(torch.tensor([0.0, 0.0])).tolist()
    [1.0, 1.0]
    """
    bias = (objects - subjects).mean(0)
    return lambda new: new + bias


def identity(subjects: Tensor, objects: Tensor) -> Map:
    """Return o = s, which the decoder head then reads directly: the logit lens."""
    return lambda new: new


FAITHFULNESS: Mapping[str, Callable[[Tensor, Tensor], Map]] = {
    "linear regression": linear_regression,
    "translation": translation,
    "identity": identity,
}
"""Fits of o by a map of s, on the examples that the LRE is estimated from."""

CAUSALITY: Mapping[str, Callable[[TrialStates, int], Tensor]] = {
    "oracle": TrialStates.target_subjects,
    "unembedding": lambda states, index: states.runs.lm.unembedding(states.wanted),
    "object": lambda states, index: states.target_objects,
}
"""States to insert in place of s at the layer of an index, `(edits, hidden)`: s', the unembedding's row of o', o'."""


def example_states(lm: LanguageModel, prompts: Sequence[Prompt], layers: Sequence[Layer]) -> Tensor:
    """Run the training prompts of a trial.

    Returns:
        s at each layer and, last, o, `(layers + 1, prompts, hidden)`, in float32 or the LM's dtype if wider.
    """
    subject, output = prompts_to_run(lm, prompts).hidden_states(layers)
    return torch.stack([*subject.unbind(1), output]).to(torch.promote_types(lm.dtype, torch.float32))


def with_baselines(
    record: TrialRecord, states: TrialStates, lres: Mapping[Layer, LRE], examples: Tensor
) -> TrialRecord:
    """Return the record with the counts of all baselines, and of the LREs on zero-shot prompts.

    `states` must have s few-shot and zero-shot at the layers of `lres`, and `examples` are the `example_states` at the
    same layers.
    """
    assert states.zero_shot is not None
    lm, layers = states.runs.lm, list(lres)
    *subjects, objects = examples
    maps = {name: [fit(subject, objects) for subject in subjects] for name, fit in FAITHFULNESS.items()}
    answers = faithfulness_predictions(lm, list(lres.values()), states.zero_shot[states.known], record.betas)
    faithful_baselines = _faithful(states, states.subject, maps)
    faithful_zero_shot = grid_of(states.count_faithful(answers))
    zero_shot_baselines = _faithful(states, states.zero_shot, maps)
    edited = []
    for index, layer in enumerate(layers):
        inserted = [insert(states, index).to(states.target_objects) for insert in CAUSALITY.values()]
        edited.append(lm.predict(states.edited_runs.patched(layer, torch.stack(inserted, 1))))
    causal = states.count_causal(torch.stack(edited, 2))
    return replace(
        record,
        faithful_baselines=faithful_baselines,
        faithful_zero_shot=faithful_zero_shot,
        zero_shot_baselines=zero_shot_baselines,
        causal_baselines=dict(zip(CAUSALITY, grid_of(causal), strict=True)),
    )


def _faithful(states: TrialStates, subject: Tensor, maps: Mapping[str, Sequence[Map]]) -> dict[str, tuple[int, ...]]:
    """Count each map's faithful predictions at each layer; `subject` is s of all prompts, few-shot or zero-shot."""
    lm, known = states.runs.lm, subject[states.known].unbind(1)
    wide = [s.to(torch.promote_types(s.dtype, torch.float32)) for s in known]
    answers = [
        torch.stack([lm.predict(predict(s)) for predict, s in zip(by_layer, wide, strict=True)], 1)
        for by_layer in maps.values()
    ]
    counts = states.count_faithful(torch.stack(answers, 1))
    return dict(zip(maps, grid_of(counts), strict=True))
