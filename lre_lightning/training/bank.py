"""What a run keeps: the LREs at their chosen layers and the counts, in a form that checkpoints carry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from lre_lightning.errors import LREError
from lre_lightning.lre.files import checked_metadata
from lre_lightning.lre.lre import LRE, check_origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import at_point
from lre_lightning.storage.files import safe_name
from lre_lightning.storage.plain import listing, mapping, number, text, whole

TrialKey: TypeAlias = tuple[str, int]
"""Name of a relation and number of a trial."""


class LREStore(MutableMapping[TrialKey, LRE]):
    """LREs by relation and trial, in files as soon as there is a folder for them.

    In a large LM an LRE takes tens of megabytes, and there are as many as relations times trials: with a folder memory
    holds none of them, and checkpoints none of their tensors.

    Args:
        folder: Where to write ``<relation>/trial<k>.safetensors``; in memory if None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.writes = True  # one process of many does
        self._kept: dict[TrialKey, LRE | Path] = {}
        self.metadata: dict[TrialKey, dict[str, Any]] = {}

    def __getitem__(self, pair: TrialKey) -> LRE:
        """The LRE of a pair, read from its file where it has one.

        Raises:
            LREError: If the file is gone or is another LRE's.
        """
        kept = self._kept[pair]
        if isinstance(kept, LRE):
            return kept
        lre = LRE.load(kept)
        if not _same(lre.metadata(), self.metadata[pair]):
            raise LREError(f"{str(kept)!r} is not the LRE that this run kept: another run wrote to its folder")
        return replace(lre, beta=self.metadata[pair]["beta"])

    def __setitem__(self, pair: TrialKey, lre: LRE) -> None:
        """Keep an LRE, and write its file where there is a folder."""
        self.metadata[pair] = lre.metadata()
        if self.folder is None:
            self._kept[pair] = lre
            return
        path = self.folder / file_of(pair)
        if self.writes:
            lre.save(path)
        self._kept[pair] = path

    def __delitem__(self, pair: TrialKey) -> None:
        """Forget an LRE; its file stays."""
        del self._kept[pair], self.metadata[pair]

    def __iter__(self) -> Iterator[TrialKey]:
        """The pairs, in the order in which they were kept."""
        return iter(self._kept)

    def __len__(self) -> int:
        """How many LREs there are."""
        return len(self._kept)

    def plain(self) -> list[dict[str, Any]]:
        """Metadata of every LRE, with its tensors, or the folder that has its file."""
        return [
            {"metadata": self.metadata[pair]}
            | (
                {"weight": kept.weight.cpu(), "bias": kept.bias.cpu()}
                if isinstance(kept, LRE)
                else {"folder": str(kept.absolute().parents[1])}
            )
            for pair, kept in self._kept.items()
        ]

    def check_model(self, lm: LanguageModel) -> None:
        """Refuse an LM other than the one that the LREs were estimated from; files are not read.

        Raises:
            LREError: If the fingerprint of the unembedding differs, or the LM has another width or no such layer.
        """
        for pair, kept in self._kept.items():
            check_origin(self.metadata[pair]["origin"], lm)
            lm.check_layers([self.metadata[pair]["layer"]])
            if isinstance(kept, LRE):
                kept.check_model(lm)

    def fill(self, entries: Sequence[dict[str, Any]], folders: Sequence[Path]) -> None:
        """Take up what `plain` gave; files are looked for in `folders`, and then where they were written.

        Raises:
            LREError: If an entry is not that of an LRE, or its file is in none of the folders.
        """
        self._kept, self.metadata = {}, {}
        for given in listing(entries, "the LREs of a checkpoint"):
            entry = mapping(given, "the entry of an LRE")
            metadata = checked_metadata(entry.get("metadata"))
            pair = metadata["origin"]["relation"], metadata["origin"]["trial"]
            if "weight" in entry:
                bias: Any = entry.get("bias")
                self._kept[pair] = LRE.from_tensors(entry["weight"], bias, metadata)
            else:
                written = text(entry.get("folder", ""), "the folder of an LRE")
                self._kept[pair] = _find(pair, metadata, [*folders, *([Path(written)] if written else [])])
            self.metadata[pair] = metadata


