"""The index of a collection: which LREs it has, how good they are, and what their files must be; checked before use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from typing_extensions import Self

from lre_lightning.errors import LREError, first_line
from lre_lightning.grid import CheckedRank, Layer
from lre_lightning.lre.files import checked_metadata
from lre_lightning.lre.lre import LRE
from lre_lightning.models.identity import Identity
from lre_lightning.records.files import read_records
from lre_lightning.storage.files import write_whole
from lre_lightning.storage.plain import check_plain, listing, mapping, number, shown, text
from lre_lightning.storage.typed import Checked, Count, typed
from lre_lightning.training.bank import TrialKey, file_of

INDEX, CARD, RECORDS, FIGURE, LRES = "index.json", "README.md", "fit_results.jsonl", "relations.png", "lres"
"""Names in a collection's folder; those of records and LREs are the same in a run's folder."""

FORMAT = "lre-lightning collection 1"
LARGEST_INDEX, MOST_LRES = 2**26, 100_000


def _score(value: object, what: str) -> float:
    score = number(value, what, 1)
    if score < 0:
        raise LREError(f"{what} must be a number of 0 to 1, not {score}")
    return score


_Score = Annotated[float, Checked(_score)]
Scores: TypeAlias = tuple[_Score | None, _Score | None]
"""Faithfulness and causality; None where there was nothing to count."""


@dataclass(frozen=True)
class Entry:
    """What the index says of an LRE.

    Attributes:
        metadata: `LRE.metadata`: its layer, beta, rank and origin.
        trials: The trials that it is the mean of, or its only one.
        factors: The rank of W in factors; None for W in full.
        dtype: The dtype of W or of its singular vectors, such as ``"bfloat16"``.
        scores: Its faithfulness and causality on the test samples of its trial.
        full: Those of W in full in the dtype of the fit, where W was cut down or rounded and both were measured.
        size: The size of its file in bytes.
        sha256: The digest of its file; empty for a file of a run, which is not checked against one.
    """

    metadata: Annotated[Mapping[str, Any], Checked(lambda value, _: checked_metadata(value))]
    trials: tuple[Count, ...] = ()
    factors: CheckedRank | None = None
    dtype: Annotated[str, Checked(text, longest=20)] = "float32"
    scores: Scores = (None, None)
    full: Scores = (None, None)
    size: Count = 0
    sha256: Annotated[str, Checked(text, longest=64)] = ""

    @property
    def key(self) -> TrialKey:
        """The relation and the trial."""
        return self.metadata["origin"]["relation"], self.metadata["origin"]["trial"]

    @property
    def file(self) -> str:
        """The path of its file in the collection's folder, which follows from the key."""
        return (Path(LRES) / file_of(self.key)).as_posix()

    @property
    def layer(self) -> Layer:
        """The layer at which s is read."""
        layer: Layer = self.metadata["layer"]
        return layer

    @property
    def category(self) -> str:
        """The category of the relation."""
        return str(self.metadata["origin"]["category"])

    @property
    def loss(self) -> Scores:
        """How much faithfulness and causality W in factors loses; None where it was not measured."""
        first, second = (None if a is None or b is None else a - b for a, b in zip(self.full, self.scores, strict=True))
        return first, second

    def check(self, path: Path) -> None:
        """Check that a file is the one that the index was written for: its size, then its digest."""
        if not self.sha256:
            return
        try:
            size = path.stat().st_size if path.is_file() else -1
            digest = digest_of_file(path) if size == self.size else ""
        except OSError as error:
            raise LREError(f"{str(path)!r} cannot be read: {first_line(error)}") from error
        if digest != self.sha256:
            raise LREError(
                f"{str(path)!r} is damaged, incomplete or of another collection: its size or digest differs from that "
                f"in {INDEX}. Get the collection again"
            )


def digest_of_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


