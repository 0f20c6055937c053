"""A collection: the LREs of one LM, loaded one at a time from a folder, a run's folder or the Hugging Face hub."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from lre_lightning.demo import COLLECTIONS
from lre_lightning.errors import LREError
from lre_lightning.grid import Layer
from lre_lightning.html import html_table
from lre_lightning.lens.likeness import LIKENESSES, Likeness, read_likenesses
from lre_lightning.lre.lre import LRE, first_trials, origins_of
from lre_lightning.lre.origin import check_origin
from lre_lightning.models.identity import Identity
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.files import Records, read_records
from lre_lightning.relations.subjects import SUBJECTS, read_subjects
from lre_lightning.sharing.index import CARD, INDEX, RECORDS, Index, index_of_run, part_of
from lre_lightning.sharing.places import Folder, Place, find
from lre_lightning.training.bank import TrialKey, same_lre

if TYPE_CHECKING:
    from lre_lightning.sharing.smaller import Form, Scorer


class NoSuchLRE(LREError, KeyError):
    """There is no LRE of a relation or a trial in a collection."""

    __str__ = Exception.__str__


class LRECollection(Mapping[TrialKey, LRE]):
    """LREs of one LM by relation and trial; a relation alone stands for its first trial.

    Only the index is read at first. Each LRE is read, or downloaded, when it is looked up, checked as a file from
    others, and not kept.

    Args:
        place: Where the files are; see `from_pretrained`.
        index: The LREs that it has.

    Example:
        >>> lres = LRECollection.from_pretrained("demo")
        >>> lres["country capital city"].layer
        2
        >>> sorted({relation for relation, _ in lres.select(category="bias")})[:2]
        ['name gender', 'name origin']
    """

    def __init__(self, place: Place, index: Index) -> None:
        self.place, self.index = place, index
        self._checked: set[str] = set()

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> Self:
        """Open a collection.

        Args:
            source: A name on the Hugging Face hub, such as ``"org/name"``, the folder of a collection, a run's folder,
                or ``"smollm2"`` or ``"demo"`` for the bundled LREs of that LM.
            revision: Branch, tag or commit on the hub.
            token: Token for the hub; the one that is logged in with if None.
            cache_dir: Folder for downloads; the hub's usual one if None.

        Raises:
            LREError: If there is no collection, or its index is invalid.
        """
        place, indexed = find(source, revision, token, cache_dir)
        return cls(place, Index.read(place.fetch(INDEX)) if indexed else index_of_run(Path(str(place))))

    def __getitem__(self, key: str | TrialKey) -> LRE:
        """Return an LRE by its relation, or by relation and trial.

        Raises:
            LREError: If there is none, or its file is damaged, incomplete or another one.
        """
        entry = self.index.entries[self._key(key)]
        path = self.path(key)
        lre = LRE.load(path)
        if not same_lre(lre.metadata(), entry.metadata):
            raise LREError(f"{str(path)!r} is not the LRE that {INDEX} says: get the collection again")
        return replace(lre, beta=entry.metadata["beta"])

    def path(self, key: str | TrialKey) -> Path:
        """Return the checked file of an LRE, downloaded if need be; errors are those of a look-up."""
        entry = self.index.entries[self._key(key)]
        path = self.place.fetch(entry.file)
        if entry.file not in self._checked:
            entry.check(path)
            self._checked.add(entry.file)
        return path

    def _key(self, key: object) -> TrialKey:
        first = first_trials(self)
        entry_key = (key, first[key]) if isinstance(key, str) and key in first else key
        if entry_key in self.index.entries:
            return entry_key  # type: ignore[return-value]
        near = difflib.get_close_matches(key, first, n=3) if isinstance(key, str) else []
        raise NoSuchLRE(f"there is no LRE of {key!r} in {self.place}: it has {', '.join(near or sorted(first)[:5])}, …")

    def __contains__(self, key: object) -> bool:
        try:
            return bool(self._key(key))
        except NoSuchLRE:
            return False

    def __iter__(self) -> Iterator[TrialKey]:
        return iter(self.index.entries)

    def __len__(self) -> int:
        return len(self.index.entries)

    @property
    def metadata(self) -> dict[TrialKey, Mapping[str, Any]]:
        """The metadata of every LRE, `LRE.metadata`, without reading files."""
        return {key: entry.metadata for key, entry in self.index.entries.items()}

    @property
    def model(self) -> str:
        """Name or folder of the LM."""
        return str(self.index.origin["model"])

    @property
    def revision(self) -> str | None:
        """The LM's revision on the hub, if any."""
        revision: str | None = self.index.origin["revision"]
        return revision

    @property
    def identity(self) -> Identity:
        """What the LM computes, `LanguageModel.identity`."""
        return self.index.identity

    @property
    def trusted(self) -> bool:
        """Whether the LM that it names may be loaded: one of this package, or that of a run's own folder."""
        own = isinstance(self.place, Folder) and not (self.place.path / INDEX).exists()
        return own or (self.model in COLLECTIONS and not self.index.origin["adapter"])

    @property
    def loading(self) -> dict[str, Any]:
        """How the LM is loaded: the options of `LREModule` by their dotted names, only the dtype if not `trusted`.

        Others may have written the index, which must not choose what is downloaded and run.
        """
        dtype = part_of(self.index.made, "config", "model", "loading").get("dtype")
        options = {"name_or_path": self.model, "loading.revision": self.revision, "loading.dtype": dtype}
        options["loading.adapter"] = self.index.origin["adapter"]
        chosen = options if self.trusted else {"loading.dtype": dtype}
        return {name: value for name, value in chosen.items() if isinstance(value, str)}

    @cached_property
    def records(self) -> Records:
        """The records of the fit: every count of the LREs as they were before they were made smaller."""
        return read_records(self.place.fetch(RECORDS))

    @cached_property
    def subjects(self) -> dict[str, list[str]]:
        """The subjects of the data, by relation; empty if a run's folder does not have them."""
        subjects = read_subjects(self.place.fetch(SUBJECTS))
        return {name: subjects[name] for name in first_trials(self) if name in subjects}

    @cached_property
    def likenesses(self) -> dict[str, Likeness]:
        """What says where lenses say nothing at the layers of their LREs, by relation; empty if not carried."""
        if not isinstance(self.place, Folder):
            return {}
        layers = {name: self.metadata[name, trial]["layer"] for name, trial in first_trials(self).items()}
        return read_likenesses(self.place.fetch(LIKENESSES), origins_of(self), layers)

    @property
    def card(self) -> str:
        """The text of the card, Markdown with metadata; empty for a run's folder."""
        path = self.place.fetch(CARD) if self.index.made else None
        return path.read_text(encoding="utf-8", errors="replace") if path and path.is_file() else ""

    def select(
        self,
        category: str | None = None,
        layer: Layer | None = None,
        faithfulness: float = 0.0,
        causality: float = 0.0,
    ) -> Self:
        """Return the LREs of a category, of a layer, and with at least some scores.

        Raises:
            LREError: If there is none.
        """
        least = (faithfulness, causality)
        chosen = [
            entry
            for entry in self.index.entries.values()
            if category in (None, entry.category)
            and layer in (None, entry.layer)
            and all(not low or (score or 0.0) >= low for score, low in zip(entry.scores, least, strict=True))
        ]
        if not chosen:
            raise LREError(
                f"no LRE of {self.place} has category {category!r}, layer {layer!r}, faithfulness {faithfulness} and "
                f"causality {causality}: None and 0 stand for any"
            )
        return type(self)(self.place, Index.of(chosen, self.index.made))

    def for_text(self, lm: LanguageModel, text: str) -> list[LRE]:
        """Return the LREs that a text asks for at its end, bound to the LM: those whose template it matches.

        The list is empty if no template matches. A relation with several trials gives the LRE of its first one.

        Args:
            lm: The LM that the LREs were estimated from.
            text: A text such as ``"The capital of Canada is"``.

        Raises:
            LREError: If the LREs were estimated from another LM.
        """
        check_origin(self.index.origin, lm)
        origins = origins_of(self)
        return [self[name].bind(lm) for name, origin in origins.items() if origin.asked_in(text)]

    def save(self, folder: str | Path, form: Form | None = None, scorer: Scorer | None = None) -> LRECollection:
        """Write the collection to a folder, with its index, records and card; see `write_collection`."""
        from lre_lightning.sharing.writing import write_collection

        return write_collection(self, Path(folder), form, scorer)

    def push_to_hub(
        self,
        name: str,
        revision: str | None = None,
        token: str | bool | None = None,
        private: bool | None = None,
    ) -> str:
        """Upload the collection to the Hugging Face hub, with its card: what the card names, and nothing else.

        A run's folder is saved as a collection first. The repository is made if it does not exist. The same call
        resumes an upload that was stopped.

        Args:
            name: The repository, ``"org/name"`` or ``"user/name"``.
            revision: The branch, which is made if it does not exist.
            token: Token for the hub; the one that is logged in with if None.
            private: Whether a new repository is private; the default of the account if None.

        Returns:
            The address of the commit.

        Raises:
            LREError: If the collection is incomplete, or the hub refuses or cannot be reached.
        """
        from lre_lightning.sharing.writing import push

        return push(self, name, revision, token, private)

    def _repr_html_(self) -> str:
        columns = ("relation", "trial", "layer", "rank", "factors", "dtype", "faithfulness", "causality")
        rows = [
            (*key, entry.layer, entry.metadata["rank"] or "full", entry.factors or "full", entry.dtype, *entry.scores)
            for key, entry in self.index.entries.items()
        ]
        return html_table(rows, columns, caption=f"{len(self)} LREs of {self.model}: {self.place}")

    def __repr__(self) -> str:
        relations = len({relation for relation, _ in self})
        where = "folder" if isinstance(self.place, Folder) else "hub"
        return (
            f"LRECollection({len(self)} LREs of {relations} relations of {self.model!r}, {where} {str(self.place)!r})"
        )
