"""LMs that several processes share: Jacobians and products of whole LMs, and what is refused."""

import json

import lightning as L
import pytest
import torch

from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.models.loading import Loading
from lre_lightning.models.sharding import _plans
from lre_lightning.training.module import LREModule
from tests.helpers.tiny_models import tiny_model

FAMILIES = {
    "llama": {},
    "gpt2": {},
    "llama3": {"num_key_value_heads": 1},  # which transformers' plan cannot split
}


@pytest.fixture(scope="module")
def found(launch, tmp_path_factory):
    """What two processes have found, which both must have."""
    folder = tmp_path_factory.mktemp("shared")
    for family, changes in FAMILIES.items():
        tiny_model(family, **changes).save_pretrained(folder / family)
    start = "from tests.helpers.shared_lm import run; from torch.multiprocessing import start_processes"
    code = f"{start}; start_processes(run, ({str(folder)!r}, {list(FAMILIES)}), 2, start_method='fork')"
    ended = launch(folder, code=code)
    assert ended.status == 0, ended.error
    one, other = (json.loads((folder / f"found{index}.json").read_text()) for index in range(2))
    assert one == other
    return one


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_lm_has_the_jacobians_and_products_of_a_whole_one(found, family):
    assert all(found[family][name] < 1e-13 for name in ("jacobian", "jvp", "vjp", "double_vjp")), found[family]
    assert found[family]["held"] < 0.7  # of tiny models, half of whose weights are embeddings
    assert found[family]["same"]
    assert found[family]["way"]


@pytest.mark.slow
def test_edits_concepts_and_lenses_of_a_shared_lm_are_those_of_a_whole_one(found):
    shared, whole = found["demo"]["edits"]
    assert shared == whole
    assert shared[0] == "Lima"
    assert found["demo"]["concepts"] < 1e-5
    assert found["demo"]["lens"]


@pytest.mark.slow
def test_no_group_of_processes_outlives_its_lm(found):
    assert found["groups"] == 1  # that of all processes


@pytest.mark.slow
def test_a_split_that_changes_gradients_is_refused(found):
    """Also in 16 bits."""
    wrong = "cannot be split over 2 processes: the gradients of a few tokens are wrong"
    assert [refused.endswith(wrong) for refused in found["wrong"]] == [True] * 2


@pytest.mark.slow
def test_processes_that_do_not_divide_are_refused(found):
    assert found["three"].startswith("tensor_parallel 3 needs 3 processes or a multiple of them, and there are 2:")


@pytest.mark.parametrize(
    ("family", "styles"),
    [("llama", ["columns", "rows"]), ("gpt2", ["columns", "gathered", "rows"]), ("mpt", ["gathered"])],
)
def test_plans_are_tried_from_the_fastest_to_the_one_that_always_fits(family, styles):
    model = tiny_model(family, dtype=torch.float32)
    layers = [path for path, one in model.named_modules() if getattr(one, "weight", torch.ones(1)).ndim == 2]
    plans = list(_plans(model, [path for path in layers if "head" not in path and "w" not in path.split(".")[-1][:2]]))
    assert sorted({*plans[0].values()} - ({"gathered"} if family == "llama" else set())) == styles
    assert {*plans[-1].values()} == {"gathered"}


@pytest.mark.parametrize("other", [{"device_map": "auto"}, {"quantization": "8bit"}])
def test_what_cannot_be_shared_is_refused(other):
    (name,) = other
    with pytest.raises(LREError, match=rf"tensor_parallel 2 splits the LM over processes, and {name} .* leave one"):
        Loading(tensor_parallel=2, **other)
    assert not Loading(tensor_parallel=1, **other).shared


def test_one_process_shares_nothing(tmp_path):
    module = LREModule("demo", loading={"tensor_parallel": 2})
    assert not module.has_lm
    trainer = L.Trainer(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path, max_epochs=1)
    with pytest.raises(LREError, match=r"tensor_parallel 2 needs 2 processes .* there is 1: --trainer\.devices 2"):
        trainer.fit(module, datamodule=RelationDataModule("demo"))
