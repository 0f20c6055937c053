"""The explorer of the demo."""

import pytest
import torch

from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.sharing.collection import LRECollection

RELATIONS = ["country currency", "country capital city", "person sport"]


@pytest.fixture(scope="session")
def explorer():
    from lre_lightning.explore.explorer import Explorer

    lm, lres = LanguageModel.from_pretrained("demo"), LRECollection.from_pretrained("demo")
    lens = JacobianLens({layer: 2 * torch.eye(lm.hidden_size) for layer in (0, 3)}, n_prompts=1)
    return Explorer(lm, lres, RELATIONS, {"country capital city": {"Peru", "South Korea"}}, lens)
