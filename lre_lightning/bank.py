"""What a run keeps: the LREs at their chosen layers and the counts, in a form that checkpoints carry."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import nn

from lre_lightning.lre import LRE
from lre_lightning.results import PairRecord

Pair: TypeAlias = tuple[str, int]
"""Name of a relation and number of a trial."""


class LREBank(nn.Module):
    """LREs and records by relation and trial, as part of a module's `state_dict`.

    How many there are is known only after fit, so they travel as the module's extra state: only tensors and plain
    data, which load under ``weights_only=True``.

    Attributes:
        lres: The LRE of each scored pair.
        records: The counts of each pair.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lres: dict[Pair, LRE] = {}
        self.records: dict[Pair, PairRecord] = {}

    def get_extra_state(self) -> dict[str, Any]:
        """The bank as tensors and plain data."""
        lres = [
            {"weight": lre.weight.cpu(), "bias": lre.bias.cpu(), "metadata": lre.metadata()}
            for lre in self.lres.values()
        ]
        return {"lres": lres, "records": [record.plain() for record in self.records.values()]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Rebuild the bank from `get_extra_state`.

        Raises:
            LREError: If an entry is not that of an LRE or a record.
        """
        lres = [LRE.from_tensors(entry["weight"], entry["bias"], entry["metadata"]) for entry in state["lres"]]
        records = [PairRecord.from_plain(entry) for entry in state["records"]]
        self.lres = {(lre.origin.relation, lre.origin.trial): lre for lre in lres}
        self.records = {(record.relation, record.trial): record for record in records}

    def first_scored(self, relation: str) -> PairRecord | None:
        """The record of the relation's first scored trial, which chose its layer and rank; None before there is one."""
        return next((r for r in self.records.values() if r.relation == relation and r.scored), None)
