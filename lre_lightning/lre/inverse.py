"""The low-rank pseudo-inverse of W: one factorization serves every rank."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lre_lightning import paper
from lre_lightning.grid import check_ranks
from lre_lightning.lre.operators import Dense, Operator


class LowRankInverse:
    """Pseudo-inverse of a square matrix restricted to its `rank` largest singular values (Appendix on low rank).

    `lre_lightning.paper.edits` defines it.

    Args:
        weight: W, `(hidden, hidden)`, float32 or float64, or an operator.
        max_rank: The largest rank that will be asked for; all if None. A small one makes the factorization cheaper.

    Raises:
        LREError: If `max_rank`, or later a rank above it or below 1, is out of range.

    Example:
        >>> import torch
        >>> inverse = LowRankInverse(torch.diag(torch.tensor([4.0, 2.0])))
        >>> inverse.apply(torch.tensor([4.0, 4.0]), [1, 2]).tolist()
        [[1.0, 0.0], [1.0, 2.0]]
    """

    def __init__(self, weight: Tensor | Operator, max_rank: int | None = None) -> None:
        operator = Dense(weight) if isinstance(weight, Tensor) else weight
        self.max_rank: int = operator.rank if max_rank is None else max_rank
        self._triplets = operator.triplets(self.max_rank)

    def apply(self, delta: Tensor, ranks: Sequence[int]) -> Tensor:
        """Apply the inverses of several ranks, in any order, to `delta`, o' - o, `(..., hidden)`.

        Returns:
            The edits of s, `(..., len(ranks), hidden)`.
        """
        self._check(ranks)
        return paper.edits(delta, *self._triplets, ranks)

    def forward(self, subject: Tensor, ranks: Sequence[int]) -> Tensor:
        """Apply W itself, cut down to each of several ranks, to s, `(..., hidden)`.

        Returns:
            W_r s for every rank r, `(..., len(ranks), hidden)`.
        """
        self._check(ranks)
        return paper.low_rank(subject, *self._triplets, ranks)

    def _check(self, ranks: Sequence[int]) -> None:
        check_ranks(ranks, self.max_rank, "the largest rank that W was factorized for")