@dataclass(frozen=True)
class Index:
    """The LREs of a collection by relation and trial, and how it was made.

    Attributes:
        entries: What it has; all of one LM.
        made: Plain data on how it was made: options, the fit's configuration, versions of packages, licences.
    """

    entries: Mapping[TrialKey, Entry]
    made: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.entries:
            raise LREError("there is no LRE in it")
        for (relation, trial), entry in self.entries.items():
            if not self.identity.fits(Identity(**entry.metadata["origin"]["identity"])):
                raise LREError(f"its LREs must be of one LM, and that of {relation!r}, trial {trial}, is of another")

    @classmethod
    def of(cls, entries: Iterable[Entry], made: Mapping[str, Any]) -> Self:
        """Return the index of entries, by category and relation."""
        ordered = sorted(entries, key=lambda entry: (entry.category, entry.key))
        by_key = {entry.key: entry for entry in ordered}
        if len(by_key) < len(ordered):
            raise LREError("it has two LREs of the same relation and trial")
        return cls(by_key, made)

    @property
    def origin(self) -> Mapping[str, Any]:
        """The origin of the first LRE, whose LM is that of all."""
        origin: Mapping[str, Any] = next(iter(self.entries.values())).metadata["origin"]
        return origin

    @property
    def identity(self) -> Identity:
        """What the LM computes, `LanguageModel.identity`."""
        return Identity(**self.origin["identity"])

    def write(self, folder: Path) -> None:
        """Write the index into a folder, atomically."""
        listed = [{"file": entry.file, **asdict(entry)} for entry in self.entries.values()]
        plain = {"format": FORMAT, "lres": listed, "made": self.made}
        write_whole(folder / INDEX, json.dumps(plain, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an index that `write` wrote."""
        try:
            if not path.is_file() or path.stat().st_size > LARGEST_INDEX:
                raise LREError("it is too large, or not a file")
            plain = mapping(json.loads(path.read_bytes()), "it")
            if plain.get("format") != FORMAT:
                raise LREError(f"its format is {shown(plain.get('format'))}, and this version reads {FORMAT!r}")
            made = mapping(plain.get("made", {}), "made")
            check_plain(made, "made")
            return cls.of(map(_entry, listing(plain.get("lres"), "lres", MOST_LRES)), made)
        except (OSError, ValueError, KeyError, RecursionError) as error:
            raise LREError(f"{str(path)!r} is not the index of a collection: {first_line(error)}") from error


def _entry(plain: object) -> Entry:
    given = mapping(plain, "an LRE")
    entry = typed(Entry, given, "an LRE")
    if given.get("file") != entry.file or len(entry.sha256) != 64:
        raise LREError(f"the file of an LRE is {shown(given.get('file'))} with its SHA-256, and must be {entry.file!r}")
    return entry


def index_of_run(folder: Path) -> Index:
    """Return the index of a run's folder as it is: the LREs of its scored and reported trials.

    Beta is that of the records, which may have been tuned after the files were written.
    """
    entries, records = [], read_records(folder / RECORDS)
    if len({(record.relation, record.trial) for record in records}) < len(records):
        raise LREError(f"{str(folder / RECORDS)!r} has records of several LMs or prompts: give the folder of one fit")
    for record in records:
        path = folder / LRES / file_of((record.relation, record.trial))
        if not (record.reported and record.scored and path.is_file()):
            continue
        metadata = LRE.read_metadata(path)
        if metadata["origin"]["train"] != record.train or metadata["layer"] != record.layer:
            raise LREError(f"{str(path)!r} is not the LRE of the record in {RECORDS}: another run wrote to its folder")
        scores = record.chosen_scores or (None, None)
        metadata = {**metadata, "beta": record.beta}
        entries.append(Entry(metadata, (record.trial,), scores=plain_scores(scores), size=path.stat().st_size))
    if not entries:
        raise LREError(f"there is no LRE of the records in {str(folder / LRES)!r}: fit first")
    return Index.of(entries, {})


def plain_scores(scores: Iterable[float | None]) -> Scores:
    """Return two scores with None for NaN."""
    faithfulness, causality = (None if score is None or score != score else score for score in scores)
    return faithfulness, causality


def part_of(made: Any, *names: str) -> dict[str, Any]:
    """Return a part of what an index says about how it was made; empty if it is missing."""
    for name in names:
        made = made.get(name) if isinstance(made, Mapping) else None
    return dict(made) if isinstance(made, Mapping) else {}
