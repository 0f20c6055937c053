"""W as an operator: what LREs ask of it, and the forms that it comes in."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from typing_extensions import Self

from lre_lightning.errors import LREError
from lre_lightning.grid import check_ranks
from lre_lightning.lre.triplets import leading_singular_triplets

FACTOR_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of factors."""


def wide_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of sums of Jacobians of an LM in `dtype`; MPS has no float64."""
    return torch.float32 if dtype.itemsize == 2 or device.type == "mps" else torch.float64


class Operator(ABC):
    """A square matrix W that is applied, transposed and factorized, whether or not its elements exist.

    Arguments may have any floating dtype and must be on the operator's device; results have the operator's dtype.

    Attributes:
        width: The width of the hidden states.
        rank: The largest rank at which it can be factorized.
        dtype: The dtype of results, float32 or float64.
        device: The device of its tensors.
    """

    width: int
    rank: int
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def apply(self, states: Tensor) -> Tensor:
        """Return W s for s `(..., width)`."""

    @abstractmethod
    def transposed(self, states: Tensor) -> Tensor:
        """Return W^T o for o `(..., width)`."""

    @abstractmethod
    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the leading singular triplets: U `(width, count)`, S `(count,)`, largest first, V `(width, count)`."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that it consists of, by the names that they have in files."""

    def to(self, device: torch.device | str) -> Self:
        """Return the operator with its tensors on another device."""
        return type(self)(**{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def dense(self) -> Tensor:
        """Return the matrix, `(width, width)`."""
        return self.transposed(torch.eye(self.width, dtype=self.dtype, device=self.device))

    def _check_rank(self, count: int) -> None:
        check_ranks([count], self.rank, "the rank of W")


class Dense(Operator):
    """W as a matrix.

    Args:
        weight: W, `(width, width)`, float32 or float64.
    """

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight
        self.width = self.rank = len(weight)
        self.dtype, self.device = weight.dtype, weight.device
        self._triplets = weight[:, :0], weight[0, :0], weight[:, :0]

    def apply(self, states: Tensor) -> Tensor:
        """Return W s."""
        return states.to(self.dtype) @ self.weight.T

    def transposed(self, states: Tensor) -> Tensor:
        """Return W^T o."""
        return states.to(self.dtype) @ self.weight

    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the leading singular triplets, as exact as a full decomposition; they are kept for the next call."""
        self._check_rank(count)
        if len(self._triplets[1]) < count:
            self._triplets = leading_singular_triplets(self.weight, count)
        left, values, right = self._triplets
        return left[:, :count], values[:count], right[:, :count]

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
            known = ", ".join(str(one).removeprefix("torch.") for one in FACTOR_DTYPES)
            raise LREError(f"factors cannot be kept in {dtype}: give one of {known}")
        left, values, right = operator.triplets(rank)
        return cls(left.to(dtype), values, right.to(dtype))

    def apply(self, states: Tensor) -> Tensor:
        """Return U S V^T s."""
        left, values, right = self.triplets(self.rank)
        return (states.to(self.dtype) @ right * values) @ left.T

    def transposed(self, states: Tensor) -> Tensor:
        """Return V S U^T o."""
        left, values, right = self.triplets(self.rank)
        return (states.to(self.dtype) @ left * values) @ right.T

    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the first factors, in the dtype of results."""
        self._check_rank(count)
        return self.left[:, :count].to(self.dtype), self.values[:count], self.right[:, :count].to(self.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Return the factors."""
        return {"left": self.left, "values": self.values, "right": self.right}
