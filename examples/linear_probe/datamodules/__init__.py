"""This project's data: facts of one relation, asked for without examples, in left-padded batches."""

from lre_lightning.datamodules import Loader, Prompts, RelationDataModule


def facts(model: str, relation: str, source: str | None = None, train: int = 64) -> RelationDataModule:
    """Prompts of one relation.

    Args:
        model: Name or folder of the LM, whose tokenizer is used.
        relation: The relation's name.
        source: Where it comes from.
        train: How many subjects to train on, drawn evenly over the objects; the others are for validation.
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
