"""Faithfulness and causality of linear relational embeddings, and recall at k, as metrics and as functions."""

from lre_lightning.metrics.distribution import DistributionScores
from lre_lightning.metrics.functional import causality, distribution_scores, faithfulness, recall_at_k, token_ranks
from lre_lightning.metrics.success import Causality, Faithfulness, RecallAtK

__all__ = [
    "Causality",
    "DistributionScores",
    "Faithfulness",
    "RecallAtK",
    "causality",
    "distribution_scores",
    "faithfulness",
    "recall_at_k",
    "token_ranks",
]
