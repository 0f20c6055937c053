"""Linear relational embeddings of transformer language models, without gradient training.

Names are imported when they are first used, so that importing a part does not import the whole.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lre_lightning.errors import LREError
    from lre_lightning.lre.estimator import LREEstimator
    from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
    from lre_lightning.lre.lre import LRE, Origin
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.models.parts import Parts
    from lre_lightning.training.module import LREModule

_ROOMS = {
    "LRE": "lre.lre",
    "LREError": "errors",
    "LREEstimator": "lre.estimator",
    "LREModule": "training.module",
    "LanguageModel": "models.language_model",
    "Origin": "lre.lre",
    "Parts": "models.parts",
    "PromptJacobian": "lre.jacobian",
    "prompt_jacobian": "lre.jacobian",
}

__version__ = "0.1.0"
__all__ = [
    "LRE",
    "LREError",
    "LREEstimator",
    "LREModule",
    "LanguageModel",
    "Origin",
    "Parts",
    "PromptJacobian",
    "prompt_jacobian",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
