"""Which derivatives a Jacobian lens is the mean of: the options of its estimator, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.options import option

Targets: TypeAlias = Literal["later", "same"]
"""The outputs that a hidden state is differentiated into: those from its own position on, or at its own alone."""


@dataclass(frozen=True)
class Averaging:
    """Options of the estimator of a Jacobian lens.

    Attributes:
        targets: ``"later"`` for the published estimator, the mean over positions p of the sum over p' >= p of
            do[p']/dh[p]; ``"same"`` for the mean of do[p]/dh[p].
        skip: The number of positions at the beginning of a text that are left out, since LMs use them as attention
            sinks. The last position is left out too.
        positions: The number of positions p of each text with ``"same"``, spread evenly; all if None.
        backward: The rule of the backward pass, ``"exact"`` or ``"frozen"``; see `lre_lightning.models.backward`.
        object_layer: The block whose output o is; the last one if None. Some lenses have the one before it.
    """

    targets: Targets = option("later")
    skip: int = option(16)
    positions: int | None = option()
    backward: Literal["exact", "frozen"] = option("exact")
    object_layer: int | None = option()

    def __post_init__(self) -> None:
        """Check the values."""
        check_choice("targets", self.targets, get_args(Targets))
        check_number("skip", self.skip, 0)
        check_choice("backward", self.backward, ("exact", "frozen"))
        if self.object_layer is not None:
            check_number("object_layer", self.object_layer, 0)
        if self.positions is not None:
            check_number("positions", self.positions, 1)
            if self.targets == "later":
                raise LREError(
                    "the estimator of targets='later' takes all positions: leave positions out, or use 'same'"
                )

    @property
    def shortest(self) -> int:
        """The smallest number of tokens of a text that leaves a position."""
        return self.skip + 2

    def chosen(self, length: int) -> range | list[int]:
        """Return the positions of a text of `length` tokens.

        >>> Averaging("same", positions=3).chosen(128)
        [16, 71, 126]
        """
        every = range(self.skip, length - 1)
        count = len(every) if self.positions is None else min(self.positions, len(every))
        if count == len(every):
            return every
        return [every[round(i * (len(every) - 1) / max(1, count - 1))] for i in range(count)]
