"""The low-rank pseudo-inverse of W: one factorization serves every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lre_lightning.grid import check_ranks

BLOCK = 32
"""Number of directions that a step of the partial factorization adds."""


class LowRankInverse:
    """Pseudo-inverse of a square matrix restricted to its `rank` largest singular values (Appendix on low rank).

    With W = U S V^T, the inverse of rank r is the sum over the first r singular triplets of v_i u_i^T / s_i.
    Singular values that are zero to the precision of the dtype have inverse zero, as in `torch.linalg.pinv`, so that
    W = 0 has inverse zero.

    Args:
        weight: W, `(hidden, hidden)`, floating point; float32 at least.
        max_rank: The largest rank that will be asked for; all if None. A small one makes the factorization cheaper.

    Raises:
        LREError: If `max_rank`, or later a rank above it or below 1, is out of range.

    Example:
        >>> import torch
        >>> inverse = LowRankInverse(torch.diag(torch.tensor([4.0, 2.0])))
        >>> inverse.apply(torch.tensor([4.0, 4.0]), [1, 2]).tolist()
        [[1.0, 0.0], [1.0, 2.0]]
    """

    def __init__(self, weight: Tensor, max_rank: int | None = None) -> None:
        self.max_rank: int = len(weight) if max_rank is None else max_rank
        check_ranks([self.max_rank], len(weight))
        self._left, values, self._right = leading_singular_triplets(weight, self.max_rank)
        cutoff = torch.finfo(weight.dtype).eps * len(weight) * values[:1]
        self._scaled_right: Tensor = self._right * values
        self._scaled_left: Tensor = self._left * torch.where(values > cutoff, 1 / values, torch.zeros_like(values))

    def apply(self, delta: Tensor, ranks: Sequence[int]) -> Tensor:
        """Apply the inverses of several ranks, in any order, to `delta`, o' - o, `(..., hidden)`.

        Returns:
            The edits of s, `(..., len(ranks), hidden)`.
        """
        self._check(ranks)
        coefficients = delta @ self._scaled_left
        return torch.stack([coefficients[..., :rank] @ self._right[:, :rank].T for rank in ranks], dim=-2)

    def forward(self, subject: Tensor, ranks: Sequence[int]) -> Tensor:
        """Apply W itself, cut down to each of several ranks, to s, `(..., hidden)`.

        Returns:
            W_r s for every rank r, `(..., len(ranks), hidden)`.
        """
        self._check(ranks)
        coefficients = subject @ self._scaled_right
        return torch.stack([coefficients[..., :rank] @ self._left[:, :rank].T for rank in ranks], dim=-2)

    def _check(self, ranks: Sequence[int]) -> None:
        check_ranks(ranks, self.max_rank, "the largest rank that W was factorized for")


def leading_singular_triplets(matrix: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the largest singular values of a square matrix and their vectors, as exact as a full decomposition.

    If few of many are wanted, a block Krylov space of the matrix is grown, its basis orthogonalized as a whole, until
    the residuals A^T u_i - s_i v_i of all wanted triplets are as small as rounding makes them in a full decomposition.
    If the space would need more than half of all directions, the full decomposition is computed.

    Returns:
        U `(n, count)`, S `(count,)`, largest first, and V `(n, count)`, for a matrix `(n, n)`, float32 or float64.
    """
    size, dimension = matrix.shape[0], 4 * count
    tolerance = 16 * torch.finfo(matrix.dtype).eps
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(size, BLOCK, generator=generator, dtype=matrix.dtype).to(matrix.device)
    basis = images = torch.empty_like(matrix[:, :0])
    block = matrix.T @ start
    while dimension <= size // 2:
        while basis.shape[1] < dimension:
            for _ in range(2):  # once is not enough if little of the block is new
                block = torch.linalg.qr(block - basis @ (basis.T @ block)).Q
            image = matrix @ block
            basis, images = torch.cat([basis, block], 1), torch.cat([images, image], 1)
            block = matrix.T @ image
        left, values, coefficients = torch.linalg.svd(images, full_matrices=False)
        left, right = left[:, :count], basis @ coefficients[:count].T
        residual = (matrix.T @ left - right * values[:count]).norm(dim=0).max()
        if residual < tolerance * values[0]:
            return left, values[:count], right
        dimension += dimension // 3
    left, values, right_t = torch.linalg.svd(matrix)
    return left[:, :count], values[:count], right_t[:count].T
