"""Linear relational embeddings of transformer language models, without gradient training.

Names are imported when they are first used, so that importing a part does not import the whole.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lre_lightning import callbacks, datamodules, metrics
    from lre_lightning.concepts.concepts import Concepts, estimate_concepts
    from lre_lightning.datamodules import RelationDataModule
    from lre_lightning.errors import LREError
    from lre_lightning.jlens.averaging import Averaging
    from lre_lightning.jlens.estimator import estimate_jacobian_lens
    from lre_lightning.jlens.lens import JacobianLens
    from lre_lightning.jlens.module import JacobianLensModule
    from lre_lightning.lens.likeness import Likenesses
    from lre_lightning.lens.reading import read_lenses
    from lre_lightning.lre.estimator import LREEstimator, estimate
    from lre_lightning.lre.jacobian import PromptJacobian, prompt_jacobian
    from lre_lightning.lre.lre import LRE
    from lre_lightning.lre.origin import Origin
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.models.parts import Parts
    from lre_lightning.models.tokenizer import load_tokenizer
    from lre_lightning.prompts.options import Prompts
    from lre_lightning.records.files import read_records
    from lre_lightning.relations.relation import Relation, Sample
    from lre_lightning.relations.sources import load_relations
    from lre_lightning.sharing.collection import LRECollection
    from lre_lightning.training.module import LREModule

_ROOMS = {
    "Concepts": "concepts.concepts",
    "Averaging": "jlens.averaging",
    "JacobianLens": "jlens.lens",
    "JacobianLensModule": "jlens.module",
    "LRE": "lre.lre",
    "LRECollection": "sharing.collection",
    "LREError": "errors",
    "LREEstimator": "lre.estimator",
    "LREModule": "training.module",
    "LanguageModel": "models.language_model",
    "Likenesses": "lens.likeness",
    "Origin": "lre.origin",
    "Parts": "models.parts",
    "PromptJacobian": "lre.jacobian",
    "Prompts": "prompts.options",
    "Relation": "relations.relation",
    "RelationDataModule": "datamodules",
    "Sample": "relations.relation",
    "estimate": "lre.estimator",
    "estimate_concepts": "concepts.concepts",
    "estimate_jacobian_lens": "jlens.estimator",
    "load_relations": "relations.sources",
    "load_tokenizer": "models.tokenizer",
    "prompt_jacobian": "lre.jacobian",
    "read_lenses": "lens.reading",
    "read_records": "records.files",
}
_FOLDERS = ("callbacks", "datamodules", "metrics")

__version__ = "0.1.0"
__all__ = [
    "LRE",
    "Averaging",
    "Concepts",
    "JacobianLens",
    "JacobianLensModule",
    "LRECollection",
    "LREError",
    "LREEstimator",
    "LREModule",
    "LanguageModel",
    "Likenesses",
    "Origin",
    "Parts",
    "PromptJacobian",
    "Prompts",
    "Relation",
    "RelationDataModule",
    "Sample",
    "callbacks",
    "datamodules",
    "estimate",
    "estimate_concepts",
    "estimate_jacobian_lens",
    "load_relations",
    "load_tokenizer",
    "metrics",
    "prompt_jacobian",
    "read_lenses",
    "read_records",
]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return import_module(f"{__name__}.{name}")
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOMS[name]}"), name)
