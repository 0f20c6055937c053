"""LREs beside a Jacobian lens, on a toy of which numpy computes every count."""

import numpy as np
import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.measures.jacobian_lens import GENERIC, NAME, JacobianLensLREs, matrix_likeness
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.rows import rows
from lre_lightning.training.module import LREModule
from tests.helpers.toy import WIDTH
from tests.scoring.test_fits import BETAS, GRID, RANKS, ByHand, data_of, noted_fit
from tests.scoring.trials import edits_of, sums_of

LENS_LAYERS = (0, 1)


@pytest.fixture(scope="module")
def lens(random_toy, tmp_path_factory):
    """A file with J = 2 W + noise at the blocks, and J."""
    block = random_toy.module_at(0).matrix.float()
    torch.manual_seed(1)
    jacobians = {
        layer: 2 * torch.linalg.matrix_power(block, 1 - layer) + 0.3 * torch.randn(WIDTH, WIDTH)
        for layer in LENS_LAYERS
    }
    path = tmp_path_factory.mktemp("lens") / "jacobian_lens.safetensors"
    JacobianLens(jacobians, n_prompts=3).save(path)
    return str(path), {layer: jacobian.double().numpy() for layer, jacobian in jacobians.items()}


def test_every_count_is_that_of_numpy(random_toy, toy_relations, lens, tmp_path):
    (path, jacobians), counts = lens, set()
    module = LREModule(random_toy, **GRID, measures=[JacobianLensLREs(path)])
    _, noted = noted_fit(module, data_of(toy_relations, trials=1), tmp_path)
    for key, states in noted.items():
        record, hand, edits = module.records[key], ByHand(random_toy, states.trial), edits_of(states)
        found = record.measures[NAME]
        faithful, causal = (sums_of(found, f"{metric}: ") for metric in ("faithfulness", "causality"))
        assert found.layers == LENS_LAYERS
        for place, layer in enumerate(LENS_LAYERS):
            subjects = np.stack([hand.state(s, layer) for s in hand.train])
            objects = np.stack([hand.output(s) for s in hand.train])
            exact = hand.weight(layer)
            mixed = (4 * exact + jacobians[layer]) / 5
            for name, weight in zip(GENERIC, (jacobians[layer], jacobians[layer], mixed), strict=True):
                bias = 0 if name == GENERIC[0] else (objects - subjects @ weight.T).mean(0)
                said = tuple(hand.faithful(lambda s: beta * weight @ s + bias, layer) for beta in BETAS)  # noqa: B023
                assert faithful[name][place] == said
                by_rank = tuple(
                    hand.causal(edits, layer, lambda *pair: hand.edited(*pair, layer, rank, weight))  # noqa: B023
                    for rank in RANKS
                )
                assert name == GENERIC[0] or causal[name][place] == by_rank
                counts |= {said, by_rank}
            cosine = (exact * jacobians[layer]).sum() / np.linalg.norm(exact) / np.linalg.norm(jacobians[layer])
            assert found.rows[place][0] == pytest.approx(cosine, rel=1e-5)
        assert TrialRecord.from_plain(record.plain()) == record
        assert {row["method"] for row in rows([record])} == {"LRE", *GENERIC}
    assert len(noted) == 2
    assert len(counts) > 6


@pytest.mark.parametrize("width", [8, 40])
def test_likeness_is_that_of_numpys_singular_vectors(width):
    torch.manual_seed(0)
    one = torch.randn(width, width, dtype=torch.float64)
    other = one + torch.randn(width, width, dtype=torch.float64)
    cosine, read, written = matrix_likeness(one, other)
    count = min(16, width // 2)
    left, right = zip(
        *((u[:, :count], v[:count]) for u, _, v in (np.linalg.svd(m.numpy()) for m in (one, other))), strict=True
    )
    assert cosine == pytest.approx(float((one * other).sum() / one.norm() / other.norm()))
    assert read == pytest.approx((np.linalg.svd(right[0] @ right[1].T)[1] ** 2).mean())
    assert written == pytest.approx((np.linalg.svd(left[0].T @ left[1])[1] ** 2).mean())
    assert matrix_likeness(one, 3 * one) == pytest.approx((1, 1, 1))


def test_a_lens_of_another_lm_is_refused_before_the_fit(random_toy, tmp_path):
    JacobianLens({0: torch.eye(WIDTH + 1)}, 1).save(tmp_path / "wide.safetensors")
    with pytest.raises(LREError, match=f"the Jacobian lens has the width {WIDTH + 1}"):
        LREModule(random_toy, measures=[JacobianLensLREs(str(tmp_path / "wide.safetensors"))])
