"""Keys and values that share a prefix, against the same operations on the tensors that they stand for."""

import pytest
import torch
from torch.nn import functional

from lre_lightning.models.caches import Joined
from lre_lightning.models.language_model import LanguageModel
from tests.helpers.tiny_models import tiny_model

RUNS, HEADS, BEFORE, OWN, WIDTH = 3, 4, 5, 2, 8
POSITIONS = BEFORE + OWN
SHAPES = {  # prefixes, heads of the prefix, whether the prefix is a join itself
    "one prefix": (1, HEADS, False),
    "two prefixes": (2, HEADS, False),
    "one head for all": (2, 1, False),
    "a join of joins": (2, HEADS, True),
}


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def repeated(prefix, own):
    """Return the tensor that a join stands for, computed row by row."""
    rows = [prefix[row // (len(own) // len(prefix))].expand(own.shape[1], -1, -1) for row in range(len(own))]
    return torch.cat([torch.stack(rows), own], -2)


def pair(prefixes=2, prefix_heads=HEADS, nested=False, heads=HEADS, seed=0):
    """Return a join, the tensor that it stands for, and its own part, which has a graph."""
    prefix = dense_prefix = random(prefixes, prefix_heads, BEFORE, WIDTH, seed=seed)
    if nested:
        shared = random(1, prefix_heads, 3, WIDTH, seed=seed + 1)
        prefix, dense_prefix = Joined(shared, dense_prefix), repeated(shared, dense_prefix)
    own = random(prefixes * RUNS, heads, OWN, WIDTH, seed=seed + 2).requires_grad_(True)
    return Joined(prefix, own), repeated(dense_prefix, own), own


@pytest.fixture(params=SHAPES)
def shape(request):
    return SHAPES[request.param]


@pytest.fixture
def never_joined(monkeypatch):
    """Make the test fail if a join is computed."""

    def fail(_):
        raise AssertionError("the join was computed")

    monkeypatch.setattr(Joined, "tensor", fail)


def check(found, expected, *leaves):
    """Check values, and gradients of a random combination of them."""
    assert not isinstance(found, Joined)
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert expected.std() > 0.01  # not a comparison of constants
    cotangent = random(*expected.shape, seed=9)
    wanted = torch.autograd.grad(expected, leaves, cotangent, retain_graph=True)
    for gradient, right in zip(torch.autograd.grad(found, leaves, cotangent, retain_graph=True), wanted, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-12, atol=1e-12)
        assert right.any()


def test_the_join_is_the_repeated_prefix_and_the_own_part(shape):
    joined, dense, own = pair(*shape)
    check(joined.tensor(), dense, own)


def test_a_join_looks_like_the_tensor_without_computing_it(shape, never_joined):
    joined, dense, _ = pair(*shape)
    for one, other in ((joined, dense), (joined.transpose(-1, -2), dense.transpose(-1, -2))):
        assert one.shape == other.shape == one.size()
        assert one.size(-2) == other.size(-2)
        assert (one.ndim, one.dim(), one.numel()) == (other.ndim, other.dim(), other.numel())
        assert (one.dtype, one.device, one.layout, one.is_cuda) == (other.dtype, other.device, other.layout, False)
    assert Joined(torch.zeros(1, 2, 3, 4).bfloat16(), torch.zeros(2, 2, 3, 4).bfloat16()).dtype == torch.bfloat16


def attend(*states, **options):
    return functional.scaled_dot_product_attention(*states, **options)


def queries(states):
    return random(len(states), HEADS, 3, WIDTH, seed=5)


def with_dropout(states):
    torch.manual_seed(0)
    return attend(queries(states), states, states, dropout_p=0.5)


UNKNOWN = {
    "sum": lambda states: states + 1,
    "keyword": lambda states: torch.stack(tensors=[states, states]),
    "last positions": lambda states: states[:, :, -3:],
    "a new axis at the end": lambda states: states[..., None],
    "a new axis at the front": lambda states: states[None, :, :, :, :],
    "other axes": lambda states: states.transpose(1, 2),
    "flattened heads": lambda states: states.reshape(len(states) * HEADS, -1, WIDTH),
    "width split": lambda states: states.view(len(states), HEADS, -1, WIDTH // 2, 2),
    "sizes left open": lambda states: states.expand(-1, -1, -1, -1),
    "on the left of a product": lambda states: states @ random(WIDTH, 3),
    "product with three axes": lambda states: random(HEADS, 2, WIDTH) @ states.transpose(-1, -2),
    "product of one row for all": lambda states: random(1, HEADS, 2, WIDTH) @ states.transpose(-1, -2),
    "product by keyword": lambda states: torch.matmul(
        input=random(len(states), HEADS, 2, WIDTH), other=states.transpose(2, 3)
    ),
    "reshape by keyword": lambda states: states.reshape(shape=tuple(states.shape)),
    "attention to other values": lambda states: attend(queries(states), states, random(*states.shape, seed=20)),
    "attention by other keys": lambda states: attend(queries(states), random(*states.shape, seed=20), states),
    "attention with dropout": with_dropout,
}


@pytest.mark.parametrize("operation", UNKNOWN)
def test_any_other_operation_gets_the_join(shape, operation):
    joined, dense, own = pair(*shape)
    check(UNKNOWN[operation](joined), UNKNOWN[operation](dense), own)


@pytest.mark.parametrize("cast", [torch.Tensor.type_as, torch.Tensor.to])
def test_a_tensor_is_cast_to_the_dtype_of_a_join(cast):
    joined, dense, _ = pair()
    assert cast(torch.zeros(2), joined).dtype == dense.dtype


KNOWN = {
    "transposed": lambda states: states.transpose(-1, -2),
    "transposed twice": lambda states: torch.transpose(states.transpose(3, 2), -2, 3),
    "heads repeated": lambda states: (
        states[:, :, None, :, :]
        .expand(states.shape[0], states.shape[1], 2, *states.shape[2:])
        .reshape(states.shape[0], 2 * states.shape[1], *states.shape[2:])
    ),
    "cast there and back": lambda states: states.float().to(torch.float64),
    "contiguous": lambda states: states.transpose(2, 3).contiguous(),
    "whole slices": lambda states: states[:, :, :],
    "viewed": lambda states: states.view(states.shape),
}


@pytest.mark.parametrize("operation", KNOWN)
@pytest.mark.parametrize("shape", [(1,), (2,), (2, HEADS, True)], ids=str)
def test_operations_that_keep_positions_apart_keep_the_parts(shape, operation):
    joined, dense, own = pair(*shape)
    found = KNOWN[operation](joined)
    assert isinstance(found, Joined)
    assert isinstance(found.prefix, Joined) == (len(shape) == 3)
    check(found.tensor(), KNOWN[operation](dense), own)


def test_one_head_of_keys_is_expanded_to_many(never_joined):
    """Multi-query attention does this."""
    joined, dense, own = pair(2, prefix_heads=1, heads=1)
    query = random(len(own), HEADS, 3, WIDTH, seed=5).requires_grad_(True)
    expanded = joined.expand(len(own), HEADS, *joined.shape[2:])
    assert isinstance(expanded, Joined)
    check(query @ expanded.transpose(2, 3), query @ dense.transpose(2, 3), query, own)
    check(query @ joined.transpose(2, 3), query @ dense.transpose(2, 3), query, own)


@pytest.mark.parametrize("product", [torch.matmul, torch.Tensor.matmul, lambda left, right: left @ right])
def test_queries_against_keys_and_weights_against_values(shape, product, never_joined):
    keys, dense_keys, own_keys = pair(*shape)
    values, dense_values, own_values = pair(*shape, seed=20)
    query = random(len(own_keys), HEADS, 3, WIDTH, seed=5).requires_grad_(True)
    scores, dense_scores = product(query, keys.transpose(2, 3)), product(query, dense_keys.transpose(2, 3))
    check(scores, dense_scores, query, own_keys)
    weights = torch.softmax(query @ dense_keys.transpose(2, 3), -1)
    check(product(weights, values), product(weights, dense_values), query, own_keys, own_values)
    check(product(torch.softmax(scores, -1), values), product(weights, dense_values), query, own_keys, own_values)


def masks(length):
    """Return additive and boolean masks for three queries, one for all prompts or one per prompt."""
    seen = torch.ones(3, length, dtype=torch.bool).tril(length - 3)
    by_run = torch.stack([seen.roll(row, 1) | seen for row in range(2 * RUNS)])[:, None]
    additive = torch.where(by_run, random(2 * RUNS, 1, 3, length, seed=3), -torch.inf)
    return {"one bool": seen, "bool": by_run, "float": additive, "finite": random(3, length, seed=4)}


ATTENTION = {  # number of queries, options
    "plain": (3, {}),
    "all positions": (POSITIONS, {"is_causal": True}),
    "one bool mask": (3, {"attn_mask": masks(POSITIONS)["one bool"]}),
    "bool masks": (3, {"attn_mask": masks(POSITIONS)["bool"], "dropout_p": 0.0}),
    "float masks": (3, {"attn_mask": masks(POSITIONS)["float"]}),
    "finite mask": (3, {"attn_mask": masks(POSITIONS)["finite"], "scale": 0.3}),
    "causal and scale": (POSITIONS, {"is_causal": True, "scale": 0.01}),
    "a join of joins": (3, {"attn_mask": masks(POSITIONS + 3)["float"]}),
    "one group": (3, {"enable_gqa": True}),
    "two groups": (3, {"attn_mask": masks(POSITIONS)["bool"], "enable_gqa": True}),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_torch(name, never_joined):
    count, options = ATTENTION[name]
    heads = {"one group": 1, "two groups": 2}.get(name, HEADS)
    nested = name == "a join of joins"
    keys, dense_keys, own_keys = pair(2, heads, nested, heads)
    values, dense_values, own_values = pair(2, heads, nested, heads, seed=20)
    query = random(2 * RUNS, HEADS, count, WIDTH, seed=5).requires_grad_(True)
    expected = attend(query, dense_keys, dense_values, **options)
    check(attend(query, keys, values, **options), expected, query, own_keys, own_values)


def test_attention_in_half_precision_is_close_and_keeps_the_dtype():
    keys, values = (pair(2, seed=seed)[0].to(torch.bfloat16) for seed in (0, 20))
    query = random(2 * RUNS, HEADS, 3, WIDTH).bfloat16()
    found = attend(query, keys, values)
    assert found.dtype == torch.bfloat16
    expected = attend(*(one.double() for one in (query, keys.tensor(), values.tensor())))
    assert (found.double() - expected).norm() < 0.01 * expected.norm()


def test_a_graph_keeps_no_copies_of_the_prefix():
    """No gradient is computed for it either."""
    prefix, own = torch.randn(1, HEADS, 50, WIDTH), torch.randn(RUNS, HEADS, 1, WIDTH, requires_grad=True)
    query, kept = torch.randn(RUNS, HEADS, 1, WIDTH, requires_grad=True), []

    def note(tensor):
        kept.append(tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = attend(query, Joined(prefix, own), Joined(prefix, own))
    output.sum().backward()
    assert own.grad.any()
    assert query.grad.any()
    assert prefix.grad is None
    assert max(kept) <= prefix.untyped_storage().nbytes()


def test_only_a_sliding_window_joins_what_grows():
    lm = LanguageModel(tiny_model("gemma3"))
    context = lm.prefix(torch.arange(9)[None])  # longer than the window of 6
    grown = lm.prefix(torch.tensor([[3, 50, 8], [60, 61, 9]]), context).cache
    assert [isinstance(layer.keys, Joined) for layer in grown.layers] == [False, False, True]
    assert [layer.keys.shape[-2] for layer in grown.layers] == [5, 5, 12]  # a window of 6 sees 5 before
    assert grown.layers[2].keys.prefix.shape[0] == 1
