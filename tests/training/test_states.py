"""States of modules: what of an LM and of LREs is taken from them."""

from dataclasses import replace

import pytest
import torch

from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.runs.checkpoints import STATE
from lre_lightning.training.bank import LREBank, file_of
from lre_lightning.training.module import LREModule
from tests.helpers.hostile import an_lre
from tests.helpers.toy import LAYERS, toy_model

TOY = LanguageModel(toy_model(), name="toy")


@pytest.fixture(scope="module")
def module():
    return LREModule(TOY)


def test_weights_of_an_lm_in_a_state_are_not_loaded(module):
    bank = LREBank()
    bank.lres["thing colour", 0] = an_lre(TOY.identity)
    state = {STATE: bank.get_extra_state()}
    weight = module.lm.model.lm_head.weight
    before = weight.clone()
    with pytest.raises(RuntimeError, match=r"unknown \['lm.model.lm_head.weight'\]"):
        module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)})
    module.load_state_dict({**state, "lm.model.lm_head.weight": torch.zeros_like(before)}, strict=False)
    assert torch.equal(weight, before)
    with pytest.raises(RuntimeError, match=r"missing \['bank._extra_state'\]"):
        module.load_state_dict({})


def test_an_lre_of_another_width_or_layer_is_refused(module):
    lre = an_lre(TOY.identity)
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
