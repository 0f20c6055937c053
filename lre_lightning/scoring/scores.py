"""Scores of LREs in one trial: faithfulness by layer and beta, causality by layer and rank.

Definitions are those of Section 3.2 of the paper. Only known facts count: samples whose object's first token the LM
itself predicts under the same context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.models.points import predict_points
from lre_lightning.records.record import MAJORITIES, Grid, PartialGrid, TrialRecord
from lre_lightning.scoring.states import TrialStates

if TYPE_CHECKING:
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial


Read: TypeAlias = Callable[[Tensor], Tensor]
"""Returns the answers, argmax D(o), to the outputs of a layer, `(samples, points, hidden)`, as `lm.predict` does."""


def new_record(trial: Trial, data: PromptSource, tested: int, known: int) -> TrialRecord:
    """Return the record of a trial of `data` before it is scored; the LM knows `known` of the `tested` prompts."""
    prompts, template = data.prompts.recorded, data.prompts.template
    if len(trial.asked_with) == 1:
        del prompts["template"]  # the record's own
    return TrialRecord(
        relation=trial.relation.name,
        category=trial.relation.category,
        trial=trial.number,
        samples=len(trial.relation.samples),
        range_size=len(trial.relation.objects),
        tested=tested,
        known=known,
        n_shot=len(trial.train),
        template=trial.template,
        template_index=template if isinstance(template, int) else None,
        first_tokens=data.coverage(trial.relation).unique_first_tokens,
        train=tuple((sample.subject, sample.object) for sample in trial.train),
        seed=data.seed,
        digest=trial.relation.digest,
        prompts=prompts,
    )


def with_majority(record: TrialRecord, states: TrialStates, tokens: Mapping[str, Sequence[int]]) -> TrialRecord:
    """Return the record with how often an answer is right that is the same for all subjects: the `MAJORITIES`.

    `tokens` are those of each of the relation's objects.
    """
    samples = dict(zip(MAJORITIES, (states.trial.train, states.trial.relation.samples), strict=True))
    most = {name: Counter(tokens[s.object][0] for s in group).most_common(1) for name, group in samples.items()}
    counts = {name: int((states.tokens == token).sum()) for name, ((token, _),) in most.items()}
    return replace(record, majority=counts)


@dataclass
class Answers:
    """What LREs said on the grid of a trial, once it was scored.

    Attributes:
        said: Token ids for known samples, int64 `(known, layers, betas)`.
        edited: Those of the LM after edits, int64 `(edits, layers, ranks)`; -1 at a point that was left out.
    """

    said: Tensor | None = None
    edited: Tensor | None = None


def with_grid(
    record: TrialRecord,
    states: TrialStates,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
    read: Read | None = None,
    read_edits: Read | None = None,
    answers: Answers | None = None,
) -> TrialRecord:
    """Return the record with faithfulness and causality on the grid of LREs, betas and ranks.

    Figures "sweep" and "rank-sweep" of the paper. `states` must have s at the layers of `lres`, in their order. At each
    layer `read` is given the LREs' outputs for known samples, and `read_edits` the LM's after edits. What was said is
    kept in `answers`, if given.
    """
    operators = list(lres.values())
    said = faithfulness_predictions(states.runs.lm, operators, states.subject[states.known], betas, read)
    subject = states.subject[states.edited]
    edited = causality_predictions(states.edited_runs, operators, subject, states.change, ranks, read_edits)
    if answers is not None:
        answers.said, answers.edited = said, edited
    counts = states.count_faithful(said), grid_of(states.count_causal(edited))
    return on_grid(record, states, lres, betas, ranks, *counts)


def on_grid(
    record: TrialRecord,
    states: TrialStates,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
    faithful: Tensor,
    causal: PartialGrid,
) -> TrialRecord:
    """Return the record with a grid and its counts: `faithful`, `(layers, betas)`, and `causal`, `[layer][rank]`."""
    return replace(
        record,
        layers=tuple(lres),
        betas=tuple(betas),
        ranks=tuple(ranks),
        faithful=grid_of(faithful),
        causal=causal,
        edited=len(states.all_edited),
    )


def with_outcomes(record: TrialRecord, states: TrialStates, answers: Answers) -> TrialRecord:
    """Return the record with what was right at its chosen layer, beta and rank, sample by sample; a collective call."""
    assert answers.said is not None
    assert answers.edited is not None
    assert record.rank is not None
    layer = record.layers.index(record.layer)
    outcomes = torch.zeros(
        len(states.prompts), 2, dtype=torch.long, device=states.known.device
    )  # 0: neither right nor not
    said = answers.said[:, layer, record.betas.index(record.beta)] == states.predicted[states.known]
    edited = answers.edited[:, layer, record.ranks.index(record.rank)] == states.wanted
    outcomes[states.known, 0], outcomes[states.edited, 1] = 1 + said.long(), 1 + edited.long()
    every = states.processes.rows(outcomes, states.samples, len(states.trial.test_asked)).tolist()
    right = ((sample, faithful - 1, causal - 1) for sample, (faithful, causal) in enumerate(every) if faithful)
    return replace(record, outcomes=tuple(right))


def with_low_rank(record: TrialRecord, states: TrialStates, lre: LRE) -> TrialRecord:
    """Return the record with faithfulness of its chosen LRE by rank of W (figure "rank-sweep")."""
    subject = states.subject[states.known, record.layers.index(lre.layer)].to(lre.bias)
    low_rank = lre.operator.low_rank(subject, record.ranks)
    counts = states.count_faithful(states.runs.lm.predict(record.beta * low_rank + lre.bias))
    return replace(record, faithful_low_rank=tuple(counts.tolist()))


def faithfulness_predictions(
    lm: LanguageModel, lres: Sequence[LRE], subject: Tensor, betas: Sequence[float], read: Read | None = None
) -> Tensor:
    """Decode the answers of one LRE per layer, argmax D(beta W s + b), for s at their layers `(batch, layers, hidden)`.

    Returns:
        Token ids `(batch, layers, betas)`, int64.
    """
    columns = []
    for index, lre in enumerate(lres):
        output = lre(subject[:, index, None], slopes(betas, lre, subject))
        columns.append((read or partial(predict_points, lm))(output))
    return torch.stack(columns, dim=1)


def slopes(betas: Sequence[float], lre: LRE, subject: Tensor) -> Tensor:
    """Return betas as factors of W s for s `(batch, 1, hidden)`, `(betas, 1)`."""
    return torch.tensor(betas, dtype=lre.bias.dtype, device=subject.device)[:, None]


def causality_predictions(
    runs: PromptBatch,
    lres: Sequence[LRE],
    subject: Tensor,
    difference: Tensor,
    ranks: Sequence[int],
    read: Read | None = None,
) -> Tensor:
    """Run the LM after edits s := s + W^+ (o' - o), at beta = 1, by one LRE per layer and at every rank.

    `subject` is s at the layers, `(batch, layers, hidden)`, and `difference` o' - o of each prompt, `(batch, hidden)`.

    Returns:
        The LM's answers, token ids `(batch, layers, ranks)`, int64.
    """
    columns = []
    for index, lre in enumerate(lres):
        delta = lre.operator.edits(difference.to(lre.bias), ranks)
        edited = subject[:, index, None].to(delta) + delta
        columns.append((read or runs.lm.predict)(runs.patched(lre.layer, edited)))
    return torch.stack(columns, dim=1)


def grid_of(counts: Tensor) -> Grid:
    """Return counts `(rows, columns)` as a record holds them."""
    return tuple(map(tuple, counts.tolist()))
