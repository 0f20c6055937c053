"""The attribute lens of some texts, as files and in loggers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

from lre_lightning.callbacks.loggers import log_image
from lre_lightning.callbacks.needs import require
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.errors import LREError, check_number
from lre_lightning.jlens.lens import JacobianLens
from lre_lightning.lens.files import write_lenses
from lre_lightning.lens.reading import LensGrid, check_text, read_lenses
from lre_lightning.lens.tokens import sentence
from lre_lightning.lre.lre import LRE
from lre_lightning.prompts.prompt import fill
from lre_lightning.runs.processes import on_rank_zero

MOST_SENTENCES = 6
"""Upper bound on the sentences that are taken from the data."""
LONGEST_TAG = 60


class AttributeLens(Callback):
    """Show what the hidden states of some texts say about attributes, at every layer and token.

    At the end of fit, and of chosen epochs, each text is read through the LRE of each relation, a Jacobian lens, if
    there is one, and the logit lens (`lre_lightning.lens.reading.read_lenses`), and written:

    - to the Trainer's loggers that take images, as ``attribute_lens/<number> <text>``;
    - as ``<dirpath>/text<number>.png``;
    - as ``<dirpath>/lenses.html``, a page that shows the most likely tokens of each cell, and ``lenses.json``.

    Files are replaced each time. Works with any LightningModule that has an LM, `lm`, and `lres`, a mapping of
    (relation, trial) to LREs; the tokenizer is the datamodule's `tokenizer`, or else the module's. On several devices
    rank zero reads and writes.

    Args:
        texts: The texts; they are numbered from 0. If None, each category of the datamodule's relations, up to six,
            gives one: the shortest sentence in which a relation asks about a test subject, read through its lens alone.
        relations: The relations whose LREs to look through, the first trial of each; all if None. Relations without an
            LRE are left out.
        every_n_epochs: Period in epochs of fit; None for its end alone.
        top_k: Number of tokens of each cell in the page and the data.
        layers: The layers to show; all if None.
        dirpath: Folder for the files; ``<default_root_dir>/lenses`` if None.
        jacobian_lens: A Jacobian lens of the LM to look through as well: a file, a folder or a hub name, as in
            `JacobianLens.load`. That of the module, if it has one, if None.

    Raises:
        LREError: If an argument is invalid; when fit starts, if it does not fit the module's LM, the
            tokenizer or the datamodule's relations, or there is no LM, LREs or tokenizer; later, on all processes, if a
            file cannot be written.
    """

    def __init__(
        self,
        texts: list[str] | None = None,
        relations: list[str] | None = None,
        every_n_epochs: int | None = None,
        top_k: int = 5,
        layers: list[int | Literal["emb"]] | None = None,
        dirpath: str | None = None,
        jacobian_lens: str | None = None,
    ) -> None:
        for name, given in (("texts", texts), ("relations", relations)):
            if given is not None and (not all(map(str.strip, given)) or not 0 < len(set(given)) == len(given)):
                raise LREError(f"{name} must be a list of different texts, none of them empty, got {given!r}")
        check_number("every_n_epochs", 1 if every_n_epochs is None else every_n_epochs, 1)
        check_number("top_k", top_k, 1)
        self.texts, self.relations, self.layers = texts, relations, layers
        self.every_n_epochs, self.top_k, self.dirpath = every_n_epochs, top_k, dirpath
        self.jacobian_lens = jacobian_lens
        self._lens: JacobianLens | None = None
        self._shown_after: int | None = None

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._shown_after = None
        self._check(trainer, pl_module)

    @override
    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epochs = trainer.current_epoch + 1
        if self.every_n_epochs is not None and epochs % self.every_n_epochs == 0:
            self._show(trainer, pl_module)
            self._shown_after = epochs

    @override
    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._shown_after != trainer.current_epoch:
            self._show(trainer, pl_module)

    def _check(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Check arguments against module and data, before anything has been computed that would be lost."""
        require(self, "module", pl_module, "lm", "lres")
        self._lens = getattr(pl_module, "jacobian_lens", None)
        if self.jacobian_lens is not None:
            self._lens = JacobianLens.load(self.jacobian_lens, pl_module.lm)
        for text in self.texts or ():
            check_text(pl_module.lm, _tokenizer(trainer, pl_module), text, self.top_k, self.layers)
        data: Any = getattr(trainer, "datamodule", None)
        if self.texts is None and not isinstance(data, RelationDataModule):
            raise LREError("AttributeLens needs texts, or a RelationDataModule to take them from")
        if isinstance(data, RelationDataModule):
            known = dict.fromkeys(relation.name for relation in data.relations)
            known |= dict.fromkeys(name for name, _ in pl_module.lres)
            unknown = [relation for relation in self.relations or () if relation not in known]
            if unknown:
                raise LREError(f"no LRE of {unknown} can be shown: the data have {list(known)}")

    def _show(self, trainer: L.Trainer, pl_module: Any) -> None:
        """Read the texts, in all processes if they share the LM, and write the lenses in the first one."""
        shared = getattr(pl_module.lm, "shards", None) is not None
        grids = self._read(trainer, pl_module) if shared else None
        on_rank_zero(trainer, lambda: self._write(trainer, self._read(trainer, pl_module) if grids is None else grids))

    def _read(self, trainer: L.Trainer, pl_module: Any) -> dict[str, list[LensGrid]]:
        lm, tokenizer, lres = pl_module.lm, _tokenizer(trainer, pl_module), pl_module.lres
        texts = sentences_of(trainer, lres) if self.texts is None else dict.fromkeys(self.texts, None)
        with torch.inference_mode(False):
            return {
                text: read_lenses(lm, tokenizer, text, lres, self.relations or own, self.top_k, self.layers, self._lens)
                for text, own in texts.items()
            }

    def _write(self, trainer: L.Trainer, grids: dict[str, list[LensGrid]]) -> None:
        folder = Path(self.dirpath) if self.dirpath else Path(trainer.default_root_dir) / "lenses"
        pictures = write_lenses([*grids.values()], folder) if grids else []
        for number, (text, picture) in enumerate(zip(grids, pictures, strict=True)):
            log_image(trainer, f"attribute_lens/{number} {sentence(text)[:LONGEST_TAG]}", picture)


def sentences_of(trainer: Any, lres: Mapping[tuple[str, int], LRE]) -> dict[str, list[str]]:
    """Return the shortest sentence about a test subject for each category, with the relation that it asks for."""
    data: RelationDataModule = trainer.datamodule
    shortest: dict[str, tuple[str, str]] = {}
    for index, (relation, number) in enumerate(data.schedule):
        name, category = data.relations[relation].name, data.relations[relation].category
        if (name, number) in lres:
            trial = data.trial(index)
            subject = min((sample.subject for sample in trial.test), key=len)
            candidate = fill(trial.asked_with[0], subject), name
            shortest[category] = min(candidate, shortest.get(category, candidate), key=lambda pair: len(pair[0]))
    return {text: [name] for text, name in list(shortest.values())[:MOST_SENTENCES]}


def _tokenizer(trainer: L.Trainer, pl_module: L.LightningModule) -> Any:
    for owner in (getattr(trainer, "datamodule", None), pl_module):
        tokenizer = getattr(owner, "tokenizer", None)
        if tokenizer is not None:
            return tokenizer
    raise LREError(f"AttributeLens needs a 'tokenizer' of the datamodule or of {type(pl_module).__name__}")
