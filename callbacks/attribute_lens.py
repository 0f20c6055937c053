"""The attribute lens of some texts, as images in TensorBoard and as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from lightning.pytorch.utilities.seed import isolate_rng
from typing_extensions import override

from lre_lightning.errors import LREError, first_line
from lre_lightning.lens.files import write_lenses
from lre_lightning.lens.lens import Lens, read_lenses
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.prompt import encode_text
from lre_lightning.training.protocols import HasLREs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class AttributeLens(Callback):
    """Shows what the hidden states of some texts say about attributes, at every layer and token.

    At the end of chosen epochs, of fit, and of validate alone, each text is read through the LRE of each relation and
    through the logit lens (`lre_lightning.lens.lens.read_lenses`), and written:

    - to TensorBoard, where the trainer has that logger, as the image ``attribute_lens/<number of the text>``;
    - as ``<dirpath>/text<number>.png``;
    - as ``<dirpath>/lenses.html``, a page that shows the likeliest tokens of each cell, and ``lenses.json``.

    Files are those of the last time. Works with any LightningModule that is a `HasLREs`; the
    tokenizer is the datamodule's `tokenizer`, else the module's. On several devices the ranks share the texts, and the
    first one writes.

    Args:
        texts: The texts; they are numbered from 0.
        relations: The relations whose LREs to look through; all that the module has if None. Of several trials it is
            the first that there is. One that has no LRE yet is left out, and named in a warning if it has none at last.
        every_n_epochs: After every so many epochs of fit too; only at its end if None.
        top_k: How many tokens of each cell the page and the data have.
        layers: The layers to show; all if None.
        dirpath: Folder for the files; ``<default_root_dir>/lenses`` if None.

    Raises:
        LREError: If an argument is out of range; when fit or validate starts, if it does not fit the module's LM,
            tokenizer or relations, or the module has no LM or LREs; later, on all ranks, if a text cannot be read or a
            file not be written.
    """

    def __init__(
        self,
        texts: list[str],
        relations: list[str] | None = None,
        every_n_epochs: int | None = None,
        top_k: int = 5,
        layers: list[int | Literal["emb"]] | None = None,
        dirpath: str | None = None,
    ) -> None:
        _check_names("texts", texts)
        if relations is not None:
            _check_names("relations", relations)
        for name, number in (("every_n_epochs", 1 if every_n_epochs is None else every_n_epochs), ("top_k", top_k)):
            if type(number) is not int or number < 1:
                raise LREError(f"{name} {number!r} is out of range: it must be a whole number of at least 1")
        for layer in layers or ():
            if layer != "emb" and (type(layer) is not int or layer < 0):
                raise LREError(f"layer {layer!r} is none: layers are 'emb' and whole numbers from 0 on")
        self.texts, self.relations, self.layers = list(texts), relations, layers
        self.every_n_epochs, self.top_k, self.dirpath = every_n_epochs, top_k, dirpath
        self._warned = False
        self._shown_after: int | None = None

    @override
    def state_dict(self) -> dict[str, Any]:
        """Whether it has said that the loggers take no images."""
        return {"warned": self._warned}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._warned = state_dict.get("warned") is True

    # When.

    @override
    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._shown_after = None
        self._check(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
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
        self._name_missing(pl_module)

    @override
    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.state.fn == "validate":
            self._show(trainer, pl_module)
            self._name_missing(pl_module)

    # Checks, before anything has been computed that would be lost.

    def _check(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        module, tokenizer = _module(pl_module), _tokenizer(trainer, pl_module)
        module.lm.check_layers(self.layers)
        if self.top_k > module.lm.vocab_size:
            raise LREError(f"top_k {self.top_k} is out of range: the LM's vocabulary has {module.lm.vocab_size} tokens")
        for text in self.texts:
            module.lm.check_ids(torch.tensor([encode_text(tokenizer, text)]))
        if trainer.state.fn == "fit":
            self._check_relations(trainer, module)
        if not self._warned and not _image_loggers(trainer):
            names = ", ".join(type(logger).__name__ for logger in trainer.loggers) or "the trainer without a logger"
            rank_zero_warn(
                f"attribute lenses cannot be logged as images: {names} takes none, as a TensorBoardLogger would; "
                f"they are written to {str(self._folder(trainer))!r} alone"
            )
            self._warned = True

    def _check_relations(self, trainer: L.Trainer, module: HasLREs) -> None:
        """Refuse relations that the data do not have, where the data say which they have."""
        data: Any = getattr(getattr(trainer, "datamodule", None), "relations", None) or ()
        names: list[Any] = [getattr(relation, "name", None) for relation in data]
        if not names or None in names:
            return
        known = list(dict.fromkeys([*names, *_relations(module)]))
        unknown = [relation for relation in self.relations or () if relation not in known]
        if unknown:
            raise LREError(f"no LRE of {_listed(unknown)} can be shown: the data have {_listed(known)}")

    def _name_missing(self, pl_module: L.LightningModule) -> None:
        there = _relations(_module(pl_module))
        missing = [relation for relation in self.relations or () if relation not in there]
        if missing:
            rank_zero_warn(f"there is no LRE of {_listed(missing)} to look through, but of {_listed(there)}")

    def _folder(self, trainer: L.Trainer) -> Path:
        return Path(self.dirpath) if self.dirpath else Path(trainer.default_root_dir) / "lenses"

    # What.

    def _show(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Read this rank's texts and write all ranks'; every rank is in both exchanges, whatever happens."""
        found: dict[int, list[Lens]] = {}
        error: Exception | None = None
        with isolate_rng(), torch.inference_mode(False):
            try:
                found = self._read(trainer, pl_module)
            except Exception as raised:
                error = raised
        grids = {number: lenses for part in _exchange(trainer, found, error) for number, lenses in part.items()}
        if trainer.is_global_zero:
            try:
                self._write(trainer, [grids[number] for number in range(len(self.texts))])
            except Exception as raised:
                error = raised
        _exchange(trainer, None, error)

    def _read(self, trainer: L.Trainer, pl_module: L.LightningModule) -> dict[int, list[Lens]]:
        """The grids of every text of this rank, by its number."""
        module, tokenizer = _module(pl_module), _tokenizer(trainer, pl_module)
        numbers = range(trainer.global_rank, len(self.texts), trainer.world_size)
        with _evaluating(module.lm):
            return {
                number: read_lenses(
                    module.lm, tokenizer, self.texts[number], module.lres, self.relations, self.top_k, self.layers
                )
                for number in numbers
            }

    def _write(self, trainer: L.Trainer, grids: Sequence[Sequence[Lens]]) -> None:
        pictures = write_lenses(grids, self._folder(trainer))
        for logger in _image_loggers(trainer):
            for number, pixels in enumerate(pictures):
                tag = f"attribute_lens/{number}"
                logger.experiment.add_image(tag, pixels, trainer.global_step, dataformats="HWC")


