"""Datamodules for any Lightning project, installed as ``lre_lightning.datamodules``."""

from lre_lightning.datamodules.batch import RelationBatch, collate
from lre_lightning.datamodules.distraction import DistractionBatch, DistractionDataModule
from lre_lightning.datamodules.relations import RelationDataModule

__all__ = ["DistractionBatch", "DistractionDataModule", "RelationBatch", "RelationDataModule", "collate"]
