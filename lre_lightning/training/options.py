"""The options of a fit that few runs change, in one dataclass."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import TypedDict

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.grid import check_ranks
from lre_lightning.models.backward import Backward
from lre_lightning.options import option
from lre_lightning.records.selection import MISSING, SPECIFICITY, Criterion
from lre_lightning.records.summary import too_few
from lre_lightning.training.method import Method

if TYPE_CHECKING:
    from lre_lightning.models.language_model import LanguageModel
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial
    from lre_lightning.scoring.measure import Measure


LOGGER = logging.getLogger("lre_lightning")


class Choice(TypedDict):
    """The layer and rank of a relation."""

    layer: int | Literal["emb"]
    rank: int


@dataclass(frozen=True)
class Fitting:
    """Options of a fit: the choice of layers and ranks, the form of W, and the folder of LREs.

    Attributes:
        select_by: How a relation's layer and rank are chosen: by the best ``"causality"``, as in the paper, or the best
            ``"faithfulness"``. ``"middle"`` looks at all layers that the data cannot tell from the best one by either
            score, and takes the middle one; it takes the embedding only if there is no other. ``"both"`` takes the best
            harmonic mean of causality and of the answers by other relations of the subject that edits keep, and needs
            the measure Specificity at every layer. A relation without such answers is chosen for by ``"causality"``.
        selection_trials: The number of first trials per relation that choose its layer and rank, by their mean score,
            and are not reported. With 0 the first trial that can be scored chooses, and is reported too. A choice by
            other trials does not rest on the chance of their examples. It still rests on that of the test subjects,
            which trials share, unless as many ``data.prompts.choosing_trials`` are given.
        choices: Layer and rank by name of the relation. Such a relation is not searched: only that layer is estimated,
            and edits use that rank, and `ranks` where they are given.
        grid: ``"whole"`` scores every trial on the whole grid. ``"choice"`` does so with the trials that choose, and
            estimates and scores the others at the chosen layer and rank alone.
        max_known: The largest number of known test samples that a trial scores. Samples are asked in a drawn order
            until the LM knows as many. All are asked if None, which takes long for relations of hundreds of samples.
        method: How W is used. ``"dense"`` computes all elements of W, at all layers in one sweep. ``"matrix_free"``
            computes products with W alone: for the test subjects, and for the few directions of the inverse; its LRE
            has W in factors. Counts are the same up to rounding. ``"auto"`` takes the one with fewer products, which is
            the second for few layers of a wide LM.
        backward: The backward pass that W comes from: ``"exact"`` takes the LM's derivatives. ``"frozen"`` takes the
            scales of norms and the attention weights for constants. What the LM says does not change.
        lre_dir: The folder for the files of LREs, which checkpoints refer to; ``<default_root_dir>/lres`` if None.
    """

    select_by: Criterion = option("middle")
    selection_trials: int = option(0)
    choices: dict[str, Choice] | None = option(None)
    grid: Literal["whole", "choice"] = option("whole")
    max_known: int | None = option(None)
    method: Method = option("auto")
    backward: Backward = option("exact")
    lre_dir: str | None = option(None, harmless=True, explicit=True)

    def __post_init__(self) -> None:
        check_choice("select_by", self.select_by, get_args(Criterion))
        check_choice("method", self.method, get_args(Method))
        check_choice("backward", self.backward, get_args(Backward))
        check_choice("grid", self.grid, ("whole", "choice"))
        check_number("selection_trials", self.selection_trials, 0)
        if self.max_known is not None:
            check_number("max_known", self.max_known, 1)
        for relation, choice in (self.choices or {}).items():
            for name in ("layer", "rank"):
                if name not in choice:
                    raise LREError(f"the choice for {relation!r} lacks its {name!r}: give layer and rank")

    def check_choices(self, lm: LanguageModel) -> None:
        """Check that the LM has the layers and ranks of `choices`."""
        for relation, choice in (self.choices or {}).items():
            try:
                lm.check_layers([choice["layer"]])
                check_ranks([choice["rank"]], lm.hidden_size)
            except LREError as error:
                raise LREError(f"the choice for {relation!r}: {error}") from error

    def check_data(self, data: PromptSource, measures: Sequence[Measure] = ()) -> None:
        """Check the options against the data of a fit, and what it measures."""
        choices, names = self.choices or {}, [relation.name for relation in data.relations]
        chosen_for = {*names} - choices.keys()
        counted = any(one.name == SPECIFICITY and one.before_choice for one in measures)
        if self.select_by == "both" and chosen_for and not counted:
            raise LREError(f"select_by both weighs what edits keep at every layer, which {MISSING}")
        if choices and names and not choices.keys() & set(names):
            raise LREError(
                f"a layer and rank are chosen for {next(iter(choices))!r}, but for no relation of the data, which has "
                f"{names[0]!r}: is its source the right one?"
            )
        if data.prompts.choosing_trials not in (0, self.selection_trials):
            raise LREError(
                f"the {data.prompts.choosing_trials} choosing_trials of the prompts, which test on subjects of their "
                f"own, must be the selection_trials, which are {self.selection_trials}"
            )
        trials = max((trial for _, trial in data.schedule), default=0) + 1
        if self.selection_trials >= trials:
            raise LREError(
                f"{self.selection_trials} trials that choose leave none to report: there are {trials} of each "
                "relation; give more trials, or fewer selection_trials"
            )
        if self.max_known is not None:
            check_number("max_known", self.max_known, data.n_shot)
        first: dict[int, int] = {}
        for index, (relation, _) in enumerate(data.schedule):
            first.setdefault(relation, index)
        for why in check_enough(map(data.trial, first.values())):
            rank_zero_only(LOGGER.warning)("it will not be scored: %s", why)


def check_enough(trials: Iterable[Trial]) -> list[str]:
    """Return why trials cannot be scored, whatever the LM knows: they have fewer test samples than examples.

    If that is true of all of them, it is an error.
    """
    trials = list(trials)
    few = [
        f"{trial.relation.name}: {too_few(len(trial.relation.samples), len(trial.train), len(trial.test_asked))}"
        for trial in trials
        if len(trial.test_asked) < len(trial.train)
    ]
    if few and len(few) == len(trials):
        raise LREError(f"no relation can be scored, such as {few[0]}")
    return few
