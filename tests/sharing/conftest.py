"""A run of the toy with random affine blocks, whose LREs lose something when they are cut down."""

import pytest

from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.smaller import Scorer
from lre_lightning.training.module import LREModule
from tests.helpers.toy import WIDTH, random_toy, toy_tokenizer
from tests.helpers.trainer import trainer_of


@pytest.fixture(scope="package")
def fit(toy_relations, tmp_path_factory):
    """The module, the data and the folder of a fit with three trials."""
    root = tmp_path_factory.mktemp("shared")
    lm = random_toy()
    lm.name = "toys/affine"
    data = RelationDataModule(toy_tokenizer(), source=toy_relations, n_shot=3, trials=3)
    module = LREModule(lm, layers=[0], betas=[1.0], ranks=[2, WIDTH])
    trainer = trainer_of(root, [ResultsTable()])
    trainer.fit(module, datamodule=data)
    (root / "checkpoints").mkdir()
    trainer.save_checkpoint(root / "checkpoints" / "last.ckpt")
    return module, data, root


@pytest.fixture(scope="package")
def scorer(fit):
    module, data, _ = fit
    return Scorer(module.lm, data)


@pytest.fixture
def run(fit, monkeypatch):
    """The run's folder as a collection; cards come without the figure, which takes longer than all else."""
    monkeypatch.setattr("lre_lightning.sharing.card.plot", lambda picture: ("", b"a picture"))
    return LRECollection.from_pretrained(fit[2])
