"""The low-rank pseudo-inverse of W: one factorization serves every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lre_lightning.grid import check_ranks


class LowRankInverse:
    """Pseudo-inverse of a square matrix restricted to its `rank` largest singular values (Appendix on low rank).

    With W = U S V^T, the inverse of rank r is the sum over the first r singular triplets of v_i u_i^T / s_i.
    Singular values that are zero to the precision of the dtype have inverse zero, as in `torch.linalg.pinv`, so that
    W = 0 yields a zero inverse and no division by zero.

    Args:
        weight: W, `(hidden, hidden)`, floating point; float32 at least.

    Example:
        >>> import torch
        >>> inverse = LowRankInverse(torch.diag(torch.tensor([4.0, 2.0])))
        >>> inverse.apply(torch.tensor([4.0, 4.0]), [1, 2]).tolist()
        [[1.0, 0.0], [1.0, 2.0]]
    """

    def __init__(self, weight: Tensor) -> None:
        left, values, right_t = torch.linalg.svd(weight)
        self._right_t: Tensor = right_t
        cutoff = torch.finfo(weight.dtype).eps * weight.shape[0] * values[:1]
        inverse = torch.where(values > cutoff, 1 / values, torch.zeros_like(values))
        self._scaled_left: Tensor = left * inverse

    @property
    def max_rank(self) -> int:
        """Width of the matrix: the largest rank there is."""
        return self._right_t.shape[0]

    def matrix(self, rank: int) -> Tensor:
        """The pseudo-inverse of rank `rank`, `(hidden, hidden)`.

        Raises:
            LREError: If `rank` is out of range.
        """
        check_ranks([rank], self.max_rank)
        return self._right_t[:rank].T @ self._scaled_left[:, :rank].T

    def apply(self, delta: Tensor, ranks: Sequence[int]) -> Tensor:
        """Apply the inverses of several ranks to the same vectors.

        Args:
            delta: o' - o, `(..., hidden)`.
            ranks: The ranks, in any order.

        Returns:
            The edit directions, `(..., len(ranks), hidden)`.

        Raises:
            LREError: If a rank is out of range.
        """
        check_ranks(ranks, self.max_rank)
        coefficients = delta @ self._scaled_left
        return torch.stack([coefficients[..., :rank] @ self._right_t[:rank] for rank in ranks], dim=-2)
