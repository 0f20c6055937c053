"""The datamodule of the Jacobian lens: ordinary texts as sequences of tokens."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any, Union

import torch
from lightning import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader

from lre_lightning.datamodules.loaders import load
from lre_lightning.demo import DEMO
from lre_lightning.errors import LREError, check_number
from lre_lightning.jlens.estimator import digest_of_texts
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.sentences import agreed_tokenizer
from lre_lightning.models.tokenizer import StartToken, load_tokenizer, start_tokens
from lre_lightning.options import option, options_of
from lre_lightning.prompts.texts import open_texts
from lre_lightning.prompts.tokenization import tokenize
from lre_lightning.relations.sources import plain_source, prepare
from lre_lightning.runs.processes import turn
from lre_lightning.storage.plain import mapping

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Reading:
    """Options of reading texts, and of the tokenizer.

    Attributes:
        column: The column of the texts in tables and data sets.
        split: The split of data sets, if they have several.
        start_token: What each sequence starts with, as in `Prompts`.
        tokenizer_revision: The tokenizer's branch, tag or commit on the Hub.
        trust_remote_code: Whether to run Python code from the tokenizer's repository.
        gguf_file: Name of the GGUF file that holds the tokenizer, in a folder or repository.
    """

    column: str = option("text")
    split: str | None = option()
    start_token: StartToken = option("auto")
    tokenizer_revision: str | None = option(None, linked="model.loading.revision")
    trust_remote_code: bool = option(False, harmless=True, explicit=True, linked="model.loading.trust_remote_code")
    gguf_file: str | None = option(None, linked="model.loading.gguf_file")


class TextDataModule(LightningDataModule):
    """Ordinary texts as sequences of tokens, some of them in every epoch of a fit.

    A text is a row of a table (CSV, TSV, JSON Lines, Parquet) or data set, or a line of a text file. It is cut into
    consecutive sequences, each with the start token in front. An epoch serves one batch to each process, a list of
    token ids ``(positions,)``: the processes take turns. The Trainer needs ``reload_dataloaders_every_n_epochs=1``.

    Args:
        texts: A file, a data set's name on the Hub, a folder that `save_to_disk` wrote, a `datasets.Dataset`, or a list
            of such.
        tokenizer: A model's name on the Hub, its folder, ``"demo"`` for the bundled model, or a fast tokenizer. By
            default that of the LM whose lens is estimated, and without an LM that of the demo.
        length: The number of tokens of a sequence, with the start token.
        shortest: Sequences of fewer tokens are left out, such as those of headings and the rests of texts.
        limit: The largest number of sequences; all if None.
        batch_size: The number of sequences of an epoch, in all processes together: those between two checkpoints.
        reading: Options of reading texts, and of the tokenizer.

    Raises:
        LREError: An argument is invalid; in `setup`, the texts or the tokenizer cannot be used, or no text is long
            enough.
    """

    def __init__(
        self,
        texts: Any,
        tokenizer: Union[str, "PreTrainedTokenizerBase", None] = None,
        length: int = 128,
        shortest: int = 32,
        limit: int | None = 1000,
        batch_size: int = 8,
        reading: Reading = Reading(),
    ) -> None:
        super().__init__()
        check_number("shortest", shortest, 2)
        check_number("length", length, shortest)
        check_number("limit", 1 if limit is None else limit, 1)
        check_number("batch_size", batch_size, 1)
        self.length, self.shortest, self.limit, self.batch_size = length, shortest, limit, batch_size
        self.reading = options_of(Reading, reading, "reading")
        self._texts, self._given_tokenizer = texts, tokenizer
        self.start_token = self.reading.start_token
        name = tokenizer if isinstance(tokenizer, str | None) else tokenizer.name_or_path
        arguments: dict[str, Any] = {"length": length, "shortest": shortest, "limit": limit, "batch_size": batch_size}
        arguments |= {"texts": plain_source(texts), "tokenizer": name, "reading": asdict(self.reading)}
        self.save_hyperparameters(arguments)

    def prepare_data(self) -> None:
        """Fetch what is not on this machine; the Trainer calls it in one process of each machine."""
        prepare(self._texts, {"split": self.reading.split})

    def setup(self, stage: str | None = None) -> None:
        """Read and tokenize the texts."""
        _ = self.sequences

    def use(self, lm: LanguageModel) -> None:
        """Make sequences for an LM: with its tokenizer, unless one was given, and with the start token that suits it.

        A `JacobianLensModule` calls it in its `setup`. The LM has this tokenizer from then on.

        Raises:
            LREError: The tokenizer that was given is not the LM's, or it has not got the start token.
        """
        self.tokenizer = agreed_tokenizer(lm, None if self._given_tokenizer is None else self.tokenizer)
        self.start_token = lm.start_token if self.reading.start_token == "auto" else self.reading.start_token
        for made in ("sequences", "digest"):
            vars(self).pop(made, None)

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer, which is loaded at first use."""
        given, reading = self._given_tokenizer, self.reading
        options = reading.tokenizer_revision, reading.trust_remote_code, reading.gguf_file
        return load_tokenizer(given or DEMO, *options) if isinstance(given, str | None) else given

    @cached_property
    def sequences(self) -> list[list[int]]:
        """The token ids of all sequences, at least one.

        Raises:
            LREError: A text cannot be read, or none is long enough.
        """
        texts = read_texts(self._texts, self.reading.column, self.reading.split)
        cut = token_sequences(self.tokenizer, texts, self.length, self.shortest, self.start_token)
        sequences = list(islice(cut, self.limit))
        if not sequences:
            raise LREError(f"no text has {self.shortest} tokens: give longer ones, or another --data.shortest")
        return sequences

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the sequences."""
        return digest_of_texts(self.sequences)

    @property
    def schedule(self) -> list[tuple[int, int]]:
        """(0, number of the epoch) of every epoch of a fit."""
        return [(0, number) for number in range(ceil(len(self.sequences) / self.batch_size))]

    def train_dataloader(self) -> DataLoader[list[Tensor]]:
        """Serve this process's sequences of the Trainer's epoch, as one batch."""
        epoch = 0 if self.trainer is None else self.trainer.current_epoch
        return load([epoch][: len(self.schedule) - epoch], self._batch)

    def _batch(self, epoch: int) -> list[Tensor]:
        process, count = turn(self.trainer)
        chosen = self.sequences[epoch * self.batch_size : (epoch + 1) * self.batch_size]
        return [torch.tensor(ids) for ids in chosen[process::count]]


def read_texts(source: Any, column: str = "text", split: str | None = None) -> Iterator[str]:
    """Read texts of any length one by one; see `lre_lightning.prompts.texts.read_texts` for the arguments."""
    for item in source if isinstance(source, list | tuple) else [source]:
        for part in open_texts(item, column, split):
            for at, row in part.placed([column]):
                text = mapping(row, at).get(column)
                if not isinstance(text, str):
                    raise LREError(f"{at}: {column!r} must be a text")
                yield text


def token_sequences(
    tokenizer: "PreTrainedTokenizerBase",
    texts: Iterable[str],
    length: int = 128,
    shortest: int = 32,
    start_token: StartToken = "auto",
) -> Iterator[list[int]]:
    """Cut texts into sequences of `length` tokens, each with the start token in front; leave out those too short."""
    start = start_tokens(tokenizer, start_token)
    own = length - len(start)
    for text in texts:
        ((ids, _),) = tokenize(tokenizer, [text])
        pieces = ([*start, *ids[i : i + own]] for i in range(0, len(ids), own))
        yield from (piece for piece in pieces if len(piece) >= shortest)
