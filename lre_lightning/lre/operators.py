"""W as an operator: what LREs ask of it, the forms that it comes in, and what is made of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning import paper
from lre_lightning.errors import LREError
from lre_lightning.grid import check_ranks
from lre_lightning.lre.triplets import leading_singular_triplets

FACTOR_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of factors."""


def wide_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of sums of Jacobians of an LM in `dtype`; MPS has no float64."""
    return torch.float32 if dtype.itemsize == 2 or device.type == "mps" else torch.float64


class Operator(ABC):
    """A square matrix W that is applied, inverted and combined with others, whether or not its elements exist.

    ``A @ B``, ``A + B``, ``2.0 * A`` and ``A.T`` are operators too, and nothing is multiplied out to make them.

    Arguments may have any floating dtype and must be on the operator's device; results have the operator's dtype.

    Attributes:
        width: The width of the hidden states.
        rank: The largest rank at which it can be factorized.
        bound: What sets that limit, for errors.
        dtype: The dtype of results, float32 or float64.
        device: The device of its tensors.

    Example:
        >>> double, swap = Dense(2 * torch.eye(2)), Dense(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        >>> (double @ swap + 10.0 * swap).apply(torch.tensor([1.0, 3.0])).tolist()
        [36.0, 12.0]
        >>> double.inverse(2).apply(torch.tensor([1.0, 3.0])).tolist()
        [0.5, 1.5]
    """

    width: int
    rank: int
    bound = "the width of the hidden states"
    dtype: torch.dtype
    device: torch.device
    _kept: tuple[Tensor, Tensor, Tensor] | None = None

    @abstractmethod
    def apply(self, states: Tensor) -> Tensor:
        """Return W s for s `(..., width)`."""

    @abstractmethod
    def transposed(self, states: Tensor) -> Tensor:
        """Return W^T o for o `(..., width)`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that it consists of, by the names that they have in files; none if it has no elements."""

    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the leading singular triplets: U `(width, count)`, S `(count,)`, largest first, V `(width, count)`.

        They are as exact as those of a full decomposition, and are kept for the next call.

        Raises:
            LREError: If `count` is above `rank` or below 1.
        """
        self.check_rank(count)
        if self._kept is None or len(self._kept[1]) < count:
            self._kept = leading_singular_triplets(self.dense(), count)
        left, values, right = self._kept
        return left[:, :count], values[:count], right[:, :count]

    def low_rank(self, states: Tensor, ranks: Sequence[int]) -> Tensor:
        """Return W_r s, with W cut down to each of several ranks, in any order, for s `(..., width)`.

        Returns:
            `(..., len(ranks), width)`.
        """
        return paper.low_rank(states.to(self.dtype), *self.triplets(max(ranks)), ranks)

    def edits(self, change: Tensor, ranks: Sequence[int]) -> Tensor:
        """Return W_r^+ (o' - o) for each of several ranks, in any order, for o' - o `(..., width)` (Equation 7).

        Returns:
            `(..., len(ranks), width)`.
        """
        return paper.edits(change.to(self.dtype), *self.triplets(max(ranks)), ranks)

    def inverse(self, rank: int) -> Factors:
        """Return the pseudo-inverse of W restricted to its `rank` largest singular values (Appendix on low rank).

        Raises:
            LREError: If the rank is out of range.
        """
        left, values, right = self.triplets(rank)
        values, order = paper.inverted(values, self.width).sort(descending=True, stable=True)
        return Factors(right[:, order], values, left[:, order])

    def to(self, device: torch.device | str) -> Self:
        """Return the operator with its tensors on another device."""
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def dense(self) -> Tensor:
        """Return the matrix, `(width, width)`."""
        return self.transposed(torch.eye(self.width, dtype=self.dtype, device=self.device))

    @property
    def T(self) -> Operator:
        """W^T."""
        return Transposed(self)

    def __matmul__(self, other: Operator) -> Operator:
        return Product(self, other)

    def __add__(self, other: Operator) -> Operator:
        return Sum(self, other)

    def __rmul__(self, factor: float) -> Operator:
        return Scaled(self, factor=factor)

    def check_rank(self, rank: int) -> None:
        """Raise an `LREError` unless W can be cut down to a rank."""
        check_ranks([rank], self.rank, self.bound)


class Dense(Operator):
    """W as a matrix.

    Args:
        weight: W, `(width, width)`, float32 or float64.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.width = self.rank = len(weight)
        self.dtype, self.device = weight.dtype, weight.device

    def apply(self, states: Tensor) -> Tensor:
        """Return W s."""
        return states.to(self.dtype) @ self.weight.T

    def transposed(self, states: Tensor) -> Tensor:
        """Return W^T o."""
        return states.to(self.dtype) @ self.weight

    def tensors(self) -> dict[str, Tensor]:
        """Return W."""
        return {"weight": self.weight}

    def dense(self) -> Tensor:
        """Return W itself."""
        return self.weight


class Factors(Operator):
    """W of low rank as its singular triplets, U S V^T, which are never multiplied out.

    Args:
        left: U, `(width, rank)`, in any floating dtype, in which it is kept.
        values: S, `(rank,)`, largest first, float32 or float64: the dtype of results.
        right: V, `(width, rank)`.

    Example:
        >>> factors = Factors(torch.eye(3)[:, :1], torch.tensor([2.0]), torch.eye(3)[:, 1:2])
        >>> factors.apply(torch.tensor([5.0, 1.0, 7.0])).tolist()
        [2.0, 0.0, 0.0]
    """

    bound = "the number of factors of W that are kept"

    def __init__(self, left: Tensor, values: Tensor, right: Tensor) -> None:
        if (values < 0).any() or (values.diff() > 0).any():
            raise LREError("the singular values of W must be positive or zero, the largest first")
        self.left, self.values, self.right = left.contiguous(), values, right.contiguous()  # as a file has them
        self.width, self.rank = left.shape
        self.dtype, self.device = values.dtype, values.device

    @classmethod
    def of(cls, operator: Operator, rank: int, dtype: torch.dtype = torch.float32) -> Factors:
        """Cut an operator down to its leading triplets, and round U and V to `dtype`, one of `FACTOR_DTYPES`."""
        if dtype not in FACTOR_DTYPES:
            known = ", ".join(str(kind).removeprefix("torch.") for kind in FACTOR_DTYPES)
            raise LREError(f"factors cannot be kept in {dtype}: give one of {known}")
        left, values, right = operator.triplets(rank)
        return cls(left.to(dtype), values, right.to(dtype))

    def apply(self, states: Tensor) -> Tensor:
        """Return U S V^T s."""
        left, values, right = self.triplets(self.rank)
        return paper.low_rank(states.to(self.dtype), left, values, right, [self.rank]).squeeze(-2)

    def transposed(self, states: Tensor) -> Tensor:
        """Return V S U^T o."""
        left, values, right = self.triplets(self.rank)
        return paper.low_rank(states.to(self.dtype), right, values, left, [self.rank]).squeeze(-2)

    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the first factors, in the dtype of results."""
        self.check_rank(count)
        return self.left[:, :count].to(self.dtype), self.values[:count], self.right[:, :count].to(self.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors."""
        return {"left": self.left, "values": self.values, "right": self.right}


class Composed(Operator):
    """What is made of other operators, of one width; its triplets are those of its matrix.

    Raises:
        LREError: If widths differ.
    """

    def __init__(self, *operands: Operator) -> None:
        widths = [operand.width for operand in operands]
        if len(set(widths)) > 1:
            raise LREError(f"operators of the widths {widths} cannot be combined")
        self.operands = operands
        self.width = self.rank = widths[0]
        self.dtype, self.device = operands[0].dtype, operands[0].device

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing: it has no elements of its own."""
        return {}

    def to(self, device: torch.device | str) -> Self:
        """Return it with its operands on another device."""
        return type(self)(*(operand.to(device) for operand in self.operands))


class Product(Composed):
    """A B."""

    def apply(self, states: Tensor) -> Tensor:
        """Return A (B s)."""
        first, last = self.operands
        return first.apply(last.apply(states))

    def transposed(self, states: Tensor) -> Tensor:
        """Return B^T (A^T o)."""
        first, last = self.operands
        return last.transposed(first.transposed(states)).to(self.dtype)

    def dense(self) -> Tensor:
        """Return the product of the matrices."""
        first, last = self.operands
        return first.dense() @ last.dense().to(self.dtype)


class Sum(Composed):
    """A + B."""

    def apply(self, states: Tensor) -> Tensor:
        """Return A s + B s."""
        first, last = self.operands
        return first.apply(states) + last.apply(states).to(self.dtype)

    def transposed(self, states: Tensor) -> Tensor:
        """Return A^T o + B^T o."""
        first, last = self.operands
        return first.transposed(states) + last.transposed(states).to(self.dtype)

    def dense(self) -> Tensor:
        """Return the sum of the matrices."""
        first, last = self.operands
        return first.dense() + last.dense().to(self.dtype)


class Scaled(Composed):
    """c A."""

    def __init__(self, operand: Operator, factor: float) -> None:
        super().__init__(operand)
        self.factor = factor

    def apply(self, states: Tensor) -> Tensor:
        """Return c A s."""
        return self.factor * self.operands[0].apply(states)

    def transposed(self, states: Tensor) -> Tensor:
        """Return c A^T o."""
        return self.factor * self.operands[0].transposed(states)

    def dense(self) -> Tensor:
        """Return c times the matrix."""
        return self.factor * self.operands[0].dense()

    def to(self, device: torch.device | str) -> Scaled:
        """Return it with A on another device."""
        return Scaled(self.operands[0].to(device), self.factor)


class Transposed(Composed):
    """A^T."""

    def apply(self, states: Tensor) -> Tensor:
        """Return A^T s."""
        return self.operands[0].transposed(states)

    def transposed(self, states: Tensor) -> Tensor:
        """Return A o."""
        return self.operands[0].apply(states)

    def dense(self) -> Tensor:
        """Return the transposed matrix."""
        return self.operands[0].dense().T
