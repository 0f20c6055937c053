"""A collection written to a folder, with its index, records and card, and uploaded from there."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE, origins_of
from lre_lightning.progress import progress
from lre_lightning.records.files import write_records
from lre_lightning.relations.subjects import SUBJECTS, write_subjects
from lre_lightning.report.page import versions
from lre_lightning.runs.checkpoints import read_hyperparameters
from lre_lightning.sharing.card import About, write_card
from lre_lightning.sharing.index import CARD, FIGURE, INDEX, RECORDS, Entry, Index, digest_of_file, part_of
from lre_lightning.sharing.places import Folder, upload
from lre_lightning.sharing.smaller import Form, Scorer, kept_form, mean_lre, smaller
from lre_lightning.storage.files import check_writable

if TYPE_CHECKING:
    from lre_lightning.sharing.collection import LRECollection


def write_collection(
    collection: LRECollection,
    folder: Path,
    form: Form | None = None,
    scorer: Scorer | None = None,
    about: About | None = None,
) -> LRECollection:
    """Write a collection to a folder: LREs, index, records, subjects and card. The same call resumes a stopped one.

    Args:
        collection: The LREs, such as those of a run's folder.
        folder: The folder to write to, not that of the run.
        form: The form in which LREs are kept. If None, a collection stays as it is, and a run's has the default form.
        scorer: Scores LREs whose form changes; None leaves these scores out.
        about: What else the card says. An LM from a folder, without a name on the hub, is named by the last part of its
            path.

    Returns:
        The collection in the folder.

    Raises:
        LREError: If the folder has a run or cannot be written to, rank ``"auto"`` has no scorer, or an LRE or its
            trial cannot be read.
    """
    made = _made(collection, form, about)
    form = form or (Form(trials="all") if collection.index.made else Form())
    if form.rank == "auto" and scorer is None:
        raise LREError("rank 'auto' needs the LM and the data of the fit to measure with: give a number")
    _check_folder(folder, collection)
    kept: list[Entry] = []
    done = _written(folder, made)
    for group in progress(form.groups(collection.index.entries), "LREs", transient=True):
        entry = _named(replace(group[0], trials=tuple(t for member in group for t in member.trials)), made)
        before = done.get(entry.key)
        if before is None or _source(before) != _source(entry) or not _whole(folder, before):
            lre = mean_lre([collection[member.key] for member in group])
            score = partial(scorer.scores, scorer.states(group)) if scorer and form.measured else None
            before = _write(folder, *smaller(lre, entry, form, score))
            Index.of([*kept, before], made).write(folder)
        kept.append(before)
    index = Index.of(kept, made)
    index.write(folder)
    old, new = collection.model, index.origin["model"]
    records = [replace(record, model=record.model.replace(old, new, 1)) for record in collection.records]
    write_records(records, folder / RECORDS)
    subjects: dict[str, Iterable[str]] = {name: dict(one.train) for name, one in origins_of(collection).items()}
    write_subjects({**subjects, **collection.subjects}, folder)
    write_card(folder, index, records)
    return collection.from_pretrained(folder)


def _write(folder: Path, lre: LRE, entry: Entry) -> Entry:
    """Write the file of an LRE, and return its entry."""
    named = replace(lre, origin=replace(lre.origin, model=entry.metadata["origin"]["model"]))
    (factors, dtype), path = kept_form(lre), folder / entry.file
    named.save(path)
    entry = replace(entry, metadata=named.metadata(), factors=factors, dtype=dtype)
    return replace(entry, size=path.stat().st_size, sha256=digest_of_file(path))


def push(
    collection: LRECollection, name: str, revision: str | None, token: str | bool | None, private: bool | None
) -> str:
    """Upload a collection; see `LRECollection.push_to_hub`."""
    if collection.card and isinstance(collection.place, Folder):
        folder = collection.place.path
        if Index.read(folder / INDEX).entries.keys() == collection.index.entries.keys():
            for key in collection:
                collection.path(key)
            figure = [FIGURE] if f"({FIGURE})" in collection.card else []
            files = [
                CARD,
                INDEX,
                RECORDS,
                SUBJECTS,
                *figure,
                *(entry.file for entry in collection.index.entries.values()),
            ]
            for file in files:
                collection.place.fetch(file)
            message = f"Linear relational embeddings: {len(collection)}"
            return upload(folder, files, name, revision, token, private, message=message)
    with tempfile.TemporaryDirectory() as place:  # the same bytes each time, so that an upload can be resumed
        saved = write_collection(collection, Path(place), about=About(repository=name))
        return push(saved, name, revision, token, private)


def _check_folder(folder: Path, collection: LRECollection) -> None:
    """Refuse to write over the LREs of a run, those that are read, and those of another LM."""
    source, index = collection.place, folder / INDEX
    own = isinstance(source, Folder) and source.path.resolve() == folder.resolve()
    if own or ((folder / RECORDS).exists() and not index.exists()):
        raise LREError(f"{str(folder)!r} has the LREs of a run, or those to be saved: give another folder")
    if index.exists() and not Index.read(index).identity.fits(collection.index.identity):
        raise LREError(f"{str(folder)!r} has a collection of another LM: give another folder")
    check_writable(folder)


def _made(collection: LRECollection, form: Form | None, about: About | None) -> dict[str, Any]:
    """Return how the LREs were made: form, configuration of the fit, versions of packages, and `about`."""
    made = dict(collection.index.made)
    if not made:
        checkpoint = Path(str(collection.place)) / "checkpoints" / "last.ckpt"
        config = _without_folders(read_hyperparameters(checkpoint)) if checkpoint.is_file() else {}
        made = {"config": config, "versions": versions()}
    said = {name: value for name, value in asdict(about or About()).items() if value}
    given = asdict(form) if form else part_of(made, "form") or asdict(Form())
    return {**made, "about": {**part_of(made, "about"), **said}, "form": given}


def _without_folders(value: Any) -> Any:
    """Return options that are given, with the last part of absolute paths, which are of this machine alone."""
    if isinstance(value, Mapping):
        return {name: _without_folders(option) for name, option in value.items() if option is not None and option != []}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return Path(value).name if isinstance(value, str) and os.path.isabs(value) else value


def _named(entry: Entry, made: Mapping[str, Any]) -> Entry:
    """Return an entry with the name by which others load the LM."""
    origin = entry.metadata["origin"]
    name = made["about"].get("base_model") or _without_folders(origin["model"])
    return replace(entry, metadata={**entry.metadata, "origin": {**origin, "model": name}})


def _source(entry: Entry) -> Any:
    """Return what an LRE was made from, in the form in which an index keeps it."""
    return {**entry.metadata, "rank": None}, entry.trials


def _written(folder: Path, made: Mapping[str, Any]) -> Mapping[Any, Entry]:
    """Return the LREs that the same call has written before it was stopped."""
    index = Index.read(folder / INDEX) if (folder / INDEX).exists() else None
    options = [{**recorded, "about": {}} for recorded in (index.made if index else {}, json.loads(json.dumps(made)))]
    return index.entries if index is not None and options[0] == options[1] else {}


def _whole(folder: Path, entry: Entry) -> bool:
    try:
        entry.check(folder / entry.file)
    except LREError:
        return False
    return True
