"""Datamodules for any Lightning project, installed as ``lre_lightning.datamodules``."""

from lre_lightning.datamodules.distraction import DistractionBatch, DistractionDataModule
from lre_lightning.datamodules.loaders import Loader
from lre_lightning.datamodules.relations import RelationDataModule
from lre_lightning.datamodules.texts import Reading, TextDataModule
from lre_lightning.prompts.batch import RelationBatch, collate
from lre_lightning.prompts.options import Prompts
from lre_lightning.relations.selection import Selection

__all__ = [
    "DistractionBatch",
    "DistractionDataModule",
    "Loader",
    "Prompts",
    "Reading",
    "RelationBatch",
    "RelationDataModule",
    "Selection",
    "TextDataModule",
    "collate",
]
