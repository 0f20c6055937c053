"""Training of the demo LM in Lightning's Trainer loop."""

import random
import timeit
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lre_lightning.datamodules import collate
from lre_lightning.prompts.prompt import make_prompts
from lre_lightning.relations.relation import Sample
from scripts.demo_model.data import Row
from scripts.demo_model.recipe import Recipe
from scripts.demo_model.world import Relation

Precision: TypeAlias = Literal["bf16-mixed", "32-true"]


def build_model(recipe: Recipe, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Build the LM with random weights drawn from the recipe's seed."""
    torch.manual_seed(recipe.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.width,
        intermediate_size=recipe.inner,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def fast_precision() -> Precision:
    """Return float32 for a CPU that only emulates bfloat16, which takes ten times as long; bfloat16 for others."""

    def seconds(dtype: torch.dtype) -> float:
        one = torch.ones(512, 512, dtype=dtype)
        return min(timeit.repeat(lambda: one @ one, repeat=5, number=1))

    return "bf16-mixed" if seconds(torch.bfloat16) < 2 * seconds(torch.float32) else "32-true"


@torch.no_grad()
def recall(model: nn.Module, tokenizer: PreTrainedTokenizerFast, relation: Relation, count: int) -> float:
    """Return the fraction of at most `count` samples whose object the LM ranks first after 8 examples."""
    order = random.Random(0).sample(range(len(relation.samples)), len(relation.samples))
    samples = [Sample(*relation.samples[index]) for index in order]
    prompts = make_prompts(tokenizer, relation.spec.templates[0], samples[8:][:count], samples[:8])
    batch = collate(prompts, relation=0, trial=0, samples=range(len(prompts)))
    logits = model(input_ids=batch.input_ids).logits
    found = logits[torch.arange(len(batch)), batch.last_position].argmax(-1)
    return float((found == batch.object_token).float().mean())


def visible_keys(ends: Tensor, early: bool) -> Tensor:
    """Return the positions that each position may attend to.

    Args:
        ends: The last position that sees each position, `(batch, length)`; for a subject's last token it is itself.
        early: Hide the subject's last token from what follows, too.

    Returns:
        Bool of shape `(batch, 1, length, length)`, queries before keys.
    """
    positions = torch.arange(ends.shape[1], device=ends.device)
    seen = positions[:, None] <= ends[:, None, :]
    if not early:
        seen |= (ends == positions)[:, None, :]
    return (seen & (positions[:, None] >= positions))[:, None]


class DemoTraining(LightningModule):
    """Next-token training of the demo LM, which shows its recall of facts between epochs."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        world: Sequence[Relation],
        recipe: Recipe,
    ) -> None:
        super().__init__()
        self.model, self.tokenizer, self.world, self.recipe = model, tokenizer, world, recipe
        self.masks: list[Tensor] = []
        for index, block in enumerate(model.model.layers):
            block.register_forward_pre_hook(partial(self.mask_block, index), with_kwargs=True)

    def mask_block(
        self, index: int, block: nn.Module, inputs: tuple[object, ...], options: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """Pass a block the training step's mask for blocks at its depth."""
        if self.masks:
            options["attention_mask"] = self.masks[index >= self.recipe.delay]
        return inputs, options

    def training_step(self, batch: Row, batch_idx: int) -> Tensor:
        """Return the mean cross-entropy of a batch, over the tokens that are to be predicted."""
        tokens, asked, ends = batch
        self.masks = [visible_keys(ends, early=True), visible_keys(ends, early=False)]
        hidden = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        self.masks = []
        logits = self.model.get_output_embeddings()(hidden[:, :-1][asked[:, 1:]])
        loss = F.cross_entropy(logits.float(), tokens[:, 1:][asked[:, 1:]])
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the mean recall of the relations' facts under 8-shot prompts."""
        self.model.eval()
        known = [recall(self.model, self.tokenizer, relation, 16) for relation in self.world]
        self.model.train()
        self.log("known", sum(known) / len(known), prog_bar=True)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Return AdamW with weight decay on matrices only, and one cycle of the learning rate."""
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": matrices, "weight_decay": self.recipe.decay}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=self.recipe.rate, betas=(0.9, 0.98))
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer,
            max_lr=self.recipe.rate,
            total_steps=self.recipe.epochs * self.recipe.steps,
            pct_start=self.recipe.warmup,
            cycle_momentum=False,
            final_div_factor=10.0,
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class KeepModels(Callback):
    """Save the LM after `count` evenly spaced epochs, with its tokenizer, in folders such as ``step-150``."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the LM if the next fraction 1/`count` of the epochs is nearest to this one."""
        ended, epochs = trainer.current_epoch + 1, trainer.max_epochs or 1
        if ended in {round(i * epochs / self.count) for i in range(1, self.count + 1)}:
            folder = self.folder / f"step-{trainer.global_step}"
            module: Any = pl_module
            module.model.save_pretrained(folder)
            module.tokenizer.save_pretrained(folder)
