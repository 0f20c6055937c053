"""A linear probe, trained by gradients on hidden states of a frozen LM."""

import argparse

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy
from transformers import AutoModel

from callbacks import PrintAccuracy
from datamodules import facts
from lre_lightning.datamodules import RelationBatch
from lre_lightning.demo import MODEL_DIR


class LinearProbe(L.LightningModule):
    """A classifier of objects from the hidden state of the subject's last token.

    Args:
        model: The name or folder of the LM, which is not trained.
        objects: The number of objects.
        layer: The index into the LM's ``hidden_states``; 0 is the embedding.
    """

    def __init__(self, model: str, objects: int, layer: int = 3) -> None:
        super().__init__()
        self.lm = AutoModel.from_pretrained(model, dtype="float32").requires_grad_(False).eval()
        self.probe = nn.Linear(self.lm.config.hidden_size, objects)
        self.layer = layer
        self.accuracy = MulticlassAccuracy(objects, average="micro")

    def forward(self, batch: RelationBatch) -> Tensor:
        """Return the logits of the objects, ``(batch, objects)``."""
        with torch.no_grad():
            found = self.lm(
                batch.input_ids,
                attention_mask=batch.attention_mask,
                position_ids=batch.position_ids,
                output_hidden_states=True,
            )
        rows = torch.arange(len(batch), device=batch.input_ids.device)
        logits: Tensor = self.probe(found.hidden_states[self.layer][rows, batch.subject_position])
        return logits

    def training_step(self, batch: RelationBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy. Prompts of weight 0 only give every process equally many batches."""
        losses = functional.cross_entropy(self(batch), batch.object, reduction="none")
        return (losses * batch.weight).sum() / batch.weight.sum().clamp(min=1)

    def validation_step(self, batch: RelationBatch, batch_idx: int) -> None:
        """Count correct answers."""
        own = batch.weight > 0
        self.accuracy.update(self(batch)[own], batch.object[own])
        self.log("accuracy", self.accuracy, batch_size=len(batch))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam for the probe alone."""
        return torch.optim.Adam(self.probe.parameters(), lr=0.01)


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(MODEL_DIR), help="name or folder of an LM")
    parser.add_argument("--relation", default="person sport")
    parser.add_argument("--source", default="demo", help="source of the relation")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--devices", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    options = arguments()
    L.seed_everything(0, verbose=False)
    data = facts(options.model, options.relation, options.source)
    trainer = L.Trainer(
        max_epochs=options.epochs,
        accelerator="cpu" if not torch.cuda.is_available() else "gpu",
        devices=options.devices,
        strategy="auto" if options.devices == 1 else "ddp",
        callbacks=[PrintAccuracy()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LinearProbe(options.model, len(data.relations[0].objects)), datamodule=data)
