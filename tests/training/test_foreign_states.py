"""States of modules from strangers: what is in them becomes LREs and records or one clear error."""

import contextlib
import copy
import io
import warnings
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.summary import summarize
from lre_lightning.report.console import print_results
from lre_lightning.runs.checkpoints import STATE
from lre_lightning.training.bank import LREBank, file_of
from lre_lightning.training.module import LREModule
from tests.helpers.hostile import (
    PLAIN,
    SPECIAL,
    Named,
    an_lre,
    changed,
    everything_in,
    little_memory,
    outcome,
    recipes,
    tried,
)
from tests.helpers.records import full_record
from tests.helpers.toy import LAYERS, WIDTH, toy_model

TOY = LanguageModel(toy_model(), name="toy")
TENSORS = {
    "half": torch.zeros(WIDTH, WIDTH, dtype=torch.float16),
    "double": torch.zeros(WIDTH, WIDTH, dtype=torch.float64),
    "integers": torch.zeros(WIDTH, WIDTH, dtype=torch.int64),
    "complex": torch.zeros(WIDTH, WIDTH, dtype=torch.complex64),
    "not finite": torch.full((WIDTH, WIDTH), float("nan")),
    "narrow": torch.zeros(2, 2),
    "flat": torch.zeros(WIDTH),
    "empty": torch.zeros(0, 0),
    "scalar": torch.zeros(()),
    "stride 0": torch.zeros(1).expand(2**16, 2**16),
    "long stride 0": torch.zeros(1).expand(2**16),
    "sparse": torch.eye(WIDTH).to_sparse(),
    "parameter": torch.nn.Parameter(torch.zeros(WIDTH, WIDTH)),
    "transposed": torch.zeros(WIDTH, WIDTH).T,
    "part": torch.zeros(WIDTH, 2 * WIDTH)[:, ::2],
    "meta": torch.zeros(10**6, 10**6, device="meta"),
}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of being deprecated, and of being new
    TENSORS["quantized"] = torch.quantize_per_tensor(torch.eye(WIDTH), 0.1, 0, torch.qint8)
    TENSORS["nested"] = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
ANY = st.one_of(PLAIN, st.sampled_from([Named(name) for name in (*SPECIAL, *TENSORS)]))


@pytest.fixture(scope="module")
def module():
    return LREModule(TOY)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lres")


@pytest.fixture(scope="module")
def state(folder):
    """The state of a module with LREs in memory and one in a file."""
    bank = LREBank()
    for trial in range(3):
        bank.lres.folder = folder if trial == 2 else None
        bank.lres["thing colour", trial] = an_lre(TOY.fingerprint, trial)
        bank.records["thing colour", trial] = full_record(trial, "thing colour")
    bank.tuned = (1.0, 2.0)
    return {STATE: bank.get_extra_state()}


@given(recipe=recipes(ANY))
@tried(100)
def test_any_state_is_one_of_lres_or_an_error(module, state, folder, recipe):
    before = everything_in(folder)
    given_state = changed(state, recipe, SPECIAL | TENSORS)

    def use():
        if isinstance(given_state, dict) and list(given_state) != list(state):
            with pytest.raises(RuntimeError, match="the checkpoint does not fit"):
                module.load_state_dict(given_state)
            return
        module.load_state_dict(given_state)
        for lre in module.lres.values():
            lre.decode(TOY, torch.ones(WIDTH))
        print_results(summarize(module.records.values()))
        torch.save(module.state_dict(), io.BytesIO())

    outcome(use)
    assert TOY.fingerprint == LanguageModel(TOY.model).fingerprint
    assert everything_in(folder) == before


def test_weights_of_an_lm_in_a_state_are_not_loaded(module, state):
    weight = module.lm.model.lm_head.weight
    before = weight.clone()
    with pytest.raises(RuntimeError, match=r"unknown \['lm.model.lm_head.weight'\]"):
        module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)})
    module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)}, strict=False)
    assert torch.equal(weight, before)
    with pytest.raises(RuntimeError, match=r"missing \['bank._extra_state'\]"):
        module.load_state_dict({})


@pytest.mark.parametrize("kind", TENSORS)
def test_a_tensor_of_another_kind_is_refused_before_it_is_computed_with(module, state, kind):
    good = kind in ("double", "transposed", "part")
    given_state = copy.deepcopy(state)
    given_state[STATE]["lres"][0]["tensors"]["weight"] = TENSORS[kind]
    if kind == "stride 0":
        given_state[STATE]["lres"][0]["tensors"]["bias"] = TENSORS["long stride 0"]
    with little_memory(), contextlib.nullcontext() if good else pytest.raises(LREError, match="LRE"):
        module.load_state_dict(given_state)


def test_an_lre_of_another_width_or_layer_is_refused(module):
    lre = an_lre(TOY.fingerprint)
    narrow = replace(lre, weight=torch.eye(2), bias=torch.ones(2), rank=None)
    for kept, message in ((narrow, "has the width 2, and 'toy' 16"), (replace(lre, layer=LAYERS), "layer 2 is out of")):
        bank = LREBank()
        bank.lres["thing colour", 0] = kept
        for check in (kept.check_model, lambda _, bank=bank: module.load_state_dict({STATE: bank.get_extra_state()})):
            with pytest.raises(LREError, match=message):
                check(TOY)


@pytest.mark.parametrize("trial", [-1, True, 1.0, "1/../../x", None])
def test_a_trial_that_is_no_number_has_no_file(trial):
    with pytest.raises(LREError, match="trial"):
        file_of(("x", trial))
