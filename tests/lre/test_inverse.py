"""Leading singular triplets and the inverses made of them, against full decompositions."""

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.lre import inverse as engine
from lre_lightning.lre import lre as lre_module
from lre_lightning.lre.inverse import LowRankInverse, leading_singular_triplets
from lre_lightning.lre.lre import LRE, Origin

SIZE, COUNT = 600, 16


def with_values(values, dtype=torch.float32, seed=0):
    """A random matrix with the singular values that are given, made in float64."""
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


STEPS = torch.arange(SIZE, dtype=torch.float64)
MATRICES = {
    "smooth decay": lambda: with_values(torch.exp(-STEPS / 30)),
    "flat tail": flat_tail,
    "rank below the count": lambda: with_values(torch.where(STEPS < 9, 20 - STEPS, 0)),
    "rank of the count": lambda: with_values(torch.where(STEPS < COUNT, 20 - STEPS, 0)),
    "float64": lambda: with_values(torch.exp(-STEPS / 30), torch.float64),
    "scaled": lambda: 1e-12 * with_values(torch.exp(-STEPS / 30)),
    "large": lambda: 1e12 * with_values(torch.exp(-STEPS / 30)),
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


@pytest.fixture(scope="module")
def references():
    """The matrices by name, and their decompositions in float64."""
    matrices = {name: make() for name, make in MATRICES.items()}
    return {name: (matrix, torch.linalg.svd(matrix.double())) for name, matrix in matrices.items()}


def orthonormal(vectors):
    error = (vectors.T @ vectors - torch.eye(vectors.shape[1], dtype=vectors.dtype)).abs().max()
    return float(error) < 100 * torch.finfo(vectors.dtype).eps


@pytest.mark.parametrize("name", MATRICES)
def test_triplets_are_those_of_a_full_decomposition(references, decomposed, name):
    matrix, (left, values, right_t) = references[name]
    decomposed.clear()
    found_left, found_values, found_right = leading_singular_triplets(matrix, COUNT)
    assert decomposed  # the Krylov space sufficed
    assert all(min(shape) <= SIZE // 2 + engine.BLOCK for shape in decomposed)
    assert found_left.dtype == found_values.dtype == found_right.dtype == matrix.dtype
    assert (found_left.shape, found_values.shape, found_right.shape) == ((SIZE, COUNT), (COUNT,), (SIZE, COUNT))
    assert orthonormal(found_left)
    assert orthonormal(found_right)
    assert (found_values.diff() <= 0).all()
    eps = torch.finfo(matrix.dtype).eps
    assert (found_values - values[:COUNT]).abs().max() < 32 * eps * values[0]
    for count in (1, 9, COUNT):
        if values[count] > 0.999 * values[count - 1]:  # the space is not determined
            continue
        if values[count - 1] < 1e-3 * values[0]:  # neither is that of what is zero
            continue
        gap = float((values[count - 1] - values[count]) / values[0])
        for found, right in ((found_left, left), (found_right, right_t.T)):
            difference = found[:, :count].double() @ found[:, :count].double().T - right[:, :count] @ right[:, :count].T
            assert difference.norm() < 200 * eps / gap, count


@pytest.mark.parametrize("name", MATRICES)
def test_inverses_are_those_of_a_full_decomposition(references, decomposed, name):
    matrix, (left, values, right_t) = references[name]
    decomposed.clear()
    inverse = LowRankInverse(matrix, COUNT)
    assert (SIZE, SIZE) not in decomposed
    for rank in (1, 4, COUNT):
        kept = min(rank, int((values > 1e-5 * values[0]).sum()))
        expected = (right_t[:kept].T / values[:kept]) @ left[:, :kept].T
        tolerance = 1e-8 if matrix.dtype == torch.float64 else 1e-3
        assert (inverse.matrix(rank).double() - expected).norm() < tolerance * expected.norm(), rank
        delta = matrix[:3]
        found = inverse.apply(delta, [rank])[:, 0].double()
        wanted = delta.double() @ expected.T
        assert (found - wanted).norm() < 2 * tolerance * wanted.norm()
        assert torch.isfinite(found).all()


@pytest.mark.parametrize("name", MATRICES)
def test_a_matrix_cut_down_to_a_rank_is_that_of_a_full_decomposition(references, decomposed, name):
    matrix, (left, values, right_t) = references[name]
    decomposed.clear()
    inverse = LowRankInverse(matrix, COUNT)
    assert (SIZE, SIZE) not in decomposed
    ranks = (4, 1, COUNT)
    subject = torch.randn(2, 3, SIZE, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = inverse.forward(subject.to(matrix), ranks)
    assert found.shape == (2, 3, len(ranks), SIZE)
    for column, rank in enumerate(ranks):
        expected = subject @ (left[:, :rank] @ torch.diag(values[:rank]) @ right_t[:rank]).T
        tolerance = 1e-8 if matrix.dtype == torch.float64 else 1e-3
        assert (found[:, :, column].double() - expected).norm() < tolerance * expected.norm(), rank


def test_a_matrix_of_full_rank_is_itself_and_one_of_zero_stays_zero():
    matrix = torch.randn(12, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    subject = torch.arange(12.0).double()
    torch.testing.assert_close(LowRankInverse(matrix).forward(subject, [12])[0], matrix @ subject)
    there_and_back = LowRankInverse(matrix, 5).apply(LowRankInverse(matrix, 5).forward(subject, [5]), [5])[0, 0]
    right = torch.linalg.svd(matrix).Vh[:5]
    torch.testing.assert_close(there_and_back, right.T @ right @ subject)
    assert not LowRankInverse(torch.zeros(12, 12)).forward(torch.ones(12), [1, 12]).any()


def test_the_full_decomposition_is_the_fallback(decomposed):
    """For a count above an eighth of the size, and where a Krylov space of half the size does not suffice."""
    smooth = with_values(torch.exp(-torch.arange(200.0) / 8).double())
    leading_singular_triplets(smooth, 25)
    assert (200, 200) not in decomposed
    for matrix, count in ((smooth, 26), (smooth, 200), (torch.linalg.qr(smooth).Q + 1e-3 * smooth, 16)):
        decomposed.clear()
        left, values, right = leading_singular_triplets(matrix, count)
        assert (200, 200) in decomposed
        expected_left, expected, expected_right_t = torch.linalg.svd(matrix)
        assert torch.equal(left, expected_left[:, :count])
        assert torch.equal(values, expected[:count])
        assert torch.equal(right, expected_right_t[:count].T)


@pytest.mark.parametrize("size", [1, 2, 7, 8, 16, 40, 64])
def test_small_matrices(size):
    matrix = with_values(1 / (1 + torch.arange(float(size)).double()), torch.float64)
    for count in {1, max(1, size // 8), size}:
        left, values, right = leading_singular_triplets(matrix, count)
        torch.testing.assert_close(values, torch.linalg.svdvals(matrix)[:count])
        torch.testing.assert_close(matrix @ right, left * values)
        assert orthonormal(left)
        assert orthonormal(right)


@pytest.mark.parametrize("count", [1, COUNT, 75])
def test_zero_has_inverse_zero(count):
    left, values, _ = leading_singular_triplets(torch.zeros(SIZE, SIZE), count)
    assert not values.any()
    assert orthonormal(left)
    inverse = LowRankInverse(torch.zeros(SIZE, SIZE), count)
    assert torch.equal(inverse.matrix(count), torch.zeros(SIZE, SIZE))
    assert not inverse.apply(torch.ones(2, SIZE), [1, count]).any()


def test_vectors_of_zero_are_orthonormal():
    assert orthonormal(leading_singular_triplets(torch.zeros(SIZE, SIZE), 75)[2])


def test_a_matrix_of_few_rows_has_no_value_twice():
    """Its Krylov space is whole after one block; what more blocks repeat must not count again."""
    matrix = torch.diag(torch.where(STEPS < 5, 5 - STEPS, 0)).float()
    for count in (3, 40):
        left, values, right = leading_singular_triplets(matrix, count)
        torch.testing.assert_close(values, matrix.diagonal()[:count], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close((left * values) @ right.T, torch.diag(matrix.diagonal() * (count > STEPS)))


def test_a_decomposition_is_the_same_every_time():
    matrix = MATRICES["smooth decay"]()
    first = leading_singular_triplets(matrix, COUNT)
    torch.randn(5)
    assert all(
        torch.equal(one, other) for one, other in zip(first, leading_singular_triplets(matrix, COUNT), strict=True)
    )


def test_the_random_state_is_left_alone():
    state = torch.get_rng_state()
    leading_singular_triplets(torch.eye(64), 2)
    assert torch.equal(torch.get_rng_state(), state)


def test_ranks_above_the_largest_are_refused():
    inverse = LowRankInverse(torch.eye(64), 4)
    assert inverse.max_rank == 4
    assert inverse.apply(torch.ones(64), [4, 1]).shape == (2, 64)
    with pytest.raises(LREError, match="rank 5 is out of range: it must be 1 to 4"):
        inverse.matrix(5)
    with pytest.raises(LREError, match="rank 5 is out of range: it must be 1 to 4"):
        inverse.apply(torch.ones(64), [1, 5])
    with pytest.raises(LREError, match="rank 5 is out of range: it must be 1 to 4, the largest rank that W was"):
        inverse.forward(torch.ones(64), [1, 5])
    for rank in (0, 65):
        with pytest.raises(LREError, match=f"rank {rank} is out of range: it must be 1 to 64"):
            LowRankInverse(torch.eye(64), rank)


def test_an_lre_keeps_its_factorization_and_makes_another_for_a_larger_rank(monkeypatch):
    made = []

    class Noted(LowRankInverse):
        def __init__(self, weight, max_rank=None):
            made.append(max_rank)
            super().__init__(weight, max_rank)

    monkeypatch.setattr(lre_module, "LowRankInverse", Noted)
    lre = LRE(with_values(1 / (1 + torch.arange(64.0).double())), torch.zeros(64), 0, Origin("toy", "", "r"), rank=4)
    first = lre.inverse(4)
    assert lre.inverse(4) is lre.inverse(2) is first
    lre.edit(torch.zeros(64), torch.ones(64))
    assert made == [4]
    lre.edit(torch.zeros(64), torch.ones(64), rank=6)
    assert made == [4, 6]
    assert lre.inverse(4) is lre.inverse(6)
    whole = lre.inverse()
    assert made == [4, 6, 64]
    assert lre.inverse(64) is lre.inverse() is lre.inverse(1) is whole
    torch.testing.assert_close(whole.matrix(4), first.matrix(4), rtol=1e-4, atol=1e-4)
    assert lre.to("cpu").inverse(2) is not whole  # a copy has its own
    assert made == [4, 6, 64, 2]
    with pytest.raises(LREError, match="rank 65 is out of range"):
        lre.inverse(65)


@pytest.mark.parametrize("kept", [False, True])
def test_an_lre_refuses_rank_zero(kept):
    lre = LRE(torch.eye(8), torch.zeros(8), 0, Origin("toy", "", "r"))
    if kept:
        lre.inverse()
    with pytest.raises(LREError, match="rank 0 is out of range"):
        lre.inverse(0)
