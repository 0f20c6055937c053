"""Scores of LREs in one trial: faithfulness by layer and beta, causality by layer and rank.

Definitions are those of Section 3.2 of the paper. Only known facts count: samples whose object's first token the LM
itself predicts under the same context.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from lre_lightning.grid import Layer
from lre_lightning.lre.lre import LRE
from lre_lightning.metrics.success import Causality, Faithfulness, SuccessRate
from lre_lightning.models.language_model import LanguageModel
from lre_lightning.models.patching import PromptBatch
from lre_lightning.models.points import predict_points
from lre_lightning.records.record import TrialRecord
from lre_lightning.runs.processes import Processes
from lre_lightning.scoring.states import TrialStates

if TYPE_CHECKING:
    from lre_lightning.prompts.source import PromptSource
    from lre_lightning.prompts.trials import Trial

GridMetrics: TypeAlias = tuple[Faithfulness, Causality]


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


def grid_metrics(layers: Sequence[Layer], betas: Sequence[float], ranks: Sequence[int]) -> GridMetrics:
    """Return the metrics of a trial on a grid: faithfulness by layer and beta, causality by layer and rank."""
    return Faithfulness(1, (len(layers), len(betas)), "none"), Causality(1, (len(layers), len(ranks)), "none")


def with_grid(
    record: TrialRecord,
    states: TrialStates,
    lres: Mapping[Layer, LRE],
    betas: Sequence[float],
    ranks: Sequence[int],
    metrics: GridMetrics | None = None,
) -> tuple[TrialRecord, Tensor, Tensor]:
    """Score LREs on the grid of layers, betas and ranks (figures "sweep" and "rank-sweep" of the paper).

    `states` must have s at the layers of `lres`, in their order. The record's counts are the states of the `metrics`,
    which are those of `grid_metrics`, summed over the processes. A collective call.

    Returns:
        The record with faithfulness and causality; the LREs' answers for known samples, int64 `(known, layers, betas)`;
        and the LM's after edits, `(edits, layers, ranks)`.
    """
    operators = list(lres.values())
    said = faithfulness_predictions(states.runs.lm, operators, states.subject[states.known], betas)
    edited = causality_predictions(states.edited_runs, operators, states.subject[states.edited], states.change, ranks)
    faithfulness, causality = metrics or grid_metrics([*lres], betas, ranks)
    faithful, _ = _count(faithfulness, said, states.predicted[states.known], states.processes)
    causal, edits = _count(causality, edited, states.wanted, states.processes)
    record = replace(
        record,
        layers=tuple(lres),
        betas=tuple(betas),
        ranks=tuple(ranks),
        faithful=faithful,
        causal=causal,
        edited=edits,
    )
    return record, said, edited


def _count(metric: SuccessRate, answers: Tensor, wanted: Tensor, processes: Processes) -> tuple[Any, int]:
    """Update a metric by a trial; return the successes and samples that it has of all processes.

    Processes that share an LM hold the same answers, which the first of them counts.
    """
    metric.to(answers.device).reset()
    counted = torch.full_like(wanted, not processes.member, dtype=torch.bool)
    metric.update(answers, wanted, torch.zeros_like(wanted), counted)
    with metric.sync_context(should_sync=processes.count * processes.members > 1):
        return grid_of(metric.correct[0]), int(metric.total)


def outputs(lres: Sequence[LRE], subject: Tensor, betas: Sequence[float]) -> Iterator[Tensor]:
    """Yield LRE(s) of one LRE per layer at every beta, for s at their layers `(batch, layers, hidden)`.

    Each is `(batch, betas, hidden)`.
    """
    for index, lre in enumerate(lres):
        yield lre(subject[:, index, None], slopes(betas, lre, subject))


def faithfulness_predictions(lm: LanguageModel, lres: Sequence[LRE], subject: Tensor, betas: Sequence[float]) -> Tensor:
    """Decode the answers of one LRE per layer, argmax D(beta W s + b); the arguments are those of `outputs`.

    Returns:
        Token ids `(batch, layers, betas)`, int64.
    """
    return torch.stack([predict_points(lm, output) for output in outputs(lres, subject, betas)], dim=1)


def slopes(betas: Sequence[float], lre: LRE, subject: Tensor) -> Tensor:
    """Return betas as factors of W s for s `(batch, 1, hidden)`, `(betas, 1)`."""
    return torch.tensor(betas, dtype=lre.bias.dtype, device=subject.device)[:, None]


def edited_outputs(
    runs: PromptBatch, lres: Sequence[LRE], subject: Tensor, difference: Tensor, ranks: Sequence[int]
) -> Iterator[Tensor]:
    """Run the LM after edits s := s + W^+ (o' - o), at beta = 1, by one LRE per layer and at every rank.

    `subject` is s at the layers, `(batch, layers, hidden)`, and `difference` o' - o of each prompt, `(batch, hidden)`.
    It yields outputs of the last block for each layer, `(batch, ranks, hidden)`.
    """
    for index, lre in enumerate(lres):
        delta = lre.operator.edits(difference.to(lre.bias), ranks)
        yield runs.patched(lre.layer, subject[:, index, None].to(delta) + delta)


def causality_predictions(
    runs: PromptBatch, lres: Sequence[LRE], subject: Tensor, difference: Tensor, ranks: Sequence[int]
) -> Tensor:
    """Return the LM's answers after edits, token ids `(batch, layers, ranks)`, int64: see `edited_outputs`."""
    after = edited_outputs(runs, lres, subject, difference, ranks)
    return torch.stack([runs.lm.predict(output) for output in after], dim=1)


def grid_of(counts: Tensor) -> Any:
    """Return counts `(rows, columns)`, or `(rows,)`, as a record holds them."""
    found = counts.tolist()
    return tuple(map(tuple, found)) if counts.ndim == 2 else tuple(found)
