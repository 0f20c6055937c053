"""The leading singular triplets of a matrix, or of products with it alone, by a block Krylov method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Number of directions that a step of the partial factorization adds."""


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
            block = _orthogonal(block, basis)
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


FEW = 8
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
    multiply: Callable[[Tensor], Tensor],
    multiply_transposed: Callable[[Tensor], Tensor],
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
    size, wanted, generator = len(empty), 2 * count + FEW, torch.Generator().manual_seed(0)
    if wanted > size // 2:
        return None
    step = min(BLOCK, max(FEW, count // 4))  # small ones take fewer products, and large ones less time for each
    probes = torch.randn(size, FEW + step, generator=generator, dtype=empty.dtype).to(empty)
    probed = multiply_transposed(probes)
    basis = images = returned = empty
    block, probes, probed = probed[:, FEW:], probes[:, :FEW], probed[:, :FEW]
    while wanted <= size // 2:
        while basis.shape[1] < wanted:
            block = _orthogonal(block, basis)
            image = multiply(block)
            basis, images = torch.cat([basis, block], 1), torch.cat([images, image], 1)
            block = multiply_transposed(image)
            returned = torch.cat([returned, block], 1)
        left, values, coefficients = torch.linalg.svd(images, full_matrices=False)
        right = basis @ coefficients.T
        kept = values[:count][values[:count] > torch.finfo(values.dtype).eps * size * values[0]]  # the others are zero
        errors = (returned @ coefficients.T - right * values**2).norm(dim=0)[: len(kept)] / kept
        residual, noise = (float(one.max() / kept.min()) if len(kept) else 0.0 for one in (errors, 2 * rounding * kept))
        if agreed(residual <= max(TOLERANCE, noise)):
            tail = probed - (right * values) @ (left.T @ probes)
            return left, values, right, Accuracy(residual, float(tail.norm() / probed.norm()))
        wanted += step
    return None


def _orthogonal(block: Tensor, basis: Tensor) -> Tensor:
    """Return an orthonormal basis of what columns add to a space."""
    for _ in range(2):  # once is not enough if little of the block is new
        block = torch.linalg.qr(block - basis @ (basis.T @ block)).Q
    return block