@contextmanager
def _evaluating(lm: LanguageModel) -> Iterator[None]:
    """Within the context an LM evaluates; then each of its modules is in the mode that it was in before."""
    modes = {module: module.training for module in lm.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _exchange(trainer: L.Trainer, value: Any, error: Exception | None) -> list[Any]:
    """What every rank gives, by rank.

    Raises:
        LREError: On all ranks, the first rank's error, if any rank has one.
    """
    message = None if error is None else f"the attribute lens failed: {type(error).__name__}: {first_line(error)}"
    if isinstance(error, LREError):
        message = str(error)
    given: list[Any] = [(value, message)]
    if trainer.world_size > 1:
        given = [None] * trainer.world_size
        torch.distributed.all_gather_object(given, (value, message))
    failed = [message for _, message in given if message is not None]
    if failed:
        raise LREError(failed[0]) from error
    return [value for value, _ in given]


def _module(pl_module: L.LightningModule) -> HasLREs:
    if not isinstance(pl_module, HasLREs):
        lacking = " and ".join(repr(name) for name in ("lm", "lres") if not hasattr(pl_module, name))
        raise LREError(
            f"an AttributeLens needs a module with an LM and LREs, and {type(pl_module).__name__} has no {lacking}"
        )
    return pl_module


def _tokenizer(trainer: L.Trainer, pl_module: L.LightningModule) -> PreTrainedTokenizerBase:
    for owner in (getattr(trainer, "datamodule", None), pl_module):
        tokenizer = getattr(owner, "tokenizer", None)
        if tokenizer is not None:
            return cast("PreTrainedTokenizerBase", tokenizer)
    raise LREError(f"an AttributeLens needs a 'tokenizer', of the datamodule or of {type(pl_module).__name__}")


def _relations(module: HasLREs) -> list[str]:
    return list(dict.fromkeys(relation for relation, _ in module.lres))


def _image_loggers(trainer: L.Trainer) -> list[TensorBoardLogger]:
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names)) or "none"


def _check_names(name: str, given: Any) -> None:
    """Refuse what is not a list of different texts with something in them."""
    if not isinstance(given, list | tuple) or not given:
        raise LREError(f"{name} {given!r} is no list with something in it")
    for text in given:
        if not isinstance(text, str) or not text.strip():
            raise LREError(f"{name} must be texts with something in them, and one is {text!r}")
        if given.count(text) > 1:
            raise LREError(f"{text!r} is twice among the {name}")
