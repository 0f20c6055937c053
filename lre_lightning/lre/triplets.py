"""The leading singular triplets of a matrix, by a block Krylov method."""

from __future__ import annotations

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
