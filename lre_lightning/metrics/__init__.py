"""Faithfulness and causality of linear relational embeddings, as torchmetrics and as functions."""

from lre_lightning.metrics.functional import distribution_scores, faithfulness, token_ranks
from lre_lightning.metrics.success import Causality, Faithfulness

__all__ = ["Causality", "Faithfulness", "distribution_scores", "faithfulness", "token_ranks"]
