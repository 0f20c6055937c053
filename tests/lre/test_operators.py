"""W in factors: an LRE that is applied, inverted, edited, decoded, saved and loaded without W."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import Dense, Factors
from lre_lightning.lre.origin import Origin
from tests.helpers.identities import SOME

WIDTH, RANK = 24, 6


@pytest.fixture(scope="module")
def lre():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(WIDTH, WIDTH, generator=generator) @ torch.diag(0.7 ** torch.arange(WIDTH))
    return LRE(weight, torch.randn(WIDTH, generator=generator), 1, Origin("toy", SOME, "r"), beta=1.5, rank=4)


@pytest.fixture(scope="module")
def cut(lre):
    """U, S and V^T of W at rank `RANK`, in float64."""
    left, values, right_t = torch.linalg.svd(lre.weight.double())
    return left[:, :RANK], values[:RANK], right_t[:RANK]


def test_factors_do_what_the_matrix_of_their_rank_does(lre, cut):
    left, values, right_t = cut
    low, states = lre.low_rank(RANK), torch.randn(5, WIDTH)
    close = {"rtol": 1e-4, "atol": 1e-4}
    assert isinstance(low.weight, Factors)
    matrix = (left * values) @ right_t
    torch.testing.assert_close(low(states).double(), 1.5 * states.double() @ matrix.T + lre.bias.double(), **close)
    torch.testing.assert_close(low.operator.transposed(states).double(), states.double() @ matrix, **close)
    torch.testing.assert_close(low.operator.dense().double(), matrix, **close)
    inverse = (right_t.T[:, :4] / values[:4]) @ left[:, :4].T
    edit = low.edit(states[0], states[1])
    torch.testing.assert_close(edit.double(), inverse @ (states[1] - states[0]).double(), **close)
    torch.testing.assert_close(edit, lre.edit(states[0], states[1]), **close)
    assert (low.rank, low.edit_rank, lre.low_rank(3).rank) == (4, 4, 3)
    assert replace(low, rank=None).edit_rank == RANK
    assert torch.equal(low.to("cpu")(states), low(states))
    assert isinstance(lre.operator, Dense)
    assert lre.operator.dense() is lre.weight
    torch.testing.assert_close(lre.operator.transposed(states), states @ lre.weight)


def test_what_is_made_of_operators_is_what_is_made_of_their_matrices(lre):
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
    one, other = Dense(a), Dense(b)
    cut = Factors.of(other, RANK, torch.float32)
    states = torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    for made, matrix in (
        (one @ other, a @ b),
        (one + other, a + b),
        (-2.5 * one, -2.5 * a),
        (one.T, a.T),
        (0.5 * (one @ other.inverse(WIDTH)).T + one @ one, 0.5 * (a @ b.inverse()).T + a @ a),
        (cut.inverse(RANK) @ other, torch.linalg.pinv(cut.dense()) @ b),
    ):
        moved = made.to("cpu")
        assert moved.dtype == torch.float64
        close = {"rtol": 1e-6, "atol": 1e-6} if made.operands[0] is not one else {}
        torch.testing.assert_close(moved.dense(), matrix, **close)
        torch.testing.assert_close(moved.apply(states), states @ matrix.T, **close)
        torch.testing.assert_close(moved.transposed(states), states @ matrix, **close)
        torch.testing.assert_close(moved.triplets(3)[1], torch.linalg.svdvals(matrix)[:3], **close)
    product = replace(lre, weight=lre.operator @ lre.low_rank(RANK).operator)
    edit = product.edit(torch.zeros(WIDTH), states[0])
    torch.testing.assert_close(edit, replace(lre, weight=product.operator.dense()).edit(torch.zeros(WIDTH), states[0]))
    with pytest.raises(LREError, match="has no elements to keep: take factors"):
        product.tensors()
    with pytest.raises(LREError, match=r"operators of the widths \[24, 2\] cannot be combined"):
        one @ Dense(torch.eye(2))
    with pytest.raises(LREError, match=r"W of the width 24 needs b of it, not \[2\]"):
        replace(product, bias=torch.ones(2))


@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 0.0), (torch.float16, 2**-10), (torch.bfloat16, 2**-7)])
def test_a_file_of_factors_gives_the_same_lre(tmp_path, lre, dtype, error):
    low, path = lre.low_rank(RANK, dtype), tmp_path / "lre.safetensors"
    low.save(path)
    dtypes = {name: tensor.dtype for name, tensor in load_file(path).items()}
    assert dtypes == {"left": dtype, "right": dtype, "values": torch.float32, "bias": torch.float32}
    loaded, states = LRE.load(path), torch.randn(3, WIDTH)
    assert loaded.metadata() == low.metadata() == LRE.read_metadata(path)
    assert torch.equal(loaded(states), low(states))
    exact = lre.low_rank(RANK)
    assert (low(states) - exact(states)).norm() <= 3 * error * exact(states).norm()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": torch.tensor([1.0, 2.0])}, "must be positive or zero, the largest first"),
        ({"values": torch.tensor([1.0, -2.0])}, "must be positive or zero, the largest first"),
        ({"values": torch.tensor([1.0, float("nan")])}, "values that are not finite"),
        (
            {"values": torch.tensor([2.0, 1.0]).half()},
            r"values of an LRE must be float32 or float64, not",
        ),
        ({"left": torch.ones(4, 2).long()}, r"left of an LRE must be float32 or .* bfloat16, not torch\.int64"),
        ({"left": torch.ones(4, 3)}, r"factors of shapes .* not \(4, 3\), \(2,\), \(4, 2\) and \(4,\)"),
        ({"values": torch.ones(5), "left": torch.ones(4, 5), "right": torch.ones(4, 5)}, r"\(4, 5\), \(5,\)"),
        ({"weight": torch.ones(4, 4)}, "it has 5 tensors"),
        ({"left": torch.full((4, 2), torch.inf)}, "values that are not finite"),
    ],
)
def test_files_of_such_factors_are_refused(tmp_path, change, message):
    factors = {"left": torch.ones(4, 2), "values": torch.tensor([2.0, 1.0]), "right": torch.ones(4, 2)}
    metadata = LRE(torch.eye(4), torch.ones(4), 0, Origin("toy", SOME, "r")).metadata()
    save_file({**factors, "bias": torch.ones(4), **change}, tmp_path / "x.safetensors", {"lre": json.dumps(metadata)})
    with pytest.raises(LREError, match=message):
        LRE.load(tmp_path / "x.safetensors")


def test_ranks_and_dtypes_that_factors_do_not_have_are_refused(lre):
    low = lre.low_rank(RANK)
    kept, width = f"{RANK}, the number of factors of W that are kept", f"{WIDTH}, the width of the hidden states"
    for rank, use, bound in (
        (RANK + 1, low.operator.inverse, kept),
        (0, low.operator.inverse, kept),
        (RANK + 1, low.low_rank, kept),
        (RANK + 1, lambda rank: low.edit(torch.ones(WIDTH), torch.zeros(WIDTH), rank), kept),
        (RANK + 1, lambda rank: replace(low, rank=rank), kept),
        (WIDTH + 1, lre.low_rank, width),
        (WIDTH + 1, lambda rank: replace(lre, rank=rank), width),
    ):
        with pytest.raises(LREError, match=f"rank {rank} is out of range: it must be 1 to {bound}$"):
            use(rank)
    with pytest.raises(LREError, match=r"cannot be kept in torch\.int8: give one of float32, float16, bfloat16"):
        lre.low_rank(RANK, torch.int8)
