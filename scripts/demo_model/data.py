"""The demo LM's training rows: documents as tokens, row by row from a seed."""

import random
from dataclasses import dataclass, field

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from scripts.demo_model.corpus import Document, Library, Role, draw_document
from scripts.demo_model.recipe import Recipe

# Tokens, int64; whether each is to be predicted, bool; the last position that sees each, int64;
# all of shape `(length,)`.
Row = tuple[Tensor, Tensor, Tensor]


@dataclass
class PieceEncoder:
    """Encodes documents piece by piece and remembers what each piece's text was encoded to."""

    tokenizer: PreTrainedTokenizerFast
    memory: dict[str, list[int]] = field(default_factory=dict)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a piece's text."""
        if text not in self.memory:
            self.memory[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self.memory[text]

    def encode_document(self, document: Document) -> list[tuple[int, Role, int]]:
        """Return each token of a document behind a start token.

        Returns:
            For each token its id, its piece's role, and how many tokens of the piece follow it.
        """
        tokens = [(int(self.tokenizer.bos_token_id), Role.WORDING, 0)]
        for piece in document:
            ids = self.encode(piece.text)
            tokens += [(token, piece.role, len(ids) - 1 - i) for i, token in enumerate(ids)]
        return tokens


class Rows(Dataset[Row]):
    """Rows of documents one behind another, each drawn from a seed and its own index.

    Args:
        library: where documents are drawn from.
        encoder: turns them into tokens.
        recipe: the rows' seed, length and number.
        epoch: which of the epochs the rows are for; every epoch has rows of its own.
    """

    def __init__(self, library: Library, encoder: PieceEncoder, recipe: Recipe, epoch: int) -> None:
        self.library, self.encoder, self.recipe, self.epoch = library, encoder, recipe, epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.recipe.steps * self.recipe.batch_size

    def __getitem__(self, index: int) -> Row:
        """Return a row."""
        rng = random.Random(f"{self.recipe.seed}-{self.epoch}-{index}")
        length, plain = self.recipe.length, self.recipe.plain
        row: list[tuple[int, Role, int]] = []
        while len(row) < length:
            row += self.encoder.encode_document(draw_document(self.library, rng))
        ids, roles, left = zip(*row[:length], strict=True)
        asked = [role is Role.OBJECT or rng.random() < plain for role in roles]
        hides = rng.random() < self.recipe.hidden
        ends = [
            i + n if hides and r is Role.SUBJECT else length for i, (r, n) in enumerate(zip(roles, left, strict=True))
        ]
        return torch.tensor(ids), torch.tensor(asked), torch.tensor(ends)


class CorpusDataModule(LightningDataModule):
    """Serves one epoch after another of freshly drawn rows.

    An epoch's rows follow from the seed and the epoch's number, so a run that is resumed at an
    epoch's start goes on as if it had never stopped. Needs
    `Trainer(reload_dataloaders_every_n_epochs=1)`.

    Args:
        library: where documents are drawn from.
        tokenizer: the demo LM's.
        recipe: the rows' seed, length and number.
    """

    def __init__(self, library: Library, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        super().__init__()
        self.library, self.encoder, self.recipe = library, PieceEncoder(tokenizer), recipe

    def train_dataloader(self) -> DataLoader[Row]:
        """Return the current epoch's rows in batches of `(batch, length)`."""
        epoch = self.trainer.current_epoch if self.trainer else 0
        rows = Rows(self.library, self.encoder, self.recipe, epoch)
        return DataLoader(rows, batch_size=self.recipe.batch_size)