class LREBank(nn.Module):
    """LREs and records by relation and trial, as part of a module's `state_dict`.

    How many there are is known only after fit, so they travel as the module's extra state: only tensors and plain
    data, which load under ``weights_only=True``.

    Attributes:
        lres: The LRE of each scored pair.
        records: The counts of each pair.
        tuned: The beta that the fit was begun with, and the one of each relation that was tuned since.
        searched: Folders in which the files of a loaded state are looked for, before the one where they were written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lres = LREStore()
        self.records: dict[TrialKey, TrialRecord] = {}
        self.tuned: tuple[float, dict[str, float]] | None = None
        self.searched: list[Path] = []

    def get_extra_state(self) -> dict[str, Any]:
        """The bank as tensors and plain data."""
        records = [record.plain() for record in self.records.values()]
        return {"lres": self.lres.plain(), "records": records, "tuned": self.tuned}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Rebuild the bank from `get_extra_state`.

        Raises:
            LREError: If it is no such state, an entry is not that of an LRE or a record, or an LRE's file is missing.
        """
        given = mapping(state, "the state of LREs")
        tuned = given.get("tuned")
        records = [TrialRecord.from_plain(entry) for entry in listing(given.get("records"), "the records")]
        self.lres.fill(listing(given.get("lres"), "the LREs"), self.searched)
        self.records = {(record.relation, record.trial): record for record in records}
        self.tuned = None if tuned is None else _checked_tuning(tuned)

    def tune(self, begun_with: float, betas: Mapping[str, float]) -> None:
        """Give the relations of some names another beta: their records, and their LREs with the files of these."""
        self.tuned = (begun_with, dict(betas))
        for pair, record in self.records.items():
            beta = betas.get(pair[0], record.beta)
            self.records[pair] = at_point(record, record.layer, record.rank, beta)
            if pair in self.lres and self.lres.metadata[pair]["beta"] != beta:
                self.lres[pair] = replace(self.lres[pair], beta=beta)


def file_of(pair: TrialKey) -> Path:
    """A pair's file below the folder of LREs, in a folder of its relation's `safe_name`.

    Raises:
        LREError: If the trial is no whole number of at least 0.
    """
    relation, trial = pair
    whole(trial, "the trial of an LRE")
    return Path(safe_name(relation)) / f"trial{trial}.safetensors"


def _checked_tuning(tuned: object) -> tuple[float, dict[str, float]]:
    given = listing(tuned, "the tuning of a checkpoint", 2)
    if len(given) != 2:
        raise LREError("the tuning of a checkpoint must be the beta before it and those of relations")
    betas = {name: number(beta, "a tuned beta") for name, beta in mapping(given[1], "the tuned betas").items()}
    return number(given[0], "the beta before tuning"), betas


def _same(metadata: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two LREs are the same but for their beta, which may be tuned after its file was written."""
    first, second = (json.dumps(one | {"beta": None}, sort_keys=True) for one in (metadata, other))
    return first == second


def _find(pair: TrialKey, metadata: dict[str, Any], folders: Sequence[Path]) -> Path:
    """The file of this very LRE: another run's may have the same name."""
    paths = [folder / file_of(pair) for folder in folders]
    for path in paths:
        if os.path.isfile(path) and _same(LRE.read_metadata(path), metadata):
            return path
    raise LREError(
        f"the LRE of {pair[0]!r}, trial {pair[1]}, is missing: a checkpoint needs the files of its LREs, and "
        f"{' or '.join(repr(str(path)) for path in paths)} is not it. Keep the folder 'lres' beside it, or name "
        "the folder: lre_dir=..."
    )
