"""Faithfulness and causality of linear relational embeddings, as metrics and as functions."""

from lre_lightning.metrics.functional import causality, faithfulness
from lre_lightning.metrics.success import Causality, Faithfulness

__all__ = ["Causality", "Faithfulness", "causality", "faithfulness"]
