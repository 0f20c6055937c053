"""W without its elements: products with the Jacobians of training prompts, computed when they are asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.lre.operators import Dense, Factors, Operator, wide_dtype
from lre_lightning.lre.triplets import Accuracy, triplets_of_products
from lre_lightning.models.backward import Backward, backward_rule
from lre_lightning.models.patching import PromptBatch
from lre_lightning.models.precision import check_finite
from lre_lightning.models.products import JacobianProduct, double_vjp, jvp, vjp
from lre_lightning.runs.processes import ONE_PROCESS, Processes


class MatrixFree(Operator):
    """W as the mean of the Jacobians of prompts, applied from either side through the LM.

    W s takes one product with each Jacobian in forward mode, W^T o one in reverse mode, where the matrix takes one for
    each of its rows. Sums over prompts have more precision than the LM, as in `LREEstimator`. Results are on the device
    of their arguments.

    If its singular values fall too slowly for few products to give the triplets, the matrix is computed, and used from
    then on.

    On several processes each holds all prompts. `apply` and `transposed` are computed by each for itself; the products
    that singular triplets take are split, so `triplets` is a collective call unless it is for a rank that has been
    factorized before.

    Args:
        runs: The prompts.
        layer: The layer of s.
        forward: The product for W s; see `forward_product`.
        processes: The processes that hold the same prompts.
        backward: The rule of the products.

    Attributes:
        products: Number of vectors that W has been multiplied by in this process, from either side.
        accuracy: Of the singular triplets, once they have been computed from products.
        matrix: W, if it had to be computed.
    """

    def __init__(
        self,
        runs: PromptBatch,
        layer: Layer,
        forward: JacobianProduct = jvp,
        processes: Processes = ONE_PROCESS,
        backward: Backward = "exact",
    ) -> None:
        lm = runs.lm
        self.runs, self.layer, self._forward, self._processes = runs, layer, forward, processes
        self._backward = backward
        self.width = self.rank = lm.hidden_size
        self.dtype, self.device = torch.promote_types(lm.dtype, torch.float32), lm.device
        self.products = 0
        self.accuracy: Accuracy | None = None
        self.matrix: Dense | None = None
        self._factors: Factors | None = None
        self._factorized = 0

    def apply(self, states: Tensor) -> Tensor:
        """Return W s, in forward mode."""
        if self.matrix is not None:
            return self.matrix.apply(states.to(self.device)).to(states.device)
        return self._mean(states, self._forward)

    def transposed(self, states: Tensor) -> Tensor:
        """Return W^T o, in reverse mode."""
        if self.matrix is not None:
            return self.matrix.transposed(states.to(self.device)).to(states.device)
        return self._mean(states, vjp)

    def bias(self) -> Tensor:
        """Return b, the mean of o - J s over the prompts, `(width,)`."""
        subject, output = self.runs.hidden_states([self.layer], keep=True)
        (mean,) = self._means(subject, self._forward)
        bias: Tensor = output.to(mean).mean(0) - mean
        return bias.to(self.dtype)

    def triplets(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the leading singular triplets, from as few products as their accuracy takes."""
        self.check_rank(count)
        if self.matrix is None and self._factorized < count:
            self._factorize(count)
        return (self.matrix or self.factors).triplets(count)

    @property
    def factors(self) -> Factors:
        """All triplets that the last factorization found, more than it was asked for; only the first are exact."""
        if self._factors is None:
            raise LREError("W has no factors yet: ask for its triplets first")
        return self._factors

    def _factorize(self, count: int) -> None:
        forward, reverse = self._split(self.apply), self._split(self.transposed)
        nothing = torch.empty(self.width, 0, dtype=self.dtype, device=self.device)
        rounding = torch.finfo(self.runs.lm.dtype).eps
        found = triplets_of_products(forward, reverse, nothing, count, rounding, self._all_agree)
        if found is None:
            self.matrix = Dense(reverse(torch.eye(self.width, dtype=self.dtype, device=self.device)).T.contiguous())
            return
        *factors, self.accuracy = found
        self._factors, self._factorized = Factors(*factors), count

    def tensors(self) -> dict[str, Tensor]:
        """Return nothing: it has no elements."""
        return {}

    def to(self, device: torch.device | str) -> MatrixFree:
        """Return it as it is, on the devices of the LM."""
        return self

    def _mean(self, states: Tensor, product: JacobianProduct) -> Tensor:
        vectors = states.reshape(-1, self.width).to(self.device, self.dtype)
        means = self._means(vectors.expand(len(self.runs), -1, -1), product) if len(vectors) else vectors
        return means.to(states.device, self.dtype).reshape(states.shape)

    def _means(self, vectors: Tensor, product: JacobianProduct) -> Tensor:
        """Return the means over prompts of their products with vectors, `(prompts, vectors, width)`, in wide dtype."""
        self.products += vectors.shape[1]
        lm = self.runs.lm
        # Products are linear, so vectors can be scaled to what 16 bits represent best; powers of two round nothing.
        exponent = torch.frexp(vectors.to(self.dtype).abs().amax(-1, keepdim=True)).exponent
        scale = torch.ldexp(torch.ones_like(exponent, dtype=self.dtype), exponent)
        with backward_rule(self._backward):
            found = self.runs.products(self.layer, vectors / scale, product)
        check_finite(found, f"a product with the Jacobian at layer {self.layer} of {lm.name} is")
        return (found.to(wide_dtype(lm.dtype, self.device)) * scale).mean(0)

    def _split(self, multiply: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return the product with a matrix of columns, computed for a part of them in each process."""

        def split(columns: Tensor) -> Tensor:
            places = range(self._processes.index, columns.shape[1], self._processes.count)
            mine = multiply(columns.T[places.start :: places.step])
            gathered: Tensor = self._processes.rows(mine, places, columns.shape[1]).T
            return gathered

        return split

    def _all_agree(self, condition: bool) -> bool:
        """Return whether a condition holds in all processes, whose rounding may differ; a collective call."""
        (agreed,) = self._processes.sum(torch.tensor([int(condition)]))
        return int(agreed) == self._processes.count


def forward_product(runs: PromptBatch, backward: Backward = "exact") -> JacobianProduct:
    """Find the cheapest product F'(s) v that the LM has and that agrees with F'(s)^T v, by trying each once."""
    with backward_rule(backward):
        return _forward_product(runs)


def _forward_product(runs: PromptBatch) -> JacobianProduct:
    lm, one = runs.lm, runs.select(torch.tensor([0]))
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(1, 1, lm.hidden_size, generator=generator).to(one.lm.device, lm.dtype)
    for product in (jvp, double_vjp):
        try:
            found = one.products(lm.layers[0], vector, product).double()
        except RuntimeError:  # of an operation without a derivative, whatever it says
            continue
        unit = torch.nn.functional.normalize(found, dim=-1)
        back = one.products(lm.layers[0], unit.to(lm.dtype), vjp).double()
        error = (back * vector.double()).sum() - found.norm()
        if abs(float(error)) <= torch.finfo(lm.dtype).eps ** 0.5 * float(found.norm()):
            return product
    raise LREError(f"{lm.name} has no derivatives in forward mode, nor second ones: use its dense Jacobians")
