"""Moves along a lens: the subject's hidden state is changed in the lens's coordinates, and nowhere else.

Coordinates of h are its products with a few directions: singular vectors of an LRE, concepts of objects, or what a
Jacobian lens reads for tokens. A move takes h to the nearest state with other coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.editing import PromptEdit
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import Prompt

Change = Callable[[Tensor], Tensor]
"""What a move makes of coordinates, `(..., coordinates)`."""


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Coordinates of hidden states at some layers.

    Attributes:
        names: Their names.
        directions: The directions by layer, each `(coordinates, hidden)`, linearly independent.

    Raises:
        LREError: If there is none, or names and directions do not fit.

    Example:
        >>> import torch
        >>> coordinates = Coordinates(("a", "b"), {0: torch.eye(3)[:2]})
        >>> coordinates.move(torch.tensor([1.0, 2.0, 3.0]), 0, swap(coordinates, "a", "b")).tolist()
        [2.0, 1.0, 3.0]
    """

    names: tuple[str, ...]
    directions: Mapping[Layer, Tensor] = field(repr=False)

    def __post_init__(self) -> None:
        shapes = {tuple(one.shape) for one in self.directions.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or next(iter(shapes))[0] != len(self.names):
            raise LREError(f"{len(self.names)} coordinates need directions (coordinates, hidden), not {sorted(shapes)}")

    @classmethod
    def of_lre(cls, lre: LRE, layers: Sequence[Layer] | None = None) -> Self:
        """Return those that an LRE reads: s along the leading right singular vectors of W, as many as its edit rank."""
        directions = lre.operator.triplets(lre.edit_rank)[2].T
        names = tuple(f"direction {index}" for index in range(lre.edit_rank))
        return cls(names, dict.fromkeys([lre.layer] if layers is None else layers, directions))

    def __call__(self, states: Tensor, layer: Layer) -> Tensor:
        """Return the coordinates of hidden states at a layer, `(..., hidden)`, as `(..., coordinates)`."""
        directions = self.directions[layer].to(states.device)
        return states.to(directions.dtype) @ directions.T

    def index(self, name: str) -> int:
        """Return the place of a coordinate."""
        if name not in self.names:
            known = ", ".join(map(repr, self.names[:20]))
            raise LREError(f"there is no coordinate {name!r}; there are {known}")
        return self.names.index(name)

    def move(
        self, states: Tensor, layer: Layer, change: Change, strength: float = 1.0, clean: Tensor | None = None
    ) -> Tensor:
        """Move hidden states at a layer, `(..., hidden)`, to the nearest ones with changed coordinates.

        Args:
            states: The hidden states.
            layer: Their layer.
            change: What becomes of the coordinates.
            strength: How far they go, from 0, which changes nothing, to 1.
            clean: Coordinates to change in place of those of `states`, such as those of a run without moves.
        """
        now = self(states, layer)
        wanted = change(now if clean is None else clean.to(now))
        return states + strength * ((wanted - now) @ self._inverses[layer].to(now).T).to(states)

    @cached_property
    def _inverses(self) -> dict[Layer, Tensor]:
        return {layer: torch.linalg.pinv(directions) for layer, directions in self.directions.items()}


def steer(coordinates: Coordinates, name: str, amount: float) -> Change:
    """Add an amount to a coordinate."""
    step = torch.zeros(len(coordinates.names))
    step[coordinates.index(name)] = amount
    return lambda values: values + step.to(values)


def ablate(coordinates: Coordinates, *names: str) -> Change:
    """Set coordinates to zero, all if none is named."""
    kept = torch.ones(len(coordinates.names))
    kept[[coordinates.index(name) for name in names or coordinates.names]] = 0
    return lambda values: values * kept.to(values)


def swap(coordinates: Coordinates, one: str, other: str) -> Change:
    """Exchange two coordinates."""
    order = list(range(len(coordinates.names)))
    first, second = coordinates.index(one), coordinates.index(other)
    order[first], order[second] = second, first
    return lambda values: values[..., order]


def exchange(states: Tensor, pairs: Tensor) -> Tensor:
    """Exchange the coordinates of hidden states along pairs of directions: the move by `swap`, many at once.

    Args:
        states: The hidden states, `(..., hidden)`.
        pairs: Two directions for each, `(..., 2, hidden)`, in the dtype of `states`.

    Returns:
        The nearest states with exchanged coordinates; of parallel directions, those that come closest to it.

    >>> exchange(torch.tensor([1.0, 2.0, 3.0]), torch.eye(3)[:2]).tolist()
    [2.0, 1.0, 3.0]
    """
    now = pairs @ states[..., None]
    change: Tensor = torch.linalg.pinv(pairs) @ (now.flip(-2) - now)
    return states + change[..., 0]


def put(wanted: Tensor) -> Change:
    """Set all coordinates to those of another state, `(coordinates,)`."""
    return lambda values: wanted.to(values).expand_as(values)


@dataclass(frozen=True, eq=False, kw_only=True)
class Move(PromptEdit):
    """A move of s in a prompt at some layers, which stays in place while the LM runs or generates, as an edit does.

    Attributes:
        coordinates: The coordinates.
        change: What becomes of them.
        strength: How far they go.
        clean: The coordinates of the run without the move by layer, `(coordinates,)`, which are changed; None to
            change those that the run itself has at a layer, after moves at the layers before.
    """

    coordinates: Coordinates
    change: Change
    strength: float = 1.0
    clean: Mapping[Layer, Tensor] | None = field(default=None, repr=False)

    def at(self, layer: Layer | None, states: Tensor) -> Tensor:
        """Move hidden states of the subject at a layer, `(..., hidden)`; at the only layer if None.

        Raises:
            LREError: If the move is at several layers, and none is named.
        """
        if layer is None and len(self.layers) > 1:
            raise LREError(
                f"a move differs by layer: name that of the states, one of {', '.join(map(str, self.layers))}"
            )
        layer = self.layers[0] if layer is None else layer
        clean = None if self.clean is None else self.clean[layer]
        return self.coordinates.move(states, layer, self.change, self.strength, clean)


@torch.no_grad()
def move_prompt(
    lm: LanguageModel,
    prompt: Prompt,
    coordinates: Coordinates,
    change: Change,
    *,
    strength: float = 1.0,
    live: bool = False,
    target: str = "moved",
    top_k: int = 5,
) -> Move:
    """Move s in a prompt at all layers of the coordinates, and run it.

    Args:
        lm: The LM.
        prompt: The prompt, such as ``lre.origin.prompt(lm, "Canada")``.
        coordinates: The coordinates.
        change: `steer`, `ablate`, `swap` or `put`.
        strength: How far they go: 0 changes nothing.
        live: Whether the coordinates that the run has at each layer are changed. Later layers then change what earlier
            ones have changed: a second swap undoes the first. Otherwise each layer is clamped to the changed
            coordinates of the run without moves.
        target: What the edit is called where it is shown.
        top_k: The number of answers to show.

    Returns:
        The move, with the LM's answers before and after. Its `active` keeps it in place while the LM generates.

    Raises:
        LREError: If the LM lacks a layer of the coordinates.
    """
    layers = lm.check_layers(coordinates.directions)
    ids = torch.tensor([prompt.input_ids], device=lm.device)
    lm.check_ids(ids)
    found = lm.hidden_states(ids, layers)
    states = {layer: found[layer][0, prompt.subject_position] for layer in layers}
    clean = None if live else {layer: coordinates(states[layer], layer) for layer in layers}
    first = states[layers[0]]
    delta = coordinates.move(first, layers[0], change, strength) - first
    move = Move(
        prompt=prompt,
        target=target,
        layers=layers,
        delta=delta,
        lm=lm,
        coordinates=coordinates,
        change=change,
        strength=strength,
        clean=clean,
    )
    return move.answered(top_k)
