"""W without its elements, against Jacobians of whole prompts and full decompositions."""

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre import matrix_free
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.matrix_free import MatrixFree, forward_product
from lre_lightning.lre.origin import Origin
from lre_lightning.lre.triplets import triplets_of_products
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.products import double_vjp, jvp, vjp
from lre_lightning.runs.processes import Processes
from tests.helpers import tiny_models
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import SHARED, WIDTH, plain_output, tiny_model, widen_casts
from tests.lre.test_triplets import STEPS, with_values

PROMPTS = [*tiny_models.PROMPTS, [*SHARED, 11, 30, 31]]  # two of one shape
SUBJECTS = [*tiny_models.SUBJECTS, 7]
PRODUCTS = {
    "ctrl": jvp,  # which changes its embeddings in place
    "olmo": jvp,  # which changes outputs of linear layers in place
    "bloom": double_vjp,  # whose activation has no derivative in forward mode
    "lfm2": jvp,  # whose attention is fused
}


def batch_of(lm):
    return tiny_models.batch_of(lm, PROMPTS, SUBJECTS)


def mean_jacobian(lm, layer):
    """The mean of the Jacobians of whole prompts, by plain autograd, and the mean of o - J s."""
    jacobians, rest = [], []
    for ids, position in zip(PROMPTS, SUBJECTS, strict=True):
        with torch.no_grad():
            states = lm.hidden_states(torch.tensor([ids]), [layer, lm.num_layers - 1])
        s, o = states[layer][0, position], states[lm.num_layers - 1][0, -1]
        jacobians.append(
            torch.autograd.functional.jacobian(lambda value: plain_output(lm, ids, position, layer, value), s)  # noqa: B023
        )
        rest.append(o - jacobians[-1] @ s)
    return torch.stack(jacobians).mean(0), torch.stack(rest).mean(0)


@pytest.mark.parametrize("family", PRODUCTS)
def test_products_and_b_are_those_of_the_mean_jacobian(monkeypatch, family):
    widen_casts(monkeypatch, family)
    lm, close = LanguageModel(tiny_model(family)), {"rtol": 1e-8, "atol": 1e-8}
    runs, vectors = batch_of(lm), 1e3 * torch.randn(2, 3, WIDTH)
    assert forward_product(runs) is PRODUCTS[family]
    for layer, chunk_size in (("emb", None), (1, 2)):
        lm.chunk_size = chunk_size
        operator, (weight, bias) = MatrixFree(runs, layer, forward_product(runs)), mean_jacobian(lm, layer)
        torch.testing.assert_close(operator.apply(vectors), vectors.double() @ weight.T, **close)
        torch.testing.assert_close(operator.transposed(vectors), vectors.double() @ weight, **close)
        torch.testing.assert_close(operator.bias(), bias, **close)
        torch.testing.assert_close(operator.dense(), weight, **close)
        assert operator.products == 6 + 6 + 1 + WIDTH


def test_no_vectors_and_zero():
    operator = MatrixFree(batch_of(LanguageModel(tiny_model("gpt2"))), 0)
    assert operator.apply(torch.zeros(0, 2, WIDTH)).shape == (0, 2, WIDTH)
    assert not operator.transposed(torch.zeros(3, WIDTH)).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits(dtype):
    """Vectors of any length, the LM's rounding, sums in float32."""
    lm = LanguageModel(tiny_model("llama", dtype))
    exact = LanguageModel(tiny_model("llama", torch.float32))
    exact.load_state_dict(lm.state_dict())
    vectors = 1e6 * torch.randn(4, WIDTH)
    assert forward_product(batch_of(lm)) is jvp
    for name in ("apply", "transposed"):
        expected = getattr(MatrixFree(batch_of(exact), 1), name)(vectors)
        found = getattr(MatrixFree(batch_of(lm), 1), name)(vectors)
        assert found.dtype == torch.float32
        assert (found - expected).norm() < 4 * torch.finfo(dtype).eps * expected.norm()


def test_an_lre_without_w(tmp_path):
    lm = LanguageModel(tiny_model("gpt2"))
    operator = MatrixFree(batch_of(lm), 1)
    with torch.inference_mode():
        lre = LRE(operator, operator.bias(), 1, Origin("toy", SOME, "r"), beta=1.5, rank=3)
        s, o, target = torch.randn(3, WIDTH, dtype=torch.float64)
        predicted, edit, cut = lre(s), lre.edit(o, target), lre.low_rank(5)(s)
    weight, bias = mean_jacobian(lm, 1)
    dense = LRE(weight, bias, 1, lre.origin, beta=1.5, rank=3)
    torch.testing.assert_close(predicted, dense(s))
    torch.testing.assert_close(edit, dense.edit(o, target), rtol=1e-2, atol=1e-3 * float(edit.norm()))
    torch.testing.assert_close(cut, dense.low_rank(5)(s), rtol=1e-4, atol=1e-4)
    with pytest.raises(LREError, match=r"W of 'r' has no elements to keep: take factors, lre\.low_rank\(rank\)"):
        lre.save(tmp_path / "lre.safetensors")


