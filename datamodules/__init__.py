"""Datamodules for any Lightning project, installed as ``lre_lightning.datamodules``."""

from lre_lightning.datamodules.distraction import DistractionBatch, DistractionDataModule
from lre_lightning.datamodules.relations import RelationDataModule
from lre_lightning.prompts.batch import RelationBatch, collate

__all__ = ["DistractionBatch", "DistractionDataModule", "RelationBatch", "RelationDataModule", "collate"]
