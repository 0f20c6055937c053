"""The estimator and the frozen result: what theory says they do, with controls."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from lre_lightning.errors import LREError
from lre_lightning.grid import check_ranks
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.inverse import LowRankInverse
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE, Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from tests.helpers.tiny_models import WIDTH, tiny_model

HIDDEN = 12


def affine_examples(weight, bias, count=5, noise=0.0):
    """Examples of an exactly affine F, as the engine would return them."""
    generator = torch.Generator().manual_seed(0)
    examples = []
    for _ in range(count):
        subject = torch.randn(HIDDEN, generator=generator)
        jacobian = weight + noise * torch.randn(HIDDEN, HIDDEN, generator=generator)
        examples.append(PromptJacobian({3: jacobian}, {3: subject}, weight @ subject + bias))
    return examples


def random_lre(seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(HIDDEN, HIDDEN, generator=generator), torch.randn(HIDDEN, generator=generator)
    origin = Origin("toy", "abc", "capital", "main", "factual", 2, "{} is", (("a", "b"), ("c", "d")))
    return LRE(weight, bias, **{"layer": 3, "origin": origin, "beta": 2.5, "rank": 4, **changes})


def test_an_exactly_affine_function_is_recovered():
    weight, bias = torch.randn(HIDDEN, HIDDEN), torch.randn(HIDDEN)
    estimator = LREEstimator([3])
    for example in affine_examples(weight, bias):
        estimator.update(example)
    torch.testing.assert_close(estimator.weight(3), weight)
    torch.testing.assert_close(estimator.bias(3), bias, rtol=1e-4, atol=1e-5)
    lre = LRE(estimator.weight(3), estimator.bias(3), 3, Origin("toy", "", "r"))
    unseen = torch.randn(7, HIDDEN)
    torch.testing.assert_close(lre(unseen), unseen @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(lre(unseen, beta=2.0), unseen @ weight.T + bias, rtol=0.1)


def test_running_means_equal_the_means_of_all_examples():
    weight = torch.randn(HIDDEN, HIDDEN)
    examples = affine_examples(weight, torch.zeros(HIDDEN), noise=0.5)
    estimator = LREEstimator([3])
    for example in examples:
        estimator.update(example)
    torch.testing.assert_close(estimator.weight(3), torch.stack([e.jacobian[3] for e in examples]).mean(0))
    torch.testing.assert_close(estimator.bias(3), torch.stack([e.bias(3) for e in examples]).mean(0))
    assert not torch.allclose(estimator.weight(3), examples[0].jacobian[3], rtol=0.1)


def test_sums_are_float32_for_a_half_precision_lm():
    """In bfloat16 a sum of 1 + 2^-9 + 2^-9 … stays at 1; in float32 it does not."""
    estimator = LREEstimator([0])
    for value in [1.0] + [2.0**-9] * 8:
        jacobian = torch.full((2, 2), value, dtype=torch.bfloat16)
        zeros = torch.zeros(2, dtype=torch.bfloat16)
        estimator.update(PromptJacobian({0: jacobian}, {0: zeros}, zeros))
    assert estimator.weight(0).dtype == torch.float32
    assert float(estimator.weight(0)[0, 0] * 9) == 1 + 8 * 2.0**-9


def test_estimator_without_examples():
    with pytest.raises(LREError, match="no example has been accumulated at layer 5"):
        LREEstimator([0]).weight(5)


@pytest.mark.parametrize("rank", [1, 5, HIDDEN])
def test_low_rank_inverse_is_that_of_the_full_decomposition(rank):
    weight = torch.randn(HIDDEN, HIDDEN, dtype=torch.float64)
    left, values, right_t = torch.linalg.svd(weight)
    expected = sum(torch.outer(right_t[i], left[:, i]) / values[i] for i in range(rank))
    inverse = LowRankInverse(weight)
    torch.testing.assert_close(inverse.matrix(rank), expected)
    delta = torch.randn(4, HIDDEN, dtype=torch.float64)
    torch.testing.assert_close(inverse.apply(delta, [rank, 2])[:, 0], delta @ expected.T)
    assert torch.linalg.matrix_rank(inverse.matrix(rank)) == rank


def test_full_rank_inverse_turns_o_into_the_target_and_low_rank_does_not():
    lre = random_lre(rank=None)
    subject, target = torch.randn(HIDDEN), torch.randn(HIDDEN)
    edited = subject + lre.edit(lre(subject, beta=1.0), target)
    torch.testing.assert_close(lre(edited, beta=1.0), target, rtol=1e-3, atol=1e-3)
    low = subject + lre.edit(lre(subject, beta=1.0), target, rank=3)
    assert not torch.allclose(lre(low, beta=1.0), target, rtol=0.1, atol=0.1)


def test_a_singular_weight_has_a_finite_inverse():
    assert LowRankInverse(torch.zeros(3, 3)).matrix(3).abs().max() == 0
    weight = torch.outer(torch.ones(4), torch.arange(4.0))
    torch.testing.assert_close(LowRankInverse(weight).matrix(4), torch.linalg.pinv(weight), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ranks", [[0], [HIDDEN + 1], [-1], []])
def test_ranks_out_of_range(ranks):
    with pytest.raises(LREError, match="rank"):
        check_ranks(ranks, HIDDEN)
    if ranks:
        with pytest.raises(LREError, match=f"rank {ranks[0]} is out of range: it must be 1 to {HIDDEN}"):
            LowRankInverse(torch.eye(HIDDEN)).apply(torch.zeros(HIDDEN), ranks)
        with pytest.raises(LREError, match=f"rank {ranks[0]} is out of range"):
            random_lre(rank=ranks[0])


def test_save_and_load_give_the_same_lre(tmp_path):
    lre = random_lre(layer="emb")
    lre.save(tmp_path / "folder" / "lre.safetensors")
    loaded = LRE.load(tmp_path / "folder" / "lre.safetensors")
    assert torch.equal(loaded.weight, lre.weight)
    assert torch.equal(loaded.bias, lre.bias)
    assert loaded.metadata() == lre.metadata()
    assert loaded.origin == lre.origin
    assert (loaded.layer, loaded.beta, loaded.rank) == ("emb", 2.5, 4)
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["lre.safetensors"]


def test_a_copy_for_a_device_is_the_same_lre():
    lre = random_lre()
    moved = lre.to("cpu")
    assert moved is not lre  # so that what a copy caches, such as its inverse, is not kept with the original
    assert moved.metadata() == lre.metadata()
    assert torch.equal(moved.weight, lre.weight)
    assert torch.equal(moved.bias, lre.bias)


def test_files_that_are_not_lres_are_refused(tmp_path):
    path = tmp_path / "lre.safetensors"
    random_lre().save(path)
    whole = path.read_bytes()
    for content in (b"", whole[:20], whole[: len(whole) // 2], b"junk" * 100):
        path.write_bytes(content)
        with pytest.raises(LREError, match="is not an LRE file that can be read"):
            LRE.load(path)
    with pytest.raises(LREError, match="is not an LRE file that can be read"):
        LRE.load(tmp_path / "missing.safetensors")
    save_file({"weight": torch.zeros(2, 2)}, path)
    with pytest.raises(LREError, match="is not an LRE file that can be read"):
        LRE.load(path)
    tensors = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
    save_file(tensors, path, {"lre": json.dumps(random_lre().metadata())})
    with pytest.raises(LREError, match=r"W of shape \(hidden, hidden\)"):
        LRE.load(path)
    metadata = random_lre().metadata()
    del metadata["origin"]["relation"]
    save_file({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}, path, {"lre": json.dumps(metadata)})
    with pytest.raises(LREError, match="not the metadata of an LRE"):
        LRE.load(path)


def test_an_lre_of_values_that_are_not_finite_is_refused():
    with pytest.raises(LREError, match="'r' holds values that are not finite"):
        LRE(torch.full((2, 2), float("nan")), torch.zeros(2), 0, Origin("toy", "", "r"))


def test_an_lre_is_refused_for_another_model(tmp_path):
    lm = LanguageModel(tiny_model("gpt2", torch.float32, seed=1), name="one")
    other = LanguageModel(tiny_model("gpt2", torch.float32, seed=2), name="two")
    lre = LRE(torch.eye(WIDTH), torch.zeros(WIDTH), 0, Origin("one", lm.fingerprint, "capital"))
    lre.save(tmp_path / "lre.safetensors")
    assert LRE.load(tmp_path / "lre.safetensors", lm).decode(lm, torch.ones(WIDTH)).shape == (lm.vocab_size,)
    with pytest.raises(LREError, match=r"'capital' was estimated from 'one' \(fingerprint .*\), not from 'two'"):
        LRE.load(tmp_path / "lre.safetensors", other)
    with pytest.raises(LREError, match="not from 'two'"):
        lre.decode(other, torch.ones(WIDTH))


def test_the_lre_of_one_example_is_its_taylor_expansion():
    """At the example itself LRE(s) = o, and halving the distance to it quarters the error (Equation 2)."""
    lm = LanguageModel(tiny_model("llama"))
    ids = torch.arange(12) * 5 % 97
    example = prompt_jacobian(lm, ids, 8)
    estimator = LREEstimator(["emb"])
    estimator.update(example)
    lre = LRE(estimator.weight("emb"), estimator.bias("emb"), "emb", Origin("", "", ""))
    subject = example.subject["emb"]
    torch.testing.assert_close(lre(subject), example.object, rtol=1e-9, atol=1e-9)
    step = torch.randn(WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = torch.stack([subject + size * step for size in (0.02, 0.01)])
    runs = PromptBatch(lm, ids[None], torch.tensor([8]), torch.tensor([11]))
    errors = (runs.patched("emb", near[None])[0] - lre(near)).norm(dim=-1)
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_file_holds_just_the_two_tensors(tmp_path):
    random_lre().save(tmp_path / "lre.safetensors")
    tensors = load_file(tmp_path / "lre.safetensors")
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"weight": torch.float32, "bias": torch.float32}
