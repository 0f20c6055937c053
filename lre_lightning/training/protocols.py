"""What callbacks ask of a LightningModule, so that they work with any that offers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord


@runtime_checkable
class HasLREs(Protocol):
    """A module with an LM and LREs of it. On several devices every rank has the whole LM and the same LREs."""

    @property
    def lm(self) -> LanguageModel:
        """The LM."""

    @property
    def lres(self) -> Mapping[tuple[str, int], LRE]:
        """LREs by the name of their relation and the number of their trial; there may be none yet."""


@runtime_checkable
class HasRecords(Protocol):
    """A module with counts of its relations. On several devices every rank has the counts of all of them, reduced."""

    @property
    def records(self) -> Mapping[tuple[str, int], TrialRecord]:
        """The counts by the name of the relation and the number of the trial."""

    def set_beta(self, betas: Mapping[str, float]) -> None:
        """Give relations, by name, another beta of their grid."""
