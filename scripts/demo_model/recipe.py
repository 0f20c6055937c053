"""The one place where the demo LM's size and training are set."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """How the demo LM is made.

    Attributes:
        seed: of the world, the corpus and the weights.
        merges: BPE merges learned from the subjects.
        layers, width, heads, inner: the decoder's size.
        length, batch_size: tokens a row, rows a step.
        epochs, steps: epochs, and steps an epoch; checkpoints fall between epochs.
        rate, decay, warmup: AdamW's peak learning rate, weight decay, share of steps to warm up.
        hidden: share of the rows in which subjects are hidden: a subject's tokens are seen from
            within the subject alone, except that blocks from `delay` on see its last token.
        delay: the first block that sees a hidden subject's last token.
        plain: share of the tokens outside of objects that are to be predicted.
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
