"""The measures that come with the suite, one per file: see `lre_lightning.scoring.measure.Measure`."""

from lre_lightning.measures.baselines import Baselines
from lre_lightning.measures.distributions import Distributions
from lre_lightning.measures.facts import Facts
from lre_lightning.measures.generations import Generations
from lre_lightning.measures.jacobian_lens import JacobianLensLREs
from lre_lightning.measures.line_integrals import LineIntegrals
from lre_lightning.measures.low_rank import LowRank
from lre_lightning.measures.majorities import Majorities
from lre_lightning.measures.outcomes import Outcomes
from lre_lightning.measures.specificity import Specificity
from lre_lightning.measures.trained_maps import TrainedMaps
from lre_lightning.measures.whole_objects import WholeObjects
from lre_lightning.scoring.measure import Measure

__all__ = [
    "Baselines",
    "Distributions",
    "Facts",
    "Generations",
    "JacobianLensLREs",
    "LineIntegrals",
    "LowRank",
    "Majorities",
    "Measure",
    "Outcomes",
    "Specificity",
    "TrainedMaps",
    "WholeObjects",
]
