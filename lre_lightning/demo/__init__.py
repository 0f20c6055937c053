"""The bundled language model and relations, so that everything runs without a download."""

from pathlib import Path

DEMO = "demo"
"""The name under which the bundled model is known wherever a model's name or folder is asked for."""

MODEL_DIR = Path(__file__).parent / "model"
RELATIONS_DIR = Path(__file__).parent / "relations"
LRES_DIR = Path(__file__).parent / "lres"
"""The collection of LREs of the bundled model."""


def resolve(name_or_path: str) -> str:
    """Return the folder of the bundled model for the name ``"demo"``, and anything else unchanged."""
    return str(MODEL_DIR) if name_or_path == DEMO else name_or_path
