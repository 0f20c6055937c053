"""LREs on the test samples of every relation, and controls: what of an LRE is particular to its relation?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import torch

from lre_lightning.errors import LREError
from lre_lightning.grid import place_of
from lre_lightning.lre.estimator import mean_over
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.progress import progress
from lre_lightning.prompts.source import PromptSource
from lre_lightning.prompts.trials import Trial, train_prompts
from lre_lightning.relations.relation import Sample
from lre_lightning.scoring.scores import causality_predictions, faithfulness_predictions
from lre_lightning.scoring.states import TrialStates, run_trial

CONTROLS = ("W without b", "b alone", "shuffled examples")
"""Changes of a relation's own LRE: W s, b, and W and b from examples whose objects are exchanged.

The last is left out where it could not differ, as prompts show no examples, one, or those of one object.
"""


@dataclass(frozen=True)
class CrossScore:
    """Counts of one LRE, at its own layer, beta and rank, on the test samples of one relation and trial.

    Attributes:
        relation: The relation of the test samples.
        reader: The relation of the LRE, or for a control of the relation's own LRE one of `CONTROLS`.
        known: Number of test samples that the LM knows.
        faithful: Those for which D(LRE(s)) is what the LM says.
        edited: Number of edits.
        causal: Those after which the LM says the target's object.
    """

    model: str
    relation: str
    category: str
    trial: int
    reader: str
    known: int
    faithful: int
    edited: int
    causal: int

    @property
    def faithfulness(self) -> float:
        """The fraction of known samples on which the LRE is faithful; NaN if there is none."""
        return self.faithful / self.known if self.known else float("nan")

    @property
    def causality(self) -> float:
        """The fraction of edits that succeed; NaN if there is none."""
        return self.causal / self.edited if self.edited else float("nan")


def cross_scores(
    lm: LanguageModel,
    data: PromptSource,
    lres: Mapping[tuple[str, int], LRE],
    trials: int = 1,
    max_known: int | None = None,
) -> list[CrossScore]:
    """Score every LRE on the test samples of every relation, and the controls of each relation's own LRE.

    An LRE reads s, and edits it, at its own layer, with its own beta and rank. The scores of a relation's own LRE are
    those of the fit. The targets of edits are the fit's too.

    Args:
        lm: The LM, on the device where it is to run.
        data: The datamodule of the fit.
        lres: LREs by relation and trial, such as `LREModule.lres`.
        trials: The number of trials, the first ones that have LREs.
        max_known: The number of known samples that a trial scores at most, that of the fit; None for all.
    """
    data.use(lm)
    numbers = sorted({number for _, number in lres})[:trials]
    keys = [(data.relations[relation].name, number) for relation, number in data.schedule]
    indices = [index for index, key in enumerate(keys) if key in lres and key[1] in numbers]
    if not indices:
        raise LREError("no relation of the data has an LRE: give the relations and the seed of the fit")
    shown = progress(indices, "LREs on other relations")
    return [score for index in shown for score in _scores_of_trial(lm, data, index, lres, max_known)]


def _scores_of_trial(
    lm: LanguageModel,
    data: PromptSource,
    index: int,
    lres: Mapping[tuple[str, int], LRE],
    max_known: int | None,
) -> Iterator[CrossScore]:
    trial = data.trial(index)
    readers = {name: lres[name, number].to(lm.device) for name, number in lres if number == trial.number}
    own = readers[trial.relation.name]
    for lre in readers.values():
        lre.check_model(lm)
    changed = (
        replace(own, bias=torch.zeros_like(own.bias)),
        replace(own, weight=own.bias.new_zeros(2 * own.bias.shape)),
        shuffled(lm, data, trial, own),
    )
    controls = [(name, lre) for name, lre in zip(CONTROLS, changed, strict=True) if lre is not None]
    layers = sorted({lre.layer for lre in readers.values()}, key=place_of)
    states = run_trial(lm, data, index, layers, max_known)
    for name, lre in chain(readers.items(), controls):
        faithful, causal = counts(states, lre, layers.index(lre.layer))
        yield CrossScore(
            model=lm.label,
            relation=trial.relation.name,
            category=trial.relation.category,
            trial=trial.number,
            reader=name,
            known=states.all_known,
            faithful=faithful,
            edited=len(states.all_edited),
            causal=causal,
        )


def counts(states: TrialStates, lre: LRE, index: int) -> tuple[int, int]:
    """Count the faithful predictions and the successful edits of an LRE, whose layer has an index in `states`."""
    s, rank = states.subject[:, index, None], lre.edit_rank
    said = faithfulness_predictions(states.runs.lm, [lre], s[states.known], [lre.beta])
    edited = causality_predictions(states.edited_runs, [lre], s[states.edited], states.change, [rank])
    return int(states.count_faithful(said)), int(states.count_causal(edited))


def shuffled(lm: LanguageModel, data: PromptSource, trial: Trial, lre: LRE) -> LRE | None:
    """Estimate an LRE at the same layer from prompts in which every example has the object of the next one.

    It is None if those are the same prompts.
    """
    objects = [sample.object for sample in trial.train]
    exchanged = tuple(
        Sample(sample.subject, object_)
        for sample, object_ in zip(trial.train, [*objects[1:], *objects[:1]], strict=True)
    )
    other = replace(trial, train=exchanged)
    own, examples = (train_prompts(drawn, data.tokenizer, options=data.prompts) for drawn in (trial, other))
    if {prompt.input_ids for prompt in own} == {prompt.input_ids for prompt in examples}:
        return None
    weight, bias = mean_over(lm, examples, lre.layer, lre.origin.backward)
    return replace(lre, weight=weight, bias=bias)
