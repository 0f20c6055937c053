"""LREs made smaller for a collection, and what that loses: means over trials, low-rank factors, narrow dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from lre_lightning.errors import LREError, check_choice, check_number
from lre_lightning.grid import check_ranks, default_ranks
from lre_lightning.lre.lre import LRE
from lre_lightning.lre.operators import FACTOR_DTYPES, Factors
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.prompts.source import PromptSource
from lre_lightning.records.record import fraction
from lre_lightning.scoring.cross import counts
from lre_lightning.scoring.states import TrialStates, run_trial
from lre_lightning.sharing.index import Entry, Scores, plain_scores
from lre_lightning.training.bank import TrialKey

Trials = Literal["first", "mean", "all"]
Rank = int | Literal["auto"] | None

DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in FACTOR_DTYPES}
TOLERANCE = 0.01
"""The faithfulness and the causality that an LRE in factors of rank ``"auto"`` may lose."""


@dataclass(frozen=True)
class Form:
    """The form in which LREs are kept in a collection.

    Attributes:
        trials: The LREs of a relation: that of its first trial, the mean of W and b over its trials, or all. No trial
            is chosen by its score, which would look better than it is.
        rank: The rank of W in factors; ``"auto"`` for the smallest power of two from 4 to 256 that loses at most 0.01
            of either score, and W in full where none does; None for W in full.
        dtype: The dtype of singular vectors: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
        least: The smallest rank that ``"auto"`` tries. Scores on few samples reveal little of what a low rank loses.

    Raises:
        LREError: If a value is invalid, or there is a narrow dtype without a rank.
    """

    trials: Trials = "first"
    rank: Rank = None
    dtype: str = "float32"
    least: int = 4

    def __post_init__(self) -> None:
        check_choice("trials", self.trials, get_args(Trials))
        check_choice("dtype", self.dtype, list(DTYPES))
        if self.rank not in (None, "auto") and (type(self.rank) is not int or self.rank < 1):
            raise LREError(f"rank must be a whole number of at least 1, 'auto' or None, not {self.rank!r}")
        check_number("least", self.least, 1)
        if self.rank is None and self.dtype != "float32":
            raise LREError(f"W in full is kept in float32: give a rank, such as 'auto', for factors in {self.dtype}")

    @property
    def measured(self) -> bool:
        """Whether LREs in this form differ from those of the fit, and have scores of their own."""
        return self.rank is not None or self.trials == "mean"

    def groups(self, entries: Mapping[TrialKey, Entry]) -> list[list[Entry]]:
        """Return the LREs to be kept: each an LRE of the fit, or several that it is the mean of."""
        by_relation: dict[str, list[Entry]] = {}
        for (relation, _), entry in sorted(entries.items()):
            by_relation.setdefault(relation, []).append(entry)
        if self.trials == "all":
            return [[entry] for group in by_relation.values() for entry in group]
        return [group if self.trials == "mean" else group[:1] for group in by_relation.values()]


class Scorer:
    """Scores LREs on the test samples of the trials that they were estimated in.

    Args:
        lm: The LM, on the device where it is to run.
        data: The datamodule of the fit.
        max_known: The fit's limit of known samples of a trial, if any.
    """

    def __init__(self, lm: LanguageModel, data: PromptSource, max_known: int | None = None) -> None:
        self.lm, self.data, self.max_known = lm, data, max_known
        data.use(lm)
        keys = [(data.relations[relation].name, number) for relation, number in data.schedule]
        self._places = {key: index for index, key in enumerate(keys)}

    def states(self, group: Sequence[Entry]) -> TrialStates:
        """Run the test prompts of an LRE's trial, or of the first of several whose mean is scored.

        Samples that one of the others was estimated from count as unknown.

        Raises:
            LREError: If the data do not have the trial.
        """
        key, layer = group[0].key, group[0].layer
        if key not in self._places:
            raise LREError(f"the data have no trial {key[1]} of {key[0]!r}: give the source and the options of the fit")
        index = self._places[key]
        trial = self.data.trial(index)
        if tuple((sample.subject, sample.object) for sample in trial.train) != group[0].metadata["origin"]["train"]:
            raise LREError(f"the data draw other samples for trial {key[1]} of {key[0]!r} than the fit did")
        states = run_trial(self.lm, self.data, index, [layer], self.max_known)
        seen = {subject for entry in group[1:] for subject, _ in entry.metadata["origin"]["train"]}
        own = torch.tensor([trial.test_asked[sample].subject not in seen for sample in states.samples])
        return states if own.all() else states.answered(states.predicted, states.known & own.to(states.known.device))

    def scores(self, states: TrialStates, lre: LRE) -> Scores:
        """Return the faithfulness and the causality of an LRE."""
        faithful, causal = counts(states, lre.to(self.lm.device), 0)
        return plain_scores((fraction(faithful, states.all_known), fraction(causal, len(states.all_edited))))


def mean_lre(lres: Sequence[LRE]) -> LRE:
    """Return the mean of W and of b over trials, with the origin of the first one."""
    first, *others = lres
    layers = sorted({str(lre.layer) for lre in lres})
    if len(layers) > 1:
        raise LREError(
            f"the trials of {first.origin.relation!r} have LREs at the layers {', '.join(layers)}, which have no mean"
        )
    if not others:
        return first
    weight = torch.stack([lre.operator.dense() for lre in lres]).mean(0)
    return replace(first, weight=weight, bias=torch.stack([lre.bias for lre in lres]).mean(0))


def smaller(lre: LRE, entry: Entry, form: Form, score: Callable[[LRE], Scores] | None) -> tuple[LRE, Entry]:
    """Return an LRE in the form in which it is kept, and its entry with the scores before and after.

    Without `score`, which scores LREs on the test samples of the trial, there are no scores after, and a rank must be
    given.
    """
    if not form.measured:
        return lre, entry
    unknown: Scores = (None, None)
    given = score(lre) if score else unknown
    if form.rank is None:
        return lre, replace(entry, scores=given, full=unknown)
    full = entry.scores if score is None and len(entry.trials) == 1 else given
    if entry.factors is not None:  # W in full is no longer there
        full = entry.full
    width, dtype = len(lre.bias), DTYPES[form.dtype]
    ranks = default_ranks(width) if form.rank == "auto" else check_ranks([form.rank], width)
    least = form.least if form.rank == "auto" else 1
    ranks = [rank for rank in ranks if least <= rank <= lre.operator.rank] or [lre.operator.rank]
    largest = lre.low_rank(ranks[-1])
    for rank in ranks:
        cut = largest.low_rank(rank, dtype)
        scores = score(cut) if score else unknown
        cut_entry = replace(entry, factors=rank, dtype=form.dtype, scores=scores, full=full)
        if form.rank != "auto" or max(loss or 0.0 for loss in cut_entry.loss) <= TOLERANCE + 1e-9:
            return cut, cut_entry
    return lre, replace(entry, scores=given)


def kept_form(lre: LRE) -> tuple[int | None, str]:
    """Return the rank of an LRE's factors, None for W in full, and the dtype of W or of its singular vectors."""
    if isinstance(lre.operator, Factors):
        return lre.operator.rank, str(lre.operator.left.dtype).removeprefix("torch.")
    return None, str(lre.operator.dtype).removeprefix("torch.")
