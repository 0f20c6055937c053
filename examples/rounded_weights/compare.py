"""How much of a relation survives when weights are rounded to a few bits: the LREs of several versions of an LM.

python compare.py --relation "country capital city" --bits 8 4 3 2
"""

import argparse
import logging

import lightning as L
import torch
from torch import nn
from torch.nn.functional import cosine_similarity

from lre_lightning import LRE, LanguageModel, LREModule
from lre_lightning.datamodules import RelationDataModule
from lre_lightning.records.record import TrialRecord


def rounded(name: str, bits: int | None) -> LanguageModel:
    """Load an LM, and round each row of the matrices in its blocks to `bits`; None leaves them as they are."""
    lm = LanguageModel.from_pretrained(name)
    if bits is None:
        return lm
    for layer in range(lm.num_layers):
        for module in lm.module_at(layer).modules():
            if isinstance(module, nn.Linear):
                step = module.weight.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
                module.weight.copy_((module.weight / step).round() * step)
    return lm


def fit(lm: LanguageModel, relation: str, layer: int, folder: str) -> tuple[TrialRecord, LRE | None]:
    """Estimate and score the LRE of one trial; None if the LM knows too few of its facts."""
    module = LREModule(lm, layers=[layer], betas=[1.0], ranks=[16])
    trainer = L.Trainer(
        default_root_dir=folder,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        inference_mode=False,
    )
    trainer.fit(module, datamodule=RelationDataModule(lm.name, relation, trials=1))
    (record,) = module.records.values()
    return record, next(iter(module.lres.values()), None)


def main(model: str, relation: str, layer: int, bits: list[int]) -> None:
    """Print a row for the LM as it is, and one for each number of bits."""
    print("bits   known  faithfulness  causality  similarity of W")
    whole = None
    for count in (None, *bits):
        with torch.no_grad():
            lm = rounded(model, count)
        record, lre = fit(lm, relation, layer, f"rounded/{count or 'all'}")
        scored = record.chosen_scores
        scores = "not scored" if scored is None else f"{scored[0]:12.2f}  {scored[1]:9.2f}"
        weight = None if lre is None else lre.operator.dense().flatten()
        whole = weight if whole is None else whole
        same = "" if weight is None or whole is None else f"{cosine_similarity(weight, whole, dim=0):15.2f}"
        print(f"{count or 'all':>4}  {record.known:3} of {record.tested:2}  {scores}  {same}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--model", default="demo", help="name or folder of an LM")
    parser.add_argument("--relation", default="country capital city")
    parser.add_argument("--layer", type=int, default=2)
    parser.add_argument("--bits", type=int, nargs="*", default=[8, 4, 3, 2])
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    main(options.model, options.relation, options.layer, options.bits)
