"""Leading singular triplets and the inverses made of them, against full decompositions."""

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre import operators
from lre_lightning.lre import triplets as engine
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import Dense
from lre_lightning.lre.origin import Origin
from lre_lightning.lre.triplets import leading_singular_triplets
from tests.helpers.identities import SOME

SIZE, COUNT = 400, 16
STEPS = torch.arange(SIZE, dtype=torch.float64)


def with_values(values, dtype=torch.float32, seed=0):
    """A random matrix with the given singular values, made in float64."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64)).Q
        for _ in range(2)
    )
    return ((left * values) @ right.T).to(dtype)


def flat_tail():
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(SIZE, 24, generator=generator, dtype=torch.float64) for _ in range(2))
    return (torch.eye(SIZE, dtype=torch.float64) / 2 + left @ right.T / 10).float()


MATRICES = {
    "smooth decay": lambda: with_values(torch.exp(-STEPS / 20)),
    "flat tail": flat_tail,
    "rank below the count": lambda: with_values(torch.where(STEPS < 9, 20 - STEPS, 0)),
    "rank of the count": lambda: with_values(torch.where(STEPS < COUNT, 20 - STEPS, 0)),
    "float64": lambda: with_values(torch.exp(-STEPS / 20), torch.float64),
    "scaled": lambda: 1e-12 * with_values(torch.exp(-STEPS / 20)),
    "large": lambda: 1e12 * with_values(torch.exp(-STEPS / 20)),
}


@pytest.fixture
def decomposed(monkeypatch):
    """Shapes of the matrices that are decomposed."""
    shapes, svd = [], torch.linalg.svd

    def note(matrix, *arguments, **options):
        shapes.append(tuple(matrix.shape))
        return svd(matrix, *arguments, **options)

    monkeypatch.setattr(torch.linalg, "svd", note)
    return shapes


def orthonormal(vectors):
    error = (vectors.T @ vectors - torch.eye(vectors.shape[1], dtype=vectors.dtype)).abs().max()
    return float(error) < 100 * torch.finfo(vectors.dtype).eps


@pytest.mark.parametrize("name", MATRICES)
def test_triplets_and_inverses_are_those_of_a_full_decomposition(decomposed, name):
    matrix = MATRICES[name]()
    left, values, right_t = torch.linalg.svd(matrix.double())
    decomposed.clear()
    found_left, found_values, found_right = leading_singular_triplets(matrix, COUNT)
    operator = Dense(matrix)
    assert decomposed  # the Krylov space sufficed
    assert all(min(shape) <= SIZE // 2 + engine.BLOCK < SIZE for shape in decomposed)
    assert found_left.dtype == found_values.dtype == found_right.dtype == matrix.dtype
    assert (found_left.shape, found_values.shape, found_right.shape) == ((SIZE, COUNT), (COUNT,), (SIZE, COUNT))
    assert orthonormal(found_left)
    assert orthonormal(found_right)
    assert (found_values.diff() <= 0).all()
    eps = torch.finfo(matrix.dtype).eps
    assert (found_values - values[:COUNT]).abs().max() < 32 * eps * values[0]
    for count in (1, 9, COUNT):
        # The space of the first vectors is determined only by a gap behind them, and not where values are zero.
        if values[count] <= 0.999 * values[count - 1] and values[count - 1] >= 1e-3 * values[0]:
            gap = float((values[count - 1] - values[count]) / values[0])
            for found, right in ((found_left, left), (found_right, right_t.T)):
                projection = found[:, :count].double() @ found[:, :count].double().T
                assert (projection - right[:, :count] @ right[:, :count].T).norm() < 200 * eps / gap, count
    tolerance = 1e-8 if matrix.dtype == torch.float64 else 1e-3
    vectors, ranks = matrix[:3].double(), (4, 1, COUNT)
    applied, forward = operator.edits(matrix[:3], ranks).double(), operator.low_rank(matrix[:3], ranks).double()
    for column, rank in enumerate(ranks):
        kept = min(rank, int((values > 1e-5 * values[0]).sum()))
        expected = (right_t[:kept].T / values[:kept]) @ left[:, :kept].T
        matrix_of_inverse = operator.inverse(rank).dense()
        assert (matrix_of_inverse.double() - expected).norm() < tolerance * expected.norm(), rank
        wanted = vectors @ expected.T
        assert (applied[:, column] - wanted).norm() < 2 * tolerance * wanted.norm()
        cut = vectors @ ((left[:, :rank] * values[:rank]) @ right_t[:rank]).T
        assert (forward[:, column] - cut).norm() < tolerance * cut.norm(), rank


def test_a_matrix_of_full_rank_is_itself():
    matrix = torch.randn(12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    subject = torch.arange(12.0).double()
    torch.testing.assert_close(Dense(matrix).low_rank(subject, [12])[0], matrix @ subject)
    there_and_back = Dense(matrix).edits(Dense(matrix).low_rank(subject, [5]), [5])[0, 0]
    right = torch.linalg.svd(matrix).Vh[:5]
    torch.testing.assert_close(there_and_back, right.T @ right @ subject)


def test_the_full_decomposition_is_the_fallback(decomposed):
    """For a count above an eighth of the size, and where a Krylov space of half the size does not suffice."""
    smooth = with_values(torch.exp(-torch.arange(200.0) / 8).double())
    leading_singular_triplets(smooth, 25)
    assert (200, 200) not in decomposed
    for matrix, count in ((smooth, 26), (smooth, 200), (torch.linalg.qr(smooth).Q + 1e-3 * smooth, 16)):
        decomposed.clear()
        found = leading_singular_triplets(matrix, count)
        assert (200, 200) in decomposed
        left, values, right_t = torch.linalg.svd(matrix)
        for tensor, expected in zip(found, (left[:, :count], values[:count], right_t[:count].T), strict=True):
            assert torch.equal(tensor, expected)


@pytest.mark.parametrize("size", [1, 7, 8, 40])
def test_small_matrices(size):
    matrix = with_values(1 / (1 + torch.arange(float(size)).double()), torch.float64)
    for count in {1, max(1, size // 8), size}:
        left, values, right = leading_singular_triplets(matrix, count)
        torch.testing.assert_close(values, torch.linalg.svdvals(matrix)[:count])
        torch.testing.assert_close(matrix @ right, left * values)
        assert orthonormal(left)
        assert orthonormal(right)


@pytest.mark.parametrize("count", [1, COUNT, 60])
def test_zero_has_inverse_zero(count):
    left, values, right = leading_singular_triplets(torch.zeros(SIZE, SIZE), count)
    assert not values.any()
    assert orthonormal(left)
    assert orthonormal(right) or count < 60  # of the full decomposition
    zero = Dense(torch.zeros(SIZE, SIZE))
    for use in (zero.edits, zero.low_rank):
        assert not use(torch.ones(2, SIZE), [1, count]).any()
    assert not zero.inverse(count).apply(torch.ones(2, SIZE)).any()


def test_a_matrix_of_few_rows_has_no_value_twice():
    """Its Krylov space is complete after one block; what more blocks repeat must not count again."""
    matrix = torch.diag(torch.where(STEPS < 5, 5 - STEPS, 0)).float()
    for count in (3, 40):
        left, values, right = leading_singular_triplets(matrix, count)
        torch.testing.assert_close(values, matrix.diagonal()[:count], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((left * values) @ right.T, torch.diag(matrix.diagonal() * (count > STEPS)))


def test_a_decomposition_is_the_same_every_time_and_leaves_the_random_state_alone():
    matrix, state = MATRICES["smooth decay"](), torch.get_rng_state()
    first = leading_singular_triplets(matrix, COUNT)
    assert torch.equal(torch.get_rng_state(), state)
    torch.randn(5)
    assert all(map(torch.equal, first, leading_singular_triplets(matrix, COUNT)))


def test_w_keeps_its_factorization_and_makes_another_for_a_larger_rank(monkeypatch):
    made = []

    def noted(matrix, count):
        made.append(count)
        return leading_singular_triplets(matrix, count)

    monkeypatch.setattr(operators, "leading_singular_triplets", noted)
    lre = LRE(with_values(1 / (1 + torch.arange(64.0).double())), torch.zeros(64), 0, Origin("toy", SOME, "r"), rank=4)
    first = lre.operator.edits(torch.eye(64), [4, 1])
    assert first.shape == (64, 2, 64)
    lre.operator.inverse(2)
    lre.edit(torch.zeros(64), torch.ones(64))
    assert made == [4]
    lre.edit(torch.zeros(64), torch.ones(64), rank=6)
    whole = lre.operator.edits(torch.eye(64), [64, 4])
    lre.operator.inverse(64)
    assert made == [4, 6, 64]
    torch.testing.assert_close(whole[:, 1], first[:, 0], rtol=1e-4, atol=1e-4)
    for rank in (0, 65):
        with pytest.raises(LREError, match=f"rank {rank} is out of range"):
            lre.operator.inverse(rank)
