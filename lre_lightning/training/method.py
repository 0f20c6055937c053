"""The form that W has in a trial of a fit: dense or matrix-free, by the products with Jacobians that both take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lre_lightning.grid import Layer, place_of
from lre_lightning.lre.triplets import PROBES

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.scoring.measure import Measure

Method = Literal["auto", "dense", "matrix_free"]

PUSHED, PULLED = 2.0, 1.6
"""Time of a product in forward and reverse mode beside that of one of a sweep, whose graph serves many products."""

DIRECTIONS = 2.5
"""Directions of a Krylov space for each singular triplet, where singular values fall as those of relations do."""

NARROWEST = 1024
"""Width below which the time of products is not what LMs take."""


@dataclass(frozen=True)
class Products:
    """How many products with the Jacobian of each training prompt a trial takes, in units of those of a sweep.

    A product at a layer runs through the blocks above it alone: those at the lowest layer count 1.

    Attributes:
        dense: By a sweep, which gives W at all layers.
        matrix_free: Without W.
    """

    dense: float
    matrix_free: float

    @classmethod
    def of(
        cls, lm: LanguageModel, trial: Trial, layers: Sequence[Layer], rank: int, measures: Sequence[Measure]
    ) -> Products:
        """Count the products of a trial with edits up to `rank`.

        They depend on nothing that changes between processes or runs: W is applied to s of all test samples, whether or
        not the LM knows them, and once more for some `measures`.
        """
        width, depths = lm.hidden_size, [lm.num_layers - 1 - place_of(layer) for layer in layers]
        applied = 1 + sum(measure.applied for measure in measures)
        directions = DIRECTIONS * rank + PROBES
        triplets = (PUSHED + PULLED) * directions + 2 * PROBES * PULLED
        if directions > width // 2:
            triplets = width * PULLED
        at_a_layer = PUSHED * (applied * len(trial.test_asked) + 1) + triplets
        return cls(width, at_a_layer * sum(depths) / max(1, *depths))


def choose_method(
    lm: LanguageModel, trial: Trial, layers: Sequence[Layer], rank: int, measures: Sequence[Measure], asked: Method
) -> tuple[Method, str]:
    """Choose the method of a trial, and say why if there was a choice; other arguments are those of `Products.of`."""
    if asked != "auto":
        return asked, ""
    if any(measure.elements for measure in measures) or lm.hidden_size < NARROWEST:
        return "dense", ""
    products = Products.of(lm, trial, layers, rank, measures)
    why = (
        f"of each Jacobian about {products.matrix_free:,.0f} products would do, and all elements take "
        f"{products.dense:,.0f} ({len(layers)} layers, {len(trial.test_asked)} test prompts, ranks up to {rank})"
    )
    return ("matrix_free" if products.matrix_free < products.dense else "dense"), why
