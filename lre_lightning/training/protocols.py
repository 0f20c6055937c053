"""Protocols of the LightningModules that callbacks work with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from typing_extensions import get_protocol_members

from lre_lightning.errors import LREError
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.records.record import TrialRecord


class HasLREs(Protocol):
    """A module with an LM and LREs of it. On several devices every process has the whole LM and the same LREs."""

    @property
    def lm(self) -> LanguageModel:
        """The LM."""

    @property
    def lres(self) -> Mapping[tuple[str, int], LRE]:
        """LREs by relation and trial; there may be none yet."""


class HasRecords(Protocol):
    """A module with records of its trials. On several devices every process has all of them, summed over processes."""

    @property
    def records(self) -> Mapping[tuple[str, int], TrialRecord]:
        """The records by relation and trial."""

    def set_beta(self, betas: Mapping[str, float]) -> None:
        """Give relations, by name, another beta of their grid."""


def require(protocol: Any, module: object, callback: object) -> Any:
    """Return a module that offers what a callback needs.

    Args:
        protocol: The protocol whose members the callback uses.
        module: The module.
        callback: The callback, for the message.

    Raises:
        LREError: If the module lacks a member.
    """
    names = sorted(get_protocol_members(protocol))
    lacking = [name for name in names if not hasattr(module, name)]
    if lacking:
        raise LREError(
            f"{type(callback).__name__} needs a module with {' and '.join(map(repr, names))}, but "
            f"{type(module).__name__} has no {' and no '.join(map(repr, lacking))}"
        )
    return module
