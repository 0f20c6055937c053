"""What callbacks need of modules and datamodules, which may be of any class."""

from __future__ import annotations

from lre_lightning.errors import LREError


def require(callback: object, kind: str, owner: object, *names: str) -> None:
    """Raise an `LREError` if an owner, a ``"module"`` or a ``"datamodule"``, lacks what a callback needs."""
    lacking = [name for name in names if not hasattr(owner, name)]
    if lacking:
        raise LREError(
            f"{type(callback).__name__} needs a {kind} with {' and '.join(map(repr, names))}, but "
            f"{type(owner).__name__} has no {' and no '.join(map(repr, lacking))}"
        )


def require_trials(callback: object, trainer: object, module: object) -> None:
    """Raise an `LREError` unless a Trainer's module has records, and its datamodule a schedule and relations."""
    require(callback, "module", module, "records")
    require(callback, "datamodule", getattr(trainer, "datamodule", None), "schedule", "relations")
