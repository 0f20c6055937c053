"""What is measured in one trial of one relation, and put into its record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import torch

from lre_lightning.grid import Layer
from lre_lightning.lre.inverse import LowRankInverse
from lre_lightning.lre.lre import LRE
from lre_lightning.records.record import BETWEEN_TEMPLATES, Grid, TrialRecord
from lre_lightning.scoring.baselines import Example, causal_baselines, faithful_baselines, fit_baselines
from lre_lightning.scoring.line_integrals import trial_integrals
from lre_lightning.scoring.scores import EncodedTrial, faithfulness_predictions, score

if TYPE_CHECKING:
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial


def new_record(draw: Trial, data: PromptSource, tested: int, known: int) -> TrialRecord:
    """The record of a trial before it is scored.

    Args:
        draw: The relation, and the trial's samples.
        data: How samples were drawn and prompts made, and how many objects have a first token of their own (table
            "first_token_filter").
        tested: Number of test prompts.
        known: How many of them the LM answers right.
    """
    several = len(draw.asked_with) > 1
    prompts = {**asdict(data.form), "sampling": data.sampling, **({"template": data.template} if several else {})}
    return TrialRecord(
        relation=draw.relation.name,
        category=draw.relation.category,
        trial=draw.number,
        samples=len(draw.relation.samples),
        range_size=len(draw.relation.objects),
        tested=tested,
        known=known,
        n_shot=len(draw.train),
        template=BETWEEN_TEMPLATES.join(draw.asked_with),
        template_index=data.template if isinstance(data.template, int) else None,
        first_tokens=data.coverage(draw.relation).unique_first_tokens,
        train=tuple((sample.subject, sample.object) for sample in draw.train),
        seed=data.seed,
        digest=draw.relation.digest,
        prompts=prompts,
    )


def with_grid(
    record: TrialRecord,
    trial: EncodedTrial,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
) -> TrialRecord:
    """The record with the counts of faithfulness and causality on the grid (figures "sweep" and "rank-sweep").

    Args:
        record: The record of the trial.
        trial: The test prompts, with s at the layers of `lres`.
        lres: The LRE at each layer.
        betas: Where faithfulness is counted.
        ranks: Where causality is counted.
    """
    counts = score(trial, lres, betas, ranks)
    return replace(
        record,
        layers=tuple(lres),
        betas=tuple(betas),
        ranks=tuple(ranks),
        faithful=_grid(counts.faithful),
        causal=_grid(counts.causal),
        edited=counts.edited,
    )


def with_baselines(
    record: TrialRecord,
    trial: EncodedTrial,
    lres: Mapping[Layer, LRE],
    examples: Sequence[Example],
) -> TrialRecord:
    """The record with the counts of all baselines, and of the LRE on zero-shot prompts.

    Args:
        record: The record of the trial, on its grid.
        trial: The test prompts, with s few-shot and zero-shot at the layers of `lres`.
        lres: The LRE at each layer.
        examples: The examples that the LREs were estimated from.
    """
    assert trial.zero_shot is not None
    maps = {layer: fit_baselines(examples, layer) for layer in lres}
    answers = faithfulness_predictions(trial.runs.lm, list(lres.values()), trial.zero_shot[trial.known], record.betas)
    (zero_shot,) = trial.shared.total(trial.count_faithful(answers))
    return replace(
        record,
        faithful_baselines=faithful_baselines(trial, trial.subject, maps),
        faithful_zero_shot=_grid(zero_shot),
        zero_shot_baselines=faithful_baselines(trial, trial.zero_shot, maps),
        causal_baselines=causal_baselines(trial, list(lres)),
    )


def with_low_rank(record: TrialRecord, trial: EncodedTrial, lre: LRE) -> TrialRecord:
    """The record with faithfulness by rank at the chosen layer and beta, W cut down to the rank (figure "rank-sweep").

    Args:
        record: The record of the trial, on its grid.
        trial: The test prompts.
        lre: The LRE at the chosen layer.
    """
    subject = trial.subject[trial.known, record.layers.index(lre.layer)].to(lre.weight)
    low_rank = LowRankInverse(lre.weight, max(record.ranks)).forward(subject, record.ranks)
    (faithful,) = trial.shared.total(trial.count_faithful(trial.runs.lm.predict(record.beta * low_rank + lre.bias)))
    return replace(record, faithful_low_rank=tuple(faithful.tolist()))


def with_line_integrals(record: TrialRecord, trial: EncodedTrial, lre: LRE, pairs: int, key: str) -> TrialRecord:
    """The record with the line integrals between pairs of test subjects at the chosen layer (table "line_int").

    Args:
        record: The record of the trial, on its grid.
        trial: The test prompts.
        lre: The LRE at the chosen layer.
        pairs: How many pairs.
        key: Seeds the draw of pairs.
    """
    index = record.layers.index(lre.layer)
    return replace(record, line_integrals=trial_integrals(trial, index, lre, pairs, key))


def _grid(counts: torch.Tensor) -> Grid:
    return tuple(map(tuple, counts.tolist()))
