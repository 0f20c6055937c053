"""Keys and values of a prefix, shared by many runs."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Cache


def repeat_cache(cache: Cache | None, batch: int) -> Cache | None:
    """One prompt's cache as that of `batch` prompts, to be handed to one run.

    A run replaces the keys and values in the cache that it is given, so each needs a cache object of its own; the
    tensors are shared, and not copied for each prompt of the batch.
    """
    if cache is None:
        return None
    repeated = copy.copy(cache)
    repeated.layers = [copy.copy(layer) for layer in cache.layers]
    layers: list[Any] = repeated.layers
    for layer in layers:
        layer.keys = layer.keys.expand(batch, *layer.keys.shape[1:])
        layer.values = layer.values.expand(batch, *layer.values.shape[1:])
    return repeated
