"""Do facts that an LM learns by fine-tuning become linear? A LightningModule of its own, watched by a callback.

The LM is taught false objects for a relation's subjects. After each epoch the callback estimates an LRE from some of
them and tests it on the others: how many of these false facts does the LM say, and does the LRE say the same for them?

python train.py --epochs 15
"""

import argparse
import logging
import random
from dataclasses import replace
from functools import partial

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModelForCausalLM

from lre_lightning import LanguageModel, estimate, load_relations
from lre_lightning.datamodules import Loader, Prompts, RelationBatch, RelationDataModule
from lre_lightning.demo import resolve
from lre_lightning.metrics import Faithfulness
from lre_lightning.models.patching import PromptBatch


class FineTuning(L.LightningModule):
    """Trains all weights of a causal LM to say the first token of each object."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.lm = AutoModelForCausalLM.from_pretrained(resolve(model), dtype="float32")

    def training_step(self, batch: RelationBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy at the prompts' last tokens."""
        logits = self.lm(batch.input_ids, attention_mask=batch.attention_mask).logits
        rows = torch.arange(len(batch), device=self.device)
        return functional.cross_entropy(logits[rows, batch.last_position], batch.object_token)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def linearity(model: nn.Module, data: RelationDataModule, layer: int) -> tuple[float, float]:
    """Return the fraction of test facts that an LM says, and how often an LRE says the same as the LM for these."""
    lm = LanguageModel(model, "fine-tuned")  # which leaves the model as it is
    lm.tokenizer = data.tokenizer
    data.use(lm)
    lre = estimate(lm, data.relations[0], layer, data.n_shot, prompts=data.prompts)
    metric, said = Faithfulness(num_relations=1), []
    for batch in data.val_dataloader():
        s, o = PromptBatch(lm, batch.input_ids, batch.subject_position, batch.last_position).hidden_states([layer])
        answers = lm.predict(o)
        said.append(answers == batch.object_token)
        metric.update(lm.predict(lre(s[:, 0])), answers, torch.zeros_like(answers), mask=said[-1])
    return float(torch.cat(said).float().mean()), float(metric.compute())


class Linearity(L.Callback):
    """Prints after each epoch how linear a relation is in the LM that is being trained."""

    def __init__(self, data: RelationDataModule, layer: int) -> None:
        self.data, self.layer = data, layer

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Estimate an LRE from the LM as it is now, and test it."""
        assert isinstance(pl_module, FineTuning)
        said, faithful = linearity(pl_module.lm, self.data, self.layer)
        print(f"epoch {trainer.current_epoch + 1:2}    said {said:.2f}  faithfulness {faithful:.2f}")


def main(model: str, name: str, layer: int, epochs: int) -> None:
    """Measure how linear the true facts are, and teach the LM the same relation with its objects shuffled."""
    (relation,) = load_relations(name)
    samples = relation.samples[:24]
    objects = [sample.object for sample in samples]
    random.Random(0).shuffle(objects)
    false = tuple(replace(sample, object=new) for sample, new in zip(samples, objects, strict=True))
    data = partial(RelationDataModule, model, trials=1, prompts=Prompts(shots=0))
    true_data = data(source=[replace(relation, samples=samples)])
    false_data = data(source=[replace(relation, samples=false)])
    several = Loader(epoch="all", batch_size=8)
    training = false_data.changed(n_shot=len(false) - 1, loader=several)  # one is left to test
    torch.manual_seed(0)
    module = FineTuning(model)
    print("true facts  said {:.2f}  faithfulness {:.2f}".format(*linearity(module.lm, true_data, layer)))
    watch = Linearity(false_data, layer)
    trainer = L.Trainer(max_epochs=epochs, callbacks=[watch], barebones=True, limit_val_batches=0)
    trainer.fit(module, datamodule=training)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="demo", help="name or folder of an LM")
    parser.add_argument("--relation", default="country capital city")
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=15)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    main(options.model, options.relation, options.layer, options.epochs)
