"""Fits and validates on several processes, with the strategy that is named; run by tests/test_devices.py.

    python -m tests.helpers.fit_on_devices FOLDER STRATEGY {demo|toy|both} WORLD_SIZE [WORLD_SIZE ...]

Each fit has a folder of its own, with its results, its LREs, and the samples that each process was served.
"""

import json
import sys
from pathlib import Path

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy

from lre_lightning.callbacks import AttributeLens, BetaTuning, ResultsTable
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.training.module import LREModule
from tests.helpers.toy import WIDTH

DEMO = {
    "relations": ["country capital city", "person sport"],
    "source": "demo",
    "n_shot": 5,
    "trials": 1,
    "loader": {"batch_size": 16},
}
TOY = {"n_shot": 2, "trials": 2, "loader": {"batch_size": 4}}


class Served(Callback):
    """Notes which samples this process is served."""

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


def trainer_of(root: Path, strategy: str, devices: int) -> L.Trainer:
    more = [BetaTuning("faithfulness")] if root.name.startswith("demo") else []
    if root.name in ("demo1", "demo2"):  # drawing takes its time
        more.append(AttributeLens(["The capital of Italy is", "one", "two"], top_k=2, dirpath=str(root / "lenses")))
    return L.Trainer(
        default_root_dir=root,
        accelerator="cpu",
        devices=devices,
        strategy=DDPStrategy(start_method="fork") if strategy == "object" else strategy,
        logger=TensorBoardLogger(root),
        callbacks=[ResultsTable(), Served(root), *more],
        enable_progress_bar=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        inference_mode=False,
        reload_dataloaders_every_n_epochs=1,
        max_epochs=-1,
    )


def fit(folder: Path, strategy: str, lm: str, devices: int) -> None:
    if lm == "demo":
        module, data = LREModule("demo", fitting={"baselines": True, "line_integrals": 5}), RelationDataModule(**DEMO)
    else:
        module = LREModule(str(folder / "model"), ranks=[1, WIDTH], fitting={"baselines": True, "line_integrals": 2})
        data = RelationDataModule(str(folder / "model"), source=str(folder / "relations"), **TOY)
    root = folder / strategy / f"{lm}{devices}"
    root.mkdir(parents=True)
    used = strategy if devices > 1 else "auto"
    trainer_of(root, used, devices).fit(module, datamodule=data)
    torch.save(module.state_dict(), root / "state.pt")
    trainer_of(root, used, devices).validate(module, datamodule=data, verbose=False)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for world_size in map(int, sys.argv[4:]):
        for name in ("demo", "toy") if sys.argv[3] == "both" else (sys.argv[3],):
            fit(Path(sys.argv[1]), sys.argv[2], name, world_size)
