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
        noise: Gaussian noise added to each block's output in training, relative to its RMS.
        dropout: of attention weights.
        plain: share of the tokens outside of objects that are to be predicted.
    """

    seed: int = 0
    merges: int = 200
    layers: int = 8
    width: int = 128
    heads: int = 4
    inner: int = 384
    length: int = 144
    batch_size: int = 32
    epochs: int = 10
    steps: int = 200
    rate: float = 3e-3
    decay: float = 0.1
    warmup: float = 0.05
    noise: float = 0.0
    dropout: float = 0.0
    plain: float = 0.3
