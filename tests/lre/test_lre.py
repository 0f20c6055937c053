"""The estimator and the frozen result: properties that follow from theory, with controls, and its file."""

import pytest
import torch
from safetensors.torch import load_file

from lre_lightning.errors import LREError
from lre_lightning.lre.estimator import LREEstimator
from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import Origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from tests.helpers.identities import SOME
from tests.helpers.tiny_models import WIDTH, tiny_model

HIDDEN = 12


def random_lre(seed=0, **changes):
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.randn(HIDDEN, HIDDEN, generator=generator), torch.randn(HIDDEN, generator=generator)
    origin = Origin("toy", SOME, "capital", "main", None, "factual", 2, "{} is", (("a", "b"), ("c", "d")))
    return LRE(weight, bias, **{"layer": 3, "origin": origin, "beta": 2.5, "rank": 4, **changes})


def estimated(examples, layer=3):
    estimator = LREEstimator([layer])
    for example in examples:
        estimator.update(example)
    return estimator


@pytest.mark.parametrize("noise", [0, 0.5])
def test_estimates_are_means_which_recover_an_affine_function(noise):
    weight, bias = torch.randn(HIDDEN, HIDDEN), torch.randn(HIDDEN)
    examples = []
    for subject in torch.randn(5, HIDDEN):
        jacobian = weight + noise * torch.randn(HIDDEN, HIDDEN)
        examples.append(PromptJacobian({3: jacobian}, {3: subject}, weight @ subject + bias))
    estimator = estimated(examples)
    torch.testing.assert_close(estimator.weight(3), torch.stack([e.jacobian[3] for e in examples]).mean(0))
    torch.testing.assert_close(estimator.bias(3), torch.stack([e.bias(3) for e in examples]).mean(0))
    lre = LRE(estimator.weight(3), estimator.bias(3), 3, Origin("toy", SOME, "r"))
    unseen = torch.randn(7, HIDDEN)
    assert torch.allclose(lre(unseen), unseen @ weight.T + bias, rtol=1e-4, atol=1e-4) == (noise == 0)
    assert not torch.allclose(lre(unseen, beta=2.0), unseen @ weight.T + bias, rtol=0.1)


def test_sums_are_float32_for_a_half_precision_lm():
    """In bfloat16 a sum of 1 + 2^-9 + 2^-9 … stays at 1; in float32 it does not."""
    zeros = torch.zeros(2, dtype=torch.bfloat16)
    jacobians = [torch.full((2, 2), value, dtype=torch.bfloat16) for value in [1.0] + [2.0**-9] * 8]
    estimator = estimated([PromptJacobian({0: jacobian}, {0: zeros}, zeros) for jacobian in jacobians], 0)
    assert estimator.weight(0).dtype == torch.float32
    assert float(estimator.weight(0)[0, 0] * 9) == 1 + 8 * 2.0**-9
    with pytest.raises(LREError, match="no example has been accumulated at layer 5"):
        estimator.weight(5)


def test_the_lre_of_one_example_is_its_taylor_expansion():
    """At the example itself LRE(s) = o, and halving the distance to it quarters the error (Equation 2)."""
    lm = LanguageModel(tiny_model("llama"))
    ids = torch.arange(12) * 5 % 97
    example = prompt_jacobian(lm, ids, 8)
    estimator = estimated([example], "emb")
    lre = LRE(estimator.weight("emb"), estimator.bias("emb"), "emb", Origin("", SOME, ""))
    subject = example.subject["emb"]
    torch.testing.assert_close(lre(subject), example.object, rtol=1e-9, atol=1e-9)
    step = torch.randn(WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = torch.stack([subject + size * step for size in (0.02, 0.01)])
    runs = PromptBatch(lm, ids[None], torch.tensor([8]), torch.tensor([11]))
    errors = (runs.patched("emb", near[None])[0] - lre(near)).norm(dim=-1)
    assert 3.5 < errors[0] / errors[1] < 4.5


def test_an_edit_of_full_rank_turns_o_into_the_target_and_one_of_low_rank_does_not():
    lre = random_lre(rank=None)
    subject, target = torch.randn(HIDDEN), torch.randn(HIDDEN)
    edited = subject + lre.edit(lre(subject, beta=1.0), target)
    torch.testing.assert_close(lre(edited, beta=1.0), target, rtol=1e-3, atol=1e-3)
    low = subject + lre.edit(lre(subject, beta=1.0), target, rank=3)
    assert not torch.allclose(lre(low, beta=1.0), target, rtol=0.1, atol=0.1)


def test_a_file_holds_the_two_tensors_and_gives_the_same_lre(tmp_path):
    lre, path = random_lre(layer="emb"), tmp_path / "folder" / "lre.safetensors"
    lre.save(path)
    assert {name: tensor.dtype for name, tensor in load_file(path).items()} == dict.fromkeys(
        ("weight", "bias"), torch.float32
    )
    assert [entry.name for entry in path.parent.iterdir()] == ["lre.safetensors"]
    for other in (LRE.load(path), lre.to("cpu")):
        assert torch.equal(other.weight, lre.weight)
        assert torch.equal(other.bias, lre.bias)
        assert other.metadata() == lre.metadata()
        assert (other.origin, other.layer, other.beta, other.rank) == (lre.origin, "emb", 2.5, 4)


def test_values_that_are_not_finite_and_ranks_out_of_range_are_refused():
    with pytest.raises(LREError, match="'r' holds values that are not finite"):
        LRE(torch.full((2, 2), float("nan")), torch.zeros(2), 0, Origin("toy", SOME, "r"))
    for rank in (0, HIDDEN + 1):
        with pytest.raises(LREError, match=f"rank {rank} is out of range: it must be 1 to {HIDDEN}"):
            random_lre(rank=rank)


def test_an_lre_is_refused_for_another_model(tmp_path):
    lm = LanguageModel(tiny_model("gpt2", torch.float32, seed=1), name="one")
    other = LanguageModel(tiny_model("gpt2", torch.float32, seed=2), name="two")
    lre = LRE(torch.eye(WIDTH), torch.zeros(WIDTH), 0, Origin("one", lm.identity, "capital"))
    lre.save(tmp_path / "lre.safetensors")
    assert LRE.load(tmp_path / "lre.safetensors", lm).decode(lm, torch.ones(WIDTH)).shape == (lm.vocab_size,)
    with pytest.raises(LREError, match=r"from 'one', and 'two' computes something else: .*differ by"):
        LRE.load(tmp_path / "lre.safetensors", other)
    with pytest.raises(LREError, match="and 'two' computes something else"):
        lre.decode(other, torch.ones(WIDTH))
