"""The subcommand ``push``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from lre_lightning.commands.command import Command, given
from lre_lightning.commands.command_line import LRECommandLine
from lre_lightning.commands.resuming import explicit_options, find_checkpoint
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.runs.checkpoints import read_hyperparameters
from lre_lightning.sharing.card import About
from lre_lightning.sharing.collection import LRECollection
from lre_lightning.sharing.data_set import is_data_set, push_data_set
from lre_lightning.sharing.export import write_plain
from lre_lightning.sharing.places import check_repository
from lre_lightning.sharing.smaller import Form, Scorer
from lre_lightning.sharing.writing import write_collection
from lre_lightning.storage.files import safe_name


class Push(Command):
    """Share LREs or relations on the Hugging Face hub.

    A collection of them, their records, an index and a card is written to the folder --out and, if a repository is
    given, uploaded from there: what the card names, and nothing else. With --rank or --trials mean the LM of the run is
    loaded, and what that costs is measured on its data and written into the card. A saved collection is uploaded as it
    is, and so are relations that `lre data --dataset` has written. The same command resumes what was stopped.
    """

    name = "push"
    needs_lm = False
    resumable = True

    @override
    def add_arguments(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("folder", type=str, help="folder of a run, a collection or a data set")
        parser.add_argument("repository", nargs="?", type=str | None, help="name on the hub, org/name")
        out = "folder to write the collection to"
        parser.add_argument("--out", type=str, default="lre_collection", help=out)
        parser.add_class_arguments(Form, None, instantiate=False)
        parser.add_class_arguments(About, None, skip={"repository"}, instantiate=False)
        plain = "folder to write each LRE to as two tensors that need none of this package, W and b; not uploaded"
        parser.add_argument("--plain", type=str | None, help=plain)
        measure = "score LREs again that are cut down, rounded or averaged; this loads the run's LM and data"
        parser.add_argument("--measure", type=bool, default=True, help=measure)
        parser.add_argument("--device", type=str, default="auto", help='device to score on; "auto" for a GPU if any')
        parser.add_argument("--revision", type=str | None, help="branch on the hub, made if it does not exist")
        parser.add_argument("--private", type=bool | None, help="whether a new repository is private")
        parser.add_argument("--token", type=str | None, help="token for the hub; that of HF_TOKEN or hf auth login")

    @override
    def check(self, line: LRECommandLine) -> None:
        """Check the form and the name on the hub."""
        given(Form, line.options)
        if line.options.repository:
            check_repository(line.options.repository)

    @override
    def run(self, line: LRECommandLine) -> None:
        options = line.options
        where = options.repository, options.revision, options.token, options.private
        if is_data_set(options.folder):
            if not options.repository:
                raise LREError("relations are written already: give the name on the hub to push them to, org/name")
            print(f"Pushed: {push_data_set(options.folder, *where)}")
            return
        collection = LRECollection.from_pretrained(options.folder)
        form, about = given(Form, options), given(About, options)
        saved, said = bool(collection.index.made), any(vars(replace(about, repository=None)).values())
        if form != Form() or said or not saved:
            scorer = scorer_of(Path(options.folder), options.device) if form.measured and options.measure else None
            kept = None if saved and form == Form() else form
            collection = write_collection(collection, Path(options.out), kept, scorer, about)
            size = sum(entry.size for entry in collection.index.entries.values())
            print(f"{len(collection)} LRE{'' if len(collection) == 1 else 's'}, {size / 1e6:.1f} MB: {options.out}")
        if options.plain:
            for (name, trial), lre in collection.items():
                write_plain(Path(options.plain) / safe_name(name) / f"trial{trial}.safetensors", lre)
        if options.repository:
            print(f"Pushed: {collection.push_to_hub(*where)}")


def scorer_of(run: Path, device: str = "auto") -> Scorer:
    """Return what scores LREs with the LM and the data of a run."""
    checkpoint = find_checkpoint("last", run / "checkpoints")
    if checkpoint is None:
        raise LREError(f"{str(run)!r} has no checkpoint that names the LM and the data: give a run, or --measure false")
    saved = read_hyperparameters(checkpoint, explicit_options())
    lm = LanguageModel.from_pretrained(saved["model"]["name_or_path"], **saved["model"].get("loading", {}))
    data = RelationDataModule(**saved["data"])
    gpu = "cuda" if torch.cuda.is_available() else "cpu"
    most = saved["model"].get("fitting", {}).get("max_known")
    return Scorer(lm.to(gpu if device == "auto" else device), data, most)
