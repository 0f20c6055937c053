"""Lightning callbacks around linear relational embeddings."""

from lre_lightning.callbacks.figures import ResultsFigures
from lre_lightning.callbacks.progress import RelationProgressBar
from lre_lightning.callbacks.results import ResultsTable

__all__ = ["RelationProgressBar", "ResultsFigures", "ResultsTable"]
