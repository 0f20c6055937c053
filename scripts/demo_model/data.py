"""The demo LM's training rows: tokenized documents, each row drawn from a seed."""

import random
from dataclasses import dataclass, field

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import PreTrainedTokenizerFast

from scripts.demo_model.corpus import Document, Library, Role, draw_document
from scripts.demo_model.recipe import Recipe

Row = tuple[Tensor, Tensor, Tensor]
"""Token ids, int64; which of them to predict, bool; the last position that sees each, int64: all `(length,)`."""


@dataclass
class PieceTokenizer:
    """Tokenizes documents piece by piece, and caches the tokens of each piece's text."""

    tokenizer: PreTrainedTokenizerFast
    memory: dict[str, list[int]] = field(default_factory=dict)

    def tokenize(self, document: Document) -> list[tuple[int, Role, int]]:
        """Return the tokens of a document after a start token.

        Returns:
            For each token its id, the role of its piece, and the number of tokens that follow it in the piece.
        """
        tokens = [(int(self.tokenizer.bos_token_id), Role.WORDING, 0)]
        for piece in document:
            if piece.text not in self.memory:
                self.memory[piece.text] = self.tokenizer.encode(piece.text, add_special_tokens=False)
            ids = self.memory[piece.text]
            tokens += [(token, piece.role, len(ids) - 1 - i) for i, token in enumerate(ids)]
        return tokens


class Rows(Dataset[Row]):
    """Rows of concatenated documents, each row drawn from a seed, the epoch and its own index."""

    def __init__(self, library: Library, tokenizer: PieceTokenizer, recipe: Recipe, epoch: int) -> None:
        self.library, self.tokenizer, self.recipe, self.epoch = library, tokenizer, recipe, epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.recipe.steps * self.recipe.batch_size

    def __getitem__(self, index: int) -> Row:
        """Return a row."""
        rng = random.Random(f"{self.recipe.seed}-{self.epoch}-{index}")
        length, plain = self.recipe.length, self.recipe.plain
        row: list[tuple[int, Role, int]] = []
        while len(row) < length:
            row += self.tokenizer.tokenize(draw_document(self.library, rng))
        ids, roles, left = zip(*row[:length], strict=True)
        asked = [role is Role.OBJECT or rng.random() < plain for role in roles]
        hides = rng.random() < self.recipe.hidden
        ends = [
            i + n if hides and r is Role.SUBJECT else length for i, (r, n) in enumerate(zip(roles, left, strict=True))
        ]
        return torch.tensor(ids), torch.tensor(asked), torch.tensor(ends)


class CorpusDataModule(LightningDataModule):
    """Serves one epoch after another of freshly drawn rows.

    The rows of an epoch depend on the seed and the epoch's index alone, so that a run resumed between epochs equals one
    that was never stopped. Requires `Trainer(reload_dataloaders_every_n_epochs=1)`.
    """

    def __init__(self, library: Library, tokenizer: PreTrainedTokenizerFast, recipe: Recipe) -> None:
        super().__init__()
        self.library, self.tokenizer, self.recipe = library, PieceTokenizer(tokenizer), recipe

    def train_dataloader(self) -> DataLoader[Row]:
        """Return the current epoch's rows in batches of `(batch, length)`."""
        epoch = self.trainer.current_epoch if self.trainer else 0
        rows = Rows(self.library, self.tokenizer, self.recipe, epoch)
        return DataLoader(rows, batch_size=self.recipe.batch_size)
