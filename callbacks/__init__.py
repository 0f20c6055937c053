"""Lightning callbacks around linear relational embeddings."""

from lre_lightning.callbacks.attribute_lens import AttributeLens
from lre_lightning.callbacks.beta_tuning import BetaTuning
from lre_lightning.callbacks.log import RelationLog
from lre_lightning.callbacks.progress import RelationProgressBar
from lre_lightning.callbacks.results import ResultsFigures, ResultsScalars, ResultsTable

__all__ = [
    "AttributeLens",
    "BetaTuning",
    "RelationLog",
    "RelationProgressBar",
    "ResultsFigures",
    "ResultsScalars",
    "ResultsTable",
]
