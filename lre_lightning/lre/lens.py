"""Lenses: the maps of an LM's hidden states that LREs, Jacobian lenses, concepts and the logit lens are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.origin import Origin, check_origin
from lre_lightning.models.language_model import LanguageModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGIT_LENS, JACOBIAN_LENS = "logit lens", "Jacobian lens"


class Lens(ABC):
    """A map of the hidden states of one LM.

    Attributes:
        name: What grids call it: the relation, or the kind of lens.
        title: What messages call it.
        origin: The LM and the data that it was estimated from; None if that is not known.
        layers: The layers that it was estimated at, from the embedding up; none for the logit lens.
        width: The width of the hidden states; 0 for any.
        lm: The LM that it runs; see `bind`. It is not part of the file.
    """

    name: str
    title: str
    origin: Any
    layers: tuple[Layer, ...]
    width: int
    lm: LanguageModel | None

    def reads(self, layer: Layer) -> bool:
        """Return whether it maps hidden states at a layer: most lenses do at any, wherever they were estimated."""
        return True

    @property
    def scored(self) -> tuple[str, ...] | None:
        """The objects that it scores, if it does not read outputs of the last block, which D decodes."""
        return None

    @abstractmethod
    def read(self, states: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Map hidden states at several layers, `(layers, ..., hidden)`, which `layers` names.

        Returns:
            `(layers, ..., hidden)`, outputs of the last block, or `(layers, ..., objects)`, products with directions of
            the objects that are `scored`; in the lens's dtype, on the device of `states`.
        """

    def check_model(self, lm: LanguageModel) -> None:
        """Check that an LM is the one that the lens was estimated from, as far as the lens knows its LM.

        Raises:
            LREError: If the LM computes something else, see `LanguageModel.identity`, or lacks the layer or the width.
        """
        if self.origin is not None:
            check_origin(asdict(self.origin), lm, self.title)
        if self.width not in (0, lm.hidden_size):
            raise LREError(f"the {self.title} has the width {self.width}, and {lm.name!r} {lm.hidden_size}")
        if self.layers:
            lm.check_layers(self.layers)

    def bind(self, lm: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> Self:
        """Return the lens with the LM that it was estimated from, which it runs from then on.

        Args:
            lm: A `LanguageModel`, or a causal LM of transformers, which is left as it is.
            tokenizer: The tokenizer of the latter; loaded by the LM's name if None.

        Raises:
            LREError: If it was estimated from another LM.
        """
        lm = LanguageModel.of(lm, tokenizer)
        self.check_model(lm)
        return replace(self, lm=lm)  # type: ignore[type-var]

    @property
    def bound(self) -> LanguageModel:
        """The LM that the lens runs.

        Raises:
            LREError: If it has none.
        """
        if self.lm is None:
            raise LREError(f"the {self.title} has no LM to run: give it one, .bind(lm)")
        return self.lm

    def _check_finite(self, tensors: Iterable[Tensor]) -> None:
        if not all(torch.isfinite(tensor).all() for tensor in tensors):
            raise LREError(f"the {self.title} holds values that are not finite")


class RelationLens(Lens):
    """A lens of one relation, estimated at one layer.

    Attributes:
        origin: The LM, relation and samples that it was estimated from.
        layer: The layer.
    """

    origin: Origin
    layer: Layer

    @property
    def name(self) -> str:  # type: ignore[override]
        """The relation."""
        return self.origin.relation

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """Its layer."""
        return (self.layer,)


@dataclass(frozen=True)
class LogitLens(Lens):
    """The identity: hidden states are decoded as if they were outputs of the last block.

    Attributes:
        lm: The LM that it runs; see `bind`.
    """

    lm: LanguageModel | None = None
    name: str = field(default=LOGIT_LENS, init=False)
    title: str = field(default=LOGIT_LENS, init=False)
    origin: None = field(default=None, init=False)
    layers: tuple[Layer, ...] = field(default=(), init=False)
    width: int = field(default=0, init=False)

    def read(self, states: Tensor, layers: Sequence[Layer]) -> Tensor:
        """Return the hidden states as they are."""
        return states
