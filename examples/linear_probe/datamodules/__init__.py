"""This project's data: samples of one relation, asked for without examples, in left-padded batches."""

from lre_lightning.datamodules import Loader, Prompts, RelationDataModule


def facts(model: str, relation: str, source: str | None = None, train: int = 64) -> RelationDataModule:
    """Return prompts of one relation.

    Args:
        model: The name or folder of the LM whose tokenizer is used.
        relation: The name of the relation.
        source: The source of the relation.
        train: The number of subjects to train on, drawn evenly over the objects; the others are for validation.
    """
    return RelationDataModule(
        model,
        relation,
        source,
        n_shot=train,
        trials=1,
        prompts=Prompts(shots=0, sampling="balanced"),
        loader=Loader(epoch="all", batch_size=16, padding_side="left"),
    )
