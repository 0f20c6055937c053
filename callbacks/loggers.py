"""Scalars, pictures, texts and tables for the loggers of a Trainer, as far as each is able to keep them.

All loggers have scalars. Other abilities are looked for: methods of the logger, as W&B's has them, of the writer that
TensorBoard's has, and of the client that MLflow's has. Call these functions in the first process alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import lightning as L
from matplotlib.figure import Figure

from lre_lightning.lens.plotting import to_pixels
from lre_lightning.storage.files import safe_name

CARD = 2 * 350
"""Least width in pixels of pictures for TensorBoard, which shows them 350 pixels wide, and in full after a click."""
CARD_WIDTH = 4.5
"""Width in inches of figures that can be read there."""


def log_scalars(trainer: L.Trainer, scalars: Mapping[str, float], step: int) -> None:
    """Log scalars at a step of an axis of their own, such as the layer."""
    for logger in trainer.loggers:
        logger.log_metrics(dict(scalars), step)


def log_final(trainer: L.Trainer, scalars: Mapping[str, float], step: int, parameters: Mapping[str, Any]) -> None:
    """Log the final scalars of a run, together with its hyperparameters where a logger keeps both in one row."""
    for logger in trainer.loggers:
        if {"metrics", "step"} <= inspect.signature(logger.log_hyperparams).parameters.keys():
            logger.log_hyperparams(dict(parameters), metrics=dict(scalars), step=step)
        else:
            logger.log_metrics(dict(scalars), step)


def log_image(trainer: L.Trainer, tag: str, figure: Figure) -> None:
    """Log a picture; where a logger has captions, the tag is its caption too."""
    step = trainer.global_step
    for logger in trainer.loggers:
        writer: Any = getattr(logger, "experiment", None)
        if hasattr(logger, "log_image"):
            logger.log_image(tag, [to_pixels(figure)], step=step, caption=[tag])
        elif hasattr(writer, "add_image"):
            writer.add_image(tag, to_pixels(figure, max(CARD, round(figure.bbox.width))), step, dataformats="HWC")
        elif hasattr(writer, "log_image") and hasattr(logger, "run_id"):
            writer.log_image(logger.run_id, to_pixels(figure), artifact_file=_file(tag, "png"))


def log_text(trainer: L.Trainer, tag: str, text: str) -> None:
    """Log a text in Markdown."""
    for logger in trainer.loggers:
        _log_text(logger, tag, text, trainer.global_step)


def log_table(trainer: L.Trainer, tag: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Log a table of texts, as Markdown where a logger has no tables."""
    lines = [columns, ["---"] * len(columns), *rows]
    text = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    for logger in trainer.loggers:
        if hasattr(logger, "log_table"):
            logger.log_table(tag, list(columns), [list(row) for row in rows], step=trainer.global_step)
        else:
            _log_text(logger, tag, text, trainer.global_step)


def _log_text(logger: Any, tag: str, text: str, step: int) -> None:
    writer: Any = getattr(logger, "experiment", None)
    if hasattr(logger, "log_text"):
        logger.log_text(tag, ["text"], [[text]], step=step)
    elif hasattr(writer, "add_text"):
        writer.add_text(tag, text, step)
    elif hasattr(writer, "log_text") and hasattr(logger, "run_id"):
        writer.log_text(logger.run_id, text, artifact_file=_file(tag, "md"))


def _file(tag: str, ending: str) -> str:
    """Return the path of a file for a tag, among those of a run."""
    group, slash, name = tag.partition("/")
    return f"{group}{slash}{safe_name(name) if name else ''}.{ending}"
