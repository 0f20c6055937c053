"""Identities of LMs that are not there."""

from __future__ import annotations

import base64

import torch

from lre_lightning.models.identity import NUMBERS, Identity


def identity_of(seed: int) -> Identity:
    """An identity of random numbers."""
    numbers = torch.randn(3 * NUMBERS, generator=torch.Generator().manual_seed(seed))
    return Identity(base64.b64encode(numbers.numpy().tobytes()).decode(), 3, "float32", "5.0.0", "2.6.0")


SOME, ANOTHER = identity_of(0), identity_of(1)
