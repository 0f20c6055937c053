"""What a Trainer cannot be asked for where nothing is trained."""

from __future__ import annotations

from lightning import Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    Callback,
    GradientAccumulationScheduler,
    LearningRateFinder,
    ModelPruning,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.plugins.precision import BitsandbytesPrecision

from lre_lightning.errors import LREError

DTYPES = {"16": "float16", "bf16": "bfloat16", "32": "float32", "64": "float64"}
"""Dtypes of LMs by the beginning of what Lightning calls them."""

TRAINING: tuple[type[Callback], ...] = (
    *(BaseFinetuning, BatchSizeFinder, GradientAccumulationScheduler, LearningRateFinder, ModelPruning),
    *(StochasticWeightAveraging, WeightAveraging),
)
"""Callbacks that change how a model is trained, or its weights."""


def check_trainer(trainer: Trainer) -> None:
    """Refuse options that only make sense in training: Lightning would fail later, or count something else.

    Raises:
        LREError: If the Trainer has such an option or callback, or another precision than 32-true.
    """
    if isinstance(trainer.precision_plugin, BitsandbytesPrecision):
        raise LREError("BitsandbytesPrecision is for models that are trained: give --model.loading.quantization")
    check_precision(trainer.precision)
    given = {
        "gradient_clip_val": trainer.gradient_clip_val or None,
        "accumulate_grad_batches": trainer.accumulate_grad_batches if trainer.accumulate_grad_batches != 1 else None,
    }
    names = [f"{name} {value}" for name, value in given.items() if value is not None]
    names += [type(callback).__name__ for callback in trainer.callbacks if isinstance(callback, TRAINING)]  # type: ignore[attr-defined]
    if names:
        raise LREError(f"nothing is trained here: leave {' and '.join(names)} out of the Trainer")


def check_precision(precision: object) -> None:
    """Refuse a precision of the Trainer other than 32-true, since it would round the sums as well as the LM.

    >>> check_precision("bf16-mixed")
    Traceback (most recent call last):
    ...
    lre_lightning.errors.LREError: precision 'bf16-mixed' is for models that are trained: leave it out of the \
Trainer, and give the LM its dtype with --model.loading.dtype bfloat16
    """
    if precision not in (None, 32, "32", "32-true"):
        dtype = DTYPES.get(str(precision).partition("-")[0], "bfloat16")
        raise LREError(
            f"precision {str(precision)!r} is for models that are trained: leave it out of the Trainer, and give the "
            f"LM its dtype with --model.loading.dtype {dtype}"
        )
