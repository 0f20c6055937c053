"""LREs beside a Jacobian lens: what does knowing the relation add to the LM's mean Jacobian over ordinary text?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import Dense, Operator
from lre_lightning.lre.triplets import leading_singular_triplets
from lre_lightning.records.record import GENERIC, TrialRecord
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions, grid_of
from lre_lightning.scoring.states import TrialStates

LEADING = 16
"""Number of leading singular directions that are compared; half of all if there are fewer than 32."""


def generic_lres(lre: LRE, jacobian: Tensor, subjects: Tensor, objects: Tensor) -> dict[str, LRE]:
    """Return the LREs of `GENERIC`, with J in place of W or beside it.

    By name: J, `(hidden, hidden)`, without a bias; J with b, the mean of o - J s over the examples that the LRE was
    estimated from, `subjects` and `objects` `(examples, hidden)`; and both mixed, (n W + J) / (n + 1) with its b, in
    which J counts as one more example.
    """
    generic, count = Dense(jacobian.to(lre.bias)), len(objects)
    mixed = (1 / (count + 1)) * (count * lre.operator + generic)

    def with_bias(weight: Operator) -> LRE:
        return replace(lre, weight=weight, bias=(objects - weight.apply(subjects)).mean(0).to(lre.bias))

    plain = replace(lre, weight=generic, bias=torch.zeros_like(lre.bias))
    return dict(zip(GENERIC, (plain, with_bias(generic), with_bias(mixed)), strict=True))


def likeness(weight: Tensor, jacobian: Tensor) -> tuple[float, float, float]:
    """Compare two matrices `(hidden, hidden)`.

    Returns:
        Their cosine (of the matrices as vectors), and the mean squared cosine of the principal angles between the
        spaces that their leading directions read from s (right singular vectors) and write to o (left ones).
    """
    jacobian, count = jacobian.to(weight), min(LEADING, len(weight) // 2)
    cosine = torch.nn.functional.cosine_similarity(weight.flatten(), jacobian.flatten(), 0)
    of_weight, of_jacobian = (leading_singular_triplets(matrix, count) for matrix in (weight, jacobian))
    written, read = (float((of_weight[i].T @ of_jacobian[i]).square().sum()) / count for i in (0, 2))
    return float(cosine), read, written


def with_jacobian_lens(
    record: TrialRecord, states: TrialStates, lres: Mapping[Layer, LRE], examples: Tensor, lens: JacobianLens
) -> TrialRecord:
    """Return the record with the counts of `GENERIC` on its grid, at the layers that the lens has.

    `states` and `examples`, the `example_states`, must have s at the layers of `lres`, in their order.
    """
    *subjects, objects = examples
    difference = states.change
    layers = [layer for layer in lres if layer in lens.jacobians]
    said, edited = [], []
    for layer in layers:
        index = record.layers.index(layer)
        generic = list(generic_lres(lres[layer], lens.jacobians[layer], subjects[index], objects).values())
        s, runs = states.subject[:, index, None], states.edited_runs
        said += [faithfulness_predictions(runs.lm, [lre], s[states.known], record.betas) for lre in generic]
        of_edits = s[states.edited]
        edited += [causality_predictions(runs, [lre], of_edits, difference, record.ranks) for lre in generic[1:]]
    faithful = states.count_faithful(torch.cat(said, 1))
    causal = states.count_causal(torch.cat(edited, 1))
    return replace(
        record,
        generic_layers=tuple(layers),
        generic_faithful={name: grid_of(faithful[i :: len(GENERIC)]) for i, name in enumerate(GENERIC)},
        generic_causal={name: grid_of(causal[i :: len(GENERIC) - 1]) for i, name in enumerate(GENERIC[1:])},
        likeness=tuple(likeness(lres[layer].operator.dense(), lens.jacobians[layer]) for layer in layers),
    )
