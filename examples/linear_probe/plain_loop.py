"""The probe of `probe.py` without a Trainer."""

from typing import Any

import torch
from probe import LinearProbe, arguments

from datamodules import facts

if __name__ == "__main__":
    options = arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    data = facts(options.model, options.relation, options.source)
    probe = LinearProbe(options.model, len(data.relations[0].objects)).to(device)
    optimizer = probe.configure_optimizers()
    loader = data.train_dataloader()
    sampler: Any = loader.sampler
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # a new order of the batches
        for number, batch in enumerate(loader):
            optimizer.zero_grad()
            probe.training_step(batch.to(device), number).backward()
            optimizer.step()
    right = [probe(batch).argmax(1).eq(batch.object) for batch in (batch.to(device) for batch in data.val_dataloader())]
    print(f"accuracy {torch.cat(right).float().mean():.3f} without a Trainer")
