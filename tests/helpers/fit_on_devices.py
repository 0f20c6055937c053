"""A fit and a validation on several processes, run by tests/runs/test_devices.py in a child of the launcher.

Each fit has a folder of its own, with its results, its LREs, and the samples that each process was served.
"""

import json
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from lre_lightning.callbacks import ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.measures import Baselines, LineIntegrals, LowRank, Majorities, Outcomes, WholeObjects
from lre_lightning.training.module import LREModule
from tests.helpers.toy import WIDTH
from tests.helpers.trainer import trainer_of

DEMO = {
    "relations": ["country capital city"],
    "source": "demo",
    "n_shot": 5,
    "trials": 1,
    "loader": {"batch_size": 4},
    "selection": {"max_samples": 14},
}
TOY = {"n_shot": 2, "trials": 2, "loader": {"batch_size": 4}}


class Served(Callback):
    """Notes the samples that this process is served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def note(self, split, trainer, batch):
        columns = batch.relation, batch.trial, batch.sample, batch.weight
        lines = zip(*(column.tolist() for column in columns), strict=True)
        with (self.folder / f"served_{trainer.state.fn.value}_{trainer.global_rank}.jsonl").open("a") as file:
            file.writelines(json.dumps([split, *line]) + "\n" for line in lines)

    def on_train_batch_end(self, trainer, _module, _outputs, batch, _index):
        self.note("train", trainer, batch)

    def on_validation_batch_end(self, trainer, _module, _outputs, batch, _index, _loader=0):
        self.note("test", trainer, batch)


def fit(root: str, toy: str, lm: str, strategy: str, devices: int) -> None:
    """Fit and validate the demo or the toy, whose model and relations are in the folder `toy`.

    The processes of ``"shared"`` share the demo. Three processes compute products of the toy's W, and, since all its
    singular values are 1, all elements from them.
    """
    root, toy = Path(root), Path(toy)
    measures = [Majorities(), LowRank(), Outcomes(), Baselines(), LineIntegrals(2), WholeObjects()]
    if lm in ("demo", "shared"):
        loading = {"tensor_parallel": devices if lm == "shared" else None}
        module = LREModule("demo", [2], betas=[1.0, 2.25], ranks=[8, 32], measures=measures, loading=loading)
        data = RelationDataModule(**DEMO)
    else:
        fitting = {"method": "matrix_free" if devices == 3 else "dense"}
        module = LREModule(str(toy / "model"), ranks=[1, WIDTH], fitting=fitting, measures=measures)
        data = RelationDataModule(str(toy / "model"), source=str(toy / "relations"), **TOY)
    root.mkdir(parents=True, exist_ok=True)

    def trainer() -> L.Trainer:
        start = DDPStrategy(start_method="fork") if strategy == "object" else strategy
        return trainer_of(root, [ResultsTable(), Served(root)], devices=devices, strategy=start)

    trainer().fit(module, datamodule=data)
    if strategy != "ddp_spawn":  # whose processes take long to start
        trainer().validate(module, datamodule=data, verbose=False)
