"""The LREs and records of a run, in a form that checkpoints carry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import nn

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.origin import check_origin
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord
from lre_lightning.records.selection import at_point
from lre_lightning.storage.files import safe_name
from lre_lightning.storage.plain import whole

TrialKey: TypeAlias = tuple[str, int]
"""Name of a relation and number of a trial."""


class LREStore(Mapping[TrialKey, LRE]):
    """LREs by trial key, in files if there is a folder for them.

    An LRE of a large LM takes tens of megabytes, and there is one per relation and trial: with a folder, neither memory
    nor checkpoints hold them.

    Args:
        folder: The folder for ``<relation>/trial<k>.safetensors``; LREs stay in memory if None.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.writes = True  # only the first of several processes does
        self.metadata: dict[TrialKey, dict[str, Any]] = {}
        self._kept: dict[TrialKey, LRE | Path] = {}

    def __getitem__(self, key: TrialKey) -> LRE:
        """Return an LRE, read from its file if it has one; an `LREError` if that is gone or holds another LRE."""
        kept = self._kept[key]
        if isinstance(kept, LRE):
            return kept
        lre = LRE.load(kept)
        if not same_lre(lre.metadata(), self.metadata[key]):
            raise LREError(f"{str(kept)!r} is not the LRE that this run kept: another run wrote to its folder")
        return replace(lre, beta=self.metadata[key]["beta"])

    def __setitem__(self, key: TrialKey, lre: LRE) -> None:
        self.metadata[key] = lre.metadata()
        self._kept[key] = lre if self.folder is None else self.folder / file_of(key)
        if self.folder is not None and self.writes:
            lre.save(self.folder / file_of(key))

    def set_beta(self, key: TrialKey, beta: float) -> None:
        """Change beta of an LRE; only a process that writes files needs its file, and writes it again."""
        if self.writes or isinstance(self._kept[key], LRE):
            self[key] = replace(self[key], beta=beta)
        else:
            self.metadata[key] = {**self.metadata[key], "beta": beta}

    def __contains__(self, key: object) -> bool:
        return key in self._kept  # without reading a file

    def __iter__(self) -> Iterator[TrialKey]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def plain(self) -> list[dict[str, Any]]:
        """Return the metadata of every LRE, with its tensors or the folder of its file."""
        return [
            {"metadata": self.metadata[key], "tensors": kept.to("cpu").tensors()}
            if isinstance(kept, LRE)
            else {"metadata": self.metadata[key], "folder": str(kept.absolute().parents[1])}
            for key, kept in self._kept.items()
        ]

    def check_model(self, lm: LanguageModel) -> None:
        """Refuse an LM other than the one that the LREs were estimated from, without reading files."""
        for key, kept in self._kept.items():
            check_origin(self.metadata[key]["origin"], lm)
            lm.check_layers([self.metadata[key]["layer"]])
            if isinstance(kept, LRE):
                kept.check_model(lm)

    def refuse_others(self, lm: LanguageModel) -> None:
        """Refuse a folder that holds the LREs of another LM, which a fit would replace."""
        path = next(iter(sorted(self.folder.glob("*/trial*.safetensors"))), None) if self.folder else None
        if path is None:
            return
        try:
            check_origin(LRE.read_metadata(path)["origin"], lm)
        except LREError as error:
            raise LREError(
                f"{str(self.folder)!r} already holds LREs of another LM, which the fit would replace: give the Trainer "
                f"another default_root_dir or the module another fitting.lre_dir, or remove them ({error})"
            ) from error

    def fill(self, entries: Sequence[dict[str, Any]], folders: Sequence[Path]) -> None:
        """Replace the LREs by those of `plain`; their files are searched in `folders`, then where they were written."""
        self._kept, self.metadata = {}, {}
        for entry in entries:
            metadata = entry["metadata"]
            key = metadata["origin"]["relation"], metadata["origin"]["trial"]
            if "tensors" in entry:
                self._kept[key] = LRE.from_tensors(entry["tensors"], metadata)
            else:
                self._kept[key] = _find(key, metadata, [*folders, Path(entry["folder"])])
            self.metadata[key] = metadata


class LREBank(nn.Module):
    """LREs and records by trial key, as part of a module's `state_dict`.

    Their number is only known after fit, so they are the module's extra state: tensors and plain data, which load with
    ``weights_only=True``.

    Attributes:
        lres: The LREs of the scored trials.
        records: The records of all trials.
        tuned: The beta that the fit was begun with, and the one that was chosen since.
        searched: Folders in which the files of a loaded state are searched before the one where they were written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lres = LREStore()
        self.records: dict[TrialKey, TrialRecord] = {}
        self.tuned: tuple[float, float] | None = None
        self.searched: list[Path] = []

    def get_extra_state(self) -> dict[str, Any]:
        """Return the bank as tensors and plain data."""
        records = [record.plain() for record in self.records.values()]
        return {"lres": self.lres.plain(), "records": records, "tuned": self.tuned}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Rebuild the bank from `get_extra_state`; an `LREError` if the file of an LRE is missing."""
        records = [TrialRecord.from_plain(entry) for entry in state["records"]]
        self.lres.fill(state["lres"], self.searched)
        self.records = {(record.relation, record.trial): record for record in records}
        self.tuned = state["tuned"]

    def tune(self, begun_with: float, beta: float) -> None:
        """Change beta in the records of scored trials and in the LREs."""
        self.tuned = begun_with, beta
        for key, record in self.records.items():
            if record.scored:
                self.records[key] = at_point(record, record.layer, record.rank, beta)
            if key in self.lres and self.lres.metadata[key]["beta"] != beta:
                self.lres.set_beta(key, beta)


def file_of(key: TrialKey) -> Path:
    """Return the path of an LRE's file below the folder of LREs; the trial must be a whole number."""
    relation, trial = key
    whole(trial, "the trial of an LRE")
    return Path(safe_name(relation)) / f"trial{trial}.safetensors"


def same_lre(metadata: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Compare two LREs except for beta, which may be tuned after the file was written."""
    first, second = (json.dumps({**entries, "beta": None}, sort_keys=True) for entries in (metadata, other))
    return first == second


def _find(key: TrialKey, metadata: dict[str, Any], folders: Sequence[Path]) -> Path:
    """Return the file of this very LRE: one of another run may have the same name."""
    paths = [folder / file_of(key) for folder in folders]
    for path in paths:
        if os.path.isfile(path) and same_lre(LRE.read_metadata(path), metadata):
            return path
    raise LREError(
        f"the LRE of {key[0]!r}, trial {key[1]}, is missing: a checkpoint needs the files of its LREs, and "
        f"{' or '.join(repr(str(path)) for path in paths)} is not it. Keep the folder 'lres' beside it, or name "
        "the folder: lre_dir=..."
    )