def test_an_lm_without_such_derivatives_is_refused(monkeypatch):
    def none(*_):
        raise RuntimeError("derivative for aten::x is not implemented")

    runs = batch_of(LanguageModel(tiny_model("gpt2")))
    monkeypatch.setattr(matrix_free, "jvp", none)
    assert forward_product(runs) is double_vjp
    monkeypatch.setattr(matrix_free, "jvp", lambda *arguments: 1.01 * jvp(*arguments))  # wrong
    monkeypatch.setattr(matrix_free, "double_vjp", none)
    with pytest.raises(LREError, match="has no derivatives in forward mode, nor second ones"):
        forward_product(runs)


# Singular triplets from products


class Counted:
    """A matrix that counts the vectors it is multiplied by."""

    def __init__(self, matrix):
        self.matrix, self.products = matrix, 0

    def triplets(self, count, rounding=None):
        def product(matrix):
            def multiply(columns):
                self.products += columns.shape[1]
                return matrix @ columns

            return multiply

        eps = torch.finfo(self.matrix.dtype).eps if rounding is None else rounding
        return triplets_of_products(product(self.matrix), product(self.matrix.T), self.matrix[:, :0], count, eps)


SPECTRA = {
    "exponential": (lambda: with_values(torch.exp(-STEPS / 20)), 7),
    "power": (lambda: with_values(1 / (1 + STEPS)), 7),
    "rank below the count": (lambda: with_values(torch.where(STEPS < 9, 20 - STEPS, 0)), 8),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_triplets_are_as_exact_as_they_claim(name):
    count, (make, factor) = 16, SPECTRA[name]
    counted = Counted(make())
    left, values, right, accuracy = counted.triplets(count)
    assert counted.products <= factor * count + 3 * 8
    u, s, v = torch.linalg.svd(counted.matrix.double())
    kept = min(count, int((s > 1e-5 * s[0]).sum()))
    torch.testing.assert_close(values[:count].double(), s[:count], rtol=1e-3, atol=1e-5 * float(s[0]))
    expected = (v[:kept].T / s[:kept]) @ u[:, :kept].T
    found = (right[:, :kept] / values[:kept]) @ left[:, :kept].T
    assert (found - expected).norm() < 1e-2 * expected.norm()
    if kept == count:
        assert accuracy.residual <= 1e-3
        cut = float((counted.matrix - (left * values) @ right.T).norm() / s.norm())
        assert 0.5 * cut < accuracy.left_out < 2 * cut


def test_where_singular_values_do_not_fall_the_matrix_is_computed(monkeypatch):
    counted = Counted(with_values(1 - STEPS[:100] / 1000, torch.float64))
    assert counted.triplets(8) is None
    assert 50 < counted.products < 130
    counted.products = 0
    assert counted.triplets(22) is None  # which half of all directions could not give
    assert not counted.products
    operator = MatrixFree(batch_of(LanguageModel(tiny_model("gpt2"))), 0)
    weight = operator.dense()
    left, values, right = operator.triplets(WIDTH // 2)
    torch.testing.assert_close(values, torch.linalg.svdvals(weight)[: WIDTH // 2])
    torch.testing.assert_close(weight @ right, left * values)
    monkeypatch.setattr(operator.runs, "products", None)  # not used any more
    torch.testing.assert_close(operator.apply(weight), weight @ weight.T)
    torch.testing.assert_close(operator.transposed(weight), weight @ weight)
    with pytest.raises(LREError, match="W has no factors yet"):
        _ = operator.factors


def test_rounding_of_products_is_no_reason_to_go_on():
    matrix = with_values(torch.exp(-STEPS / 20))
    noisy = matrix + 1e-3 * with_values(torch.ones(len(STEPS)).double(), seed=3)
    counted = Counted(noisy)
    assert counted.triplets(64, rounding=2**-8) is not None


def test_processes_split_the_products_and_factorize_once():
    lm, sent = LanguageModel(tiny_model("gpt2")), []

    class Two(Processes):
        """Two processes that do the same: their sums are twice the numbers, and their rows half as many."""

        def sum(self, *tensors):
            return [2 * tensor for tensor in tensors]

        def rows(self, mine, places, total):
            sent.append((list(places), total))
            whole = torch.zeros(total, WIDTH, dtype=mine.dtype)
            whole[list(places)] = mine
            return whole

    operator = MatrixFree(batch_of(lm), 1, jvp, Two(1, 2))
    operator.triplets(2)
    assert all(places == list(range(1, total, 2)) for places, total in sent)
    assert operator.products == sum(len(places) for places, _ in sent)
    before = len(sent)
    operator.triplets(1)
    assert len(sent) == before
    assert vjp is matrix_free.vjp
