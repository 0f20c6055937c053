"""The size and training of the demo LM."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """The recipe of the demo LM.

    Attributes:
        seed: Seed of the world, the corpus and the weights.
        merges: Number of BPE merges learned from the subjects.
        layers, width, heads, inner: Size of the decoder.
        length, batch_size: Tokens per row, rows per step.
        epochs, steps: Number of epochs, and steps per epoch; checkpoints are written between epochs.
        rate, decay, warmup: AdamW's peak learning rate, weight decay, and the fraction of steps to warm up.
        hidden: Fraction of the rows in which subjects are hidden: a subject's tokens are seen only from within the
            subject, except that blocks from `delay` on see its last token.
        delay: The first block that sees a hidden subject's last token.
        plain: Fraction of the tokens outside of objects that are to be predicted.
    """

    seed: int = 0
    merges: int = 200
    layers: int = 6
    width: int = 128
    heads: int = 4
    inner: int = 512
    length: int = 144
    batch_size: int = 16
    epochs: int = 12
    steps: int = 150
    rate: float = 3e-3
    decay: float = 0.1
    warmup: float = 0.05
    hidden: float = 0.8
    delay: int = 3
    plain: float = 0.3
