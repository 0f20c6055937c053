"""The leading singular triplets of a matrix, or of products with it alone, by a block Krylov method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Number of directions that a step of the partial factorization adds."""

_Multiply = Callable[[Tensor], Tensor]


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
    space = _Krylov(lambda block: matrix @ block, lambda block: matrix.T @ block, matrix.T @ start)
    while dimension <= size // 2:
        space.grow(dimension)
        left, values, coefficients = torch.linalg.svd(space.images, full_matrices=False)
        left, right = left[:, :count], space.basis @ coefficients[:count].T
        residual = (matrix.T @ left - right * values[:count]).norm(dim=0).max()
        if residual < tolerance * values[0]:
            return left, values[:count], right
        dimension += dimension // 3
    left, values, right_t = torch.linalg.svd(matrix)
    return left[:, :count], values[:count], right_t[:count].T


PROBES = 8
"""Number of probes, and least number of directions that a step adds where products are dear."""

TOLERANCE = 1e-3
"""Largest residual of singular triplets beside the smallest of their values, where products are dear."""


@dataclass(frozen=True)
class Accuracy:
    """How exact singular triplets are that were computed from few products.

    Attributes:
        residual: The largest norm of A^T u_i - s_i v_i, divided by the smallest of the s_i: about the relative error
            of the pseudo-inverse.
        left_out: The norm of A - U S V^T beside that of A (Frobenius), with all triplets that were found, estimated
            from probes.
    """

    residual: float
    left_out: float


def triplets_of_products(
    multiply: _Multiply,
    multiply_transposed: _Multiply,
    empty: Tensor,
    count: int,
    rounding: float,
    agreed: Callable[[bool], bool] = bool,
) -> tuple[Tensor, Tensor, Tensor, Accuracy] | None:
    """Compute the largest singular values of a square matrix A and their vectors from products with it.

    A block Krylov space of A^T A is grown as in `leading_singular_triplets`, but in small steps, and only until the
    residuals are at most `TOLERANCE` of the smallest wanted value or what rounding leaves.

    Args:
        multiply: Returns A X for X `(n, columns)`.
        multiply_transposed: Returns A^T X.
        empty: An empty tensor `(n, 0)` of the dtype and on the device of the results.
        count: The number of triplets.
        rounding: The relative error of products.
        agreed: Called with each decision, which the processes must take together.

    Returns:
        U `(n, found)`, S `(found,)`, largest first, V `(n, found)`, and how exact the first `count` of them are. The
        others are those that the space has beside them. None if the space would need more than half of all directions,
        so that all elements of A are cheaper.
    """
    size, wanted, generator = len(empty), 2 * count + PROBES, torch.Generator().manual_seed(0)
    if wanted > size // 2:
        return None
    step = min(BLOCK, max(PROBES, count // 4))  # small ones take fewer products, and large ones less time for each
    probes = torch.randn(size, PROBES + step, generator=generator, dtype=empty.dtype).to(empty)
    probed = multiply_transposed(probes)
    space, probes, probed = (
        _Krylov(multiply, multiply_transposed, probed[:, PROBES:]),
        probes[:, :PROBES],
        probed[:, :PROBES],
    )
    while wanted <= size // 2:
        space.grow(wanted)
        left, values, coefficients = torch.linalg.svd(space.images, full_matrices=False)
        right = space.basis @ coefficients.T
        kept = values[:count][values[:count] > torch.finfo(values.dtype).eps * size * values[0]]  # the others are zero
        errors = (space.returned @ coefficients.T - right * values**2).norm(dim=0)[: len(kept)] / kept
        residual, noise = (
            float(error.max() / kept.min()) if len(kept) else 0.0 for error in (errors, 2 * rounding * kept)
        )
        if agreed(residual <= max(TOLERANCE, noise)):
            tail = probed - (right * values) @ (left.T @ probes)
            return left, values, right, Accuracy(residual, float(tail.norm() / probed.norm()))
        wanted += step
    return None


class _Krylov:
    """A block Krylov space of A^T A, which grows by the columns of a block at a time.

    Args:
        multiply: Returns A X for X `(n, columns)`.
        multiply_transposed: Returns A^T X.
        block: What it begins with, `(n, columns)`.

    Attributes:
        basis: An orthonormal basis Q of the space, `(n, directions)`.
        images: A Q.
        returned: A^T A Q.
    """

    def __init__(self, multiply: _Multiply, multiply_transposed: _Multiply, block: Tensor) -> None:
        self._multiply, self._multiply_transposed, self._block = multiply, multiply_transposed, block
        self.basis = self.images = self.returned = block[:, :0]

    def grow(self, directions: int) -> None:
        """Grow to at least so many directions."""
        while self.basis.shape[1] < directions:
            block = self._block
            for _ in range(2):  # once is not enough if little of the block is new
                block = torch.linalg.qr(block - self.basis @ (self.basis.T @ block)).Q
            image = self._multiply(block)
            self._block = self._multiply_transposed(image)
            self.basis, self.images = torch.cat([self.basis, block], 1), torch.cat([self.images, image], 1)
            self.returned = torch.cat([self.returned, self._block], 1)
